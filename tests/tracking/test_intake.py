"""The intake limit: what is over it is kept beside the log, dropped by a rule, or passes because it may."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from click.testing import CliRunner

from redrive import App, StoreError, UsageError, rules, severity, strict
from redrive.cli import cli
from redrive.observe import signals as sig
from redrive.replay.admit import admit, waiting
from redrive.testing import Harness
from redrive.testing.failpoints import FailpointHit, failpoint


@pytest.fixture
def harness(app: App, backend: str | None) -> object:
    with Harness(app, backend) as harness:
        yield harness


def data_of(app: App, log: str = "orders") -> list[object]:
    return [event.data for event in app.log(log).read()]


def limited(harness: Harness) -> dict[str, int]:
    """Counted fates."""
    harness.app.runtime.tracker.report.tell(0.0, last=True)
    found: Counter[str] = Counter()
    for signal in harness.signals:
        if isinstance(signal, sig.TrackLimited):
            found[signal.fate] += signal.count
    return dict(found)


def test_over_the_limit_nothing_is_lost_unless_a_rule_says_so(harness: Harness) -> None:
    orders = harness.app.log("orders", intake="10/s")
    ids = [orders.track("made", number, key="a") for number in range(25)]
    assert data_of(harness.app) == list(range(10))
    assert data_of(harness.app, "orders:limited") == list(range(10, 25))
    assert [one is None for one in ids] == [False] * 10 + [True] * 15
    (first, *_) = harness.app.log("orders:limited").read()
    assert first.headers["redrive-reason"] == "rate_limited"
    assert first.headers["redrive-limit"] == "10/s"
    assert "redrive-exceeded-at" in first.headers
    assert limited(harness) == {"kept": 15}


def test_the_limit_lets_more_in_as_time_goes_by(harness: Harness) -> None:
    orders = harness.app.log("orders", intake="10/s")
    for second in range(5):
        for number in range(20):
            orders.track("made", 20 * second + number)
        harness.advance("1s")
    assert len(data_of(harness.app)) == 50
    assert len(data_of(harness.app, "orders:limited")) == 50


def test_the_story_of_the_flood_payments_are_kept_and_junk_is_dropped_and_counted(harness: Harness) -> None:
    """1,000 a second are let in; of the rest, payments are kept and what nobody asked for is dropped and counted."""
    orders = harness.app.log("orders", intake="1000/s", keep=["payment.*"])
    for number in range(5_000):
        orders.track("payment.made" if number % 5 == 0 else "junk", number)
    inside = [event.type for event in orders.read()]
    beside = [event.type for event in harness.app.log("orders:limited").read()]
    assert len(inside) == 1_000
    assert inside.count("payment.made") + len(beside) == 1_000
    assert set(beside) == {"payment.made"}
    assert limited(harness) == {"kept": 800, "dropped by keep_if is_kept_otherwise": 3_200}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (None, ["a", "b"]),
        ((), []),
        ("a", ["a"]),
        (re.compile("[ab]"), ["a", "b"]),
        (lambda letter: letter.reason == "rate_limited" and letter.event.data == 2, ["b"]),
        (rules(discard="b"), ["a"]),
        (lambda letter: 1 / 0, ["a", "b"]),  # a broken rule loses nothing
    ],
)
def test_keep_takes_patterns_functions_and_rules(harness: Harness, keep: object, kept: list[str]) -> None:
    orders = harness.app.log("orders", intake="1/s", keep=keep)  # type: ignore[arg-type]
    orders.track("first", 0)
    orders.track("a", 1)
    orders.track("b", 2)
    assert [event.type for event in harness.app.log("orders:limited").read()] == kept


@pytest.mark.parametrize(
    ("bypass", "passed"),
    [
        ("audit.*", ["audit.x"]),
        (severity("error", "fatal"), ["by.header", "by.data"]),
        ([severity("fatal"), "audit.x"], ["audit.x", "by.data"]),
        (lambda event: event.key == "vip", ["by.key"]),
        (lambda event: 1 / 0, []),  # a broken one opens nothing
    ],
)
def test_bypass_passes_by_pattern_severity_or_function_at_any_rate(
    harness: Harness, bypass: object, passed: list[str]
) -> None:
    orders = harness.app.log("orders", intake="1/s", keep=(), bypass=bypass)  # type: ignore[arg-type]
    orders.track("first")
    orders.track("audit.x", {"severity": "info"})
    orders.track("by.header", 1, headers={"severity": "error"})
    orders.track("by.data", {"severity": "fatal"})
    orders.track("by.key", [], key="vip")
    assert [event.type for event in orders.read()] == ["first", *passed]


def test_append_and_strict_are_not_limited(harness: Harness) -> None:
    orders = harness.app.log("orders", intake="1/s")
    for number in range(5):
        orders.append("made", number)
    with strict():
        for number in range(5, 10):
            orders.track("made", number)
    assert data_of(harness.app) == list(range(10))


def test_a_limit_is_given_once_and_whole(app: App) -> None:
    assert app.log("a", intake="5/s") is app.log("a") is app.log("a", intake="5/s")
    with pytest.raises(UsageError, match="already"):
        app.log("a", intake="6/s")
    with pytest.raises(UsageError, match="intake="):
        app.log("b", keep="x")
    with pytest.raises(UsageError, match="is not a rate"):
        app.log("c", intake="fast")


def test_what_waits_beside_is_let_in_once_in_order_whatever_interrupts(harness: Harness) -> None:
    app = harness.app
    orders = app.log("orders", intake="1/s")
    for number in range(2_501):
        orders.track("made", number, key="a")
    operator = app.operate("ada").operator
    assert waiting(operator, "orders") == 2_500
    with failpoint("operator.before_commit", at=2), pytest.raises(FailpointHit):
        admit(operator, "orders")
    assert waiting(operator, "orders") == 1_500
    assert admit(operator, "orders", count=3).done == 3
    assert admit(operator, "orders").left == 0
    assert admit(operator, "orders").done == 0
    assert [event.data for event in orders.read_key("a")] == list(range(2_501))


def test_a_log_that_is_not_there_has_nothing_to_let_in_and_is_named(harness: Harness) -> None:
    orders = harness.app.log("orders", intake="1/s")
    operator = harness.app.operate("ada").operator
    for deed in (waiting, admit):
        with pytest.raises(UsageError, match="there is no log 'order' in this store; there are: none"):
            deed(operator, "order")
    orders.append("made", 1)
    assert admit(operator, "orders").left == waiting(operator, "orders") == 0
    for deed in (waiting, admit):
        with pytest.raises(UsageError, match="there is no log 'order' in this store; did you mean 'orders'"):
            deed(operator, "order")


def test_what_nobody_wants_is_left_out_with_a_reason(harness: Harness) -> None:
    orders = harness.app.log("orders", intake="1/s")
    for number in range(5):
        orders.track("made", number)
    operator = harness.app.operate("ada").operator
    with pytest.raises(UsageError, match="reason"):
        admit(operator, "orders", discard=True)
    assert admit(operator, "orders", discard=True, count=2, reason="a flood").done == 2
    assert admit(operator, "orders").done == 2
    assert data_of(harness.app) == [0, 3, 4]
    with harness.app.runtime.store.reading() as tx:
        assert [row[3] for row in tx.books.audited()] == ["discard limited", "admit"]


def test_the_command_says_what_it_did(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_STORE", app.runtime.address)  # the command sets it, and a process ends after a command
    orders = app.log("orders", intake="1/s")
    for number in range(4):
        orders.track("made", number)
    app.close()
    line = ["--store", app.runtime.address, "admit", "orders"]
    run = CliRunner().invoke
    assert "3 events wait beside orders" in run(cli, [*line, "--dry-run"]).output
    assert "1 event let into orders; 2 still waiting" in run(cli, [*line, "--limit", "1"]).output
    assert "2 events left out of orders; 0 still waiting" in run(cli, [*line, "--discard", "--reason", "junk"]).output
    assert '"left": 0' in run(cli, [*line, "--json"]).output
    assert data_of(app) == [0, 1]


def test_over_the_limit_and_the_store_away_is_kept_too(harness: Harness) -> None:
    orders = harness.app.log("orders", intake="1/s")
    harness.fault = StoreError("away")
    for number in range(4):
        orders.track("made", number)
    harness.fault = None
    assert orders.flush()
    assert data_of(harness.app) == [0]
    assert data_of(harness.app, "orders:limited") == [1, 2, 3]
