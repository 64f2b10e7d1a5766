"""Strings that steer terminals, break queries or never end, in every field of every command.

Whatever is stored: what is shown fits its lines and is harmless, and what is printed as JSON is the value, exactly.
Whatever is given: it means itself and nothing else.
"""

from __future__ import annotations

import gc
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FunctionType
from typing import Any

import click
import psycopg
import pytest
from rich.cells import cell_len

from redrive import App, Ctx, Event, EventError, Tx, no_retry
from redrive.cli import cli
from redrive.event import check_id, check_key, check_type
from redrive.testing.servers import Databases

# Click leaves an input file open when something else on the line is refused; the process ends a moment later.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

STRINGS = {
    "escapes": "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x9b31m\x1b]8;;http://evil\x1b\\",
    "bidi": "\u202egnp.exe\u2066\u200f\u061c\u2069 \u200b\u00ad\ufeff",
    "controls": "a\x00b\x7f\x08\x0c\x85",
    "newlines": "one\ntwo\r\nthree\tfour\u2028five\x0bsix\rredrive: all is well",
    "long": "k" * 512,
    "wide": "漢字" * 60 + "👩\u200d👩\u200d👧" * 5 + "e" + "\u0301" * 40,
    "sql": "'; DROP TABLE redrive_letters; -- \" OR 1=1 %_*?[",
    "path": "../../../etc/passwd\\..\\x~/$HOME/`id`",
    "formats": "%s%n%(x)s{0.__class__}{x!r}$x ${x} {{}}",
    "markup": "[bold red]x[/] [link=http://evil]y[/link] <b>&amp;</b> | `code`",
    "option": "--all=--yes",
    "json": '{"a": [1, "\\ud83d"]}',
    "numbers": "9" * 200,
    "blank": "   ",
}
GIVEN = {**STRINGS, "empty": "", "half": "a\ud800b", "bytes": "\udcff\udcfe", "megabyte": "m" * 1_000_000}
WIDTH, MESSAGE_MAX = 80, 25_000

# The part of the command line that looks at a store, and what it must be able to tell, word for word.
LETTERS = "SELECT {} FROM redrive_letters WHERE state = 'dead'"
EVENTS = "SELECT {} FROM redrive_events"
NAMES = ["SELECT name FROM redrive_subscriptions"]
LOOKS: dict[str, tuple[list[str], list[str]]] = {
    "status": ([], NAMES),
    "workers": ([], []),
    "breaker list": ([], []),
    "verify": ([], NAMES),
    "dlq list": (
        ["--limit", "1000"],
        [LETTERS.format(one) for one in ("key", "type", "event_id", "error_type", "error_message", "fingerprint")],
    ),
    "dlq": (["--limit", "1000"], [LETTERS.format("fingerprint")]),
    "dlq stats": ([], []),
    "events": (["--limit", "1000"], [EVENTS.format(one) for one in ("id", "type", "key")]),
    "scheduled list": (["--limit", "1000"], [f"SELECT {one} FROM redrive_scheduled" for one in ("id", "type", "key")]),
    "lanes": (["--limit", "1000"], [LETTERS.format("key")]),
    "ops": ([], []),
    "doctor": ([], []),
    "config show": ([], []),
    "export": (["orders"], [EVENTS.format(one) for one in ("id", "type")]),
    "dlq export": (["--all"], [LETTERS.format("event_id")]),
}
# What an argument or a needed option is when another one is tried.
FILLING = {
    "program": "shop:app", "name": "revenue", "old": "revenue", "new": "other", "subscription": "revenue", "ids": "1",
    "letter_id": "1", "letter": "1", "log": "orders", "event_id": "my-id", "key": "k1", "reason": "a test",
    "fingerprint": "", "text": "a note", "type": "order.placed", "to": "now", "patch": '{"cents": 1}',
}  # fmt: skip
# An endless worker, and a demo of twenty seconds that its own test runs: only lines that end, or are refused.
ALWAYS = {"run": ["--until-idle"], "demo": ["--no-such-option"]}


