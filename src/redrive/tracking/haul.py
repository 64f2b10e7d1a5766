"""The way of tracked events into the store: straight from memory while it is quick, over the spool while it is not.

One thread (or an inline caller) calls `step`; it never waits for the store. What is in the spool goes before what is
in memory, so the events of a process stay in order. An event leaves the spool when it is committed, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from redrive.clock import Env, process_name
from redrive.errors import StoreError
from redrive.observe.signals import Signals
from redrive.settings import Settings
from redrive.store.port import Store
from redrive.store.sql import Row
from redrive.tracking.flight import Flight, Opening, Part
from redrive.tracking.report import Report
from redrive.tracking.spool import Chunk, Entry, SpoolFile, SpoolFolder
from redrive.tracking.waiting import Waiting
from redrive.units import show_duration

CHUNK_MAX = 1_000  # events per commit
CHUNK_BYTES_MAX = 4 * 1024 * 1024
SPILL_MAX = 20_000  # events per write to the disk: few calls, because each lets other threads run for a while
SPILL_BYTES_MAX = 16 * 1024 * 1024
ROOM_SECONDS = 1.0  # how long it is taken for granted that other processes write no more to the spool
SLOW_SECONDS = 0.2  # a commit that takes longer may never come: what waits behind it goes to the disk
LOOK_SECONDS = 30.0  # between two looks for files of processes that died


class Home(Protocol):
    """What a tracker needs of its app's runtime."""

    inline: bool

    @property
    def settings(self) -> Settings: ...
    @property
    def signals(self) -> Signals: ...
    @property
    def env(self) -> Env: ...
    @property
    def store(self) -> Store: ...
    @property
    def is_open(self) -> bool: ...
    def notify(self, log: str, rows: Sequence[Row]) -> None: ...


Refuse = Callable[[Entry, BaseException], None]


