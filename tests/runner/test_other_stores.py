"""A function that has to do with another store: what goes wrong there is a failure of its event, no halt of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, StoreError, retry
from redrive.errors import CommitUnknown, Fenced, Halted, StoreBusy
from redrive.testing import Harness

TWICE = retry(attempts=2, wait="1s")
KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])


def declare(app: App, kind: str, function: Any) -> None:
    if kind == "projection":
        app.projection(app.log("orders"), name="read", retry=TWICE)(function)
    else:
        app.on(app.log("orders"), name="read", start="first", retry=TWICE)(function)


@KINDS
@pytest.mark.parametrize("error", [StoreError, StoreBusy, CommitUnknown, Halted, Fenced])
def test_an_error_of_ours_that_the_function_raises_is_its_failure(
    app: App, harness: Harness, kind: str, error: type[StoreError]
) -> None:
    def read(event: Any, _: Any) -> None:
        if event.data == "bad":
            raise error("mine")

    declare(app, kind, read)
    for data in ("a", "bad", "b"):
        harness.append("orders", "order.placed", data, key=data)
    harness.run_until_idle()
    harness.advance("1m")
    [letter] = harness.letters()
    assert (letter.state, letter.attempts, letter.error_message) == ("dead", 2, "mine")
    assert harness.halted == {}


@KINDS
def test_another_store_that_is_down_is_a_dependency_like_any_other(
    app: App, harness: Harness, kind: str, tmp_path: Path
) -> None:
    bank = App(str(tmp_path / "missing" / "bank.db"))

    def read(event: Any, _: Any) -> None:
        with bank.reader() as tx:
            tx.execute("SELECT 1")

    declare(app, kind, read)
    harness.append("orders", "order.placed")
    harness.run_until_idle()
    harness.advance("1m")
    [letter] = harness.letters()
    assert (letter.state, letter.error_type) == ("dead", "redrive.errors.StoreError")
    assert harness.halted == {}


@pytest.mark.sqlite  # a fault that strikes whoever begins a transaction
def test_our_own_store_that_is_down_is_still_the_worlds_fault(app: App, harness: Harness) -> None:
    orders, other, calls = app.log("orders"), app.log("other"), []

    def read(event: Any, _: Any) -> None:
        calls.append(event.id)
        harness.fault = StoreError("the disk is full") if len(calls) == 1 else None
        try:
            other.append("seen")
        finally:
            harness.fault = None

    declare(app, "handler", read)
    harness.append(orders, "order.placed")
    harness.run_until_idle()
    harness.advance("10m")
    assert (len(calls), harness.letters(), len(list(other.read()))) == (2, [], 1)
