"""What the shell offers when somebody presses Tab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive.policy.action import REASONS


def offered(shop: Any, line: str, **environ: str) -> list[str]:
    """The completions of a line, of which the last word is incomplete; as bash asks for them."""
    store = {"REDRIVE_STORE": shop.store}
    asked = {"_REDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from redrive.cli import main; main([])"], cwd=shop.folder, capture_output=True,
        text=True, timeout=60, check=False, env=shop._env() | store | asked | environ,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [word.partition(",")[2] for word in done.stdout.split()]


@pytest.fixture
def failed(shop: Any) -> Any:
    """One dead letter per subscription, and one operation."""
    shop.append(1, -2, 4, 8, 16)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    line = ("dlq", "edit", "1", "--patch", '{"cents": -3}', "--reason", "x", "--yes")
    assert shop.redrive(*line, "--store", "shop.db").code == 0
    return shop


def test_names_in_the_store_are_completed(failed: Any) -> None:
    found = failed.query("SELECT DISTINCT fingerprint FROM redrive_letters WHERE state = 'dead'")
    fingerprints = {fingerprint for (fingerprint,) in found}
    assert offered(failed, "redrive dlq list -s ") == ["charge", "revenue"]
    assert offered(failed, "redrive rebuild r") == ["revenue"]
    assert offered(failed, "redrive pause charge re") == ["revenue"]
    assert offered(failed, "redrive export o") == ["orders"]
    assert set(offered(failed, "redrive dlq show --fingerprint ")) == fingerprints
    assert set(offered(failed, "redrive dlq note ")) == fingerprints
    assert offered(failed, "redrive ops cancel ") == ["1"]
    assert offered(failed, "redrive ops ") == ["cancel", "resume", "1"]
    assert offered(failed, "redrive dlq list --dlq-reason re") == [one for one in REASONS if one.startswith("re")]


def test_commands_are_completed_without_loading_one(shop: Any) -> None:
    assert offered(shop, "redrive acc") == ["accept-from-now"]
    assert offered(shop, "redrive dlq re") == ["replay", "resolve"]
    program = (
        "import sys, click; from redrive.cli import cli; "
        "print(cli.shell_complete(click.Context(cli), 'd')[0].value, "
        "sorted(name for name in sys.modules if name.startswith('redrive.cli.')))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["doctor ['redrive.cli.lazy', 'redrive.cli.render']"]


def test_store_on_the_line_beats_the_environment(failed: Any, tmp_path: Path) -> None:
    line = f"redrive --store {failed.store} dlq list -s c"
    assert offered(failed, line, REDRIVE_STORE=str(tmp_path / "none.db")) == ["charge"]
    line = f"redrive dlq list --store {failed.store} -s c"
    assert offered(failed, line, REDRIVE_STORE=str(tmp_path / "none.db")) == ["charge"]


@pytest.mark.parametrize(
    "store", ["none.db", "broken.db", ".", "postgresql://nobody@127.0.0.1:1/x", "host=x password=y"]
)
def test_completion_without_a_readable_store_offers_nothing_and_makes_nothing(shop: Any, store: str) -> None:
    (shop.folder / "broken.db").write_text("no database")
    before = sorted(os.listdir(shop.folder))
    assert offered(shop, "redrive dlq list -s ", REDRIVE_STORE=store) == []
    assert sorted(os.listdir(shop.folder)) == before


def test_completion_leaves_the_folder_of_the_store_as_it_was(failed: Any) -> None:
    before = sorted(os.listdir(failed.folder))
    assert offered(failed, "redrive dlq list -s c") == ["charge"]
    assert sorted(os.listdir(failed.folder)) == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_gets_its_script(shop: Any, shell: str) -> None:
    program = [sys.executable, "-c", "from redrive.cli import main; main([])"]
    environ = shop._env() | {"_REDRIVE_COMPLETE": f"{shell}_source"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert (done.returncode, f"{shell}_complete" in done.stdout) == (0, True), done.stderr
