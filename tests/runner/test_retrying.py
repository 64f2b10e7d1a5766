"""Retries: every option of `retry`, rule lists, verdicts, and the hook that hears of failures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from redrive import App, Ignore, Reject, RetryLater, UsageError, VersionConflict, conflicts, no_retry, retry
from redrive.observe import signals as sig
from redrive.testing import Harness


class Calls:
    """When a failing function was called, in seconds after the first call."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._times: list[float] = []

    def note(self) -> None:
        self._times.append(self._harness.clock.now())

    @property
    def waits(self) -> list[float]:
        """Between moments: a projection may be called twice in one attempt, as it touches nothing but the database."""
        return [round(late - early, 3) for early, late in pairwise(sorted(set(self._times)))]

    def __len__(self) -> int:
        return len(self._times)


def fail(app: App, harness: Harness, error: BaseException, **options: Any) -> Calls:
    """Declare a handler and a log where one event fails with this error, and append that event."""
    calls = Calls(harness)

    @app.on(app.log("orders"), start="first", **options)
    def charge(event, ctx):
        calls.note()
        raise error

    harness.append("orders", "order.placed", {"cents": 1}, key="a")
    return calls


def test_attempts_counts_the_first_call_and_waits_double_up_to_the_maximum(app: App, harness: Harness) -> None:
    rule = retry(attempts=6, wait="1s", factor=2, wait_max="5s", jitter=0)
    calls = fail(app, harness, OSError("no"), retry=rule)
    harness.advance("1h")
    assert calls.waits == [1, 2, 4, 5, 5]
    [letter] = harness.letters()
    assert (letter.state, letter.reason, letter.attempts) == ("dead", "attempts_exhausted", 6)


def test_the_factor_says_how_fast_waits_grow(app: App, harness: Harness) -> None:
    calls = fail(app, harness, OSError(), retry=retry(attempts=4, wait="100ms", factor=3, jitter=0))
    harness.advance("1h")
    assert calls.waits == [0.1, 0.3, 0.9]


def test_jitter_spreads_waits_around_the_rule_and_never_past_the_maximum(app: App, harness: Harness) -> None:
    calls = fail(app, harness, OSError(), retry=retry(attempts=40, wait="10s", factor=1, wait_max="11s", jitter=0.5))
    harness.advance("1h")
    assert all(5 <= wait <= 11 for wait in calls.waits)
    assert len(set(calls.waits)) > 5


def test_a_projection_waits_like_a_handler(app: App, harness: Harness) -> None:
    calls = Calls(harness)

    @app.projection(app.log("orders"), retry=retry(attempts=4, wait="1s", jitter=0))
    def revenue(event, tx):
        calls.note()
        raise OSError("no")

    harness.append("orders", "order.placed", key="a")
    harness.advance("1m")
    assert calls.waits == [1, 2, 4]
    assert [(letter.state, letter.attempts) for letter in harness.letters()] == [("dead", 4)]


def test_without_a_rule_there_are_five_attempts(app: App, harness: Harness) -> None:
    calls = fail(app, harness, OSError())
    harness.advance("1h")
    assert len(calls) == 5


def test_no_retry_buries_at_the_first_failure(app: App, harness: Harness) -> None:
    calls = fail(app, harness, OSError(), retry=no_retry)
    harness.advance("1h")
    assert len(calls) == 1
    assert harness.letters()[0].reason == "attempts_exhausted"


def test_on_names_the_errors_worth_another_try(app: App, harness: Harness) -> None:
    calls = fail(app, harness, KeyError("x"), retry=retry(attempts=3, on=ConnectionError))
    harness.advance("1h")
    assert len(calls) == 1
    assert harness.letters()[0].reason == "permanent"


def test_never_goes_straight_to_the_dead_letters_even_if_on_names_it(app: App, harness: Harness) -> None:
    calls = fail(app, harness, ConnectionResetError(), retry=retry(on=OSError, never=ConnectionResetError))
    harness.advance("1h")
    assert (len(calls), harness.letters()[0].reason) == (1, "permanent")


def test_the_first_rule_of_a_list_that_speaks_about_the_error_decides(app: App, harness: Harness) -> None:
    rules = [retry(attempts=2, on=KeyError), retry(attempts=4, on=LookupError), retry(attempts=3)]
    for name, error in [("key", KeyError()), ("index", IndexError()), ("other", OSError())]:

        @app.on(app.log(name), name=name, start="first", retry=rules)
        def handle(event, ctx, error=error):
            raise error

        harness.append(name, "happened")
    harness.advance("1h")
    assert {letter.subscription: letter.attempts for letter in harness.letters()} == {"key": 2, "index": 4, "other": 3}


