"""Stretches: what is free between positions that are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.progress import stretches

POSITIONS = st.integers(0, 30)
TAKEN = st.lists(st.tuples(POSITIONS, POSITIONS).map(lambda pair: (min(pair), max(pair))), max_size=6)


@given(POSITIONS, POSITIONS, TAKEN)
def test_every_position_is_taken_or_in_one_stretch(above: int, upto: int, taken: list[tuple[int, int]]) -> None:
    found = [position for low, high in stretches(above, upto, taken) for position in range(low + 1, high + 1)]
    held = {position for low, high in taken for position in range(low + 1, high + 1)}
    assert found == [position for position in range(above + 1, upto + 1) if position not in held]


@given(POSITIONS, POSITIONS, TAKEN)
def test_no_stretch_is_empty(above: int, upto: int, taken: list[tuple[int, int]]) -> None:
    assert all(low < high for low, high in stretches(above, upto, taken))
