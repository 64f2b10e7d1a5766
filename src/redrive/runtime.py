"""An app's innards: settings, clocks, the store that opens at first use, and who is told of new events.

Fork-safe: a child opens its own store, because SQLite handles and threads must not cross a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from redrive.clock import Env
from redrive.errors import UsageError
from redrive.files import mode_of
from redrive.observe import signals as sig
from redrive.observe.signals import Signals
from redrive.settings import Settings, load_settings, settings_path
from redrive.store import forking
from redrive.store.address import POSTGRES, check_name, check_postgres, is_postgres, is_scheme, shown
from redrive.store.port import Migration, Store, StoreTx
from redrive.store.sql import Row
from redrive.tracking.place import spool_of
from redrive.types import EventTypes

if TYPE_CHECKING:
    import asyncio

    from redrive.tracking.tracker import Tracker

ANSWER_SECONDS_MAX = 1.0  # who has not returned when a stop was over is given so much longer
MEMORY = ":memory:"  # as SQLite says it; for the simulator


class Working(Protocol):
    """What a supervisor shows to who watches it."""

    @property
    def posts(self) -> Mapping[str, Any]:
        """The partitions of subscriptions that this process runs."""
        ...

    @property
    def waiting(self) -> Mapping[str, str]:
        """Those of them that do not run here now, and why."""
        ...


class Runtime:
    """What every part of one app shares in this process."""

    def __init__(
        self, url: str | os.PathLike[str] | None, settings: Settings | None, env: Env | None, *, inline: bool
    ) -> None:
        self.types = EventTypes()
        self.signals = Signals(inline=inline)
        self.inline = inline
        self.deps: Any = None
        self.supervisor: Working | None = None  # while this process runs the app's subscriptions
        self.is_left = False  # has it been stopped while something was under way where writing happens?
        self.transacting: asyncio.Task[Any] | bool = False  # the task that is inside app.transaction(); True: no task
        self.origins: dict[str, str] | None = None  # where the settings came from; None: from the program, or unread
        self._url = None if url is None else os.fspath(url)
        self._settings, self._env = settings, env
        self._given_env = env is not None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._store: Store | None = None
        self._tracker: Tracker | None = None
        self._tracker_lock = threading.Lock()  # not the store's: opening one may take long, and track never waits
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
        if self._env is not None and self._pid == os.getpid():  # asked for each event
            return self._env
        self._notice_fork()
        if self._env is None:
            self._env = Env()
        return self._env

    @property
    def address(self) -> str:
        """The store's file or database, wherever it was said. It may hold a password: see `shown`."""
        return store_address(self.settings.store or self._url)

    @property
    def shown(self) -> str:
        """The same, as people may see it."""
        return shown(self.address)

    def check_exists(self) -> None:
        """Refuse a store that nobody has made yet: whoever only looks must not make one."""
        address = self.address
        exists = _postgres().exists(address) if is_postgres(address) else _sqlite().exists_file(address)
        if not exists:
            raise UsageError(f"there is no store at {self.shown}: say which with --store, --app or REDRIVE_STORE")

    @contextmanager
    def migration(self) -> Iterator[Migration]:
        """The storage format of the store, and how to bring it up to date."""
        address = self.address
        if is_postgres(address):
            with _postgres().migration(address) as migration:
                yield migration
        else:
            self.check_exists()
            with closing(_sqlite().SqliteStore(address, inline=True)) as store:
                yield _sqlite().FileMigration(store)

    @property
    def store(self) -> Store:
        """The store, opened at first use."""
        if self._store is not None and self._pid == os.getpid():  # asked for each event
            return self._store
        return self._opened(_check_whole)

    @property
    def store_to_fill(self) -> Store:
        """The same for who copies into it: it may be half full."""
        return self._opened(lambda tx, where: None)

    def _opened(self, check: Callable[[StoreTx, str], None]) -> Store:
        self._notice_fork()
        if self._store is None:
            with self._lock:
                if self._store is None:
                    with forking.opening:
                        store = self._open(self.address)
                        try:
                            with store.reading() as tx:
                                check(tx, self.shown)
                        except BaseException:
                            store.close()
                            raise
                        self._store = store
        return self._store

    def _open(self, address: str) -> Store:
        settings = self.settings
        if address == MEMORY and not self.inline:
            raise UsageError(
                f"the store {self.settings.store or self._url!r} is in memory and would keep nothing: name a file. "
                "In a test, a Harness makes one"
            )
        if not is_postgres(address):
            file: Store = _sqlite().SqliteStore(
                address,
                busy_timeout=settings.busy_timeout,
                checkpoint_pages=settings.checkpoint_pages,
                file_mode=mode_of(settings.file_mode),
                inline=self.inline,
            )
            return file
        store: Store = _postgres().PostgresStore(
            address,
            busy_timeout=settings.busy_timeout,
            lease=settings.lease,
            look_seconds=settings.poll_max,
            pool_max=settings.pool_max,
            inline=self.inline,
        )
        with store.reading() as tx:
            tx.progress.now(self.env.clock)  # from here on we go by the server's clock
        return store

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock, self._tracker_lock = threading.Lock(), threading.Lock()  # held for ever, perhaps, in this copy
            _leave_alone(self._store)
            self._store, self._readers, self.supervisor = None, None, None
            self._env = self._env if self._given_env else None
            self.signals = self.signals.heir()

    @property
    def is_open(self) -> bool:
        """Is the store open in this process?"""
        self._notice_fork()
        return self._store is not None

    @property
    def spool(self) -> Path | None:
        """Where tracked events are kept while the store is away."""
        return spool_of(self.settings.spool, self.address)

    @property
    def tracker(self) -> Tracker:
        """Who carries tracked events into the store."""
        if self._tracker is None:
            with self._tracker_lock:
                if self._tracker is None:
                    from redrive.tracking.tracker import Tracker  # only who tracks needs it

                    self._tracker = Tracker(self)
        return self._tracker

    def close(self) -> None:
        """Let go of the store, after what was tracked is in it; the next use opens it again."""
        self._notice_fork()
        if self._tracker is not None:
            self._tracker.close()
        with self._lock:
            store, self._store = self._store, None
        if store is not None and self.is_left and not _answers(store):
            _leave_alone(store)  # to close it would wait for a function that may never return
        elif store is not None:
            store.close()
        self.is_left = False
        self.signals.close()

    # ------------------------------------------------------------ waking

    def read_by(self, wake: Callable[[str], None] | None, loop: asyncio.AbstractEventLoop | None) -> None:
        """From now on this function, on this loop, is told which logs grew; None for nobody."""
        self._readers = None if wake is None or loop is None else (wake, loop)
        if self._readers is not None and not self.inline and (spool := self.spool) is not None and spool.is_dir():
            self.tracker.look()

    @property
    def is_running(self) -> bool:
        """Does this process run the app's subscriptions?"""
        self._notice_fork()
        return self._readers is not None

    def runs(self, name: str) -> bool:
        """Does this process run the subscription of this name, or wait for its lease?"""
        supervisor = self.supervisor if self.is_running else None
        return supervisor is not None and any(post.partition("/")[0] == name for post in supervisor.posts)

    def turns(self, patience: float) -> bool | None:
        """Does the event loop that runs the subscriptions still turn? None: no loop does."""
        self._notice_fork()
        if self._readers is None:
            return None
        import asyncio

        loop, turned = self._readers[1], threading.Event()
        if self.inline or asyncio._get_running_loop() is loop:  # whoever asks is what it turns for
            return True
        try:
            loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # it is closed
            return None
        return turned.wait(patience)

    def is_transacting(self) -> bool:
        """Is the running task inside app.transaction(), or the loop that it runs on?"""
        import asyncio

        if self.transacting is True:
            return self.store.inside_transaction()
        return self.transacting is asyncio.current_task()

    def notify(self, log: str, rows: Sequence[Row]) -> None:
        """Events were appended by this process, or scheduled: wake our loops at once, tell listeners."""
        if self.signals.are_heard:
            positions = [row[0] for row in rows if row[0] is not None]
            if positions:
                self.signals.tell((sig.Appended(log, len(positions), positions[-1]),))
            if len(positions) < len(rows):
                self.signals.tell((sig.Scheduled(log, len(rows) - len(positions)),))
        if self._readers is not None:
            self.wake(log)

    def wake(self, log: str) -> None:
        """Somebody appended to this log."""
        if self._readers is not None:
            wake, loop = self._readers
            try:
                loop.call_soon_threadsafe(wake, log)
            except RuntimeError:  # that loop is closed: nobody is running
                self._readers = None


