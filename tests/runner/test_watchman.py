"""The thread that looks for what other processes commit: whom it lets sleep, whom it rings, and how it ends."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Tx
from redrive.errors import StoreError
from redrive.runner import wake, watchman
from redrive.runner.standing import Stand, Standing
from redrive.runner.wake import Looks
from redrive.runner.watchman import Watchman
from redrive.settings import Settings

SECONDS_MAX = 30  # what is waited for is there long before
LOW, HIGH = 0.001, 0.02
NAME = "redrive-watchman"
MAIN = threading.main_thread()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


class Waiting:
    """A loop's alarm clock, as far as it is looked at."""

    is_waited_for = True


class Racing:
    """Begins to wait just behind the look that finds it at work."""

    def __init__(self, resting: threading.Event) -> None:
        self._resting, self.is_late = resting, False

    @property
    def is_waited_for(self) -> bool:
        if self.is_late:
            return True
        self.is_late = True
        self._resting.set()
        return False


class FakeStore:
    """Tells of news when a test has put some, and runs jobs when the test says so."""

    def __init__(self, written: str | None = None) -> None:
        self.written = written
        self.news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.looks = threading.Semaphore(0)
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.is_closed = False

    def changed(self) -> bool:
        """Once for each time that a test has said so."""
        self.looks.release()
        try:
            return self.news.get_nowait()
        except queue.Empty:
            return False

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None], *, here: bool) -> None:
        """Kept, until it is run."""
        assert here
        if self.is_closed:
            raise StoreError("the store is closed")
        self.jobs.append((job, done))

    def run(self) -> None:
        """All that was submitted up to now."""
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            done(job(), None)


