"""Reset and rebuild: a projection's tables, progress, letters and state go back to the start together.

One transaction, so there is no moment at which a table is empty and its progress is not. A rebuild is a reset
and then ordinary running until the old position is reached; killed in the middle, it goes on where it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from redrive.errors import UsageError
from redrive.failpoints import hit
from redrive.replay.deed import Operator, find, need_function, need_reason
from redrive.replay.rewind import check_all_come, take_back
from redrive.store.declared import declare, end_reservation, reserve
from redrive.store.filters import Asked, Filters
from redrive.store.heard import heard_of, keep_heard
from redrive.store.port import Store, StoreTx, Subscribed
from redrive.store.progress import declared_tables, tables_of
from redrive.store.pruned import check_whole
from redrive.store.states import disown
from redrive.subscription import Subscription

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_HOMELESS_MAX = 5  # shown of the letters that stand in the way; the first ones say enough


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """How far a subscription is on its way back to where it was before its last reset."""

    subscription: str
    start: int
    position: int
    target: int

    @property
    def done(self) -> bool:
        """Is it where it was?"""
        return self.position >= self.target

    @property
    def share(self) -> float:
        """From 0 to 1, by positions."""
        way = self.target - self.start
        return 1.0 if way <= 0 else min(1.0, max(0.0, (self.position - self.start) / way))


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset would clear."""

    subscription: str
    position: int
    start: int
    open_letters: int
    tables: tuple[str, ...]


def plan_reset(store: Store, name: str, declared: Subscription | None = None) -> ResetPlan:
    """What a reset would do, without doing it."""
    with store.reading() as tx:
        row = need_function(find(tx, name))
        filters = tx.progress.filters(row.id)
        start = filters[0][0]
        check_whole(tx, row, start)
        check_all_come(tx, row, start, _asked_anew(filters, declared))
        letters = tx.letters.counts(row.id)
        tables = tables_of(tx.sql, row.id) if declared is None else declared.tables
        return ResetPlan(
            name, tx.progress.get(row.id).position, start,
            letters.get("retrying", 0) + letters.get("waiting", 0) + letters.get("dead", 0), tuple(sorted(tables)),
        )  # fmt: skip


def progress(store: Store, name: str) -> Rebuilding:
    """Where a rebuild stands; done for a subscription that was never reset."""
    with store.reading() as tx:
        row = find(tx, name)
        now, last = tx.progress.get(row.id), _last(tx, row)
    return Rebuilding(name, now.started_from, now.position, min(now.quiet_until, last))


def reset(operator: Operator, name: str, reason: str, declared: Subscription | None = None) -> Rebuilding:
    """Empty what the subscription built and take it back to its start; the next run builds it again.

    `declared` is the subscription as the program declares it now: its filter, table definitions, key function and
    version replace the stored ones, and workers that declare others stand by. Discards and edits keep their effect, and
    what was emitted is not emitted again.
    """
    return _reset(operator, name, reason, declared, reserves=False)


def reset_to_rebuild(operator: Operator, name: str, reason: str, declared: Subscription) -> Rebuilding:
    """The same for a process that then rebuilds the subscription itself: it is reserved for this process.

    Other workers stand by until the rebuild is done, or this process has ended or stopped renewing the reservation.
    """
    return _reset(operator, name, reason, declared, reserves=True)


@dataclass(frozen=True, slots=True)
class RebuildDesk:
    """Rebuilds that this process does itself: it has the program, and runs the subscription."""

    operator: Operator
    declared: Mapping[str, Subscription]

    def begin(self, name: str, reason: str) -> Rebuilding:
        """Do what `reset` does, and reserve the subscription for this process.

        Other workers stand by until the rebuild is done, `end` is called, or this process has ended.
        """
        return reset_to_rebuild(self.operator, name, reason, self._declaration(name))

    def resume(self, name: str) -> None:
        """Reserve a subscription whose rebuild was begun, to finish it in this process."""
        self._declaration(name)
        operator = self.operator
        with operator.acting(_id_of(operator, name)) as tx:
            reserve(tx, find(tx, name).id, operator.env.owner, tx.progress.now(operator.env.clock))

    def end(self, name: str) -> None:
        """End the reservation: other workers may go on."""
        operator = self.operator
        with operator.acting(_id_of(operator, name)) as tx:
            end_reservation(tx, find(tx, name).id, operator.env.owner)

    def _declaration(self, name: str) -> Subscription:
        if name not in self.declared:
            raise UsageError(f"{name!r} is not declared here: this needs the program that declares it")
        return self.declared[name]


def _id_of(operator: Operator, name: str) -> int:
    with operator.store.reading() as tx:
        return need_function(find(tx, name)).id


def _reset(operator: Operator, name: str, reason: str, declared: Subscription | None, *, reserves: bool) -> Rebuilding:
    need_reason("reset", reason)
    with operator.transaction() as tx:
        state, was = _start_over(operator, tx, name, reason, declared)
        if reserves:
            reserve(tx, find(tx, name).id, operator.env.owner, tx.progress.now(operator.env.clock))
        hit("reset.before_commit")
    hit("reset.committed")
    operator.tell("reset", name, f"position {was}")
    return state


