"""How far a long command is: a bar on a terminal, a line a minute in a pipe, nothing if it is not wanted."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from redrive.cli import cli
from redrive.cli.progress import Meter, progress
from redrive.cli.reference import commands

LONG = ("dlq replay", "dlq import", "dlq export", "import", "export", "verify", "copy", "rebuild", "prune")


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_pipe_gets_one_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress("replay", "letters", 200_000, clock=clock) as show:
        for second in range(200):
            clock.now = 1000.0 + second
            show(500 * second)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "replay: 15%, 30,000 of 200,000 letters, 500/s, 5m40s left",
        "replay: 30%, 60,000 of 200,000 letters, 500/s, 4m40s left",
        "replay: 45%, 90,000 of 200,000 letters, 500/s, 3m40s left",
    ]


def test_rate_and_time_left_ignore_work_done_before_a_resume() -> None:
    clock = Clock()
    meter = Meter("copy", "rows", None, clock)
    assert (meter.rate, meter.left, meter.line()) == ("", "", "copy: 0 rows")
    meter.move(5_000, 10_000, None)
    assert (meter.rate, meter.left) == ("", "")
    clock.now += 10
    meter.move(6_000, 10_000, None)
    assert (meter.rate, meter.left, round(meter.share, 2)) == ("100/s", "40s left", 0.6)
    clock.now += 1
    meter.move(10_000, 10_000, None)
    assert meter.left == "1s left"


def test_unknown_total_shows_count_and_rate_alone(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress("import", "lines", clock=clock) as show:
        show(0, count=0)
        clock.now += 61
        show(7_000_000, count=122)
    assert capsys.readouterr().err == "import: 122 lines, 2.0/s\n"


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress("import", "lines", 10, quiet=True, clock=clock) as show:
        clock.now += 3600
        show(5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("path", LONG)
def test_long_command_takes_quiet(path: str) -> None:
    options = commands(cli)[f"redrive {path}"].params
    assert [one for one in options if isinstance(one, click.Option) and "--quiet" in one.opts]


@pytest.mark.parametrize("more", [(), ("--quiet",), ("--json",)])
def test_terminal_gets_a_bar_and_stdout_only_the_answer(shop: Any, tmp_path: Path, more: tuple[str, ...]) -> None:
    """stderr is a terminal, stdout a pipe, as in `redrive import … > answer`."""
    line = {"specversion": "1.0", "source": "test", "type": "order.placed", "data": {"cents": 1}}
    with (tmp_path / "orders.jsonl").open("w") as file:
        file.writelines(json.dumps({**line, "id": f"web-{number}"}) + "\n" for number in range(3_000))
    ours, theirs = pty.openpty()
    line_typed = ("import", "orders", "orders.jsonl", "--create", "--store", shop.store, *more)
    with subprocess.Popen(
        [sys.executable, "-m", "redrive.cli", *line_typed],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=shop._env() | {"TERM": "xterm", "COLUMNS": "80"},
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the last reader of a closed terminal gets an error, not an end
            while chunk := os.read(ours, 65536):
                seen += chunk
        os.close(ours)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, seen
    if more:
        assert seen == b""
    else:
        assert b"import" in seen and b"100%" in seen and b"/s" in seen and "━".encode() in seen
    if "--json" in more:
        assert json.loads(out)["added"] == 3_000
    else:
        assert out.decode() == "3,000 events added to orders\n"


def test_every_long_command_runs_with_its_progress(shop: Any) -> None:
    """Each of them goes the way on which it shows its progress, and says on stderr nothing but its answer."""
    shop.append(1, -2, 4, 8, -16)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    for line in (
        ["verify"], ["export", "orders", "--out", "out.jsonl"], ["import", "copied", "out.jsonl", "--create"],
        ["dlq", "export", "--out", "letters.jsonl"],
        ["dlq", "replay", "--all", "-s", "charge", "--yes", "--app", "shop:app"],
        ["dlq", "replay", "1", "--rehearse", "--app", "shop:app"], ["rebuild", "revenue", "--yes", "--app", "shop:app"],
        ["dlq", "discard", "-s", "charge", "--reason", "x", "--yes"], ["prune", "--older-than", "0s", "--yes"],
    ):  # fmt: skip
        answer = shop.redrive(*line, "--store", "shop.db")
        assert answer.code in (0, 3), (line, answer)
        assert "exported" in answer.err or answer.err == "" or "buried" in answer.err, (line, answer.err)
