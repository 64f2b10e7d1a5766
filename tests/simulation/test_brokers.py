"""Seeded plays on a simulated server of streams, and mutants of what reads from it.

The readers and the landing are the real ones. The server loses its tail, hands out what a live owner has, loses
answers, groups and unread entries; owners die at every step and read on after they were given up. What the server still
has is applied once, in key order where that is promised; what it has lost is told wherever that can be known.
"""

from __future__ import annotations

import contextlib
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import redrive.runner.land
import redrive.runner.supervise
from redrive import App, Event, Tx
from redrive.errors import Halted
from redrive.redis.group import GroupReader
from redrive.redis.ids import FIRST, id_of
from redrive.redis.ordered import OrderedReader
from redrive.runner.land import Landing
from redrive.sources.port import Message
from redrive.sources.refusal import LOST
from redrive.store import landed
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.sim.streams import Id, SimulatedStream, Streams

SEEDS = 30  # of each kind, in every run
SEEDS_MAX = 300  # for a mutant
STEPS = 14
PLACES = ("land.fenced", "land.before_commit", "land.committed", "batch.before_commit", "batch.committed")
GROUP = "shop.orders"


class Play:
    """One seed: an app, a server, and what befalls them."""

    def __init__(self, seed: int, *, ordered: bool, trims: bool | None = None, more: str = "") -> None:
        self.dice, self.ordered = random.Random(f"{seed} {ordered}"), ordered
        self.more = more.split()  # deeds that are done more often than others
        self.server = Streams()
        self.server.trouble = self._trouble
        self.server.idle = lambda id: self.idle
        self.others = False  # has anybody else read in the group?
        self.idle = True  # has what others have been idle for long enough?
        self.cut = 0.0  # how often the way to the server is cut
        self.said: dict[int, list[Id]] = {}  # by number, the entries that say it
        self.gone: set[Id] = set()  # entries that the server lost, or deleted
        # Or else it fails over: then nobody can know what was deleted before.
        self.trims = self.dice.random() < 0.5 if trims is None else trims
        self.app = App("/nonexistent/play.db", name="shop")
        self.stream = SimulatedStream(self.server, "orders", partitions=1 if ordered else None, min_idle=0.0)

        @self.app.projection(
            self.stream, order="key" if ordered else "none", tables={"given": "key TEXT NOT NULL, n INTEGER NOT NULL"}
        )
        def write_down(event: Event[Any], tx: Tx) -> None:
            tx.execute("INSERT INTO given VALUES (:key, :n)", {"key": event.key, "n": event.data})

        self.harness = Harness(self.app)

    def run(self) -> str:
        """What went wrong, if anything."""
        deeds = [self.say] * 6 + [self.work] * 4 + [self.die] * 4 + [self.lose_ways, self.zombie, self.restart]
        deeds += [self.trim] if self.trims else [self.keep, self.fail_over]
        if not self.ordered:
            # Whoever else reads past what is gone, or drops the group, may take the trace of it along.
            deeds += [self.other_claims]
            deeds += [] if self.trims else [self.other_reads, self.drop_group, self.drop_consumer] * 2
        deeds += [getattr(self, name) for name in self.more] * 4
        try:
            if self.dice.random() < 0.5:  # else who reads is there before who writes
                self.say()  # what was gone before anybody came is not ours to miss
            self.work()
            for _ in range(STEPS):
                self.dice.choice(deeds)()
            for _ in range(2):
                self.say()
                self.work("10m")
            return self.violation()
        finally:
            self.harness.close()

    # ------------------------------------------------------------ deeds

    def say(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            again = [n for n in self.said if n % 2] if self.dice.random() < 0.2 else []
            n = self.dice.choice(again) if again else len(self.said)
            fields = {"type": "order.placed", "key": f"k{n % 3}", "data": str(n)}
            with_id = {"id": f"order-{n}"} if n % 2 else {}  # a producer that repeats itself names what it says
            self.said.setdefault(n, []).append(self.server.add("orders", {**fields, **with_id}))

    def work(self, seconds: str = "") -> None:
        self.idle = bool(seconds) or self.dice.random() < 0.5
        try:
            self.harness.advance(seconds) if seconds else self.harness.run_until_idle()
        except Crashed:
            return
        why = self.harness.halted.get(self.stream.log, "")
        if found := re.search(r"did another server take over\?.*MINID (\d+)-", why):  # an operator does as told
            line = self.server.lines["orders"]
            self.server.trim("orders", len([id for id in line.entries if id[0] >= int(found[1])]))
            self.work("10m")

    def die(self) -> None:
        with failpoint(self.dice.choice(PLACES), self.harness.crash, at=self.dice.randint(1, 3)):
            self.work()

    def restart(self) -> None:
        self.harness.restart()

    def lose_ways(self) -> None:
        self.cut = 0.3
        self.work("1m")
        self.cut = 0.0
        self.work("10m")

    def _trouble(self, command: str) -> Any:
        return self.dice.choice(["before", "after"]) if self.dice.random() < self.cut else ""

    def zombie(self) -> None:
        """An owner that was given up, and has not heard of it, asks once more."""
        reader = self.stream.open(GROUP)
        if self.ordered or "orders" in self.server.lines:
            with self.app.runtime.store.reading() as tx:
                known = tx.progress.find(self.stream.log)
                positions = landed.positions(tx.sql, known.id) if known else {}
            with contextlib.suppress(Halted):
                reader.read(positions, 3, 0.0)
        reader.close()

    def other_reads(self) -> None:
        if self.server.lines.get("orders") and GROUP in self.server.lines["orders"].groups:
            self.others = True
            self.server.client().xreadgroup(GROUP, "other", {"orders": ">"}, count=2)

    def other_claims(self) -> None:
        self.server.claim("orders", GROUP, "other")

    def drop_consumer(self) -> None:
        """Of an owner that has died: a live one has in memory what it has not finished."""
        self.say()
        self.die()
        self.harness.restart()
        if not self.others:
            self.server.drop_consumer("orders", GROUP, "redrive")
            self.work()

    def drop_group(self) -> None:
        self.server.drop_group("orders", GROUP)

    def trim(self) -> None:
        if "orders" in self.server.lines:
            self.gone |= set(self.server.trim("orders", self.dice.randint(0, 8)))

    def keep(self) -> None:
        self.server.keep()

    def fail_over(self) -> None:
        self.gone |= set(self.server.fail_over())

    # ------------------------------------------------------------ what must be so

    def violation(self) -> str:
        given = self.harness.query("SELECT key, n FROM given ORDER BY rowid")
        counts = Counter(n for _, n in given)
        if twice := [n for n, count in counts.items() if count > 1]:
            return f"applied twice: {twice}"
        lost = [n for n, ids in self.said.items() if n not in counts and not self.gone.issuperset(ids)]
        if lost:
            return f"lost: {lost}"
        reasons = {letter.reason for letter in self.harness.letters()}
        missing = [n for n in self.said if n not in counts]
        if missing and self.trims and LOST not in reasons:
            return f"lost at the source, and nobody was told: {missing}"
        if reasons - {LOST}:
            return f"letters: {reasons}"
        once = [(key, n) for key, n in given if len(self.said[n]) == 1]  # of the others the first may be gone
        if self.ordered and any(ns != sorted(ns) for ns in _by_key(once).values()):
            return f"out of order: {given}"
        if not self.ordered and (left := self.server.handed_out("orders", GROUP)):
            return f"not acknowledged: {left}"
        unsound = [verdict for verdict in self.app.operate().verify() if not verdict.sound]
        return f"the books do not balance: {unsound}" if unsound else ""


def _by_key(given: list[Any]) -> dict[str, list[int]]:
    return {key: [n for k, n in given if k == key] for key, _ in given}


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive.runner.land, "READ_MAX", 3)


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "through a group"])
def test_whatever_the_server_does_each_message_is_applied_once_or_told(ordered: bool) -> None:
    for seed in range(SEEDS):
        assert Play(seed, ordered=ordered).run() == "", f"seed {seed}"


