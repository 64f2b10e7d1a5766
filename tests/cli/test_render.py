"""Nothing that came from an event can steer a terminal, and everything fits one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, Event, Reject, Tx, no_retry
from redrive.cli.render import moment, plain, plural, table, wrapped

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egnp\u2066\u200b\x9b31m\r\n\x00\ud800" + "[bold]" + "漢" * 30 + "'; DROP TABLE x"


@given(st.text())
def test_plain_text_is_printable_and_ordinary_text_is_left_alone(text: str) -> None:
    assert plain(text).isprintable()
    if text.isprintable():
        assert plain(text) == text


@given(st.lists(st.tuples(st.text(max_size=200), st.integers(), st.text(max_size=200)), max_size=5))
def test_a_table_never_exceeds_eighty_columns(rows: list[tuple[str, int, str]]) -> None:
    import contextlib
    import io

    from rich.cells import cell_len

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        table(("name", ">n", "text"), [(a, n % 10**6, b) for a, n, b in rows], keep=("name",))
    assert max(map(cell_len, said.getvalue().split("\n"))) <= 80


def test_times_and_numbers_are_written_one_way() -> None:
    assert moment(0.0) == "1970-01-01T00:00:00.000Z"
    assert moment(None) is None
    assert (plural(1, "letter"), plural(2000, "letter")) == ("1 letter", "2,000 letters")


def test_hostile_text_in_every_field_reaches_no_terminal(inside: Any, tmp_path: Path) -> None:
    app = App(str(tmp_path / "h.db"))
    orders = app.log("orders")
    harmless = HOSTILE.translate(dict.fromkeys((*range(32), *range(127, 160), 55296)))

    @app.projection(orders, name=f"name{harmless.replace(' ', '_')}", retry=no_retry)
    def function(event: Event[Any], tx: Tx) -> None:
        raise Reject(HOSTILE)

    orders.append(f"type{harmless.replace(' ', '_')}", {"text": harmless}, key=harmless, headers={"a": harmless})
    app.run(until_idle=True)
    app.close()
    path = str(tmp_path / "h.db")
    for command in (["status"], ["verify"], ["dlq", "list"], ["dlq", "show", "1", "--payload"], ["dlq", "replay", "1"]):
        for extra in ([], ["--json"]):
            answer = inside(*command, *extra, "--store", path)
            assert answer.code == (1 if command[1:2] == ["replay"] and extra else 0), (
                answer.err
            )  # it is replaying already
            assert all(character.isprintable() or character == "\n" for character in answer.out + answer.err)


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    import subprocess
    import sys

    app = App(str(tmp_path / "p.db"))
    app.log("orders").append("a", {})
    app.close()
    command = f"{sys.executable} -m redrive.cli status --json --store {tmp_path / 'p.db'} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["dlq"], ["nonsense"], ["status", "extra"], ["dlq", "list", "--limit", "x"]])
def test_wrong_usage_is_one_message_and_exit_code_2(inside: Any, arguments: list[str]) -> None:
    answer = inside(*arguments)
    assert answer.code == 2
    assert answer.err
    assert "Traceback" not in answer.err


def test_help_and_version_are_no_errors(inside: Any) -> None:
    for arguments in (["--help"], ["-h"], ["dlq", "--help"], ["dlq", "replay", "-h"], ["--version"]):
        answer = inside(*arguments)
        assert (answer.code, answer.err) == (0, "")
        assert max(map(len, answer.out.splitlines())) <= 80


def test_a_bug_is_one_line_unless_debugging(inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.runtime import Runtime

    def broken(self: Runtime) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Runtime, "check_exists", broken)
    answer = inside("status", "--store", "x.db")
    assert (answer.code, answer.err.splitlines()[0]) == (1, "redrive: ZeroDivisionError: oh")
    assert "Traceback" in inside("status", "--store", "x.db", "--debug").err


@given(st.text(max_size=300), st.integers(2, 90))
def test_broken_lines_fit_and_nothing_but_blanks_is_left_out(text: str, width: int) -> None:
    from rich.cells import cell_len

    lines = list(wrapped(text, width))
    assert max(map(cell_len, lines)) <= width
    assert "".join(lines).replace(" ", "") == plain(text).replace(" ", "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_streams_that_are_not_there_change_no_exit_code(tmp_path: Path, closed: str) -> None:
    import subprocess
    import sys

    app = App(str(tmp_path / "p.db"))
    app.log("orders").append("a", {})
    app.close()
    for line, code in (("status", 0), ("nonsense", 2), ("dlq list --json", 0), ("dlq show 9", None)):
        command = f"{sys.executable} -m redrive.cli {line} --store {tmp_path / 'p.db'} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 1, 2)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        if code is not None:
            assert done.returncode == (1 if closed == ">/dev/full" and code == 0 else code)


def test_a_terminal_that_lacks_a_character_gets_its_number(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    app = App(str(tmp_path / "p.db"))

    @app.projection(app.log("orders"), name="umsätze漢", retry=no_retry)
    def function(event: Event[Any], tx: Tx) -> None: ...

    app.run(until_idle=True)
    app.close()
    done = subprocess.run(
        [sys.executable, "-m", "redrive.cli", "status", "--store", str(tmp_path / "p.db")], capture_output=True,
        timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"ums\xe4tze\\u6f22" in done.stdout


COMMANDS = st.sampled_from(["`redrive ops resume 4`", "redrive dlq list --after 7", "`redrive run MODULE:APP`"])


@given(st.lists(st.text("ab", min_size=1, max_size=9), max_size=20), COMMANDS, st.sampled_from(["", ";", ":", ","]))
def test_wrapped_text_breaks_around_commands_and_loses_nothing(words: list[str], command: str, end: str) -> None:
    text = " ".join([*words, command + end, *words])
    lines = list(wrapped(text, 30, 34))
    assert " ".join(lines) == text
    assert any(command in line for line in lines)


def test_command_longer_than_the_line_is_left_whole() -> None:
    command = "redrive dlq replay --fingerprint 8b70c4d053a6 --rehearse --app MODULE:APP"
    assert list(wrapped(f"rehearse it: {command}, or wait", 40)) == ["rehearse it:", f"{command},", "or wait"]


def test_wide_table_leaves_out_what_matters_least(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (">id", "subscription", "type", "error", ">zero", ">at")
    rows = [(1, "s" * 20, "t" * 30, "e" * 300, 0, "01-02 03:04Z"), (2, "s" * 24, "t", "e", 0, "")]
    table(columns, rows, keep=("subscription",), empty=("zero",), drop=("type", "at"))
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "subscription", "type", "error", "at"]
    assert max(map(len, lines)) == 80
    table(
        columns,
        [(1, "s" * 24, "t" * 30, "e" * 300, 10**12, "2026-01-02 03:04Z")],
        keep=("subscription",),
        drop=("type", "at"),
    )
    assert capsys.readouterr().out.splitlines()[0].split() == ["id", "subscription", "error", "zero", "at"]
