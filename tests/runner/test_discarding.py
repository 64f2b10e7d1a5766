"""Keep and discard rules: nothing is dropped unless a rule says so, and then it is counted and audited."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from redrive import App, Reject, no_retry, retry, rules
from redrive.observe import signals as sig
from redrive.testing import Harness


def reject_everything(app: App, letters: Any, **options: Any) -> None:
    @app.on(app.log("pings"), start="first", letters=letters, **options)
    def check(event, ctx):
        raise Reject("no")


@pytest.mark.parametrize(
    "pattern",
    ["health.ping", "health.*", re.compile(r"health\.p.+"), lambda letter: letter.event.type == "health.ping"],
    ids=["exact", "glob", "regex", "function"],
)
def test_a_discard_pattern_drops_what_would_be_buried(app: App, harness: Harness, pattern: Any) -> None:
    reject_everything(app, rules(discard=pattern))
    harness.append("pings", "health.ping", key="a")
    harness.append("pings", "order.placed", key="b")
    harness.run_until_idle()
    states = [(letter.type, letter.state) for letter in harness.letters()]
    assert states == [("health.ping", "discarded"), ("order.placed", "dead")]


def test_a_discard_is_counted_audited_and_signalled_with_its_rule(app: App, harness: Harness) -> None:
    reject_everything(app, rules(discard="health.*"))
    event = harness.append("pings", "health.ping", key="a")
    harness.run_until_idle()
    [letter] = harness.letters()
    assert letter.resolved_by == "rule: discard health.*"
    [(who, action, subscription, reason, details)] = harness.query(
        "SELECT who, action, subscription, reason, details FROM redrive_audit"
    )
    assert (who, action, subscription, reason) == ("rule", "discard", "check", "discard health.*")
    assert json.loads(details)["event"] == event.id
    assert harness.query("SELECT state, n FROM redrive_letter_counts") == [("discarded", 1)]
    [signal] = [signal for signal in harness.signals if isinstance(signal, sig.Discarded)]
    assert (signal.rule, signal.event_id) == ("discard health.*", event.id)


def test_discard_beats_keep_and_keep_beats_keep_if(app: App, harness: Harness) -> None:
    reject_everything(app, rules(discard="health.ping", keep="health.*", keep_if=lambda letter: False))
    for kind in ("health.ping", "health.slow", "order.placed"):
        harness.append("pings", kind, key=kind)
    harness.run_until_idle()
    assert {letter.type: letter.state for letter in harness.letters()} == {
        "health.ping": "discarded",
        "health.slow": "dead",
        "order.placed": "discarded",
    }


def test_keep_if_sees_why_the_letter_would_be_buried(app: App, harness: Harness) -> None:
    seen = []

    def keep_if(letter: Any) -> bool:
        seen.append((letter.subscription, letter.reason, letter.attempts, letter.failure.message, letter.event.data))
        return bool(letter.event.data["cents"] > 100)

    reject_everything(app, rules(keep_if=keep_if))
    for cents in (5, 500):
        harness.append("pings", "order.placed", {"cents": cents}, key=str(cents))
    harness.run_until_idle()
    assert [letter.state for letter in harness.letters()] == ["discarded", "dead"]
    assert seen[0] == ("check", "rejected", 1, "no", {"cents": 5})


def test_a_rule_that_raises_keeps_the_letter_and_says_so(app: App, harness: Harness) -> None:
    reject_everything(app, rules(keep_if=lambda letter: letter.no_such_thing))
    harness.append("pings", "order.placed", key="a")
    harness.run_until_idle()
    assert [letter.state for letter in harness.letters()] == ["dead"]
    [broken] = [signal for signal in harness.signals if isinstance(signal, sig.RuleBroken)]
    assert broken.subscription == "check"
    assert "AttributeError" in broken.rule


def test_a_discarded_head_lets_its_lane_go_on(app: App, harness: Harness) -> None:
    done = []

    @app.on(app.log("pings"), start="first", retry=retry(attempts=2, jitter=0), letters=rules(discard="bad.*"))
    def check(event, ctx):
        if event.type == "bad.ping":
            raise OSError
        done.append(event.type)

    for kind in ("bad.ping", "good.ping", "good.pong"):
        harness.append("pings", kind, key="a")
    harness.run_until_idle()
    assert done == []
    harness.advance("1m")
    assert done == ["good.ping", "good.pong"]
    assert [letter.state for letter in harness.letters()] == ["discarded", "applied", "applied"]


def test_a_discard_at_the_first_attempt_does_not_park_its_lane(app: App, harness: Harness) -> None:
    done = []

    @app.projection(app.log("pings"), retry=no_retry, letters=rules(discard="bad.*"))
    def check(event, tx):
        if event.type == "bad.ping":
            raise OSError
        done.append(event.type)

    for kind in ("bad.ping", "good.ping"):
        harness.append("pings", kind, key="a")
    harness.run_until_idle()
    assert "good.ping" in done
    assert [letter.state for letter in harness.letters()] == ["discarded"]


def test_dead_letters_are_switched_off_by_a_rule_and_every_loss_is_on_record(app: App, harness: Harness) -> None:
    reject_everything(app, rules(discard="*"))
    for number in range(3):
        harness.append("pings", "order.placed", key=str(number))
    harness.run_until_idle()
    assert [letter.state for letter in harness.letters()] == ["discarded"] * 3
    assert harness.query("SELECT count(*) FROM redrive_audit") == [(3,)]
