"""An app's innards: settings, clocks, the store that opens at first use, and who is told of new events.

Fork-safe: a child opens its own store, because SQLite handles and threads must not cross a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.clock import Env
from redrive.errors import UsageError
from redrive.observe import signals as sig
from redrive.observe.signals import Signals
from redrive.settings import Settings, load_settings, settings_path
from redrive.store.sqlite import SqliteStore
from redrive.types import EventTypes

if TYPE_CHECKING:
    import asyncio


class Runtime:
    """What every part of one app shares in this process."""

    def __init__(self, url: str | None, settings: Settings | None, env: Env | None, *, inline: bool) -> None:
        self.types = EventTypes()
        self.signals = Signals(inline=inline)
        self.inline = inline
        self.deps: Any = None
        self.transacting: asyncio.Task[Any] | None = None  # the task that is inside app.transaction()
        self.origins: dict[str, str] | None = None  # where the settings came from; None: from the program, or unread
        self._url, self._settings, self._env = url, settings, env
        self._given_env = env is not None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._store: SqliteStore | None = None
        self._readers: tuple[Callable[[str], None], asyncio.AbstractEventLoop] | None = None

    @property
    def settings(self) -> Settings:
        """The effective settings, read once."""
        if self._settings is None:
            self._settings, self.origins = load_settings(settings_path(Path.cwd(), os.environ), os.environ)
        return self._settings

    def use(self, settings: Settings) -> None:
        """Take these instead of what the file and the environment say, which may be unreadable."""
        self._settings = settings

    @property
    def url(self) -> str | None:
        """The store as the program names it; settings may name another."""
        return self._url

    @property
    def env(self) -> Env:
        """Clocks, dice, identity; a forked child has its own."""
        self._notice_fork()
        if self._env is None:
            self._env = Env()
        return self._env

    @property
    def path(self) -> str:
        """The store's file, wherever it was said."""
        return store_path(self.settings.store or self._url)

    def check_exists(self) -> None:
        """Refuse a store that nobody has made yet: whoever only looks must not make one."""
        if not SqliteStore.exists(self.path):
            raise UsageError(f"there is no store at {self.path}: say which with --store, --app or REDRIVE_STORE")

    @property
    def store(self) -> SqliteStore:
        """The store, opened at first use."""
        self._notice_fork()
        if self._store is None:
            with self._lock:
                if self._store is None:
                    settings = self.settings
                    self._store = SqliteStore(
                        self.path,
                        busy_timeout=settings.busy_timeout,
                        checkpoint_pages=settings.checkpoint_pages,
                        inline=self.inline,
                    )
        return self._store

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()  # the parent's may be held for ever in this copy
            _leave_alone(self._store)
            self._store, self._readers = None, None
            self._env = self._env if self._given_env else None
            self.signals = self.signals.heir()

    def close(self) -> None:
        """Let go of the store; the next use opens it again."""
        self._notice_fork()
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    # ------------------------------------------------------------ waking

    def read_by(self, wake: Callable[[str], None] | None, loop: asyncio.AbstractEventLoop | None) -> None:
        """From now on this function, on this loop, is told which logs grew; None for nobody."""
        self._readers = None if wake is None or loop is None else (wake, loop)

    @property
    def is_running(self) -> bool:
        """Does this process run the app's subscriptions?"""
        self._notice_fork()
        return self._readers is not None

    def is_transacting(self) -> bool:
        """Is the running task inside app.transaction()?"""
        import asyncio

        return self.transacting is not None and self.transacting is asyncio.current_task()

    def notify(self, log: str, count: int, position: int) -> None:
        """Events were appended by this process: wake our loops at once, tell listeners."""
        self.signals.tell((sig.Appended(log, count, position),))
        self.wake(log)

    def wake(self, log: str) -> None:
        """Somebody appended to this log."""
        if self._readers is not None:
            wake, loop = self._readers
            try:
                loop.call_soon_threadsafe(wake, log)
            except RuntimeError:  # that loop is closed: nobody is running
                self._readers = None


def _leave_alone(inherited: SqliteStore | None) -> None:
    """Closing a connection that came through a fork would undo what the parent is writing: it is kept for good."""
    if inherited is not None:
        import ctypes  # only ever in a forked child

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def store_path(url: str | None) -> str:
    """The file behind a store's name."""
    if not url:
        raise UsageError(
            'no store: write App("shop.db"), set REDRIVE_STORE, or put store = "shop.db" into redrive.toml'
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme == "sqlite":
        return rest.removeprefix("/") or ":memory:"
    raise UsageError(f"store {scheme}://…: this version knows SQLite only: a path, or sqlite:///path")
