"""Events that are appended later: committed with whatever asked for them, in the log once, at their time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import App, Ctx, Event, EventError, IdConflict, Reject, Tx, UsageError, conflicts, retry
from redrive.failpoints import arm
from redrive.observe.signals import CameDue, Scheduled
from redrive.runner import scheduling
from redrive.settings import Settings
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import Failpoint

Start = Callable[..., Harness]


def types_of(app: App, log: str) -> list[str]:
    return [event.type for event in app.log(log).read()]


def waiting(harness: Harness) -> list[str]:
    return [id for (id,) in harness.query("SELECT id FROM redrive_scheduled ORDER BY due_at, seq")]


def test_an_event_is_appended_when_it_is_due_and_not_before(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    event = harness.append(orders, "payment.overdue", {"cents": 1}, key="order-1", after="30m")
    assert event.position is None
    assert event.due == datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
    assert repr(event).startswith("Event(due 2026-01-01T00:30:00+00:00, 'payment.overdue', key='order-1'")
    assert event.data == {"cents": 1}
    harness.advance("29m59s")
    assert list(orders.read()) == []
    harness.advance("1s")
    (found,) = orders.read()
    assert (found.id, found.key, found.version, found.data) == (event.id, "order-1", 1, {"cents": 1})
    assert found.time == event.due
    assert found.due is None
    assert waiting(harness) == []


def test_a_handler_receives_it_and_listeners_hear_of_it(app: App, harness: Harness) -> None:
    seen: list[tuple[str, float]] = []

    @app.on(app.log("orders"), start="first")
    def handle(event: Event[Any], ctx: Ctx) -> None:
        seen.append((event.type, harness.clock.monotonic()))

    harness.append("orders", "later", after="10s")
    harness.append("orders", "now")
    harness.advance("1h")
    assert seen == [("now", 0.0), ("later", 10.0)]
    assert [one for one in harness.signals if isinstance(one, Scheduled | CameDue)] == [
        Scheduled("orders", 1),
        CameDue("orders", 1, 0.0),
    ]


def test_at_takes_a_time_and_one_that_has_passed_is_due_at_once(app: App, harness: Harness) -> None:
    at = datetime.fromtimestamp(harness.clock.now(), UTC)
    harness.append("orders", "tomorrow", at=at + timedelta(days=1))
    harness.append("orders", "yesterday", at=at - timedelta(days=1))
    harness.run_until_idle()
    assert types_of(app, "orders") == ["yesterday"]
    harness.advance("1d")
    assert types_of(app, "orders") == ["yesterday", "tomorrow"]


def test_they_come_in_the_order_of_their_times_and_of_the_calls(app: App, harness: Harness) -> None:
    rows = [{"type": f"t{n}", "key": "k", "after": f"{wait}s"} for n, wait in enumerate((3, 1, 2, 1, 3))]
    app.log("orders").append_many(rows)
    app.log("others").append_many([{"type": "u", "after": "1s"}])
    harness.advance("1m")
    assert types_of(app, "orders") == ["t1", "t3", "t2", "t0", "t4"]
    assert [event.version for event in app.log("orders").read()] == [1, 2, 3, 4, 5]
    assert types_of(app, "others") == ["u"]


def test_many_that_were_missed_come_in_order_and_in_bounded_transactions(app: App, start: Start) -> None:
    harness = start(app, settings=Settings(batch_max=10))
    app.log("orders").append_many({"type": f"t{n}", "after": f"{100 - n}s"} for n in range(95))
    harness.clock.advance(1000.0)  # nobody was there
    harness.run_until_idle()
    assert types_of(app, "orders") == [f"t{n}" for n in reversed(range(95))]
    batches = [one.count for one in harness.signals if isinstance(one, CameDue)]
    assert batches == [10] * 9 + [5]


def test_append_many_may_mix_what_comes_now_and_later(app: App, harness: Harness) -> None:
    rows: list[Any] = [{"type": "a"}, {"type": "b", "after": "1m"}, {"type": "c"}, {"type": "d", "after": "1m"}]
    events = app.log("orders").append_many(rows)
    assert [event.position is None for event in events] == [False, True, False, True]
    assert types_of(app, "orders") == ["a", "c"]
    harness.advance("1m")
    assert types_of(app, "orders") == ["a", "c", "b", "d"]


def test_in_a_transaction_it_is_scheduled_if_that_commits(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    with suppress(ZeroDivisionError), app.transaction() as tx:
        orders.append("a", after="1m", tx=tx)
        raise ZeroDivisionError
    assert waiting(harness) == []
    with app.transaction() as tx:
        orders.append("b", after="1m", id="b", tx=tx)
        orders.append("c", tx=tx)
    assert waiting(harness) == ["b"]
    harness.advance("1m")
    assert types_of(app, "orders") == ["c", "b"]


def test_the_same_id_with_the_same_content_is_the_same_event_and_with_other_content_an_error(
    app: App, harness: Harness
) -> None:
    orders = app.log("orders")
    first = orders.append("a", {"n": 1}, id="x", after="1m")
    again = orders.append("a", {"n": 1}, id="x", after="1m")
    assert (again.id, again.position, again.due) == (first.id, None, first.due)
    now = orders.append("a", {"n": 1}, id="x")
    assert (now.position, now.due) == (None, first.due), "it is on its way"
    for after in ("1m", None):
        with pytest.raises(IdConflict, match="has scheduled an event 'x' with other content"):
            orders.append("a", {"n": 2}, id="x", after=after)
    with pytest.raises(IdConflict):
        orders.append_many([{"type": "b", "id": "y", "after": "1m"}, {"type": "c", "id": "y", "after": "1m"}])
    assert waiting(harness) == ["x"], "append_many is all or none"
    harness.advance("1m")
    there = orders.append("a", {"n": 1}, id="x", after="1h")
    assert there.position == next(iter(orders.read())).position
    with pytest.raises(IdConflict):
        orders.append("a", {"n": 2}, id="x", after="1h")
    assert waiting(harness) == []


def test_what_cannot_be_kept_is_refused_at_the_call(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    for arguments, message in (
        (
            {"after": "1m", "key": "k", "expected_version": 0},
            "expected_version with after= or at=: .* nobody can be told",
        ),
        ({"after": "1m", "at": datetime.now(UTC)}, "after= or at=, not both"),
        ({"after": "soon"}, "after: 'soon' is not a duration"),
        ({"after": -1}, "negative"),
        ({"after": "4000d"}, "3650 days ahead at most"),
        ({"at": "tomorrow"}, "at= takes a datetime"),
    ):
        with pytest.raises(UsageError, match=message):
            orders.append("a", **arguments)  # type: ignore[call-overload]
    with pytest.raises(EventError, match="no time zone"):
        orders.append("a", at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(EventError, match="the key is empty"):
        orders.append("a", key="", after="1m")
    assert waiting(harness) == []


async def _append(app: App) -> Event[Any]:
    return await app.log("orders").append_async("a", after="1m")


def test_append_async_schedules_too(app: App, harness: Harness) -> None:
    event = harness._driver.run(_append(app))
    assert event.position is None
    harness.advance("1m")
    assert types_of(app, "orders") == ["a"]


# ---------------------------------------------------------------- emissions


@pytest.mark.parametrize("kind", ["handler", "projection"])
def test_an_emission_is_scheduled_with_the_effect_of_its_event(app: App, harness: Harness, kind: str) -> None:
    orders, late = app.log("orders"), app.log("late")

    def function(event: Event[Any], out: Any) -> None:
        out.emit(late, "overdue", {"n": event.data["n"]}, after="30m")
        if event.data["n"] == 2:
            raise Reject("no")

    if kind == "handler":
        app.on(orders, "placed", start="first", name="f")(function)
    else:
        app.projection(orders, "placed", name="f")(function)
    for n in (1, 2, 3):
        harness.append(orders, "placed", {"n": n}, key=f"k{n}")
    harness.run_until_idle()
    assert len(waiting(harness)) == 2
    harness.advance("30m")
    assert [(event.key, event.data) for event in late.read()] == [("k1", {"n": 1}), ("k3", {"n": 3})]


def test_many_emissions_of_a_group_are_scheduled_together(app: App, harness: Harness) -> None:
    late = app.log("late")

    @app.on(app.log("orders"), start="first")
    def function(event: Event[Any], ctx: Ctx) -> None:
        ctx.emit(late, "now")
        ctx.emit(late, "later", after="1m")

    for n in range(40):
        harness.append("orders", "placed", key=f"k{n % 3}")
    harness.run_until_idle()
    assert types_of(app, "late") == ["now"] * 40
    harness.advance("1m")
    assert types_of(app, "late") == ["now"] * 40 + ["later"] * 40


def test_a_rebuild_does_not_schedule_again_what_it_scheduled_before(app: App, harness: Harness) -> None:
    late = app.log("late")

    @app.projection(app.log("orders"), tables={"seen": "id TEXT"})
    def function(event: Event[Any], tx: Tx) -> None:
        tx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        tx.emit(late, "later", after="1m")

    harness.append("orders", "placed")
    harness.run_until_idle()
    (id,) = waiting(harness)
    app.operate("a test").reset("function", "again")
    harness.run_until_idle()
    assert waiting(harness) == [id]
    harness.advance("1m")
    app.operate("a test").reset("function", "again")
    harness.advance("1h")
    assert [event.id for event in late.read()] == [id]


def test_a_handler_that_reads_an_event_once_more_schedules_nothing_twice(app: App, harness: Harness) -> None:
    late, calls = app.log("late"), []

    @app.on(app.log("orders"), start="first")
    def function(event: Event[Any], ctx: Ctx) -> None:
        calls.append(ctx.emit(late, "later", after="1m"))

    harness.append("orders", "placed")
    harness.run_until_idle()
    for _ in range(2):
        app.operate("a test").subscriptions.seek("function", 0, "again")
        harness.advance("1m")
    assert len(calls) == 3 and len(set(calls)) == 1
    assert [event.id for event in late.read()] == [calls[0]]


def test_an_emission_that_expects_a_version_cannot_wait(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def function(event: Event[Any], ctx: Ctx) -> None:
        ctx.emit(app.log("late"), "later", after="1m", key="k", expected_version=0)

    harness.append("orders", "placed")
    harness.run_until_idle()
    (letter,) = harness.letters("dead")
    assert "expected_version with after=" in letter.error_message


# ---------------------------------------------------------------- taking back


def test_cancel_says_whether_the_event_was_still_scheduled(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    id = orders.append("a", after="1m").id
    assert orders.cancel(id)
    assert not orders.cancel(id)
    late = orders.append("b", after="1m").id
    harness.advance("1m")
    assert not orders.cancel(late), "it is in the log"
    assert not app.log("others").cancel(late)
    assert types_of(app, "orders") == ["b"]


def test_cancel_in_a_transaction_holds_if_that_commits(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    id = orders.append("a", after="1m").id
    with suppress(ZeroDivisionError), app.transaction() as tx:
        assert orders.cancel(id, tx=tx)
        raise ZeroDivisionError
    assert waiting(harness) == [id]
    with app.transaction() as tx:
        orders.append("b", id="b", after="1m", tx=tx)
        assert orders.cancel("b", tx=tx)
        assert orders.cancel(id, tx=tx)
        assert not orders.cancel(id, tx=tx)
    assert waiting(harness) == []
    harness.advance("1h")
    assert types_of(app, "orders") == []


def declare_saga(app: App) -> None:
    orders = app.log("orders")

    @app.on(orders, start="first")
    def saga(event: Event[Any], ctx: Ctx) -> None:
        if event.type == "order.placed":
            ctx.state["deadline"] = ctx.emit(orders, "payment.overdue", after="30m")
        elif event.type == "payment.received":
            ctx.emit(orders, "order.shipped" if ctx.cancel(orders, ctx.state["deadline"]) else "payment.returned")
        elif event.type == "payment.overdue":
            ctx.emit(orders, "order.cancelled")


def test_a_saga_takes_its_time_out_back(app: App, harness: Harness) -> None:
    declare_saga(app)
    for key in ("paid", "late"):
        harness.append("orders", "order.placed", key=key)
    harness.advance("10m")
    harness.append("orders", "payment.received", key="paid")
    harness.advance("1h")
    harness.append("orders", "payment.received", key="late")
    harness.advance("1h")
    told = [(event.key, event.type) for event in app.log("orders").read() if event.type != "order.placed"]
    assert told == [
        ("paid", "payment.received"),
        ("paid", "order.shipped"),
        ("late", "payment.overdue"),
        ("late", "order.cancelled"),
        ("late", "payment.received"),
        ("late", "payment.returned"),
    ]


def test_a_time_out_that_comes_due_under_a_handler_makes_it_run_again(app: App, harness: Harness) -> None:
    orders, calls = app.log("orders"), []

    @app.on(orders, "payment.received", start="first", conflicts=conflicts())
    def saga(event: Event[Any], ctx: Ctx) -> None:
        calls.append(ctx.cancel(orders, "deadline"))
        if len(calls) == 1:  # in this very moment it comes due
            with app.transaction() as tx:
                tx.execute(harness.own("DELETE FROM redrive_scheduled"))  # type: ignore[attr-defined]
        ctx.emit(orders, "shipped" if calls[-1] else "returned")

    orders.append("payment.overdue", id="deadline", after="30m")
    harness.append(orders, "payment.received", key="k")
    harness.advance("1m")
    assert calls == [True, False]
    assert types_of(app, "orders") == ["payment.received", "returned"]


def test_taking_back_does_not_change_the_ids_of_what_is_emitted(app: App, harness: Harness) -> None:
    orders, out = app.log("orders"), app.log("out")
    emitted: list[str] = []

    @app.on(orders, "go", start="first")
    def function(event: Event[Any], ctx: Ctx) -> None:
        ctx.cancel(orders, "x")
        emitted.append(ctx.emit(out, "done"))

    orders.append("later", id="x", after="1h")
    harness.append(orders, "go")
    harness.run_until_idle()
    app.operate("a test").subscriptions.seek("function", 0, "again")
    harness.run_until_idle()
    assert len(emitted) == 2 and len(set(emitted)) == 1
    assert len(list(out.read())) == 1


def test_a_handler_may_take_back_what_it_has_just_scheduled(app: App, harness: Harness) -> None:
    out = app.log("out")

    @app.on(app.log("orders"), start="first")
    def function(event: Event[Any], ctx: Ctx) -> None:
        ctx.emit(out, "stays", after="1m")
        assert ctx.cancel(out, ctx.emit(out, "goes", after="1m"))

    for _ in range(3):
        harness.append("orders", "go")
    harness.advance("1m")
    assert types_of(app, "out") == ["stays"] * 3


def declare_deadlines(app: App, **options: Any) -> None:
    """A projection that keeps an order's deadline in its own table."""
    orders = app.log("orders")
    tables = {"deadlines": "key TEXT, id TEXT", "payments": "key TEXT, in_time INTEGER"}

    @app.projection(orders, "order.placed", "payment.received", tables=tables, **options)
    def deadline(event: Event[Any], tx: Tx) -> None:
        if event.type == "order.placed":
            id = tx.emit(orders, "payment.overdue", after="30m")
            tx.execute("INSERT INTO deadlines VALUES (:key, :id)", {"key": event.key, "id": id})
            return
        ((id,),) = tx.execute("SELECT id FROM deadlines WHERE key = :key", {"key": event.key}).fetchall()
        in_time = tx.cancel(orders, id)
        tx.execute("INSERT INTO payments VALUES (:key, :in_time)", {"key": event.key, "in_time": int(in_time)})
        if event.data == "bounced":
            raise ValueError("the payment bounced")


