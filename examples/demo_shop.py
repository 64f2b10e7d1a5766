"""A small shop, end to end: `./run.sh demo`. It checks its own sums and exits with 1 if one of them is wrong.

The worker is a process of its own that gets killed on the way; the bank is a file of its own, because the
outside world is not in redrive's transaction.
"""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from redrive import App, Ctx, Event, Tx, retry
from redrive.settings import Settings

CUSTOMERS = ["ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hana"]
ORDERS, POISON, WIDTH = 800, 333, 40
PATIENCE_S = 60.0  # for what takes a second or two
RATES = {"EUR": 1.0, "USD": 0.9}
REVENUE = "customer TEXT PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL"
REVENUE_SQL = (
    "INSERT INTO revenue VALUES (:customer, 1, :cents)"
    " ON CONFLICT (customer) DO UPDATE SET orders = revenue.orders + 1, cents = revenue.cents + excluded.cents"
)
console = Console(highlight=False)


# ---------------------------------------------------------------- the shop: what a worker runs


class Bank:
    """The outside world: slow, sometimes deaf, and it charges once per idempotency key."""

    def __init__(self, file: Path) -> None:
        self.db = sqlite3.connect(file, isolation_level=None, timeout=10)
        self.db.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug in a demo
        self.db.execute("CREATE TABLE IF NOT EXISTS calls (key TEXT)")
        self.db.execute("CREATE TABLE IF NOT EXISTS charges (key TEXT UNIQUE, customer TEXT, number INTEGER, cents)")

    async def charge(self, key: str, customer: str, number: int, cents: int) -> None:
        self.db.execute("INSERT INTO calls VALUES (?)", (key,))
        asked = self.db.execute("SELECT count(*) FROM calls WHERE key = ?", (key,)).fetchone()[0]
        await asyncio.sleep(0.003)
        if number % 40 == 0 and asked == 1:
            raise ConnectionError("the bank does not answer")
        self.db.execute("INSERT OR IGNORE INTO charges VALUES (?, ?, ?, ?)", (key, customer, number, cents))


def make_shop(folder: Path, rates: dict[str, float]) -> App:
    # After a kill, what was in flight runs one event at a time: a small window keeps that short.
    app = App(str(folder / "shop.db"), name="shop", settings=Settings(window_max=50, settle_max=50))
    orders, receipts = app.log("orders"), app.log("receipts")
    bank = Bank(folder / "bank.db")

    @app.projection(orders, "order.placed", tables={"revenue": REVENUE})
    def revenue(event: Event[Any], tx: Tx) -> None:
        tx.execute(REVENUE_SQL, {"customer": event.key, "cents": event.data["cents"]})

    @app.on(orders, "order.placed", start="first", concurrency=4, retry=retry(attempts=3, wait="50ms", jitter=0))
    async def payments(event: Event[Any], ctx: Ctx) -> None:
        cents = round(event.data["cents"] * rates[event.data["currency"]])  # a KeyError for a currency it does not know
        await bank.charge(ctx.idempotency_key, event.key or "", event.data["number"], cents)
        ctx.emit(receipts, "payment.charged", {"cents": cents, "number": event.data["number"]})

    return app


def work(folder: Path, version: str) -> None:
    make_shop(folder, RATES if version == "old" else {**RATES, "GBP": 1.2}).run()


# ---------------------------------------------------------------- the picture