class Watched:
    """A watchman over a fake store, as a context; `rung` is what it said was quiet, each time that it rang."""

    def __init__(self, store: FakeStore, *wakes: Any, resting: threading.Event | None = None) -> None:
        self.store, self.standing = store, Standing()
        self.resting = resting or threading.Event()
        self.rung: list[Collection[str]] = []
        self.watchman = Watchman(
            store, wakes, self.resting, Looks(LOW, HIGH),  # type: ignore[arg-type]
            standing=self.standing, ring=self.rung.append, monotonic=time.monotonic,
        )  # fmt: skip

    async def __aenter__(self) -> Watched:
        self._task = asyncio.create_task(self.watchman.work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def looked(self, times: int = 1) -> None:
        """So many more looks."""
        for _ in range(times):
            assert await asyncio.to_thread(self.store.looks.acquire, timeout=SECONDS_MAX), "nobody looks"


def leave(standing: Standing, log: str, *, is_nothing: bool = True) -> list[str]:
    """A turn that waits for this log; the list grows when it is taken."""
    taken: list[str] = []

    def turn() -> str:
        taken.append(log)
        return log

    standing.leave(log, Stand(turn, lambda _: is_nothing, lambda _, __: None))
    return taken


def run(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def has_ended() -> bool:
    """Who says that it is over has still to leave."""
    for thread in alive():
        thread.join(SECONDS_MAX)
    return not alive()


# ---------------------------------------------------------------- in a program


def test_a_projection_has_its_turn_in_the_thread_that_looked(path: str) -> None:
    app, other, seen, threads = App(path), App(path), list[int](), set[str]()

    @app.projection(app.log("orders"))
    def note(event: Event[Any], tx: Tx) -> None:
        seen.append(event.data)
        threads.add(threading.current_thread().name)

    async def main() -> None:
        async with app.running():
            while NAME not in threads:
                wanted = len(seen) + 1
                await asyncio.to_thread(other.log("orders").append, "placed", wanted - 1)
                while len(seen) < wanted:
                    await asyncio.sleep(0)

    run(main)
    app.close()
    other.close()
    assert seen == list(range(len(seen)))
    assert has_ended()


def test_whoever_reads_beside_it_or_is_steered_hears_of_it_too(path: str) -> None:
    app, other = App(path, settings=Settings(lease=1e6)), App(path)  # nothing is found by looking around now and then
    orders, seen = app.log("orders"), {"note": list[int](), "total": list[int](), "ship": list[int]()}

    @app.projection(orders)
    def note(event: Event[Any], tx: Tx) -> None:
        seen["note"].append(event.data)

    @app.projection(app.log("returns"))
    def total(event: Event[Any], tx: Tx) -> None:
        seen["total"].append(event.data)

    @app.on(orders, start="first")
    async def ship(event: Event[Any], ctx: Ctx) -> None:
        seen["ship"].append(event.data)

    async def until(name: str, count: int) -> None:
        while len(seen[name]) < count:
            await asyncio.sleep(0)

    async def main() -> None:
        async with app.running():
            for number in range(50):
                await asyncio.to_thread(other.log("orders").append, "placed", number, key=str(number % 3))
                await asyncio.to_thread(other.log("returns").append, "sent", number)
                await until("note", number + 1)
                await until("ship", number + 1)
                await until("total", number + 1)
            steering = other.operate("ada").subscriptions
            await asyncio.to_thread(steering.pause, "note")
            await asyncio.to_thread(other.log("orders").append, "placed", 50)
            await until("ship", 51)
            await asyncio.to_thread(steering.resume, "note")
            await until("note", 51)
            await asyncio.to_thread(other.log("orders").append, "placed", 51, after=0.01)  # whose time comes soon
            await until("note", 52)
            await until("ship", 52)

    run(main)
    wrong = [verdict for verdict in app.operate().verify() if not verdict.sound]
    app.close()
    other.close()
    assert {name: sorted(each) for name, each in seen.items()} == {
        "note": list(range(52)), "ship": list(range(52)), "total": list(range(50)),
    }  # fmt: skip
    assert seen["note"] == list(range(52))
    assert not wrong


# ---------------------------------------------------------------- whom it rings


def test_who_has_had_a_turn_sleeps_on_and_everybody_else_is_rung() -> None:
    async def main() -> None:
        store = FakeStore()
        async with Watched(store, Waiting()) as watched:
            watched.standing.read_by({"quiet": 1, "odd": 1, "nobody's": 1})
            quiet, odd = leave(watched.standing, "quiet"), leave(watched.standing, "odd", is_nothing=False)
            store.news.put(True)
            await watched.looked(2)
            while not store.jobs:
                await asyncio.sleep(0)
            store.run()
            assert watched.rung == [{"quiet"}], "a turn that the loop has to look at, and a reader that left none"
            assert (quiet, odd) == (["quiet"], ["odd"])

    run(main)


def test_what_is_committed_while_turns_are_under_way_is_asked_for_again_and_before_they_begin_it_is_not() -> None:
    store = FakeStore()
    watched = Watched(store)
    begun = watched.standing.begin_all

    def begin_all() -> set[str]:
        watched.watchman._begin()  # another look, meanwhile
        return begun()

    watched.standing.begin_all = begin_all  # type: ignore[method-assign]
    watched.watchman._begin()
    watched.watchman._begin()
    assert len(store.jobs) == 1, "whoever writes at this moment has to be asked but once"
    store.run()
    assert len(store.jobs) == 1


def test_a_turn_that_fails_rings_everybody_and_a_closed_store_nobody() -> None:
    store = FakeStore()
    watched = Watched(store)
    watched.watchman._begun(None, StoreError("the disk is full"))
    assert watched.rung == [()]
    store.is_closed = True
    watched.watchman._begin()
    store.is_closed = False
    watched.watchman._begin()
    assert len(store.jobs) == 1, "what could not be asked for is asked for the next time"


# ---------------------------------------------------------------- when it looks


def test_nobody_looks_while_all_are_busy_and_who_begins_to_wait_at_that_moment_is_looked_for() -> None:
    async def main() -> None:
        resting, store = threading.Event(), FakeStore()
        async with Watched(store, Racing(resting), resting=resting) as watched:
            await watched.looked()

    run(main)


def test_who_waits_after_all_were_busy_is_looked_for() -> None:
    class Busy:
        is_waited_for = False

    async def main() -> None:
        one, store = Busy(), FakeStore()
        async with Watched(store, one) as watched:
            while not alive():
                await asyncio.sleep(0)
            assert not store.looks.acquire(blocking=False)
            one.is_waited_for = True
            watched.resting.set()
            await watched.looked(3)

    run(main)


def test_who_writes_wakes_it_long_before_it_would_have_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "SLOWER", 1e9)  # one look in vain, and it sleeps
    monkeypatch.setattr(wake, "ASLEEP", 1e9)  # for good
    written = tmp_path / "shop.db-wal"
    written.touch()

    async def main() -> None:
        store = FakeStore(str(written))
        async with Watched(store, Waiting()) as watched:
            await watched.looked()
            while not (watched.watchman._stir is not None and watched.watchman._stir.is_open):
                await asyncio.sleep(0)
            written.write_bytes(b"a page")
            await watched.looked()

    run(main)


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize("state", ["asleep", "all are busy", "between two looks"])
def test_it_ends_at_once_wherever_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setattr(watchman, "LEAVE_SECONDS_MAX", SECONDS_MAX)
    monkeypatch.setattr(wake, "SLOWER", 1.0 if state == "between two looks" else 1e9)
    monkeypatch.setattr(wake, "ASLEEP", 1e9)
    written = tmp_path / "shop.db-wal"
    written.touch()

    async def main() -> None:
        store = FakeStore(str(written) if state == "asleep" else None)
        async with Watched(store, *([] if state == "all are busy" else [Waiting()])) as watched:
            if state != "all are busy":
                await watched.looked()
            while not alive():
                await asyncio.sleep(0)
            before = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) < before, "its descriptors are closed"

    run(main)
    assert has_ended()


