"""Five thousand command lines that nobody would type: an answer each, never a traceback, never a broken store.

The lines are made from the commands themselves, so a new command or option is covered by being there.
A failure names its line, and the lines before it on the same copy of the store.
"""

from __future__ import annotations

import gc
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import psycopg
import pytest
from rich.cells import cell_len

from redrive import App
from redrive.cli import cli
from redrive.testing.servers import Databases

# Click leaves an input file open when something else on the line is refused; the process ends a moment later.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

LINES, SEEDS, PER_STORE = 5_000, 10, 25
LINES_ON_POSTGRES = 250
WIDTH, MESSAGE_MAX = 80, 4_000

# What changes a store on purpose. Everything else only looks: a new command that writes has to be entered here.
WRITES = {
    "run", "rebuild", "reset", "forget", "rename", "accept-from-now", "rekey", "pause", "resume", "seek", "prune",
    "append",
    "import", "dlq replay", "dlq replay-all", "dlq edit", "dlq discard", "dlq purge", "dlq resolve", "dlq reopen",
    "dlq import", "dlq note", "ops cancel", "ops resume", "ops run", "demo", "breaker open", "breaker close", "admit",
    "scheduled cancel", "hold", "release", "dlq now", "dlq postpone",
}  # fmt: skip
LOOKS_ONLY = {"--rehearse", "--dry-run"}  # with one of these, a command that writes does not
DATA = {"export", "dlq export", "alerts", "dashboard"}  # their output is the data itself: no columns to fit
# Never ends by itself, so only lines that are refused are tried: the tests of these commands run them properly.
ENDLESS = {"demo": "it takes twenty seconds and is tried as a whole by its own test"}
NO_OPTIONS = {
    "--follow": "prints until it is interrupted",
    "--debug": "shows tracebacks on purpose",
    "--watch": "prints until it is interrupted",
}
ALWAYS = {"run": ["--until-idle"]}  # without it, a worker runs until it is told to stop

SHOP = '''
"""Counts orders; a negative one fails, and so does everything of customer k1 behind it."""
from redrive import App, Ctx, Event, Reject, Tx, no_retry, retry

app = App("shop.db")
orders, receipts = app.log("orders"), app.log("receipts")

@app.projection(orders, tables={"revenue": "key TEXT PRIMARY KEY, cents INTEGER"}, retry=no_retry)
def revenue(event, tx):
    if event.data["cents"] < 0:
        raise Reject("negative amount")
    tx.execute("INSERT INTO revenue VALUES (?, ?) "
               "ON CONFLICT (key) DO UPDATE SET cents = revenue.cents + excluded.cents",
               (event.key, event.data["cents"]))

@app.on(orders, start="first", retry=retry(attempts=5, wait="1h", wait_max="2h"))
async def charge(event, ctx):
    if event.data["cents"] < -5:
        raise ValueError(f"cannot charge {event.data['cents']}")
    ctx.emit(receipts, "charged", {"cents": event.data["cents"]})

@app.on(orders, "order.placed", start="first", retry=no_retry, order="none")
def mail(event):
    if event.data["cents"] == 13:
        raise ConnectionError("mail server is away")
'''

ODD = [
    "", " ", "-", "--", "-x", "0", "-1", "1.5", "1e309", "nan", "inf", "0x10", "²", "١", "1_000", "9" * 30,
    str(2**63 - 1), str(2**63), str(-(2**63) - 1), "true", "null", "NULL", "None", "first", "now", "*", "%", "_", "?",
    "[", "]", "a=b", "=", "a,b", ",", ":", "::", ".", "..", "~", "$HOME", "{}", "{", "[1]", '{"a": 1}', '{"cents": 1}',
    '{"cents": NaN}', '{"a": 1, "a": 2}', '"\\ud800"', "%s%n%d", "{0.__class__}", "[bold]x[/bold]",
    "\x1b[2J\x1b]0;x\x07", "\u202egnp\u2066", "\u200b", "\x00", "a\nb\r\tc", "\ud800", "\udcff", "漢" * 60, "é" * 600,
    "a" * 513, "b" * 100_000, "'; DROP TABLE redrive_letters; --", '" OR 1=1', "../../x", "/nonexistent-redrive/x",
    "shop.py", "2024-01-01", "2024-13-45", "2024-01-01T00:00:00", "2024-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999+23:59", "0001-01-01", "1h", "-1h", "1 fortnight", "10000000d",
    "50/s", "0/s", "/s", "1000000000/s", "inf/s",
]  # fmt: skip

