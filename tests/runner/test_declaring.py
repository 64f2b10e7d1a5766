"""Declaring: what could not work, or would quietly do nothing, is an error where it is written."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError, no_retry
from redrive.sources.log import Log
from redrive.testing import Harness


class Object:
    """Something that can be called, and is no function."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, event: Any, ctx: Any) -> None:
        self.seen.append(event.data)


def generator(event: Any, ctx: Any) -> Any:
    yield event


async def async_generator(event: Any, ctx: Any) -> Any:
    yield event


@pytest.mark.parametrize(
    "function", [generator, async_generator, functools.partial(generator)], ids=["def", "async", "partial"]
)
def test_a_generator_would_never_run(app: App, function: Any) -> None:
    with pytest.raises(UsageError, match="yield"):
        app.on(app.log("orders"), name="charge")(function)
    with pytest.raises(UsageError, match="yield"):
        app.projection(app.log("orders"), name="charge")(function)
    assert app.subscriptions == {}


def test_an_object_whose_call_is_a_coroutine_is_awaited(app: App, harness: Harness) -> None:
    charge = Object()
    app.on(app.log("orders"), name="charge", start="first")(charge)
    with pytest.raises(UsageError, match="is async"):
        app.projection(app.log("orders"), name="revenue")(charge)  # type: ignore[arg-type]
    harness.append("orders", "order.placed", 1)
    harness.run_until_idle()
    assert charge.seen == [1]


async def charged(event: Any, ctx: Any) -> None:
    raise AssertionError("nobody awaits it")


def forgets_to_await(event: Any, ctx: Any) -> Any:
    return charged(event, ctx)


async def forgets_to_await_that(event: Any, ctx: Any) -> Any:
    return charged(event, ctx)


def forgets_to_run(event: Any, ctx: Any) -> Any:
    return generator(event, ctx)


@pytest.mark.parametrize("function", [forgets_to_await, forgets_to_await_that, forgets_to_run])
def test_what_nobody_ran_is_not_applied(app: App, harness: Harness, function: Any) -> None:
    """A decorator that does not know of coroutines does that, and the event would count as handled."""
    app.on(app.log("orders"), name="charge", start="first", retry=no_retry)(function)
    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.state, letter.error_type) == ("dead", "redrive.errors.UsageError")
    assert "that nobody runs" in letter.error_message


@pytest.mark.parametrize("batch", [False, True])
def test_what_nobody_ran_is_not_projected(app: App, harness: Harness, batch: bool) -> None:
    app.projection(app.log("orders"), name="revenue", retry=no_retry, batch=batch)(forgets_to_run)
    for number in range(20):
        harness.append("orders", "order.placed", number)
    harness.run_until_idle()
    assert len(harness.letters("dead")) == 20


def test_what_nobody_ran_is_not_projected_beside_a_parked_key_either(app: App, harness: Harness) -> None:
    """There each event is looked at before it is called, in another loop."""
    app.projection(app.log("orders"), name="revenue", retry=no_retry)(forgets_to_run)
    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    for key in "abc":
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    assert [(letter.key, letter.state) for letter in harness.letters()] == [
        ("a", "dead"),
        ("a", "retrying"),
        ("b", "dead"),
        ("c", "dead"),
    ]


def test_one_function_on_two_logs_needs_two_names(app: App) -> None:
    """The second declaration would take the place of the first, and nobody would read that log."""

    def charge(event: Any, ctx: Any) -> None: ...

    app.on(app.log("orders"), "order.placed")(charge)
    app.on(app.log("orders"), "order.placed")(charge)  # the same once more: a module that is loaded again
    for source, types in ((app.log("payments"), ["order.placed"]), (app.log("orders"), ["order.paid"])):
        with pytest.raises(UsageError, match="name="):
            app.on(source, *types)(charge)
    with pytest.raises(UsageError, match="name="):
        app.projection(app.log("orders"), "order.placed")(charge)
    app.on(app.log("payments"), name="charge_payments")(charge)
    assert set(app.subscriptions) == {"charge", "charge_payments"}