def test_a_turn_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchman, "LEAVE_SECONDS_MAX", 0.0)
    hangs, may_end = threading.Event(), threading.Event()

    class Hanging(FakeStore):
        def submit(self, job: Callable[[], Any], done: Any, *, here: bool) -> None:
            hangs.set()
            may_end.wait(SECONDS_MAX)

    async def main() -> None:
        store = Hanging()
        async with Watched(store, Waiting()):
            store.news.put(True)
            assert await asyncio.to_thread(hangs.wait, SECONDS_MAX)

    before = len(os.listdir("/proc/self/fd"))
    run(main)
    [thread] = alive()
    may_end.set()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) == before, "it closes its descriptors itself when it returns"


def test_a_look_that_dies_is_told_and_begun_again(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def die(changed: Callable[[], bool]) -> bool:
        monkeypatch.undo()
        raise OSError("too many open files")

    monkeypatch.setattr(watchman, "has_news", die)
    app, other, seen = App(path, settings=Settings(lease=1e6, halt_wait=0.01, halt_wait_max=0.01)), App(path), []

    @app.projection(app.log("orders"))
    def note(event: Event[Any], tx: Tx) -> None:
        seen.append(event.data)

    async def main() -> None:
        async with app.running():
            while "too many open files" not in caplog.text:
                await asyncio.sleep(0)
            await asyncio.to_thread(other.log("orders").append, "placed", 1)
            while not seen:
                await asyncio.sleep(0)

    run(main)
    app.close()
    other.close()
    assert seen == [1]


def test_who_waits_for_a_turn_that_another_thread_takes_is_seen_to_wait(path: str) -> None:
    """A turn with a backlog makes room when somebody else wants to write: the writer's thread itself may be waiting."""
    app, wanted = App(path), list[bool]()
    store: Any = app.runtime.store

    def job() -> None:
        wanted.append(store.is_wanted)
        store.submit(lambda: None, lambda result, error: None)
        while not store._writer._queue.empty():  # until the thread has taken it, and waits for us
            pass
        wanted.append(store.is_wanted)

    while not wanted:  # in this thread, as soon as the other has nothing to do
        store.submit(lambda: threading.current_thread() is MAIN and job(), lambda result, error: None, here=True)
    app.close()
    assert wanted == [False, True]


def test_a_question_that_fails_is_asked_again(path: str) -> None:
    app, other = App(path), App(path)
    store: Any = app.runtime.store
    store.changed()
    other.log("orders").append("placed", 1)
    real = store._watch

    class Failing:
        def execute(self, sql: str) -> Any:
            if "data_version" in sql:
                return real.execute(sql)
            raise sqlite3.OperationalError("disk I/O error")

    store._watch = Failing()
    with pytest.raises(StoreError, match="disk I/O error"):
        store.changed()
    store._watch = real
    assert store.changed()
    app.close()
    other.close()


def test_a_program_that_asks_a_kernel_that_tells_nothing_is_told_later(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.runner.stir._watching", lambda path: None)
    app, other, seen = App(path, settings=Settings(poll_max=0.002)), App(path), list[int]()

    @app.projection(app.log("orders"))
    def note(event: Event[Any], tx: Tx) -> None:
        seen.append(event.data)

    async def main() -> None:
        async with app.running():
            for number in range(3):
                await asyncio.to_thread(other.log("orders").append, "placed", number)
                while len(seen) <= number:
                    await asyncio.sleep(0)

    run(main)
    app.close()
    other.close()
    assert seen == [0, 1, 2]
