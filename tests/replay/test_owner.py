"""A running owner and an operator on the same letters: nobody runs twice, nobody is forgotten."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from redrive import App, Ctx, Event, Reject, no_retry
from redrive.testing import Harness


def test_a_letter_that_is_running_is_not_started_again_when_the_owner_looks_at_its_letters_anew() -> None:
    app = App("unused.db")
    logins = app.log("logins")
    bad, started = True, []

    @app.on(logins, start="first", order="none", retry=no_retry, concurrency=8)
    async def watch(event: Event[Any], ctx: Ctx) -> None:
        if bad:
            raise Reject("bad")
        started.append(event.position)
        if event.position == 1:
            app.operate("bob").letters.discard([other], "while the first one runs")
            logins.append("c", {})  # wakes the owner, who finds that somebody was at its letters
            await asyncio.sleep(10)

    with Harness(app) as harness:
        harness.append(logins, "a", {})
        harness.append(logins, "b", {})
        harness.run_until_idle()
        first, other = (letter.id for letter in sorted(harness.letters("dead"), key=lambda letter: letter.position))
        bad = False
        app.operate("ada").letters.replay(first)
        harness.advance("20s")
        assert started.count(1) == 1
        assert [letter.state for letter in harness.letters()] == ["applied", "discarded"]
        assert [entry.outcome for entry in app.operate().letters.history(first)] == ["rejected", "applied"]


def test_a_letter_that_is_edited_while_it_runs_loses_and_runs_again_with_the_edit() -> None:
    app = App("unused.db")
    logins = app.log("logins")
    bad, seen = True, []

    @app.on(logins, start="first", order="none", retry=no_retry)
    async def watch(event: Event[Any], ctx: Ctx) -> None:
        if bad:
            raise Reject("bad")
        seen.append(event.data)
        if len(seen) == 1:
            app.operate("bob").letters.edit(letter, "new", "in the middle of it")
            logins.append("b", "wakes the owner")
        await asyncio.sleep(10)

    with Harness(app) as harness:
        harness.append(logins, "a", "old")
        harness.run_until_idle()
        letter, bad = harness.letters()[0].id, False
        app.operate("ada").letters.replay(letter)
        harness.advance("60s")
        assert [data for data in seen if data != "wakes the owner"] == ["old", "new"]
        outcomes = [entry.outcome for entry in app.operate().letters.history(letter)]
        assert outcomes == ["rejected", "lost to an operator", "applied"]
        assert all(verdict.sound for verdict in app.operate().verify())


def test_a_letter_that_got_its_key_by_an_edit_does_not_run_beside_the_lane_of_that_key() -> None:
    app = App("unused.db")
    logins = app.log("logins")
    running: list[int] = []

    @app.on(logins, key_by="user", start="first", concurrency=4)
    async def watch(event: Event[Any], ctx: Ctx) -> None:
        running.append(event.position)
        seen = ctx.state.get("seen", [])
        await asyncio.sleep(10)
        ctx.state["seen"] = [*seen, event.position]
        assert running.pop() == event.position  # nobody else was here meanwhile

    with Harness(app) as harness:
        harness.append(logins, "login", {"nobody": True})
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        assert letter.reason == "bad_key"
        desk = app.operate("ada").letters
        desk.edit(letter, {"user": "ada"}, "it was ada")
        desk.replay(letter.id)
        harness.append(logins, "login", {"user": "ada"})
        harness.append(logins, "login", {"user": "ada"})
        harness.advance("60s")
        ((key, data),) = harness.query("SELECT key, data FROM redrive_state")
        assert (key, sorted(json.loads(data)["seen"])) == ("ada", [1, 2, 3])
        assert harness.letters()[0].state == "applied"
        assert all(verdict.sound for verdict in app.operate().verify())
