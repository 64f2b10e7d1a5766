"""Failures that are put aside, while the calls of a batch go on: what may not be, and when it is late all the same."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import App, VersionConflict, failpoints, retry
from redrive.testing import Harness

ONCE = retry(attempts=1)


@pytest.fixture
def app() -> App:
    return App("/nonexistent/x.db")


def given_to(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM given ORDER BY n")]


def test_a_batch_in_which_all_fail_is_bounded_by_the_time_it_holds_the_write_lock(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, per_commit = [0], list[int]()

    @app.projection(app.log("orders"), order="none", start="first", retry=ONCE)
    def poisoned(event: Any, tx: Any) -> None:
        calls[0] += 1
        harness.clock.advance(app.runtime.settings.batch_time_max / 4)
        raise OSError("no")

    def count(name: str) -> None:
        if name == "batch.committed":
            per_commit.append(calls[0])
            calls[0] = 0

    with Harness(app) as harness:
        app.log("orders").append_many([{"type": "t", "data": n} for n in range(300)])
        monkeypatch.setattr(failpoints, "_armed", count)
        harness.run_until_idle()
        assert len(harness.letters("dead")) == 300
    assert max(per_commit) <= 40, per_commit


@pytest.mark.parametrize("error", [SystemExit(), VersionConflict("orders", "k", 1, 2), KeyboardInterrupt()], ids=repr)
def test_what_is_no_failure_of_its_event_is_not_put_aside(app: App, error: BaseException) -> None:
    raised = list[int]()

    @app.projection(app.log("orders"), order="none", start="first", tables={"given": "n INTEGER"}, retry=ONCE)
    def write_down(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO given VALUES (?)", (event.data,))
        if event.data == 1:
            raise OSError("no")  # from here on statements are held
        if event.data == 10 and len(raised) < 2:
            raised.append(1)
            raise error

    with Harness(app) as harness:
        for first, last in (0, 3), (3, 20):
            for n in range(first, last):
                harness.append("orders", "t", n)
            for _ in range(4):
                harness.advance("1m")
        assert given_to(harness) == [n for n in range(20) if n != 1]
        assert [one.sound for one in app.operate("ada").verify()] == [True]


def test_who_is_called_last_before_it_is_late_is_not_blamed_for_a_failure_that_is_known(app: App) -> None:
    is_slow = [False]

    @app.projection(app.log("orders"), order="none", start="first", tables={"given": "n INTEGER"}, retry=ONCE)
    def write_down(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO given VALUES (?)", (event.data,))
        if event.data == 40:
            is_slow[0] = True
            raise OSError("no")
        if is_slow[0] and event.data == 15:
            harness.clock.advance(10 * app.runtime.settings.batch_time_max)

    with Harness(app) as harness:
        app.log("orders").append_many([{"type": "t", "data": n} for n in range(60)])
        harness.run_until_idle()
        assert [letter.position for letter in harness.letters("dead")] == [41]
        assert given_to(harness) == [n for n in range(60) if n != 40]


def test_who_emits_durably_does_not_see_what_it_has_changed(app: App) -> None:
    seen = list[Any]()

    @app.projection(app.log("orders"), start="first")
    def mirror(event: Any, tx: Any) -> None:
        seen.append(dict(event.data))
        event.data["x"] = 1
        tx.emit(app.log("out"), "t", None, key=None)

    with Harness(app) as harness:
        harness.append("orders", "t", {})
        harness.run_until_idle()
    assert seen == [{}, {}]


def test_who_has_kept_an_event_changes_nothing_for_those_that_run_again(app: App) -> None:
    seen, last = list[Any](), list[Any]()

    @app.projection(app.log("orders"), order="none", start="first", retry=ONCE)
    def linked(event: Any, tx: Any) -> None:
        seen.append(dict(event.data))
        if last:
            last[-1].data["next"] = event.id
        last.append(event)
        if event.data["n"] == 3:
            raise OSError("no")

    with Harness(app) as harness:
        app.log("orders").append_many([{"type": "t", "data": {"n": n}} for n in range(6)])
        harness.run_until_idle()
    assert [set(one) for one in seen] == [{"n"}] * len(seen)


def test_a_key_is_found_in_what_is_stored_and_the_function_keeps_what_it_has_changed(app: App) -> None:
    seen, out = list[Any](), app.log("out")

    @app.projection(app.log("orders"), start="first", key_by=lambda event: event.data.pop("user"))
    def mirror(event: Any, tx: Any) -> None:
        seen.append(dict(event.data))
        event.data["user"] = "nobody"
        tx.emit(out, "t", None)
        seen.append(dict(event.data))

    with Harness(app) as harness:
        harness.append("orders", "t", {"user": "ada"})
        harness.run_until_idle()
        assert [event.key for event in out.read()] == ["ada"]
    assert seen[-2:] == [{"user": "ada"}, {"user": "nobody"}]


@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("emits", [False, True], ids=["quiet", "emitting"])
def test_the_same_bug_has_the_same_fingerprint_however_often_the_transaction_ran(
    app: App, order: Any, emits: bool
) -> None:
    @app.projection(app.log("orders"), order=order, start="first", retry=ONCE)
    def fails(event: Any, tx: Any) -> None:
        if event.data in (0, 5):
            raise OSError("no")
        if emits:
            tx.emit(app.log("out"), "t", event.data, key=None)

    with Harness(app) as harness:
        for few in (range(3), range(3, 7)):
            for n in few:
                harness.append("orders", "t", n)
            harness.run_until_idle()
        rows = harness.query(
            "SELECT l.fingerprint, a.traceback FROM redrive_letters l JOIN redrive_attempts a ON a.letter = l.id"
        )
    assert len(rows) == 2
    assert len({fingerprint for fingerprint, _ in rows}) == 1
    assert all("in fails" in traceback for _, traceback in rows)
