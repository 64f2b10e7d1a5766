"""`redrive dlq import` with a mirror, and what `redrive status` says of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from redrive import mirrors
from redrive.cli import main
from redrive.mirrors.folders import paths
from tests.mirrors.conftest import Shop

WHY = ["--reason", "the database is gone"]


class Said:
    def __init__(self, capsys: Any) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def redrive(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.setattr(os, "environ", os.environ.copy())  # a command leaves its --store there
    return Said(capsys)


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """What is left of a shop: the mirror of two letters, one of which was settled."""
    shop = Shop(None, mirrors.files(tmp_path / "dead", name="dead-files"))
    shop.bad = {1, 2}
    shop.order(1, key="ada")
    shop.order(2, key="bob")
    shop.run()
    shop.desk.discard([2], "not needed")
    shop.run()
    shop.harness.close()
    return tmp_path / "dead"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A new store, in which the shop has run once."""
    path = str(tmp_path / "new.db")
    shop = Shop(path)
    shop.run()
    shop.harness.close()
    return path


@pytest.mark.parametrize("whole", [True, False], ids=["the folder", "one file"])
def test_a_mirror_is_imported_once(redrive: Said, dead: Path, store: str, whole: bool) -> None:
    place = str(dead if whole else paths(dead)[0])
    words = ["--store", store, "dlq", "import", place, *WHY]
    code, _, err = redrive(*words)
    assert code != 0 and "--yes" in err, "nobody is there to be asked"
    assert redrive(*words, "--yes") == (0, "1 letter imported, 1 settled before\n", "")
    code, out, _ = redrive("--store", store, "dlq", "list", "--json")
    assert code == 0 and '"error_message": "no charge for 1"' in out
    code, out, _ = redrive(*words, "--yes")
    assert code == 1
    assert out == "  letter 1 of charge skipped: it is letter 1 here\n0 letters imported, 1 skipped, 1 settled before\n"
    code, out, _ = redrive(*words, "--yes", "--json")
    assert '"imported": 0' in out and '"why": "it is letter 1 here"' in out


def test_what_is_damaged_is_told(redrive: Said, dead: Path, store: str) -> None:
    (path,) = paths(dead)
    path.write_bytes(b"?" + path.read_bytes()[1:])
    code, out, err = redrive("--store", store, "dlq", "import", str(path), *WHY, "--yes")
    assert (code, out, err) == (1, "0 letters imported, 1 settled before\n", "1 damaged line left out\n")


@pytest.mark.parametrize(
    "place", ["nowhere.jsonl", "/etc", "redis://127.0.0.1:1/0/orders:dlq", "redis://127.0.0.1:1", "redis://:x/"]
)
def test_a_place_that_is_none_is_an_error_in_a_sentence(redrive: Said, store: str, place: str) -> None:
    code, out, err = redrive("--store", store, "dlq", "import", place, *WHY, "--yes")
    assert code in (1, 2) and out == "" and err.startswith("redrive: ") and "Traceback" not in err


def test_status_shows_a_mirror_and_how_far_it_is_behind(redrive: Said, tmp_path: Path) -> None:
    shop = Shop(str(tmp_path / "shop.db"), mirrors.files(tmp_path / "dead", name="dead-files"))
    shop.bad = {1}
    shop.run()
    shop.app.operate("ada").subscriptions.pause("dead-files", "the disk is moved")
    shop.order(1)
    shop.run()
    code, out, _ = redrive("--store", str(tmp_path / "shop.db"), "status", "--json")
    assert code == 0 and '"kind": "mirror"' in out
    (found,) = [one for one in shop.app.operate().status() if one.kind == "mirror"]
    assert (found.lag_events, found.source, found.paused) == (1, "(all letters)", True)
    for verb in (["rebuild", "dead-files"], ["reset", "dead-files", *WHY], ["seek", "dead-files", "now", *WHY]):
        code, _, err = redrive("--store", str(tmp_path / "shop.db"), *verb, "--yes")
        assert code == 2 and "is a mirror of letters" in err
    shop.harness.close()
