"""The subscription desk: pause, resume, rename, seek, accept a wider filter, move letters to other lanes.

Each deed is one transaction that begins with the subscription's row and ends with the audit. Those that would
pull the ground from under a running owner bump the epoch: it can commit nothing more and looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from redrive.errors import EventError, UsageError
from redrive.event import check_type, from_row
from redrive.replay.deed import Operator, find, need_reason
from redrive.replay.letters import KeyOf
from redrive.replay.rewind import ranges, take_back
from redrive.store.filters import Asked, change_filter
from redrive.store.identity import keep_identity
from redrive.store.port import ProgressRow, StoreTx, Subscribed
from redrive.subscription import TOTAL_LANE, Subscription
from redrive.types import EventTypes


@dataclass(frozen=True, slots=True)
class Sought:
    """What a seek did."""

    subscription: str
    was: int
    position: int
    superseded: int  # letters whose events come round again
    discarded: int  # events given up on the way forward


class SubscriptionDesk:
    """Everything an operator can do to a subscription as a whole."""

    def __init__(
        self, operator: Operator, declared: Mapping[str, Subscription] | None = None, types: EventTypes | None = None
    ) -> None:
        self._operator = operator
        self._declared = declared or {}
        self._types = types or EventTypes()

    def pause(self, name: str, reason: str = "") -> None:
        """Take nothing in and retry nothing until `resume`; survives restarts."""
        self._switch(name, "pause", reason, paused=1)

    def resume(self, name: str, reason: str = "") -> None:
        """Undo `pause`."""
        self._switch(name, "resume", reason, paused=0)

    def rename(self, old: str, new: str, reason: str = "") -> None:
        """Give a subscription the name that its function has now; progress, letters and idempotency keys stay."""
        check_type(new)
        with self._acting(old) as (tx, row):
            if tx.progress.find(new) is not None:
                raise UsageError(f"there is a subscription {new!r} already; it has its own progress")
            keep_identity(tx, row)
            tx.sql.run("subscription_rename", {"old": old, "new": new})
            self._operator.audit(tx, "rename", new, old, reason, {"old": old, "new": new})
        self._operator.tell("rename", new, old)

    def accept_from_now(self, name: str, reason: str, types: Sequence[str] | None = None) -> int:
        """Ask for these types (those declared) from the present position on; what lies below it stays unasked."""
        need_reason("accept-from-now", reason)
        types = self._declaration(name).types if types is None else types
        with self._acting(name) as (tx, row):
            former = tx.progress.filters(row.id)[-1][1]
            position = change_filter(tx, row, sorted(types))
            details = {"former": former, "types": sorted(types)}
            self._operator.audit(tx, "accept-from-now", name, f"position {position}", reason, details)
        self._operator.tell("accept-from-now", name, f"position {position}")
        return position

    def rekey(self, name: str, reason: str, key_of: KeyOf | None = None) -> int:
        """Move the open letters to the lanes that this key function (the one declared) says; how many moved."""
        need_reason("rekey", reason)
        key_of = self._declaration(name).key_of if key_of is None else key_of
        with self._acting(name) as (tx, row):
            now, moved = self._operator.now(), 0
            for letter, _, lane, key, *_ in tx.sql.all("open_letters", {"subscription": row.id}):
                new_key, new_lane = self._lane(tx, row, letter, key_of)
                if (new_key, new_lane) != (key, lane):
                    tx.sql.run("letter_rekey", {"id": letter, "lane": new_lane, "key": new_key, "now": now})
                    moved += 1
            tx.sql.run("epoch_bump", {"subscription": row.id})  # nobody may park a key that the owner holds to be free
            self._operator.audit(tx, "rekey", name, f"{moved} letters", reason, {"moved": moved})
        self._operator.tell("rekey", name, f"{moved} letters")
        return moved

    def seek(self, name: str, to: int | str, reason: str) -> Sought:
        """Go to a position, a time, "first" or "now". Back: events come round again. Forward: given up, audited."""
        need_reason("seek", reason)
        with self._acting(name) as (tx, row):
            was = tx.progress.get(row.id)
            target = _target(tx, tx.logs.id_of(row.source), to)
            if target < was.position:
                superseded, discarded = self._back(tx, row, target), 0
            else:
                superseded, discarded = 0, self._forward(tx, row, was, target, reason)
            if target != was.position:
                details = {"from": was.position, "to": target, "superseded": superseded, "discarded": discarded}
                self._operator.audit(tx, "seek", name, f"position {target}", reason, details)
        self._operator.tell("seek", name, f"position {target}")
        return Sought(name, was.position, target, superseded, discarded)

    # ------------------------------------------------------------ how

    def _declaration(self, name: str) -> Subscription:
        found = self._declared.get(name)
        if found is None:
            raise UsageError(f"{name!r} is not declared here: this needs the program (--app MODULE:APP)")
        return found

    @contextmanager
    def _acting(self, name: str) -> Iterator[tuple[StoreTx, Subscribed]]:
        with self._operator.store.reading() as tx:
            row = find(tx, name)
        with self._operator.acting(row.id) as tx:
            if tx.progress.find(name) != row:
                raise UsageError(f"{name!r} was renamed at this very moment; look again")
            yield tx, row

    def _switch(self, name: str, action: str, reason: str, *, paused: int) -> None:
        with self._acting(name) as (tx, row):
            tx.sql.run("paused_set", {"subscription": row.id, "paused": paused})
            self._operator.audit(tx, action, name, name, reason, {})
        self._operator.tell(action, name, name)

    def _lane(self, tx: StoreTx, row: Subscribed, letter: int, key_of: KeyOf) -> tuple[str | None, str | None]:
        stored = tx.letters.event(letter)
        if stored is None:
            raise UsageError(f"{row.name!r}: the event of letter {letter} is no longer in the log; discard it first")
        event = from_row(stored, self._types)
        try:
            key = key_of(event)
        except EventError:  # no usable key: a lane of its own, as at intake
            return event.key, None
        if row.ordering == "key":
            return key, key
        return key, TOTAL_LANE if row.ordering == "total" else None

    def _back(self, tx: StoreTx, row: Subscribed, target: int) -> int:
        if row.kind == "projection" or tx.sql.value("state_any", {"subscription": row.id}):
            what = "is a projection" if row.kind == "projection" else "has keyed state"
            raise UsageError(
                f"{row.name!r} {what}: going back would apply events to what they already changed. "
                f"`redrive rebuild {row.name}` clears it and starts over"
            )
        filters = tx.progress.filters(row.id)
        if target < filters[0][0]:
            tx.progress.add_filter(row.id, target, filters[0][1])
        asked = Asked(tx.progress.filters(row.id))
        log = tx.logs.id_of(row.source)
        tx.sql.run("range_cut", {"subscription": row.id, "above": target})
        for skipped in ranges(tx, row.id):
            if skipped.upto > target:
                discarded = asked.count(tx, log, skipped.above, target)
                values = {"subscription": row.id, "from_position": skipped.above, "to_position": target}
                tx.sql.run("range_set", {**values, "discarded": discarded})
        return take_back(tx, row, target, asked, self._operator.now(), quiet_until=0)

    def _forward(self, tx: StoreTx, row: Subscribed, was: ProgressRow, target: int, reason: str) -> int:
        """Ranges between what is settled already, so that each holds nothing but what is given up."""
        if target == was.position:
            return 0
        log, asked = tx.logs.id_of(row.source), Asked(tx.progress.filters(row.id))
        settled = [position for position in tx.progress.done.all(row.id) if position <= target]
        total = 0
        for above, upto in zip([was.position, *settled], [*(p - 1 for p in settled), target], strict=True):
            discarded = asked.count(tx, log, above, upto)
            if not discarded:
                continue
            total += discarded
            details = {"above": above, "upto": upto, "discarded": discarded}
            audit = self._operator.audit(tx, "skip", row.name, f"positions {above + 1} to {upto}", reason, details)
            values = {"from_position": above, "to_position": upto, "discarded": discarded, "audit": audit}
            tx.sql.run("range_add", {"subscription": row.id, **values})
        tx.progress.done.prune(row.id, target)
        tx.keyed.excuse(row.id)
        anchor = tx.logs.anchor(log, target)
        tx.sql.run("progress_skip", {"subscription": row.id, "position": target, "anchor": anchor})
        return total


def _target(tx: StoreTx, log: int, to: int | str) -> int:
    """A position that the log has reached: what is not there yet cannot be given up."""
    last = tx.logs.last(log) if log else 0
    if to in ("first", "now"):
        return 0 if to == "first" else last
    if isinstance(to, str) and not to.isdecimal():
        try:
            time = datetime.fromisoformat(to)
        except ValueError:
            raise UsageError(
                f'{to!r} is neither a position, "first", "now" nor a time like 2026-01-31T00:00Z'
            ) from None
        if time.tzinfo is None:
            raise UsageError(f"{to!r} has no time zone; append Z or +01:00")
        return min(last, tx.logs.last_before(log, round(time.timestamp() * 1e6)) if log else 0)
    position = int(to)
    if not 0 <= position <= last:
        raise UsageError(f"position {position} is not in the log; it goes from 0 to {last}")
    return position