def accepted(check: Any, text: str, size: int) -> str:
    """As much of a text as the check lets through: what it refuses, it refuses with a harmless sentence."""
    text = text.encode()[:size].decode(errors="ignore")
    try:
        return str(check(text))
    except EventError as error:
        assert str(error).isprintable()
    kept = "".join(one for one in text if not ("\x00" <= one < " " or "\x7f" <= one <= "\x9f" or one.isspace()))
    return str(check(kept or "nothing"))


def broken(text: str) -> Any:
    """A function that raises: its name, its file, its error's class and message are all the same text."""

    def fail(error: Exception) -> None:
        raise error

    code = fail.__code__.replace(co_name=text, co_filename=text, co_qualname=text)
    kind = type("Broken", (Exception,), {})
    kind.__qualname__ = text
    return lambda: FunctionType(code, {"__name__": text})(kind(text))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which everything has a hostile name and has failed."""
    path = tmp_path_factory.mktemp("stored") / "shop.db"
    fill(str(path))
    return path


@pytest.fixture(scope="module")
def stored_on_postgres(postgres: Databases) -> Iterator[str]:
    """A database with the same in it."""
    url = postgres.make()
    fill(url)
    yield url
    postgres.drop(url)


def fill(store: str) -> None:
    app = App(store)
    orders = app.log("orders")

    @app.projection(orders, name="revenue[bold]漢%s'\"", retry=no_retry)
    def revenue(event: Event[Any], tx: Tx) -> None:
        if event.data["fails"]:
            broken(STRINGS[event.data["which"]])()

    @app.on(orders, name="mail\u202e../..", start="first", retry=no_retry)
    def mail(event: Event[Any]) -> None:
        raise ValueError(STRINGS[event.data["which"]])

    @app.on(orders, name="count", start="first", retry=no_retry)
    def count(event: Event[Any], ctx: Ctx) -> None:
        ctx.state = {"last": event.data["text"], event.data["text"]: 1}

    for which, text in STRINGS.items():
        key, name = accepted(check_key, text, 512), accepted(check_type, text, 200)
        number = accepted(check_id, f"{which} {text}", 200)
        data = {"which": which, "text": text, text: text, "fails": True}
        orders.append(name, data, key=key, id=number, headers={accepted(check_id, text, 200): key})
        orders.append(name, {**data, "fails": False}, key=key)
        app.log("later").append(name, data, key=key, id=number, after="1h")
    app.run(until_idle=True)
    desk = app.operate(STRINGS["escapes"])
    for letter in desk.letters.heads()[0::5]:
        desk.letters.edit(letter[0].id, {"text": STRINGS["bidi"]}, STRINGS["newlines"])
    app.close()


@pytest.fixture(scope="module")
def foreign(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and what redrive itself would refuse was written by somebody else."""
    path = tmp_path_factory.mktemp("foreign") / "shop.db"
    shutil.copy(stored, path)
    texts = list(STRINGS.values())
    with closing(sqlite3.connect(path)) as connection:
        for (number,) in connection.execute("SELECT id FROM redrive_letters").fetchall():
            text = texts[number % len(texts)].replace("\0", "")
            fields = {"text": text, "id": number, "own": f"{text}{number}"}
            connection.execute("""UPDATE redrive_letters SET type = :text, key = :own, lane = CASE WHEN lane IS NOT NULL
                THEN :own END, event_id = :own, reason = :text, resolved_by = :text, fingerprint = :own
                WHERE id = :id""",
                fields)  # fmt: skip
            connection.execute("UPDATE redrive_attempts SET worker = :text, outcome = :text WHERE letter = :id", fields)
            connection.execute("UPDATE redrive_events SET type = :text, key = :own, id = :own WHERE position = "
                               "(SELECT position FROM redrive_letters WHERE id = :id)", fields)  # fmt: skip
        connection.execute("UPDATE redrive_progress SET halted = :text, owner = :text", {"text": texts[0]})
        connection.execute("UPDATE redrive_audit SET who = :t, action = :t, reason = :t, details = :t", {"t": texts[1]})
        connection.execute("UPDATE redrive_logs SET name = name || :text WHERE name <> 'orders'", {"text": texts[0]})
        connection.commit()
    return path


# ---------------------------------------------------------------- what is shown


