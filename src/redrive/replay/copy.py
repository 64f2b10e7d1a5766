"""Moving an app that is stopped to another store: all of redrive's tables, page by page, and then the proof.

How far it is lies in the target, in the transaction of each page: whoever is killed goes on there. The source is only
read. Nobody can use the target before both ledgers say the same of every event and the audit's chain is whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from redrive.errors import BugError, UsageError
from redrive.failpoints import hit
from redrive.replay.chain import AuditVerdict, verify_audit
from redrive.replay.deed import Operator, Told
from redrive.replay.ledger import Verdict, verify
from redrive.replay.workers import workers
from redrive.store.address import shown
from redrive.store.copying import COPIED, Cursor, begin, copy_page, counts_of, cursor_of, end, is_copy_of, mark_of
from redrive.store.port import Store, StoreTx
from redrive.store.progress import is_not_copied, tables_of
from redrive.store.sql import BOOKS

CHANGED = (
    "the source has changed since this copy was begun: stop whatever writes there, empty the target (delete the file; "
    "on Postgres DROP SCHEMA redrive CASCADE), and begin again"
)


@dataclass(frozen=True, slots=True)
class Copied:
    """What is in the target now, and what its accounts say."""

    rows: int
    copied: int  # of them, by this very call
    resumed: bool  # an earlier call had begun
    accounts: tuple[Verdict, ...]
    audit: AuditVerdict
    rebuild: tuple[str, ...]  # projections whose tables have to be filled again


def copy(
    source: Operator, target: Operator, *, lease: float, tables_moved: bool = False, told: Told = lambda done, of: None
) -> Copied:
    """Fill the target with everything the source holds, or go on doing so; done already is fine, too."""
    with source.store.reading() as old:
        mark, counts = mark_of(old), counts_of(old)
    with target.store.reading() as new:
        if is_copy_of(new, mark):
            return _result(target.store, tuple(verify(target.store)), 0, resumed=True)
    _check_stopped(source, lease)
    accounts, audit = tuple(verify(source.store)), verify_audit(source.store)
    if not audit.sound or not all(account.sound for account in accounts):
        raise UsageError(
            "the source does not add up: see `redrive verify --audit` there; it would not add up elsewhere"
        )
    resumed = _begin(source.store, target.store, mark, tables_moved)
    copied, total = _fill(source.store, target.store, sum(counts.values()), told)
    _check_unchanged(source, target.store, mark, lease)
    if tuple(verify(target.store)) != accounts or verify_audit(target.store) != audit:
        raise BugError("the target's account is not the source's: it stays closed. Please report this")
    _end(source.store, target, mark, total)
    return _result(target.store, accounts, copied, resumed=resumed)


def _check_stopped(source: Operator, lease: float) -> None:
    now = source.now()
    for worker in workers(source.store, source.env, lease):
        holds = any(one.lease_until > now for one in worker.owns)
        if worker.state in ("working", "standby") or (worker.state == "silent" and holds):
            raise UsageError(
                f"{worker.name} works on the source: stop every worker and producer first (`redrive workers` shows "
                "them). One that has died keeps its lease for a few seconds more"
            )


def _begin(source: Store, target: Store, mark: list[object], tables_moved: bool) -> bool:
    """True if it goes on with a copy that was begun."""
    with target.transaction() as new, source.reading() as old:
        new.sql.claim((BOOKS,))
        found = cursor_of(new)
        if found is None:
            _check_empty(new, target.url)
            begin(new, old, tables_moved=tables_moved)
        elif found.mark != mark:
            raise UsageError(CHANGED)
        elif found.tables_moved != tables_moved:
            was = "with" if found.tables_moved else "without"
            raise UsageError(f"this copy was begun {was} --tables-moved: go on in the same way")
        hit("operator.before_commit")
    return found is not None


def _check_empty(new: StoreTx, where: str) -> None:
    held = [f"{count:,} {name}" for name, count in counts_of(new).items() if count]
    if held or new.books.get(COPIED) is not None:
        raise UsageError(
            f"{shown(where)} is not empty: it holds {', '.join(held) or 'a copy of another store'}. A copy needs an "
            "empty store; nothing was changed"
        )


def _fill(source: Store, target: Store, total: int, told: Told) -> tuple[int, int]:
    """(rows copied now, rows that are there)."""
    with target.reading() as new:
        there = sum(counts_of(new).values())
    copied = 0
    while True:
        # A page may be lost with the machine, in order: the transaction that ends the copy makes all of them last.
        with target.transaction(durable=False) as new, source.reading() as old:
            cursor, rows = copy_page(new, old)
            hit("operator.before_commit")
        copied += rows
        target.submit(_nothing, _ignore)  # the writer's thread looks whether there is something to check in
        told(min(there + copied, total), total)
        if cursor.table is None:
            return copied, there + copied


def _nothing() -> None:
    """A job after which a store does what it does after each."""


def _ignore(result: object, error: BaseException | None) -> None:
    """Nobody waits for it."""


def _check_unchanged(source: Operator, target: Store, mark: list[object], lease: float) -> None:
    """Nobody has written to either while it was copied: then what was counted of the source before still holds."""
    _check_stopped(source, lease)
    with source.store.reading() as old, target.reading() as new:
        if mark_of(old) != mark:
            raise UsageError(CHANGED)
        there = counts_of(new)
        wrong = [name for name, count in counts_of(old).items() if there[name] != count]
    if wrong:
        raise UsageError(
            f"somebody else has written to the target ({', '.join(wrong)}): stop them, empty it, and begin again"
        )


def _end(source: Store, target: Operator, mark: list[object], rows: int) -> None:
    with target.store.transaction() as new:
        new.sql.claim((BOOKS,))
        cursor = cursor_of(new)
        if cursor is None:  # somebody else was faster
            return
        assert cursor == Cursor(mark, None, [], cursor.tables_moved)
        details = {"from": shown(source.url), "rows": rows, "tables_moved": cursor.tables_moved}
        target.audit(new, "copy", "", "store", "", details)
        end(new, cursor)
        hit("operator.before_commit")


def _result(target: Store, accounts: tuple[Verdict, ...], copied: int, *, resumed: bool) -> Copied:
    with target.reading() as new:
        rows = sum(counts_of(new).values())
        rebuild = [
            row.name
            for row in new.progress.all()
            if any(is_not_copied(columns) for columns in tables_of(new.sql, row.id).values())
        ]
    return Copied(rows, copied, resumed, accounts, verify_audit(target), tuple(rebuild))
