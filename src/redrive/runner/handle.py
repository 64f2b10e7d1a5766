"""Handlers: lanes in memory, a few long-lived workers, effects settled in groups.

A key is busy from dispatch until its settle commits. One coordinator takes in, dispatches and settles,
one hop to the store per round; workers only call functions and put the outcome into the outbox.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from redrive.context import Again, Ended, LiveCtx
from redrive.errors import BugError, CommitRefused, Fenced, StoreError, TransactionEnded
from redrive.event import Event, from_row
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.lanes import Head
from redrive.policy.outcome import Outcome
from redrive.runner.budget import over_budget
from redrive.runner.call import attempt, attempt_effects, describe, outcome_of, overran
from redrive.runner.coming import Ask, Coming
from redrive.runner.desk import Desk
from redrive.runner.duty import Duty, Fresh, Work, check_edit, edited
from redrive.runner.gate import Gate
from redrive.runner.keygate import KeyGate
from redrive.runner.losses import at_risk
from redrive.runner.settle import Settling, StateConflict, decision, tell
from redrive.store.log import some_after
from redrive.store.packed import BYTES_MAX, UNKNOWN_MAX, Packed, packed_after, reach_of
from redrive.store.port import Disbelief, StoreTx
from redrive.store.sql import Row

ROOM_SHARE = 8  # what part of a window is worth a look into the log while as much is ready
SPAN = 10  # how many windows of settled events may lie above the oldest unsettled one


class Handling:
    """One handler's rounds: the part that runs where writing happens, and what it needs around it."""

    def __init__(self, duty: Duty, ask: Ask | None = None) -> None:
        """`ask`: have something done on the event loop, if that has time, while the store is being written."""
        self.duty = duty
        self.desk = Desk(duty)
        rule = duty.subscription.breaker
        self.keys = KeyGate(duty, self.desk) if rule is not None and rule.per == "key" else None
        self.gate: Gate | None = self.keys or (Gate(duty) if rule or duty.subscription.limit else None)
        lookout = duty.engine.store.lookout
        self._coming = None if lookout is None else Coming(lookout, self._read_ahead, duty.engine.types, ask)
        self._reach = UNKNOWN_MAX  # how many events like those that were read last may be in memory
        self.lane_full = ""
        self.halt = ""

    # ------------------------------------------------------------ intake

    def room(self) -> int:
        """How many events may be taken in."""
        duty = self.duty
        if duty.paused or self.halt or (self.gate is not None and self.gate.is_shut and self.desk.ready):
            return 0
        if duty.subscription.order == "total":
            return 0 if duty.lanes or len(self.desk) else 1
        # Done rows above a slow key cost little; unsettled works are what memory and a crash must bear.
        most = duty.engine.settings.window_max
        limit = min(most, max(self._reach, duty.subscription.concurrency))
        room = max(0, min(limit - len(self.desk), SPAN * most - len(duty.window)))
        # A look into the log costs the same for one event and for hundreds: while there is enough to call, wait.
        return 0 if room < limit // ROOM_SHARE < len(self.desk.ready) else room

    def take_in(self, events: list[Event[Any]]) -> int:
        """Queue what the filter asks for; stop before an event of a full lane. How many are behind us."""
        duty = self.duty
        window, subscription, lane_max = duty.window, duty.subscription, duty.engine.settings.lane_max
        if events and self._is_plain(events):
            works = self._works(events)
            window.take_all([work.position for work in works])
            self.desk.add_fresh(works)
            return len(events)
        plain, wants, lane_of = subscription.key_by is None, subscription.wants, subscription.lane_of
        self.lane_full, alone = "", duty.share.partitions == 1
        for count, event in enumerate(events):
            position, key = event.position, event.key
            if not (wants(event.type) and (alone or duty.share.has_event(event.id, key))):
                window.skip(position)
                continue
            if duty.edits:
                event = edited(duty, event)
            work = Work(event, position, key, lane_of(key), None) if plain else duty.work(event)
            size = duty.lanes.size(work.lane) if duty.lanes else 0
            if size and size + self.desk.queued(work.lane) >= lane_max:
                self.lane_full = work.lane or ""
                return count
            if window.take(position):
                self.desk.add(work)
        return len(events)

    def _works(self, events: list[Event[Any]]) -> list[Work]:
        """Plain events as works: whatever is done here is done for every event."""
        if self.duty.edits:
            events = [edited(self.duty, event) for event in events]
        if self.duty.subscription.order == "key":
            return [Fresh(event, event.position, key := event.key, key, None) for event in events]
        lane_of = self.duty.subscription.lane_of
        return [Fresh(event, event.position, event.key, lane_of(event.key), None) for event in events]

    def _is_plain(self, events: list[Event[Any]]) -> bool:
        """Nothing parked, nothing suspected, nothing filtered, keys as stored."""
        duty = self.duty
        odd = (
            duty.share.partitions > 1
            or duty.lanes
            or duty.holds
            or duty.horizon
            or duty.suspects
            or duty.subscription.key_by
            or duty.window.has_done()
        )
        if odd or not duty.subscription.types:  # no filter: everything is asked for
            return not odd
        return all(map(duty.subscription.wants, {event.type for event in events}))

    def take_letters(self, due: list[tuple[str | None, Head, Row | None]], over: Collection[int] = ()) -> None:
        """Queue heads that are due; those `over` the retry budget have met their fate."""
        for lane, head, row in due:
            if row is None:
                self.halt = f"letter {head.letter}: its event at {head.position} is no longer in the log"
                continue
            event = from_row(row, self.duty.engine.types)
            work = self.duty.work(event.with_data(event.data_raw, head.edits) if head.edits else event)
            work.lane, work.head, work.attempt = lane, head, head.attempts + 1
            check_edit(self.duty, work)
            if head.letter in over:
                work.outcome, work.attempt = over_budget(self.duty.engine.settings.retry_budget), head.attempts
            self.desk.add(work)

    # ------------------------------------------------------------ calling

    def prepare(self, work: Work) -> LiveCtx:
        """Give one attempt its context."""
        duty, event, edits = self.duty, work.event, 0
        assert event is not None
        if work.head is not None:
            edits = work.head.edits
        elif duty.edits and work.position in duty.edits:
            edits = duty.edits[work.position][0]
        work.ctx = ctx = LiveCtx(event, work.key, work.attempt, edits, duty)
        return ctx

    def called(self, work: Work) -> None:
        """The function returned or raised: this is its outcome."""
        ctx, error, work.ctx, work.error = work.ctx, work.error, None, None
        if error is None:
            work.effects, error = attempt_effects(ctx)
        if work.timed_out and self.duty.subscription.timeout is not None:
            work.outcome, work.effects = overran(self.duty.subscription.timeout), None
        else:
            work.outcome = out.APPLIED if error is None else self.outcome(work, error)
        if work.outcome is out.APPLIED and work.event is not None:
            work.event.forget()  # nobody asks for its data again: what it takes is free for the next one

    def outcome(self, work: Work, error: BaseException) -> Outcome:
        """What an error of a call means; who asks for the end of the process gets it."""
        engine = self.duty.engine
        if isinstance(error, SystemExit | KeyboardInterrupt):
            engine.request_stop(f"{self.duty.subscription.name} raised {type(error).__name__}")
        return outcome_of(error, self._is_ours, reruns=work.reruns, limit=engine.settings.error_text_max)

    def _is_ours(self, error: BaseException) -> bool:
        """Our store's fault? Another one, ours or not, is a dependency of the handler like any other."""
        return isinstance(error, StoreError) and error.store is self.duty.engine.store

    # ------------------------------------------------------------ settling

    def round(self, group: Group, room: int, due: list[tuple[str | None, Head]]) -> Round:
        """Settle a group, then read what there is room for: one hop. Runs where writing happens."""
        result, duty = Round(), self.duty
        if group.works or duty.window.can_advance():
            self._settle(group, result)
        with duty.engine.store.reading(snapshot=False) as tx:
            mine = tx.sql.each("progress_get", (duty.member,))
            early = room and not self._is_held()
            if early:  # one answer for both; if it is to wait after all, it is read again
                result.events = self._read(tx, room)
            duty.refresh(tx, mine)
            if self.gate is not None:
                self.gate.look(tx)
            if due:
                result.letters = [(lane, head, tx.letters.event(head.letter)) for lane, head in due]
            if self._is_held():
                result.events = []
            elif room and not early:
                result.events = self._read(tx, room)
        if result.events:
            self._reach = reach_of(result.events)
        if self._coming is not None:
            self._coming.begin(result.events, room)
        return result

    def _is_held(self) -> bool:
        """Is nothing to be read now, as far as is known?"""
        duty = self.duty
        return duty.paused or (duty.subscription.order == "total" and bool(duty.lanes))

    def _read(self, tx: StoreTx, room: int) -> list[Event[Any]]:
        duty = self.duty
        log = duty.log_id = duty.log_id or tx.logs.id_of(duty.subscription.source)
        types = duty.engine.types

        def read(at: int, n: int) -> list[Event[Any]]:
            return some_after(tx.logs, log, at, n, types, BYTES_MAX)[0]

        position = duty.window.cursor
        return read(position, room) if self._coming is None else self._coming.take(position, room, read)

    def _read_ahead(self, position: int, count: int, span: int | None) -> Packed | None:
        """The log beyond what was taken in does not depend on what is done with it. Runs beside the writer."""
        with self.duty.engine.store.reading(snapshot=False) as tx:
            return packed_after(tx.sql, self.duty.log_id, position, count, span)

    def _settle(self, group: Group, result: Round) -> None:
        """All at once; if one cannot be settled, each behind a savepoint, and the one gets its own fate.

        Which one that is may show only at the commit: then its constraints are looked at after each of them.
        """
        hit("round.called")
        started = self.duty.engine.env.clock.monotonic()
        settling = None
        while settling is None:
            try:
                settling = self._write_somehow(group, result)
            except Ended as ended:  # nothing is left; the one's own fate is known, and the rest is settled again
                self._blame(group, ended)
            except (Again, TransactionEnded):  # the store has learnt that it has to look who it is
                pass
        hit("round.committed")
        if self.duty.keeper is not None:
            self.duty.keeper.committed()
        settling.learn(self.duty.engine.env.clock.monotonic() - started)
        tell(settling)
        if self.gate is not None:
            self.gate.fed(group.works, settling.now)

    def _blame(self, group: Group, ended: Ended) -> None:
        """The statements of one have ended the transaction."""
        work = next(one for one in group.works if one.effects is not None and one.effects.statements is ended.subject)
        group.positions = None
        work.effects, limit = None, self.duty.engine.settings.error_text_max
        work.outcome = out.Failed(ended.error, describe(ended.error, limit))

    def _write_somehow(self, group: Group, result: Round) -> Settling:
        try:
            return self._write_at_once(group, result)
        except _Isolate:
            return self._write_apart(group, result)
        except CommitRefused:
            return self._write(group, result, isolate=True, strict=True)

    def _write_at_once(self, group: Group, result: Round) -> Settling:
        try:
            return self._write(group, result, isolate=False, believes=True)
        except Disbelief:
            return self._write(group, result, isolate=False)

    def _write_apart(self, group: Group, result: Round) -> Settling:
        try:
            return self._write(group, result, isolate=True)
        except CommitRefused:
            return self._write(group, result, isolate=True, strict=True)

    def _write(
        self, group: Group, result: Round, *, isolate: bool, strict: bool = False, believes: bool = False
    ) -> Settling:
        """`believes`: where the store is far, the fence is not waited for if there are no effects."""
        result.clear()
        if isolate:
            group.positions = None  # one of them will fail
        alone = any(work.alone for work in group.asking)
        with at_risk(group.asking, alone=alone), self.duty.engine.store.transaction() as tx:
            believes = believes and tx.sql.is_far and not self._has_effects(group)
            settling = Settling(tx, self.duty, strict=strict, believes=believes)
            if settling.stale:  # a hold may have been released since its event was kept back
                self.duty.holds.load(tx, self.duty.lanes)
            hit("round.fenced")
            if self.keys is not None:
                self.keys.feed(settling, group.works)
            if group.positions is None:
                self._write_mixed(settling, group.works, result, isolate=isolate)
            else:
                self._write_together(settling, group.works, group.asking, group.positions)
            hit("round.effects")
            if self.gate is not None and self.keys is None:
                self.gate.feed(settling, group.works)
            settling.finish()
            if (keeper := self.duty.keeper) is not None:
                keeper.write(tx, settling.states)
            hit("round.before_commit")
            if self._coming is not None:
                self._coming.unpack()
        return settling

    def _write_mixed(self, settling: Settling, works: list[Work], result: Round, *, isolate: bool) -> None:
        """Those that are not ordinary each by itself, and then the others."""
        together = [work for work in works if is_ordinary(work) and not (isolate and work.effects)]
        if len(together) < len(works):
            usual = set(together)
            self._write_unusual(settling, [work for work in works if work not in usual], result)
        asking = [work for work in together if work.effects is not None]
        self._write_together(settling, together, asking, [work.position for work in together])

    def _write_unusual(self, settling: Settling, works: list[Work], result: Round) -> None:
        """What failed, is a letter, or runs behind a mark: each by itself."""
        for work in works:
            if work.outcome is out.APPLIED:
                self._write_good(settling, work, result)
            elif work.follow:
                settling.follow(work)
            else:
                self._write_bad(settling, work, result)

    def _has_effects(self, group: Group) -> bool:
        """Is anything to be done beside writing fates? A keeper does it elsewhere, where no fence is."""
        return self.duty.keeper is not None or bool(group.asking)

    def _write_together(self, settling: Settling, works: list[Work], asking: list[Work], positions: list[int]) -> None:
        """The ordinary case: nobody fails. If one does, all of it is written again, one by one."""

        def effects() -> None:
            for work in asking:
                settling.effects(work, together=True)
            if not settling.write_together():
                raise _Isolate

        error = attempt(effects)
        if isinstance(error, Fenced | BugError | _Isolate) or self._is_the_world(error):
            raise error  # type: ignore[misc]
        if error is not None:
            raise _Isolate from error
        settling.commit_works(works, positions)

    def _is_the_world(self, error: BaseException | None) -> bool:
        """Not the fault of a user's statement: what raises a StoreError here is the store, or who keeps the state."""
        return isinstance(error, StoreError) or (error is not None and self.duty.engine.store.is_the_world(error))

    def _write_good(self, settling: Settling, work: Work, result: Round) -> None:
        """Effects first, then the fate, behind a savepoint: it may fail, and an operator may be faster."""
        tx, store = settling.tx, self.duty.engine.store
        tx.savepoint()
        error = attempt(lambda: settling.effects(work, together=False))
        if error is not None and (isinstance(error, Fenced | BugError) or self._is_the_world(error)):
            raise error
        lost = error is None and not settling.commit(work)
        if error is not None or lost:
            tx.undo()
        tx.keep()
        if lost:
            settling.lose(work)
        if error is not None:
            work.effects = None
            reruns = 0 if isinstance(error, StateConflict) else work.reruns  # it ends: one of them wins each time
            work.outcome = outcome_of(error, store.is_the_world, reruns=reruns)
            self._write_bad(settling, work, result)

    def _write_bad(self, settling: Settling, work: Work, result: Round) -> None:
        result.bad.append(work)
        action = decision(self.duty, work, None if self.keys is None else self.keys.blamed.get(work))
        match action:
            case act.Rerun(wait):
                result.reruns.append((work, wait))
            case act.Defer():
                result.deferred.append(work)
            case act.Halt(reason):
                result.halt = reason
                result.deferred.append(work)
            case _:
                settling.write(work, action)

    def mark_alone(self, work: Work) -> None:
        """Before an event that may have killed the process; runs where writing happens."""
        if work.head is not None:
            self.duty.suspects.discard(work.head.letter)
        self.duty.mark_alone(work)

    def stuck(self, now: float) -> list[Work]:
        """Works that overran the timeout just now; their ctx is dead from here on."""
        timeout = self.duty.subscription.timeout
        if timeout is None:
            return []
        late = [work for work in list(self.desk.running) if not work.timed_out and now >= work.started + timeout]
        for work in late:
            work.timed_out = True
            if work.ctx is not None:
                work.ctx.kill()
            assert work.event is not None
            stuck = sig.HandlerStuck(self.duty.subscription.name, work.event.id, now - work.started)
            if not self.duty.subscription.is_async:
                self.duty.engine.signals.tell([stuck])
        return late

    def give_up(self, now: float) -> set[Work]:
        """Nobody waits any more: what has overrun and still runs is to be settled as that, what has time left is not.

        Copies of them are, since a call may return at any moment, and then puts down what came of it.
        """
        self.stuck(now)
        running, timeout = self.desk.running, self.duty.subscription.timeout
        late = [(work, running.get(work)) for work in list(running) if work.timed_out]
        lanes, calls = set[str | None](), set[Any]()
        for work, task in late:
            assert timeout is not None
            copy = replace(work, ctx=None, error=None, effects=None, outcome=None)
            if work.lane is not None and work.lane in lanes:  # of one list, which a sink was given together
                self.desk.follow(copy)
            else:
                copy.outcome, copy.echo = overran(timeout), task is not None and task in calls
                self.desk.outbox.append(copy)
            lanes.add(work.lane)
            calls.add(task)
        return {work for work, _ in late}


