"""What happens to the demo's shop: thousands of orders, a worker that is killed, another that goes on.

Nothing here prints. The shop's own functions run in worker processes, as they would in earnest.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from redrive.app import App
from redrive.errors import RedriveError, StoreError
from redrive.replay.status import SubscriptionStatus
from redrive.settings import Settings

ORDERS, CUSTOMERS = 6_000, 200
LONDON = {f"customer-{number:03}" for number in (29, 87, 144)}  # pay in a currency that nobody thought of
TILL = {f"customer-{number:03}": ORDERS // 2 + number for number in (11, 170)}  # sent by an old till, after these
PATIENCE = 60.0  # seconds, for what takes one or two
LOOK_EVERY = 0.05
SUBSCRIPTIONS = ("revenue", "ship")
CONFIG = """\
store = "shop.db"
window_max = 100        # after a kill, what was in flight runs one event at a time: a small window keeps that short
settle_max = 100
"""


@dataclass(frozen=True, slots=True)
class Tally:
    """One subscription's orders, each counted once, and how many of the applied ones had to be retried."""

    subscription: str
    kind: str
    applied: int
    retried: int
    waiting: int
    dead: int

    @property
    def total(self) -> int:
        """All orders."""
        return self.applied + self.waiting + self.dead

    @property
    def flowing(self) -> int:
        """Customers of whom nothing is held back: a lane has one dead letter, which is its head."""
        return CUSTOMERS - self.dead


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters that failed in the same way."""

    fingerprint: str
    subscription: str
    error: str
    first: int
    letters: int
    waiting: int


def settle_in(folder: Path) -> None:
    """Write the program and its settings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.py").write_text(files("redrive.demo").joinpath("shop.py").read_text("utf-8"), "utf-8")
    (folder / "redrive.toml").write_text(CONFIG, "utf-8")


def make_orders() -> list[dict[str, Any]]:
    """The same in every demo. Customers from London pay in pounds; the old till writes UK where it means GB."""
    dice = random.Random(7)
    made = []
    bad = dict(TILL)
    for number in range(1, ORDERS + 1):
        customer = f"customer-{dice.randrange(CUSTOMERS):03}"
        currency, country = dice.choice([("EUR", "DE"), ("USD", "US")])
        if customer in LONDON:
            currency, country = "GBP", "GB"
        if customer in TILL:  # the Post is deaf now and then, and a replay is one attempt: they live elsewhere
            currency, country = "USD", "US"
        if number > bad.get(customer, ORDERS):
            country = "UK"
            del bad[customer]
        data = {"order": number, "cents": dice.randrange(100, 10_000), "currency": currency, "country": country}
        made.append({"type": "order.placed", "key": customer, "data": data})
    return made


class Story:
    """The shop in its folder, seen from outside: its store and its worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # With settings of its own, the store cannot be one that the environment names.
        self.app = App(str(folder / "shop.db"), settings=Settings())
        self.desk = self.app.operate("demo")
        self.orders = make_orders()

    def place_orders(self) -> int:
        """Append all orders, durably."""
        return len(self.app.log("orders").append_many(self.orders))

    @contextmanager
    def worker(self, end: signal.Signals) -> Iterator[Callable[[], None]]:
        """A worker for the length of the block, then it is sent this signal. Yields a look that it still runs."""
        command = [sys.executable, "-m", "redrive.cli", "run", "shop:app"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=clean, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE

        def check() -> None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RedriveError(f"the demo's worker does not get on; its last words are in {self.folder}/worker.log")

        try:
            yield check
            process.send_signal(end)
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()

    def watch(self, check: Callable[[], None], reached: Callable[[], bool], show: Callable[[], None]) -> None:
        """Look until it is so."""
        while not reached():
            check()
            show()
            time.sleep(LOOK_EVERY)
        show()

    def status(self) -> list[SubscriptionStatus]:
        """Where both subscriptions stand; nothing before the first worker has made the file its own."""
        try:
            return self.desk.status()
        except StoreError:
            return []

    def settled(self, name: str) -> int:
        """Orders that have met their fate, or wait behind one that has."""
        return max((ORDERS - one.lag_events for one in self.status() if one.subscription == name), default=0)

    def is_half_done(self) -> bool:
        """Has every subscription something, and not everything, behind it?"""
        return self.settled("ship") > ORDERS // 3

    def is_done(self) -> bool:
        """Is everything settled but what waits for an operator?"""
        found = self.status()
        if len(found) < len(SUBSCRIPTIONS) or any(one.lag_events for one in found):
            return False
        behind = sum(group.waiting for group in self.groups())
        return sum(one.retrying + one.waiting for one in found) == behind

    def tallies(self) -> list[Tally]:
        """What became of all orders."""
        found = []
        for one in self.desk.status():
            healed = self.desk.letters.list("applied", one.subscription, limit=10_000)
            retried = sum(letter.first_failed_at is not None for letter in healed)
            found.append(Tally(one.subscription, one.kind, one.applied, retried, one.retrying + one.waiting, one.dead))
        return found

    def groups(self) -> list[Group]:
        """The dead letters by what went wrong, the first of each first."""
        found: dict[str, Group] = {}
        for letter, waiting in self.desk.letters.heads(limit=1_000):
            old = found.get(letter.fingerprint)
            kind = letter.error_type.rpartition(".")[2]
            found[letter.fingerprint] = Group(
                letter.fingerprint, letter.subscription, f"{kind}: {letter.error_message}",
                letter.id if old is None else old.first,
                1 if old is None else old.letters + 1, waiting if old is None else old.waiting + waiting,
            )  # fmt: skip
        return list(found.values())

    def is_right(self) -> bool:
        """Compare the shop's tables with the list of orders: each counted once, none of them out of turn."""
        counted = Counter(order["key"] for order in self.orders if order["key"] not in LONDON)
        with self.app.reader() as tx:
            revenue = dict(tx.execute("SELECT customer, orders FROM revenue").fetchall())
        sent: dict[str, list[int]] = {}
        for parcel in self.app.log("parcels").read():
            sent.setdefault(str(parcel.key), []).append(parcel.data["order"])
        return revenue == counted and sent == self._deliverable() and all(one.sound for one in self.desk.verify())

    def _deliverable(self) -> dict[str, list[int]]:
        wanted: dict[str, list[int]] = {}
        stopped: set[str] = set()
        for order in self.orders:
            if order["data"]["country"] == "UK":
                stopped.add(order["key"])
            elif order["key"] not in stopped:
                wanted.setdefault(order["key"], []).append(order["data"]["order"])
        return wanted
