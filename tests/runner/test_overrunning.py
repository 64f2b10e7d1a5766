"""Timeouts: a coroutine is cancelled, a thread cannot be; its key stays busy and its ctx is dead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError, no_retry, retry
from redrive.observe import signals as sig
from redrive.policy.partitions import place
from redrive.runner.staff import Staff
from redrive.settings import Settings
from redrive.testing import Harness

BY_PARTITION = [(0, 1), (50, 1), (0, 0)]  # where to look for a key, and the partition that it is to have


def test_a_coroutine_that_overruns_is_cancelled_and_counts_as_failed(app: App, harness: Harness) -> None:
    trace = []

    @app.on(app.log("orders"), start="first", timeout="30s", retry=retry(attempts=2, wait="1m", jitter=0))
    async def charge(event, ctx):
        trace.append((ctx.attempt, harness.clock.monotonic()))
        try:
            await asyncio.sleep(3600 if ctx.attempt == 1 else 29)
        except asyncio.CancelledError:
            trace.append(("cancelled", harness.clock.monotonic()))
            raise
        ctx.emit(app.log("receipts"), "sent")

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert trace == [(1, 0), ("cancelled", 30)]
    [letter] = harness.letters()
    assert (letter.state, letter.error_type) == ("retrying", "TimeoutError")
    harness.advance("2m")
    assert trace[2] == (2, 90)
    assert harness.emitted("receipts") == [("sent", None)]


def test_an_attempt_that_is_made_again_has_no_more_time_than_the_first(app: App, harness: Harness) -> None:
    trace = []

    @app.on(app.log("orders"), start="first", timeout="1s", retry=retry(attempts=3, wait="1m", jitter=0))
    async def charge(event, ctx):
        if ctx.attempt == 1:
            raise LookupError("not yet")
        try:
            await asyncio.sleep(3600)
        finally:
            trace.append((ctx.attempt, harness.clock.monotonic()))

    harness.append("orders", "order.placed", key="a")
    harness.advance("5m")
    assert trace == [(2, 61), (3, 122 + 60)]


def test_a_coroutine_that_refuses_to_be_cancelled_has_overrun_all_the_same(app: App, harness: Harness) -> None:
    late = []

    @app.on(app.log("orders"), start="first", timeout="30s", retry=no_retry)
    async def charge(event, ctx):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        try:
            ctx.emit(app.log("receipts"), "sent")
        except UsageError as error:
            late.append(str(error))

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert [(letter.state, letter.error_type) for letter in harness.letters()] == [("dead", "TimeoutError")]
    assert harness.emitted("receipts") == []
    assert "this ctx is dead" in late[0]


def test_a_timeout_error_of_the_function_itself_is_a_failure_like_any_other(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first", timeout="1h", retry=no_retry)
    async def charge(event, ctx):
        async with asyncio.timeout(2):
            await asyncio.sleep(3)

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert harness.clock.monotonic() == 2
    assert [letter.error_type for letter in harness.letters()] == ["TimeoutError"]


def test_a_timed_out_key_does_not_delay_others(app: App, harness: Harness) -> None:
    done = []

    @app.on(app.log("orders"), start="first", timeout="30s", concurrency=2, retry=no_retry)
    async def charge(event, ctx):
        if event.key == "a":
            await asyncio.sleep(3600)
        done.append((event.key, harness.clock.monotonic()))

    for key in "abc":
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    assert done == [("b", 0), ("c", 0)]


def test_a_worker_that_was_cancelled_by_a_timeout_works_on(app: App, harness: Harness) -> None:
    done = []

    @app.on(app.log("orders"), start="first", timeout="1s", retry=no_retry)
    async def charge(event, ctx):
        if event.data % 2:
            await asyncio.sleep(60)
        done.append(event.data)

    for number in range(6):
        harness.append("orders", "order.placed", number)
    harness.run_until_idle()
    assert done == [0, 2, 4]
    assert len(harness.letters("dead")) == 3


def test_a_coroutine_that_cancels_itself_has_failed_and_its_key_goes_on(app: App, harness: Harness) -> None:
    """Libraries do that: a cancel scope that ends too late, a pool that gives up. Nobody else has asked for an end."""
    done = []

    @app.on(app.log("orders"), start="first", retry=retry(attempts=2, wait="1s", jitter=0))
    async def charge(event, ctx):
        if event.data == "a1" and ctx.attempt == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        done.append((event.data, ctx.attempt))

    for name in ("a1", "a2", "b1"):
        harness.append("orders", "order.placed", name, key=name[0])
    harness.advance("1m")
    assert done == [("b1", 1), ("a1", 2), ("a2", 1)]
    assert [letter.error_type for letter in harness.letters() if letter.attempts == 2] == [
        "asyncio.exceptions.CancelledError"
    ]


def test_a_cancellation_that_is_still_to_come_does_not_hit_the_next_event(app: App, harness: Harness) -> None:
    done = []

    @app.on(app.log("orders"), start="first", retry=no_retry)
    async def charge(event, ctx):
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        if event.data == "a1":
            task.cancel()  # and returns without having waited for anything
            return
        await asyncio.sleep(1)
        done.append(event.data)

    for name in ("a1", "b1", "c1"):
        harness.append("orders", "order.placed", name, key=name[0])
    harness.run_until_idle()
    assert done == ["b1", "c1"]
    assert harness.letters() == []


def test_who_swallows_a_cancellation_leaves_nothing_of_it_to_the_next_event(app: App, harness: Harness) -> None:
    counts = []

    @app.on(app.log("orders"), start="first", timeout="30s", retry=no_retry)
    async def charge(event, ctx):
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        if event.data == "a1":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        else:
            raise asyncio.CancelledError("a future that somebody else has cancelled")

    for name in ("a1", "b1", "c1"):
        harness.append("orders", "order.placed", name, key=name[0])
    harness.run_until_idle()
    assert counts == [0, 0, 0]
    errors = [(letter.lane, letter.error_type) for letter in harness.letters("dead")]
    cancelled = "asyncio.exceptions.CancelledError"
    assert errors == [("a", "TimeoutError"), ("b", cancelled), ("c", cancelled)]


class Threads:
    """An app with real threads and a real clock: a thread that overruns cannot be had otherwise."""

    def __init__(self, folder: Path, stop_timeout: float = 30.0, lease: float = 600.0) -> None:
        settings = Settings(lease=lease, stop_timeout=stop_timeout)  # a renewal would wake those who rest
        self.app = App(str(folder / "real.db"), settings=settings)
        self.heard: list[sig.Signal] = []
        self.changed = threading.Condition()
        self.app.listen(self._hear)
        self.release = threading.Event()

    def _hear(self, signals: Any) -> None:
        with self.changed:
            self.heard.extend(signals)
            self.changed.notify_all()

    def of(self, kind: type[sig.Signal]) -> list[Any]:
        return [signal for signal in self.heard if isinstance(signal, kind)]

    async def until(self, kind: type[sig.Signal], count: int = 1) -> None:
        def wait() -> None:
            with self.changed:
                assert self.changed.wait_for(lambda: len(self.of(kind)) >= count, timeout=30)

        await asyncio.to_thread(wait)


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[Threads]:
    real = Threads(tmp_path)
    yield real
    real.release.set()
    real.app.close()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Threads]:
    """Whose stop waits for nobody."""
    real = Threads(tmp_path, stop_timeout=0.01)
    yield real
    real.release.set()
    real.app.close()


def test_a_thread_that_overruns_is_reported_and_keeps_its_key_busy_until_it_returns(threads: Threads) -> None:
    app, trace, late = threads.app, [], []

    @app.on(app.log("orders"), start="first", timeout="400ms", concurrency=2, retry=no_retry)
    def charge(event, ctx):
        trace.append(event.data)
        if event.data == "a1":
            assert threads.release.wait(30)
            try:
                ctx.emit(app.log("receipts"), "late")
            except UsageError as error:
                late.append(str(error))

    async def scenario() -> None:
        async with app.running():
            for name in ("a1", "a2", "b1"):
                app.log("orders").append("order.placed", name, key=name[0])
            await threads.until(sig.HandlerStuck)
            await threads.until(sig.Settled)
            assert trace == ["a1", "b1"], "a2 waits for the thread of a1"
            threads.release.set()
            await threads.until(sig.Buried)
            await threads.until(sig.Parked)

    asyncio.run(scenario())
    [stuck] = threads.of(sig.HandlerStuck)
    assert (stuck.subscription, stuck.seconds >= 0.4) == ("charge", True)
    assert "this ctx is dead" in late[0]
    with app.reader() as tx:
        rows = tx.execute("SELECT lane, state, error_type FROM redrive_letters ORDER BY position").fetchall()
        assert rows == [("a", "dead", "TimeoutError"), ("a", "retrying", "")]
        assert tx.execute("SELECT count(*) FROM redrive_events WHERE type = 'late'").fetchone() == (0,)


def test_a_thread_that_overruns_and_then_succeeds_still_counts_as_overrun(threads: Threads) -> None:
    app, attempts = threads.app, []

    @app.on(app.log("orders"), start="first", timeout="400ms", retry=retry(attempts=2, wait="10ms"))
    def charge(event, ctx):
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            assert threads.release.wait(30)

    async def scenario() -> None:
        async with app.running():
            app.log("orders").append("order.placed", key="a")
            await threads.until(sig.HandlerStuck)
            threads.release.set()
            await threads.until(sig.Recovered)

    asyncio.run(scenario())
    assert attempts == [1, 2]


def test_a_thread_that_overruns_when_it_is_tried_again_is_noticed_in_time(threads: Threads) -> None:
    """Nothing else happens meanwhile that would make anybody look."""
    app = threads.app

    @app.on(app.log("orders"), start="first", timeout="400ms", retry=retry(attempts=2, wait="10ms"))
    def charge(event, ctx):
        if ctx.attempt == 1:
            raise LookupError("not yet")
        with threads.changed:
            assert threads.changed.wait_for(lambda: threads.of(sig.HandlerStuck), timeout=20)

    async def scenario() -> None:
        async with app.running():
            app.log("orders").append("order.placed", key="a")
            await threads.until(sig.Buried)

    asyncio.run(scenario())
    [buried] = threads.of(sig.Buried)
    assert buried.error_type == "TimeoutError"


def test_threads_run_different_keys_side_by_side(threads: Threads) -> None:
    app, together = threads.app, threading.Barrier(3)
    done = []

    @app.on(app.log("orders"), start="first", concurrency=3)
    def charge(event, ctx):
        together.wait(30)
        done.append(event.key)

    for key in "abc":
        app.log("orders").append("order.placed", key=key)
    app.run(until_idle=True)
    assert sorted(done) == ["a", "b", "c"]


def test_an_event_that_comes_alone_does_not_wait_for_a_thread_that_is_busy(threads: Threads) -> None:
    """As many threads as works that are ready at a time are too few: those that were ready before may still run."""
    app, begun = threads.app, threading.Event()

    @app.on(app.log("orders"), start="first", concurrency=2)
    def charge(event, ctx):
        if event.key == "a":
            begun.set()
            assert threads.release.wait(60)

    async def scenario() -> None:
        async with app.running():
            app.log("orders").append("order.placed", key="a")
            assert await asyncio.to_thread(begun.wait, 30)
            app.log("orders").append("order.placed", key="b")
            await threads.until(sig.Settled)
            threads.release.set()

    asyncio.run(scenario())


def test_a_quick_event_does_not_wait_for_a_slow_thread_to_be_settled(threads: Threads) -> None:
    app, in_time = threads.app, []

    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        if event.key == "a":
            threads.release.wait(0.05)  # nobody sets it: the coordinator rests when this is over
        else:
            with threads.changed:
                in_time.append(threads.changed.wait_for(lambda: bool(threads.of(sig.Settled)), timeout=60))

    for key in "ab":
        app.log("orders").append("order.placed", key=key)
    app.run(until_idle=True)
    assert in_time == [True]


def test_stopping_waits_for_a_running_thread_and_settles_its_event(threads: Threads) -> None:
    app, begun = threads.app, threading.Event()

    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        begun.set()
        assert threads.release.wait(30)
        ctx.emit(app.log("receipts"), "sent")

    async def scenario() -> None:
        async with app.running():
            app.log("orders").append("order.placed", key="a")
            assert await asyncio.to_thread(begun.wait, 30)
            asyncio.get_running_loop().call_later(0.05, threads.release.set)

    asyncio.run(scenario())
    assert [event.type for event in app.log("receipts").read()] == ["sent"]
    with app.reader() as tx:
        assert tx.execute("SELECT owner, unclean, applied FROM redrive_progress").fetchone() == (None, 0, 1)


class Hanging:
    """A plain function that hangs until it is released, for the events of some keys, and a worker that is stopped."""

    def __init__(self, threads: Threads, *keys: str, timeout: str = "20ms", attempts: int = 2) -> None:
        self.threads, self.app, self.late = threads, threads.app, list[str]()
        self.count, self._begun = len(keys), threading.Semaphore(0)

        @self.app.on(
            self.app.log("orders"), start="first", timeout=timeout, concurrency=4, retry=retry(attempts, wait="1m")
        )
        def charge(event: Any, ctx: Any) -> None:
            ctx.emit(self.app.log("receipts"), "early")
            if event.key in keys and ctx.attempt == 1:
                self._begun.release()
                assert threads.release.wait(30)
                try:
                    ctx.emit(self.app.log("receipts"), "late")
                except UsageError as error:
                    self.late.append(str(error))

        for name in [*(f"{key}1" for key in keys), "z1", *(f"{key}2" for key in keys)]:
            self.app.log("orders").append("order.placed", name, key=name[0])

    async def stop_while_they_hang(self, meanwhile: Any = None) -> None:
        async with self.app.running():
            for _ in range(self.count):
                assert await asyncio.to_thread(self._begun.acquire, timeout=30)
            await self.threads.until(sig.Settled)
            if meanwhile is None:
                await self.threads.until(sig.HandlerStuck, self.count)
            else:
                await meanwhile()

    def let_them_return(self) -> None:
        left = [thread for thread in threading.enumerate() if thread.name.startswith("redrive charge")]
        self.threads.release.set()
        for thread in left:
            thread.join(30)
            assert not thread.is_alive()

    def written(self) -> list[Any]:
        """Letters, what was emitted, how far it got: all that a thread could change when it returns."""
        with self.app.reader() as tx:
            letters = tx.execute("SELECT lane, state, attempts, error_type FROM redrive_letters ORDER BY position")
            progress = tx.execute("SELECT position, applied, epoch, unclean FROM redrive_progress")
            events = tx.execute("SELECT count(*) FROM redrive_events")
            return [*letters.fetchall(), *progress.fetchall(), *events.fetchall()]


def test_a_stop_spends_the_attempts_of_all_threads_that_have_overrun_and_no_thread_writes_later(
    impatient: Threads,
) -> None:
    hanging = Hanging(impatient, "a", "b")
    asyncio.run(hanging.stop_while_they_hang())
    written = hanging.written()
    assert written[:2] == [("a", "retrying", 1, "TimeoutError"), ("b", "retrying", 1, "TimeoutError")]
    assert [event.type for event in hanging.app.log("receipts").read()] == ["early"], "z1"
    hanging.let_them_return()
    assert ["this ctx is dead" in text for text in hanging.late] == [True, True]
    assert hanging.written() == written
    impatient.app.run(until_idle=True)
    assert hanging.written()[:4] == [
        *written[:2], ("a", "retrying", 0, ""), ("b", "retrying", 0, "")
    ], "what comes later with these keys waits behind them"  # fmt: skip


def test_a_stop_gives_the_attempt_of_a_thread_back_that_has_time_left(impatient: Threads) -> None:
    async def nothing() -> None: ...

    hanging = Hanging(impatient, "a", timeout="1h")
    asyncio.run(hanging.stop_while_they_hang(nothing))
    assert hanging.written()[0][1] == 1, "z1 was applied, and there is no letter"
    hanging.let_them_return()
    impatient.app.run(until_idle=True)
    assert hanging.written()[0][:2] == (3, 3)


def test_who_cancels_serve_waits_no_longer_than_a_stop_and_spends_what_has_overrun(impatient: Threads) -> None:
    hanging = Hanging(impatient, "a", "b")

    async def serve_until_they_hang() -> None:
        task = asyncio.create_task(impatient.app.serve())
        await impatient.until(sig.HandlerStuck, 2)
        await impatient.until(sig.Settled)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()

    asyncio.run(serve_until_they_hang())
    written = hanging.written()
    assert written[:2] == [("a", "retrying", 1, "TimeoutError"), ("b", "retrying", 1, "TimeoutError")]
    hanging.let_them_return()
    assert hanging.written() == written


def test_who_cancels_serve_once_more_waits_for_no_thread(threads: Threads) -> None:
    """A stop would wait for half a minute."""
    hanging = Hanging(threads, "a", timeout="1h")

    async def cancel_twice() -> None:
        task = asyncio.create_task(threads.app.serve())
        await threads.until(sig.Settled)
        task.cancel()
        await threads.until(sig.Stopping)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()

    asyncio.run(cancel_twice())
    hanging.let_them_return()
    assert len(hanging.written()) == 2, "no letter"


def test_who_cancels_the_end_of_running_waits_for_no_thread(threads: Threads) -> None:
    """A stop is under way then: there is no second one to wait for."""
    hanging, stopped = Hanging(threads, "a", timeout="1h"), asyncio.Event()

    async def run() -> None:
        async with threads.app.running():
            await stopped.wait()

    async def cancel_its_end() -> None:
        task = asyncio.create_task(run())
        await threads.until(sig.Settled)
        stopped.set()
        await threads.until(sig.Stopping)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()

    asyncio.run(cancel_its_end())
    hanging.let_them_return()
    assert len(hanging.written()) == 2, "no letter"


def test_who_was_fenced_spends_no_attempt_when_it_stops(impatient: Threads) -> None:
    hanging = Hanging(impatient, "a", attempts=1)

    async def be_fenced() -> None:
        await impatient.until(sig.HandlerStuck)
        with impatient.app.transaction() as tx:
            tx.execute("UPDATE redrive_progress SET epoch = epoch + 1")

    asyncio.run(hanging.stop_while_they_hang(be_fenced))
    hanging.let_them_return()
    assert len(hanging.written()) == 2, "no letter"


def test_a_partition_in_which_a_thread_hangs_is_kept_and_another_is_handed_over(tmp_path: Path) -> None:
    """Nobody else may have its key before the thread returns, and who is about to hand over begins nothing new."""
    first, second = (Threads(tmp_path, lease=0.6) for _ in range(2))
    hung, same, other = (next(f"{n}" for n in range(at, 99) if place(f"{n}", 2) == part) for at, part in BY_PARTITION)
    try:
        for threads in (first, second):
            app = threads.app

            @app.on(app.log("orders"), start="first", timeout="20ms", concurrency=2, partitions=2, retry=no_retry)
            def charge(event, ctx, release=threads.release):
                if event.key == hung:
                    assert release.wait(60)

        async def scenario() -> None:
            async with first.app.running():
                await first.until(sig.LeaseTaken, 2)
                first.app.log("orders").append("order.placed", key=hung)
                await first.until(sig.HandlerStuck)
                async with second.app.running():
                    await second.until(sig.LeaseTaken)
                    for key in (same, other):
                        first.app.log("orders").append("order.placed", key=key)
                    await first.until(sig.Settled)
                    await second.until(sig.Settled)
                    first.release.set()
                    await first.until(sig.Buried)

        asyncio.run(scenario())
    finally:
        for threads in (first, second):
            threads.release.set()
            threads.app.close()


def test_who_was_fenced_calls_nobody_any_more(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread goes on with what is ready, as long as it is wanted. What it does after a take-over is done twice."""
    monkeypatch.setattr(Staff, "settle_after", 30.0)  # nobody hears of the first before the second has begun
    app, called = threads.app, []

    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        called.append(event.data)
        if event.data == 1:  # not before: whoever looked into the log between the two would notice
            with app.transaction() as tx:
                tx.execute("UPDATE redrive_progress SET epoch = epoch + 1")
            supervisor: Any = app.runtime.supervisor
            supervisor.loops["charge"]._staff._call()
            assert threads.release.wait(30)

    async def scenario() -> None:
        app.log("orders").append_many([{"type": "order.placed", "data": n, "key": f"{n}"} for n in range(10)])
        async with app.running(), asyncio.timeout(30):
            supervisor: Any = app.runtime.supervisor
            while not (supervisor.loops and supervisor.loops["charge"].stopping):
                await asyncio.sleep(0)
            supervisor.stop("before it is taken back")
            threads.release.set()

    asyncio.run(scenario())
    assert called == [0, 1]
