"""A handler in a rehearsal: called without the write lock, because it may take its time.

Then what it asked of `ctx` is tried in the transaction. State that it saved is seen by the next letter of its key.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from redrive.context import Ctx, Effects
from redrive.errors import StoreError
from redrive.event import Event
from redrive.policy import outcome as out
from redrive.policy.outcome import Outcome
from redrive.replay.cast import Lane, Run, cannot
from redrive.replay.rehearsal import Rehearsed
from redrive.replay.scene import HOLD_MAX, TOO_LONG, Emitted, Scene
from redrive.runner.call import attempt, attempt_works, overran
from redrive.runner.settle import StateConflict
from redrive.store.port import LetterRow, StoreTx
from redrive.store.rehearsing import ON_STAGE

T = TypeVar("T")

GRACE = 1.0  # seconds for a coroutine to end after it was cancelled; one that does not is left behind


@dataclass(slots=True)
class Called:
    """A letter whose function was called: what it is to be judged by, and what it asked for."""

    letter: LetterRow
    known: Rehearsed | None
    effects: Effects | None = None


@dataclass(eq=False, slots=True)
class Turn:
    """One call of a handler."""

    event: Event[Any]
    ctx: Ctx
    timed_out: bool = False


class Handling(Scene):
    """A handler that was declared rehearsable."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        function = self.subscription.function
        self._function = function if self.subscription.arguments == 2 else lambda event, ctx: function(event)
        self._states: dict[str, tuple[int, bytes]] = {}  # as the calls of this slice have left them
        self._called: list[tuple[Run, list[Called]]] = []

    # ------------------------------------------------------------ what a ctx asks for

    @property
    def name(self) -> str:
        """What idempotency keys are made of."""
        return self.emitter.identity

    @property
    def deps(self) -> Any:
        """What the app's lifespan yielded."""
        return self.house.deps

    def load_state(self, key: str) -> tuple[int, bytes]:
        """Keyed state as the calls before left it, or as committed."""
        found = self._states.get(key)
        if found is None:
            with self.house.store.reading() as tx:
                found = tx.keyed.get(self.row.id, key)
        return found

    # ------------------------------------------------------------ calling

    @property
    def waits(self) -> bool:
        return bool(self.lanes or self._called)

    async def play(self, in_thread: Callable[[Callable[[], float]], Any]) -> float:
        clock, settings = self.house.env.clock, self.house.settings
        if not self._called:  # else a function ended the transaction, and the others are written again
            self._states.clear()
            started, calls = clock.monotonic(), 0
            while self.lanes and calls < settings.settle_max and clock.monotonic() - started < HOLD_MAX:
                run, called = await self._call_lane(self.lanes.popleft())
                self._called.append((run, called))
                calls += len(called)
        return float(await in_thread(lambda: self.slice(self._write_all)))

    async def _call_lane(self, lane: Lane) -> tuple[Run, list[Called]]:
        run, called = Run(lane), []
        with self.house.store.reading() as tx:
            letters = [*lane.letters(tx)]
        for letter in letters:
            if lane.is_stranger(letter):
                run.stop_before(letter)
                break
            called.append(await self._call(letter))
            if called[-1].known is not None and called[-1].known.result != "would succeed":
                break
        return run, called

    async def _call(self, letter: LetterRow) -> Called:
        with self.house.store.reading() as tx:
            event, key, known = self.event(tx, letter)
        if known is not None:
            return Called(letter, known)
        assert event is not None
        turn = Turn(event, Ctx(event, key, letter.attempts + 1, letter.edits, self))
        is_async, timeout = self.subscription.is_async, self.subscription.timeout
        error = await (self._in_task(turn) if is_async else self._in_thread(turn))
        effects: list[Effects | None] = [None]
        if turn.timed_out and timeout is not None:
            return Called(letter, self.judge(letter, overran(timeout)))
        if error is None:
            error = attempt(lambda: effects.append(turn.ctx.effects()))
        if error is not None:
            return Called(letter, self.judge(letter, self.outcome(error, _is_ours)))
        asked = effects[-1]
        if asked is not None and asked.state is not None:
            state_key, _, data = asked.state
            self._states[state_key] = (letter.position, data) if data else (0, b"")
        return Called(letter, None, asked)

    async def _in_task(self, turn: Turn) -> BaseException | None:
        waiting, raised = [turn], list[BaseException | None]()

        def called(_: Turn, error: BaseException | None) -> bool:
            raised.append(error)
            return False

        async def play() -> None:
            ON_STAGE.set(True)
            await attempt_works(self._function, lambda: waiting.pop() if waiting else None, called)

        task = asyncio.create_task(play())
        await asyncio.wait({task}, timeout=self.subscription.timeout)
        if not task.done():
            turn.timed_out = True
            turn.ctx.kill()
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
        return raised[0] if raised else None

    async def _in_thread(self, turn: Turn) -> BaseException | None:
        def play() -> BaseException | None:
            ON_STAGE.set(True)
            return attempt(self._function, turn.event, turn.ctx)

        future = start_thread(play, f"redrive {self.subscription.name}")
        await asyncio.wait({future}, timeout=self.subscription.timeout)
        if not future.done():
            turn.timed_out = True
            turn.ctx.kill()
            return None
        return future.result()[0]

    # ------------------------------------------------------------ trying the effects

    def _write_all(self, tx: StoreTx, elapsed: Callable[[], float]) -> tuple[list[Run], Emitted]:
        emitted, again, runs = Emitted(), list[Lane](), list[Run]()
        for run, called in self._called:
            fresh = Run(run.lane, held=run.held, above=run.above)
            tx.savepoint()
            try:
                of_lane = self._write_lane(tx, fresh, called, elapsed)
            except StateConflict as conflict:
                tx.undo()
                tx.keep()
                self._meet_conflict(fresh, called, conflict, again, runs)
                continue
            tx.keep()
            emitted += of_lane
            runs.append(fresh)
        self.lanes.extendleft(reversed(again))
        self._called.clear()
        return runs, emitted

    def _write_lane(self, tx: StoreTx, run: Run, called: list[Called], elapsed: Callable[[], float]) -> Emitted:
        emitted, held = Emitted(), run.held
        run.held = ""
        for one in called:
            letter = one.letter
            found = tx.letters.get(letter.id)
            if elapsed() > HOLD_MAX or self.house.stopping.is_set():
                run.held = TOO_LONG
            elif found is None or found.rev != letter.rev:
                run.add(letter, cannot(letter, "it changed while it was rehearsed; look again"))
            elif one.known is not None:
                run.add(letter, one.known)
            else:
                run.add(letter, self._write(tx, one, emitted))
            if run.held:
                return emitted
        run.held = held
        return emitted

    def _write(self, tx: StoreTx, one: Called, emitted: Emitted) -> Rehearsed:
        if one.effects is None:
            return self.judge(one.letter, out.APPLIED)
        if one.letter.id in self._ended:
            return self._failed(one.letter, self._ended[one.letter.id])
        mine = list[tuple[str, str]]()
        tx.savepoint()
        error = attempt(lambda: self._effects(tx, one, mine))
        self.keep(tx, one.letter, error)
        if isinstance(error, StateConflict):
            raise error
        if error is not None:
            return self.judge(one.letter, self.outcome(error, self.house.stage.is_the_world))
        emitted.update(mine)
        return self.judge(one.letter, out.APPLIED)

    def _effects(self, tx: StoreTx, called: Called, emitted: list[tuple[str, str]]) -> None:
        effects, position = called.effects, called.letter.position
        assert effects is not None
        for sql, parameters in effects.statements:
            tx.connection.execute(sql, parameters)
        emitted += [(one.log, one.event.type) for one in effects.emissions if self.emit(tx, position, one)]
        if effects.state is not None:
            key, version, data = effects.state
            if not tx.keyed.save(self.row.id, key, version, data, position):
                raise StateConflict(self.subscription.name, key)

    def _meet_conflict(
        self, run: Run, called: list[Called], conflict: StateConflict, again: list[Lane], runs: list[Run]
    ) -> None:
        """A worker, or a letter of the same key that failed, left another state: once more, on what there is."""
        run.lane.tries += 1
        if run.lane.tries <= self.subscription.policy.conflicts.times + len(self._called):
            again.append(run.lane)
            return
        outcome: Outcome = self.outcome(conflict, _is_ours)
        fresh = Run(run.lane)
        fresh.add(called[0].letter, self.judge(called[0].letter, outcome))
        runs.append(fresh)


def _is_ours(error: BaseException) -> bool:
    """Our store's fault? What a handler meets elsewhere is its own."""
    return isinstance(error, StoreError)


def start_thread(job: Callable[[], T], name: str) -> asyncio.Future[tuple[T, None] | tuple[None, BaseException]]:
    """Run a job on a thread that nobody has to wait for at the end; the future has its result, or what it raised."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    results: list[Any] = []

    def resolve(error: BaseException | None) -> None:
        if not future.done():
            future.set_result((results[0], None) if error is None else (None, error))

    def run() -> None:
        error = attempt(lambda: results.append(job()))
        attempt(loop.call_soon_threadsafe, resolve, error)  # a loop that is closed waits for nobody

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
