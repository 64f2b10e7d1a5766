"""Turns that whoever lands something takes for a loop that rests: it sleeps on, unless it is needed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Tx, retry
from redrive.errors import CommitUnknown, VersionConflict
from redrive.runner import land
from redrive.runner.loop import Loop, ProjectionLoop
from redrive.runner.standing import Apart, Stand, Standing
from redrive.runtime import Runtime
from redrive.settings import Settings
from redrive.sources.port import Message, Positions, Reader
from redrive.testing import Harness
from redrive.testing.failpoints import failpoint
from tests.runner.test_handed import Shelf, ShelfReader

HOURS = 36_000.0
Answers = list[tuple[Any, BaseException | None]]


def stand_of(turn: Callable[[], str]) -> tuple[Stand[str], Answers]:
    """One whose loop is needed after whatever is not "nothing"."""
    answers: Answers = []
    return Stand(turn, lambda text: text == "nothing", lambda text, error: answers.append((text, error))), answers


def test_turns_are_begun_as_often_as_the_log_grows_until_the_loop_is_needed() -> None:
    texts = iter(["nothing", "nothing", "something"])
    stand, answers = stand_of(lambda: next(texts))
    assert stand.begin() and stand.begin()
    assert answers == [] and stand.last == "nothing"
    assert not stand.begin()
    assert answers == [("something", None)]
    assert not stand.begin(), "the loop has to look first"
    assert not stand.end(), "it is answered"
    assert len(answers) == 1 and next(texts, "used up") == "used up"


def test_who_takes_its_turns_back_is_not_given_another() -> None:
    stand, answers = stand_of(lambda: "nothing")
    assert stand.begin()
    assert stand.end()
    assert not stand.begin()
    assert answers == []


def test_who_takes_them_back_while_one_is_under_way_is_told_how_it_ended() -> None:
    ended: list[bool] = []
    stand, answers = stand_of(lambda: ended.append(stand.end()) or "nothing")  # type: ignore[func-returns-value]
    assert not stand.begin()
    assert ended == [False]
    assert answers == [("nothing", None)]


def test_an_error_is_the_loops_and_not_that_of_who_lands() -> None:
    error = ValueError("out of order")

    def fail() -> str:
        raise error

    stand, answers = stand_of(fail)
    assert not stand.begin()
    assert answers == [(None, error)]


NOTHING: Any = None  # neither the transaction nor what lands is looked at here


def joining_stand(join: Callable[[], Any]) -> tuple[Stand[str], Answers]:
    """One that may take its turn in somebody's transaction."""
    answers: Answers = []

    def answer(text: Any, error: BaseException | None) -> None:
        answers.append((text, error))

    return Stand(lambda: "by itself", lambda text: text == "nothing", answer, lambda tx, landed: join()), answers


def test_a_turn_in_somebodys_transaction_ends_with_it() -> None:
    stand, answers = joining_stand(lambda: lambda: "nothing")
    assert stand.join(NOTHING, NOTHING)
    assert stand.last is None, "nobody knows yet what becomes of it"
    assert stand.ended(None)
    assert stand.last == "nothing" and answers == []
    assert stand.join(NOTHING, NOTHING)
    error = CommitUnknown("who knows")
    assert not stand.ended(error)
    assert answers == [(None, error)]
    assert not stand.join(NOTHING, NOTHING), "the loop has to look first"


@pytest.mark.parametrize("is_odd", [False, True])
def test_a_turn_that_is_not_taken_there_keeps_nobody_waiting(is_odd: bool) -> None:
    def join() -> None:
        if is_odd:
            raise ValueError("out of order")

    stand, answers = joining_stand(join)
    with pytest.raises(Apart) if is_odd else nullcontext():
        assert not stand.join(NOTHING, NOTHING)
    assert stand.end() and answers == []


@pytest.mark.parametrize("is_odd", [False, True])
def test_who_is_woken_while_one_is_not_taken_is_told_so(is_odd: bool) -> None:
    ended: list[bool] = []

    def join() -> None:
        ended.append(stand.end())
        if is_odd:
            raise ValueError("out of order")

    stand, answers = joining_stand(join)
    with pytest.raises(Apart) if is_odd else nullcontext():
        assert not stand.join(NOTHING, NOTHING)
    assert ended == [False] and answers == [(None, None)]


@pytest.mark.parametrize(
    ("texts", "readers", "is_quiet", "rings"),
    [
        (["nothing", "nothing"], 2, True, [0, 0]),
        (["nothing", "nothing"], 3, False, [1, 1]),  # one of them does not stand here
        (["nothing", "something"], 2, False, [1, 0]),
        ([], 1, False, []),
    ],
)
def test_nobody_is_woken_only_if_everybody_had_a_turn(
    texts: list[str], readers: int, is_quiet: bool, rings: list[int]
) -> None:
    standing = Standing()
    standing.read_by({"x": readers, "y": 1})
    stands = [stand_of(lambda text=text: text)[0] for text in texts]  # type: ignore[misc]
    for stand in stands:
        standing.leave("x", stand)
    assert standing.begin("x") == is_quiet
    assert [stand.rings for stand in stands] == rings
    assert not standing.begin("y")
    for stand in stands:
        standing.take_back("x", stand)
    assert not standing.begin("x")
    assert [stand.rings for stand in stands] == rings


