"""Duty: what the owner of a subscription knows while its lease lasts.

Loaded in the transaction that bumped the epoch, changed only after commits, thrown away with the
lease. Nothing in here is the truth; the store is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from redrive.clock import Env
from redrive.context import Effects, Emitter
from redrive.errors import BadKey, Fenced, Halted, StoreError
from redrive.event import Event, from_row
from redrive.failpoints import hit
from redrive.observe.signals import Signals
from redrive.policy.action import Park
from redrive.policy.lanes import Head, Lanes, rebased
from redrive.policy.lease import Lease, is_crash
from redrive.policy.losses import Verdict
from redrive.policy.outcome import Crashed, Outcome, Unkeyed
from redrive.policy.partitions import Share
from redrive.policy.progress import Window
from redrive.runner.alone import Alone, NotAlone
from redrive.runner.call import describe, find_key
from redrive.runner.handed import Handed
from redrive.runner.holds import KeyHolds
from redrive.runner.losses import Losses, charge
from redrive.runner.open_letters import DELAY_MAX, catch_up
from redrive.runner.standing import Standing
from redrive.settings import Settings
from redrive.store.heard import Heard, heard_of
from redrive.store.identity import identity
from redrive.store.keyed import Keyed
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import member_of, member_row
from redrive.store.scheduled import is_scheduled
from redrive.store.sql import Row
from redrive.store.states import Keeper, Owner
from redrive.subscription import Subscription
from redrive.types import EventTypes

JOINED_MAX = 16  # events that are applied in the transaction in which they land: nobody looks at the time meanwhile
STATES_MAX = 10_000  # keyed states kept in memory; others are read when needed


@dataclass(frozen=True, slots=True)
class Engine:
    """What all duties of one process share."""

    store: Any  # the store, its port and `append`
    env: Env
    settings: Settings
    types: EventTypes
    signals: Signals
    deps: Callable[[], Any]
    request_stop: Callable[[str], None]
    appended: Callable[[str], None]  # wake whoever reads this log
    worker: str
    handed: Handed = field(default_factory=Handed)
    losses: Losses = field(default_factory=Losses)
    crashed: set[int] = field(default_factory=set)  # members whose former owner died and whose letters are not read yet
    standing: Standing = field(default_factory=Standing)
    alone: Alone = field(default_factory=Alone)


class Tried(msgspec.Struct, frozen=True):
    """An attempt that failed and was followed by the next at once."""

    attempt: int
    action: Park
    outcome: Outcome


class Work(msgspec.Struct, eq=False):
    """One event on its way through one attempt. A Struct, because one is made per event."""

    event: Event[Any] | None
    position: int
    key: str | None
    lane: str | None
    head: Head | None  # the letter, if it is one
    attempt: int = 1
    reruns: int = 0
    outcome: Outcome | None = None
    effects: Effects | None = None
    ctx: Any = None
    error: BaseException | None = None  # what the call raised, until it is an outcome
    started: float = 0.0
    timed_out: bool = False
    follow: bool = False  # queue behind the head of the lane
    chained: bool = False  # one of several followers; the last one frees the lane
    alone: bool = False  # runs behind an in-flight mark
    probe: bool = False  # let through a breaker that is probing
    echo: bool = False  # it failed of the same call as another of its list, which speaks for it
    earlier: tuple[Tried, ...] = ()  # attempts of the same transaction: failed, and the next was not to wait


class Fresh(Work, eq=False, gc=False):
    """A work of which thousands are in memory, nearly all of them about to be applied: the collector passes it over.

    An error refers to our frames, and these to their works: who is done with a work that failed forgets its outcome.
    """


class Duty:
    """One partition of a subscription, owned; most have just one."""

    def __init__(
        self, engine: Engine, subscription: Subscription, row: Subscribed, epoch: int, partition: int = 0
    ) -> None:
        self.engine, self.subscription, self.id, self.epoch = engine, subscription, row.id, epoch
        self.row, self.share = row, Share(partition, subscription.partitions)
        self.member = member_of(row.id, partition)
        self.emitter = Emitter(subscription.name, engine.types, engine.env, subscription.outboxes, subscription.runtime)
        self.window = Window(0)
        self.lanes = Lanes()
        self.holds = KeyHolds(row.id, engine.env.clock, are_lanes=subscription.order == "key")
        self.log_id = self.parked_version = self.quiet_until = self.horizon = 0
        self.looks = 0  # how often letters were read because somebody else changed them
        self.known_versions: deque[int] = deque()  # what we knew at the last renewals, the oldest first
        self.unsure = 0  # so many events that are still to land may have been in flight when a process died
        self.paused = self.durable = False
        self.reserved = False  # is the subscription reserved for this process, which rebuilds it?
        self.loss = Verdict.EXCUSE  # what the connection that was lost before this take-over meant
        self.suspects: set[int] = set()
        self.charges: dict[int, tuple[int, int]] = {}  # by position; the second: for lost connections
        self.edits: dict[int, tuple[int, bytes]] = {}
        self.settled_at: float | None = None  # when we last did, as the store has it
        self.states: dict[str, tuple[int, bytes]] = {}
        self.keeper: Keeper | None = None  # of state that is not in the store
        self.heard = Heard()  # whom a rebuild silences
        self.controls = False
        self.moved: dict[int, Work] = {}  # by position: what a rebuild will meet, with an edit that changes its key
        # By position: calls that have ended the transaction, and what they raised and where, until it is committed.
        # None: another attempt in the same transaction has.
        self.ended: dict[int, tuple[BaseException, TracebackType | None] | None] = {}
        self.left_behind = False  # does a function still run that a stop has not waited for?

    @property
    def name(self) -> str:
        """What idempotency keys are made of."""
        return self.emitter.identity

    @property
    def deps(self) -> Any:
        """What the app's lifespan yielded."""
        return self.engine.deps()

    def load(self, tx: StoreTx, former: Lease) -> None:
        """All but the open letters, in the transaction that made us the owner; these follow: `open_letters.load`."""
        env = self.engine.env
        row = tx.progress.member(self.member)
        self.log_id = tx.logs.id_of(self.subscription.source)
        self.engine.handed.forget(self.subscription.source)
        one = self.subscription
        self.emitter = Emitter(identity(tx, self.row), self.engine.types, env, one.outboxes, one.runtime)
        self._check_anchor(tx, row.position, row.anchor)
        done = tx.progress.done.all(self.member)
        elsewhere = set(tx.progress.done.of(self.id, row.position)) - set(done) if self.share.partitions > 1 else ()
        self.window = Window(row.position, done, elsewhere)
        self.settled_at = row.settled_at
        self.paused, self.quiet_until = bool(row.paused), row.quiet_until
        edits = tx.sql.all("edits_latest", {"subscription": self.id, "above": row.position})
        self.edits = {position: (rev, data) for position, rev, data in edits}
        self.moved = self._find_moved(tx, row.position) if one.key_by is not None else {}
        if self.quiet_until:
            self.heard = heard_of(tx, self.id)
        self.loss = charge(self, tx, is_ours=former.owner == env.owner)
        if is_crash(former, env.boot) and former.owner != env.owner:
            self.engine.crashed.add(self.member)
        if self.is_after_crash:
            self.horizon = self._find_horizon(tx, row.position, [one for one in done if one > row.position])
            self.unsure = JOINED_MAX if self._is_landed_in(tx) else 0
        if self.subscription.state is not None:
            self.keeper = self.subscription.state.open(tx, Owner(self.id, self.subscription.name, self.epoch))

    @property
    def is_after_crash(self) -> bool:
        """Did the former owner die, or is an event charged with a death?"""
        return self.member in self.engine.crashed or bool(self.charges)

    def _find_moved(self, tx: StoreTx, position: int) -> dict[int, Work]:
        """Edits of what comes round again, by who did not know the key function: as `check_edit` for letters."""
        moved = {}
        for at in (one for one in self.edits if one > position):
            rows = tx.logs.after(self.log_id, at - 1, 1)
            if not rows or rows[0][0] != at:
                continue
            was, now = self.work(from_row(rows[0], self.engine.types)), self.work(self.event(rows[0]))
            if was.lane is not None and was.lane != now.lane:
                was.event, was.outcome = now.event, now.outcome or _changes_key(was.lane, now.key)
                moved[at] = was
        return moved

    def _is_landed_in(self, tx: StoreTx) -> bool:
        """Does a broker's log grow in the transactions in which its events are applied?"""
        intake = tx.progress.find(self.subscription.source) if self.subscription.kind == "projection" else None
        return intake is not None and intake.kind == "intake" and not tx.sql.is_far

    def _find_horizon(self, tx: StoreTx, position: int, done: list[int]) -> int:
        """In flight was at most one window of our events above the highest that was settled; 0: nothing was."""
        settings, projects = self.engine.settings, self.subscription.kind == "projection"
        limit = left = settings.batch_max if projects else settings.window_max
        horizon, cursor = max(done, default=0), max([position, *done])
        while left > 0:
            rows = tx.sql.all("marks_after", (self.log_id, cursor, limit))  # without their data: it may be large
            mine = [at for at, id, key in rows if self.share.has_event(id, key)][:left]
            horizon = mine[-1] if mine else horizon
            left -= limit if projects else len(mine)
            if len(rows) < limit:
                break
            cursor = rows[-1][0]
        return horizon

    def head(self, tx: StoreTx, lane: str, now: float) -> Head | None:
        """The head of a lane, as the store has it in this transaction."""
        found = tx.letters.head(self.id, lane)
        return None if found is None else rebased(found, now, DELAY_MAX)

    def refresh(self, tx: StoreTx, found: Iterable[Row] | None = None) -> None:
        """Look whether we still own it, and whether an operator was here. A hint: settling checks again.

        `found`: our row, which was asked for already.
        """
        row = tx.progress.member(self.member) if found is None else member_row(self.member, found)
        if row.epoch != self.epoch:
            raise Fenced(f"{self.subscription.name}: epoch {self.epoch} is over, {row.epoch} rules")
        # A standby that was promoted without our last commits has the same epoch, and its events get positions that we
        # believe to have passed: to notice when settling would be too late, there might be nothing to settle.
        if (row.position, row.settled_at) != (self.window.position, self.settled_at):
            raise Fenced(f"{self.subscription.name}: the store does not know what we settled last; looking again")
        self.paused = bool(row.paused)
        if row.parked_version != self.parked_version:
            catch_up(self, tx, row.parked_version)
        elif self.holds:
            self.holds.drop_ended()

    @property
    def is_careful(self) -> bool:
        """Does something run alone, behind a mark that charges it for a death?"""
        return bool(self.horizon or self.suspects or self.charges or self.unsure)

    def needs_care(self, work: Work) -> bool:
        """After a crash, what may have caused it runs alone."""
        if work.head is None:
            return work.position <= self.horizon
        return work.head.letter in self.suspects

    def work(self, event: Event[Any]) -> Work:
        """An event as work; one without a usable key goes to a lane of its own, its fate known."""
        subscription = self.subscription
        if self.moved and (was := self.moved.get(event.position)) is not None and _is_as_edited(was, event):
            work = Work(event, event.position, was.key, was.lane, None)
            work.outcome = was.outcome
            return work
        key, outcome = find_key(subscription.key_of, event)
        if outcome is not None:
            work = Work(event, event.position, event.key, None, None)
            work.outcome = outcome
            return work
        return Work(event, event.position, key, subscription.lane_of(key), None)

    def mark_alone(self, work: Work) -> None:
        """Leave a mark before an event that may have killed the process; too many marks are its outcome."""
        if not self.engine.alone.take(self):
            raise NotAlone
        charges, lost = self.charges.get(work.position, (0, 0))
        work.alone = True
        if charges >= self.engine.settings.crash_charges_max:
            work.outcome = Crashed(charges, lost)
            return
        # Not durable: what only a power cut can take away is not charged after one, either. But an event that crashes
        # the server takes away such a mark, too.
        durable = self.engine.losses.has(self.member) or any(lost for _, lost in self.charges.values())
        with self.engine.store.transaction(durable=durable) as tx:
            fence(self, tx)
            tx.keyed.run_alone(self.member, work.position, self.engine.env.boot)
            hit("alone.before_commit")

    def load_state(self, key: str) -> tuple[int, bytes]:
        """Keyed state as last committed; the owner is its only writer."""
        found = self.states.get(key)
        if found is None:
            if self.keeper is not None:
                try:
                    found = self.keeper.load(key)
                except StoreError as error:  # it keeps what belongs to this store
                    error.of(self.engine.store)
                    raise
            else:
                with self.engine.store.reading() as tx:
                    found = tx.keyed.get(self.id, key)
            self.remember_state(key, found)
        return found

    def is_scheduled(self, log: str, id: str) -> bool:
        """Does this event wait for its time? Settling looks again."""
        with self.engine.store.reading() as tx:
            return is_scheduled(tx.sql, log, id)

    def remember_state(self, key: str, state: tuple[int, bytes]) -> None:
        """Keep a committed state in memory."""
        if len(self.states) >= STATES_MAX and key not in self.states:
            self.states.pop(next(iter(self.states)))
        self.states[key] = state

    def edited(self, events: list[Event[Any]]) -> list[Event[Any]]:
        """These events, each with its latest edit."""
        return [edited(self, event) for event in events] if self.edits else events

    def event(self, row: Any) -> Event[Any]:
        """The event of a row."""
        return edited(self, from_row(row, self.engine.types))

    def _check_anchor(self, tx: StoreTx, position: int, anchor: str | None) -> None:
        """Is this the log whose events we settled? A restored backup reuses positions."""
        if position == 0 or anchor is None:
            return
        found = tx.logs.anchor(self.log_id, position)
        if found != anchor:
            name = self.subscription.name
            seek = f", or `redrive seek {name} now` to go on with what comes next"
            raise Halted(
                f"{name}: progress {position} refers to event {anchor}, but log {self.subscription.source!r} has "
                f"{found or 'nothing'} there: was a backup restored in part? Bring back what is newer, or run "
                f"`redrive rebuild {name}` to start over{seek if self.subscription.kind == 'handler' else ''}"
            )