def payments(harness: Harness) -> list[tuple[str, int]]:
    return [(key, in_time) for key, in_time in harness.query("SELECT key, in_time FROM payments ORDER BY key")]


def test_a_projection_takes_its_time_out_back_and_a_rebuild_is_told_the_same(app: App, harness: Harness) -> None:
    declare_deadlines(app)
    for key in ("late", "paid", "unpaid"):
        harness.append("orders", "order.placed", key=key)
    harness.advance("10m")
    harness.append("orders", "payment.received", key="paid")
    harness.run_until_idle()
    assert len(waiting(harness)) == 2, "at once, in the transaction that applied the payment"
    harness.advance("1h")
    harness.append("orders", "payment.received", key="late")
    harness.append("orders", "order.placed", key="open")
    harness.run_until_idle()
    told = [(event.key, event.type) for event in app.log("orders").read()]
    assert payments(harness) == [("late", 0), ("paid", 1)]
    left = waiting(harness)
    assert len(left) == 1
    app.operate("a test").reset("deadline", "again")
    harness.run_until_idle()
    assert payments(harness) == [("late", 0), ("paid", 1)]
    assert (waiting(harness), [(event.key, event.type) for event in app.log("orders").read()]) == (left, told)


def test_what_a_projection_took_back_is_there_again_when_its_event_fails(app: App, harness: Harness) -> None:
    declare_deadlines(app, retry=retry(attempts=2, wait="1m", jitter=0))
    harness.append("orders", "order.placed", key="ada")
    harness.run_until_idle()
    scheduled = waiting(harness)
    harness.append("orders", "payment.received", "bounced", key="ada")
    for key in ("eve", "joe"):
        harness.append("orders", "order.placed", key=key)
    harness.advance("5m")
    assert len(harness.letters("dead")) == 1
    assert waiting(harness)[:1] == scheduled and len(waiting(harness)) == 3
    assert payments(harness) == []
    harness.advance("1h")
    assert types_of(app, "orders").count("payment.overdue") == 3