class Haul:
    """Where the events of one process are between `track` and the store."""

    def __init__(
        self, home: Home, spool: Path | None, waiting: Waiting, report: Report, wake: Callable[[], None], refuse: Refuse
    ) -> None:
        self._home, self._waiting, self._report, self._wake, self._refuse = home, waiting, report, wake, refuse
        self._folder = None if spool is None else SpoolFolder(spool, home.settings.spool_max)
        self._mine: SpoolFile | None = None
        self._orphans: list[SpoolFile] = []
        self._flight: Flight | None = None
        self._opening: Opening | None = None
        self._look_at = -LOOK_SECONDS
        self._room, self._room_at = 0, -ROOM_SECONDS
        self._retry_at = 0.0
        self._pause = 0.0
        self.done = 0  # events of this process that are committed, or refused for good
        self.failures = 0

    # ------------------------------------------------------------ asked by the tracker

    def step(self, now: float) -> float:
        """Do what can be done now; the seconds after which there may be more, if nobody wakes us before."""
        self._land(now)
        if self._flight is None and now >= self._retry_at:
            self._launch(now)
        elif self._flight is not None and self._is_slow(now):
            self._keep_flight(now)
        if self._is_behind(now):
            self._spill(now)
        self._report.tell(now)
        return self._wait(now)

    def has_work(self, now: float) -> bool:
        """Would a step now get something done?"""
        if self._flight is not None:
            return self._flight.has_landed
        return now >= self._retry_at and bool(self._waiting or self._untaken() or self._opening)

    def hurry(self) -> None:
        """Try at once, however long the pause was meant to be."""
        self._retry_at = 0.0

    def finish(self, now: float) -> None:
        """The end: what the store has not taken goes to the disk; what does not fit there is lost, and said so."""
        if self._flight is not None and not self._flight.has_landed:
            self._keep_flight(now)
        self._land(now)
        if self._flight is not None and self._flight.file is None:
            self._keep(self._flight.entries, now)
        self._flight = None
        self._spill(now)
        while lost := self._waiting.take(CHUNK_MAX, CHUNK_BYTES_MAX):
            for entry in lost:
                self._report.count("dropped", 1, entry.log, "the process ends, and neither store nor spool takes them")
        for file in self._files():
            file.close()
        self._mine, self._orphans = None, []
        self._report.tell(now, last=True)

    def leave(self) -> None:
        """In a forked child: all of this is the parent's."""
        for file in self._files():
            file.leave()

    # ------------------------------------------------------------ to the store

    def _launch(self, now: float) -> None:
        self._look_for_orphans(now)
        store = self._opened(now) if self._waiting or self._untaken() or self._opening else None
        if store is None:
            return
        for file in self._files():
            while file.untaken:
                chunk = file.read(CHUNK_MAX, CHUNK_BYTES_MAX)
                flight = Flight(chunk.entries, now, file=file, chunk=chunk)
                if chunk.entries:
                    self._send(flight, store)
                    return
                self._take_off(flight, now)  # nothing in it can be read
        entries = self._waiting.take(CHUNK_MAX, CHUNK_BYTES_MAX)
        if entries:
            self._send(Flight(entries, now), store)

    def _send(self, flight: Flight, store: Store) -> None:
        self._flight = flight
        flight.start(store, self._wake)

    def _opened(self, now: float) -> Store | None:
        """The store, or None while it is being opened."""
        if self._home.is_open:
            return self._home.store
        if self._home.inline:
            try:
                return self._home.store
            except StoreError as error:
                self._fail(now, error)
                return None
        if self._opening is None:
            self._opening = Opening(self._home, now, self._wake)
        elif self._opening.done:
            failure = self._opening.error
            self._opening = None
            if failure is not None:
                self._fail(now, failure)
            return self._opened(now) if failure is None and self._home.is_open else None
        return None

    def _land(self, now: float) -> None:
        """What became of the last batch."""
        flight = self._flight
        if flight is None or not flight.has_landed:
            return
        self._flight = None
        failed = flight.failed()
        for part in failed:
            if self._home.inline and not isinstance(part.error, Exception):
                assert part.error is not None
                raise part.error  # the process dies here, and a test plays its death
        for part in flight.parts:
            if part.error is None:
                self._home.notify(part.log, part.rows)
        if (trouble := flight.trouble()) is not None:
            self._fail(now, trouble)
            if flight.file is not None:
                flight.file.try_again()
            else:
                self._settle(flight, _count(flight.parts) - _count(failed))
                self._keep(_entries(failed), now)
            return
        if failed and not flight.alone:  # one event is refused: which?
            self._settle(flight, _count(flight.parts) - _count(failed))
            again = Flight(_entries(failed), now, alone=True, file=flight.file, chunk=flight.chunk)
            self._send(again, self._home.store)
            return
        for part in failed:
            assert part.error is not None
            self._refuse(part.entries[0], part.error)
        self._settle(flight, _count(flight.parts), len(failed))
        self._take_off(flight, now)
        self._retry_at = self._pause = 0.0

    def _settle(self, flight: Flight, count: int, refused: int = 0) -> None:
        self._report.count("committed", count - refused)
        if flight.file is None or flight.file is self._mine:
            self.done += count

    def _take_off(self, flight: Flight, now: float) -> None:
        """The events are in the store: they need not be in a file any more."""
        file, chunk = flight.file, flight.chunk
        if file is None or chunk is None:
            return
        try:
            if chunk.broken:
                file.set_aside(chunk.broken)
                self._report.count("damaged", sum(map(len, chunk.broken)), str(file.path))
            if chunk.entries:
                self._report.count("taken", len(chunk.entries))
            file.advance(chunk.upto)
        except OSError as error:
            file.give_up(chunk.upto)
            self._report.trouble(f"the spool file {file.path} cannot be changed: {error}", now)
        if file in self._orphans and not file.untaken:
            self._orphans.remove(file)
            file.close()

    def _fail(self, now: float, error: BaseException) -> None:
        settings = self._home.settings
        self._pause = min(max(settings.halt_wait, 2 * self._pause), settings.halt_wait_max)
        self._retry_at = now + self._pause
        self.failures += 1
        self._report.trouble(
            f"the store does not take tracked events ({type(error).__name__}: {error}); they are kept in "
            f"{self._folder.path if self._folder else 'memory'}, next try in {show_duration(self._pause)}",
            now,
        )

    # ------------------------------------------------------------ to the disk

    def _is_slow(self, now: float) -> bool:
        begun = self._flight or self._opening
        return begun is not None and now - begun.started >= SLOW_SECONDS

    def _is_behind(self, now: float) -> bool:
        """Must what is in memory not wait there?"""
        if self._flight is not None:  # nothing passes by what is nowhere but in flight
            return self._flight.file is not None
        return now < self._retry_at or self._is_slow(now) or self._untaken()

    def _files(self) -> list[SpoolFile]:
        """In the order in which they are taken in."""
        return [*self._orphans, *([] if self._mine is None else [self._mine])]

    def _untaken(self) -> bool:
        return any(file.untaken for file in self._files())

    def _keep_flight(self, now: float) -> None:
        """It may still arrive; until then it is on the disk as well, in front of what comes later."""
        flight = self._flight
        if flight is not None and flight.file is None:
            assert self._mine is None or not self._mine.untaken, "what is in memory never overtakes the spool"
            entries = [Entry(log, event._replace(may_repeat=True)) for log, event in flight.entries]
            count = self._write(entries, now)
            if count == len(entries) and self._mine is not None:
                flight.file, flight.chunk = self._mine, Chunk(entries, [], self._mine.end)
            elif count and self._mine is not None:  # not all of it: better none, so that it stays in order
                self._mine.advance(self._mine.end)

    def _keep(self, entries: list[Entry], now: float) -> None:
        """Events that came back from the store, from the front."""
        entries = [Entry(log, event._replace(may_repeat=True)) for log, event in entries]  # a commit may be unknown
        done = self._write(entries, now)
        self._waiting.put_back(entries[done:])

    def _spill(self, now: float) -> None:
        while entries := self._waiting.take(SPILL_MAX, SPILL_BYTES_MAX):
            done = self._write(entries, now)
            if done < len(entries):
                self._waiting.put_back(entries[done:])
                return

    def _write(self, entries: list[Entry], now: float) -> int:
        """As many as the spool takes."""
        if self._folder is None:
            return 0
        try:
            if self._mine is None:
                self._mine = self._folder.create(process_name())
            if now - self._room_at >= ROOM_SECONDS:
                self._room, self._room_at = self._folder.room(), now
            before = self._mine.end
            count = self._mine.write(entries, self._room)
            self._room -= self._mine.end - before
        except OSError as error:
            self._report.trouble(f"the spool {self._folder.path} cannot be written: {error}", now)
            return 0
        if count < len(entries):
            self._room_at = now - ROOM_SECONDS
            self._report.trouble(
                f"the spool {self._folder.path} is full: raise spool_max, or bring the store back", now
            )
        self._report.count("spooled", count)
        return count

    def _is_time_to_look(self, now: float) -> bool:
        return self._folder is not None and now - self._look_at >= LOOK_SECONDS and self._folder.path.is_dir()

    def _look_for_orphans(self, now: float) -> None:
        if self._is_time_to_look(now):
            assert self._folder is not None
            self._look_at = now
            self._orphans += self._folder.orphans([file.path for file in self._files()])
            for file in [one for one in self._orphans if not one.untaken]:
                self._orphans.remove(file)
                file.close()

    def _wait(self, now: float) -> float:
        if self._report.is_pending:
            return 1.0
        if self._flight is not None or self._opening is not None:
            return SLOW_SECONDS
        if self._waiting:
            return max(0.0, min(1.0, self._retry_at - now))
        if self._untaken():
            return max(0.0, min(LOOK_SECONDS, self._retry_at - now))
        return LOOK_SECONDS


def _entries(parts: Sequence[Part]) -> list[Entry]:
    return [entry for part in parts for entry in part.entries]


def _count(parts: Sequence[Part]) -> int:
    return sum(len(part.entries) for part in parts)