def harmless(said: Any, *, wide: bool = False, data: bool = False) -> bool:
    """Is it an answer that may be seen by a terminal of eighty columns? What is data is JSON, for a pipe or a file."""
    lines = (said.out + said.err).split("\n")
    steering = [line for line in lines if not line.isprintable() and not (data and json.loads(line))]
    assert not steering, steering[:3]
    assert said.code in (0, 1, 2, 3)
    assert "Traceback (most" not in said.err
    assert "--debug shows where" not in said.err, said.err
    assert len(said.err) <= MESSAGE_MAX, said.err[:300]
    long = [line for line in said.out.split("\n") if cell_len(line) > WIDTH]
    assert wide or not long, long[:3]
    return True


def strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def read(text: str) -> list[str]:
    """The texts in a command's JSON: one value, or one to a line."""
    try:
        return list(strings(json.loads(text)))
    except json.JSONDecodeError:
        return [one for line in text.splitlines() for one in strings(json.loads(line))]


def column(store: Path, sql: str) -> set[str]:
    with closing(sqlite3.connect(store)) as connection:
        return {value for (value,) in connection.execute(sql) if value is not None}


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if not isinstance(found, click.Group) or found.invoke_without_command:
            yield " ".join((*path, name)), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


@pytest.mark.parametrize("which", ["stored", "foreign"])
@pytest.mark.parametrize("name", LOOKS)
def test_what_is_stored_is_shown_harmlessly_and_told_exactly(
    name: str, which: str, command: Any, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(which)
    check_look(name, column, command, store, folder=store.parent)


@pytest.mark.parametrize("name", LOOKS)
def test_what_is_stored_on_postgres_is_shown_and_told_the_same_way(
    name: str, command: Any, stored_on_postgres: str, tmp_path: Path
) -> None:
    def on_server(url: Any, sql: str) -> set[str]:
        with psycopg.connect(url) as server:
            rows = server.execute(re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql).encode())
            return {value for (value,) in rows if value is not None}

    def at_server(folder: Path, line: list[str]) -> Any:
        return command(folder, line, REDRIVE_STORE=stored_on_postgres)

    check_look(name, on_server, at_server, stored_on_postgres, folder=tmp_path)


def check_look(name: str, column: Any, command: Any, store: Any, *, folder: Path) -> None:
    more, expected = LOOKS[name]
    known = dict(commands())
    assert name in known
    flags = {flag for parameter in known[name].params for flag in parameter.opts}
    more = more if not more or not more[0].startswith("-") or more[0] in flags else []
    said = command(folder, [*name.split(), *more])
    assert harmless(said, wide="export" in name, data=name == "export")
    assert said.code in (0, 3), said.err
    if "--json" in flags:
        said = command(folder, [*name.split(), *more, "--json"])
        assert harmless(said, wide=True)
    told = set(read(said.out)) if "--json" in flags or "export" in name else set()
    for sql in expected if told else []:
        assert not column(store, sql) - told, sql


