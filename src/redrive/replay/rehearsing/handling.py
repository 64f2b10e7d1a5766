"""A handler in a rehearsal: called without the write lock, because it may take its time.

Then what it asked of `ctx` is tried in the transaction. State that it saved is seen by the next letter of its key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.context import Ctx, Effects, LiveCtx
from redrive.errors import StoreError
from redrive.event import Event
from redrive.policy import outcome as out
from redrive.replay.rehearsal import Rehearsed
from redrive.replay.rehearsing.cast import Lane, Run, cannot
from redrive.replay.rehearsing.scene import HOLD_MAX, TOO_LONG, Emitted, PlayAgain, Scene
from redrive.replay.rehearsing.threads import start_thread
from redrive.runner.call import attempt, attempt_effects, attempt_works, overran
from redrive.runner.settle import StateConflict, run_statements
from redrive.store.port import LetterRow, StoreTx
from redrive.store.rehearsing import ON_STAGE
from redrive.store.scheduled import is_scheduled

GRACE = 1.0  # seconds for a coroutine to end after it was cancelled; one that does not is left behind


@dataclass(slots=True)
class Called:
    """A letter whose function was called: what it is to be judged by, and what it asked for."""

    letter: LetterRow
    result: Rehearsed | None  # None: it depends on the effects
    effects: Effects | None = None


@dataclass(slots=True)
class CalledLane:
    """The letters of a lane that were called, and who was in the way of the others."""

    lane: Lane
    letters: list[Called]
    stranger: LetterRow | None = None


@dataclass(eq=False, slots=True)
class Turn:
    """One call of a handler."""

    event: Event[Any]
    ctx: Ctx
    error: BaseException | None = None
    timed_out: bool = False


class Handling(Scene):
    """A handler that was declared rehearsable."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        function = self.subscription.function
        self._function = function if self.subscription.arguments == 2 else lambda event, ctx: function(event)
        self._states: dict[str, tuple[int, bytes]] = {}  # as the calls of this slice have left them
        self._called: list[CalledLane] = []
        self._conflicts: Counter[int] = Counter()

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

    def is_scheduled(self, log: str, id: str) -> bool:
        """Does this event wait for its time?"""
        with self.house.store.reading() as tx:
            return is_scheduled(tx.sql, log, id)

    # ------------------------------------------------------------ calling

    @property
    def waits(self) -> bool:
        return bool(self.lanes or self._called)

    async def play(self, in_thread: Callable[[Callable[[], float]], Any]) -> float:
        clock, settings = self.house.env.clock, self.house.settings
        if not self._called:  # else the last slice was full, or somebody spoilt it
            self._states.clear()
            started, calls = clock.monotonic(), 0
            while self.lanes and calls < settings.settle_max and clock.monotonic() - started < HOLD_MAX:
                self._called.append(await self._call_lane(self.lanes.popleft()))
                calls += len(self._called[-1].letters)
        return float(await in_thread(lambda: self.slice(self._write_all)))

    async def _call_lane(self, lane: Lane) -> CalledLane:
        called = CalledLane(lane, [])
        with self.house.store.reading() as tx:
            letters = [*lane.letters(tx)]
        for letter in letters:
            if lane.is_stranger(letter):
                called.stranger = letter
                break
            one = await self._call(letter)
            called.letters.append(one)
            if one.result is not None and one.result.result != "would succeed":
                break
        return called

    async def _call(self, letter: LetterRow) -> Called:
        with self.house.store.reading() as tx:
            event, key, known = self.event(tx, letter)
        if known is not None:
            return Called(letter, known)
        assert event is not None
        turn = Turn(event, LiveCtx(event, key, letter.attempts + 1, letter.edits, self))
        is_async, timeout = self.subscription.is_async, self.subscription.timeout
        error = await (self._in_task(turn) if is_async else self._in_thread(turn))
        asked: Effects | None = None
        if turn.timed_out and timeout is not None:
            return Called(letter, self.judge(letter, overran(timeout)))
        if error is None:
            asked, error = attempt_effects(turn.ctx)
        if error is not None:
            return Called(letter, self.judge(letter, self.outcome(error, self._is_ours)))
        if asked is not None and asked.state is not None:
            state_key, _, data = asked.state
            self._states[state_key] = (letter.position, data) if data else (0, b"")
        return Called(letter, None, asked)

    async def _in_task(self, turn: Turn) -> BaseException | None:
        async def play() -> None:
            ON_STAGE.set(True)
            await attempt_works(self._function, [turn])

        task = asyncio.create_task(play())
        await asyncio.wait({task}, timeout=self.subscription.timeout)
        if not task.done():
            turn.timed_out = True
            turn.ctx.kill()
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
        return turn.error

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
        emitted, runs = Emitted(), []
        for called in self._called:
            run = Run(called.lane)
            self._write_lane(tx, run, called, elapsed, emitted)
            runs.append(run)
            if elapsed() > self.house.settings.batch_time_max:
                break
        del self._called[: len(runs)]  # only now: who spoils the slice takes all of them back
        return runs, emitted

    def _write_lane(
        self, tx: StoreTx, run: Run, called: CalledLane, elapsed: Callable[[], float], emitted: Emitted
    ) -> None:
        for one in called.letters:
            letter = one.letter
            found = tx.letters.get(letter.id)
            if elapsed() > HOLD_MAX or self.house.stopping.is_set():
                run.held = TOO_LONG
            elif found is None or found.rev != letter.rev:
                run.add(letter, cannot(letter, "it changed while it was rehearsed; look again"))
            elif one.result is not None:
                run.add(letter, one.result)
            else:
                run.add(letter, self._write(tx, one, emitted))
            if run.held:
                return
        if called.stranger is not None:
            run.stop_before(called.stranger)

    def _write(self, tx: StoreTx, one: Called, emitted: Emitted) -> Rehearsed:
        letter, mine = one.letter, list[tuple[str, str]]()
        if one.effects is None:
            return self.judge(letter, out.APPLIED)
        if letter.id in self.known:
            return self.failed(letter, self.known[letter.id])
        tx.savepoint()
        error = attempt(lambda: self._effects(tx, one, mine))
        self.keep(tx, letter, error)
        if isinstance(error, StateConflict):
            raise PlayAgain(letter, error)
        if error is not None:
            outcome = self.outcome(error, self.house.stage.is_the_world)
            if isinstance(outcome, out.Failed | out.Conflicted):  # if others have seen its state, all is played again
                self.known[letter.id] = outcome.failure
            return self.judge(letter, outcome)
        emitted.update(mine)
        return self.judge(letter, out.APPLIED)

    def _effects(self, tx: StoreTx, called: Called, emitted: list[tuple[str, str]]) -> None:
        effects, position = called.effects, called.letter.position
        assert effects is not None
        tx.strict(run_statements)(effects.statements, tx)
        emitted += [(one.log, one.event.type) for one in effects.emissions if self.emit(tx, called.letter, one)]
        if effects.state is not None:
            key, version, data = effects.state
            if not tx.keyed.save(self.row.id, key, version, data, position):
                raise StateConflict(self.subscription.name, key)

    def learn(self, spoilt: PlayAgain) -> None:
        """A state that is not there was seen: a worker, or a letter that failed, left another. Call them all again."""
        if not isinstance(spoilt.error, StateConflict):
            super().learn(spoilt)
            return
        self.lanes.extendleft(called.lane for called in reversed(self._called))
        self._called.clear()
        self._conflicts[spoilt.letter.id] += 1
        if self._conflicts[spoilt.letter.id] > self.subscription.policy.conflicts.times:
            super().learn(spoilt)

    def _is_ours(self, error: BaseException) -> bool:
        """Our store's fault? What a handler meets elsewhere is its own."""
        return isinstance(error, StoreError) and self.house.stage.is_the_world(error)
