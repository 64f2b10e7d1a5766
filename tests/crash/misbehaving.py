"""Functions that misbehave, each in a worker of its own. Every call leaves a line outside of the store."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from worker_app import Hearing

from redrive import App, retry

RETRY = retry(attempts=2, wait="1ms", wait_max="2ms", jitter=0.0)


class Mute(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def deep(n: int = 0) -> int:
    return deep(n + 1) + 1


def raises(error: Callable[[], BaseException]) -> Callable[[], None]:
    def raise_it() -> NoReturn:
        raise error()

    return raise_it


def wait_for_file(path: str) -> None:
    """Block the thread until somebody writes the file."""
    pause = threading.Event()
    while not Path(path).exists():
        pause.wait(0.01)


DEEDS: dict[str, Callable[[], object]] = {
    "os._exit": lambda: os._exit(1),
    "SystemExit": raises(SystemExit),
    "KeyboardInterrupt": raises(KeyboardInterrupt),
    "GeneratorExit": raises(GeneratorExit),
    "CancelledError": raises(asyncio.CancelledError),
    "MemoryError": raises(MemoryError),
    "RecursionError": deep,
    "StopIteration": raises(StopIteration),
    "StopAsyncIteration": raises(StopAsyncIteration),
    "ExceptionGroup": raises(lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")])),
    "BaseExceptionGroup": raises(lambda: BaseExceptionGroup("several", [KeyboardInterrupt()])),
    "Mute": raises(Mute),
    "100 MB": raises(lambda: ValueError("x" * 100_000_000)),
    "surrogate": raises(lambda: ValueError("\ud800 and \0")),
}


def build(path: str, form: str, deed: str, calls: str, gate: str = "", timeout: str | None = None) -> App:
    """One function that misbehaves at the event with data["bad"]; `gate` is a file that ends a hang."""
    app = App(path)
    things = app.log("things")
    row = "INSERT INTO done_rows (event_id) VALUES (:id)"

    def note(event: Any) -> bool:
        with open(calls, "a") as file:
            file.write(f"{event.id}\n")
        return bool(event.data["bad"])

    async def handle(event: Any, ctx: Any) -> None:
        ctx.execute(row, {"id": event.id})
        if note(event):
            if deed == "hang":
                await asyncio.get_running_loop().create_future()
            wait_for_file(gate) if deed == "block" else DEEDS[deed]()

    def handle_plainly(event: Any, ctx: Any) -> None:
        ctx.execute(row, {"id": event.id})
        if note(event):
            wait_for_file(gate) if deed == "hang" else DEEDS[deed]()

    def project(event: Any, tx: Any) -> None:
        tx.execute(row, {"id": event.id})
        if note(event):
            wait_for_file(gate) if deed == "block" else DEEDS[deed]()

    def project_all(events: Any, tx: Any) -> None:
        for event in events:
            project(event, tx)

    tables = {"done_rows": "event_id TEXT NOT NULL"}
    if form == "async":
        app.on(things, name="function", start="first", retry=RETRY, concurrency=4, timeout=timeout)(handle)
    elif form == "sync":
        app.on(things, name="function", start="first", retry=RETRY, concurrency=4, timeout=timeout)(handle_plainly)
    elif form == "projection":
        app.projection(things, name="function", retry=RETRY, tables=tables)(project)
    else:
        app.projection(things, name="function", retry=RETRY, tables=tables, batch=True)(project_all)
    return app


def work(path: str, form: str, deed: str, calls: str, until_idle: bool = True, signals: str = "", **more: Any) -> None:
    """A worker with such a function."""
    app = build(path, form, deed, calls, **more)
    if signals:
        app.listen(Hearing(signals))
    try:
        app.run(until_idle=until_idle)
    finally:
        app.close()  # as `redrive run` does
