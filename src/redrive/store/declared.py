"""Declarations and reservations in the store; `policy/declaration.py` compares them and decides."""

from __future__ import annotations

import json

from redrive.errors import Differs
from redrive.policy.declaration import RESERVATION_SECONDS, Declaration, Reservation, Stored
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import tables_of


def stored_of(tx: StoreTx, subscription: int) -> tuple[Stored, Reservation]:
    """The declaration that the store holds now, and the reservation."""
    found = tx.sql.one("declaration_get", {"subscription": subscription})
    if found is None:
        raise Differs("an operator has forgotten it (redrive forget); start this process again to begin it as new")
    ordering, version, key, tables, by_operator, reserved_by, reserved_until, partitions = found
    stored = Stored(
        tuple(sorted(tx.progress.filters(subscription)[-1][1])), ordering, partitions, tables_of(tx.sql, subscription),
        None if tables is None else tuple(json.loads(tables)), key, version, bool(by_operator),
    )  # fmt: skip
    return stored, Reservation(reserved_by, reserved_until)


def version_of(tx: StoreTx, subscription: int) -> tuple[str | None, Reservation]:
    """The version that was declared last, and the reservation: what there is to show, also of a damaged store."""
    found = tx.sql.one("declaration_get", {"subscription": subscription})
    assert found is not None
    return found[1], Reservation(found[5], found[6])


def declare(tx: StoreTx, row: Subscribed, declaration: Declaration, *, by_operator: bool) -> None:
    """Store the version, the key function's name and the tables' names; the rest is stored elsewhere."""
    values = {
        "subscription": row.id, "version": declaration.version, "key": declaration.key,
        "tables": json.dumps(sorted(declaration.tables)), "by_operator": int(by_operator),
    }  # fmt: skip
    tx.sql.run("declaration_set", values)


def reserve(tx: StoreTx, subscription: int, owner: str, now: float) -> None:
    """From now on only this process may work on the subscription."""
    values = {"subscription": subscription, "owner": owner, "until": now + RESERVATION_SECONDS}
    tx.sql.run("reservation_set", values)


def renew_reservation(tx: StoreTx, subscription: int, owner: str, now: float) -> bool:
    """Keep our reservation while the rebuild goes on; end it when the rebuild is done. Is it kept?"""
    values = {"subscription": subscription, "owner": owner}
    if tx.sql.run("reservation_renew", {**values, "until": now + RESERVATION_SECONDS}):
        return True
    tx.sql.run("reservation_end", values)
    return False


def end_reservation(tx: StoreTx, subscription: int, owner: str) -> None:
    """Let other workers go on. Nothing happens if the reservation is another process's."""
    tx.sql.run("reservation_end", {"subscription": subscription, "owner": owner})