def _check_whole(tx: StoreTx, where: str) -> None:
    from redrive.store.copying import check_whole

    check_whole(tx, where)


def _sqlite() -> Any:
    """Imported when a store is opened: a sixth of the time that `import redrive` would take."""
    from redrive.store import sqlite

    return sqlite


def _postgres() -> Any:
    """Imported when it is asked for: a program with a file does not need the driver."""
    try:
        from redrive.store import postgres
    except ModuleNotFoundError as error:
        raise UsageError(f"a store in Postgres needs {error.name}: pip install 'redrive[postgres]'") from None
    except ImportError as error:  # of psycopg: it was found, and neither its own libpq nor the system's
        raise UsageError(
            "a store in Postgres needs psycopg with libpq: pip install 'psycopg[binary]', or 'psycopg[c]' where libpq "
            f"and a compiler are installed ({' '.join(str(error).split())[:200]})"
        ) from None
    return postgres


def _answers(store: Store) -> bool:
    """Is there nobody who hangs where writing happens?"""
    answered = threading.Event()
    store.submit(lambda: None, lambda result, error: answered.set())
    return answered.wait(ANSWER_SECONDS_MAX)


def _leave_alone(store: Store | None) -> None:
    """Closing a connection that came through a fork would undo what the parent is writing: it is kept for good.

    So it is if a function in another thread writes on it.
    """
    if store is not None:
        import ctypes  # only ever in a forked child, and after a function that hangs

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


def store_address(url: str | None) -> str:
    """The file or the database behind a store's name."""
    if url and is_postgres(url):
        check_postgres(url)
        return url
    return store_path(url)


def glance(url: str, query: str, values: dict[str, object], seconds: float) -> list[Any]:
    """The rows of a named query, without opening the store: nothing is made, migrated or locked, and errors are raw."""
    if is_postgres(url):
        from redrive.store.postgres.glance import glance as look
    else:
        from redrive.store.sqlite.glance import glance as look
    return look(store_address(url), query, values, seconds)


def store_path(url: str | None) -> str:
    """The file behind a store's name."""
    if not url:
        raise UsageError(
            'no store: write App("shop.db"), set REDRIVE_STORE, or put store = "shop.db" into redrive.toml. '
            "A command takes --store FILE or --app MODULE:APP, too"
        )
    scheme, separator, rest = url.partition("://")
    if not separator or not is_scheme(scheme):
        check_name(url)
        return url
    if scheme == "sqlite":
        return rest.removeprefix("/") or MEMORY
    if scheme in POSTGRES:
        raise UsageError("this needs a store in a file: a path, or sqlite:///path")
    raise UsageError(f"store {scheme}://…: this version knows a path, sqlite:///path and postgresql://…")
