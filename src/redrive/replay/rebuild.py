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
from redrive.store.filters import Asked, Filters
from redrive.store.heard import keep_heard
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

    `declared` is the subscription as the program declares it now: its filter and table definitions
    replace the stored ones. Discards and edits keep their effect, and what was emitted is not emitted again.
    """
    need_reason("reset", reason)
    with operator.transaction() as tx:
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
        keep_heard(tx, row.id)
        tx.sql.run("filter_clear", {"subscription": row.id, "above": 0})
        asked = _asked_anew(filters, declared)
        tx.progress.add_filter(row.id, start, asked.at(start))
        check_all_come(tx, row, start, asked)
        last = _last(tx, row)
        superseded = take_back(tx, row, start, asked, operator.now(), quiet_until=min(was.position, last))
        tx.sql.run("state_clear", {"subscription": row.id})
        disown(tx, row.id)
        tx.sql.run("control_clear", {"subscription": row.id})
        if declared is not None and declared.order != row.ordering:  # every letter is closed: free to change
            values = {"subscription": row.id, "ordering": declared.order, "kind": row.kind}
            tx.sql.run("subscription_reorder", values)
        details = {"from": was.position, "to": start, "superseded": superseded, "tables": cleared}
        operator.audit(tx, "reset", name, f"position {was.position}", reason, details)
        target = min(max(was.quiet_until, was.position), last)
        hit("reset.before_commit")
    hit("reset.committed")
    operator.tell("reset", name, f"position {was.position}")
    return Rebuilding(name, start, start, target)


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
