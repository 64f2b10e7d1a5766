"""Strides: where events fail few share a savepoint, where none does many. Whatever their length, effects are exact."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from redrive import App, retry
from redrive.runner.strides import STRIDE_MAX, STRIDE_MIN, Pace
from redrive.testing import Harness
from redrive.testing.failpoints import failpoint

SEEN = {"seen": "n INTEGER"}


def paced(apart: int, failures: int = 30) -> int:
    pace = Pace()
    for _ in range(failures):
        pace.ran(apart - 1)
        pace.failed()
    return pace.stride


def test_a_stride_is_as_long_as_failures_are_rare() -> None:
    assert Pace().stride == STRIDE_MAX
    assert paced(1) == STRIDE_MIN
    assert 15 <= paced(100) <= 19
    assert paced(100_000) == STRIDE_MAX


def test_strides_grow_again_when_failures_end() -> None:
    pace = Pace()
    for _ in range(30):
        pace.failed()
    pace.ran(STRIDE_MAX**2)
    assert pace.stride == STRIDE_MAX


@pytest.mark.parametrize("every", [1, 2, 5, 33])
def test_whatever_fails_the_others_are_applied_once(app: App, harness: Harness, every: int) -> None:
    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=3, wait="1s", jitter=0))
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (?)", (event.data,))
        if event.data % every == 0:
            raise OSError("it fails after it wrote")

    for number in range(200):
        harness.append("orders", "order.placed", number)
    harness.advance("1m")
    good = [number for number in range(200) if number % every]
    assert harness.query("SELECT n FROM seen ORDER BY rowid") == [(number,) for number in good]
    dead = harness.letters("dead")
    assert [letter.attempts for letter in dead] == [3] * (200 - len(good))
    history = harness.query("SELECT letter, attempt FROM redrive_attempts ORDER BY letter, attempt")
    assert history == [(letter.id, attempt) for letter in dead for attempt in (1, 2, 3)]


def inside(harness: Harness) -> Any:
    """The transaction that is open now."""
    store = harness.app.runtime.store
    return store._held[threading.get_ident()] if harness.on_postgres else store._current


def test_of_many_retries_only_the_one_that_an_operator_took_is_lost(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=3, wait="1s", jitter=0))
    def project(event, tx):
        raise OSError("down")

    for number in range(3):
        harness.append("orders", "order.placed", number)
    harness.run_until_idle()
    taken = harness.letters()[1].id

    def take() -> None:
        execute = inside(harness).execute
        execute(harness.own("UPDATE redrive_letters SET rev = rev + 1 WHERE id = ?"), (taken,))
        execute(harness.own("UPDATE redrive_progress SET parked_version = parked_version + 1"))

    with failpoint("letter.fenced", take) as armed:
        harness.advance("1s")
    assert armed.fired
    second = harness.query("SELECT outcome FROM redrive_attempts WHERE attempt = 2 ORDER BY letter, id")
    assert second == [("failing",), ("lost to an operator",), ("failing",), ("failing",)]
    assert [letter.attempts for letter in harness.letters()] == [2, 2, 2]