def picture(app: App, total: Counter[str]) -> Table:
    """One row per customer: paid, the letter that holds the lane, what waits behind it, not yet looked at."""
    letters = app.operate("demo").letters
    paid = Counter(receipt.key for receipt in app.log("receipts").read())
    dead = {letter.key for letter in letters.list("dead")}
    waiting = Counter(letter.key for letter in letters.list("retrying", limit=10_000))
    table = Table(box=None, padding=(0, 1), show_header=False)
    for customer in CUSTOMERS:
        scale = WIDTH / total[customer]
        row = Text("█" * round(paid[customer] * scale), "green")
        row.append("✗" * (customer in dead), "bold red")
        row.append("▒" * -(-waiting[customer] * WIDTH // total[customer]), "yellow")
        row.append("·" * max(0, WIDTH - len(row)), "dim")
        note = f"{paid[customer]:4} paid"
        note += f", {waiting[customer]} waiting" if waiting[customer] else ""
        table.add_row(customer, row, note + (", 1 dead" if customer in dead else ""))
    return table


def watch(app: App, total: Counter[str], worker: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    """Redraw until it is so; without a terminal only the last picture is printed."""
    began = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not reached():
            if worker.poll() is not None or time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(f"the worker does not get on (exit code {worker.poll()})")
            if console.is_terminal:
                live.update(picture(app, total), refresh=True)
            time.sleep(0.05)
    console.print(picture(app, total))


# ---------------------------------------------------------------- the story


@contextmanager
def working(folder: Path, version: str, end: signal.Signals = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, for the length of the block; then it is sent this signal."""
    with (folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, __file__, "worker", str(folder), version], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield worker
        worker.send_signal(end)
        worker.wait(PATIENCE_S)
    finally:
        worker.kill()
        worker.wait()


def say(text: str) -> None:
    console.print(f"\n[bold]{text}[/]", soft_wrap=True)


def tell(folder: Path) -> bool:
    app = make_shop(folder, RATES)
    orders, receipts, desk = app.log("orders"), app.log("receipts"), app.operate("demo")
    expected = make_orders()
    total = Counter(order["key"] for order in expected)

    say(
        f"{ORDERS:,} orders of {len(CUSTOMERS)} customers are appended, one of them in a currency that nobody expected."
    )
    orders.append_many(expected)

    say("A worker takes the payments. The bank is slow and does not always answer. kill -9 in the middle.")
    with working(folder, "old", end=signal.SIGKILL) as worker:
        watch(app, total, worker, lambda: sum(1 for _ in receipts.read()) >= ORDERS // 4)

    say("Another worker goes on at once. One lane stands behind its poison order; the others never notice.")
    poisoned = expected[POISON]["key"]
    with working(folder, "old") as worker:
        watch(app, total, worker, lambda: lanes_left(desk) == {poisoned} and is_settled(desk))
    show_letter(desk)

    say("The fix is deployed: SIGTERM, new version. Then: replay. What waited follows by itself, in order.")
    with working(folder, "new") as worker:
        [letter] = desk.letters.list("dead")
        desk.letters.replay(letter, reason="rate for GBP added")
        watch(app, total, worker, lambda: not lanes_left(desk) and is_settled(desk))

    say("Every event accounted for?")
    good = show_verdicts(desk)
    for sentence, right in check(app, folder, expected):
        console.print(f"  {'[green]✓[/]' if right else '[bold red]✗[/]'} {sentence}")
        good = good and right
    app.close()
    return good


def make_orders() -> list[dict[str, Any]]:
    dice = random.Random(7)
    made = []
    for number in range(ORDERS):
        currency = "GBP" if number == POISON else dice.choice(["EUR", "USD"])
        data = {"number": number, "cents": dice.randrange(100, 10_000), "currency": currency}
        made.append({"type": "order.placed", "key": dice.choice(CUSTOMERS), "data": data})
    return made


def lanes_left(desk: Any) -> set[str]:
    return {letter.key for state in ("retrying", "dead") for letter in desk.letters.list(state, limit=10_000)}


def is_settled(desk: Any) -> bool:
    found = desk.status()
    return len(found) == 2 and all(status.lag_events == 0 for status in found)


def show_letter(desk: Any) -> None:
    [letter] = desk.letters.list("dead")
    history = desk.letters.history(letter.id)
    table = Table(title="redrive dlq show", title_justify="left", show_header=False, min_width=60)
    table.add_row("letter", f"{letter.id}, {letter.state} ({letter.reason}), subscription {letter.subscription}")
    table.add_row("event", f"{letter.type}, position {letter.position}, key {letter.key}")
    table.add_row("data", desk.letters.event(letter.id).raw.decode())
    table.add_row("error", f"{letter.error_type}: {letter.error_message} (fingerprint {letter.fingerprint})")
    table.add_row("attempts", f"{letter.attempts}: {', '.join(attempt.outcome for attempt in history)}")
    table.add_row("behind it", f"{desk.letters.waiting(letter)} orders wait, in order")
    console.print(table)


def show_verdicts(desk: Any) -> bool:
    table = Table("subscription", "applied", "pending", "retrying", "dead", "violations")
    verdicts = desk.verify()
    for one in verdicts:
        counts = (one.applied, one.pending, one.retrying, one.dead, len(one.violations))
        table.add_row(one.subscription, *(f"{count:,}" for count in counts))
    console.print(table)
    return all(one.sound and not (one.pending or one.retrying or one.dead) for one in verdicts)


def check(app: App, folder: Path, expected: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """The sums, computed once more from the producer's own list."""
    numbers, cents = defaultdict(list), Counter[str]()
    for order in expected:
        numbers[order["key"]].append(order["data"]["number"])
        cents[order["key"]] += order["data"]["cents"]
    with app.reader() as tx:
        revenue = {row[0]: row[1:] for row in tx.execute("SELECT customer, orders, cents FROM revenue")}
    bank = Bank(folder / "bank.db").db
    charged = defaultdict(list)
    for customer, number in bank.execute("SELECT customer, number FROM charges ORDER BY rowid"):
        charged[customer].append(number)
    receipts = {who: [event.data["number"] for event in app.log("receipts").read_key(who)] for who in numbers}
    calls = bank.execute("SELECT count(*) FROM calls").fetchone()[0]
    return [
        ("revenue: every order counted once", revenue == {who: (len(n), cents[who]) for who, n in numbers.items()}),
        (f"bank: called {calls:,} times, charged {ORDERS:,} times, each customer in order", charged == numbers),
        ("receipts: one for each payment, in order", receipts == numbers),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(Path(sys.argv[2]), sys.argv[3])
    else:
        with tempfile.TemporaryDirectory(prefix="redrive-demo-") as name:
            try:
                sums_are_right = tell(Path(name))
            except RuntimeError as error:
                console.print(
                    f"{error}; its last words:", (Path(name) / "worker.log").read_text()[-2000:], markup=False
                )
                sys.exit(1)
        say("All sums are right." if sums_are_right else "A sum is wrong. Please report this.")
        sys.exit(0 if sums_are_right else 1)