# ---------------------------------------------------------------- mutants


Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Plant, dict[str, Any]]] = {}  # by name, with the plays where it matters at all


def mutant(name: str, **where: Any) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        MUTANTS[name] = plant, where
        return plant

    return add


@mutant("ack first: the server is told before it is committed", ordered=False)
def _(patch: pytest.MonkeyPatch) -> None:
    read = GroupReader.read

    def hasty(self: GroupReader, *args: Any) -> Sequence[Message]:
        messages = read(self, *args)
        self.settled(messages)
        return messages

    patch.setattr(GroupReader, "read", hasty)


@mutant(
    "offset skip with claims: what is not behind the last one counts as done",
    ordered=False,
    trims=False,
    more="other_reads drop_group",
)
def _(patch: pytest.MonkeyPatch) -> None:
    new = Landing._new

    def skip(self: Landing, tx: Any, messages: Sequence[Message]) -> Any:
        last = id_of(self.positions.get(0, FIRST).partition(";")[0])
        return new(
            self, tx, [one for one in messages if id_of(one.position.partition(";")[0].partition("+")[0]) > last]
        )

    patch.setattr(Landing, "_new", skip)


@mutant("a group is made again at $", ordered=False, trims=False)
def _(patch: pytest.MonkeyPatch) -> None:
    create = Streams._xgroup
    patch.setattr(Streams, "_xgroup", lambda self, words: create(self, [*words[:3], "$", *words[4:]]))


