"""Rows with numbers, several of which are written at a time: followed in order, none is passed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.following import NO_GAP, complete


@given(st.data())
def test_whatever_commits_when_none_is_passed_over_and_none_waits_for_ever(data: st.DataObject) -> None:
    """Transactions take numbers in turn, and end in any order; a reader looks in between."""
    running: dict[int, list[int]] = {}
    committed: set[int] = set()
    visible: set[int] = set()
    begun, number, after, gap = 1, 0, 0, NO_GAP
    read: list[int] = []

    def look() -> None:
        nonlocal after, gap
        rows = sorted(one for one in visible if one > after)[:3]
        count, gap = complete(after, rows, min(running, default=begun), begun, gap)
        read.extend(rows[:count])
        after = rows[count - 1] if count else after

    for _ in range(data.draw(st.integers(0, 40))):
        step = data.draw(st.sampled_from(["begin", "write", "commit", "undo", "look"]))
        if step == "begin":
            running[begun] = []
            begun += 1
        elif step == "look":
            look()
        elif running:
            one = data.draw(st.sampled_from(sorted(running)))
            if step == "write":
                number += 1
                running[one].append(number)
            else:
                numbers = running.pop(one)
                if step == "commit":
                    committed |= set(numbers)
                    visible |= set(numbers)
    for one in sorted(running):
        committed |= set(running[one])
        visible |= set(running.pop(one))
    for _ in range(len(committed) + 2):
        look()
    assert read == sorted(committed)
