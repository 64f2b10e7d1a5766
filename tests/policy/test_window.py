"""The window against a model that remembers every position by itself: what is written is what has happened."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.policy.progress import NO_FLOOR, Window

OPEN, SKIPPED, SETTLED = "open", "skipped", "settled"
GAPS = st.lists(st.integers(1, 3), min_size=60, max_size=60)  # between the positions of a log
STEP = st.one_of(
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("take many"), st.integers(1, 5)),
    st.tuples(st.just("skip"), st.none()),
    st.tuples(st.just("settle"), st.sets(st.integers(0, 30), max_size=8)),  # which of those that are open
    st.tuples(st.just("rewind"), st.integers(0, 6)),  # so many of the last ones
    st.tuples(st.just("others"), st.integers(1, 20)),  # the slowest of the others moves on
    st.tuples(st.just("restart"), st.none()),  # another owner loads what the store has
)


class Model:
    """Every position that was read, and what became of it; the marks that the store has."""

    def __init__(self, gaps: list[int], others: int) -> None:
        self.log = [*accumulate(gaps)]
        self.fates: dict[int, str] = {}
        self.marks: set[int] = set()
        self.prefix = self.floor = self.cursor = 0
        self.others = others

    @property
    def open(self) -> list[int]:
        return [position for position, fate in self.fates.items() if fate == OPEN]

    def settle(self, chosen: set[int]) -> tuple[int, list[int], int]:
        """The prefix, the new marks, and how many the store drops: looked for one position after the other."""
        self.fates |= dict.fromkeys(chosen, SETTLED)
        for position in sorted(self.fates):
            if self.fates[position] == OPEN:
                break
            self.prefix = max(self.prefix, position)
        self.floor = min(self.prefix, self.others)
        added = sorted(position for position in chosen if position > self.floor)
        dropped = {position for position in self.marks if position <= self.floor}
        self.marks = (self.marks - dropped) | set(added)
        return self.prefix, added, len(dropped)

    def following(self, count: int) -> list[int]:
        return [position for position in self.log if position > self.cursor][:count]

    def rewind(self, position: int) -> None:
        """What is above is read again; what was settled stays so."""
        self.fates = {at: fate for at, fate in self.fates.items() if at <= position}
        self.cursor = position


@settings(max_examples=3 * settings.default.max_examples)
@given(GAPS, st.lists(STEP, max_size=40), st.one_of(st.just(NO_FLOOR), st.integers(0, 20)))
def test_what_is_planned_is_what_a_look_at_every_position_says(
    gaps: list[int], steps: list[tuple[str, object]], others: int
) -> None:
    window, model = Window(0), Model(gaps, others)
    for verb, how in steps:
        match verb, how:
            case "take", None:
                for position in model.following(1):
                    take(window, model, position)
            case "take many", int(count) if not (window.has_done() or model.marks):
                if positions := model.following(count):
                    window.take_all(positions)
                    model.fates |= dict.fromkeys(positions, OPEN)
                    model.cursor = positions[-1]
            case "skip", None:
                for position in model.following(1):
                    window.skip(position)
                    model.fates[position] = SETTLED if position in model.marks else SKIPPED
                    model.cursor = position
            case "settle", set(numbers):
                chosen = {model.open[number % len(model.open)] for number in numbers} if model.open else set()
                assert window.can_advance() <= (window.plan((), model.others).prefix > window.position)
                plan = window.plan(chosen, model.others)
                assert (plan.prefix, plan.add, plan.pruned, plan.floor) == (*model.settle(chosen), model.floor)
                window.commit(plan)
            case "rewind", int(count):
                read = [at for at, fate in model.fates.items() if at > model.prefix and fate != SKIPPED]
                kept = read[-count - 1] if count < len(read) else model.prefix
                window.rewind(kept)
                model.rewind(kept)
            case "others", int(count):
                model.others += count
            case "restart", None:
                window = Window(model.prefix, model.marks)
                model.rewind(model.prefix)
        assert (window.position, window.cursor) == (model.prefix, model.cursor)
        assert window.unsettled() == len(model.open)
        assert [at for at in model.log if window.is_open(at)] == model.open


def take(window: Window, model: Model, position: int) -> None:
    is_new = position not in model.marks
    assert window.take(position) is is_new
    model.fates[position] = OPEN if is_new else SETTLED
    model.cursor = position


def test_event_that_another_partition_settled_is_passed_over() -> None:
    """It was one of ours under another key function, and the other partition has left its mark."""
    window = Window(5, (), elsewhere=[6])
    assert [window.take(position) for position in (6, 7)] == [False, True]
    assert window.is_done(6)
    assert window.plan({7}) == (7, [], 0, 2, 7)


def test_settled_event_that_is_asked_for_no_more_is_still_dropped_from_the_marks() -> None:
    window = Window(1, [3])
    assert window.take(2)
    window.skip(3)
    assert window.plan({2}) == (3, [], 1, 2, 3)


def test_marks_up_to_the_prefix_are_dropped_when_the_others_have_passed_them() -> None:
    """They were left for the slowest partition, and another owner has loaded them since."""
    window = Window(5, [4, 5, 7])
    assert window.take(6)
    assert window.plan({6}, others=6) == (6, [], 2, 1, 6)


def test_projection_marks_what_the_slowest_partition_has_not_reached() -> None:
    window = Window(5)
    assert window.pass_to(8, [6, 7, 8], others=6) == (8, [7, 8], 0, 0, 6)
    assert window.pass_to(8, [6, 7, 8]) == (8, [], 0, 0, 8)


def test_window_holds_nothing_of_what_the_prefix_has_passed() -> None:
    window = Window(0)
    for first in range(1, 100, 3):
        window.take_all([first, first + 1, first + 2])
        window.commit(window.plan({first + 2}))
        window.commit(window.plan({first, first + 1}))
    assert (window.position, len(window), len(window._stored)) == (99, 0, 0)


def test_what_nobody_waits_for_in_front_lets_the_prefix_advance() -> None:
    window = Window(0)
    assert not window.can_advance()
    window.skip(3)
    assert window.can_advance()
    window.take(4)
    window.commit(window.plan(()))
    assert (window.position, window.can_advance()) == (3, False)


def test_a_run_that_nobody_asked_for_is_one_entry() -> None:
    window = Window(0)
    for position in range(1, 100):
        window.skip(position)
    assert len(window) == 1
    assert window.plan(()).prefix == 99


def test_what_was_settled_stays_so_when_it_is_read_again() -> None:
    window = Window(0)
    window.take_all([1, 2, 3])
    window.commit(window.plan({2}))
    window.rewind(1)
    assert [window.take(2), window.take(3)] == [False, True]
    assert window.plan({1, 3}) == (3, [], 1, 3, 3)
