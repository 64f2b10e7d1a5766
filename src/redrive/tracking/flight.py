"""A batch of tracked events on its way into the store, and the opening of a store that may take long to answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from redrive.errors import StoreError
from redrive.store.port import Appending, Store
from redrive.tracking.spool import Chunk, Entry, SpoolFile


class Opens(Protocol):
    """Who has the store."""

    @property
    def store(self) -> Store: ...


class Part:
    """The events for one log."""

    __slots__ = ("entries", "error", "landed", "log", "rows")

    def __init__(self, log: str, entries: list[Entry]) -> None:
        self.log, self.entries = log, entries
        self.rows: Any = None
        self.error: BaseException | None = None
        self.landed = False

    def land(self, wake: Callable[[], None], rows: Any, error: BaseException | None) -> None:
        """The store's answer, on the store's thread."""
        self.rows, self.error, self.landed = rows, error, True
        wake()


class Flight:
    """What was handed to the store at one time. `file` is the spool file it is in as well, if any."""

    def __init__(
        self,
        entries: Sequence[Entry],
        started: float,
        *,
        alone: bool = False,
        file: SpoolFile | None = None,
        chunk: Chunk | None = None,
    ) -> None:
        self.started = started
        self.alone = alone  # each event by itself, because one of them is refused
        self.file, self.chunk = file, chunk
        by_log: dict[str, list[Entry]] = {}
        if not alone:
            for entry in entries:
                by_log.setdefault(entry.log, []).append(entry)
        singles = [(entry.log, [entry]) for entry in entries] if alone else by_log.items()
        self.parts = [Part(log, found) for log, found in singles]

    @property
    def entries(self) -> list[Entry]:
        """All of them; those of one log in order."""
        return [entry for part in self.parts for entry in part.entries]

    @property
    def has_landed(self) -> bool:
        """Has the store answered for all of them?"""
        return all(part.landed for part in self.parts)

    def start(self, store: Store, wake: Callable[[], None]) -> None:
        """Hand them over; the answers come on another thread."""
        for part in self.parts:
            appending = Appending(part.log, [entry.event for entry in part.entries], partial(part.land, wake))
            try:
                store.append(appending)
            except StoreError as error:  # it was closed meanwhile
                part.land(wake, None, error)

    def failed(self) -> list[Part]:
        """Those that are not in the store."""
        return [part for part in self.parts if part.error is not None]

    def trouble(self) -> BaseException | None:
        """The first error that is the world's, not the events' own."""
        return next((part.error for part in self.parts if isinstance(part.error, StoreError)), None)


class Opening(threading.Thread):
    """Opens the store beside us: a server that does not answer must not keep events in memory."""

    def __init__(self, home: Opens, started: float, wake: Callable[[], None]) -> None:
        super().__init__(name="redrive-opening", daemon=True)
        self.started = started
        self.error: Exception | None = None
        self.done = False
        self._home, self._wake = home, wake
        self.start()

    def run(self) -> None:
        """Whatever is wrong is told to whoever waits."""
        try:
            self._home.store  # noqa: B018
        except Exception as error:
            self.error = error
        self.done = True
        self._wake()