def test_a_projection_may_take_back_what_it_has_just_scheduled(app: App, harness: Harness) -> None:
    out, answers = app.log("out"), []

    @app.projection(app.log("orders"))
    def function(event: Event[Any], tx: Tx) -> None:
        tx.emit(out, "stays", after="1m")
        id = tx.emit(out, "goes", after="1m")
        answers.append((tx.cancel(out, id), tx.cancel(out, id), tx.cancel(app.log("nowhere"), id)))

    for _ in range(3):
        harness.append("orders", "go")
    harness.advance("1m")
    assert set(answers) == {(True, False, False)}
    assert types_of(app, "out") == ["stays"] * 3


def test_cancel_of_a_transaction_belongs_to_projections(app: App, harness: Harness) -> None:
    with app.reader() as tx, pytest.raises(UsageError, match=r"log\.cancel"):
        tx.cancel(app.log("orders"), "x")


# ---------------------------------------------------------------- clocks and deaths


def test_a_clock_set_back_lets_a_delay_begin_again_and_not_take_a_year(app: App, harness: Harness) -> None:
    at = datetime.fromtimestamp(harness.clock.now(), UTC) + timedelta(minutes=30)
    harness.append("orders", "after", after="30m")
    harness.append("orders", "at", at=at)
    harness.run_until_idle()
    harness.advance("20m")
    harness.clock.jump(-86_400.0)
    harness.run_until_idle()  # a worker notices with its next beat
    harness.advance("29m")
    assert types_of(app, "orders") == [], "nobody knows how much of it has passed"
    harness.advance("1m")
    assert types_of(app, "orders") == ["after"], "what was asked for at a time comes at that time"
    harness.advance("1d")
    assert types_of(app, "orders") == ["after", "at"]


