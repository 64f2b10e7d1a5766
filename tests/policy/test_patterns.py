"""Patterns name whole event types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.policy.patterns import matches, type_patterns

names = st.text("abc.[]*?-", min_size=1, max_size=12)


@given(names)
def test_every_name_matches_itself_even_with_brackets_in_it(name: str) -> None:
    assert matches(name, name)


@given(names)
def test_a_star_matches_every_type(name: str) -> None:
    assert matches("*", name)


@given(st.text("abc.", min_size=1), st.text("abc.", min_size=1))
def test_a_plain_name_matches_nothing_but_itself(pattern: str, name: str) -> None:
    assert matches(pattern, name) == (pattern == name)


def test_a_glob_speaks_about_the_whole_name() -> None:
    assert matches("order.*", "order.placed")
    assert not matches("order", "order.placed")
    assert not matches("order.*", "reorder.placed")
    assert not matches("Order.*", "order.placed")


def test_an_event_class_stands_for_the_name_it_was_given() -> None:
    class OrderPlaced:
        __redrive_event__ = ("order.placed", 2)

    assert type_patterns("types", [OrderPlaced, "order.*"]) == ("order.placed", "order.*")
    assert type_patterns("types", OrderPlaced) == ("order.placed",)


@pytest.mark.parametrize("wrong", ["", [], [""], [3], [None], object, [object]])
def test_what_cannot_match_is_refused_with_the_name_of_the_option(wrong: object) -> None:
    with pytest.raises(UsageError, match="retry: types"):
        type_patterns("retry: types", wrong)  # type: ignore[arg-type]
