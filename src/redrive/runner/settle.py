"""Settle: write the fate of events in one transaction. The only writer of progress and letters beside replay/.

A `Settling` lives inside one `with store.transaction()`. It fences first, writes each fate, moves the
prefix last, and tells the owner's caches what happened only after the commit (`learn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from redrive.context import Emission
from redrive.errors import BugError, VersionConflict
from redrive.event import Event, NewEvent
from redrive.mirrors.port import LETTERS
from redrive.observe import signals as sig
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.action import Action
from redrive.policy.decide import Call, decided
from redrive.policy.lanes import Head
from redrive.policy.outcome import NO_FAILURE, Failure, Outcome
from redrive.policy.progress import NO_FLOOR, Plan
from redrive.policy.rules import Candidate
from redrive.runner.duty import Duty, Work, keyed
from redrive.runner.holds import HELD
from redrive.store.letters import Attempted, NewLetter, Retried
from redrive.store.port import StoreTx
from redrive.store.sql import Row


class StateConflict(VersionConflict):
    """Keyed state moved under an unordered handler: re-run on fresh state."""

    def __init__(self, subscription: str, key: str) -> None:
        super().__init__(f"state of {subscription}", key, -1, -1)


class _Put(Struct, frozen=True):
    """A change of the lanes, to be learnt after the commit."""

    lane: str | None
    head: Head | None
    grown: int
    letter: int


class _New(Struct, frozen=True):
    """A letter that is still to be written, and the event that it is for."""

    letter: NewLetter
    work: Work
    action: Action | None  # what its last attempt led to; None: it made none, or goes on
    is_head: bool


def decision(duty: Duty, work: Work, shut_for: float | None = None) -> Action:
    """What is to be done about a work's outcome; `shut_for`: its failure left its key's breaker open for so long."""
    event, env = work.event, duty.engine.env
    assert work.outcome is not None and event is not None
    if isinstance(work.outcome, out.Applied):
        return act.COMMIT
    if work.outcome is HELD:
        return duty.holds.letter(work.key)
    policy, replay = duty.subscription.policy, work.head is not None and bool(work.head.replaying)
    letter = Candidate(duty.subscription.name, event) if policy.letters else None
    now, dice = env.clock.now(), env.dice.random()
    return decided(work.outcome, Call(work.attempt, policy, now, dice, event.type, replay, letter, shut_for))


class Settling:
    """The fates of a batch, being written."""

    def __init__(
        self, tx: StoreTx, duty: Duty, *, gathers: bool = False, strict: bool = False, believes: bool = False
    ) -> None:
        """`strict`: constraints that are checked at the end are looked at after each event's statements.

        `believes`: the fence's answer is not waited for; the server ends the transaction if it is not as we know it.
        `gathers`: new letters, letters that failed again, and all histories are written together at the end.
        For who undoes an attempt's effects before its fate is written: no savepoint may be undone after that.
        """
        self.tx, self.duty = tx, duty
        self.now = duty.engine.env.clock.now()
        known, at = (duty.parked_version, 0, duty.quiet_until), (duty.member, duty.epoch, duty.window.position)
        row = tx.progress.fence(*at, known) if believes else tx.progress.fence(*at)
        self.fresh_version = row[0]
        self.stale = row[0] != duty.parked_version  # an operator was here: the cached lanes are old
        self.paused, self.quiet_until = bool(row[1]), row[2]
        self.settled: set[int] = set()
        self.applied = self.ignored = self.followers = self.buried = 0
        self.signals: list[sig.Signal] = []
        self.logs: set[str] = set()
        self.failed: list[tuple[Event[Any], BaseException]] = []  # for the hook, if there is one
        self._has_hook = duty.subscription.on_error is not None
        self._gathers = gathers
        self._run = tx.strict(run_statements) if strict else run_statements
        if tx.is_careful:
            self._run = tx.checked(self._run)
        self._new: list[_New] = []
        self._retries: list[tuple[Work, Action, Head]] = []
        self._attempts: list[Attempted] = []
        self._puts: list[_Put] = []
        self._grown: dict[str, int] = {}
        self.states: list[tuple[str, tuple[int, bytes]]] = []
        self._saves: list[tuple[str, int, bytes, int]] = []
        self._emissions: dict[str, list[NewEvent]] = {}
        self._last: Event[Any] | None = None
        self._plan: Plan | None = None

    # ------------------------------------------------------------ fates

    def commit(self, work: Work) -> bool:
        """The function applied the event. False: an operator settled the letter first, drop the effects."""
        if work.earlier:
            self._become_letter(work)
        if work.head is not None and not self._end_letter(work, work.head, "applied", "retry"):
            return False
        if work.head is None:
            self.applied += 1
            self._take(work)
        if work.alone:
            self.tx.keyed.ran(self.duty.member, work.position)
        return True

    def commit_events(self, count: int, last: Event[Any] | None) -> None:
        """A projection applied so many events in order, this one last."""
        self.applied += count
        self._last = last or self._last

    def commit_works(self, works: Sequence[Work], positions: Sequence[int]) -> None:
        """Handlers applied these at intake, and these are their positions."""
        if works:
            self.applied += len(works)
            self.settled.update(positions)
            highest = max(positions)
            if self._last is None or highest > self._last.position:
                self._last = works[positions.index(highest)].event

    def lose(self, work: Work) -> None:
        """An operator was faster: the effects are rolled back, the outcome stays in the history."""
        assert work.head is not None
        if work.effects is not None and work.effects.state is not None:
            self.states.pop()
        if work.alone:
            self.tx.keyed.ran(self.duty.member, work.position)
        self._history(work.head.letter, work.attempt, "lost to an operator", NO_FAILURE)

    def write(self, work: Work, action: Action) -> bool:
        """Any fate but `Rerun`, `Defer` and `Halt`, which write nothing."""
        if isinstance(action, act.Commit):
            return self.commit(work)
        if work.alone or (work.outcome is HELD and self.duty.charges):  # what is held does not run
            self.tx.keyed.ran(self.duty.member, work.position)
        written = self._intake(work, action) if work.head is None else self._retry(work, action, work.head)
        if self._has_hook and (error := out.error_in(work.outcome)) is not None:
            assert work.event is not None
            self.failed.append((work.event, error))
        return written

    def follow(self, work: Work) -> None:
        """Queue an event behind the head of its lane, by reference."""
        event = work.event
        assert event is not None and work.lane is not None
        self.followers += 1
        self._take(work)
        if work.alone:  # it queues instead of running: a death from here on is not its own
            self.tx.keyed.ran(self.duty.member, work.position)
        parked = self.duty.lanes.parked(work.lane) or work.lane in self._grown
        if parked:
            self._grown[work.lane] = self._grown.get(work.lane, 0) + 1
        # Else its head was settled meanwhile: it is the head itself.
        letter = NewLetter(_held(work), work.lane, "retrying", due_at=self.now)
        self._hold(_New(letter, work, None, is_head=not parked))

    def _intake(self, work: Work, action: Action) -> bool:
        event = work.event
        assert event is not None
        if isinstance(action, act.Ignore):
            if work.earlier:
                return self._end_letter(work, self._become_letter(work), "discarded", "ignore verdict")
            self.ignored += 1
            self._take(work)
            return True
        letter = self._letter_of(work, _attempts(work, action), action, work.outcome)
        self._hold(_New(letter, work, action, is_head=letter.state != "discarded"))
        return True

    def _letter_of(self, work: Work, attempt: int, action: Action, last: Outcome | None) -> NewLetter:
        """A letter for an event that is taken in, after the attempts before this one that did not have to wait."""
        assert work.event is not None
        self._take(work)
        for tried in work.earlier if self._has_hook else ():
            if isinstance(tried.outcome, out.Failed):
                self.failed.append((work.event, tried.outcome.error))
        state, change, failure = _fate(action)
        reason, due_at, delay = change["reason"], change.get("due_at", 0.0), change.get("delay", 0.0)
        resolved_by, blamed = change.get("resolved_by"), self.duty.subscription.blamed(last)
        # By place, not by name: a burst of failures makes many, and it takes a third of the time.
        return NewLetter(_held(work), work.lane, state, reason, failure, attempt, due_at, delay, resolved_by, blamed)

    def _become_letter(self, work: Work) -> Head:
        """Attempts at intake failed, the next one ended it: it was a letter for that moment, and is kept as one."""
        last = work.earlier[-1]
        letter = self._letter_of(work, last.attempt, last.action, last.outcome)
        self._new.append(_New(letter, work, None, is_head=False))
        work.head = self._head_of(letter, self._write_new()[-1])
        return work.head

    def _hold(self, new: _New) -> None:
        if new.is_head and new.work.lane is not None:
            self._grown.setdefault(new.work.lane, 0)
        self._new.append(new)
        if not self._gathers:
            self._write_new()

    def _write_new(self) -> list[int]:
        """The letters that are still to be written, their histories, and what is to be told of them; their numbers."""
        new, self._new = self._new, []
        numbers = self.tx.letters.add(self.duty.id, [one.letter for one in new], self.now)
        for number, one in zip(numbers, new, strict=True):
            letter, work, action = one.letter, one.work, one.action
            for tried in work.earlier:
                self._history(number, tried.attempt, act.FAILING, tried.action.failure)
                self._tell(number, work, tried.attempt, tried.action, tried.action.failure)
            if isinstance(action, act.Park) and action.reason != act.FAILING:  # it was not called
                self.followers += 1
            elif action is not None:
                self._learn_failure(number, work, action)
            if one.is_head:
                waits = letter.lane is not None or letter.state == "retrying"
                self._puts.append(_Put(letter.lane, self._head_of(letter, number) if waits else None, 1, number))
        return numbers

    def _head_of(self, letter: NewLetter, number: int) -> Head:
        position, due_at, edits = letter.event[0], letter.due_at, self._edits(letter.event[0])
        return Head(position, number, letter.state, due_at, self.now, letter.delay, 0, letter.attempts, 0, edits)

    def _write_gathered(self) -> None:
        """A statement for many letters. An operator was faster with one of them? Then each by itself, to see which."""
        retries, letters = self._retries, self.tx.letters
        if self._new:
            self._write_new()
        if retries:
            fates = [_retry_fate(self.duty, *retry) for retry in retries]
            self.tx.savepoint()
            together = letters.retry(fates, self.now)
            if not together:
                self.tx.undo()
            self.tx.keep()
            for retry, fate in zip(retries, fates, strict=True):
                self._learn_retry(*retry, found=together or letters.retry([fate], self.now))
        if self._attempts:
            self._log_attempts(self._attempts)

    def _retry(self, work: Work, action: Action, head: Head) -> bool:
        if isinstance(action, act.Ignore):
            return self._end_letter(work, head, "discarded", "ignore verdict")
        if self._gathers and not isinstance(action, act.Discard):
            self._retries.append((work, action, head))
            return True
        found = self.tx.letters.retry([_retry_fate(self.duty, work, action, head)], self.now)
        return self._learn_retry(work, action, head, found=found)

    def _learn_retry(self, work: Work, action: Action, head: Head, *, found: bool) -> bool:
        """The attempt of a letter failed, which is written if it was `found`: history, signals, lanes."""
        state, change, failure = _fate(action)
        if not found:
            self._history(head.letter, work.attempt, "lost to an operator", failure)
            return False
        self._learn_failure(head.letter, work, action)
        if state == "discarded":
            self._next_head(work)
        else:
            due_at, delay = change.get("due_at", 0.0), change.get("delay", 0.0)
            new = head._replace(
                state=state, due_at=due_at, due_set_at=self.now, delay=delay, rev=head.rev + 1,
                attempts=_attempts(work, action), replaying=0,
            )  # fmt: skip
            self._puts.append(_Put(work.lane, new, 0, head.letter))
        return True

    def _learn_failure(self, letter: int, work: Work, action: Action) -> None:
        """The histories are of attempts: one that was not spent is told of, and leaves nothing that grows."""
        _, change, failure = _fate(action)
        if not isinstance(action, act.Park) or action.spent:
            self._history(letter, work.attempt, change["reason"], failure)
        self._tell(letter, work, work.attempt, action, failure)

    def _end_letter(self, work: Work, head: Head, state: str, how: str) -> bool:
        assert work.event is not None
        resolved_by = "replay" if head.replaying else how
        found = self.tx.letters.settle(head, state, work.attempt, self.now, resolved_by)
        self._history(head.letter, work.attempt, state if found else "lost to an operator", NO_FAILURE)
        if found:
            self._next_head(work)
            replayed = bool(head.replaying)
            name = self.duty.subscription.name
            self.signals.append(sig.Recovered(name, work.event.id, head.letter, work.attempt, replayed))
        return found

    @property
    def parking(self) -> dict[str, int]:
        """Lanes that got a head in this transaction, or grew."""
        return self._grown

    # ------------------------------------------------------------ effects

    def effects(self, work: Work, *, together: bool) -> None:
        """What a handler asked of ctx. Raises what the user's SQL raises; the caller isolates it.

        `together`: emissions and states are written with those of the whole group, at the end.
        """
        effects = work.effects
        if effects is None:
            return
        if effects.statements:
            self._run(effects.statements, self.tx)
        for emission in effects.emissions:
            if together and emission.event.expected_version is None:
                self._queue_emission(work, emission)
            else:
                assert work.event is not None
                self.emit(work.event, emission)
        if effects.state is not None:
            key, version, data = effects.state
            if together:
                self._saves.append((key, version, data, work.position))
            elif not keyed(self.duty, self.tx).save(self.duty.id, key, version, data, work.position):
                if self.duty.subscription.order == "none":
                    raise StateConflict(self.duty.subscription.name, key)
                raise BugError(f"{self.duty.subscription.name}: state of key {key!r} moved inside its lane")
            self.states.append((key, (work.position, data) if data else (0, b"")))

    def emit(self, event: Event[Any], emission: Emission) -> None:
        """Append with a derived id, unless a rebuild passes over what was emitted long ago."""
        if not self.is_quiet(event):
            self.tx.logs.append(emission.log, [emission.event])
            self.logs.add(emission.log)

    def is_quiet(self, event: Event[Any]) -> bool:
        """Were this event's emissions made before a rebuild? Those of a letter that was open then were not."""
        return event.position <= self.quiet_until and self.duty.heard.has(event.position, event.type)

    def _queue_emission(self, work: Work, emission: Emission) -> None:
        if not (self.quiet_until and work.event is not None and self.is_quiet(work.event)):
            if (queued := self._emissions.get(emission.log)) is None:
                queued = self._emissions[emission.log] = []
            queued.append(emission.event)

    def write_together(self) -> bool:
        """Write what was queued; False if a keyed state moved, and each must be settled by itself."""
        for log, events in self._emissions.items():
            self.tx.logs.append_derived(log, events)
            self.logs.add(log)
        return not self._saves or keyed(self.duty, self.tx).save_all(self.duty.id, self._saves)

    # ------------------------------------------------------------ the end

    def finish(self, upto: int | None = None, settled: Iterable[int] = ()) -> None:
        """Move the prefix and the counters; the last writes of the transaction.

        `upto`: a projection has settled everything up to here, which was `settled` now or before.
        """
        self._write_gathered()
        duty, window, progress = self.duty, self.duty.window, self.tx.progress
        others = NO_FLOOR
        if duty.share.partitions > 1:  # how far the slowest of the others is
            others = min(row.position for row in progress.members(duty.id) if row.member != duty.member)
        plan = window.plan(self.settled, others) if upto is None else window.pass_to(upto, settled, others)
        self._plan = plan
        if plan.add or plan.pruned or (upto is None and plan.prefix != window.position):
            progress.done.move(duty.member, plan.add, plan.floor, plan.pruned)
        last = self._last
        anchor = None
        if plan.prefix != self.duty.window.position:
            same = last is not None and last.position == plan.prefix
            anchor = last.id if same and last else self.tx.logs.anchor(self.duty.log_id, plan.prefix)
        change = {
            "member": duty.member, "epoch": duty.epoch, "position": plan.prefix, "anchor": anchor,
            "applied": self.applied, "ignored": self.ignored, "now": self.now,
            "last_type": last.type if last else None, "last_time_us": last.time_us if last else None,
        }  # fmt: skip
        progress.advance(change)

    def learn(self, seconds: float) -> None:
        """The commit is known: the caches may change now."""
        assert self._plan is not None
        duty = self.duty
        duty.window.commit(self._plan)
        duty.settled_at = self.now
        duty.paused = self.paused
        for key, state in self.states:
            duty.remember_state(key, state)
        for put in self._puts:
            if put.lane is None and (put.head is None or put.head.state != "retrying"):
                duty.lanes.drop_loose(put.letter)
            else:
                duty.lanes.put(put.lane, put.head, put.grown)
        for lane, grown in self._grown.items():
            duty.lanes.grow(lane, grown)
        if self.applied or self.ignored:
            settled = sig.Settled(duty.subscription.name, self.applied, self.ignored, self._plan.prefix, seconds)
            self.signals.append(settled)
        if self.followers:
            self.signals.append(sig.Parked(duty.subscription.name, self.followers))
        for log in self.logs | ({LETTERS} if self._puts or self.followers else set()):
            duty.engine.appended(log)

    # ------------------------------------------------------------ bookkeeping

    def _take(self, work: Work) -> None:
        self.settled.add(work.position)
        if self._last is None or work.position > self._last.position:
            self._last = work.event

    def _next_head(self, work: Work) -> None:
        head = work.head
        assert head is not None
        follower = None if work.lane is None else self.duty.head(self.tx, work.lane, self.now)
        self._puts.append(_Put(work.lane, follower, -1, head.letter))

    def _edits(self, position: int) -> int:
        """An event that was edited before a rebuild comes round with its edit; so does its new letter."""
        return self.duty.edits[position][0] if self.duty.edits and position in self.duty.edits else 0

    def _history(self, letter: int, attempt: int, outcome: str, failure: Failure) -> None:
        if self._gathers:
            self._attempts.append((letter, attempt, outcome, failure))
        else:
            self._log_attempts([(letter, attempt, outcome, failure)])

    def _log_attempts(self, attempts: list[Attempted]) -> None:
        self.tx.letters.log_attempts(attempts, self.now, self.duty.engine.worker)

    def _tell(self, letter: int, work: Work, attempt: int, action: Action, failure: Failure) -> None:
        event, name = work.event, self.duty.subscription.name
        assert event is not None
        kind, message, cause = failure.error_type, failure.message, failure.fingerprint
        common = name, event.id, event.type, event.position, letter, attempt, kind, message, cause
        if isinstance(action, act.Park):
            self.signals.append(sig.Retried(*common, action.delay))
        elif isinstance(action, act.Bury):
            self.buried += 1
            self.signals.append(sig.Buried(*common, action.reason))
            if action.broken_rule:
                self.signals.append(sig.RuleBroken(name, action.broken_rule))
        elif isinstance(action, act.Discard):
            details = {"event": event.id, "position": event.position, "reason": action.reason, "rule": action.rule}
            self.tx.books.audit(self.now, "rule", "discard", name, f"letter {letter}", action.rule, details)
            self.signals.append(sig.Discarded(*common, action.rule))


