"""Partitions: every event belongs to one, and workers agree on who should own how many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.partitions import Share, may_want, place, quotas, surplus

WORKERS = st.lists(st.sampled_from("abcde"), min_size=1, unique=True)


@given(st.integers(1, 8), st.text(min_size=1, max_size=20), st.one_of(st.none(), st.text(min_size=1, max_size=20)))
def test_every_event_belongs_to_exactly_one_partition(count: int, event_id: str, key: str | None) -> None:
    owners = [number for number in range(count) if Share(number, count).has_event(event_id, key)]
    assert owners == [place(event_id if key is None else key, count)] and 0 <= owners[0] < count


@given(st.integers(1, 20), WORKERS)
def test_quotas_add_up_and_differ_by_one_at_most(partitions: int, workers: list[str]) -> None:
    found = quotas(partitions, workers, "totals")
    assert sum(found.values()) == partitions and found.keys() == set(workers)
    assert max(found.values()) - min(found.values()) <= 1


@given(st.lists(st.sampled_from(["a", "b", "c", None, "gone"]), min_size=1, max_size=12), st.randoms())
def test_handing_over_ends_with_every_quota_met(first: list[str | None], dice: object) -> None:
    """Whoever has too many hands over, whoever has too few takes a free one; it ends, and nobody is short."""
    owners: dict[int, str | None] = dict(enumerate(first))
    quota = quotas(len(first), ["a", "b", "c"], "totals")
    for _ in range(3 * len(first) + 3):
        for me in quota:
            given_up = surplus(owners, quota, me)
            assert len(given_up) <= max(0, sum(1 for one in owners.values() if one == me) - quota[me])
            owners |= dict.fromkeys(given_up, None)
            free = [number for number, owner in owners.items() if owner not in quota]
            if free and may_want(owners, quota, me):
                owners[free[0]] = me
    assert {me: list(owners.values()).count(me) for me in quota} == quota


def test_nothing_is_handed_over_while_free_ones_are_enough_for_the_others() -> None:
    quota = {"a": 1, "b": 1}
    assert surplus({0: "a", 1: "a", 2: None}, quota, "a") == []
    assert surplus({0: "a", 1: "a"}, quota, "a") == [1]
    assert surplus({0: "a", 1: "a", 2: "b"}, quota, "a") == []
    assert surplus({0: "a", 1: "a"}, quota, "a", stuck=[0, 1]) == []
    assert [may_want({0: "a", 1: None}, quota, me) for me in ("a", "b", "stranger")] == [False, True, False]
