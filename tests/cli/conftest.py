"""A shop in a folder of its own, and the command line as a process or inside this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import App
from redrive.cli import main

SHOP = '''
"""A shop that refuses negative amounts while a file called `strict` lies beside it."""
from pathlib import Path
from redrive import App, Reject, no_retry

app = App("shop.db")
orders, receipts = app.log("orders"), app.log("receipts")

@app.projection(orders, TYPES, tables={"revenue": "key TEXT PRIMARY KEY, cents INTEGER"}, retry=no_retry)
def revenue(event, tx):
    if event.data["cents"] < 0 and Path("strict").exists():
        raise Reject("negative amount")
    tx.execute("INSERT INTO revenue VALUES (?, ?) "
               "ON CONFLICT (key) DO UPDATE SET cents = revenue.cents + excluded.cents",
               (event.key, event.data["cents"]))

@app.on(orders, TYPES, start="first", retry=no_retry, KEY_BY)
async def charge(event, ctx):
    if event.data["cents"] < 0 and Path("strict").exists():
        raise ValueError("cannot charge")
    ctx.emit(receipts, "charged", {"cents": event.data["cents"]})
'''


@dataclass
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, read."""
        return json.loads(self.out)


@dataclass
class Shop:
    """A folder with shop.py and, after `append`, shop.db; or a database, which takes its place wherever it is named."""

    folder: Path
    url: str | None = None
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, *, types: str = "", key_by: str = "", strict: bool = True) -> None:
        """The program, as it is now."""
        text = SHOP.replace("TYPES", f"{types!r}" if types else "*[]").replace("KEY_BY", key_by or "key_by=None")
        (self.folder / "shop.py").write_text(self._placed(text))
        if strict:
            (self.folder / "strict").touch()
        else:
            (self.folder / "strict").unlink(missing_ok=True)

    def append(self, *amounts: int, kind: str = "order.placed") -> None:
        """Orders of keys k0, k1, k2, k0, …"""
        with self.app() as app:
            for number, cents in enumerate(amounts):
                data = {"cents": cents, "user": f"u{number % 2}"}
                app.log("orders").append(kind, data, key=f"k{number % 3}")

    @contextlib.contextmanager
    def app(self) -> Iterator[App]:
        """An app without functions on the shop's store."""
        app = App(self.store)
        yield app
        app.close()

    @property
    def store(self) -> str:
        """The file or the database."""
        return self.url or str(self.folder / "shop.db")

    def _placed(self, text: str) -> str:
        """The file's name, and its tables' names, in a text: those of the database."""
        if self.url is None:
            return text
        return text.replace(str(self.folder / "shop.db"), self.url).replace("shop.db", self.url)

    def redrive(self, *arguments: str, **environ: str) -> Answer:
        """The command line, inside this process but in the shop's folder and with its environment."""
        out, err = io.StringIO(), io.StringIO()
        before, path = dict(os.environ), list(sys.path)
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                _set_environ(self._env() | {name: self._placed(value) for name, value in environ.items()})
                main([self._placed(word) for word in arguments])
            except SystemExit as ended:
                assert isinstance(ended.code, int)
                return Answer(ended.code, out.getvalue(), err.getvalue())
            finally:
                _set_environ(before)
                sys.path[:] = path
                for name in ("shop", "broken", "empty"):
                    sys.modules.pop(name, None)
        raise AssertionError("main() always ends the process")

    def process(self, *arguments: str, answer: str | None = None) -> Answer:
        """The command line as a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "redrive.cli", *map(self._placed, arguments)], cwd=self.folder, capture_output=True,
            text=True, timeout=60, input=answer, env=self._env(), check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    def at_terminal(self, *arguments: str, answer: str) -> Answer:
        """The command line as a process on a terminal, with somebody who types an answer."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "redrive.cli", *map(self._placed, arguments)], cwd=self.folder, stdin=theirs,
            stdout=theirs, stderr=theirs, env=self._env() | {"TERM": "xterm", "COLUMNS": "80"},
        )  # fmt: skip
        os.close(theirs)
        os.write(ours, answer.encode())
        said = b""
        with contextlib.suppress(OSError):  # the last reader of a closed terminal gets an error, not an end
            while chunk := os.read(ours, 65536):
                said += chunk
        os.close(ours)
        return Answer(process.wait(timeout=60), said.decode(), "")

    def work(self) -> subprocess.Popen[str]:
        """Start a worker, which owns both subscriptions now; it is stopped at the end of the test."""
        command = [sys.executable, "-m", "redrive.cli", "run", "shop:app"]
        worker = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._env()
        )
        self.workers.append(worker)
        assert worker.stderr is not None
        missing = {"charge", "revenue"}
        for line in worker.stderr:  # it says what it owns
            missing = {name for name in missing if f"lease.taken subscription={name}" not in line}
            if not missing:
                break
        return worker

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the store."""
        if self.url is not None:
            return self._ask(re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql))
        with contextlib.closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            found = connection.execute(sql).fetchall()
            connection.commit()
            return found

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.store, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "COLUMNS"))}
        return kept | {"PYTHONDONTWRITEBYTECODE": "1"}  # the program is rewritten within a second


@pytest.fixture
def shop(tmp_path: Path, backend: str | None) -> Iterator[Shop]:
    shop = Shop(tmp_path, backend)
    shop.write()
    yield shop
    for worker in shop.workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=30)


class _Stream(io.BytesIO):
    """What is behind a stream of a process: it has a name."""

    name = "<stdout>"


def _set_environ(wanted: dict[str, str]) -> None:
    """The whole environment from now on. Only what differs is written: clearing it took as long as a short command."""
    present = dict(os.environ)
    for name in present.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if present.get(name) != value:
            os.environ[name] = value


def _command(folder: Path, line: Sequence[str], *, stdin: bytes | None = b"", **environ: str) -> Answer:
    """The command line inside this process, on streams as strict as those of a terminal; None: stdin is closed."""
    out, err = (io.TextIOWrapper(_Stream(), "utf-8", "strict", newline="") for _ in range(2))
    given = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "COLUMNS"))}
    before, path, modules, stdin_before = dict(os.environ), list(sys.path), set(sys.modules), sys.stdin
    code: object = None
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            sys.stdin = given  # type: ignore[assignment]  # None is what Python itself sets when it is closed
            _set_environ(kept | {"REDRIVE_STORE": str(folder / "shop.db")} | environ)
            main(line)
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            error.add_note(f"redrive {line!r:.2000}")
            raise
        finally:
            sys.stdin = stdin_before
            _set_environ(before)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                    del sys.modules[name]
    assert isinstance(code, int)
    out.flush(), err.flush()
    return Answer(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def command() -> Any:
    """The command line inside this process and in a folder: `command(folder, ["status"], stdin=b"")`."""
    return _command


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line inside this process: `inside("status", "--store", path)`."""
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDRIVE_STORE", "")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Answer(ended.value.code, said.out, said.err)

    return run
