"""Embedding: run, serve, running, include, lifespan; part of an app, or all of it; in a process or inside a program."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Halted, StoreError, UsageError
from redrive.observe import signals as sig
from redrive.redis import Stream
from redrive.settings import Settings
from redrive.testing import Harness


@pytest.fixture
def real(tmp_path: Path) -> Iterator[App]:
    """An app on a real file, with threads and the machine's clock."""
    app = App(str(tmp_path / "real.db"))
    yield app
    app.close()


def noting(app: App, *names: str) -> dict[str, list[Any]]:
    """Handlers that note what they get."""
    seen: dict[str, list[Any]] = {name: [] for name in names}
    for name in names:
        app.on(app.log("orders"), name=name, start="first")(lambda event, ctx, name=name: seen[name].append(event.data))
    return seen


class Told:
    """Waits for signals of a real app."""

    def __init__(self, app: App) -> None:
        self._condition = threading.Condition()
        self._signals: list[sig.Signal] = []
        app.listen(self._hear)

    def _hear(self, signals: Any) -> None:
        with self._condition:
            self._signals += signals
            self._condition.notify_all()

    def wait(self, kind: type[sig.Signal], count: int = 1) -> None:
        def enough() -> bool:
            return sum(isinstance(signal, kind) for signal in self._signals) >= count

        with self._condition:
            assert self._condition.wait_for(enough, timeout=30)

    async def until(self, kind: type[sig.Signal], count: int = 1) -> None:
        await asyncio.to_thread(self.wait, kind, count)


def test_run_until_idle_does_all_there_is_and_returns(real: App) -> None:
    seen = noting(real, "one", "two")
    for number in range(5):
        real.log("orders").append("fine", number)
    real.run(until_idle=True)
    real.run(until_idle=True)
    assert seen == {"one": [0, 1, 2, 3, 4], "two": [0, 1, 2, 3, 4]}


def test_run_until_idle_of_an_app_without_functions_returns_at_once(real: App) -> None:
    real.run(until_idle=True)
    assert real.subscriptions == {}


def test_only_and_exclude_choose_subscriptions(real: App) -> None:
    seen = noting(real, "one", "two", "three")
    real.log("orders").append("fine", 1)
    real.run(until_idle=True, only=["one"])
    assert seen == {"one": [1], "two": [], "three": []}
    real.run(until_idle=True, exclude=["one", "three"])
    assert seen == {"one": [1], "two": [1], "three": []}
    with pytest.raises(UsageError, match="there is no subscription 'four'"):
        real.run(until_idle=True, only=["four"])
    with pytest.raises(UsageError, match="nothing is left to run"):
        real.run(until_idle=True, only=["one"], exclude=["one"])


def test_running_works_in_the_background_of_an_event_loop(real: App) -> None:
    seen, told = noting(real, "one", "two"), Told(real)

    async def program() -> None:
        async with real.running(only=["one"]):
            for number in range(3):
                await real.log("orders").append_async("fine", number)
            await told.until(sig.Settled)
        assert not real.runtime.is_running

    asyncio.run(program())
    assert (seen["one"][:1], seen["two"]) == ([0], [])


def test_an_append_wakes_the_loop_at_once(real: App) -> None:
    seen, told = noting(real, "one"), Told(real)

    async def program() -> None:
        async with real.running():
            await told.until(sig.LeaseTaken)
            await asyncio.to_thread(real.log("orders").append, "fine", 1)
            await told.until(sig.Settled)

    asyncio.run(program())
    assert seen["one"] == [1]


def test_serve_runs_until_it_is_cancelled_and_hands_over(real: App) -> None:
    noting(real, "one")
    told = Told(real)

    async def program() -> None:
        task = asyncio.create_task(real.serve())
        await told.until(sig.LeaseTaken)
        real.log("orders").append("fine", 1)
        await told.until(sig.Settled)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(program())
    with real.reader() as tx:
        assert tx.execute("SELECT applied, owner, unclean FROM redrive_progress").fetchone() == (1, None, 0)
    assert not real.runtime.is_running


def test_a_cancelled_serve_settles_what_finishes_in_time(real: App) -> None:
    """It is a stop like any other: a call that was made and not settled would be made once more."""
    begun, finish, told = asyncio.Event(), asyncio.Event(), Told(real)

    @real.on(real.log("orders"), start="first")
    async def charge(event, ctx):
        begun.set()
        await finish.wait()

    async def program() -> None:
        real.log("orders").append("fine", 1)
        task = asyncio.create_task(real.serve())
        await begun.wait()
        task.cancel()
        await told.until(sig.Stopping)
        finish.set()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()

    asyncio.run(program())
    with real.reader() as tx:
        assert tx.execute("SELECT applied, owner, unclean FROM redrive_progress").fetchone() == (1, None, 0)


