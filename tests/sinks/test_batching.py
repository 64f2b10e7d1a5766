"""Which of many events it was: an answer that blames the content is narrowed down, one about the place is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Reject
from redrive.sinks import SomeFailed, batching
from redrive.sinks.batching import Rejected, send_batch
from redrive.sinks.http import Busy, HttpError, Unreachable
from redrive.testing import make_event

EVENTS = [make_event("a", number, id=str(number)) for number in range(40)]


class Place:
    """Takes lists of ids; refuses some, and goes away after so many requests."""

    def __init__(self, refused: set[str], *, status: int = 400, gone_after: int = 10_000, keeps: bool = False) -> None:
        self.refused, self.status, self.gone_after, self.keeps = refused, status, gone_after, keeps
        self.requests: list[list[str]] = []

    async def post(self, ids: list[str]) -> None:
        if len(self.requests) >= self.gone_after:
            raise Unreachable("gone")
        self.requests.append(ids)
        bad = self.refused & set(ids)
        if bad and self.keeps:
            raise Rejected("partly", len(bad))
        if bad:
            raise HttpError("http://x", self.status)

    @property
    def taken(self) -> set[str]:
        return {one for ids in self.requests if not self.refused & set(ids) for one in ids}


def errors(place: Place, count: int, size: int = 1, make: Any = lambda event: event.id) -> dict[int, BaseException]:
    try:
        asyncio.run(send_batch(EVENTS[:count], make, lambda _: size, place.post))
    except SomeFailed as failed:
        return failed.errors
    return {}


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.sampled_from([400, 413, 422]), st.booleans())
def test_those_to_blame_are_named_and_the_others_delivered(count: int, bad: set[int], status: int, keeps: bool) -> None:
    here = {number for number in bad if number < count}
    place = Place({str(number) for number in here}, status=status, keeps=keeps)
    if count == 1 and here:
        with pytest.raises((HttpError, Reject)):
            errors(place, count)
        return
    assert set(errors(place, count)) == here
    assert place.taken == {str(number) for number in range(count)} - place.refused
    assert len(place.requests) <= 2 * count


@given(st.integers(2, 40), st.sets(st.integers(0, 39), min_size=1), st.integers(1, 20))
def test_what_is_not_known_to_be_delivered_counts_as_failed(count: int, bad: set[int], gone_after: int) -> None:
    place = Place({str(number) for number in bad}, gone_after=gone_after)
    try:
        found = set(errors(place, count))
    except Unreachable:  # nothing was decided
        found = set(range(count))
    assert {str(number) for number in range(count)} == place.taken | {str(number) for number in found}


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_an_answer_about_the_place_ends_it_at_once(status: int) -> None:
    place = Place({"3"}, status=status)
    with pytest.raises(HttpError):
        errors(place, 10)
    assert len(place.requests) == 1


def test_come_back_later_is_passed_on() -> None:
    async def busy(ids: list[str]) -> None:
        raise Busy("http://x", 429, 3.0)

    with pytest.raises(Busy):
        asyncio.run(send_batch(EVENTS[:5], lambda event: event.id, len, busy))


def test_requests_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "REQUEST_BYTES_MAX", 100)
    place = Place(set())
    assert errors(place, 10, size=40) == {}
    assert [len(ids) for ids in place.requests] == [2, 2, 2, 2, 2]
    alone = Place(set())
    assert errors(alone, 3, size=1_000) == {}
    assert alone.requests == [["0"], ["1"], ["2"]]


def test_an_event_that_cannot_be_written_down_fails_alone() -> None:
    def make(event: Any) -> str:
        if event.id == "2":
            raise ZeroDivisionError
        return str(event.id)

    place = Place(set())
    found = errors(place, 5, make=make)
    assert {index: type(error) for index, error in found.items()} == {2: ZeroDivisionError}
    assert place.requests == [["0", "1", "3", "4"]]
    only = Place(set())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(send_batch([EVENTS[2]], make, len, only.post))
    assert only.requests == []
