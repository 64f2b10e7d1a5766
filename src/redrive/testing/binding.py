"""Put an app on another store, clock and settings for a while, and give it back as it was."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from redrive.app import App, Lifespan
from redrive.errors import UsageError
from redrive.observe.signals import Listener, Signals
from redrive.settings import Settings
from redrive.store.address import is_postgres
from redrive.store.sqlite import SqliteStore
from redrive.testing.crashing import Fault, MortalStore
from redrive.testing.fakes import FakeEnv
from redrive.testing.scratch import ROOM, in_memory
from redrive.units import duration

_FOREVER = duration("366d")
_bound: weakref.WeakSet[Any] = weakref.WeakSet()


class Binding:
    """One app, bound to a file, an environment and settings of a test."""

    def __init__(
        self, app: App, path: str, env: FakeEnv, settings: Settings | None, listener: Listener, fault: Fault,
        lifespan: Lifespan | None,
    ) -> None:  # fmt: skip
        runtime = app.runtime
        if runtime in _bound:
            raise UsageError("this app is in a harness already: close that one first")
        self.app, self.path, self.env, self._fault = app, path, env, fault
        self._former, self._former_lifespan = dict(vars(runtime)), app._lifespan
        app._lifespan = lifespan
        self._settings = _quiet(runtime._settings or Settings()) if settings is None else settings
        runtime.signals = Signals(inline=True)
        for former in (*self._former["signals"]._listeners, listener):
            runtime.signals.listen(former)
        runtime.inline, runtime._given_env, runtime._readers, runtime._tracker = True, True, None, None
        runtime._url, runtime._env = path, env
        runtime._settings = msgspec.structs.replace(self._settings, store=None)
        self.open()
        _bound.add(runtime)
        with self.store.reading() as tx:  # a second test on one file must not give the same ids again
            last = max((tx.logs.last(log) for log, _ in tx.sql.all("log_all")), default=0)
        env.dice.seed(f"{env.seed} {env.owner} {last}")

    @property
    def store(self) -> Any:
        """The store of the test."""
        store = self.app.runtime.store
        assert hasattr(store, "dead"), "the app was closed behind the harness's back"
        return store

    def open(self) -> None:
        """Open the store, as a new process would."""
        limits = self._settings
        if is_postgres(self.path):
            from redrive.testing.crashing_postgres import MortalPostgresStore

            self.app.runtime._store = MortalPostgresStore(
                self.path, self._fault, self.env.clock, busy_timeout=limits.busy_timeout
            )
        else:
            self.app.runtime._store = MortalStore(
                self.path, self._fault, busy_timeout=limits.busy_timeout, checkpoint_pages=limits.checkpoint_pages
            )

    def reopen(self, owner: str) -> None:
        """Another process on the same file: its predecessor is known to be gone."""
        runtime = self.app.runtime
        runtime._readers = None
        if self.store.dead and runtime._tracker is not None:
            runtime._tracker.abandon()  # what was in memory dies with the process
        self.app.close()
        self.env.dead.add(self.env.owner)
        self.env.owner = owner
        self.open()

    def release(self) -> None:
        """Give the app back as it was."""
        self.app.close()
        vars(self.app.runtime).update(self._former)
        self.app._lifespan = self._former_lifespan
        _bound.discard(self.app.runtime)


def _quiet(settings: Settings) -> Settings:
    """Nobody else is on the store of a test: looking for others would only make time expensive."""
    return msgspec.structs.replace(settings, lease=_FOREVER, poll_min=_FOREVER, poll_max=_FOREVER)


def temporary_file(owner: object) -> str:
    """A store with nothing in it that lasts as long as its owner; on a memory disk if there is one."""
    folder = tempfile.mkdtemp(prefix="redrive-", dir=in_memory(ROOM))
    weakref.finalize(owner, shutil.rmtree, folder, True)
    path = Path(folder, "test.db")
    path.write_bytes(_new_store())
    return str(path)


@cache
def _new_store() -> bytes:
    """The file of a new store, made once per process: to make its tables takes three times as long as to open it."""
    with tempfile.TemporaryDirectory(prefix="redrive-", dir=in_memory(ROOM)) as folder:
        path = Path(folder, "new.db")
        SqliteStore(str(path), inline=True).close()
        return path.read_bytes()
