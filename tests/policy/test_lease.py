"""Leases and clocks: who may work, and when something is due after the clock was set back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.lease import Lease, State, is_crash, may_take, rebase, renew_at, state_of

times = st.floats(0.0, 4e9)
delays = st.floats(0.0, 1e7)
leases = st.builds(
    Lease,
    owner=st.sampled_from([None, "a", "b"]),
    epoch=st.integers(0, 1_000),
    until=times,
    unclean=st.booleans(),
    boot_id=st.sampled_from(["x", "y"]),
)


@given(leases, times, st.booleans())
def test_a_lease_is_taken_only_if_it_is_free_mine_expired_or_its_owner_is_dead(
    lease: Lease, now: float, dead: bool
) -> None:
    expected = lease.owner is None or lease.owner == "a" or now >= lease.until or dead
    assert may_take(lease, me="a", now=now, owner_is_dead=dead) == expected


@given(leases, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_a_lease_that_nobody_renewed_for_its_length_is_over_even_if_the_clock_was_set_back(
    lease: Lease, unchanged_for: float, length: float
) -> None:
    long_ago = lease.until - 1e6
    taken = may_take(lease, me="c", now=long_ago, owner_is_dead=False, unchanged_for=unchanged_for, length=length)
    assert taken == (lease.owner is None or unchanged_for >= length)


def test_the_moment_a_lease_ends_it_may_be_taken() -> None:
    lease = Lease("a", 7, until=10.0, unclean=True, boot_id="x")
    assert not may_take(lease, me="b", now=9.999, owner_is_dead=False)
    assert may_take(lease, me="b", now=10.0, owner_is_dead=False)
    assert state_of(lease, now=10.0, owner_is_dead=False) is State.EXPIRED


@given(times, st.floats(0.1, 1e6))
def test_a_renewal_is_never_in_the_past_and_always_before_the_end(now: float, length: float) -> None:
    assert now <= renew_at(now, length) < now + length


def test_two_renewals_may_fail_before_a_lease_is_lost() -> None:
    assert renew_at(0.0, 30.0) == pytest.approx(10.0)


@given(leases, st.sampled_from(["x", "y"]))
def test_only_an_unreleased_lease_of_the_same_boot_is_a_crash(lease: Lease, boot_id: str) -> None:
    assert is_crash(lease, boot_id) == (lease.unclean and lease.boot_id == boot_id)


@given(set_at=times, delay=delays, now=times, delay_max=delays)
def test_nothing_is_ever_due_later_than_the_maximum_from_now(
    set_at: float, delay: float, now: float, delay_max: float
) -> None:
    assert rebase(set_at + delay, set_at, delay, now, delay_max) <= now + delay_max


@given(set_at=times, delay=delays, now=times, delay_max=delays)
def test_nothing_is_due_before_its_time_and_after_a_clock_ran_back_it_is_due_a_whole_delay_from_now(
    set_at: float, delay: float, now: float, delay_max: float
) -> None:
    due = rebase(set_at + delay, set_at, delay, now, delay_max)
    if now >= set_at:
        assert due >= min(set_at + delay, now + delay_max)
    else:
        assert due == now + min(delay, delay_max)


@given(set_at=times, delay=delays, passed=delays)
def test_a_clock_that_runs_as_it_should_changes_nothing(set_at: float, delay: float, passed: float) -> None:
    assert rebase(set_at + delay, set_at, delay, set_at + passed, delay_max=delay) == set_at + delay


@given(set_at=times, delay=delays, now=times)
def test_a_rebased_letter_that_is_stored_is_not_rebased_again(set_at: float, delay: float, now: float) -> None:
    due = rebase(set_at + delay, set_at, delay, now, delay)
    assert rebase(due, now, delay, now, delay) == due