class _Isolate(Exception):
    """One of a group cannot be settled: roll back and settle each by itself."""


def is_ordinary(work: Work) -> bool:
    """Was it a new event, which nobody suspects, and was it applied?"""
    return work.outcome is out.APPLIED and work.head is None and not work.alone


class Group:
    """What is done and is settled together. Made where the calls were: another core would have to fetch each one."""

    __slots__ = ("asking", "positions", "works")

    def __init__(self, works: list[Work]) -> None:
        self.works = works
        self.asking = [work for work in works if work.effects is not None]
        applied = out.APPLIED
        positions = [
            work.position
            for work in works  # is_ordinary, without the call; and the last of its lane
            if work.outcome is applied and work.head is None and not (work.alone or work.chained)
        ]
        self.positions: list[int] | None = positions if len(positions) == len(works) else None  # all are ordinary


class Round:
    """What came of one hop."""

    def __init__(self) -> None:
        self.events: list[Event[Any]] = []
        self.letters: list[tuple[str | None, Head, Row | None]] = []
        self.clear()

    def clear(self) -> None:
        """Begin again: the transaction was rolled back."""
        self.bad: list[Work] = []  # whose outcome is to be forgotten after the commit
        self.reruns: list[tuple[Work, float]] = []
        self.deferred: list[Work] = []
        self.halt = ""