def test_a_rule_may_be_about_some_types_of_events(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first", retry=[retry(attempts=2, types="order.*"), retry(attempts=3)])
    def charge(event, ctx):
        raise OSError

    harness.append("orders", "order.placed", key="a")
    harness.append("orders", "user.born", key="b")
    harness.advance("1h")
    assert {letter.type: letter.attempts for letter in harness.letters()} == {"order.placed": 2, "user.born": 3}


def test_an_error_that_no_rule_speaks_about_is_permanent(app: App, harness: Harness) -> None:
    calls = fail(app, harness, OSError(), retry=[retry(on=KeyError), retry(types="other.*")])
    harness.advance("1h")
    assert (len(calls), harness.letters()[0].reason) == (1, "permanent")


def test_a_retry_that_succeeds_leaves_its_letter_applied_with_its_history(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        if ctx.attempt < 3:
            raise OSError(f"attempt {ctx.attempt}")

    harness.append("orders", "order.placed", key="a")
    harness.advance("1m")
    [letter] = harness.letters()
    assert (letter.state, letter.attempts, letter.resolved_by) == ("applied", 3, "retry")
    history = harness.query("SELECT attempt, outcome, error_message FROM redrive_attempts ORDER BY id")
    assert history == [(1, "failing", "attempt 1"), (2, "failing", "attempt 2"), (3, "applied", "")]
    assert [(r.attempt, r.replayed) for r in harness.signals if isinstance(r, sig.Recovered)] == [(3, False)]


def test_reject_is_a_dead_letter_at_once(app: App, harness: Harness) -> None:
    calls = fail(app, harness, Reject("amount must be positive"))
    harness.advance("1h")
    [letter] = harness.letters()
    assert (len(calls), letter.state, letter.reason) == (1, "dead", "rejected")
    assert letter.error_message == "amount must be positive"


def test_ignore_settles_without_a_letter_and_drops_the_effects(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        ctx.emit(app.log("receipts"), "receipt.sent")
        raise Ignore("a test order")

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert (harness.letters(), harness.emitted("receipts")) == ([], [])
    assert harness.query("SELECT applied, ignored, position FROM redrive_progress") == [(0, 1, 1)]


def test_a_projection_that_ignores_an_event_takes_its_writes_back(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables={"seen": "key TEXT"})
    def seen(event, tx):
        tx.execute("INSERT INTO seen VALUES (:key)", {"key": event.key})
        if event.key == "b":
            raise Ignore

    for key in "abc":
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    assert harness.query("SELECT key FROM seen ORDER BY key") == [("a",), ("c",)]
    assert harness.query("SELECT applied, ignored FROM redrive_progress") == [(2, 1)]


def test_an_ignore_at_a_retry_settles_the_letter_as_discarded(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        raise OSError if ctx.attempt == 1 else Ignore("gone meanwhile")

    harness.append("orders", "order.placed", key="a")
    harness.advance("1m")
    assert [(letter.state, letter.resolved_by) for letter in harness.letters()] == [("discarded", "ignore verdict")]


def test_retry_later_comes_back_when_it_said_and_spends_an_attempt(app: App, harness: Harness) -> None:
    calls = fail(app, harness, RetryLater("90s", "busy"), retry=retry(attempts=3, wait="1s", wait_max="2s"))
    harness.advance("1h")
    assert calls.waits == [90, 90]
    assert harness.letters()[0].reason == "attempts_exhausted"


def test_retry_later_without_a_time_waits_as_the_rule_says(app: App, harness: Harness) -> None:
    calls = fail(app, harness, RetryLater(), retry=retry(attempts=3, wait="7s", jitter=0))
    harness.advance("1h")
    assert calls.waits == [7, 14]


def test_retry_later_counts_even_if_the_rule_names_other_errors(app: App, harness: Harness) -> None:
    calls = fail(app, harness, RetryLater("1s"), retry=retry(attempts=4, on=KeyError))
    harness.advance("1h")
    assert len(calls) == 4


def test_backoff_survives_a_restart(app: App, harness: Harness) -> None:
    calls = fail(app, harness, OSError(), retry=retry(attempts=3, wait="10m", factor=1, wait_max="10m", jitter=0))
    harness.advance("1m")
    harness.restart()
    harness.advance("5m")
    harness.crash()
    harness.advance("30m")
    assert calls.waits == [600, 600]


def test_a_due_letter_does_not_wait_for_new_events_nor_they_for_it(app: App, harness: Harness) -> None:
    done = []

    @app.on(app.log("orders"), start="first", retry=retry(wait="1m", jitter=0))
    def charge(event, ctx):
        if event.key == "a" and ctx.attempt == 1:
            raise OSError
        done.append(event.key)

    for key in "abc":
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    assert done == ["b", "c"]
    harness.advance("1m")
    assert done == ["b", "c", "a"]


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_letters_that_found_no_time_when_due_run_in_a_later_turn(app: App, harness: Harness, kind: str) -> None:
    """Each call takes longer than the write lock may be held: the others of the turn are not called."""
    done = []

    def apply(event, out):
        if harness.clock.monotonic() < 30:
            raise OSError
        harness.clock.advance(1)
        done.append(event.key)

    options = {"name": "apply", "start": "first", "retry": retry(wait="1m", jitter=0)}
    (app.projection if kind == "projection" else app.on)(app.log("orders"), **options)(apply)
    for key in "abcde":
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    harness.advance("2m")
    assert done == list("abcde")
    assert {letter.state for letter in harness.letters()} == {"applied"}


def test_on_error_hears_of_each_failed_attempt_and_not_of_verdicts(app: App, harness: Harness) -> None:
    heard = []

    @app.on(
        app.log("orders"),
        start="first",
        retry=retry(attempts=2),
        on_error=lambda event, error: heard.append((event.key, str(error))),
    )
    def charge(event, ctx):
        raise {"a": OSError("down"), "b": Reject("no"), "c": RetryLater("1s", "not now"), "d": Ignore()}[event.key]

    for key in "abcd":
        harness.append("orders", "order.placed", key=key)
    harness.advance("1m")
    assert [letter.attempts for letter in harness.letters("dead")] == [2, 1, 2]
    assert heard == [("a", "down"), ("a", "down")]


def test_on_error_hears_of_a_conflict_that_does_not_end(app: App, harness: Harness) -> None:
    heard = []

    @app.on(
        app.log("orders"), start="first", retry=no_retry, conflicts=conflicts(times=0),
        on_error=lambda event, error: heard.append(type(error)),
    )  # fmt: skip
    def charge(event, ctx):
        raise VersionConflict("orders", "a", 1, 2)

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert heard == [VersionConflict]


@pytest.mark.parametrize("kind", ["projection", "on"])
def test_an_on_error_that_raises_is_logged_and_changes_nothing(
    app: App, harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(event: Any, error: BaseException) -> None:
        raise ValueError("the hook is broken too")

    @getattr(app, kind)(app.log("orders"), start="first", retry=no_retry, on_error=hook)
    def charge(event, _):
        raise OSError("down")

    harness.append("orders", "order.placed", key="a")
    harness.append("orders", "order.placed", key="b")
    harness.run_until_idle()
    assert [letter.reason for letter in harness.letters()] == ["attempts_exhausted"] * 2
    assert "the hook is broken too" in caplog.text


def test_an_on_error_that_is_a_coroutine_is_refused(app: App) -> None:
    async def hook(event, error): ...

    with pytest.raises(UsageError, match="plain def"):
        app.on(app.log("orders"), on_error=hook)(lambda event, ctx: None)


@pytest.mark.parametrize("given", [3, "3", [retry(), "x"]])
def test_retry_takes_rules_only(app: App, given: Any) -> None:
    with pytest.raises(UsageError):
        app.on(app.log("orders"), retry=given)(lambda event, ctx: None)


def test_a_letter_keeps_the_error_its_traceback_and_a_fingerprint(app: App, harness: Harness) -> None:
    def divide(cents: int) -> float:
        return cents / 0

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def charge(event, ctx):
        divide(event.data["cents"])

    for key in "ab":
        harness.append("orders", "order.placed", {"cents": 1}, key=key)
    harness.run_until_idle()
    first, second = harness.letters()
    assert (first.error_type, first.error_message) == ("ZeroDivisionError", "division by zero")
    assert len(first.fingerprint) == 12
    assert first.fingerprint == second.fingerprint
    [(trace, worker)] = harness.query("SELECT traceback, worker FROM redrive_attempts WHERE letter = ?", (first.id,))
    assert "in divide" in trace
    assert worker == "worker-1"