def _start_over(
    operator: Operator, tx: StoreTx, name: str, reason: str, declared: Subscription | None
) -> tuple[Rebuilding, int]:
    """What all of it is, with the audit; the new state, and the position it was at."""
    row = need_function(find(tx, name))
    tx.progress.lock(row.id)
    if declared is not None and (declared.source, declared.kind) != (row.source, row.kind):
        raise UsageError(
            f"{name!r} is a {row.kind} on log {row.source!r} in the store, a {declared.kind} on "
            f"{declared.source!r} in the program: give it a new name"
        )
    _check_source(tx, row)
    filters, was = tx.progress.filters(row.id), tx.progress.get(row.id)
    start = filters[0][0]  # where it once began; a seek does not change that
    check_whole(tx, row, start)
    cleared = _clear_tables(tx, row, declared_tables(tx.sql, row.id) if declared is None else declared.tables)
    heard = heard_of(tx, row.id)
    keep_heard(tx, row.id)
    tx.sql.run("filter_clear", {"subscription": row.id, "above": 0})
    asked = _asked_anew(filters, declared)
    tx.progress.add_filter(row.id, start, asked.at(start))
    check_all_come(tx, row, start, asked)
    last = _last(tx, row)
    quiet_until = min(was.position, last)
    superseded = take_back(tx, row, start, asked, operator.now(), quiet_until=quiet_until, heard=heard)
    tx.sql.run("state_clear", {"subscription": row.id})
    disown(tx, row.id)
    tx.sql.run("control_clear", {"subscription": row.id})
    if declared is not None and declared.order != row.ordering:  # every letter is closed: free to change
        values = {"subscription": row.id, "ordering": declared.order, "kind": row.kind}
        tx.sql.run("subscription_reorder", values)
    details = {"from": was.position, "to": start, "superseded": superseded, "tables": cleared}
    operator.audit(tx, "reset", name, f"position {was.position}", reason, details)
    if declared is not None:
        declare(tx, row, declared.declaration, by_operator=True)
    target = min(max(was.quiet_until, was.position), last)
    return Rebuilding(name, start, start, target), was.position


def _asked_anew(filters: Filters, declared: Subscription | None) -> Asked:
    """From its start on it asks for what the program says now, or said last."""
    return Asked([(filters[0][0], filters[-1][1] if declared is None else declared.types)])


def _last(tx: StoreTx, row: Subscribed) -> int:
    """Where the log ends. If a part of the store was restored, that may be before what was settled of it."""
    log = tx.logs.id_of(row.source)
    return tx.logs.last(log) if log else 0


def _check_source(tx: StoreTx, row: Subscribed) -> None:
    """An open letter whose event is gone would be lost by starting over."""
    values = {"subscription": row.id, "log": tx.logs.id_of(row.source)}
    homeless = tx.sql.all("letters_homeless", values)
    if homeless:
        shown = ", ".join(f"{letter} (position {position})" for letter, position in homeless[:_HOMELESS_MAX])
        raise UsageError(
            f"{row.name!r}: log {row.source!r} no longer holds the events of {len(homeless)} open letters: {shown}. "
            "A rebuild would lose them; replay or discard them first"
        )


def _clear_tables(tx: StoreTx, row: Subscribed, wanted: Mapping[str, str | None]) -> list[str]:
    """Empty the user's tables; those that we create get the current definition. One no longer declared is let go."""
    for name in tables_of(tx.sql, row.id).keys() - wanted.keys():
        tx.sql.run("table_drop", {"name": name})
    for name, columns in wanted.items():
        if not _TABLE.fullmatch(name) or name.lower().startswith(("redrive_", "sqlite_")):
            raise UsageError(f"{row.name}: {name!r} cannot be a table of yours; use letters, digits and _")
        owner = tx.sql.value("table_owner", {"name": name})
        if owner not in (None, row.name):
            raise UsageError(f"table {name!r} belongs to {owner!r} already; two projections cannot own one table")
        _clear_table(tx, name, columns)
        tx.sql.run("table_add", {"name": name, "subscription": row.id, "columns": columns})
    return sorted(wanted)


def _clear_table(tx: StoreTx, name: str, columns: str | None) -> None:
    """The name was checked, the columns are the user's own SQL."""
    execute = tx.connection.execute
    exists = tx.sql.value("table_exists", {"name": name})
    if columns is None:
        if not exists:
            raise UsageError(f"table {name!r} does not exist; create it (tables=[…] means that you do)")
        execute(f'DELETE FROM "{name}"')  # noqa: S608
        return
    extras = [sql for (sql,) in tx.sql.all("table_extras", {"name": name})]
    execute(f'DROP TABLE IF EXISTS "{name}"')
    execute(f'CREATE TABLE "{name}" ({columns})')
    for sql in extras:
        try:
            execute(sql)
        except Exception as error:
            raise UsageError(
                f"table {name!r}: {sql!r} does not fit the new definition ({error}): drop it first"
            ) from error
