"""Keys: where they come from, and what happens to an event that has none it can use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import redrive
from redrive import App, UsageError, no_retry
from redrive.testing import Harness

KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])


def declare(app: App, kind: str, function: Any, **options: Any) -> None:
    options = {"start": "first", "retry": no_retry, **options}
    if kind == "projection":
        app.projection(app.log("logins"), name="watch", **options)(function)
    else:
        app.on(app.log("logins"), name="watch", **options)(function)


def keys_seen(app: App, harness: Harness, **options: Any) -> list[str | None]:
    seen: list[str | None] = []
    declare(app, "handler", lambda event, ctx: seen.append(ctx.key), **options)
    return seen


def test_without_key_by_the_key_is_the_one_it_was_appended_with(app: App, harness: Harness) -> None:
    seen = keys_seen(app, harness)
    harness.append("logins", "login.failed", {"user": "ada"}, key="k")
    harness.append("logins", "login.failed", {"user": "ada"})
    harness.run_until_idle()
    assert seen == ["k", None]


def test_a_name_is_a_field_of_the_data(app: App, harness: Harness) -> None:
    seen = keys_seen(app, harness, key_by="user")
    harness.append("logins", "login.failed", {"user": "ada"}, key="k")
    harness.append("logins", "login.failed", {"user": 7})
    harness.append("logins", "login.failed", {"user": None})
    harness.run_until_idle()
    assert seen == ["ada", "7", None]


def test_a_name_is_an_attribute_of_a_typed_event(app: App, harness: Harness) -> None:
    @redrive.event("keying.login")
    @dataclass
    class Login:
        user: str

    seen = keys_seen(app, harness, key_by="user")
    harness.append("logins", Login("ada"))
    harness.run_until_idle()
    assert seen == ["ada"]


def test_a_function_takes_the_event_and_gives_the_key(app: App, harness: Harness) -> None:
    seen = keys_seen(app, harness, key_by=lambda event: f"{event.type}/{event.key}")
    harness.append("logins", "login.failed", key="k")
    harness.run_until_idle()
    assert seen == ["login.failed/k"]


@KINDS
def test_the_key_of_key_by_makes_the_lane(app: App, harness: Harness, kind: str) -> None:
    done = []

    def watch(event: Any, _: Any) -> None:
        if event.data["n"] == 1:
            raise OSError
        done.append(event.data["n"])

    declare(app, kind, watch, key_by="user")
    for number, user in [(1, "ada"), (2, "bob"), (3, "ada")]:
        harness.append("logins", "login.failed", {"n": number, "user": user}, key="same")
    harness.run_until_idle()
    assert done == [2]
    lanes = [(letter.lane, letter.key, letter.state) for letter in harness.letters()]
    assert lanes == [("ada", "ada", "dead"), ("ada", "ada", "retrying")]


@KINDS
@pytest.mark.parametrize(
    ("key_by", "data", "says"),
    [
        ("user", {"other": 1}, "no such field"),
        ("user", "text", "no such field"),
        ("user", {"user": ""}, "empty"),
        ("user", {"user": "x" * 600}, "the limit is 512"),
        ("user", {"user": ["ada"]}, "must be text"),
        ("user", {"user": True}, "must be text"),
        (lambda event: 1 / 0, {}, "ZeroDivisionError"),
        (lambda event: b"bytes", {}, "must be text"),
    ],
)
def test_an_event_without_a_usable_key_is_a_dead_letter_in_a_lane_of_its_own(
    app: App, harness: Harness, kind: str, key_by: Any, data: Any, says: str
) -> None:
    done = []
    declare(app, kind, lambda event, _: done.append(event.data), key_by=key_by)
    harness.append("logins", "login.failed", data, key="k")
    if isinstance(key_by, str):
        harness.append("logins", "login.failed", {"user": "ada"}, key="k")
    harness.run_until_idle()
    assert done == ([{"user": "ada"}] if isinstance(key_by, str) else [])
    [letter] = harness.letters()
    assert (letter.state, letter.reason, letter.lane, letter.key) == ("dead", "bad_key", None, "k")
    assert says in letter.error_message


def test_a_key_of_its_own_letter_counts_for_state_and_emissions(app: App, harness: Harness) -> None:
    @app.on(app.log("logins"), start="first", key_by="user")
    def watch(event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.emit(app.log("alerts"), "counted", ctx.state["n"])

    for _ in range(2):
        harness.append("logins", "login.failed", {"user": "ada"}, key="k")
    harness.run_until_idle()
    assert [(event.key, event.data) for event in app.log("alerts").read()] == [("ada", 1), ("ada", 2)]
    assert harness.query("SELECT key FROM redrive_state") == [("ada",)]


@KINDS
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_key_function_raises_is_kept_with_its_event(
    app: App, harness: Harness, kind: str, error: type[BaseException]
) -> None:
    """Some of it is no Exception; it had stopped the subscription, and of some of that nobody heard."""

    def key_by(event: Any) -> Any:
        if event.data == 1:
            raise error
        return "k"

    seen: list[Any] = []
    declare(app, kind, lambda event, _: seen.append(event.data), key_by=key_by)
    for number in range(3):
        harness.append("logins", "login.failed", number)
    harness.run_until_idle()
    assert seen == [0, 2]
    [letter] = harness.letters()
    assert (letter.state, letter.reason) == ("dead", "bad_key")
    assert error.__name__ in letter.error_message


def test_a_key_function_is_no_coroutine(app: App) -> None:
    async def key_by(event: Any) -> str:
        return "k"

    with pytest.raises(UsageError, match="key_by is a plain def"):
        declare(app, "handler", lambda event, ctx: None, key_by=key_by)
