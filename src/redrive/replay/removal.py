"""Forgetting a subscription: what of it is deleted, and when that is refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from redrive.clock import Env, short_name
from redrive.errors import UsageError
from redrive.replay.status import is_owned
from redrive.replay.workers import workers_in
from redrive.store import journal
from redrive.store.forgotten import count_rows, delete_rows
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import tables_of


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was deleted with a subscription, or would be."""

    subscription: str
    rows: dict[str, int]  # of redrive's own tables, by table
    open_letters: int  # among them: events that are given up
    tables: tuple[str, ...] = ()  # the program's, which redrive made
    dropped: tuple[str, ...] = ()  # those of them that were dropped
    kept: tuple[str, ...] = field(default=())  # all other tables of the subscription


def check_forgettable(tx: StoreTx, row: Subscribed, env: Env, lease: float, declared: Collection[str]) -> None:
    """Refuse while anything works on it or has to read it, or would register it again at its next start."""
    name = row.name
    if row.kind == "intake":
        raise UsageError(
            f"{name!r} is the reading of a broker: its positions keep messages from landing twice. Forget the "
            f"subscriptions that read log {row.source!r}; this one holds back nothing"
        )
    if name in declared:
        raise UsageError(
            f"{name!r} is declared by this program, which would begin it as new: remove the function first"
        )
    for member in tx.progress.members(row.id):
        if is_owned(member, env):
            raise UsageError(f"{name!r} is run by {short_name(member.owner or '')}: stop that worker first")
    for worker in workers_in(tx, env, lease):
        if worker.state in ("working", "standby") and name in (*worker.runs, *worker.waits):
            raise UsageError(f"{name!r} is in the program of {worker.name}, which runs: stop that worker first")
    if (mirror := journal.lacking(tx.sql, row.id)) is not None:
        raise UsageError(
            f"mirror {mirror!r} has not yet written what happened to letters of {name!r}: let a worker run the mirror, "
            f"or give the mirror up: redrive forget {mirror}"
        )


def plan(tx: StoreTx, row: Subscribed) -> Forgotten:
    """What would be deleted, in numbers."""
    made, others = _tables(tx, row)
    return Forgotten(row.name, count_rows(tx, row.id), _open_letters(tx, row), made, (), (*made, *others))


def carry_out(tx: StoreTx, row: Subscribed, *, drop_tables: bool) -> Forgotten:
    """Delete it in this transaction. Other processes that write to the same file wait meanwhile."""
    open_letters, (made, others) = _open_letters(tx, row), _tables(tx, row)
    for table in made if drop_tables else ():
        tx.connection.execute(f'DROP TABLE IF EXISTS "{table}"')  # its name was checked when it was made
    rows = delete_rows(tx, row)
    dropped, kept = (made, others) if drop_tables else ((), (*made, *others))
    return Forgotten(row.name, rows, open_letters, made, dropped, kept)


def _open_letters(tx: StoreTx, row: Subscribed) -> int:
    counts = tx.letters.counts(row.id)
    return sum(counts.get(state, 0) for state in ("retrying", "waiting", "dead"))


def _tables(tx: StoreTx, row: Subscribed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tables that redrive made, and those that the user made."""
    stored = tables_of(tx.sql, row.id)
    made = tuple(sorted(name for name, columns in stored.items() if columns is not None))
    return made, tuple(sorted(stored.keys() - set(made)))