# Parameter names and the kind of value that belongs there; the first that is contained in the name counts.
KINDS = {
    "subscription": "subscription", "name": "subscription", "old": "subscription", "new": "name", "sub": "subscription",
    "program": "program", "app": "program", "store": "store", "fingerprint": "fingerprint", "letter": "letter",
    "ids": "letter", "after": "letter", "event": "event", "id": "event", "key": "key", "type": "type", "log": "log",
    "error": "error", "reason": "reason", "rate": "rate", "since": "time", "until": "time", "before": "time",
    "to": "time", "older": "time", "patch": "json", "data": "json", "headers": "json", "limit": "count",
    "op": "number", "file": "file", "path": "file", "out": "file", "source": "file", "target": "file",
}  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A store with everything in it, the program it belongs to, and values that are found in it."""

    folder: Path
    store: str
    values: dict[str, list[str]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, command: Any) -> Prepared:
    """A file."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, str(folder / "shop.db"), command)
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Prepared(folder, "shop.db", _values(connection.execute, "shop.db"))


@pytest.fixture(scope="module")
def prepared_on_postgres(
    tmp_path_factory: pytest.TempPathFactory, command: Any, postgres: Databases
) -> Iterator[Prepared]:
    """A database."""
    folder, url = tmp_path_factory.mktemp("prepared"), postgres.make()
    prepare(folder, url, command)
    with psycopg.connect(url) as server:
        values = _values(lambda sql: server.execute(on_postgres(sql)), url)
    yield Prepared(folder, url, values)
    postgres.drop(url)


def on_postgres(sql: str) -> bytes:
    return re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql).encode()


def prepare(folder: Path, store: str, command: Any) -> None:
    """Letters of every state, edits, an audit, a paused subscription, two logs."""
    (folder / "shop.py").write_text(SHOP.replace("shop.db", store))
    app = App(store)
    for number in range(60):
        cents = -number if number % 7 == 1 else number
        app.log("orders").append(
            ("order.placed", "order.paid")[number % 3 == 2], {"cents": cents}, key=f"k{number % 9}"
        )
    app.log("orders").append("order.placed", {"cents": -9}, key="schlüssel 漢", headers={"trace": "a-b"}, id="my-id")
    app.close()
    done = command(folder, ["run", "shop:app", "--until-idle"], REDRIVE_STORE=store)
    assert done.code == 0, done.err
    app = App(store)
    desk = app.operate("ada")
    heads = [letter.id for letter, _ in desk.letters.heads()]
    desk.letters.discard(heads[0], "too old")
    desk.letters.resolve(heads[1], "done by hand")
    desk.letters.edit(heads[2], {"cents": 1}, "typo")
    desk.letters.edit(heads[3], {"cents": -1}, "typo")
    desk.letters.replay(heads[2:4], "fixed")
    desk.subscriptions.pause("mail", "quiet please")
    app.close()
    command(folder, ["run", "shop:app", "--until-idle", "--only", "revenue"], REDRIVE_STORE=store)


