"""The desk: at any moment the first unsettled work of each lane may run, and nothing behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from redrive.policy import outcome as out
from redrive.policy.holds import Hold, Holds
from redrive.policy.lanes import Head, Lanes
from redrive.runner.desk import Desk
from redrive.runner.duty import Duty, Work
from redrive.runner.handle import Group
from redrive.runner.holds import HELD, KeyHolds
from redrive.testing import FakeClock, make_event

LANES = st.sampled_from(["a", "b", "c", "d", None])


def duty() -> Duty:
    order, holds = SimpleNamespace(order="key"), KeyHolds(1, FakeClock(), are_lanes=True)
    return cast(
        "Duty",
        SimpleNamespace(lanes=Lanes(), looks=0, horizon=0, suspects=set(), holds=holds, subscription=order),
    )


def work(position: int, lane: str | None) -> Work:
    return Work(make_event("told", position=position), position, lane, lane, None)


def may_run(unsettled: list[Work]) -> set[Work]:
    """The first of each lane, and whatever is in none; of works in their order."""
    first = {one.lane: one for one in reversed(unsettled) if one.lane is not None}
    return {*first.values(), *(one for one in unsettled if one.lane is None)}


Steps = st.lists(st.tuples(st.lists(LANES, max_size=12), st.booleans(), st.integers(0, 8)), max_size=12)


@given(Steps)
def test_the_first_of_each_lane_may_run_whatever_is_settled_together(steps: list[tuple[Any, bool, int]]) -> None:
    desk, unsettled, position = Desk(duty()), list[Work](), 0
    for lanes, together, count in steps:
        new = [work(position := position + 1, lane) for lane in lanes]
        unsettled += new
        if together:
            desk.add_fresh(new)
        else:
            for one in new:
                desk.add(one)
        group = Group([desk.ready.popleft() for _ in range(min(count, len(desk.ready)))])
        for one in group.works:
            one.outcome = out.APPLIED
        group = Group(group.works)
        assert group.positions == [one.position for one in group.works]
        desk.free_all(group.works, ordinary=True)
        unsettled = [one for one in unsettled if one not in group.works]
        assert set(desk.ready) == may_run(unsettled)
        assert len(desk) == len(unsettled)
        assert all(desk.busy(one.lane, 0) for one in unsettled if one.lane is not None)
        settled = {one.lane for one in group.works} - {one.lane for one in unsettled} - {None}
        assert not any(desk.busy(lane, 0) for lane in settled)


def test_every_lane_is_free_when_what_held_it_is_settled_and_the_next_looks_where_it_stands() -> None:
    here = duty()
    desk, works = Desk(here), [work(1, "a"), work(2, "b"), work(3, "a"), work(4, "b"), work(5, "a")]
    works[2].outcome = out.APPLIED  # its fate is known before it is called: it is settled as that
    desk.add_fresh(works)
    group = [desk.ready.popleft(), desk.ready.popleft()]
    desk.free_all(group, ordinary=True)
    assert (list(desk.ready), list(desk.outbox)) == ([works[3]], [works[2]])
    desk.free_all([desk.ready.popleft(), desk.outbox.popleft()], ordinary=True)
    assert list(desk.ready) == [works[4]]
    assert not desk.busy("b", 0)


def test_what_is_behind_a_parked_head_follows_it_though_all_lanes_are_freed_together() -> None:
    here = duty()
    desk, works = Desk(here), [work(1, "a"), work(2, "a")]
    desk.add_fresh(works)
    head = Head(1, 7, "retrying", 9.0, 0.0, 0.0, 0, 1, 0, 0)
    here.lanes.put("a", head, 1)
    desk.free_all([desk.ready.popleft()], ordinary=True)
    assert not desk.ready
    assert [one.follow for one in desk.outbox] == [True]


def test_a_group_is_ordinary_only_if_each_of_it_is() -> None:
    good, failed, suspected, chained, letter, asks = (work(at, "a") for at in range(1, 7))
    for one in (good, suspected, chained, letter, asks):
        one.outcome = out.APPLIED
    suspected.alone = chained.chained = True
    letter.head = Head(5, 7, "retrying", 9.0, 0.0, 0.0, 0, 1, 0, 0)
    asks.effects = cast("Any", object())
    assert (Group([]).positions, Group([good]).positions) == ([], [1])
    for odd in (failed, suspected, chained, letter):
        assert Group([good, odd]).positions is None
    assert Group([good, asks]).positions == [1, 6]
    assert Group([good, asks]).asking == [asks]


def test_hold_keeps_back_works_that_wait_for_their_call() -> None:
    """New events become letters, a letter goes back to the lanes, and other keys run."""
    here = duty()
    head = Head(1, 5, "retrying", 0.0, 0.0, 0.0, 0, 1, 0, 0)
    here.lanes.put("a", head, 1)
    desk, letter = Desk(here), work(1, "a")
    letter.head = head
    fresh, other, behind = work(2, "b"), work(3, "c"), work(4, "b")
    for one in (letter, fresh, other, behind):
        desk.add(one)
    assert list(desk.ready) == [letter, fresh, other]
    here.holds.now = Holds([Hold(1, 0, key, False, None, 0.0, "ada", "why") for key in ("a", "b")], now=0.0)
    assert set(desk.look_again()) == {letter, fresh}
    assert (list(desk.ready), list(desk.outbox), fresh.outcome) == ([other], [fresh], HELD)
    assert not desk.busy("a", 5)
    assert desk.busy("b", 0)
    assert here.lanes.take_due(1e9, 10) == []
    here.lanes.release()
    assert here.lanes.take_due(1e9, 10) == [("a", head)]
