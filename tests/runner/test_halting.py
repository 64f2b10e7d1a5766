"""When the world fails: halt, say why, lose nothing, spend nothing, and go on by itself."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import App, Reject, StoreError, UsageError, retry
from redrive.errors import CommitUnknown
from redrive.observe import signals as sig
from redrive.settings import Settings
from redrive.testing import Harness, failpoint

KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])
NO_LETTERS = {  # by whether it is Postgres
    False: ["CREATE TRIGGER no_letters BEFORE INSERT ON redrive_letters BEGIN SELECT RAISE(ABORT, 'no letters'); END"],
    True: [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no letters'; END $$",
        "CREATE TRIGGER no_letters BEFORE INSERT ON redrive.letters FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
}


class Subject:
    """A function that notes what it applied and rejects the key x."""

    def __init__(self, app: App, kind: str, **options: Any) -> None:
        self.attempts: list[Any] = []
        with app.transaction() as tx:
            tx.execute("CREATE TABLE applied (n INTEGER)")

        def apply(event: Any, out: Any) -> None:
            self.attempts.append(getattr(out, "attempt", None))
            if event.key == "x":
                raise Reject("no")
            if event.key == "y":
                raise OSError
            out.execute("INSERT INTO applied VALUES (:n)", {"n": event.data})

        if kind == "projection":
            app.projection(app.log("orders"), name="apply", **options)(apply)
        else:
            app.on(app.log("orders"), name="apply", start="first", **options)(apply)


def applied(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM applied ORDER BY n")]


def halts(harness: Harness) -> list[float]:
    return [signal.wait for signal in harness.signals if isinstance(signal, sig.Halted)]


@KINDS
def test_a_store_that_cannot_be_written_halts_and_it_resumes_by_itself(app: App, harness: Harness, kind: str) -> None:
    Subject(app, kind)
    harness.append("orders", "order.placed", 1, key="a")
    harness.run_until_idle()
    for number in (2, 3):
        harness.append("orders", "order.placed", number, key="a")
    harness.fault = StoreError("the disk is full")
    harness.run_until_idle()
    assert "the disk is full" in harness.halted["apply"]
    assert applied(harness) == [1]
    harness.advance("1m")
    assert halts(harness)[:4] == [1, 2, 4, 8]
    harness.fault = None
    harness.advance("30s")
    assert applied(harness) == [1, 2, 3]
    assert (harness.halted, harness.letters()) == ({}, [])
    assert any(isinstance(signal, sig.Resumed) for signal in harness.signals)


@KINDS
def test_the_pause_of_a_halt_grows_to_a_maximum_and_starts_small_again(app: App, harness: Harness, kind: str) -> None:
    Subject(app, kind)
    harness.run_until_idle()
    for number in range(2):
        harness.append("orders", "order.placed", number, key="a")
        harness.fault = StoreError("gone")
        harness.advance("2m")
        harness.fault = None
        harness.advance("31s")
    pauses = halts(harness)
    assert pauses[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert pauses.count(1) == 2
    assert applied(harness) == [0, 1]


def test_a_start_that_cannot_reach_the_store_fails_at_once(app: App, harness: Harness) -> None:
    Subject(app, "handler")
    harness.fault = StoreError("gone")
    with pytest.raises(StoreError, match="gone"):
        harness.run_until_idle()


@KINDS
def test_a_halt_spends_no_attempt(app: App, harness: Harness, kind: str) -> None:
    subject = Subject(app, kind, retry=retry(attempts=2, wait="1s", jitter=0))
    harness.append("orders", "order.placed", 1, key="a")
    harness.run_until_idle()
    harness.append("orders", "order.placed", 2, key="y")
    harness.fault = StoreError("gone")
    harness.advance("10m")
    harness.fault = None
    harness.advance("10m")
    assert [(letter.state, letter.attempts) for letter in harness.letters()] == [("dead", 2)]
    if kind == "handler":
        assert subject.attempts[-1] == 2


@KINDS
def test_a_dead_letter_that_cannot_be_written_stops_progress_until_it_can(
    app: App, harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    Subject(app, kind)
    with app.transaction() as tx:
        for statement in NO_LETTERS[harness.on_postgres]:
            tx.execute(statement)
    for number, key in enumerate("axb"):
        harness.append("orders", "order.placed", number, key=key)
    harness.run_until_idle()
    assert "no letters" in harness.halted["apply"]
    harness.advance("5m")
    [(position,)] = harness.query("SELECT position FROM redrive_progress")
    assert position < 2
    assert harness.letters() == []
    [(halted,)] = harness.query("SELECT halted FROM redrive_progress")
    assert "no letters" in halted
    with app.transaction() as tx:
        tx.execute(f"DROP TRIGGER no_letters {'ON redrive.letters' if harness.on_postgres else ''}")
    harness.advance("1m")
    assert applied(harness) == [0, 2]
    assert [(letter.state, letter.position) for letter in harness.letters()] == [("dead", 2)]
    assert harness.query("SELECT halted FROM redrive_progress") == [(None,)]


PLACES = {
    "projection": ["batch.read", "batch.fenced", "batch.called", "batch.before_commit", "batch.committed"],
    "handler": ["round.called", "round.fenced", "round.effects", "round.before_commit", "round.committed"],
}


@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind, places in PLACES.items() for place in places])
@pytest.mark.parametrize("error", [StoreError("gone"), CommitUnknown("no answer"), OSError("a bug")], ids=str)
def test_an_error_of_the_store_anywhere_in_settling_loses_and_doubles_nothing(
    app: App, harness: Harness, kind: str, place: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    Subject(app, kind)
    for number, key in enumerate("abxcx"):
        harness.append("orders", "order.placed", number, key=key)
    with failpoint(place, error) as armed:
        harness.run_until_idle()
        harness.advance("1m")
    assert armed.fired
    harness.advance("1m")
    assert applied(harness) == [0, 1, 3]
    assert [(letter.state, letter.position) for letter in harness.letters()] == [("dead", 3), ("retrying", 5)]
    assert harness.query("SELECT applied, position FROM redrive_progress") == [(3, 5)]


@pytest.mark.parametrize("place", ["letter.fenced", "letter.before_commit", "letter.committed"])
def test_an_error_of_the_store_at_a_retry_loses_and_doubles_nothing(app: App, harness: Harness, place: str) -> None:
    @app.projection(app.log("orders"), tables={"applied": "n INTEGER"}, retry=retry(wait="1s", jitter=0))
    def apply(event, tx):
        if harness.clock.monotonic() < 1:
            raise OSError
        tx.execute("INSERT INTO applied VALUES (:n)", {"n": event.data})

    harness.append("orders", "order.placed", 1, key="a")
    harness.append("orders", "order.placed", 2, key="a")
    with failpoint(place, CommitUnknown("no answer")) as armed:
        harness.advance("1m")
    assert armed.fired
    assert applied(harness) == [1, 2]
    assert {letter.state for letter in harness.letters()} == {"applied"}


@KINDS
def test_an_anchor_that_does_not_match_halts_with_an_explanation_and_the_choices(
    app: App, harness: Harness, kind: str
) -> None:
    """A restored backup: the events at these positions are others than those that were settled."""
    Subject(app, kind)
    for number in range(3):
        harness.append("orders", "order.placed", number, key="a")
    harness.run_until_idle()
    harness.restart()
    with app.transaction() as tx:
        tx.execute(harness.own("UPDATE redrive_events SET id = 'another' WHERE position = 3"))
    harness.run_until_idle()
    reason = harness.halted["apply"]
    assert "backup" in reason
    assert "redrive rebuild apply" in reason
    assert applied(harness) == [0, 1, 2]
    with app.transaction() as tx:
        anchor = "UPDATE redrive_events SET id = (SELECT anchor FROM redrive_progress) WHERE position = 3"
        tx.execute(harness.own(anchor))
    harness.append("orders", "order.placed", 3, key="a")
    harness.advance("1m")
    assert applied(harness) == [0, 1, 2, 3]


@KINDS
def test_a_letter_whose_event_is_gone_halts_and_says_which(app: App, harness: Harness, kind: str) -> None:
    Subject(app, kind, retry=retry(wait="1m", jitter=0))
    harness.append("orders", "order.placed", 1, key="y")
    harness.append("orders", "order.placed", 2, key="a")
    harness.run_until_idle()
    harness.tampered = True  # type: ignore[attr-defined]
    with app.transaction() as tx:
        tx.execute(harness.own("DELETE FROM redrive_events WHERE position = 1"))
    harness.advance("2m")
    assert "no longer in the log" in harness.halted["apply"]
    assert [letter.state for letter in harness.letters()] == ["retrying"]


@KINDS
@pytest.mark.parametrize("restart", [True, False], ids=["at a restart", "while it runs"])
def test_a_clock_that_is_set_back_delays_a_retry_by_no_more_than_its_own_wait(
    app: App, start: Any, kind: str, restart: bool
) -> None:
    harness = start(app, settings=Settings(lease=9.0, poll_min=1e6, poll_max=1e6))
    Subject(app, kind, retry=retry(attempts=3, wait="1m", factor=1, wait_max="1m", jitter=0))
    harness.append("orders", "order.placed", 1, key="y")
    harness.run_until_idle()
    harness.clock.jump(-86_400)
    if restart:
        harness.restart()
    harness.advance("64s")  # the time between two renewals may be added while it runs
    assert harness.letters()[0].attempts == 2


@KINDS
def test_a_clock_that_is_set_back_is_noticed_before_the_lease_is_renewed(app: App, start: Any, kind: str) -> None:
    harness = start(app, settings=Settings(lease=1e6, poll_min=1e6, poll_max=1e6))
    Subject(app, kind, retry=retry(attempts=3, wait="1m", factor=1, wait_max="1m", jitter=0))
    harness.append("orders", "order.placed", 1, key="y")
    harness.run_until_idle()
    harness.clock.jump(-86_400)
    harness.append("orders", "order.placed", 2, key="b")
    harness.run_until_idle()  # it looks at the clock whenever there is something to do
    harness.advance("61s")
    assert harness.letters()[0].attempts == 2


@KINDS
def test_a_clock_that_is_set_forward_makes_retries_due(app: App, harness: Harness, kind: str) -> None:
    Subject(app, kind, retry=retry(attempts=3, wait="1h", wait_max="1h", jitter=0))
    harness.append("orders", "order.placed", 1, key="y")
    harness.run_until_idle()
    harness.clock.jump(3601)
    harness.run_until_idle()
    assert harness.letters()[0].attempts == 2


@KINDS
def test_a_halted_subscription_does_not_stop_the_others(
    app: App, harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    Subject(app, kind)
    other = []
    app.on(app.log("orders"), start="first", name="other")(lambda event, ctx: other.append(event.data))
    with app.transaction() as tx:
        for statement in NO_LETTERS[harness.on_postgres]:
            tx.execute(statement)
    for number, key in enumerate("xab"):
        harness.append("orders", "order.placed", number, key=key)
    harness.advance("1m")
    assert list(harness.halted) == ["apply"]
    assert other == [0, 1, 2]


def test_a_tx_that_is_kept_emits_for_nobody_and_who_is_halted_is_stopped_at_once(app: App, harness: Harness) -> None:
    kept = list[Any]()

    @app.projection(app.log("orders"), start="first")
    def keep(event: Any, tx: Any) -> None:
        kept.append(tx)

    harness.append("orders", "t", 1)
    with failpoint("batch.before_commit", StoreError("gone")):
        harness.run_until_idle()
    assert harness.halted
    with pytest.raises(UsageError, match="over"):
        kept[-1].emit(app.log("out"), "t", None, key=None)
    before = harness.clock.monotonic()
    harness.restart()
    assert harness.clock.monotonic() - before < 0.1
