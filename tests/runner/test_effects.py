"""Effects of handlers: asked of `ctx`, written when the event is settled, all of them or none."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from typing import Any

import pytest
from rich.pretty import pretty_repr

from redrive import App, Ctx, Event, UsageError, no_retry, retry
from redrive.testing import Harness


def put(harness: Harness, *names: str, log: str = "orders") -> None:
    """The key of an event is the first letter of its name."""
    for name in names:
        harness.append(log, "order.placed", {"name": name}, key=name[0])


def make_table(app: App, name: str, columns: str) -> None:
    with app.transaction() as tx:
        tx.execute(f"CREATE TABLE {name} ({columns})")


def test_state_is_kept_per_key_and_subscription(app: App, harness: Harness) -> None:
    seen = []
    for name in ("one", "two"):

        @app.on(app.log("orders"), start="first", name=name)
        def count(event, ctx, name=name):
            ctx.state["n"] = ctx.state.get("n", 0) + (1 if name == "one" else 10)
            seen.append((name, event.key, ctx.state["n"]))

    put(harness, "a", "b", "a")
    harness.run_until_idle()
    assert [row for row in seen if row[0] == "one"] == [("one", "a", 1), ("one", "b", 1), ("one", "a", 2)]
    assert ("two", "a", 20) in seen


def test_state_survives_a_restart_and_a_crash(app: App, harness: Harness) -> None:
    seen = []

    @app.on(app.log("orders"), start="first")
    def count(event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        seen.append(ctx.state["n"])

    put(harness, "a")
    harness.run_until_idle()
    harness.restart()
    put(harness, "a")
    harness.run_until_idle()
    harness.crash()
    put(harness, "a")
    harness.run_until_idle()
    assert seen == [1, 2, 3]


def test_what_is_asked_after_the_function_has_returned_is_refused(app: App, harness: Harness) -> None:
    """Its event is settled by then, and nobody would do it."""
    late: list[str] = []
    tasks = []

    async def ask_later(ctx):
        await asyncio.sleep(1)
        for ask in (
            lambda: ctx.emit(app.log("out"), "late"),
            lambda: ctx.execute("DELETE FROM nothing"),
            lambda: ctx.cancel(app.log("out"), "reminder"),
            lambda: ctx.state.update(late=True),
        ):
            with pytest.raises(UsageError, match="has returned") as caught:
                ask()
            late.append(str(caught.value))

    @app.on(app.log("orders"), start="first")
    async def charge(event, ctx):
        tasks.append(asyncio.create_task(ask_later(ctx)))
        if event.data:
            ctx.emit(app.log("out"), "in.time")

    harness.append("orders", "order.placed", True, key="a")
    harness.append("orders", "order.placed", False, key="b")
    harness.advance("1m")
    for task in tasks:
        task.result()
    assert len(late) == 8
    assert harness.emitted("out") == [("in.time", None)]


def test_an_empty_state_is_deleted(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def toggle(event, ctx):
        if ctx.state:
            ctx.state.clear()
        else:
            ctx.state["on"] = True

    put(harness, "a")
    harness.run_until_idle()
    assert harness.query("SELECT key, data FROM redrive_state") == [("a", b'{"on":true}')]
    put(harness, "a")
    harness.run_until_idle()
    assert harness.query("SELECT * FROM redrive_state") == []
    put(harness, "a")
    harness.run_until_idle()
    assert harness.query("SELECT key, version FROM redrive_state") == [("a", 3)]  # the position that wrote it


def test_state_can_be_replaced_as_a_whole(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def replace(event, ctx):
        ctx.state = {"name": event.data["name"]}

    put(harness, "a1", "a2")
    harness.run_until_idle()
    assert harness.query("SELECT data FROM redrive_state") == [(b'{"name":"a2"}',)]


def test_a_failed_attempt_leaves_the_state_as_it_was(app: App, harness: Harness) -> None:
    seen = []

    @app.on(app.log("orders"), start="first", retry=retry(jitter=0))
    def count(event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        seen.append(ctx.state["n"])
        if len(seen) < 3:
            raise OSError

    put(harness, "a")
    harness.advance("1m")
    assert seen == [1, 1, 1]
    assert harness.query("SELECT data FROM redrive_state") == [(b'{"n":1}',)]


def test_state_without_a_key_is_an_error_that_names_the_fix(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def count(event, ctx):
        ctx.state["n"] = 1

    harness.append("orders", "order.placed")
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.reason, "key_by=" in letter.error_message) == ("permanent", True)


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, object(), "\ud800"], ids=["nan", "key", "object", "surrogate"])
def test_a_state_that_cannot_be_stored_is_the_functions_failure(app: App, harness: Harness, value: Any) -> None:
    @app.on(app.log("orders"), start="first", retry=no_retry)
    def count(event, ctx):
        if event.key == "a":
            ctx.state["value"] = value

    put(harness, "a", "b")
    harness.run_until_idle()
    assert [(letter.lane, letter.state) for letter in harness.letters()] == [("a", "dead")]


def test_all_effects_commit_together(app: App, harness: Harness) -> None:
    make_table(app, "notes", "text TEXT")

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def act(event, ctx):
        ctx.execute("INSERT INTO notes VALUES (:text)", {"text": event.data["name"]})
        ctx.execute("INSERT INTO notes VALUES (?)", ("positional",))
        ctx.emit(app.log("out"), "noted", event.data["name"])
        ctx.state["n"] = 1
        if event.key == "b":
            raise OSError

    put(harness, "a", "b")
    harness.run_until_idle()
    assert harness.query("SELECT text FROM notes") == [("a",), ("positional",)]
    assert harness.emitted("out") == [("noted", "a")]
    assert harness.query("SELECT key FROM redrive_state") == [("a",)]


def test_a_statement_that_fails_at_settling_fails_its_event_and_no_neighbour_is_called_again(
    app: App, harness: Harness
) -> None:
    make_table(app, "notes", "n INTEGER PRIMARY KEY, text TEXT")
    calls = []

    @app.on(app.log("orders"), start="first", concurrency=8, retry=retry(attempts=2, wait="1m", jitter=0))
    async def act(event, ctx):
        calls.append(event.data["name"])
        await asyncio.sleep(0.1)
        number = 1 if event.key in "ad" else ord(event.key)
        ctx.execute("INSERT INTO notes VALUES (:n, :text)", {"n": number, "text": event.data["name"]})
        ctx.emit(app.log("out"), "noted", event.data["name"])

    put(harness, "a", "b", "c", "d", "e")
    harness.run_until_idle()
    assert sorted(calls) == ["a", "b", "c", "d", "e"]
    assert sorted(text for (text,) in harness.query("SELECT text FROM notes")) == ["a", "b", "c", "e"]
    assert sorted(data for _, data in harness.emitted("out")) == ["a", "b", "c", "e"]
    [letter] = harness.letters()
    expected = "psycopg.errors.UniqueViolation" if harness.on_postgres else "sqlite3.IntegrityError"
    assert (letter.lane, letter.state, letter.error_type) == ("d", "retrying", expected)
    harness.advance("1m")
    assert sorted(calls) == ["a", "b", "c", "d", "d", "e"]
    assert harness.letters()[0].state == "dead"


def test_a_statement_that_fails_at_a_retry_fails_only_that_retry(app: App, harness: Harness) -> None:
    make_table(app, "notes", "n INTEGER PRIMARY KEY")

    @app.on(app.log("orders"), start="first", retry=retry(attempts=3, wait="1m", factor=1, jitter=0))
    def act(event, ctx):
        if ctx.attempt == 1:
            raise OSError
        ctx.execute("INSERT INTO notes VALUES (:n)", {"n": 1 if ctx.attempt == 2 else ord(event.key)})

    put(harness, "a", "b")
    harness.advance("1m")
    assert harness.query("SELECT n FROM notes") == [(1,)]
    assert [letter.state for letter in harness.letters()] == ["applied", "retrying"]
    harness.advance("1m")
    assert harness.query("SELECT n FROM notes") == [(1,), (ord("b"),)]


def test_commit_in_a_handlers_statement_is_refused(app: App, harness: Harness) -> None:
    make_table(app, "notes", "text TEXT")

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def act(event, ctx):
        ctx.execute("INSERT INTO notes VALUES ('half')")
        if event.key == "a":
            ctx.execute("COMMIT")

    put(harness, "a", "b")
    harness.run_until_idle()
    assert harness.query("SELECT text FROM notes") == [("half",)]
    assert [(letter.lane, letter.state) for letter in harness.letters()] == [("a", "dead")]


def test_emissions_have_the_key_of_the_event_unless_another_is_given(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def act(event, ctx):
        ctx.emit(app.log("out"), "same")
        ctx.emit(app.log("out"), "other", key="z")
        ctx.emit(app.log("out"), "none", key=None, headers={"h": "1"})

    put(harness, "a")
    harness.run_until_idle()
    events = list(app.log("out").read())
    assert [(event.type, event.key) for event in events] == [("same", "a"), ("other", "z"), ("none", None)]
    assert events[-1].headers == {"h": "1"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ctx, out: ctx.emit("out", "x"),
        lambda ctx, out: ctx.emit(out, ""),
        lambda ctx, out: ctx.emit(out, "x", float("inf")),
        lambda ctx, out: ctx.emit(out, "x", key=""),
        lambda ctx, out: ctx.emit(out, "x", key=None, expected_version=1),
    ],
    ids=["no log", "no type", "inf", "empty key", "version without key"],
)
def test_a_wrong_emission_fails_where_it_is_made(app: App, harness: Harness, wrong: Any) -> None:
    places = []

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def act(event, ctx):
        try:
            wrong(ctx, app.log("out"))
        except Exception as error:
            places.append(type(error).__name__)

    put(harness, "a")
    harness.run_until_idle()
    assert len(places) == 1
    assert (harness.letters(), harness.emitted("out")) == ([], [])


def test_the_idempotency_key_is_the_same_at_every_attempt_and_differs_by_subscription(
    app: App, harness: Harness
) -> None:
    keys: dict[str, set[str]] = {"one": set(), "two": set()}
    for name in keys:

        @app.on(app.log("orders"), start="first", name=name, retry=retry(attempts=3))
        def act(event, ctx, name=name):
            keys[name].add(ctx.idempotency_key)
            raise OSError

    event = harness.append("orders", "order.placed", key="a")
    harness.advance("1m")
    assert keys == {"one": {f"one:{event.id}"}, "two": {f"two:{event.id}"}}


def test_ctx_tells_attempt_key_epoch_and_event(app: App, harness: Harness) -> None:
    seen = []

    @app.on(app.log("orders"), start="first", retry=retry(attempts=2))
    def act(event, ctx):
        seen.append((ctx.attempt, ctx.key, ctx.epoch, ctx.event is event, ctx.deps))
        raise OSError

    put(harness, "a")
    harness.run_until_idle()
    harness.restart()
    harness.advance("1m")
    assert seen == [(1, "a", 1, True, None), (2, "a", 2, True, None)]


def test_a_chain_of_handlers_runs_to_its_end(app: App, harness: Harness) -> None:
    for number in range(5):

        @app.on(app.log(f"log{number}"), start="first", name=f"step{number}")
        def forward(event, ctx, number=number):
            ctx.emit(app.log(f"log{number + 1}"), "passed", event.data + 1)

    harness.append("log0", "passed", 0)
    harness.run_until_idle()
    assert harness.emitted("log5") == [("passed", 5)]


def test_a_handler_may_append_by_itself_at_least_once(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first")
    def act(event, ctx):
        app.log("out").append("noted", id=ctx.idempotency_key)
        if ctx.attempt == 1:
            raise OSError

    put(harness, "a")
    harness.advance("1m")
    assert len(harness.emitted("out")) == 1


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt()],
)
def test_a_function_that_asks_to_exit_stops_the_worker_and_its_event_is_given_back(
    app: App, harness: Harness, error: BaseException
) -> None:
    attempts = []

    @app.on(app.log("orders"), start="first")
    def act(event, ctx):
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise error

    put(harness, "a", "b")
    harness.run_until_idle()
    assert harness.letters() == []
    harness.run_until_idle()
    assert attempts == [1, 1, 1]
    assert harness.query("SELECT applied FROM redrive_progress") == [(2,)]


@pytest.mark.parametrize("kind", ["handler", "async handler", "projection"])
@pytest.mark.parametrize("error", [MemoryError, RecursionError, asyncio.CancelledError, GeneratorExit, StopIteration])
def test_strange_exceptions_are_failures_of_their_event(app: App, harness: Harness, kind: str, error: Any) -> None:
    if error is StopIteration and kind == "async handler":
        error = StopAsyncIteration  # a coroutine turns StopIteration into RuntimeError by itself
    if error is GeneratorExit:
        error = type("Odd", (BaseException,), {})
    done = []

    def act(event: Any, _: Any) -> None:
        if event.key == "a":
            raise error
        done.append(event.key)

    async def act_async(event: Any, ctx: Any) -> None:
        act(event, ctx)

    if kind == "projection":
        app.projection(app.log("orders"), retry=no_retry)(act)
    else:
        app.on(app.log("orders"), start="first", retry=no_retry)(act_async if "async" in kind else act)
    put(harness, "a", "b")
    harness.run_until_idle()
    assert done[-1:] == ["b"]
    assert [(letter.lane, letter.state) for letter in harness.letters()] == [("a", "dead")]


def test_an_exception_whose_text_cannot_be_had_is_kept_all_the_same(app: App, harness: Harness) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise ValueError("no text for you")

    class Huge(Exception):
        def __str__(self) -> str:
            return "x" * 10_000_000 + "\ud800\0"

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def act(event, ctx):
        raise Rude if event.key == "a" else Huge

    put(harness, "a", "b")
    harness.run_until_idle()
    rude, huge = harness.letters()
    assert "__str__ raised ValueError" in rude.error_message
    assert len(huge.error_message.encode()) <= 8192


def test_failure_of_a_handler_is_described_outside_a_transaction(app: App, harness: Harness) -> None:
    """Its text may be long and hostile: looking through it must not hold the write lock."""
    described = []

    class Watching(Exception):
        def __str__(self) -> str:
            described.append(app.runtime.store.inside_transaction())
            return "'\\" * 5_000

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def act(event, ctx):
        raise Watching

    put(harness, "a", "b")
    harness.run_until_idle()
    assert len(harness.letters()) == 2
    assert described
    assert not any(described)


def test_ctx_is_refused_what_is_not_a_dict_as_state(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first", retry=no_retry)
    def act(event, ctx):
        ctx.state = ["a"]

    put(harness, "a")
    harness.run_until_idle()
    assert "ctx.state is a dict" in harness.letters()[0].error_message


def test_concurrency_below_one_is_refused(app: App) -> None:
    with pytest.raises(UsageError):
        app.on(app.log("orders"), concurrency=0)(lambda event, ctx: None)


def test_a_lock_in_a_handlers_own_database_is_its_failure_and_not_our_stores(app: App, start: Any) -> None:
    @app.on(app.log("orders"), start="first", retry=retry(attempts=1))
    def mirror(event: Any, ctx: Any) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    harness = start(app)
    harness.append("orders", "order.placed", {})
    harness.run_until_idle()
    assert [letter.error_type for letter in harness.letters("dead")] == ["sqlite3.OperationalError"]


@pytest.mark.parametrize("hook", [None, lambda event, error: None], ids=["no hook", "hook"])
def test_what_a_function_raised_is_gone_when_its_event_is_settled(app: App, harness: Harness, hook: Any) -> None:
    raised: list[weakref.ref[Odd]] = []

    @app.on(app.log("orders"), start="first", retry=retry(attempts=2, wait="1s"), on_error=hook)
    async def fail(event: Event[Any], ctx: Ctx) -> None:
        if event.data % 2:
            raise_and_note(raised)
        ctx.execute("INSERT INTO no_such_table VALUES (1)")

    for number in range(20):
        harness.append("orders", "odd", number)
    harness.advance("1h")
    assert len(harness.letters()) == 20
    gc.collect()
    assert [ref() for ref in raised] == [None] * 20


class Odd(Exception):
    """One that can be watched."""


def raise_and_note(raised: list[weakref.ref[Odd]]) -> None:
    error = Odd()
    raised.append(weakref.ref(error))
    raise error


def test_a_ctx_shows_nothing_of_what_it_holds_and_takes_no_other_names(app: App, harness: Harness) -> None:
    shown = []

    @app.on(app.log("orders"), start="first")
    async def remember(event: Event[Any], ctx: Ctx) -> None:
        ctx.state["secret"] = "hunter2"
        ctx.execute("SELECT 'hunter2'")
        ctx.emit(app.log("others"), "order.seen", {"secret": "hunter2"})
        with pytest.raises(AttributeError):
            ctx.stat = {}  # type: ignore[attr-defined]
        shown.extend([repr(ctx), pretty_repr(ctx)])

    put(harness, "a1")
    harness.run_until_idle()
    assert len(shown) == 2 and not harness.letters()
    assert all("order.placed" in text and "attempt=1" in text and "hunter2" not in text for text in shown)


@pytest.mark.parametrize("emits", [False, True], ids=["before its first emission", "after it"])
def test_a_tx_that_is_kept_emits_for_nobody(app: App, harness: Harness, emits: bool) -> None:
    copies, kept, said = app.log("copies"), [], []

    def hook(event: Event[Any], error: Exception) -> None:
        for ask in (lambda tx: tx.emit(copies, "made"), lambda tx: tx.cancel(copies, "some")):
            with pytest.raises(UsageError, match="this tx is over"):
                ask(kept[0])
            said.append(str(error))

    @app.projection(app.log("orders"), start="first", retry=no_retry, on_error=hook)
    def copy(event, tx):
        kept[:] = [tx]
        if emits:
            tx.emit(copies, "made")
        if event.data["name"] == "bad":
            raise ValueError("bad")

    put(harness, "good", "bad", "late")
    harness.run_until_idle()
    assert said == ["bad"] * 2
    with pytest.raises(UsageError, match="this tx is over"):
        kept[0].emit(copies, "made")
    harness.append("orders", "order.placed", {"name": "more"}, key="m")
    harness.run_until_idle()
    assert len(harness.emitted("copies")) == (3 if emits else 0)
