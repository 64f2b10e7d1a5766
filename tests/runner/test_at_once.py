"""Attempts that need not wait are made in one transaction, and leave what as many transactions would have left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ignore, Reject, RetryLater, VersionConflict, retry
from redrive.observe import signals as sig
from redrive.settings import Settings
from redrive.store.sqlite.store import SqliteStore
from redrive.testing import Harness, failpoint
from tests.runner.conftest import Start

SEEN = {"seen": "n INTEGER"}
AT_ONCE = retry(attempts=3, wait=0)
HISTORY = "SELECT attempt, outcome, error_message FROM redrive_attempts ORDER BY id"
JOURNAL = "SELECT state FROM redrive_journal ORDER BY seq"


class Flaky:
    """A function that writes and then raises what it is told, one after the other; None: it goes well."""

    def __init__(self, app: App, *raised: BaseException | None, **options: Any) -> None:
        self.calls: list[Any] = []
        self._raised = list(raised)
        app.projection(app.log("orders"), name="flaky", tables=SEEN, **{"retry": AT_ONCE, **options})(self.project)

    def project(self, event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (?)", (event.data["n"],))
        if event.data["n"] == 1:
            self.calls.append(event.data["n"])
            event.data["n"] = 99  # the next attempt must not see this
            error = self._raised.pop(0) if self._raised else None
            if error is not None:
                raise error


def order(harness: Harness, *numbers: int, key: str | None = "a") -> None:
    for number in numbers:
        harness.append("orders", "order.placed", {"n": number}, key=key)


def errors(*texts: str) -> list[BaseException]:
    return [OSError(text) for text in texts]


@pytest.mark.parametrize("ordering", ["key", "none", "total"])
def test_all_attempts_of_one_event_are_one_transaction(app: App, harness: Harness, ordering: str) -> None:
    heard: list[str] = []
    flaky = Flaky(app, *errors("a", "b", "c"), order=ordering, on_error=lambda event, error: heard.append(str(error)))
    order(harness, 0, 1)
    order(harness, 2, key="b")
    with failpoint("letter.fenced", AssertionError("a letter was tried")):
        harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.state, letter.reason, letter.attempts, letter.rev) == ("dead", "attempts_exhausted", 3, 0)
    assert (letter.error_message, letter.position) == ("c", 2)
    reasons = ["failing", "failing", "attempts_exhausted"]
    assert harness.query(HISTORY) == [*zip([1, 2, 3], reasons, "abc", strict=True)]
    assert harness.query(JOURNAL) == [("dead",)]
    assert harness.query("SELECT n FROM seen") == ([(0,)] if ordering == "total" else [(0,), (2,)])
    assert (heard, len(flaky.calls)) == (["a", "b", "c"], 3)
    told = [one for one in harness.signals if isinstance(one, sig.Failing)]
    assert [(type(one), one.attempt, one.error_message, one.letter) for one in told] == [
        (sig.Retried, 1, "a", letter.id), (sig.Retried, 2, "b", letter.id), (sig.Buried, 3, "c", letter.id),
    ]  # fmt: skip


@pytest.mark.parametrize("ordering", ["key", "none", "total"])
def test_the_attempt_that_goes_well_is_the_one_that_counts(app: App, harness: Harness, ordering: str) -> None:
    Flaky(app, *errors("a", "b"), order=ordering)
    order(harness, 0, 1, 2)
    harness.run_until_idle()
    seen = harness.query("SELECT n FROM seen")
    assert (sorted(seen) if ordering == "none" else seen) == [(0,), (1,), (2,)]  # what nothing waits for is put aside
    [letter] = harness.letters()
    assert (letter.state, letter.attempts, letter.resolved_by) == ("applied", 3, "retry")
    assert harness.query(HISTORY) == [(1, "failing", "a"), (2, "failing", "b"), (3, "applied", "")]
    recovered = [one for one in harness.signals if isinstance(one, sig.Recovered)]
    assert [(one.letter, one.attempt, one.replayed) for one in recovered] == [(letter.id, 3, False)]
    order(harness, 3)
    harness.run_until_idle()
    assert harness.query("SELECT n FROM seen")[-1] == (3,)  # its lane is free


def test_a_verdict_of_a_later_attempt_counts(app: App, harness: Harness) -> None:
    Flaky(app, OSError("a"), Ignore("of no use"))
    order(harness, 1, 2)
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.state, letter.resolved_by, letter.attempts) == ("discarded", "ignore verdict", 2)
    assert harness.query("SELECT n FROM seen") == [(2,)]


def test_who_asks_for_some_other_time_gets_another_transaction(app: App, harness: Harness) -> None:
    Flaky(app, OSError("a"), RetryLater(after=0), None)
    order(harness, 1)
    harness.run_until_idle()
    assert harness.query(JOURNAL) == [("retrying",), ("applied",)]
    assert [row[:2] for row in harness.query(HISTORY)] == [(1, "failing"), (2, "failing"), (3, "applied")]
    assert harness.query("SELECT n FROM seen") == [(1,)]


def test_a_conflict_is_rerun_and_costs_no_attempt(app: App, harness: Harness) -> None:
    Flaky(app, OSError("a"), VersionConflict("orders", "a", 1, 2), VersionConflict("orders", "a", 1, 2), None)
    order(harness, 1, 2)
    harness.run_until_idle()
    harness.advance("1s")
    assert [row[:2] for row in harness.query(HISTORY) if row[2]] == [(1, "failing")]
    [letter] = [one for one in harness.letters() if one.position == 1]
    assert (letter.state, letter.attempts) == ("applied", 2)
    assert harness.query("SELECT n FROM seen") == [(1,), (2,)]


def test_an_attempt_that_asks_to_stop_is_given_back(app: App, harness: Harness) -> None:
    Flaky(app, OSError("a"), SystemExit("enough"), None)
    order(harness, 1)
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.state, letter.attempts) == ("retrying", 1)
    harness.restart()
    harness.run_until_idle()
    assert [row[:2] for row in harness.query(HISTORY)] == [(1, "failing"), (2, "applied")]


def test_when_it_is_late_the_next_attempt_is_left_to_the_letter(app: App, start: Start) -> None:
    harness = start(app, settings=Settings(batch_time_max=0.05, lease=1e6, poll_min=1e6, poll_max=1e6))

    @app.projection(app.log("orders"), tables=SEEN, retry=AT_ONCE)
    def slow(event, tx):
        tx.execute("INSERT INTO seen VALUES (?)", (event.data["n"],))
        harness.clock.advance(0.06)
        raise OSError("slow, and then nothing")

    order(harness, 1)
    harness.run_until_idle()
    assert harness.query(JOURNAL) == [("retrying",), ("dead",)]
    assert [row[:2] for row in harness.query(HISTORY)] == [(1, "failing"), (2, "failing"), (3, "attempts_exhausted")]
    assert harness.query("SELECT n FROM seen") == []


@pytest.mark.parametrize("batch", [False, True])
def test_only_the_attempt_that_goes_well_emits(app: App, harness: Harness, batch: bool) -> None:
    tries = 0
    echoes = app.log("echoes")

    @app.projection(app.log("orders"), tables=SEEN, batch=batch, retry=AT_ONCE)
    def project(given, tx):
        nonlocal tries
        for event in given if batch else [given]:
            tx.emit(echoes, "echo", {"n": event.data["n"]}, key="a")
            tries += 1
            if tries < 3:
                raise OSError("not yet")

    order(harness, 1)
    harness.run_until_idle()
    assert harness.emitted("echoes") == [("echo", {"n": 1})]
    assert [letter.state for letter in harness.letters()] == ["applied"]


def test_what_was_not_committed_has_not_been_tried(app: App, harness: Harness) -> None:
    flaky = Flaky(app, *errors("a", "b", "c", "d", "e", "f"))
    order(harness, 0, 1)
    with failpoint("batch.before_commit", OSError("the disk is gone")):
        harness.run_until_idle()
    assert harness.letters() == []
    harness.advance("1m")
    assert [letter.attempts for letter in harness.letters("dead")] == [3]
    assert [row[0] for row in harness.query(HISTORY)] == [1, 2, 3]
    assert len(flaky.calls) > 3


def test_many_turns_share_the_sync_that_dead_letters_need_before_they_are_told(tmp_path: Path) -> None:
    settings = Settings(batch_max=10, batch_time_max=5)  # a slow machine must not cut a turn of ten in two
    app = App(str(tmp_path / "shop.db"), settings=settings)
    told: list[Any] = []
    syncs: list[int] = []
    app.listen(lambda batch: told.extend(batch))

    @app.projection(app.log("orders"), order="none", retry=AT_ONCE)
    def project(event, tx):
        if event.data % 10 == 0:
            raise OSError("poison")

    app.log("orders").append_many([{"type": "order.placed", "data": number} for number in range(1000)])
    sync = SqliteStore.sync

    def counted(store: SqliteStore) -> None:
        syncs.append(sum(isinstance(one, sig.Buried) for one in told))
        sync(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "sync", counted)
        asyncio.run(app.serve(until_idle=True))
    app.close()
    assert len([one for one in told if isinstance(one, sig.Buried)]) == 100
    positions = [one.position for one in told if isinstance(one, sig.Settled)]
    assert positions == sorted(positions) and len(positions) == 100
    assert 1 <= len(syncs) < 100  # fewer than turns
    assert syncs[0] == 0  # nothing was told before the first


def test_what_is_put_aside_is_tried_again_behind_the_others_and_told_in_order(tmp_path: Path) -> None:
    app = App(str(tmp_path / "store.db"))
    calls: list[int] = []

    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=AT_ONCE)
    def project(event: Any, tx: Any) -> None:
        number = event.data["n"]
        calls.append(number)
        tx.execute("INSERT INTO seen VALUES (?)", (number,))
        if number == 3 or (number == 1 and calls.count(1) < 2):
            raise OSError(f"{number} fails")
        if number == 2:
            raise Reject("2 is refused")

    with Harness(app) as harness:
        order(harness, *range(6))
        harness.run_until_idle()
        assert harness.query("SELECT n FROM seen") == [(0,), (4,), (5,), (1,)]
        assert calls[-3:] == [1, 3, 3]
        found = [(letter.position, letter.state, letter.attempts) for letter in harness.letters()]
        assert found == [(2, "applied", 2), (3, "dead", 1), (4, "dead", 3)]
        told = [(one.position, one.attempt) for one in harness.signals if isinstance(one, sig.Failing)]
        assert told == [(2, 1), (3, 1), (4, 1), (4, 2), (4, 3)]
