"""Mixtures: random programs, failures, crashes, restarts and operators; in the end every event has its one fate.

Not a search for races (the simulator does that) but for combinations: each seed is another program on the real
engine. A seed that failed once is kept in `PAST`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from redrive import App, Ignore, Reject, RetryLater, StoreError, VersionConflict, failpoints, retry
from redrive.errors import CommitUnknown
from redrive.settings import Settings
from redrive.testing import Harness, failpoint
from redrive.testing.crashing import Crashed

PAST = (11, 38, 75, 156, 250)  # total order did not notice a replay, or a discard
FAMILIES = ("batch", "letter", "round", "lease", "alone", "release")
PLACES = [name for name in failpoints.NAMES if name.split(".")[0] in FAMILIES]
TROUBLES = ("fail", "fail", "later", "conflict", "crash", "exit", "bad sql", "reject")


class Mixture:
    """One program and its life."""

    def __init__(self, seed: int, start: Callable[..., Harness]) -> None:
        self.dice = dice = random.Random(seed)
        self.kind = dice.choice(["projection", "batch", "handler", "async"])
        self.order = dice.choice(["key", "key", "none", "total"])
        self.app = App("/nonexistent/mixture.db")
        self.count, self.keys = dice.randint(1, 30), [None, *(f"k{n}" for n in range(dice.randint(1, 5)))]
        self.plans = {
            n: [dice.choice(TROUBLES) for _ in range(dice.randint(1, 5))]
            for n in range(self.count)
            if dice.random() < 0.25
        }
        self.healed = False
        self.sent, self.calls, self.given_up = 0, 0, set[int]()
        limits = Settings(
            batch_max=dice.choice([1, 3, 500]), window_max=dice.choice([5, 1000]), settle_max=dice.choice([1, 5]),
            lease=1e7, poll_min=1e7, poll_max=1e7,
        )  # fmt: skip
        self.harness = start(self.app, settings=limits)
        with self.app.transaction() as tx:
            tx.execute("CREATE TABLE applied (i INTEGER PRIMARY KEY, n INTEGER UNIQUE, key TEXT)")
        self._declare()

    def _declare(self) -> None:
        rule = retry(attempts=self.dice.choice([1, 2, 4]), wait="10s")
        common: dict[str, Any] = {"order": self.order, "retry": rule, "name": "f", "start": "first"}
        log, side = self.app.log("orders"), self.dice.choice([1, 4]) if self.order != "total" else 1

        async def apply_async(event: Any, ctx: Any) -> None:
            await asyncio.sleep(self.dice.choice([0, 0, 1]))
            self._apply(event, ctx)

        def apply_list(events: Any, tx: Any) -> None:
            for event in events:
                self._apply(event, tx)

        match self.kind:
            case "projection":
                self.app.projection(log, **common)(self._apply)
            case "batch":
                self.app.projection(log, batch=True, **common)(apply_list)
            case "handler":
                self.app.on(log, concurrency=side, **common)(self._apply)
            case _:
                self.app.on(log, concurrency=side, timeout="1h", **common)(apply_async)

    def _apply(self, event: Any, out: Any) -> None:
        self.calls += 1
        plan = self.plans.get(event.data)
        match plan.pop(0) if plan and not self.healed else "":
            case "fail":
                raise OSError("no")
            case "later":
                raise RetryLater("30s")
            case "conflict":
                raise VersionConflict("orders", event.key, 1, 2)
            case "crash":
                self.harness.crash()
            case "exit":
                raise SystemExit
            case "bad sql":
                out.execute("INSERT INTO no_such_table VALUES (1)")
            case "reject":
                raise Reject("no") if self.dice.random() < 0.8 else Ignore("never mind")
        out.execute("INSERT INTO applied (n, key) VALUES (:n, :key)", {"n": event.data, "key": event.key})
        out.emit(self.app.log("out"), "copied", event.data, key=event.key)

    def alive(self, step: Callable[[], Any]) -> None:
        """Start again after each death."""
        for _ in range(60):
            try:
                step()
            except Crashed:
                continue
            return

    def live(self) -> None:
        """Events come, and things happen."""
        while self.sent < self.count or self.dice.random() < 0.7:
            for _ in range(min(self.dice.randint(1, 8), self.count - self.sent)):
                self.harness.append("orders", "order.placed", self.sent, key=self.dice.choice(self.keys))
                self.sent += 1
            step = self.dice.choice([self._run, self._run, self._wait, self._break, self._break, self._operate])
            step()

    def _run(self) -> None:
        self.alive(self.dice.choice([self.harness.run_until_idle, self.harness.restart]))

    def _wait(self) -> None:
        self.alive(lambda: self.harness.advance(self.dice.choice(["1s", "20s", "2m"])))

    def _break(self) -> None:
        action = self.dice.choice([self.harness.crash, StoreError("gone"), CommitUnknown("no answer"), OSError("bug")])
        with failpoint(self.dice.choice(PLACES), action, at=self.dice.randint(1, 4)):
            self.alive(self.harness.run_until_idle)

    def _operate(self) -> None:
        desk = self.app.operate("ada")
        dead, open_letters = self.harness.letters("dead"), [
            *self.harness.letters("dead"), *self.harness.letters("retrying"),
        ]  # fmt: skip
        match self.dice.choice(["replay", "discard", "resolve", "pause"]):
            case "replay" if dead:
                desk.letters.replay(self.dice.choice(dead))
            case "discard" if open_letters:
                desk.letters.discard(self.dice.choice(open_letters), "given up")
            case "resolve" if open_letters:
                desk.letters.resolve(self.dice.choice(open_letters), "done by hand")
            case "pause" if self.harness.query("SELECT 1 FROM redrive_subscriptions"):
                desk.subscriptions.pause("f")
                self.alive(self.harness.run_until_idle)
                calls = self.calls
                self.alive(lambda: self.harness.advance("1m"))
                assert self.calls == calls, "called while it was paused"
                desk.subscriptions.resume("f")

    def heal(self) -> None:
        """From here on nothing fails, and everything that is dead goes round again."""
        self.healed = True
        for _ in range(self.count + 2):
            self.alive(lambda: self.harness.advance("10m"))
            if not self.harness.letters("dead"):
                break
            self.harness.replay()

    def check(self) -> None:
        harness = self.harness
        rows = harness.query("SELECT n, key FROM applied ORDER BY i")
        got = [n for n, _ in rows]
        kept = {letter.position for letter in harness.letters("discarded")}
        assert harness.halted == {}
        assert [letter for letter in harness.letters() if letter.state in ("dead", "retrying")] == []
        [(ignored,)] = harness.query("SELECT ignored FROM redrive_progress")
        assert len(got) + len(kept) + ignored == self.count
        assert sorted(data for _, data in harness.emitted("out")) == sorted(got)
        if self.order == "total":
            assert got == sorted(got)
        if self.order == "key":
            for key in self.keys[1:]:
                mine = [n for n, of in rows if of == key]
                assert mine == sorted(mine)


@pytest.mark.parametrize("seed", [*PAST, *range(1000, 1025)])
def test_whatever_happens_every_event_has_exactly_one_fate(start: Any, seed: int) -> None:
    mixture = Mixture(seed, start)
    mixture.live()
    mixture.heal()
    mixture.check()
