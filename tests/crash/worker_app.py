"""The worker that the crash tests kill: every kind of function, effects that show a double, poison and flakes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from script import Said, script

from redrive import App, Ignore, Reject, retry
from redrive.context import Ctx, Tx
from redrive.errors import StoreError
from redrive.event import Event
from redrive.failpoints import arm
from redrive.observe.signals import Halted, Signal
from redrive.testing.failpoints import Failpoint

ROWS = (
    "seq INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL, key TEXT, key_seq INTEGER NOT NULL,"
    " cents INTEGER NOT NULL"
)
OF_PROJECTIONS = ("balance", "listing", "relay", "loose", "calm", "mirror")
OF_HANDLERS = ("charge", "note")
ORDERED = ("balance", "listing", "relay", "charge", "note")
FLAKES = 2  # calls that fail; a projection's batch that fails is run again at once, and still it must be a letter
RETRY = retry(attempts=3, wait="1ms", wait_max="2ms", jitter=0.0)


def found(path: str) -> None:
    """The user's own tables, made by the user's own tool."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    for name in OF_HANDLERS:
        connection.execute(f"CREATE TABLE {name}_rows ({ROWS})")
    connection.execute("CREATE TABLE sent (n INTEGER PRIMARY KEY)")
    connection.close()


class Functions:
    """What the functions do to an event before they write anything."""

    def __init__(self, flakes: str, fixed: bool) -> None:
        self._flakes, self._fixed = Path(flakes), fixed

    def meet(self, name: str, event: Event[Any]) -> None:
        """Fail as the event's kind says; a flake fails its first calls, and counts them outside of the store."""
        kind = event.data["kind"]
        if kind == "ignore":
            raise Ignore("nothing to do")
        if kind == "reject":
            raise Reject("never")
        if kind == "bug" and not self._fixed:
            raise ValueError("a bug")
        if kind == "flaky":
            for number in range(FLAKES):
                try:
                    os.close(os.open(self._flakes / f"{name}-{event.id}-{number}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                raise ConnectionError("try again")


def insert(name: str) -> str:
    return f"INSERT INTO {name}_rows (event_id, key, key_seq, cents) VALUES (:id, :key, :key_seq, :cents)"


def row(event: Event[Any]) -> dict[str, Any]:
    return {"id": event.id, "key": event.key, "key_seq": event.data["key_seq"], "cents": event.data["cents"]}


def build(path: str, flakes: str, fixed: bool = False, signals: str = "") -> App:
    """The app; nothing is opened yet."""
    app = App(path)
    functions = Functions(flakes, fixed)
    add_projections(app, functions)
    add_handlers(app, functions)
    if signals:
        app.listen(Hearing(signals))
    return app


def add_projections(app: App, functions: Functions) -> None:
    orders = app.log("orders")
    totals = "key TEXT PRIMARY KEY, cents INTEGER NOT NULL"

    @app.projection(orders, "paid", tables={"balance": totals, "balance_rows": ROWS}, retry=RETRY)
    def balance(event: Event[Any], tx: Tx) -> None:
        functions.meet("balance", event)
        tx.execute(
            "INSERT INTO balance VALUES (:key, :cents) ON CONFLICT (key) DO UPDATE SET cents = cents + excluded.cents",
            {"key": event.key or "", "cents": event.data["cents"]},
        )
        tx.execute(insert("balance"), row(event))

    @app.projection(orders, "paid", tables={"listing_rows": ROWS}, batch=True, retry=RETRY)
    def listing(events: list[Event[Any]], tx: Tx) -> None:
        for event in events:
            tx.execute(insert("listing"), row(event))
            functions.meet("listing", event)

    @app.projection(orders, "paid", tables={"relay_rows": ROWS}, retry=RETRY)
    def relay(event: Event[Any], tx: Tx) -> None:
        tx.execute(insert("relay"), row(event))
        tx.emit(app.log("relayed"), "relayed", event.data)
        functions.meet("relay", event)

    @app.projection(orders, "paid", tables={"loose_rows": ROWS}, order="none", retry=RETRY)
    def loose(event: Event[Any], tx: Tx) -> None:
        functions.meet("loose", event)
        tx.execute(insert("loose"), row(event))

    @app.projection(orders, "paid", tables={"calm_rows": ROWS})
    def calm(event: Event[Any], tx: Tx) -> None:
        tx.execute(insert("calm"), row(event))  # never fails: whole batches without a savepoint

    @app.projection(app.log("receipts"), tables={"mirror_rows": ROWS})
    def mirror(event: Event[Any], tx: Tx) -> None:
        tx.execute(insert("mirror"), row(event))


def add_handlers(app: App, functions: Functions) -> None:
    orders = app.log("orders")

    @app.on(orders, "paid", start="first", concurrency=4, retry=RETRY)
    async def charge(event: Event[Any], ctx: Ctx) -> None:
        if event.key is not None:
            ctx.state["cents"] = ctx.state.get("cents", 0) + event.data["cents"]
            ctx.state["events"] = ctx.state.get("events", 0) + 1
        ctx.emit(app.log("receipts"), "charged", event.data)
        ctx.execute(insert("charge"), row(event))
        await asyncio.sleep(0)
        functions.meet("charge", event)

    @app.on(orders, "paid", start="first", concurrency=2, retry=RETRY)
    def note(event: Event[Any], ctx: Ctx) -> None:
        ctx.execute(insert("note"), row(event))
        functions.meet("note", event)


class Hearing:
    """Writes what a listener hears to a file, one JSON line per signal; halts also as empty files, for a full disk."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, facts: Sequence[Signal]) -> None:
        for fact in facts:
            if isinstance(fact, Halted):
                Path(f"{self._path}-halted-{fact.subscription}").touch()
        lines = [json.dumps({"signal": type(fact).__name__, **msgspec.structs.asdict(fact)}) for fact in facts]
        with open(self._path, "a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def work(
    path: str, flakes: str, *, fixed: bool = False, until_idle: bool = False, signals: str = "", stop_at: str = ""
) -> None:
    """A worker process; `stop_at` is a failpoint, with the number of the hit, at which it falls asleep."""
    app = build(path, flakes, fixed, signals)
    if stop_at:
        name, _, at = stop_at.partition(":")
        # To this very thread: the process as a whole would fall asleep a moment later, inside a transaction.
        arm(Failpoint(name, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP), int(at)))
    app.run(until_idle=until_idle)
    app.close()


def produce(path: str, acks: str, seed: int, upto: int) -> None:
    """A producer process: says the events of its script in order and keeps its own list of what was acknowledged."""
    app = App(path)
    orders = app.log("orders")
    file = Path(acks)
    told = len(file.read_text().splitlines()) if file.exists() else 0
    with file.open("a") as list_of_mine:
        for event in script(seed, upto)[told:]:
            while not accepted(app, orders, event):
                Path(f"{acks}-refused").touch()
                threading.Event().wait(0.02)
            list_of_mine.write(f"{event.n}\n")
            list_of_mine.flush()
            os.fsync(list_of_mine.fileno())
    app.close()


def accepted(app: App, orders: Any, event: Said) -> bool:
    """A store that cannot take it now says so; the producer keeps the event and says it again."""
    try:
        say(app, orders, event)
    except StoreError:
        return False
    return True


def say(app: App, orders: Any, event: Said) -> None:
    """Append; every fifth together with a write of the producer's own."""
    if event.n % 5 == 0:
        with app.transaction() as tx:
            tx.execute("INSERT INTO sent VALUES (:n) ON CONFLICT DO NOTHING", {"n": event.n})
            orders.append(event.type, event.data, key=event.key, id=event.id, tx=tx)
    else:
        orders.append(event.type, event.data, key=event.key, id=event.id)
