"""Who is idle is told by the kernel that somebody writes, and need not ask every few milliseconds."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Tx
from redrive.runner import stir, wake
from redrive.runner.stir import Stir
from redrive.runner.wake import Wake, poll
from redrive.settings import Settings

LOW, HIGH = 0.001, 0.0625
LONGEST = wake.ASLEEP * HIGH
HOURS = 36_000.0
SECONDS_MAX = 30  # far below HOURS: who is not told is not done by then


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


class Watched:
    """`poll` for one that waits for good, with the pauses that were asked for."""

    def __init__(self, told: Stir | None) -> None:
        self.pauses: list[float] = []
        self.looks = 0
        self._stir = told
        self._asleep = asyncio.Event()

    def changed(self) -> bool:
        """Nothing ever is."""
        self.looks += 1
        return False

    async def until_asleep(self) -> None:
        """Until the pause is as long as may be."""
        self._asleep.clear()
        await asyncio.wait_for(self._asleep.wait(), SECONDS_MAX)

    async def __aenter__(self) -> Watched:
        loop, resting = asyncio.get_running_loop(), asyncio.Event()
        later = loop.call_later

        def noted(pause: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
            if getattr(callback, "__name__", "") == "look":
                self.pauses.append(pause)
                if pause == LONGEST:
                    loop.call_soon(self._asleep.set)
            return later(pause, callback, *arguments)

        loop.call_later = noted  # type: ignore[method-assign]
        one, also = Wake(resting), Wake(resting)
        self._tasks = [
            asyncio.create_task(one.wait(None)),
            asyncio.create_task(poll(self.changed, [one], resting, LOW, HIGH, also=also, stir=self._stir)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def test_a_worker_that_is_asleep_is_woken_by_another_who_appends(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "SLOWER", 1e9)  # one look in vain, and it sleeps for hours
    monkeypatch.setattr(wake, "MUCH_SLOWER", 1.2)
    app, other = App(path, settings=Settings(poll_max=HOURS)), App(path)
    seen: list[int] = []

    @app.projection(app.log("orders"))
    def note(event: Event[Any], tx: Tx) -> None:
        seen.append(event.data)

    async def main() -> None:
        async with app.running():
            for number in range(5):
                await asyncio.to_thread(other.log("orders").append, "placed", number)
                while len(seen) <= number:
                    await asyncio.sleep(LOW)

    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))
    app.close()
    other.close()
    assert seen == [0, 1, 2, 3, 4]


def test_what_is_written_and_is_no_news_costs_a_few_looks_and_not_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "CALM", 0)  # each is listened to as if it were the first
    written = tmp_path / "shop.db-wal"
    written.touch()
    told = Stir(str(written))

    async def main() -> Watched:
        async with Watched(told) as watched:
            await watched.until_asleep()
            for _ in range(3):
                before = watched.looks
                with written.open("ab") as file:
                    for _ in range(100):
                        file.write(b"x")
                        file.flush()
                await watched.until_asleep()
                assert watched.looks - before == 8, "as often as a millisecond is doubled until it is the longest pause"
        return watched

    pauses = asyncio.run(main()).pauses
    told.close()
    woken = [at for at, pause in enumerate(pauses) if pause == LOW]
    assert len(woken) >= 4, "at the start, and each time that something was written"
    for at in woken[1:]:
        assert pauses[at - 1] > wake.DROWSY * LOW, "nobody who looks often is disturbed"


def test_who_is_told_of_nothing_all_the_time_looks_no_more_often_than_one_who_is_not_told(tmp_path: Path) -> None:
    written = tmp_path / "shop.db-wal"
    written.touch()
    told, looks = Stir(str(written)), 40

    class Writing(Watched):
        """Whatever it looks at, it is itself that has written again."""

        def changed(self) -> bool:
            with written.open("ab") as file:
                file.write(b"x")
            return super().changed()

    async def main() -> Watched:
        async with Writing(told) as watched:
            while watched.looks < looks:
                await asyncio.sleep(LOW)
        return watched

    pauses = asyncio.run(main()).pauses
    told.close()
    assert [pause for pause in pauses if pause <= HIGH][-10:] == [HIGH] * 10


def test_where_nobody_tells_it_looks_less_and_less_often() -> None:
    async def main() -> Watched:
        async with Watched(None) as watched:
            while len(watched.pauses) < 20:
                await asyncio.sleep(LOW)
        return watched

    pauses = asyncio.run(main()).pauses
    assert pauses[:20] == pytest.approx([LOW] + [LOW * wake.SLOWER**n for n in range(1, 20)])


@pytest.mark.parametrize("lack", ["another system", "nothing left", "no file", "no function"])
def test_who_cannot_be_told_does_without(path: str, lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, _: None) -> None:
            if lack != "no function":
                self.inotify_init1 = lambda flags: -1 if lack == "nothing left" else os.open(os.devnull, os.O_RDONLY)
                self.inotify_add_watch = lambda *_: -1

    if lack == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr("ctypes.CDLL", Library)
    before, told = descriptors(), Stir(path)
    assert not told.listens() and not told.listens()
    told.clear()
    told.close()
    assert descriptors() == before


def test_the_descriptor_is_made_when_there_is_time_to_sleep_and_given_back(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "SLOWER", 10.0)
    made: list[int] = []
    watch = stir._watching
    monkeypatch.setattr(stir, "_watching", lambda path: made.append(watch(path) or 0) or made[-1])
    app = App(path)
    app.projection(app.log("orders"))(_ignore)
    app.log("orders").append("placed")

    async def idle() -> None:
        async with app.running():
            while not made:
                await asyncio.sleep(LOW)

    asyncio.run(asyncio.wait_for(idle(), SECONDS_MAX))
    app.close()
    (descriptor,) = made
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def _ignore(event: Event[Any], tx: Tx) -> None:
    """Nothing to do."""


def descriptors() -> int:
    """How many this process has open; the listing itself is always one of them."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_a_python_without_ctypes_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    written = tmp_path / "shop.db-wal"
    written.touch()
    assert not Stir(str(written)).listens()