@mutant("no unique marker: nobody looks whether the log has it", ordered=False)
def _(patch: pytest.MonkeyPatch) -> None:
    _forget_ids(patch)


@mutant("no unique marker, where producers repeat themselves", ordered=True)
def _(patch: pytest.MonkeyPatch) -> None:
    _forget_ids(patch)


def _forget_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Landing, "_new", lambda self, tx, messages: [one.event._replace(id=uuid.uuid4().hex) for one in messages]
    )


@mutant("a retry inserts its marker again: what comes again is appended again", ordered=False)
def _(patch: pytest.MonkeyPatch) -> None:
    """The rows of a message whose commit was not heard of are written once more, under ids that clash."""
    patch.setattr(landed, "known", lambda sql, log, ids: {})


@mutant("the place is not moved with the events", ordered=True)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(landed, "move", lambda sql, subscription, to: None)


@mutant("what was trimmed is not missed", ordered=True, trims=True, more="trim")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrderedReader, "_compare", lambda self, *args: None)


@mutant("what was trimmed before the group handed it out is not missed", ordered=False, trims=True, more="trim")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupReader, "_compare", lambda self, *args: None)


@mutant("own pending entries are never read", ordered=False)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupReader, "_claim", lambda self, limit: [])
    make = GroupReader._make

    def forget(self: GroupReader, positions: Any) -> None:
        make(self, positions)
        self._pending = None

    patch.setattr(GroupReader, "_make", forget)


@mutant("what was handed out and is nobody's is not looked for", ordered=False, trims=False)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupReader, "_missed", lambda self, gap, limit: [])


def hunt(where: dict[str, Any]) -> tuple[int, str]:
    """How many plays it takes until somebody notices, and what."""
    for seed in range(SEEDS_MAX):
        if found := Play(seed, **where).run():
            return seed + 1, found
    return SEEDS_MAX, ""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    plant, where = MUTANTS[name]
    plant(monkeypatch)
    monkeypatch.setattr(redrive.runner.supervise.log, "disabled", True)  # what they break would be told at length
    seeds, found = hunt(where)
    assert found, f"{name}: nobody noticed in {seeds} plays"
    record_property("mutants of reading", f"{name:75} | {seeds:4} seeds | {found[:40]}")
