"""A projection in a rehearsal: called inside the transaction, one letter at a time, as the runner does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.context import SAME_KEY, Tx
from redrive.errors import UsageError
from redrive.event import Event
from redrive.policy import outcome as out
from redrive.replay.rehearsal import Rehearsed
from redrive.replay.rehearsing.cast import Lane, Run
from redrive.replay.rehearsing.scene import HOLD_MAX, TOO_LONG, Emitted, Scene
from redrive.runner.call import attempt, find_key
from redrive.store.port import LetterRow, StoreTx
from redrive.store.scheduled import take_back


class Projecting(Scene):
    """A projection: called inside the transaction, one letter at a time, as the runner calls it for letters."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        function = self.subscription.function
        call: Callable[..., Any] = function if self.subscription.arguments == 2 else lambda event, tx: function(event)
        self._function = (lambda event, tx: call([event], tx)) if self.subscription.batch else call
        self._tx: StoreTx | None = None
        self._ordinal = -1
        self._emissions: list[tuple[str, str]] = []

    async def play(self, in_thread: Callable[[Callable[[], float]], Any]) -> float:
        return float(await in_thread(lambda: self.slice(self._lanes)))

    def _lanes(self, tx: StoreTx, elapsed: Callable[[], float]) -> tuple[list[Run], Emitted]:
        self._tx, emitted = tx, Emitted()
        waiting, runs = list(self.lanes), []
        for lane in waiting:
            runs.append(self._lane(tx, lane, elapsed, emitted))
            if elapsed() > self.house.settings.batch_time_max or self.house.stopping.is_set():
                break
        for _ in runs:  # only now: a function that ends the transaction takes all of them back
            self.lanes.popleft()
        return runs, emitted

    def _lane(self, tx: StoreTx, lane: Lane, elapsed: Callable[[], float], emitted: Emitted) -> Run:
        run, user = Run(lane), Tx(tx, self._emit, self._cancel)
        tx.points.begin()
        for letter in lane.letters(tx):
            if lane.is_stranger(letter):
                run.stop_before(letter)
            elif elapsed() > HOLD_MAX or self.house.stopping.is_set():
                run.held = TOO_LONG
            else:
                run.add(letter, self._call(tx, user, letter))
                emitted.update(self._emissions)
            if run.held:
                break
        return run

    def _call(self, tx: StoreTx, user: Tx, letter: LetterRow) -> Rehearsed:
        self._ordinal, self._emissions = -1, []
        event, _, known = self.event(tx, letter)
        if known is not None:
            return known
        user.event = event
        tx.savepoint()
        error = attempt(tx.checked(tx.strict(self._function)), event, user)
        self.keep(tx, letter, error)
        if error is None:
            return self.judge(letter, out.APPLIED)
        self._emissions = []
        return self.judge(letter, self.outcome(error, self.house.stage.is_the_world))

    def _emit(self, event: Event[Any], log: Any, type: Any, data: Any, key: Any, **how: Any) -> str:
        if key is SAME_KEY and self.subscription.batch:
            raise UsageError("emit in a batch=True projection needs key=: a list of events has no key of its own")
        chosen = find_key(self.subscription.key_of, event)[0] if key is SAME_KEY else key
        self._ordinal += 1
        emission = self.emitter.make(event, self._ordinal, log, type, data, key=chosen, **how)
        assert self._tx is not None
        if self.emit(self._tx, event, emission):
            self._emissions.append((emission.log, emission.event.type))
        return emission.event.id

    def _cancel(self, event: Event[Any], log: Any, id: str) -> bool:
        assert self._tx is not None
        return take_back(self._tx, self.emitter.named(log, "cancel"), id, quiet=self.is_quiet(event))
