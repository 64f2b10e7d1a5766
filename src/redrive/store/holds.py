"""The holds facet: which keys an operator keeps back. A change locks the subscriptions that it concerns."""

from __future__ import annotations

from typing import NamedTuple

from redrive.policy.holds import Hold
from redrive.store.sql import Sql


class HeldLetter(NamedTuple):
    """A letter that exists because its key was held."""

    id: int
    key: str | None
    due_at: float
    rev: int
    lane: str | None


def holds_of(sql: Sql, subscription: int) -> list[Hold]:
    """The holds of a subscription, those of every subscription among them; also those that have ended."""
    return [_hold(row) for row in sql.all("holds_of", {"subscription": subscription})]


def all_holds(sql: Sql) -> list[Hold]:
    """The holds of all subscriptions, the oldest first; also those that have ended."""
    return [_hold(row) for row in sql.all("holds_all")]


def find_hold(sql: Sql, subscription: int, pattern: str, *, is_prefix: bool) -> Hold | None:
    """The hold of exactly this key or prefix."""
    values = {"subscription": subscription, "pattern": pattern, "is_prefix": int(is_prefix)}
    row = sql.one("hold_get", values)
    return None if row is None else _hold(row)


def set_hold(sql: Sql, hold: Hold) -> None:
    """Hold a key or prefix, or change the hold that there is; its number is given by the store."""
    values = hold._asdict() | {"is_prefix": int(hold.is_prefix)}
    del values["id"]
    sql.run("hold_set", values)


def drop_hold(sql: Sql, hold: int) -> None:
    """Delete a hold."""
    sql.run("hold_drop", {"id": hold})


def drop_ended(sql: Sql, now: float) -> None:
    """Delete the holds that have ended."""
    sql.run("holds_ended_drop", {"now": now})


def held_letters(sql: Sql, subscription: int, after: int, limit: int) -> list[HeldLetter]:
    """A page of the letters that wait because their key was held, by number."""
    values = {"subscription": subscription, "after": after, "limit": limit}
    return [HeldLetter(*row) for row in sql.all("letters_held", values)]


def set_due(sql: Sql, letter: int, rev: int, due_at: float, now: float) -> bool:
    """Make a retrying letter due at another time; its attempts stay. False: it changed."""
    values = {"id": letter, "rev": rev, "due_at": due_at, "delay": max(0.0, due_at - now), "now": now}
    return sql.run("letter_due", values) == 1


def _hold(row: tuple[object, ...]) -> Hold:
    hold = Hold(*row)  # type: ignore[arg-type]
    return hold._replace(is_prefix=bool(hold.is_prefix))