def tell(*settlings: Settling) -> None:
    """Listeners hear of what one duty committed; of a dead letter only when it survives a power cut."""
    duty = settlings[0].duty
    signals, hook = duty.engine.signals, duty.subscription.on_error
    signals.tell([signal for settling in settlings for signal in settling.signals])
    if hook is not None:
        for event, error in (failed for settling in settlings for failed in settling.failed):
            signals.call(hook, event, error)


def run_statements(statements: Iterable[tuple[str, Any]], tx: StoreTx) -> None:
    """What a handler asked to be executed."""
    tx.points.begin()
    for sql, parameters in statements:
        tx.execute(sql, parameters)


def _held(work: Work) -> Row:
    """What a letter says of its event."""
    event = work.event
    assert event is not None
    return event.position, event.id, event.type, work.key


def _retry_fate(duty: Duty, work: Work, action: Action, head: Head) -> Retried:
    """What a failed attempt changes in its letter."""
    state, change, failure = _fate(action)
    blamed = duty.subscription.blamed(work.outcome)
    return head, state, {**change, "attempts": _attempts(work, action), "dependency": blamed}, failure


def _attempts(work: Work, action: Action) -> int:
    """How many its letter has made; what was not called, or not charged for it, has made one less."""
    return work.attempt - (isinstance(action, act.Park) and not action.spent)


def _fate(action: Action) -> tuple[str, dict[str, Any], Failure]:
    """The letter's state and fields that an action means."""
    if isinstance(action, act.Bury):  # not `match`, which asks the class for its fields each time
        return "dead", {"reason": action.reason}, action.failure
    if isinstance(action, act.Park):
        return "retrying", {"reason": action.reason, "due_at": action.due_at, "delay": action.delay}, action.failure
    if isinstance(action, act.Discard):
        return "discarded", {"reason": action.reason, "resolved_by": f"rule: {action.rule}"}, action.failure
    raise BugError(f"{action!r} cannot be written")
