"""The subscription desk: pause, resume, rename, seek, accept a wider filter, move letters to other lanes.

Each deed is one transaction that begins with the subscription's row and ends with the audit. Those that would
pull the ground from under a running owner bump the epoch: it can commit nothing more and looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redrive.errors import UsageError
from redrive.event import check_subscription, from_row
from redrive.replay import removal, seek
from redrive.replay.deed import Nothing, Operator, find, need_function, need_reason
from redrive.replay.letters import KeyOf
from redrive.replay.removal import Forgotten
from redrive.replay.seek import Sought
from redrive.runner.call import find_key
from redrive.store.declared import declare, stored_of
from redrive.store.filters import change_filter
from redrive.store.identity import keep_identity
from redrive.store.port import StoreTx, Subscribed
from redrive.subscription import TOTAL_LANE, Subscription
from redrive.types import EventTypes


class SubscriptionDesk:
    """Everything an operator can do to a subscription as a whole."""

    def __init__(
        self, operator: Operator, declared: Mapping[str, Subscription] | None = None, types: EventTypes | None = None
    ) -> None:
        self._operator = operator
        self._declared = declared or {}
        self._types = types or EventTypes()

    def pause(self, name: str, reason: str = "") -> bool:
        """Take nothing in and retry nothing until `resume`; survives restarts. False if it was paused already."""
        return self._switch(name, "pause", reason, paused=1)

    def resume(self, name: str, reason: str = "") -> bool:
        """Undo `pause`; False if it was not paused."""
        return self._switch(name, "resume", reason, paused=0)

    def rename(self, old: str, new: str, reason: str = "") -> None:
        """Give a subscription the name that its function has now; progress, letters and idempotency keys stay."""
        check_subscription(new)
        with self._acting(old) as (tx, row):
            if tx.progress.find(new) is not None:
                raise UsageError(f"there is a subscription {new!r} already; it has its own progress")
            keep_identity(tx, need_function(row))
            tx.sql.run("subscription_rename", {"old": old, "new": new})
            self._operator.audit(tx, "rename", new, old, reason, {"old": old, "new": new})
        self._operator.tell("rename", new, old)

    def accept_from_now(self, name: str, reason: str, types: Sequence[str] | None = None) -> int:
        """Ask for these types (those declared) from the present position on; what lies below it stays unasked.

        Without `types`, the version that the program declares is taken over as well: what is there stays as it is.
        """
        need_reason("accept-from-now", reason)
        declared = self._declaration(name) if types is None else None
        types = declared.types if declared is not None else types or ()
        with self._acting(name) as (tx, row):
            former = tx.progress.filters(row.id)[-1][1]
            position = change_filter(tx, need_function(row), sorted(types))
            details: dict[str, Any] = {"former": former, "types": sorted(types)}
            if declared is not None:
                was = stored_of(tx, row.id)[0].version
                if was != declared.version:
                    details["version"] = {"former": was, "now": declared.version}
                declare(tx, row, declared.declaration, by_operator=True)
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
            if moved:
                tx.sql.run("letters_held_due", {"subscription": row.id, "now": now})
            tx.sql.run("epoch_bump", {"subscription": row.id})  # nobody may park a key that the owner holds to be free
            self._operator.audit(tx, "rekey", name, f"{moved} letters", reason, {"moved": moved})
        self._operator.tell("rekey", name, f"{moved} letters")
        return moved

    def plan_seek(self, name: str, to: int | str) -> Sought:
        """What `seek` would do now."""
        with self._operator.store.reading() as tx:
            return seek.plan(tx, need_function(find(tx, name)), to)

    def seek(self, name: str, to: int | str, reason: str, agreed: Sought | None = None) -> Sought:
        """Go to a position, a time, "first" or "now". Back: events come round again. Forward: given up, audited.

        What was `agreed` on fixes the position; if a worker has passed it since, nothing is done.
        """
        need_reason("seek", reason)
        with self._acting(name) as (tx, row):
            done = seek.plan(tx, need_function(row), to if agreed is None else agreed.position)
            if agreed is not None and (done.position < done.was) != (agreed.position < agreed.was):
                raise UsageError(
                    f"{name!r} has moved from position {agreed.was} to {done.was} meanwhile; pause it, and look again"
                )
            seek.carry_out(tx, row, done, self._operator, reason)
            if done.position != done.was:
                details = {
                    "from": done.was, "to": done.position, "superseded": done.superseded, "discarded": done.discarded,
                }  # fmt: skip
                self._operator.audit(tx, "seek", name, f"position {done.position}", reason, details)
        self._operator.tell("seek", name, f"position {done.position}")
        return done

    def plan_forget(self, name: str, lease: float) -> Forgotten:
        """What `forget` would delete; `lease`: seconds after which a worker counts as gone."""
        with self._operator.store.reading() as tx:
            row = find(tx, name)
            removal.check_forgettable(tx, row, self._operator.env, lease, self._declared)
            return removal.plan(tx, row)

    def forget(self, name: str, reason: str, lease: float, *, drop_tables: bool = False) -> Forgotten:
        """Delete a subscription whose function was removed, with its letters and their history. The audit stays.

        Refused while a worker owns or runs it. `drop_tables`: drop the tables, too, that redrive made for it.
        """
        need_reason("forget", reason)
        with self._acting(name) as (tx, row):
            removal.check_forgettable(tx, row, self._operator.env, lease, self._declared)
            done = removal.carry_out(tx, row, drop_tables=drop_tables)
            details = {"rows": done.rows, "dropped": list(done.dropped), "open_letters": done.open_letters}
            self._operator.audit(tx, "forget", name, name, reason, details)
        self._operator.tell("forget", name, name)
        return done

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

    def _switch(self, name: str, action: str, reason: str, *, paused: int) -> bool:
        changed = False
        with self._acting(name) as (tx, row):
            if tx.progress.get(row.id).paused == paused:
                raise Nothing
            tx.sql.run("paused_set", {"subscription": row.id, "paused": paused})
            self._operator.audit(tx, action, name, name, reason, {})
            changed = True
        if changed:
            self._operator.tell(action, name, name)
        return changed

    def _lane(self, tx: StoreTx, row: Subscribed, letter: int, key_of: KeyOf) -> tuple[str | None, str | None]:
        stored = tx.letters.event(letter)
        if stored is None:
            raise UsageError(f"{row.name!r}: the event of letter {letter} is no longer in the log; discard it first")
        event = from_row(stored, self._types)
        key, problem = find_key(key_of, event)
        if problem is not None:  # no usable key: a lane of its own, as at intake
            return event.key, None
        if row.ordering == "key":
            return key, key
        return key, TOTAL_LANE if row.ordering == "total" else None
