"""What differs between a program and the store, and how long a reservation holds."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from msgspec.structs import replace

from redrive.policy.declaration import (
    RESERVATION_SECONDS,
    Declaration,
    Reservation,
    Stored,
    differences,
    explained,
    key_name,
)

MINE = Declaration(("a", "b"), "key", 2, {"t": "n INTEGER", "own": None}, "by_user()", "1")
STORED = Stored(("a", "b"), "key", 2, {"t": "n INTEGER", "own": None}, ("own", "t"), "by_user()", "1")


def test_same_declaration_has_no_differences() -> None:
    assert differences(MINE, STORED) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"types": ("a",)}, "types a (here a, b)"),
        ({"types": ()}, "types (all) (here a, b)"),
        ({"order": "none"}, "order 'none' (here 'key')"),
        ({"partitions": 3}, "3 partitions (here 2)"),
        ({"tables": ("t",)}, "tables t (here own, t)"),
        ({"tables": ()}, "tables none (here own, t)"),
        ({"definitions": {"t": "n TEXT"}}, "another definition of table 't'"),
        ({"key": "by_order()"}, "key_by by_order() (here by_user())"),
        ({"key": ""}, "key_by none (here by_user())"),
        ({"version": "2"}, "version '2' (here '1')"),
    ],
)
def test_each_difference_is_named(change: dict[str, Any], told: str) -> None:
    assert differences(MINE, replace(STORED, **change)) == [told]


def test_unknown_parts_of_an_older_store_are_not_compared() -> None:
    assert differences(MINE, replace(STORED, tables=None, key=None, version=None)) == []


def test_program_without_version_differs_from_stored_version() -> None:
    assert differences(replace(MINE, version=None), STORED) == ["version '1' (here none)"]


def test_explanation_joins_differences_and_says_what_to_do() -> None:
    assert explained("x", ["one", "two", "three"]) == (
        "x: another version of this program declares it with one, two and three; restart this one with that version"
    )


def by_user(event: object) -> str:
    return "u"


class ByTenant:
    def __call__(self, event: object) -> str:
        return "t"


def test_key_function_is_named_without_its_module() -> None:
    assert key_name(by_user) == "by_user()"
    assert key_name(functools.partial(by_user)) == "by_user()"
    assert key_name(ByTenant()) == "ByTenant()"
    assert key_name("user") == "data['user']"
    assert key_name(None) == ""


def holds(reservation: Reservation, now: float = 100.0, *, me: str = "me", dead: bool = False) -> bool:
    return reservation.holds(me=me, now=now, owner_is_dead=dead)


def test_reservation_holds_until_its_time_or_its_owner_ends() -> None:
    reserved = Reservation("other", 100.0 + RESERVATION_SECONDS)
    assert holds(reserved)
    assert holds(reserved, 99.9 + RESERVATION_SECONDS)
    assert not holds(reserved, 100.0 + RESERVATION_SECONDS)
    assert not holds(reserved, dead=True)
    assert not holds(reserved, me="other")
    assert not holds(Reservation(None, 1e9))


def test_reservation_ends_when_the_clock_was_set_back() -> None:
    assert not holds(Reservation("other", 3600.0 + RESERVATION_SECONDS))