@pytest.mark.parametrize("place", ["due.taken", "due.before_commit", "due.committed"])
def test_a_worker_that_dies_while_it_appends_leaves_each_event_in_one_place(
    app: App, harness: Harness, place: str
) -> None:
    app.log("orders").append_many({"type": f"t{n}", "after": f"{n + 1}s"} for n in range(5))
    for hit in (1, 2):
        arm(Failpoint(place, harness.crash, hit))
        try:
            with pytest.raises(Crashed):
                harness.advance("10s")
        finally:
            arm(None)
        there = types_of(app, "orders")
        assert len(there) + len(waiting(harness)) == 5
    harness.advance("10s")
    assert types_of(app, "orders") == [f"t{n}" for n in range(5)]
    assert waiting(harness) == []


def test_letters_are_no_reason_to_look_for_what_is_due(app: App, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    append_due = scheduling.append_due
    monkeypatch.setattr(scheduling, "append_due", lambda engine: (looks.append(None), append_due(engine))[1])

    @app.projection(app.log("orders"), tables={"seen": "n INTEGER"}, order="none")
    def project(event: Event[Any], tx: Tx) -> None:
        raise Reject("no")

    harness = start(app, settings=Settings(batch_max=2))
    for _ in range(40):
        harness.append("orders", "order.placed")
    looks.clear()
    harness.run_until_idle()
    assert len(harness.letters("dead")) == 40
    assert len(looks) < 10  # of twenty transactions that wrote letters