def test_a_decorator_without_its_log_is_an_error_at_once(app: App) -> None:
    """The function would be taken for the log, and never be declared."""
    for decorator in (app.on, app.projection):
        with pytest.raises(UsageError, match="the first argument is a log"):
            decorator(lambda event, ctx: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"concurrency": 0}, "concurrency=0; give a number from 1"),
        ({"concurrency": "3"}, "concurrency='3'; give a number from 1"),
        ({"concurrency": 2, "order": "total"}, "total order runs one at a time"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": -1}, "timeout: the duration -1 is negative"),
        ({"timeout": 0}, "timeout: 0 leaves no time"),
        ({"retry": []}, "retry= takes"),
        ({"start": datetime(2026, 1, 31, tzinfo=UTC)}, "as text"),
        ({"key_by": 3}, "key_by is a plain def"),
        ({"key_by": lambda: "k"}, "key_by is a plain def"),
        ({"on_error": "notify"}, "on_error is a plain def"),
        ({"on_error": lambda event: None}, "on_error is a plain def"),
    ],
    ids=lambda given: str(given).partition(" at 0x")[0],  # an address would differ from process to process
)
def test_options_that_make_no_sense_are_refused(app: App, option: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        app.on(app.log("orders"), name="charge", **option)(lambda event, ctx: None)


@pytest.mark.parametrize("name", ["two words", "a" * 201, 3, "a\nb"])
def test_a_name_that_nobody_could_type_is_refused(app: App, name: Any) -> None:
    with pytest.raises(UsageError, match="subscription's name"):
        app.on(app.log("orders"), name=name)(lambda event, ctx: None)


def test_what_can_be_called_and_has_no_name_is_given_one(app: App) -> None:
    """What it is shown as has an address in it: another one in each process."""
    with pytest.raises(UsageError, match="subscription's name"):
        app.on(app.log("orders"))(Object())


@pytest.mark.parametrize("pattern", ["", "order placed", "order.*\n"])
def test_a_filter_that_no_event_can_fit_is_refused(app: App, pattern: str) -> None:
    with pytest.raises(UsageError, match="fits no event"):
        app.on(app.log("orders"), pattern)(lambda event, ctx: None)


def test_one_name_is_no_list_of_tables(app: App) -> None:
    with pytest.raises(UsageError, match=r"tables=\['revenue'\]"):
        app.projection(app.log("orders"), tables="revenue")(lambda event, tx: None)


def test_a_log_of_another_store_is_not_mistaken_for_one_of_the_same_name(tmp_path: Path) -> None:
    shop, bank = App(str(tmp_path / "shop.db")), App(str(tmp_path / "bank.db"))
    shop.on(bank.log("payments"), start="first", name="charge")(lambda event, ctx: None)
    with pytest.raises(UsageError, match=r"log 'payments' is in .*bank\.db, and this app is on .*shop\.db"):
        shop.run(until_idle=True)


def run_refused(shop: App, orders: Log) -> int:
    """Run for one order; of how many functions it is a letter, because they mean a log of another store."""
    orders.append("order.placed")
    shop.run(until_idle=True)
    letters = shop.operate().letters.list()
    assert {(one.reason, "functions read, emit and cancel" in one.error_message) for one in letters} <= {
        ("permanent", True)
    }
    return len(letters)


@pytest.mark.parametrize("file", ["bank.db", "shop.db"])
def test_emitting_to_a_log_of_another_store_is_refused_and_of_the_same_one_is_not(tmp_path: Path, file: str) -> None:
    shop, bank = App(str(tmp_path / "shop.db")), App(str(tmp_path / file))
    orders, payments = shop.log("orders"), bank.log("payments")
    shop.on(orders, start="first", name="charge")(lambda event, ctx: ctx.emit(payments, "payment.due") and None)
    shop.projection(orders, name="book")(lambda event, tx: tx.emit(payments, "payment.due") and None)
    refused = run_refused(shop, orders)
    assert refused == (2 if file == "bank.db" else 0)
    assert (len(list(payments.read())), len(list(shop.log("payments").read()))) == (2 - refused, 2 - refused)
    shop.close()
    bank.close()


@pytest.mark.parametrize("file", ["bank.db", "shop.db"])
def test_cancelling_in_a_log_of_another_store_is_refused_and_in_the_same_one_is_not(tmp_path: Path, file: str) -> None:
    shop, bank = App(str(tmp_path / "shop.db")), App(str(tmp_path / file))
    orders, payments = shop.log("orders"), bank.log("payments")
    for id in ("a", "b"):
        shop.log("payments").append("payment.due", id=id, after="1h")
    shop.on(orders, start="first", name="charge")(lambda event, ctx: ctx.cancel(payments, "a") and None)
    shop.projection(orders, name="book")(lambda event, tx: tx.cancel(payments, "b") and None)
    refused = run_refused(shop, orders)
    assert refused == (2 if file == "bank.db" else 0)
    assert [shop.log("payments").cancel(id) for id in ("a", "b")] == [bool(refused)] * 2
    shop.close()
    bank.close()


async def listens_never(signals: Any) -> None: ...


@pytest.mark.parametrize("listener", [3, lambda: None, listens_never], ids=["no function", "no argument", "async"])
def test_a_listener_that_would_hear_nothing_is_refused(app: App, listener: Any) -> None:
    with pytest.raises(UsageError, match="plain def"):
        app.listen(listener)


def test_one_module_is_a_list_of_one() -> None:
    with pytest.raises(UsageError, match=r"include=\['shop.handlers'\]"):
        App("unused.db", include="shop.handlers")
    with pytest.raises(UsageError, match="names of modules, not 5"):
        App("unused.db", include=[5])  # type: ignore[list-item]


def test_a_mirror_is_named_by_what_it_is(app: App) -> None:
    with pytest.raises(UsageError, match="takes mirrors"):
        app.mirror(to=5)  # type: ignore[arg-type]