def _values(execute: Callable[[str], Any], store: str) -> dict[str, list[str]]:
    def column(sql: str) -> list[str]:
        return [str(value) for (value,) in execute(sql)]

    fingerprints = column("SELECT DISTINCT fingerprint FROM redrive_letters WHERE fingerprint <> ''")
    events = column("SELECT id FROM redrive_events")
    assert len(column("SELECT DISTINCT state FROM redrive_letters")) == 4
    return {
        "subscription": column("SELECT name FROM redrive_subscriptions"),
        "name": ["other", "revenue", "umsatz"],
        "program": ["shop:app", "shop", "shop:orders", "shop.py", "nothing:app", "json:app", ":", "shop:app.x"],
        "store": [store, store, store, "none.db", "shop.py", "."],
        "fingerprint": [*fingerprints, *(one[:6] for one in fingerprints)],
        "letter": [*column("SELECT id FROM redrive_letters"), "999999"],
        "event": [*events, *(one[:8] for one in events[:3]), "00000000-0000-7000-8000-000000000000"],
        "key": column("SELECT DISTINCT key FROM redrive_events WHERE key IS NOT NULL"),
        "type": ["order.placed", "order.paid", "order.*"],
        "log": column("SELECT name FROM redrive_logs"),
        "error": ["ValueError", "Reject", "redrive.errors.Reject", "negative", "cannot charge"],
        "reason": ["too old", "rejected", "attempts_exhausted", "behind_head", "fixed in 1.2"],
        "rate": ["1000/s", "60000/m"],
        "time": ["1h", "30s", "2020-01-01", "2030-01-01T00:00:00Z", "first", "now", "10", "0"],
        "json": ['{"cents": 5}', '{"cents": null}', "{}", "[]", "data.json"],
        "count": ["1", "2", "50", "10000"],
        "number": ["1", "2", "3"],
        "file": ["out.jsonl", "data.json", "-", "shop.db", "none/x.jsonl"],
        "text": ["hello", "looks like the bank", "k1"],
    }


# ---------------------------------------------------------------- lines


