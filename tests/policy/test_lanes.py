"""Lanes against a model that looks at every letter: which keys wait, for which letter, and what is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.lanes import Head, Lanes

LANES = st.sampled_from(["a", "b", None])
STATES = st.sampled_from(["retrying", "retrying", "dead"])
STEP = st.one_of(
    st.tuples(st.just("put"), LANES, STATES, st.integers(0, 20)),
    st.tuples(st.just("free"), LANES, st.none(), st.none()),
    st.tuples(st.just("take"), st.none(), st.none(), st.integers(0, 20)),
    st.tuples(st.just("grow"), st.sampled_from(["a", "b"]), st.none(), st.integers(1, 5)),
)


def head(letter: int, state: str, due_at: float, *, set_at: float = 0.0, delay: float = 0.0) -> Head:
    return Head(letter, letter, state, due_at, set_at, delay, 0, 1, 0, 0)


@given(st.lists(STEP, max_size=40))
def test_due_heads_are_those_that_a_look_at_every_letter_finds(steps: list[tuple[str, str | None, str, int]]) -> None:
    """Each lane has one head, and every letter without a lane is one. What was taken is due no more until it is put."""
    lanes, heads, taken, sizes, letters = Lanes(), dict[str | int, Head](), set[int](), dict[str, int](), 0
    for verb, lane, state, number in steps:
        match verb:
            case "put":
                letters += 1
                new = head(letters, state, number)
                lanes.put(lane, new, 1)
                if lane is not None:
                    heads[lane], sizes[lane] = new, sizes.get(lane, 0) + 1
                elif state == "retrying":
                    heads[letters] = new
            case "free" if lane is not None:
                lanes.put(lane, None, -1)
                heads.pop(lane, None)
                sizes.pop(lane, None)
            case "free":
                for letter in [one for one in heads if isinstance(one, int)][:1]:
                    lanes.drop_loose(letter)
                    del heads[letter]
            case "grow" if lane in heads:
                assert lane is not None
                lanes.grow(lane, number)
                sizes[lane] += number
            case "take":
                waiting = [one for one in heads.values() if one.state == "retrying" and one.letter not in taken]
                due = sorted((one.due_at, one.letter) for one in waiting if one.due_at <= number)
                assert [(one.due_at, one.letter) for _, one in lanes.take_due(number, 3)] == due[:3]
                taken |= {letter for _, letter in due[:3]}
        named = {lane: one for lane, one in heads.items() if isinstance(lane, str)}
        assert lanes.names == named and bool(lanes) == bool(named)
        assert {lane: lanes.size(lane) for lane in named} == {lane: sizes[lane] for lane in named}
        assert [lanes.parked(one) for one in ("a", "b", None)] == ["a" in named, "b" in named, False]
        left = [one.due_at for one in heads.values() if one.state == "retrying" and one.letter not in taken]
        assert lanes.next_due() == min(left, default=None)


def test_head_is_found_by_its_letter_alone() -> None:
    lanes = Lanes([("a", head(1, "dead", 0.0), 3), (None, head(2, "retrying", 5.0), 1)])
    assert lanes.head("a", 1) == head(1, "dead", 0.0)
    assert (lanes.head("a", 2), lanes.head(None, 1), lanes.head("b", 1)) == (None, None, None)
    assert (lanes.size("a"), lanes.size("b"), lanes.size(None)) == (3, 0, 0)


def test_clock_that_is_set_back_again_and_again_delays_by_no_more_than_the_wait() -> None:
    lanes = Lanes([("a", head(1, "retrying", 1060.0, set_at=1000.0, delay=60.0), 1)], now=1000.0)
    lanes.put(None, head(2, "retrying", 1010.0, set_at=1000.0, delay=10.0))
    for now, due in ((1030.0, 1010.0), (500.0, 510.0), (505.0, 510.0), (100.0, 110.0)):
        lanes.notice(now, 86_400.0)
        assert lanes.next_due() == due
    assert [one.letter for _, one in lanes.take_due(160.0, 9)] == [2, 1]


def test_hold_ends_with_the_due_time_from_before() -> None:
    before = head(1, "retrying", 5.0)
    lanes = Lanes([("a", before, 2)])
    lanes.hold("a", before, 100.0)
    assert (lanes.next_due(), lanes.take_due(50.0, 9)) == (100.0, [])
    lanes.learn("a", 1, before, 3)  # the store still has the due time from before the hold
    assert (lanes.next_due(), lanes.size("a")) == (100.0, 3)
    lanes.release()
    assert lanes.take_due(50.0, 9) == [("a", before)]


def test_hold_that_ended_leaves_a_head_alone_that_changed_meanwhile() -> None:
    before = head(1, "retrying", 5.0)
    lanes = Lanes([("a", before, 1)])
    lanes.hold("a", before, 100.0)
    after = before._replace(rev=1, due_at=40.0)
    lanes.learn("a", 1, after, 1)
    lanes.release()
    assert lanes.next_due() == 40.0


def test_lane_that_the_store_has_no_head_of_is_free() -> None:
    lanes = Lanes([("a", head(1, "retrying", 5.0), 4), (None, head(2, "retrying", 6.0), 1)])
    lanes.learn("a", 1, None, 0)
    assert (lanes.parked("a"), lanes.size("a"), lanes.next_due()) == (False, 0, 6.0)
    lanes.learn(None, 2, None, 0)
    assert lanes.next_due() is None
    lanes.learn("a", 3, head(3, "dead", 0.0), 2)
    assert (lanes.parked("a"), lanes.size("a"), lanes.next_due()) == (True, 2, None)
    for letter, size in ((4, 5), (4, 1), (5, 3)):  # another head, the same one, and another again
        lanes.learn("a", letter, head(letter, "dead", 0.0), size)
        assert lanes.size("a") == size
