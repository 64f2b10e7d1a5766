"""Starting: where a new function begins, and every change of a known one that is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Reject, UsageError
from redrive.testing import Harness

Deploy = Callable[..., Harness]


@pytest.fixture
def deploy(tmp_path: Path) -> Any:
    """Run a version of the program on the same file; the version before it has ended."""
    harnesses: list[Harness] = []

    def run(declare: Callable[[App], object], run: bool = True) -> Harness:
        if harnesses:
            harnesses[-1].close()
        app = App(str(tmp_path / "untouched.db"))
        harness = Harness(app, harnesses[0].path if harnesses else None)
        harnesses.append(harness)
        declare(app)
        if run:
            harness.run_until_idle()
        return harness

    yield run
    harnesses[-1].close()


def handler(*types: str, name: str = "charge", **options: Any) -> Callable[[App], list[Any]]:
    """A program with one handler that notes what it gets; keys in `bad` are rejected."""
    seen: list[Any] = []
    bad = options.pop("bad", ())

    def declare(app: App) -> list[Any]:
        @app.on(app.log(options.pop("source", "orders")), *types, name=name, **options)
        def handle(event, ctx):
            if event.key in bad:
                raise Reject("bad")
            seen.append(event.data)

        return seen

    declare.seen = seen  # type: ignore[attr-defined]
    return declare


def projection(*types: str, name: str = "revenue", **options: Any) -> Callable[[App], None]:
    def declare(app: App) -> None:
        @app.projection(app.log("orders"), *types, name=name, **options)
        def project(event, tx): ...

    return declare


def fill(deploy: Deploy, count: int = 3) -> Harness:
    """A log that has events before anybody reads it."""
    harness = deploy(lambda app: None, run=False)
    for number in range(count):
        harness.append(
            "orders", "order.placed", number, key=f"k{number}", time=datetime(2026, 1, 1 + number, tzinfo=UTC)
        )
    return harness


def refusal(deploy: Deploy, declare: Callable[[App], object]) -> str:
    with pytest.raises(UsageError) as caught:
        deploy(declare)
    return str(caught.value)


# ---------------------------------------------------------------- start=


def test_first_begins_with_the_oldest_event(deploy: Deploy) -> None:
    fill(deploy)
    new = handler(start="first")
    deploy(new)
    assert new.seen == [0, 1, 2]


def test_now_begins_with_what_comes(deploy: Deploy) -> None:
    fill(deploy)
    new = handler(start="now")
    harness = deploy(new)
    harness.append("orders", "order.placed", "new")
    harness.run_until_idle()
    assert new.seen == ["new"]


@pytest.mark.parametrize(
    ("time", "seen"),
    [
        ("2025-12-31T00:00:00Z", [0, 1, 2]),
        ("2026-01-02T00:00:00Z", [1, 2]),
        ("2026-01-02T01:00:00+01:00", [1, 2]),
        ("2026-01-02T00:00:01Z", [2]),
    ],
)
def test_a_time_begins_with_the_first_event_at_or_after_it(deploy: Deploy, time: str, seen: list[int]) -> None:
    fill(deploy)
    new = handler(start=time)
    deploy(new)
    assert new.seen == seen


def test_a_time_that_has_not_come_is_refused_because_what_comes_before_it_would_be_handled(deploy: Deploy) -> None:
    fill(deploy)
    assert "has not come yet" in refusal(deploy, handler(start="2127-01-01T00:00:00Z"))


def test_a_time_that_has_not_come_is_refused_where_the_log_has_no_events_yet(deploy: Deploy) -> None:
    assert "has not come yet" in refusal(deploy, handler(start="2127-01-01T00:00:00Z"))


@pytest.mark.parametrize(("start", "says"), [("yesterday", "neither"), ("2026-01-02T00:00:00", "no time zone")])
def test_a_start_that_is_no_time_is_refused(deploy: Deploy, start: str, says: str) -> None:
    fill(deploy)
    assert says in refusal(deploy, handler(start=start))


def test_a_projection_begins_with_the_first_event(deploy: Deploy) -> None:
    fill(deploy)
    harness = deploy(projection())
    assert harness.query("SELECT applied FROM redrive_progress") == [(3,)]


def test_a_new_handler_on_an_empty_log_needs_no_start(deploy: Deploy) -> None:
    new = handler()
    harness = deploy(new)
    harness.append("orders", "order.placed", 1)
    harness.run_until_idle()
    assert new.seen == [1]


def test_start_says_nothing_once_the_subscription_is_known(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first"))
    again = handler(start="now")
    harness = deploy(again)
    harness.append("orders", "order.placed", 3)
    harness.run_until_idle()
    assert again.seen == [3]


# ---------------------------------------------------------------- refusals


def test_a_new_handler_on_a_log_with_events_must_say_where_it_starts(deploy: Deploy) -> None:
    fill(deploy)
    says = refusal(deploy, handler())
    assert "'charge' is new" in says
    assert 'start="first"' in says
    assert 'start="now"' in says
    assert "rename" not in says


def test_the_refusal_of_a_new_handler_names_likely_renames(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first", name="charge"))
    says = refusal(deploy, handler(name="charge_card"))
    assert "redrive rename charge charge_card" in says


def test_a_handler_that_still_exists_is_no_likely_rename(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first", name="charge"))

    def both(app: App) -> None:
        handler(start="first", name="charge")(app)
        handler(name="charge_card")(app)

    assert "rename" not in refusal(deploy, both)


def test_nothing_is_written_when_a_start_is_refused(deploy: Deploy) -> None:
    fill(deploy)

    def both(app: App) -> None:
        projection(tables={"revenue": "cents INTEGER"})(app)
        handler()(app)

    refusal(deploy, both)
    harness = deploy(lambda app: None, run=False)
    assert harness.query("SELECT count(*) FROM redrive_subscriptions") == [(0,)]
    assert harness.query("SELECT count(*) FROM sqlite_master WHERE name = 'revenue'") == [(0,)]


def test_a_wider_filter_is_refused_and_the_ways_out_are_named(deploy: Deploy) -> None:
    fill(deploy)
    deploy(projection("order.placed"))
    says = refusal(deploy, projection("order.placed", "order.paid"))
    assert "redrive rebuild revenue --app" in says  # without the program it would be rebuilt as it was
    assert "redrive accept-from-now revenue --app" in says


@pytest.mark.parametrize(
    ("before", "after"),
    [((), ("order.placed",)), (("order.*",), ("order.placed",)), (("a", "order.placed"), ("order.placed",))],
)
def test_a_narrower_filter_is_fine_and_holds_from_here_on(deploy: Deploy, before: Any, after: Any) -> None:
    fill(deploy)
    deploy(projection(*before))
    harness = deploy(projection(*after))
    assert harness.query("SELECT count(*) FROM redrive_filters WHERE from_position = 3") == [(1,)]


@pytest.mark.parametrize(
    ("before", "after"), [(("order.placed",), ()), (("order.placed",), ("order.*",)), (("order.*",), ("*",))]
)
def test_a_filter_is_wider_whatever_way_it_is_written(deploy: Deploy, before: Any, after: Any) -> None:
    fill(deploy)
    deploy(projection(*before))
    assert "events it never saw" in refusal(deploy, projection(*after))


def test_a_filter_may_widen_as_long_as_nothing_was_settled(deploy: Deploy) -> None:
    deploy(projection("order.placed"))
    harness = deploy(projection())
    harness.append("orders", "order.paid")
    harness.run_until_idle()
    assert harness.query("SELECT applied FROM redrive_progress") == [(1,)]


def test_the_same_filter_in_another_order_is_the_same(deploy: Deploy) -> None:
    fill(deploy)
    deploy(projection("a", "b"))
    harness = deploy(projection("b", "a"))
    assert harness.query("SELECT count(*) FROM redrive_filters") == [(1,)]


def test_another_source_is_refused(deploy: Deploy) -> None:
    deploy(handler(start="first"))
    says = refusal(deploy, handler(start="first", source="payments"))
    assert "'orders'" in says
    assert "'payments'" in says


def test_another_kind_is_refused(deploy: Deploy) -> None:
    deploy(handler(start="first", name="revenue"))
    assert "was a handler, now it is a projection" in refusal(deploy, projection())


def test_another_order_is_refused_while_letters_are_open(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first", bad={"k1"}))
    assert "while letters are open" in refusal(deploy, handler(start="first", order="none"))


def test_another_order_is_fine_without_open_letters(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first"))
    harness = deploy(handler(start="first", order="none"))
    assert harness.query("SELECT ordering FROM redrive_subscriptions") == [("none",)]


def test_a_changed_table_definition_is_refused(deploy: Deploy) -> None:
    deploy(projection(tables={"revenue": "cents INTEGER"}))
    says = refusal(deploy, projection(tables={"revenue": "cents INTEGER, day TEXT"}))
    assert "redrive rebuild revenue" in says


def test_a_table_that_others_have_filled_is_not_taken_over(deploy: Deploy) -> None:
    """A rebuild would have dropped it, rows and all."""
    harness = deploy(lambda app: None)
    with harness.app.transaction() as tx:
        tx.execute("CREATE TABLE revenue (cents INTEGER)")
        tx.execute("INSERT INTO revenue VALUES (7)")
    says = refusal(deploy, projection(tables={"revenue": "cents INTEGER"}))
    assert "tables=['revenue']" in says
    harness = deploy(lambda app: None)
    assert harness.query("SELECT cents FROM revenue") == [(7,)]
    with harness.app.transaction() as tx:
        tx.execute("DELETE FROM revenue")
    deploy(projection(tables={"revenue": "cents INTEGER"}))


def test_sqlite_does_not_tell_capitals_and_neither_do_we(tmp_path: Path) -> None:
    """Two projections owned one table, and a rebuild dropped a table that was never theirs."""
    app = App(tmp_path / "shop.db")
    orders = app.log("orders")
    with app.transaction() as tx:
        tx.execute("CREATE TABLE Revenue (cents INTEGER)")
        tx.execute("INSERT INTO Revenue VALUES (7)")
    app.projection(orders, tables={"revenue": "cents INTEGER"}, name="first")(lambda event, tx: None)
    with pytest.raises(UsageError, match="has rows"):
        app.run(until_idle=True)
    with app.transaction() as tx:
        tx.execute("DELETE FROM Revenue")
    app.run(until_idle=True)
    app.projection(orders, tables=["REVENUE"], name="second")(lambda event, tx: None)
    with pytest.raises(UsageError, match="belongs to 'first' already"):
        app.run(until_idle=True)
    app.close()


def test_a_table_that_somebody_dropped_is_not_made_again_without_a_word(deploy: Deploy) -> None:
    """It would have been empty, and the progress would have said that everything is in it."""
    fill(deploy)
    harness = deploy(projection(tables={"revenue": "cents INTEGER"}))
    with harness.app.transaction() as tx:
        tx.execute("DROP TABLE revenue")
    says = refusal(deploy, projection(tables={"revenue": "cents INTEGER"}))
    assert "is gone" in says
    assert "redrive rebuild revenue" in says


def test_a_table_has_one_owner(deploy: Deploy) -> None:
    deploy(projection(tables=["revenue"]))
    says = refusal(deploy, projection(tables=["revenue"], name="other"))
    assert "belongs to 'revenue' already" in says


@pytest.mark.parametrize("table", ["redrive_events", "sqlite_master", "a b", 'x"; DROP TABLE y', ""])
def test_a_table_name_that_is_not_a_plain_word_is_refused(deploy: Deploy, table: str) -> None:
    assert "cannot be a table of yours" in refusal(deploy, projection(tables={table: "a INTEGER"}))


def test_columns_that_the_database_does_not_understand_are_refused_with_the_name_of_who_wants_them(
    deploy: Deploy,
) -> None:
    says = refusal(deploy, projection(tables={"revenue": "cents INTEGER,,"}))
    assert "revenue: tables=" in says
    assert "syntax error" in says


def test_a_key_function_that_answers_differently_is_refused_while_letters_wait_in_lanes(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first", bad={"k1"}))
    says = refusal(deploy, handler(start="first", key_by=lambda event: "other"))
    assert "lane 'k1'" in says
    assert "redrive rekey charge" in says


def test_a_key_function_may_change_when_no_letter_is_open(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first"))
    new = handler(start="first", key_by=lambda event: "other")
    deploy(new)
    assert new.seen == []


def test_a_function_that_is_gone_keeps_its_progress_and_letters(deploy: Deploy) -> None:
    fill(deploy)
    deploy(handler(start="first", bad={"k1"}))
    deploy(lambda app: None)
    back = handler(start="first")
    harness = deploy(back)
    harness.append("orders", "order.placed", 3)
    harness.run_until_idle()
    assert back.seen == [3]
    assert [letter.state for letter in harness.letters()] == ["dead"]


def test_two_functions_of_one_name_are_refused(deploy: Deploy) -> None:
    def twice(app: App) -> None:
        handler(start="first")(app)
        handler(start="first")(app)

    assert "two functions are called 'charge'" in refusal(deploy, twice)


@pytest.mark.parametrize("wrong", ["orders", None, 3])
def test_a_subscription_needs_a_log_as_its_source(app: App, wrong: Any) -> None:
    with pytest.raises(UsageError, match="the first argument is a log"):
        app.on(wrong)(lambda event, ctx: None)


def test_a_wrong_signature_is_refused_where_it_is_declared_and_the_right_one_shown(app: App) -> None:
    orders = app.log("orders")
    with pytest.raises(UsageError, match=r"def three\(event, ctx\)"):

        @app.on(orders)
        def three(event, ctx, more): ...

    with pytest.raises(UsageError, match=r"def none\(event, tx\)"):

        @app.projection(orders)
        def none(): ...

    with pytest.raises(UsageError, match=r"def batched\(events, tx\)"):

        @app.projection(orders, batch=True)
        def batched(*, events): ...


def test_an_async_projection_is_refused(app: App) -> None:
    with pytest.raises(UsageError, match="plain def"):

        @app.projection(app.log("orders"))
        async def revenue(event, tx): ...


def test_a_function_may_take_the_event_alone(deploy: Deploy) -> None:
    seen = []

    def declare(app: App) -> None:
        @app.on(app.log("orders"), start="first")
        def one(event):
            seen.append(("handler", event.data))

        @app.projection(app.log("orders"))
        def two(event):
            seen.append(("projection", event.data))

    harness = deploy(declare)
    harness.append("orders", "order.placed", 1)
    harness.run_until_idle()
    assert sorted(seen) == [("handler", 1), ("projection", 1)]


def test_decorators_return_the_function_unchanged(app: App) -> None:
    def handle(event, ctx): ...

    def project(event, tx): ...

    assert app.on(app.log("orders"), start="first")(handle) is handle
    assert app.projection(app.log("orders"))(project) is project