def tree(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its path, hidden ones too."""
    context = click.Context(group)
    names = list(group.list_commands(context))
    names += [name for name in getattr(group, "commands", {}) if name not in names]
    for name in names:
        found = group.get_command(context, name)
        assert found is not None
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from tree(found, (*path, name))


class Lines:
    """Makes command lines by throwing dice."""

    def __init__(self, seed: int, values: dict[str, list[str]]) -> None:
        self.dice = Random(seed)
        self.values = values
        self.everything = [one for several in values.values() for one in several]
        self.commands = list(tree(cli))

    def line(self) -> list[str]:
        """One of them; most are nearly right."""
        path, command = self.dice.choice(self.commands)
        name = " ".join(path)
        words = ALWAYS.get(name, []) + self._words(command)
        if name in ENDLESS:
            words.insert(0, "--no-such-option")
        before = ["--store", self._value("store", None)] if self._chance(0.1) else []
        if self._chance(0.02):
            path = (*path[:-1], self._mistyped(path[-1]))
        return [*before, *path, *words]

    def _words(self, command: click.Command) -> list[str]:
        """Options and arguments in any order; now and then one too few, one too many, or one that is unknown."""
        parts: list[list[str]] = []
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                parts += [[self._value(parameter.name, parameter.type)] for _ in range(self._times(parameter))]
            elif isinstance(parameter, click.Option) and not NO_OPTIONS.keys() & {*parameter.opts}:
                wanted = 0.9 if parameter.required else 0.25 if parameter.name != "yes" else 0.6
                parts += [self._option(parameter) for _ in range(1 + self._chance(0.1)) if self._chance(wanted)]
        if self._chance(0.04):
            parts.append([self.dice.choice(["--nonsense", "-Z", "--stor", "--jso", "--help", "-h", "--version"])])
        if self._chance(0.04):
            parts.append([self._odd()])
        self.dice.shuffle(parts)
        words = [word for part in parts for word in part]
        if self._chance(0.03):
            words = words[:-1]
        return words

    def _times(self, argument: click.Argument) -> int:
        if argument.nargs != -1:
            return argument.nargs if self._chance(0.93 if argument.required else 0.5) else self.dice.randrange(3)
        return self.dice.choice([0, 0, 1, 1, 1, 2, 5])

    def _option(self, option: click.Option) -> list[str]:
        name = self.dice.choice([*option.opts, *option.secondary_opts])
        if option.is_flag or option.count:
            return [name] if self._chance(0.98) else [f"{name}={self._odd()}"]
        values = [self._value(option.name, option.type) for _ in range(option.nargs)]
        if name.startswith("--") and len(values) == 1 and self._chance(0.3):
            return [f"{name}={values[0]}"]
        return [name, *values]

    def _value(self, name: str | None, kind: click.ParamType | None) -> str:
        """What belongs there, mostly; else what belongs elsewhere, or nowhere."""
        if self._chance(0.12):
            return self._odd()
        if self._chance(0.08):
            return self.dice.choice(self.everything)
        if isinstance(kind, click.Choice):
            return str(self.dice.choice(list(kind.choices)))
        sort = next((sort for part, sort in KINDS.items() if part in (name or "")), "text")
        if isinstance(kind, click.types.IntParamType) and sort not in ("letter", "count", "number"):
            sort = "count"
        return self.dice.choice(self.values[sort])

    def _odd(self) -> str:
        return self.dice.choice(ODD)

    def _mistyped(self, word: str) -> str:
        at = self.dice.randrange(len(word))
        return word[:at] + word[at + 1 :]

    def _chance(self, share: float) -> bool:
        return self.dice.random() < share


# ---------------------------------------------------------------- what must hold


def complaint(line: list[str], said: Any, changed: bool) -> str:
    """What is wrong with an answer; nothing, it is hoped."""
    name = next((" ".join(path) for path, _ in sorted(tree(cli), reverse=True) if _is_of(line, path)), "")
    looks_only = name not in WRITES or bool(LOOKS_ONLY & {*line})
    is_help = {"-h", "--help", "--version"} & {*line}
    checks = {
        f"an undocumented exit code {said.code}": said.code not in (0, 1, 2, 3, *((4,) if "--check" in line else ())),
        "a traceback": "Traceback" in said.out + said.err,
        "an error nobody thought of": "--debug shows where" in said.err,
        "characters that steer a terminal": not all(map(_is_harmless, (said.out + said.err).splitlines())),
        "failed without a word": said.code in (1, 2)
        and not (said.err.strip() or (said.code == 1 and said.out.strip())),
        "wrong usage that changed the store": said.code == 2 and changed,
        "a look that changed the store (or a command missing in WRITES)": looks_only and changed,
        "an error message without end": len(said.err) > MESSAGE_MAX,
        "lines that are too wide": "--json" not in line and name not in DATA and not _fits(said.out),
        "no JSON": "--json" in line and said.code in (0, 3, 4) and not is_help and not _is_json(said.out),
    }
    return "; ".join(text for text, holds in checks.items() if holds)


def _is_of(line: list[str], path: tuple[str, ...]) -> bool:
    at = 2 if line[0] == "--store" else 0
    return tuple(line[at : at + len(path)]) == path


def _is_harmless(text: str) -> bool:
    return text.isprintable()


def _fits(text: str) -> bool:
    return all(cell_len(row) <= WIDTH for row in text.splitlines())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        try:
            return all(isinstance(json.loads(row), dict) for row in text.splitlines())
        except ValueError:
            return False
    return True


class Spy:
    """Looks from aside whether a store has changed."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.version, self.rows = self._version(), self._dump()

    def changed(self) -> bool:
        """Has anything in it changed since the last look?"""
        version = self._version()
        if version == self.version:
            return False
        before, self.version, self.rows = self.rows, version, self._dump()
        return before != self.rows

    def _version(self) -> int:
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def _dump(self) -> list[str]:
        return list(self.connection.iterdump())


class ServerSpy:
    """The same for a database."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.version, self.rows = self._version(), self._dump()

    def changed(self) -> bool:
        """Has anything in it changed since the last look?"""
        version = self._version()
        if version == self.version:
            return False
        before, self.version, self.rows = self.rows, version, self._dump()
        return before != self.rows

    def _version(self) -> Any:
        """Where the server writes next: if that has not moved, nobody wrote anything."""
        return self.connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()

    def _dump(self) -> list[Any]:
        tables = (
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('public', 'redrive')"
        )
        names = sorted(name for (name,) in self.connection.execute(tables))
        return [(name, sorted(map(repr, self.connection.execute(f"SELECT * FROM {name}".encode())))) for name in names]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_line_breaks_anything(seed: int, prepared: Prepared, command: Any, tmp_path: Path) -> None:
    lines, stdins, complaints = Lines(seed, prepared.values), Random(seed + 1000), []
    for number in range(LINES // SEEDS // PER_STORE):
        folder = folder_of(prepared, tmp_path, number)
        (folder / "shop.db").write_bytes((prepared.folder / "shop.db").read_bytes())
        store = folder / "shop.db"
        complaints += complaints_about(folder, str(store), Spy(store), lines, stdins, command)
    gc.collect()  # files that click left open are noticed here, not in somebody else's test
    assert not complaints, f"{len(complaints)} lines\n\n" + "\n\n".join(complaints[:10])


def test_no_line_breaks_anything_on_postgres(
    prepared_on_postgres: Prepared, command: Any, tmp_path: Path, postgres: Databases
) -> None:
    """Fewer of them: what the lines are made of is the same, what they meet is another store."""
    complaints, stdins = [], Random(1)
    for number in range(LINES_ON_POSTGRES // PER_STORE):
        url = postgres.make(template=prepared_on_postgres.store)
        values = {**prepared_on_postgres.values, "store": [url, url, url, "none.db", "shop.py", "."]}
        folder = folder_of(prepared_on_postgres, tmp_path, number)
        (folder / "shop.py").write_text(SHOP.replace("shop.db", url))
        complaints += complaints_about(folder, url, ServerSpy(url), Lines(number, values), stdins, command)
        postgres.drop(url)
    gc.collect()
    assert not complaints, f"{len(complaints)} lines\n\n" + "\n\n".join(complaints[:10])


def folder_of(prepared: Prepared, tmp_path: Path, number: int) -> Path:
    folder = tmp_path / "a" / "b" / str(number)  # "../.." stays ours
    folder.mkdir(parents=True)
    (folder / "shop.py").write_bytes((prepared.folder / "shop.py").read_bytes())
    (folder / "data.json").write_text('{"cents": 7}')
    return folder


def complaints_about(
    folder: Path, store: str, spy: Spy | ServerSpy, lines: Lines, stdins: Random, command: Any
) -> Iterator[str]:
    """What is wrong with the answers to some lines, one after the other on one store."""
    before: list[list[str]] = []
    for _ in range(PER_STORE):
        line, stdin = lines.line(), stdins.choice([b"", b"", b'{"cents": 3}\n', b"\xff\x00\n", None])
        said = command(folder, line, stdin=stdin, REDRIVE_STORE=store)
        before.append(line)
        try:
            wrong = complaint(line, said, spy.changed())
        except sqlite3.DatabaseError as error:
            wrong = f"a broken store: {error}"
        if wrong:
            yield f"{wrong}\n{_short(line)}\n{str(said)[:1000]}\nafter {[*map(_short, before)][-4:-1]}"
        if wrong.startswith("a broken store"):
            break
    spy.connection.close()
    said = command(folder, ["verify", "--store", store])
    if said.code != 0:
        yield f"not sound after {[*map(_short, before)]}\n{said}"


def _short(line: list[str]) -> list[str]:
    return [word if len(word) < 200 else f"{word[:20]}…×{len(word)}" for word in line]


def test_every_command_and_every_option_is_tried(prepared: Prepared) -> None:
    made = Lines(0, prepared.values)
    tried = [made.line() for _ in range(LINES)]
    words = {word.partition("=")[0] for line in tried for word in line}
    for path, one in tree(cli):
        assert any(_is_of(line, path) for line in tried), path
        for parameter in one.params:
            if isinstance(parameter, click.Option) and not NO_OPTIONS.keys() & {*parameter.opts}:
                assert words & {*parameter.opts}, f"{path}: {parameter.opts}"
