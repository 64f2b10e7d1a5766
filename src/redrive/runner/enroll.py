"""Enrol: make what the program declares agree with what the store remembers, or refuse and name the fix.

One transaction for all subscriptions of an app that fit, before any of them runs. Nothing is downgraded
silently. A new subscription that cannot start is an error at start. A known one that does not fit the store keeps only
itself from running, unless the caller is strict: the others start without it, and it is tried again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from redrive.errors import Differs, RedriveError, Unfit, UsageError
from redrive.policy.declaration import Declaration, Stored, differences, explained, is_other_code
from redrive.policy.patterns import matches
from redrive.runner.call import attempt
from redrive.runner.duty import Engine
from redrive.runner.leases import check_reservation
from redrive.runner.misplaced import find_misplaced
from redrive.store.declared import declare, stored_of
from redrive.store.filters import Asked, change_filter
from redrive.store.identity import choose_identity
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import is_not_copied, member_of, tables_of
from redrive.store.pruned import pruned_upto
from redrive.store.sql import BOOKS
from redrive.store.states import mark_of
from redrive.subscription import Subscription

TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(slots=True)
class Enrolled:
    """The subscriptions of a program, each with its row, and those of them that may not run yet."""

    rows: dict[str, tuple[Subscription, Subscribed]]
    refused: dict[str, Unfit | Differs] = field(default_factory=dict)


def enroll(engine: Engine, subscriptions: Iterable[Subscription], *, strict: bool = False) -> Enrolled:
    """Register new subscriptions, check known ones. `strict`: raise Unfit if one does not fit the store."""
    declared, refused = list(subscriptions), dict[str, Unfit | Differs]()
    misplaced = find_misplaced(engine, declared)
    while True:
        try:
            rows = _enroll(engine, declared, refused, misplaced)
        except Differs as error:
            refused[error.subscription] = error
        except Unfit as error:
            if strict:
                raise
            refused[error.subscription] = error
        else:
            return Enrolled(rows, refused)


def admit(engine: Engine, subscription: Subscription, row: Subscribed) -> None:
    """Check a known subscription once more, and declare it as this program does: Unfit or Differs if it may not run."""
    misplaced = find_misplaced(engine, [subscription])
    with engine.store.transaction() as tx:
        tx.sql.claim((BOOKS,))
        _check_known(engine, tx, subscription, row, misplaced)


def _enroll(
    engine: Engine,
    declared: Iterable[Subscription],
    refused: Mapping[str, Unfit | Differs],
    misplaced: Mapping[str, str],
) -> dict[str, tuple[Subscription, Subscribed]]:
    """All but those that were refused, in one transaction: nothing is written if another one is refused."""
    with engine.store.transaction() as tx:
        tx.sql.claim((BOOKS,))  # other workers may start at the same moment
        known = {row.name: row for row in tx.progress.all()}
        orphans = [row for name, row in known.items() if name not in {sub.name for sub in declared}]
        fed = {one.source for one in (*declared, *known.values()) if one.kind == "intake"}  # the logs of brokers
        rows = {}
        for subscription in declared:
            row = known.get(subscription.name)
            if row is None:
                row = _add(engine, tx, subscription, orphans)
                if subscription.source in fed:
                    _check_landed(tx, subscription)
                _check_has_come(engine, tx, subscription)
                _enter(engine, tx, subscription, row)
            elif subscription.name not in refused:
                _check_known(engine, tx, subscription, row, misplaced)
            rows[subscription.name] = (subscription, row)
    return rows


def _check_known(
    engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed, misplaced: Mapping[str, str]
) -> None:
    """Unfit or Differs, with the name of the subscription, if it may not run."""
    try:
        stored = _check_free(engine, tx, subscription, row)
        _check_version(tx, subscription, row, stored)
        check_declared(tx, subscription, row)
        if row.name in misplaced:
            raise UsageError(misplaced[row.name])
        _enter(engine, tx, subscription, row, stored)
    except Differs as error:
        error.subscription = subscription.name
        raise
    except UsageError as error:
        unfit = Unfit(str(error))
        unfit.subscription = subscription.name
        raise unfit from error


def _check_free(engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed) -> Stored:
    """What is declared so far. While a rebuild goes on, a program that starts may declare no other function."""
    stored, reservation = stored_of(tx, row.id)
    check_reservation(engine, subscription.name, reservation, tx.progress.now(engine.env.clock))
    progress = tx.progress.get(row.id)
    is_rebuilt = stored.by_operator and progress.position < progress.quiet_until
    if is_rebuilt and is_other_code(subscription.declaration, stored):
        raise Differs(
            f"{explained(row.name, differences(subscription.declaration, stored))}, or start the rebuild over with "
            f"this one: redrive rebuild {row.name} --app MODULE:APP"
        )
    return stored


def _enter(
    engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed, stored: Stored | None = None
) -> None:
    """What is the same for new and known subscriptions: tables, breaker, and what is declared from now on."""
    error = attempt(check_tables, tx, subscription, row)  # the columns are the user's
    if isinstance(error, RedriveError) or (error is not None and engine.store.is_the_world(error)):
        raise error
    if error is not None:
        raise UsageError(f"{row.name}: tables={dict(subscription.tables)!r}: {error}; correct it") from error
    if (name := subscription.breaker_name) is not None:
        tx.guards.declare(name)
    _declare(tx, subscription.declaration, row, stored)


def _declare(tx: StoreTx, mine: Declaration, row: Subscribed, stored: Stored | None) -> None:
    """Store the declaration of this program. Older workers can take no lease from now on.

    The present owner goes on: to fence it would repeat the calls that it has under way. Another key function fences it,
    because the letters that it writes would wait in other lanes.
    """
    if stored is not None and not differences(mine, stored) and _is_complete(mine, stored):
        return
    by_operator = stored is not None and stored.by_operator and not is_other_code(mine, stored)
    declare(tx, row, mine, by_operator=by_operator)
    if stored is not None and stored.key not in (None, mine.key):
        tx.sql.run("epoch_bump", {"subscription": row.id})


def _is_complete(mine: Declaration, stored: Stored) -> bool:
    """Does the store have every part of the declaration? One from an older format does not."""
    return stored.key is not None and stored.tables is not None and (stored.version or mine.version) == stored.version


def _add(engine: Engine, tx: StoreTx, subscription: Subscription, orphans: list[Subscribed]) -> Subscribed:
    name = subscription.name
    log = tx.logs.id_of(subscription.source)
    last = tx.logs.last(log) if log else 0
    start = subscription.start or ("first" if subscription.kind == "projection" else None)
    if start is None and last:
        likely = [row.name for row in orphans if row.source == subscription.source and row.kind == subscription.kind]
        close = difflib.get_close_matches(name, likely, n=3, cutoff=0.0)
        hint = "".join(f"\n  - it was called {old!r} before: redrive rename {old} {name}" for old in close)
        raise UsageError(
            f"{subscription.kind} {name!r} is new and log {subscription.source!r} already has events. "
            "Say where it starts:\n"
            f'  - start="first" to handle everything, start="now" for what comes, or a time like '
            f'start="2026-01-31T00:00:00Z"{hint}'
        )
    position = _start_position(tx, log, last, start or "first", name)
    if log and position < (upto := pruned_upto(tx, log)):
        raise UsageError(
            f"{name}: the oldest events of log {subscription.source!r} were pruned, up to position {upto}: "
            'it cannot start there. Give it start="now", or the time of a later event'
        )
    anchor = tx.logs.anchor(log, position) if position else None
    now = engine.env.clock.now()
    declared = (name, subscription.kind, subscription.source, subscription.order)
    row = tx.progress.add(declared, position, anchor, now, subscription.partitions)
    tx.progress.add_filter(row.id, position, subscription.types)
    choose_identity(tx, row)
    return row


def _check_landed(tx: StoreTx, subscription: Subscription) -> None:
    """A start counts from what has landed. Where nothing has, it cannot leave out what the broker holds."""
    source, start = subscription.source, subscription.start
    log = tx.logs.id_of(source)
    if start in (None, "first") or (log and tx.logs.last(log)):
        return
    raise UsageError(
        f"{subscription.name}: nothing of {source!r} has landed yet, and start= counts from what has landed: with "
        f"start={start!r} it would be called for all that the broker holds, too. Choose one:\n"
        '  - start="first", and leave out what is old: if event.time < BEGUN: raise Ignore("before our time")\n'
        '  - start="first" on Redis, through a group that you make at $: it begins there\n'
        '  - start="now" once something has landed'
    )


def _start_position(tx: StoreTx, log: int, last: int, start: str, name: str) -> int:
    if start == "first":
        return 0
    if start == "now":
        return last
    try:
        time = datetime.fromisoformat(start)
    except ValueError:
        raise UsageError(
            f'{name}: start={start!r} is neither "first", "now" nor a time like 2026-01-31T00:00:00Z'
        ) from None
    if time.tzinfo is None:
        raise UsageError(f"{name}: start={start!r} has no time zone; append Z or +01:00")
    return tx.logs.last_before(log, round(time.timestamp() * 1e6)) if log else 0


def _check_has_come(engine: Engine, tx: StoreTx, subscription: Subscription) -> None:
    """A start is a position: from a time that no event has reached yet, it would be the end of the log."""
    start = subscription.start
    if start in (None, "first", "now"):
        return
    time, log = datetime.fromisoformat(start).timestamp(), tx.logs.id_of(subscription.source)
    is_reached = log and tx.logs.last_before(log, round(time * 1e6)) < tx.logs.last(log)
    if not is_reached and time > engine.env.clock.now():
        raise UsageError(
            f"{subscription.name}: start={start!r} has not come yet, and what is appended until then would be handled, "
            'too. Give it start="now", and leave out what is early: '
            'if event.time < BEGUN: raise Ignore("before our time")'
        )


def check_declared(tx: StoreTx, subscription: Subscription, row: Subscribed) -> None:
    """Refuse what cannot be changed without harm; what can be is changed."""
    name = subscription.name
    if row.source != subscription.source:
        raise UsageError(
            f"{name!r} reads log {row.source!r} so far, now {subscription.source!r}: positions do not carry over. "
            "Give the function a new name"
        )
    if row.kind != subscription.kind:
        raise UsageError(f"{name!r} was a {row.kind}, now it is a {subscription.kind}: give it a new name")
    if row.ordering != subscription.order:
        opened = tx.letters.counts(row.id)
        if opened.get("retrying") or opened.get("waiting") or opened.get("dead"):
            raise UsageError(
                f"{name!r}: order changes from {row.ordering!r} to {subscription.order!r} while letters are open; "
                "replay or discard them first (redrive dlq list)"
            )
        tx.sql.run("subscription_reorder", {"subscription": row.id, "ordering": subscription.order, "kind": row.kind})
        tx.sql.run("epoch_bump", {"subscription": row.id})  # whoever runs it with the former order is fenced
    _check_state(tx, subscription, row)
    _check_filter(tx, subscription, row)
    if len(tx.progress.members(row.id)) != subscription.partitions:
        repartition(tx, row, subscription.partitions)


def _check_version(tx: StoreTx, subscription: Subscription, row: Subscribed, stored: Stored) -> None:
    """The tables of a projection were filled by one version of its function, and are not filled on by another."""
    mine = subscription.version
    is_begun = tx.progress.get(row.id).position > tx.progress.filters(row.id)[0][0]
    if subscription.kind != "projection" or stored.version in (None, mine) or not is_begun:
        return
    here = "no version" if mine is None else f"version {mine!r}"
    raise UsageError(
        f"{row.name!r}: version {stored.version!r} of the function has filled its tables, this program declares "
        f"{here}. `redrive rebuild {row.name} --app MODULE:APP` fills them anew, "
        f"`redrive accept-from-now {row.name} --app MODULE:APP --reason …` keeps what is there"
    )


def _check_state(tx: StoreTx, subscription: Subscription, row: Subscribed) -> None:
    """State does not move from one place to another by itself, and must not seem to be gone."""
    again = f"as before, or run `redrive rebuild {row.name} --app MODULE:APP` to build it anew"
    if subscription.state is None and mark_of(tx, row.id) is not None:
        raise UsageError(
            f"{row.name!r} keeps its state outside the store so far: declare it with state=RocksDB(…) {again}"
        )
    if subscription.state is not None and tx.sql.all("state_near", {"subscription": row.id, "start": "", "limit": 1}):
        raise UsageError(f"{row.name!r} keeps its state in the store so far: declare it without state= {again}")


def repartition(tx: StoreTx, row: Subscribed, partitions: int) -> None:
    """Another number of partitions, each starting where the slowest was; what others had settled above it stays so.

    All marks go to the first one, and every owner reads all of them: nobody needs to know which partition an event
    belonged to. Whoever runs the former partitions is fenced, not crashed.
    """
    tx.progress.lock(row.id)  # first: what an owner is committing now must be seen, and what it begins later is fenced
    was, done = tx.progress.get(row.id), tx.progress.done.of(row.id, tx.progress.get(row.id).position)
    tx.progress.done.clear(row.id)
    tx.sql.run("members_drop", {"subscription": row.id})
    tx.sql.run("inflight_drop", {"subscription": row.id})
    for partition in range(partitions):
        first = partition == 0
        where = {"member": member_of(row.id, partition), "subscription": row.id}
        tx.sql.run("progress_add", {**where, "position": was.position, "anchor": was.anchor})
        values = {
            "member": where["member"], "epoch": was.epoch + 1, "parked_version": was.parked_version + 1,
            "applied": was.applied if first else 0, "ignored": was.ignored if first else 0,
            "started_from": was.started_from, "quiet_until": was.quiet_until, "paused": was.paused,
            "settled_at": was.settled_at, "last_type": was.last_type, "last_time_us": was.last_time_us,
        }  # fmt: skip
        tx.sql.run("member_begin", values)
    tx.progress.done.add(row.id, done)


def _check_filter(tx: StoreTx, subscription: Subscription, row: Subscribed) -> None:
    """Narrower from now on is fine; wider would leave holes nobody asked for."""
    filters = tx.progress.filters(row.id)
    if sorted(filters[-1][1]) == sorted(subscription.types):
        return
    position = tx.progress.get(row.id).position
    former = Asked(filters).at(position)
    if position > filters[0][0] and not narrower(subscription.types, former):
        raise UsageError(
            f"{row.name!r} now asks for {_show(subscription.types)}, so far for {_show(former)}: events it never "
            f"saw lie below its progress. `redrive rebuild {row.name} --app MODULE:APP` applies them, "
            f"`redrive accept-from-now {row.name} --app MODULE:APP --reason …` leaves them out, audited"
        )
    change_filter(tx, row, subscription.types)


def narrower(new: Iterable[str], former: Iterable[str]) -> bool:
    """Does the new filter ask for nothing that the former did not?"""
    old, wanted = list(former), list(new)
    if not old:
        return True
    return bool(wanted) and all(any(name == glob or matches(glob, name) for glob in old) for name in wanted)


def _show(types: Iterable[str]) -> str:
    return ", ".join(types) or "all types"


def check_tables(tx: StoreTx, subscription: Subscription, row: Subscribed) -> None:
    """Create the tables that are declared and not there; refuse one that has changed, or is another's."""
    stored = tables_of(tx.sql, row.id)
    for table, columns in subscription.tables.items():
        if not TABLE.fullmatch(table) or table.lower().startswith(("redrive_", "sqlite_")):
            raise UsageError(f"{row.name}: {table!r} cannot be a table of yours; use letters, digits and _")
        owner = tx.sql.value("table_owner", {"name": table})
        if owner not in (None, row.name):
            raise UsageError(
                f"table {table!r} belongs to {owner!r} already; two projections cannot own one table. If "
                f"{row.name!r} was called {owner!r} before: redrive rename {owner} {row.name}"
            )
        if is_not_copied(stored.get(table)):
            raise UsageError(
                f"{row.name!r}: the rows of table {table!r} were not copied with the store; "
                f"`redrive rebuild {row.name} --app MODULE:APP` fills it from the log"
            )
        if table in stored and stored[table] != columns and columns is not None:
            raise UsageError(
                f"{row.name!r}: the definition of table {table!r} changed; "
                f"`redrive rebuild {row.name} --app MODULE:APP` drops and fills it anew"
            )
        if stored.get(table) is not None and columns is not None and not tx.sql.value("table_exists", {"name": table}):
            raise UsageError(
                f"{row.name!r}: table {table!r} is gone, and with it what was applied; "
                f"`redrive rebuild {row.name} --app MODULE:APP` makes it and fills it from the log"
            )
        if table not in stored:
            if columns is not None:
                _check_empty(tx, row, table)
            tx.sql.run("table_add", {"name": table, "subscription": row.id, "columns": columns})
        create_table(tx, table, columns)


def _check_empty(tx: StoreTx, row: Subscribed, table: str) -> None:
    """What redrive creates, a rebuild drops: rows that were there before may be the only ones of their kind."""
    if not tx.sql.value("table_exists", {"name": table}):
        return
    (is_filled,) = tx.connection.execute(f'SELECT EXISTS (SELECT 1 FROM "{table}")').fetchone()  # noqa: S608
    if is_filled:
        raise UsageError(
            f"{row.name!r}: table {table!r} is there already and has rows, which a rebuild would drop. If it is the "
            f"projection's and you create it: tables=[{table!r}]. Else choose another name, or empty it"
        )


def create_table(tx: StoreTx, table: str, columns: str | None) -> None:
    """Create a table that redrive was asked to create; the name was checked, the columns are the user's SQL."""
    if columns is not None:
        tx.connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({columns})')