class Shop:
    """Functions on one shelf: projections that write down, and whatever a test adds."""

    def __init__(self, *names: str) -> None:
        self.app, self.shelf = App("/nonexistent/x.db", name="shop"), Shelf()
        self.fails: set[int] = set()
        for name in names:
            self._declare(name)
        self.harness = Harness(self.app)

    def given(self, name: str = "one") -> list[Any]:
        return [n for (n,) in self.harness.query(f"SELECT n FROM t_{name} ORDER BY rowid")]

    def _declare(self, name: str) -> None:
        rule = retry(attempts=5, wait="1s", wait_max="1s", jitter=0)

        @self.app.projection(self.shelf, name=name, retry=rule, tables={f"t_{name}": "n INTEGER"})
        def write_down(event: Event[Any], tx: Tx) -> None:
            if event.data in self.fails:
                raise RuntimeError("not yet")
            tx.execute(f"INSERT INTO t_{name} VALUES (?)", (event.data,))


def test_two_who_rest_are_served_and_nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    wake = Runtime.wake
    monkeypatch.setattr(Runtime, "wake", lambda runtime, log: (woken.append(log), wake(runtime, log))[1])
    shop = Shop("one", "two")
    with shop.harness as harness:
        shop.shelf.said += range(30)
        harness.run_until_idle()
        assert shop.given("one") == shop.given("two") == [*range(30)]
    assert len(woken) <= 2, "of ten landings; when the first comes nobody rests yet"


class Counter(Shelf):
    """A shelf at which one can wait."""

    def __init__(self) -> None:
        super().__init__()
        self.filled = threading.Condition()

    def say(self, n: int) -> None:
        with self.filled:
            self.said.append(n)
            self.filled.notify_all()

    def open(self, group: str) -> Reader:
        return CounterReader(self)


class CounterReader(ShelfReader):
    def __init__(self, counter: Counter) -> None:
        super().__init__(counter)
        self._counter = counter

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        with self._counter.filled:
            self._counter.filled.wait_for(lambda: len(self._counter.said) > int(positions.get(0, "0")), wait)
        return super().read(positions, limit, wait)


@pytest.mark.parametrize("error", [RuntimeError("not yet"), VersionConflict("orders", "k", 0, 1)])
def test_what_a_turn_leaves_to_be_done_is_done_when_it_is_time(tmp_path: Path, error: Exception) -> None:
    """Not when the loop would have woken up by itself, a third of a lease later."""
    app, counter = App(str(tmp_path / "shop.db"), name="shop", settings=Settings(lease=HOURS)), Counter()
    given, left = list[int](), [error]

    @app.projection(counter, retry=retry(attempts=5, wait="10ms", wait_max="10ms"))
    def write_down(event: Event[Any], tx: Tx) -> None:
        if event.data == 10 and left:
            raise left.pop()
        given.append(event.data)

    async def main() -> None:
        async with app.running():
            for n in range(12):
                counter.say(n)
                while n not in given:
                    await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 30))
    app.close()
    assert given == [*range(12)]


def test_a_letter_that_falls_due_while_its_loop_lies_down_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has it in hand when the loop looks how long it may sleep."""
    app, counter = App(str(tmp_path / "shop.db"), name="shop", settings=Settings(lease=HOURS)), Counter()
    calls, again, lies, leave, rest = list[float](), threading.Event(), threading.Event(), Standing.leave, Loop.rest

    seen: set[int] = set()

    @app.projection(counter, retry=retry(attempts=9, wait="20ms", wait_max="20ms", jitter=0))
    def write_down(event: Event[Any], tx: Tx) -> None:
        seen.add(event.data)
        if event.data == 0:
            calls.append(time.monotonic())
            if len(calls) == 2:
                again.set()
                lies.wait(5)
            if len(calls) < 4:
                raise RuntimeError("not yet")

    def dawdle(standing: Standing, log: str, stand: Stand[Any]) -> None:
        leave(standing, log, stand)
        if len(calls) == 1 and not again.is_set():  # it lies down with a letter that is due soon, and dozes off
            while time.monotonic() < calls[0] + 0.025:
                again.wait(0.0005)
            counter.say(99)  # what lands then finds the letter due
            again.wait(5)

    async def resting(loop: Loop, idle: bool, seconds: float) -> None:
        if again.is_set():
            lies.set()
        await rest(loop, idle, seconds)

    monkeypatch.setattr(land, "WAIT_MIN", 1.0)  # who reads does without the loop for so long
    monkeypatch.setattr(land, "AWAY_SECONDS_MAX", 30.0)
    monkeypatch.setattr(Standing, "leave", dawdle)
    monkeypatch.setattr(ProjectionLoop, "rest", resting)

    async def main() -> None:
        async with app.running():
            for n in range(10, 0, -1):  # until what is said is waited for
                counter.say(n)
                while n not in seen:
                    await asyncio.sleep(0.001)
            counter.say(0)
            while len(calls) < 4:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 30))
    app.close()
    assert len(calls) == 4 and lies.is_set(), "as often as it failed, and once more; while the loop lay down"


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_appended_behind_a_turn_is_looked_for(fails: bool) -> None:
    """It has rung while the turn was under way, which had asked for more before that."""
    shop = Shop("one")
    log, left = shop.app.log("shelf:orders"), iter([100])

    def append() -> None:
        for n in left:
            log.append("by.hand", n)

    with shop.harness as harness:
        shop.fails = {4} if fails else set()
        shop.shelf.said += range(6)
        with failpoint("batch.committed", append, at=2):
            harness.run_until_idle()
        assert 100 in shop.given()


def test_a_handler_beside_a_projection_is_woken_for_what_the_projection_was_given() -> None:
    shop, handled = Shop("one"), list[Any]()

    @shop.app.on(shop.shelf, start="first")
    async def handle(event: Event[Any], ctx: Ctx) -> None:
        handled.append(event.data)

    with shop.harness as harness:
        for n in range(20):
            shop.shelf.said += [n]
            harness.run_until_idle()
            assert handled == shop.given() == [*range(n + 1)]
        shop.app.log("shelf:orders").append("by.hand", 100)
        harness.run_until_idle()
        assert handled == shop.given() == [*range(20), 100]
