"""The lab: every measured run is a fresh process on a fresh copy of a prepared file.

A contestant is a function of this package that is called by name in the child and returns a dict of figures.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from redrive.testing.brokers import Valkey
from redrive.testing.kafka import Kafka
from redrive.testing.servers import Server

Figures = dict[str, float]
ROOT = Path(__file__).parent.parent
SECONDS_MAX = 300.0  # a run that takes longer is stuck


class RunFailed(RuntimeError):
    """A contestant ended with an error."""


class Lab:
    """A folder with prepared files, and the way to run a contestant beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prepared: dict[str, Path] = {}
        self._databases: dict[str, str] = {}
        self._server: Server | None = None
        self._valkey: Valkey | None = None
        self._streams: dict[int, str] = {}
        self._topics: dict[int, Kafka] = {}

    def prepared(self, name: str, build: Callable[[Path], None]) -> Path:
        """A file that is built once per session and copied for every run."""
        if name not in self._prepared:
            path = self.folder / f"{name}.template.db"
            build(path)
            self._prepared[name] = path
        return self._prepared[name]

    @property
    def server(self) -> Server:
        """A Postgres that syncs, for whoever needs one."""
        if self._server is None:
            self._server = Server(durable=True)
        return self._server

    @property
    def valkey(self) -> Valkey:
        """A Valkey that keeps all in memory, for whoever needs one."""
        if self._valkey is None:
            self._valkey = Valkey()
        return self._valkey

    def stream(self, n: int, fill: Callable[[str, int], object]) -> str:
        """The address of a server with a stream of n entries, which is written once per session."""
        if n not in self._streams:
            fill(self.valkey.url, n)
            self._streams[n] = self.valkey.url
        return self._streams[n]

    def database(self, name: str, build: Callable[[str], None]) -> str:
        """A database that is built once per session and copied for every run."""
        if name not in self._databases:
            url = self.server.databases.make()
            build(url)
            self._databases[name] = url
        return self._databases[name]

    def topic(self, n: int, build: Callable[[int], Kafka]) -> str:
        """The address of a Kafka, in this process, whose topic holds n messages; nobody takes them away."""
        if n not in self._topics:
            self._topics[n] = build(n)
        return self._topics[n].bootstrap

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for cluster in self._topics.values():
            cluster.close()
        if self._valkey is not None:
            self._valkey.close()

    def run(self, function: str, **arguments: Any) -> Figures:
        """Call `module:function(folder, **arguments)` in a process and a folder of its own."""
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        command = [sys.executable, "-m", "bench.lab", function, str(folder), json.dumps(arguments)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        shutil.rmtree(folder, ignore_errors=True)
        if done.returncode != 0:
            raise RunFailed(f"{function} {arguments}: {done.stderr.strip()[-2000:]}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures


class Stopwatch:
    """Wall time of a block, and the processor time of all threads of this process beside it."""

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu, self._has_begun = time.perf_counter(), time.process_time(), False
        return self

    def __exit__(self, *_: object) -> None:
        if not hasattr(self, "seconds"):
            self.stop()

    def begin(self) -> None:
        """The clock begins now, and once; processor time is counted from the start all the same."""
        if not self._has_begun:
            self._wall, self._has_begun = time.perf_counter(), True

    def stop(self) -> None:
        """What follows in the block does not count."""
        self.seconds, self.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu

    def figures(self, n: int) -> Figures:
        """Events per second, and per second of processor time (less disturbed by what else the machine does)."""
        return {"n": n, "rate": n / self.seconds, "seconds": self.seconds, "cpu_rate": n / self.cpu}


def load_runner() -> None:
    """A program that only appends does not load what runs functions; a measured run must not pay for its import."""
    import redrive.observe
    import redrive.runner
    import redrive.store.sqlite

    for package in (redrive.observe, redrive.runner, redrive.store):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)


def environment() -> Mapping[str, str]:
    """The environment of a child: ours, without settings of redrive that happen to be set, and with bytecode kept."""
    unwanted = ("REDRIVE_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def copied(template: str, folder: Path) -> str:
    """A private copy of a prepared file (it was closed cleanly: there is no write-ahead log beside it).

    It is on the disk before any clock runs: who syncs would wait for the hundreds of megabytes of a large one, too.
    """
    target = folder / "run.db"
    with Path(template).open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
    return str(target)


def call(function: str, folder: str, arguments: str) -> Figures:
    """What the child does."""
    module, _, name = function.partition(":")
    figures: Figures = getattr(importlib.import_module(module), name)(Path(folder), **json.loads(arguments))
    return figures


if __name__ == "__main__":
    print(json.dumps(call(*sys.argv[1:])))
