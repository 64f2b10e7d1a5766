"""A filter that changes under way: the ledger knows what was asked for at each position, and two versions never mix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Reject, RetryLater, UsageError
from redrive.store.filters import Asked
from redrive.testing import Harness


def watcher(*types: str, gate: Any = None, path: Path | None = None) -> App:
    """An app with one handler that asks for these types."""
    app = App(str(path) if path else "unused.db")

    @app.on(app.log("logins"), *types, start="first", concurrency=4)
    def watch(event: Event[Any], ctx: Ctx) -> None:
        if gate is not None:
            gate(event)

    return app


def reject(event: Event[Any]) -> None:
    """Whatever it is."""
    raise Reject("bad")


def fill(harness: Harness, types: str) -> None:
    """One event of each type, every one of its own key."""
    for number, kind in enumerate(types):
        harness.append("logins", kind, {}, key=f"{kind}{number}")


def test_the_filter_in_force_is_the_last_one_below_a_position() -> None:
    asked = Asked([(3, ["a"]), (10, ["b"]), (20, [])])
    assert [asked.wants(position, "a") for position in (1, 4, 10, 11, 20, 21)] == [True, True, True, False, False, True]
    assert list(asked.spans(5, 15)) == [(5, 10, ("a",)), (10, 15, ("b",))]


def test_a_narrower_filter_holds_from_its_progress_on(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")
    with Harness(watcher("a", "b"), path) as harness:
        fill(harness, "abab")
        harness.run_until_idle()
    app = watcher("a")
    with Harness(app, path) as harness:
        fill(harness, "abb")
        harness.run_until_idle()
        (verdict,) = app.operate().verify()
    assert (verdict.applied, verdict.pending, verdict.violations) == (5, 0, ())


def test_a_filter_that_was_narrowed_cannot_be_widened_behind_the_back(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")
    with Harness(watcher("a"), path) as harness:
        fill(harness, "ab")
        harness.run_until_idle()
    app = watcher("b")
    with Harness(app, path) as harness, pytest.raises(UsageError, match="accept-from-now watch"):
        harness.run_until_idle()


def test_accepting_a_wider_filter_leaves_the_past_unasked(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")
    with Harness(watcher("a"), path) as harness:
        fill(harness, "ab")
        harness.run_until_idle()
    app = watcher("a", "b")
    with Harness(app, path) as harness:
        assert app.operate("ada").subscriptions.accept_from_now("watch", "only new ones matter") == 2
        fill(harness, "ab")
        harness.run_until_idle()
        (verdict,) = app.operate().verify()
        assert (verdict.applied, verdict.violations) == (3, ())
        assert harness.query("SELECT action, reason FROM redrive_audit") == [
            ("accept-from-now", "only new ones matter")
        ]


def test_what_was_settled_out_of_order_keeps_the_filter_it_was_asked_by(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")

    with Harness(watcher("a", "b"), path) as harness:
        fill(harness, "abba")
        store = harness.app.runtime.store
        harness.run_until_idle()
        with store.transaction() as tx:  # as if the first had never come back: progress before it, the others done
            tx.connection.execute("UPDATE redrive_progress SET position = 0, anchor = NULL, applied = 3")
            tx.progress.done.add(1, [2, 3, 4])
    app = watcher("a")
    with Harness(app, path) as harness:
        harness.run_until_idle()
        (verdict,) = app.operate().verify()
    assert (verdict.applied, verdict.violations) == (4, ())


def test_a_worker_with_the_former_filter_stands_still_and_says_why(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")
    old, new = watcher("a", "b"), watcher("a")
    with Harness(old, path) as before:
        fill(before, "ab")
        before.run_until_idle()
        with Harness(new, path) as after:
            after.env.owner = "another"
            after.run_until_idle()
        fill(before, "ab")
        before.run_until_idle()
        assert "another version of this program" in before.halted["watch"]


def test_what_comes_round_again_is_asked_for_by_the_filter_of_today(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")
    with Harness(watcher("a", "b"), path) as harness:
        fill(harness, "abab")
        harness.run_until_idle()
    app = watcher("a")
    with Harness(app, path) as harness:
        fill(harness, "ab")
        harness.run_until_idle()
        sought = app.operate("ada").subscriptions.seek("watch", 1, "the mails were lost")
        assert sought.again == 2
        harness.run_until_idle()
        (verdict,) = app.operate().verify()
    assert (verdict.applied, verdict.violations) == (2, ())  # the books begin anew above what it went back to


def test_what_was_left_out_comes_too_when_somebody_goes_back_to_before_it(tmp_path: Path) -> None:
    path, seen = str(tmp_path / "w.db"), list[int]()
    with Harness(watcher("a"), path) as harness:
        fill(harness, "ab")
        harness.run_until_idle()
    app = watcher("a", "b", gate=lambda event: seen.append(event.position))
    with Harness(app, path) as harness:
        desk = app.operate("ada").subscriptions
        desk.accept_from_now("watch", "only new ones matter")
        assert desk.seek("watch", "first", "they matter after all").again == 2
        harness.run_until_idle()
        (verdict,) = app.operate().verify()
    assert (seen, verdict.applied, verdict.violations) == ([1, 2], 2, ())


@pytest.mark.parametrize("back", ["seek", "reset"])
def test_a_letter_is_not_closed_for_an_event_that_would_not_come_again(tmp_path: Path, back: str) -> None:
    path = str(tmp_path / "w.db")
    with Harness(watcher("a", "b", gate=reject), path) as harness:
        fill(harness, "b")
        harness.run_until_idle()
    app = watcher("a")
    with Harness(app, path) as harness:
        fill(harness, "a")
        harness.run_until_idle()
        desk = app.operate("ada")
        go_back = {
            "seek": lambda: desk.subscriptions.seek("watch", "first", "again"),
            "reset": lambda: desk.reset("watch", "again"),
        }[back]
        with pytest.raises(UsageError, match=r"no longer asks for.*: b"):
            go_back()
        (letter,) = harness.letters("dead")
        desk.letters.discard(letter, "nobody wants it")
        go_back()
        harness.run_until_idle()
        (verdict,) = desk.verify()
    assert (verdict.applied, verdict.violations) == (1, ())


def shipper(kind: str, *types: str, words: str = "done", bad: str = "") -> App:
    """An app with a function that says something of each event of these types."""
    app = App("unused.db")
    orders, said = app.log("orders"), app.log("said")

    def ship(event: Event[Any], asked: Any) -> None:
        if event.type in bad:
            raise RetryLater("1h")
        for word in words.split():
            asked.emit(said, word, event.position)

    if kind == "projection":
        app.projection(orders, *types)(ship)
    else:
        app.on(orders, *types, start="first", concurrency=4)(ship)
    return app


def said(app: App, path: str, types: str = "", deed: str = "") -> list[tuple[str, Any]]:
    """Do the deed of an operator, append one event of each type, and run; what is said by then."""
    with Harness(app, path) as harness:
        desk = app.operate("ada")
        if deed == "reset":
            desk.reset("ship", "a wider filter")
        elif deed == "accept":
            desk.subscriptions.accept_from_now("ship", "a wider filter")
        for kind in types:
            harness.append("orders", kind, {}, key=kind)
        harness.run_until_idle()
        assert all(verdict.sound for verdict in desk.verify())
        return harness.emitted("said")


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_what_a_rebuild_meets_for_the_first_time_emits_and_the_rest_keeps_silent(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "w.db")
    once = [("done", 1), ("done", 3)]
    assert said(shipper(kind, "a"), path, "aba") == once
    new = shipper(kind, "a", "b", words="done well")
    once += [("done", 2), ("well", 2)]
    assert said(new, path, "", "reset") == once
    assert said(shipper(kind, words="done well again"), path, "", "reset") == once


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_what_was_accepted_to_be_left_out_emits_when_a_rebuild_meets_it(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "w.db")
    said(shipper(kind, "a"), path, "ab")
    once = said(shipper(kind, "a", "b"), path, "b", "accept")
    assert once == [("done", 1), ("done", 4)]  # 3 is what was said of 1
    assert said(shipper(kind, words="done well"), path, "", "reset") == [*once, ("done", 2), ("well", 2)]


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_a_rebuild_that_begins_anew_in_the_middle_knows_whom_the_first_one_met(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "w.db")
    said(shipper(kind, "a"), path, "abcb")
    waiting = shipper(kind, "a", "b", bad="b")
    assert said(waiting, path, "", "reset") == [("done", 1)]
    with Harness(shipper(kind), path) as harness:
        desk = harness.app.operate("ada")
        desk.reset("ship", "begun")
        desk.reset("ship", "and begun anew, before anything came")
    assert said(shipper(kind, words="done well"), path)[1:] == [
        (word, of) for of in (2, 3, 4) for word in ("done", "well")
    ]
