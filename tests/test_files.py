"""New files are for their owner alone, unless redrive is told otherwise; files that exist keep their mode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from redrive import App, UsageError, mirrors
from redrive.cli.program import complete_file
from redrive.files import create_folders, folder_mode
from redrive.rocksdb.folder import Folder
from redrive.settings import Settings, load_settings
from redrive.sinks.rotation import BySize, LineFile

NOW = datetime(2026, 11, 16, 13, 0, tzinfo=UTC)


@pytest.fixture(autouse=True, params=[0o022, 0o000, 0o077], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    former = os.umask(request.param)
    yield
    os.umask(former)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}


def test_store_with_wal_and_shm_is_private(tmp_path: Path) -> None:
    with closing(App(tmp_path / "shop.db")) as app:
        app.log("orders").append("order.placed", {"cents": 1})
        assert modes(tmp_path) == dict.fromkeys(("shop.db", "shop.db-shm", "shop.db-wal"), 0o600)


def test_store_is_shared_where_the_setting_says_so(tmp_path: Path) -> None:
    with closing(App(tmp_path / "shop.db", settings=Settings(file_mode="0660"))) as app:
        app.log("orders").append("order.placed", {"cents": 1})
        assert modes(tmp_path) == dict.fromkeys(("shop.db", "shop.db-shm", "shop.db-wal"), 0o660)


def test_store_behind_a_dangling_link_is_private(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "shop.db")
    with closing(App(tmp_path / "link.db")) as app:
        app.log("orders").append("order.placed", {"cents": 1})
        assert (tmp_path / "shop.db").stat().st_mode & 0o777 == 0o600


def test_store_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(App(path)) as app:
        app.log("orders").append("order.placed", {"cents": 1})
    path.chmod(0o664)
    with closing(App(path)) as app:
        app.log("orders").append("order.placed", {"cents": 2})
        assert modes(tmp_path) == dict.fromkeys(("shop.db", "shop.db-shm", "shop.db-wal"), 0o664)


@pytest.mark.parametrize("mode", ["600", "0640", "0666"])
def test_file_mode_is_read_from_the_environment(mode: str) -> None:
    assert load_settings(None, {"REDRIVE_FILE_MODE": mode})[0].file_mode == mode


@pytest.mark.parametrize("mode", ["0400", "0755", "rw", "", "7777", 384])
def test_file_mode_is_refused_unless_its_owner_can_write(mode: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file_mode"):
        Settings(file_mode=mode)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mode of a file"):
        mirrors.files(tmp_path, name="dead", file_mode=mode)  # type: ignore[arg-type]


def test_export_is_private_and_keeps_the_mode_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    out = tmp_path / "orders.jsonl"
    for former, mode in ((None, 0o600), (0o644, 0o644), (0o640, 0o640)):
        if former is not None:
            out.chmod(former)
        with complete_file(str(out), "0600") as file:
            file.write(b"{}\n")
            assert modes(tmp_path)["orders.jsonl.part"] == mode
        assert modes(tmp_path) == {"orders.jsonl": mode}


def test_export_does_not_take_the_mode_of_a_killed_one(tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl.part").write_text("half")
    (tmp_path / "orders.jsonl.part").chmod(0o666)
    with complete_file(str(tmp_path / "orders.jsonl"), "0640") as file:
        file.write(b"{}\n")
    assert modes(tmp_path) == {"orders.jsonl": 0o640}


def test_mirror_and_its_folders_are_private(tmp_path: Path) -> None:
    for name, options, mode in (("a", {}, 0o600), ("b", {"file_mode": "0640"}, 0o640)):
        mirror = mirrors.files(tmp_path / name / "dead", name="dead", fsync=False, **options)
        entry = mirrors.Entry(
            seq=1, letter=1, rev=0, state="dead", at=NOW, subscription="charge", source="orders", position=1,
            reason="rejected",
        )  # fmt: skip
        mirror.write([entry], NOW.timestamp())
        mirror.close()
        *folders, file = modes(tmp_path / name).values()
        assert file == mode
        assert {*folders, (tmp_path / name).stat().st_mode & 0o777} == {folder_mode(mode)}


def test_file_of_a_sink_hands_its_mode_on_when_it_rotates(tmp_path: Path) -> None:
    lines = LineFile(tmp_path / "events.jsonl", BySize(10), fsync=False)
    lines.write(b"x" * 9 + b"\n")
    assert modes(tmp_path) == {"events.jsonl": 0o600}
    (tmp_path / "events.jsonl").chmod(0o644)
    lines.write(b"y" * 9 + b"\n")
    lines.close()
    assert set(modes(tmp_path).values()) == {0o644}
    assert len(modes(tmp_path)) == 2


def test_folder_of_keyed_state_is_private(tmp_path: Path) -> None:
    Folder(tmp_path / "made" / "state")
    assert (tmp_path / "made").stat().st_mode & 0o777 == (tmp_path / "made" / "state").stat().st_mode & 0o777 == 0o700


def test_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    create_folders(tmp_path / "open" / "new", 0o600)
    assert modes(tmp_path) == {"open": 0o755, "open/new": 0o700}
