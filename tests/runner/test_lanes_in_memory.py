"""The owner's open letters in memory are those in the store, whatever happened to them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from redrive import App, Ignore, Reject, RetryLater, retry
from redrive.policy.lanes import Head
from redrive.testing import Harness

KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])
ERRORS = [OSError("down"), ValueError("bad"), Reject("no"), RetryLater("7s"), Ignore("nothing to do")]


class Subject:
    """A function that answers as the dice say, and an operator who does likewise."""

    def __init__(self, app: App, harness: Harness, kind: str, seed: int) -> None:
        self.app, self.harness, self.dice = app, harness, random.Random(seed)
        self.trouble, self.errors = 0.5, ERRORS
        dice, log = self.dice, app.log("orders")

        def apply(event: Any, out: Any) -> None:
            if dice.random() < self.trouble:
                raise dice.choice(self.errors)

        rule = retry(attempts=3, wait="5s", jitter=0, on=OSError)
        if kind == "projection":
            app.projection(log, name="apply", retry=rule)(apply)
        else:
            app.on(log, name="apply", start="first", retry=rule, concurrency=dice.choice([1, 3]))(apply)

    def step(self) -> None:
        """One of the things that happen."""
        dice, letters = self.dice, self.app.operate("ada").letters
        match dice.randrange(8):
            case 0 | 1 | 2:
                for _ in range(dice.randrange(1, 6)):
                    self.harness.append("orders", "order.placed", {}, key=dice.choice(["a", "b", "c", None]))
            case 3:
                self.trouble = dice.choice([0.0, 0.5, 1.0])
            case 4:
                self.harness.advance(f"{dice.randrange(1, 20)}s")
            case 5 if found := self.harness.letters("dead"):
                letters.replay([dice.choice(found).id])
            case 6 if found := [*self.harness.letters("dead"), *self.harness.letters("retrying")]:
                letters.discard(dice.choice(found).id, "junk")
            case 7 if found := self.harness.letters("dead"):
                letters.edit(dice.choice(found).id, {"n": dice.randrange(9)}, "typo")
        self.harness.run_until_idle()

    def in_store(self) -> dict[str | int, tuple[Head, int]]:
        """By lane or letter: the head, and how many letters are open."""
        with self.app.runtime.store.reading() as tx:
            found = tx.letters.heads(1)
        waiting = [one for one in found if one[0] is not None or one[1].state == "retrying"]
        return {head.letter if lane is None else lane: (head, size) for lane, head, size in waiting}

    def in_memory(self) -> dict[str | int, tuple[Head, int]]:
        """The same, as the owner has it."""
        supervisor: Any = self.harness._driver.supervisor
        lanes = supervisor.loops["apply"].duty.lanes
        loose = {letter: (head, 1) for letter, head in lanes._loose.items()}
        return loose | {lane: (head, lanes.size(lane)) for lane, head in lanes.names.items()}


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_open_letters_in_memory_are_those_in_the_store(app: App, harness: Harness, kind: str, seed: int) -> None:
    subject = Subject(app, harness, kind, seed)
    for number in range(40):
        subject.step()
        assert subject.in_memory() == subject.in_store(), f"after step {number}"


@KINDS
def test_replay_that_failed_is_forgotten_in_memory_as_in_the_store(app: App, harness: Harness, kind: str) -> None:
    subject = Subject(app, harness, kind, 0)
    subject.trouble, subject.errors = 1.0, [ValueError("bad")]
    harness.append("orders", "order.placed", {}, key="a")
    harness.run_until_idle()
    [letter] = harness.letters("dead")
    app.operate("ada").letters.replay(letter.id)
    harness.run_until_idle()
    assert [head.replaying for head, _ in subject.in_store().values()] == [0]
    assert subject.in_memory() == subject.in_store()