def edited(duty: Duty, event: Event[Any]) -> Event[Any]:
    """The event with the latest edit of its data, if a rebuild meets one again."""
    if duty.edits and event.position in duty.edits:
        revision, data = duty.edits[event.position]
        return event.with_data(data, revision)
    return event


def check_edit(duty: Duty, work: Work) -> None:
    """Whoever edited a letter may not have known the key function: what would be another key's now is not called."""
    if work.head is None or not work.head.edits or work.lane is None or work.outcome is not None:
        return
    if duty.subscription.lane_of(work.key) != work.lane:
        work.outcome = _changes_key(work.lane, work.key)


def _is_as_edited(was: Work, event: Event[Any]) -> bool:
    """Or has it become a letter meanwhile, and been edited once more?"""
    return was.event is not None and was.event.data_raw == event.data_raw


def _changes_key(lane: str, key: str | None) -> Unkeyed:
    bad = BadKey(
        f"its edit changes its key from {lane!r} to {key!r}, which an edit cannot do: edit it once more, "
        "or append it anew"
    )
    return Unkeyed(describe(bad))


def keyed(duty: Duty, tx: StoreTx) -> Keyed | Keeper:
    """Where keyed state is saved."""
    return tx.keyed if duty.keeper is None else duty.keeper


def fence(duty: Duty, tx: StoreTx) -> None:
    """Go on only as the owner: whoever lost its lease writes nothing at all."""
    tx.progress.fence(duty.member, duty.epoch, duty.window.position)
