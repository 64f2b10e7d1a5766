"""Signals and log lines: every fact the engine knows is told, and listening can do no harm."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, fields

from redrive import App, Reject, StoreError, auto_replay, breaker, no_retry, retry, rules
from redrive.observe import signals as sig
from redrive.observe.hearing import QUEUE_MAX
from redrive.observe.logs import JsonFormatter, LogListener
from redrive.settings import Settings
from redrive.testing import Harness
from redrive.testing.fakes import FakeEnv


def seen(harness: Harness, kind: type[sig.Signal]) -> list[Any]:
    return [signal for signal in harness.signals if isinstance(signal, kind)]


def declare_troubles(app: App, version: int | None = None) -> None:
    """A handler whose events fail in every way."""

    @app.on(
        app.log("orders"),
        start="first",
        retry=retry(attempts=2, wait="1s", jitter=0),
        letters=rules(discard="drop.*", keep_if=lambda letter: letter.broken),
        breaker=breaker(failures=1, cooldown="1s", probes=1),
        replay=auto_replay(),
        version=version,
    )
    def charge(event, ctx):
        match event.type:
            case "fails.twice":
                raise OSError("secret of the payload is not here")
            case "fails.once" if ctx.attempt == 1:
                raise OSError("once")
            case "drop.me":
                raise Reject("no")


def test_every_signal_is_told_by_something_that_happens(app: App, start: Any) -> None:
    harness = start(
        app, settings=Settings(lane_max=2, window_max=2, settle_max=2, lease=9.0, poll_min=9.0, poll_max=9.0)
    )
    declare_troubles(app)

    for kind, key in [("fine", "a"), ("fails.twice", "b"), ("fine", "b"), ("fails.once", "c"), ("drop.me", "d")]:
        harness.append("orders", kind, {"secret": 1}, key=key)
    for _ in range(3):
        harness.append("orders", "fine", key="b")
    harness.append("orders", "fine", key="a", after="1m")
    harness.advance("3m")
    harness.replay()
    harness.fault = StoreError("gone")
    harness.advance("1m")
    harness.fault = None
    harness.advance("1m")

    rival_app = App("/nonexistent/rival.db")
    declare_troubles(rival_app)
    rival = start(rival_app, harness.path, env=FakeEnv(harness.clock, owner="rival-1"))
    rival.env.dead.add(harness.env.owner)
    rival.run_until_idle()
    harness.append("orders", "fine", key="z")
    harness.run_until_idle()
    rival.restart()

    newer_app = App("/nonexistent/newer.db")
    declare_troubles(newer_app, version=2)
    start(newer_app, harness.path, env=FakeEnv(harness.clock, owner="newer-1"))
    newer_app.operate("ada").reset("charge", "once more, with the new code")
    rival.advance("1m")  # the store has version 2 now
    told = {type(signal) for one in (harness, rival) for signal in one.signals}
    told.add(sig.HandlerStuck)  # it takes a real thread: see test_overrunning
    told.add(sig.Probed)  # it takes a sink: see tests/observe/test_e11y.py
    # What comes before the store is told by tests/tracking.
    told |= {sig.Spooled, sig.SpoolTaken, sig.SpoolDamaged, sig.TrackDropped, sig.TrackRefused, sig.TrackLimited}
    assert [kind.__name__ for kind in sig.ALL if kind not in told] == []


def test_the_list_of_signals_is_complete() -> None:
    def heirs(kind: type) -> Iterator[type]:
        for heir in kind.__subclasses__():
            yield heir
            yield from heirs(heir)

    # By name: a dataclass with slots is made twice.
    assert {kind.__name__ for kind in heirs(sig.Signal)} - {"Failing"} == {kind.__name__ for kind in sig.ALL}


def test_no_signal_carries_a_payload(app: App, harness: Harness) -> None:
    declare_troubles(app)
    for kind in ("fine", "fails.twice", "drop.me"):
        harness.append("orders", kind, {"card": "4111-1111"}, key=kind, headers={"token": "4111-1111"})
    harness.advance("1m")
    assert "4111" not in repr(harness.signals)


def test_what_a_settling_did_is_told_after_it_is_committed(app: App, harness: Harness) -> None:
    positions = []

    @app.listen
    def listen(signals: Any) -> None:
        [(stored,)] = harness.query("SELECT position FROM redrive_progress") or [(0,)]
        positions.extend((signal.position, stored) for signal in signals if isinstance(signal, sig.Settled))

    app.on(app.log("orders"), start="first", name="see")(lambda event, ctx: None)
    for _ in range(3):
        harness.append("orders", "fine")
    harness.run_until_idle()
    assert positions
    assert all(told == stored for told, stored in positions)


def test_a_listener_that_raises_harms_nobody(app: App, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    def broken(signals: Any) -> None:
        raise ValueError("the listener is broken")

    app.runtime.signals.listen(broken)
    done = []
    app.on(app.log("orders"), start="first", name="see")(lambda event, ctx: done.append(event.data))
    for number in range(3):
        harness.append("orders", "fine", number)
    harness.run_until_idle()
    assert done == [0, 1, 2]
    assert "the listener is broken" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_whatever_a_listener_raises_the_others_hear_all_of_it(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    signals, heard = sig.Signals(), []

    def broken(_: Any) -> None:
        raise error("the listener is broken")

    signals.listen(broken)
    signals.listen(heard.extend)
    for position in range(3):
        signals.tell([sig.Appended("orders", 1, position)])
    signals.flush(30)
    signals.close()
    assert [signal.position for signal in heard] == [0, 1, 2]
    assert caplog.text.count("a listener or on_error hook raised") == 3


def test_a_listener_that_blocks_harms_nobody(tmp_path: Path) -> None:
    app = App(str(tmp_path / "real.db"))
    release, done = threading.Event(), []

    @app.listen
    def blocks(signals: Any) -> None:
        release.wait(30)

    app.on(app.log("orders"), start="first", name="see")(lambda event, ctx: done.append(event.data))
    for number in range(100):
        app.log("orders").append("fine", number)
    app.run(until_idle=True)
    release.set()
    assert done == list(range(100))
    app.close()


def test_a_listener_that_is_too_slow_loses_signals_and_they_are_counted() -> None:
    signals, release = sig.Signals(), threading.Event()
    heard: list[sig.Signal] = []
    changed = threading.Condition()

    def slow(batch: Any) -> None:
        release.wait(30)
        with changed:
            heard.extend(batch)
            changed.notify()

    signals.listen(slow)
    for number in range(QUEUE_MAX + 50):
        signals.tell([sig.Appended("orders", 1, number)])
    assert 40 <= signals.dropped <= 50
    release.set()
    with changed:
        assert changed.wait_for(lambda: len(heard) + signals.dropped == QUEUE_MAX + 50, timeout=30)


def test_an_app_that_is_closed_leaves_no_thread_behind_and_all_was_heard(tmp_path: Path) -> None:
    """Each app that had told something left one that waited for ever."""
    heard: list[int] = []
    before = set(threading.enumerate())
    app = App(str(tmp_path / "shop.db"))
    app.listen(lambda batch: heard.extend(one.position for one in batch if isinstance(one, sig.Appended)))
    for _ in range(2):  # whoever uses it again is told again
        for _ in range(20):
            app.log("orders").append("fine", 1)
        app.close()
    app.runtime.signals.flush(30)
    assert heard == list(range(1, 41))
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(30)
    assert not any(thread.is_alive() for thread in left), left


def test_who_is_slow_to_end_is_not_overtaken_by_the_next() -> None:
    signals, release = sig.Signals(), threading.Event()
    heard: list[int] = []
    changed = threading.Condition()

    def slow(batch: Any) -> None:
        release.wait(30)
        with changed:
            heard.extend(one.position for one in batch)
            changed.notify()

    signals.listen(slow)
    for number in range(3):
        signals.tell([sig.Appended("orders", 1, number)])
        signals.close()
    release.set()
    with changed:
        assert changed.wait_for(lambda: len(heard) == 3, timeout=30)
    assert heard == [0, 1, 2]


def test_a_failure_is_a_json_line_without_its_payload(app: App, harness: Harness) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("redrive")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        app.runtime.signals.listen(LogListener())

        @app.on(app.log("orders"), start="first", retry=no_retry)
        def charge(event, ctx):
            raise OSError("two\nlines")

        event = harness.append("orders", "order.placed", {"card": "4111-1111"}, key="a")
        harness.run_until_idle()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert "4111" not in out.getvalue()
    [buried] = [line for line in lines if line.get("signal") == "buried"]
    assert (buried["level"], buried["event_id"], buried["subscription"]) == ("error", event.id, "charge")
    assert buried["error_message"] == "two\nlines"
    assert {"time", "level", "logger", "reason", "attempt", "fingerprint", "letter"} <= set(buried)
    assert "lease.taken" in {line.get("signal") for line in lines}


def test_every_signal_can_be_a_log_line() -> None:
    for kind in sig.ALL:
        values = {field.name: 1.5 if "float" in str(field.type) else "text" for field in fields(kind)}
        record = logging.makeLogRecord({"msg": "x", "levelname": "INFO", "redrive": asdict(kind(**values))})
        assert json.loads(JsonFormatter().format(record))["level"] == "info"
