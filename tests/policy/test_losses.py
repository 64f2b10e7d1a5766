"""What a lost connection means for the events of its transaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.losses import Loss, Verdict, verdict

SEVEN, OTHERS = frozenset({6, 7, 8}), frozenset({1, 2})


@pytest.mark.parametrize("code", ["", "57P01", "25P03", "25P04", "XX000"])
def test_second_loss_with_the_same_events_isolates_them(code: str) -> None:
    loss = Loss(code, 1.0, SEVEN)
    assert verdict(loss, None, 1.0) == Verdict.REMEMBER
    assert verdict(loss, Loss("", 1.0, OTHERS), 1.0) == Verdict.REMEMBER
    assert verdict(loss, Loss("", 1.0, frozenset({7, 9})), 1.0) == Verdict.ISOLATE


@pytest.mark.parametrize("code", ["", "57P01", "25P03", "25P04", "XX000"])
def test_loss_while_alone_is_charged(code: str) -> None:
    assert verdict(Loss(code, 1.0, frozenset({7}), alone=True), None, 1.0) == Verdict.CHARGE


@pytest.mark.parametrize(
    ("loss", "server"),
    [
        (Loss("57P01", 1.0, SEVEN, alone=True), 2.0),  # the server was restarted
        (Loss("", 1.0, SEVEN, alone=True), 2.0),
        (Loss("57P01", 1.0, SEVEN, alone=True), None),  # another kind of server: nothing is known
        (Loss("57P01", None, SEVEN, alone=True), None),
        (Loss("57P01", None, SEVEN, alone=True), 1.0),
        (Loss("57P02", 1.0, SEVEN, alone=True), 1.0),  # another backend crashed
        (Loss("57P03", 1.0, SEVEN, alone=True), 1.0),  # it is starting
        (Loss("57P05", 1.0, SEVEN, alone=True), 1.0),  # idle, outside of a transaction
        (Loss("08006", 1.0, SEVEN, alone=True), 1.0),  # a pooler says so
        (Loss("53300", 1.0, SEVEN, alone=True), 1.0),
        (Loss("57P01", 1.0, frozenset(), alone=True), 1.0),  # no function ran
        (Loss("", 1.0, frozenset()), 1.0),
    ],
)
def test_loss_that_no_event_can_have_caused_is_excused(loss: Loss, server: float | None) -> None:
    for former in (None, loss, Loss("", 1.0, SEVEN)):
        assert verdict(loss, former, server) == Verdict.EXCUSE


LOSSES = st.builds(
    Loss,
    st.sampled_from(["", "57P01", "57P02", "25P03", "08006"]),
    st.sampled_from([None, 1.0, 2.0]),
    st.frozensets(st.integers(1, 4)),
    alone=st.booleans(),
)


@given(LOSSES, st.none() | LOSSES, st.sampled_from([None, 1.0, 2.0]))
def test_only_an_event_that_ran_alone_on_a_server_that_lives_is_charged(
    loss: Loss, former: Loss | None, server: float | None
) -> None:
    found = verdict(loss, former, server)
    if found == Verdict.CHARGE:
        assert loss.alone and loss.positions and loss.server == server is not None
    if found == Verdict.ISOLATE:
        assert former is not None and loss.positions & former.positions and not loss.alone
