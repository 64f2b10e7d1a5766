"""What became of one event: its fate in every subscription of its log, and why. Nothing here writes.

A fate is read from what the engine keeps: progress, filters, letters, skipped ranges, the audit. Events that were
applied or ignored at intake leave no row of their own, only a counter; where that cannot be told apart, it says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redrive.clock import Env
from redrive.event import emission_id
from redrive.policy.letters import OPEN
from redrive.replay.events import EventRow, find_event
from redrive.replay.holds import hold_on, told
from redrive.replay.status import is_owned
from redrive.store.filters import Asked
from redrive.store.identity import identity
from redrive.store.port import LetterRow, ProgressRow, Store, StoreTx, Subscribed

AHEAD_MAX = 1_000_000  # events counted ahead of a pending one
EMISSIONS_MAX = 100  # looked for per subscription


@dataclass(frozen=True, slots=True)
class Fate:
    """Where an event is for one subscription.

    `fate` is one of pending, retrying, waiting, dead, applied, settled, discarded, skipped, filtered, not_started.
    """

    subscription: str
    fate: str
    why: str
    at: float | None = None  # when that was written, as far as it is known
    letter: int | None = None
    lane: str | None = None
    behind: int | None = None  # the head of its lane, if it waits for another letter
    ahead: int | None = None  # how much comes before it: letters of its lane, or events of the log
    error: str | None = None
    attempts: int | None = None
    superseded: tuple[int, ...] = ()  # letters it had before progress was taken back
    emitted: tuple[tuple[str, str, int], ...] = ()  # (log, id, position) of what the subscription made of it


@dataclass(frozen=True, slots=True)
class Explained:
    """An event and its fates, by subscription."""

    event: EventRow
    fates: tuple[Fate, ...] = field(default=())


def explain(store: Store, env: Env, text: str, log: str | None = None) -> Explained:
    """The fate of the event with this id (or the only one whose id begins so), in one snapshot."""
    with store.reading() as tx:
        event = find_event(tx, text, log)
        subscriptions = [row for row in tx.progress.all() if row.source == event.log]
        return Explained(event, tuple(_Case(tx, env, event, row).fate() for row in subscriptions))


class _Case:
    """One event in one subscription."""

    def __init__(self, tx: StoreTx, env: Env, event: EventRow, row: Subscribed) -> None:
        self.tx, self.env, self.event, self.row = tx, env, event, row
        self.progress: ProgressRow = tx.progress.get(row.id)
        where = {"subscription": row.id, "position": event.position}
        found = tx.sql.value("letter_at", where)
        self.letter = None if found is None else tx.letters.get(found)
        former = tx.sql.all("letters_were_at", {**where, "event": event.id})
        self.superseded = tuple(number for (number,) in former)

    def fate(self) -> Fate:
        """The first of these that knows it."""
        if self.letter is not None:
            return self._held(self.letter) if self.letter.state in OPEN else self._closed(self.letter)
        return self._unasked() or self._skipped() or self._settled() or self._pending()

    def _fate(self, fate: str, why: str, **more: Any) -> Fate:
        return Fate(self.row.name, fate, why, superseded=self.superseded, **more)

    # ------------------------------------------------------------ letters

    def _held(self, letter: LetterRow) -> Fate:
        error = _error(letter)
        known: dict[str, Any] = {
            "letter": letter.id, "lane": letter.lane, "attempts": letter.attempts, "at": letter.touched_at,
            "error": error,
        }  # fmt: skip
        head = None if letter.lane is None else self.tx.letters.head(letter.subscription_id, letter.lane)
        now = self.env.clock.now()
        hold = hold_on(self.tx, self.row.id, letter.key, now)
        held = "" if hold is None else f"; its key is {told(hold, now)}"
        if head is not None and head.letter != letter.id:
            first = self.tx.letters.get(head.letter)
            assert first is not None
            values = {"subscription": letter.subscription_id, "lane": letter.lane, "position": letter.position}
            ahead = int(self.tx.sql.value("lane_ahead", values))
            why = (
                f"it waits in letter {letter.id} for letter {first.id}, the head of lane {letter.lane!r} "
                f"({first.state}, {_why(first)}){held}"
            )
            return self._fate("waiting", why, behind=first.id, ahead=ahead, **known)
        if letter.state == "dead":
            times = f", replayed automatically {letter.auto_replays} times" if letter.auto_replays else ""
            why = f"letter {letter.id} is dead ({_why(letter)}{times}){held}"
            return self._fate("dead", why, **known | {"at": letter.last_failed_at or letter.touched_at})
        if hold is not None:
            return self._fate("retrying", f"letter {letter.id} is not called{held}", **known)
        if letter.replaying:
            why = f"letter {letter.id} is being replayed: one attempt, then dead again"
        elif letter.attempts:
            why = f"letter {letter.id} is tried again after {_why(letter)}"
        else:
            why = f"letter {letter.id} is the head of its lane now and runs next"
        return self._fate("retrying", why + self._idle(), **known)

    def _closed(self, letter: LetterRow) -> Fate:
        known: dict[str, Any] = {
            "letter": letter.id, "lane": letter.lane, "attempts": letter.attempts, "at": letter.touched_at,
            "error": _error(letter),
        }  # fmt: skip
        if letter.state == "applied":
            how = "by a replay" if letter.resolved_by == "replay" else f"at attempt {letter.attempts}"
            why = f"applied from letter {letter.id}, {how}"
            return self._fate("applied", why, **known, emitted=self._emitted())
        how, _, by = (letter.resolved_by or "").partition(": ")
        match how:
            case "discard" | "resolve":
                verb = "discarded" if how == "discard" else "resolved (done elsewhere)"
                why = f"letter {letter.id} was {verb} by {by}: {self._reason(letter, how)}"
            case "rule":
                why = f"letter {letter.id} was discarded by the rule {by}"
            case "import":
                why = f"letter {letter.id}: {by} imported the event for another subscription, not for this one"
            case _:  # an Ignore verdict, at a retry or in a replay
                why = f"letter {letter.id}: the function said that it needs no processing"
        return self._fate("discarded", why, **known)

    def _reason(self, letter: LetterRow, action: str) -> str:
        """Why an operator did it, as the audit has it."""
        where = {"subscription": letter.subscription, "target": f"letter {letter.id}"}
        said = [row[4] for row in self.tx.sql.all("audit_of_target", where) if row[3] == action]
        return said[-1] if said else "the audit does not say why"

    # ------------------------------------------------------------ no letter

    def _unasked(self) -> Fate | None:
        filters = self.tx.progress.filters(self.row.id)
        began, asked = filters[0][0] if filters else 0, Asked(filters or [(0, [])])
        position = self.event.position
        if position <= began:
            return self._fate("not_started", f"it began above position {began}, with what came after this event")
        if not asked.wants(position, self.event.type):
            types = ", ".join(asked.at(position))
            return self._fate("filtered", f"its filter at that position asks for {types}, not {self.event.type}")
        return None

    def _skipped(self) -> Fate | None:
        position = self.event.position
        for above, upto, _, audit in self.tx.sql.all("range_all", {"subscription": self.row.id}):
            if above < position <= upto:
                found = self.tx.sql.one("audit_get", {"id": audit})
                at, who, _, reason = found or (None, "somebody", "", "the audit does not say why")
                why = f"skipped by a seek over positions {above + 1} to {upto}, by {who}: {reason}"
                return self._fate("skipped", why, at=at)
        return None

    def _settled(self) -> Fate | None:
        progress, position = self.progress, self.event.position
        above = position > progress.position
        if above and not self.tx.progress.done.has(self.row.id, position):
            return None
        known: dict[str, Any] = {"at": progress.settled_at, "emitted": self._emitted()}
        if position <= progress.started_from:
            why = f"settled before progress was set to {progress.started_from}; the ledger begins above"
            return self._fate("settled", why, emitted=known["emitted"])
        where = "ahead of the progress" if above else f"progress is at {progress.position}"
        if not progress.ignored or known["emitted"]:
            return self._fate("applied", f"applied without ever having been a letter ({where})", **known)
        others = "one event" if progress.ignored == 1 else f"{progress.ignored:,} events"
        why = f"applied, unless the function ignored it, as it did {others} ({where})"
        return self._fate("settled", why, **known)

    def _pending(self) -> Fate:
        log, position = self.tx.logs.id_of(self.row.source), self.event.position
        values = {"log": log, "above": self.progress.position, "below": position, "limit": AHEAD_MAX}
        ahead = int(self.tx.sql.value("events_between", values))
        done = self.tx.progress.done.of(self.row.id, self.progress.position)
        ahead = max(0, ahead - sum(1 for one in done if one < position))
        before = "it is the next" if not ahead else f"{ahead:,} to go before it"
        why = f"not processed yet: progress is at {self.progress.position}, {before}"
        return self._fate("pending", why + self._idle(), ahead=ahead)

    # ------------------------------------------------------------ how things are

    def _idle(self) -> str:
        """Why nothing happens, if nothing does."""
        if self.progress.paused:
            return "; the subscription is paused"
        if self.progress.halted is not None:
            return f"; the subscription is halted: {self.progress.halted}"
        return "" if is_owned(self.progress, self.env) else "; no worker runs the subscription"

    def _emitted(self) -> tuple[tuple[str, str, int], ...]:
        """Emission ids are derived: what the subscription made of this event can be looked up."""
        name, found = identity(self.tx, self.row), []
        logs = self.tx.sql.all("log_all")
        for ordinal in range(EMISSIONS_MAX):
            made = emission_id(name, self.event.id, ordinal)
            here = [
                (log, made, row[0]) for number, log in logs if (row := self.tx.sql.one("event_by_id", (number, made)))
            ]
            if not here:
                break
            found += here
        return tuple(found)


def _error(letter: LetterRow) -> str | None:
    if not letter.error_type:
        return None
    return f"{letter.error_type}: {letter.error_message}" if letter.error_message else letter.error_type


def _why(letter: LetterRow) -> str:
    """Reason and error in short."""
    kind = letter.error_type.rpartition(".")[2]
    said = f"{kind}: {letter.error_message}" if letter.error_message else kind
    return f"{letter.reason}: {said}" if said else letter.reason