def test_serve_until_idle_returns(real: App) -> None:
    seen = noting(real, "one")
    real.log("orders").append("fine", 1)
    asyncio.run(real.serve(until_idle=True))
    assert seen["one"] == [1]


def halted_app(real: App) -> App:
    """`one` has a checkpoint that does not match its log, as after a restored backup; `two` is well."""
    noting(real, "one", "two")
    real.log("orders").append("fine", 1)
    real.run(until_idle=True)
    with real.transaction() as tx:
        tx.execute(
            "UPDATE redrive_progress SET anchor = 'x' WHERE subscription = "
            "(SELECT id FROM redrive_subscriptions WHERE name = 'one')"
        )
    return real


RUNS = {"run": lambda app: app.run(until_idle=True), "serve": lambda app: asyncio.run(app.serve(until_idle=True))}


@pytest.mark.parametrize("how", RUNS)
def test_until_idle_raises_when_a_subscription_is_halted(real: App, how: str) -> None:
    with pytest.raises(Halted, match=r"1 subscription is halted: one: .*; remove the cause") as raised:
        RUNS[how](halted_app(real))
    assert list(raised.value.subscriptions) == ["one"]
    assert isinstance(raised.value, StoreError)
    assert not real.runtime.is_running


@pytest.mark.parametrize("how", RUNS)
def test_until_idle_raises_when_a_source_is_halted(tmp_path: Path, how: str) -> None:
    """Nobody listens on this port: the broker cannot be reached."""
    with closing(socket.create_server(("127.0.0.1", 0))) as reserved:
        port = reserved.getsockname()[1]
    app = App(str(tmp_path / "shop.db"), name="shop")
    stream = Stream(f"redis://127.0.0.1:{port}", "orders")
    app.on(stream, order="none", name="charge")(lambda event, ctx: None)
    with pytest.raises(Halted, match="redis:orders") as raised:
        RUNS[how](app)
    app.close()
    assert list(raised.value.subscriptions) == ["redis:orders"]


def test_until_idle_reports_a_halted_subscription_of_several_partitions_once(real: App) -> None:
    real.on(real.log("orders"), name="one", start="first", partitions=3)(lambda event, ctx: None)
    real.log("orders").append("fine", 1, key="a")
    real.run(until_idle=True)
    with real.transaction() as tx:
        tx.execute("UPDATE redrive_progress SET anchor = 'x'")
    with pytest.raises(Halted, match="1 subscription is halted") as raised:
        real.run(until_idle=True)
    assert list(raised.value.subscriptions) == ["one"]


def test_until_idle_waits_for_no_pause_between_two_looks_at_the_schedule(tmp_path: Path) -> None:
    app = App(str(tmp_path / "real.db"), settings=Settings(poll_max=1e6, lease=1e6))
    seen = noting(app, "one")
    app.log("orders").append("fine", 1)
    for _ in range(3):
        asyncio.run(asyncio.wait_for(app.serve(until_idle=True), 30))
    app.close()
    assert seen["one"] == [1]


def test_an_app_runs_once_per_process(real: App) -> None:
    async def program() -> None:
        async with real.running():
            with pytest.raises(UsageError, match="running already"):
                await real.serve()

    asyncio.run(program())
    assert not real.runtime.is_running


def test_embedding_installs_no_signal_handlers(real: App) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def program() -> tuple[Any, Any]:
        async with real.running():
            return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    during = asyncio.run(program())
    assert during[0] == before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_a_lifespan_yields_is_in_ctx_and_is_closed_at_the_end(app: App, start: Any, kind: str) -> None:
    trace: list[Any] = []

    @asynccontextmanager
    async def open_async(app: App) -> AsyncIterator[str]:
        trace.append("open")
        yield "a connection"
        trace.append("close")

    @contextmanager
    def open_sync(app: App) -> Iterator[str]:
        trace.append("open")
        yield "a connection"
        trace.append("close")

    living = App("/nonexistent/x.db", lifespan=open_async if kind == "async" else open_sync)
    living.on(living.log("orders"), start="first", name="see")(lambda event, ctx: trace.append(ctx.deps))
    harness = start(living)
    harness.append("orders", "fine")
    harness.run_until_idle()
    harness.close()
    assert trace == ["open", "a connection", "close"]


def test_a_lifespan_that_is_no_context_manager_is_refused(app: App, start: Any) -> None:
    harness = start(App("/nonexistent/x.db", lifespan=lambda app: 7))
    with pytest.raises(UsageError, match="context manager"):
        harness.run_until_idle()