@pytest.mark.parametrize("which", ["stored", "foreign"])
def test_every_letter_is_shown_harmlessly_and_told_exactly(
    which: str, command: Any, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(which)
    for number in column(store, "SELECT id FROM redrive_letters"):
        where = f"WHERE id = {number}"
        said = command(store.parent, ["dlq", "show", str(number), "--payload"])
        assert harmless(said)
        assert said.code == 0, said.err
        told = command(store.parent, ["dlq", "show", str(number), "--payload", "--json"])
        assert harmless(told, wide=True)
        found = told.json
        for field in ("key", "type", "event_id", "reason", "error_type", "error_message", "fingerprint", "resolved_by"):
            assert found[field] == next(iter(column(store, f"SELECT {field} FROM redrive_letters {where}")), None)
        traces = column(store, f"SELECT traceback FROM redrive_attempts WHERE letter = {number}")
        assert {one["traceback"] for one in found["history"]} == traces


@pytest.mark.parametrize("which", ["stored", "foreign"])
def test_payloads_and_headers_are_told_exactly(which: str, command: Any, request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue(which)
    with closing(sqlite3.connect(store)) as connection:
        rows = connection.execute("""SELECT l.id, coalesce(d.data, e.data), e.headers FROM redrive_letters l
            JOIN redrive_events e USING (position) LEFT JOIN redrive_edits d ON d.subscription = l.subscription
            AND d.position = l.position AND d.rev = l.edits""").fetchall()
    assert len(rows) >= 2 * len(STRINGS)
    for number, data, headers in rows:
        found = command(store.parent, ["dlq", "show", str(number), "--payload", "--json"]).json
        assert found["data"] == json.loads(data)
        assert found["headers"] == json.loads(headers or "{}")


@pytest.mark.parametrize("which", ["stored", "foreign"])
def test_the_fate_of_every_event_is_told_harmlessly(which: str, command: Any, request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue(which)
    for event in column(store, "SELECT id FROM redrive_events"):
        for more in ([], ["--json"]):
            said = command(store.parent, ["explain", *more, "--", event])
            assert harmless(said, wide=bool(more))
            assert said.code == 0, said.err
        assert event in read(said.out)


def test_the_state_of_every_key_is_shown_harmlessly_and_told_exactly(command: Any, stored: Path) -> None:
    with closing(sqlite3.connect(stored)) as connection:
        rows = connection.execute("SELECT key, data FROM redrive_state").fetchall()
    assert len(rows) == len(STRINGS)
    for key, data in rows:
        assert harmless(command(stored.parent, ["state", "--payload", "--", "count", key]))
        told = command(stored.parent, ["state", "--payload", "--json", "--", "count", key])
        assert harmless(told, wide=True)
        assert (told.json["key"], told.json["data"]) == (key, json.loads(data))


def test_every_command_is_looked_at_here(command: Any) -> None:
    """A new command that looks at a store has to be entered in LOOKS; one that writes is named here."""
    own_tests = {"dlq show", "explain", "state", "ops show", "append", "rules test", "alerts", "dashboard"}
    writes = {
        "run", "pause", "resume", "seek", "rebuild", "reset", "rename", "accept-from-now", "rekey", "import", "prune",
        "forget",
        "dlq replay", "dlq edit", "dlq discard", "dlq resolve", "dlq note", "dlq import", "dlq replay-all", "dlq purge",
        "ops cancel", "ops resume", "copy", "migrate", "demo", "scheduled cancel", "admit", "breaker open",
        "breaker close", "hold", "release", "dlq now", "dlq postpone",
    }  # fmt: skip
    known = {name for name, _ in commands()}
    assert known - LOOKS.keys() - own_tests - writes == set()
    assert (LOOKS.keys() | own_tests) - known == set()


@pytest.mark.sqlite("a file is copied")
def test_an_export_is_data_in_a_pipe_and_harmless_on_a_terminal(shop: Any, stored: Path) -> None:
    shutil.copy(stored, shop.folder / "shop.db")
    said = shop.at_terminal("export", "orders", "--store", "shop.db", answer="")
    assert said.code == 0
    lines = [line.rstrip("\r") for line in said.out.split("\n")]
    assert all(line.isprintable() for line in lines)
    told = {json.loads(line)["id"] for line in lines if line.startswith("{")}
    assert told == column(stored, "SELECT id FROM redrive_events")


# ---------------------------------------------------------------- what is given


COMMANDS = dict(commands())


def _lines() -> Iterator[tuple[str, str, str]]:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            if isinstance(parameter, click.Argument) or not parameter.is_flag:  # type: ignore[attr-defined]
                yield name, str(parameter.name), parameter.opts[-1] if isinstance(parameter, click.Option) else ""


def _line(name: str, tried: str, option: str, text: str) -> list[str]:
    """A command line that is right but for one value."""
    command, arguments, words = COMMANDS[name], [], []
    for parameter in command.params:
        filling = text if parameter.name == tried else FILLING.get(str(parameter.name), "1")
        if isinstance(parameter, click.Argument):
            arguments += [filling] if parameter.name == tried or parameter.required else []
        elif parameter.required and parameter.name != tried:
            words += [parameter.opts[-1], filling]
    if option:
        words += [f"{option}={text}"] if option.startswith("--") else [option, text]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    words += [flag for flag in ("--yes",) if flag in flags]
    selects = {"--all"} & flags and tried != "ids" and not option.startswith(("--type", "--key", "--error", "-s"))
    return [*name.split(), *ALWAYS.get(name, []), *words, *(["--all"] if selects else []), "--", *arguments]


@pytest.mark.parametrize(("name", "tried", "option"), list(_lines()))
def test_every_value_of_every_command_may_be_anything(
    name: str, tried: str, option: str, command: Any, stored: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b" / "c" / "d"  # "../../.." stays ours
    folder.mkdir(parents=True)
    shutil.copy(stored, folder / "shop.db")
    (folder / "shop.py").write_text("from redrive import App\napp = App('shop.db')\norders = app.log('orders')\n")
    for text in GIVEN.values():
        if option == "--store" and "/etc" in text:
            text = text.replace("/etc", "/no-such-folder")
        said = command(folder, _line(name, tried, option, text))
        assert harmless(said, wide="export" in name, data=name == "export"), text[:100]
        assert said.code == 0 or said.err or said.out
    gc.collect()  # files that click left open are noticed here, not in somebody else's test
    said = command(folder, ["verify", "--store", "shop.db"])
    assert said.code == 0, said.out


@pytest.mark.parametrize("who", [*STRINGS.values(), "\udcff", "x" * 10_000], ids=[*STRINGS, "bytes", "endless"])
def test_whoever_does_it_is_audited_as_they_are_called(who: str, command: Any, stored: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(stored, tmp_path / "shop.db"))
    who = who.replace("\0", "")  # which no environment can hold
    said = command(tmp_path, ["dlq", "discard", "1", "--yes", "--reason", who], LOGNAME=who, USER=who)
    if "\udcff" in who or not who.strip():
        said = command(tmp_path, ["dlq", "discard", "1", "--yes", "--reason", "x"], LOGNAME=who, USER=who)
    assert harmless(said)
    assert said.code == 0, said.err
    (audited,) = column(store, "SELECT who FROM redrive_audit WHERE action = 'discard'")
    told = command(tmp_path, ["dlq", "show", "1", "--json"])
    assert harmless(told, wide=True)
    assert harmless(command(tmp_path, ["dlq", "show", "1"]))
    deed = told.json["audit"][-1]
    assert deed["who"] == audited
    if who.strip() and who.isprintable() and len(who) < 200:
        assert (audited, deed["reason"]) == (who, who)


@pytest.mark.parametrize("which", STRINGS)
def test_a_selector_means_itself_and_nothing_else(which: str, command: Any, foreign: Path) -> None:
    """No wildcard and no fragment of a query finds another letter; a type may be a glob, a fingerprint a beginning."""
    text = STRINGS[which].replace("\0", "")
    for option, field in (("--key", "key"), ("--type", "type"), ("--fingerprint", "fingerprint")):
        if field == "type" and {*text} & {*"*?["}:
            continue
        values = {v for v in column(foreign, LETTERS.format(field)) if v.startswith(text)} | {text}
        for value in values:
            said = command(foreign.parent, ["dlq", "list", f"{option}={value}", "--json", "--limit", "1000"])
            assert harmless(said, wide=True)
            if said.code == 0:
                found = {letter[field] for letter in said.json}
                assert found <= {value} or (field == "fingerprint" and all(one.startswith(value) for one in found))


@pytest.mark.parametrize("which", STRINGS)
def test_what_is_appended_is_what_is_stored(which: str, command: Any, tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    app.log("orders").append("first", {})
    app.close()
    text = STRINGS[which]
    data = json.dumps({"text": text, text: [text]})
    kind, key = accepted(check_type, text, 200), accepted(check_key, text, 512)
    said = command(tmp_path, ["append", "orders", f"--key={key}", f"--data={data}", "--", kind])
    assert harmless(said)
    if said.code:
        said = command(tmp_path, ["append", f"--key={key}", "--", "orders", kind, data])
    assert said.code == 0, said.err
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        row = connection.execute("SELECT type, key, data FROM redrive_events ORDER BY position DESC").fetchone()
    assert (row[0], row[1], json.loads(row[2])) == (kind, key, json.loads(data))