def test_a_lifespan_that_fails_to_open_is_the_programs_failure(start: Any) -> None:
    @contextmanager
    def broken(app: App) -> Iterator[None]:
        raise OSError("no database")
        yield

    harness = start(App("/nonexistent/x.db", lifespan=broken))
    with pytest.raises(OSError, match="no database"):
        harness.run_until_idle()


def test_include_imports_the_modules_that_declare_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    (tmp_path / "included_app.py").write_text(
        "from redrive import App\napp = App('/nonexistent/x.db', include=['included_handlers'])\nseen = []\n"
    )
    (tmp_path / "included_handlers.py").write_text(
        "from included_app import app, seen\n"
        "@app.on(app.log('orders'), start='first')\ndef see(event, ctx):\n    seen.append(event.data)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("included_app", "included_handlers"):  # the same program on another store
        monkeypatch.delitem(sys.modules, name, raising=False)
    import importlib

    module = importlib.import_module("included_app")
    harness: Harness = start(module.app)
    harness.append("orders", "fine", 1)
    harness.run_until_idle()
    assert module.seen == [1]


PROGRAM = """
import os, signal, sys, threading
from redrive import App
app = App("shop.db")
orders = app.log("orders")

@app.on(orders, start="first")
def slow(event, ctx):
    print("begin", event.data, flush=True)
    threading.Event().wait(float(sys.argv[1]))
    ctx.emit(app.log("done"), "done", event.data)
    print("end", event.data, flush=True)

orders.append("fine", 1)
app.run()
print("released", flush=True)
"""


def spawn(folder: Path, seconds: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(seconds)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "begin 1\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_functions_finish_and_hands_over(tmp_path: Path, number: int) -> None:
    child = spawn(tmp_path, 0.3)
    child.send_signal(number)
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, "end 1\nreleased\n")
    app = App(str(tmp_path / "shop.db"))
    with app.reader() as tx:
        assert tx.execute("SELECT owner, unclean, applied FROM redrive_progress").fetchone() == (None, 0, 1)
    assert [event.data for event in app.log("done").read()] == [1]
    app.close()


def test_a_second_signal_ends_at_once_and_spends_no_attempt(tmp_path: Path) -> None:
    child = spawn(tmp_path, 60)
    child.send_signal(signal.SIGTERM)
    app, told = App(str(tmp_path / "shop.db")), None
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGINT or child.returncode == 128 + signal.SIGTERM
    attempts = []
    app.on(app.log("orders"), start="first", name="slow")(lambda event, ctx: attempts.append(ctx.attempt))
    app.run(until_idle=True)
    assert (attempts, told) == ([1], None)
    app.close()


FROZEN = """
import asyncio, gc, os, signal, sys
from redrive import App
app = App("shop.db")

@app.on(app.log("orders"), start="first")
def look(event, ctx):
    print(gc.get_freeze_count() > 10_000, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

async def embedded():
    task = asyncio.create_task(app.serve())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(task, return_exceptions=True)

app.log("orders").append("fine")
app.run() if sys.argv[1] == "run" else asyncio.run(embedded())
"""


@pytest.mark.parametrize(("way", "is_frozen"), [("run", True), ("serve", False)])
def test_a_worker_keeps_what_it_has_loaded_and_an_embedding_program_decides_for_itself(
    tmp_path: Path, way: str, is_frozen: bool
) -> None:
    """A full collection would stop every function for as long as it takes to look at all that was imported."""
    command = [sys.executable, "-c", FROZEN, way]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{is_frozen}\n"


def test_a_harness_leaves_the_apps_own_settings_and_store_as_they_were(tmp_path: Path) -> None:
    app = App(str(tmp_path / "mine.db"))
    app.log("orders").append("fine", "mine")
    with Harness(app) as harness:
        harness.append("orders", "fine", "test")
        assert [event.data for event in app.log("orders").read()] == ["test"]
    assert [event.data for event in app.log("orders").read()] == ["mine"]
    app.close()


def test_run_inside_of_an_event_loop_names_serve(real: App) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match="await app"):
            real.run(until_idle=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("option", ["only", "exclude"])
def test_one_name_is_no_list_of_subscriptions(tmp_path: Path, option: str) -> None:
    app = App(tmp_path / "shop.db")
    app.projection(app.log("orders"), name="revenue")(lambda event, tx: None)
    with pytest.raises(UsageError, match=rf"{option}=\['revenue'\]"):
        app.run(until_idle=True, **{option: "revenue"})  # type: ignore[arg-type]
