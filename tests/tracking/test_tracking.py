"""`track` never waits and never fails business code; what it took on is stored once, in order, whatever happens."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import force_setattr
from switching import Switched, spool_files, wait_until

from redrive import App, EventError, StoreError, UsageError, quiet, strict
from redrive.observe import signals as sig
from redrive.settings import Settings
from redrive.tracking import haul, tracker
from redrive.tracking.report import logger

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def data_of(app: App, log: str = "orders") -> list[object]:
    return [event.data for event in app.log(log).read()]


def counts(app: App) -> Counter[str]:
    return app.runtime.tracker.report.counts


def test_a_tracked_event_is_stored_soon_with_everything_it_was_given(app: App) -> None:
    orders = app.log("orders")
    event_id = orders.track("order.placed", {"cents": 1}, key="a", headers={"x": "y"})
    assert orders.flush()
    (event,) = orders.read()
    assert (event.id, event.type, event.data, event.key, event.headers) == (
        event_id, "order.placed", {"cents": 1}, "a", {"x": "y"}
    )  # fmt: skip
    assert event.version == 1


def test_many_threads_lose_nothing_and_each_stays_in_order(app: App) -> None:
    orders = app.log("orders")

    def produce(name: str) -> None:
        for number in range(500):
            orders.track("made", number, key=name)

    threads = [threading.Thread(target=produce, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders.flush(30)
    for number in range(8):
        assert [event.data for event in orders.read_key(f"t{number}")] == list(range(500))


def test_what_is_wrong_with_an_event_is_the_callers_mistake_and_raised(app: App) -> None:
    orders = app.log("orders")
    with pytest.raises(EventError, match="JSON"):
        orders.track("made", object())
    with pytest.raises(EventError, match="key"):
        orders.track("made", 1, key="")
    with pytest.raises(UsageError, match="not an event type"):
        orders.track(object())
    assert orders.flush()
    assert data_of(app) == []


def test_inside_quiet_nothing_is_raised_and_what_was_refused_is_kept_aside(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[sig.Signal] = []
    app.listen(heard.extend)
    orders = app.log("orders")
    with quiet():
        assert orders.track("made", object()) is None
        assert orders.track("made", {"text": "\ud800"}) is None
        assert orders.track(object()) is None
        assert orders.track("fine", 1) is not None
    orders.flush()
    app.close()
    assert data_of(app) == [1]
    kept = data_of(app, "orders:refused")
    assert [one["error_type"] for one in kept] == ["EventError", "EventError", "UsageError"]
    assert "surrogate" in kept[1]["error_message"]
    assert "object object" in kept[0]["data"]
    assert counts(app)["refused"] == 3
    app.runtime.signals.flush(5)
    refused = [signal for signal in heard if isinstance(signal, sig.TrackRefused)]
    assert sum(signal.count for signal in refused) == 3
    assert "refused and kept aside" in caplog.text


WRONG_CALLS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda track: track(),
    "too much": lambda track: track("made", 1, "more"),
    "an unknown name": lambda track: track("made", 1, kee="a"),
    "twice": lambda track: track("made", type="made"),
    "a type that is a list": lambda track: track([]),
    "a key that is a number": lambda track: track("made", 1, key=5),
    "an id that is a number": lambda track: track("made", 1, id=5),
    "headers that are a number": lambda track: track("made", 1, headers=5),
    "headers of numbers": lambda track: track("made", 1, headers={"x": 5}),
    "a time that is text": lambda track: track("made", 1, time="now"),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_inside_quiet_a_wrong_call_is_refused_like_a_wrong_event(app: App, wrong: str) -> None:
    orders, call = app.log("orders"), WRONG_CALLS[wrong]
    with quiet():
        assert call(orders.track) is None
    assert counts(app)["refused"] == 1
    orders.flush()
    (kept,) = data_of(app, "orders:refused")
    assert kept["error_type"] in ("TypeError", "EventError", "UsageError", "AttributeError")
    with pytest.raises(Exception):  # noqa: B017  # whatever it was before: it is the caller's mistake
        call(orders.track)
    with pytest.raises(Exception), strict():  # noqa: B017
        call(orders.track)
    assert counts(app)["refused"] == 1
    assert data_of(app) == []


def test_quiet_holds_even_when_nothing_works_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    nowhere = App(None, settings=Settings())
    with quiet():
        assert nowhere.log("orders").track("made", 1) is None
        assert nowhere.log("orders").track("made", Hostile()) is None
    with pytest.raises(UsageError, match="no store"):
        nowhere.log("orders").track("made", 1)
    assert "could not be tracked" in caplog.text


def test_a_store_that_refuses_is_not_the_callers_business_and_the_spool_is_taken_in_when_it_is_back(
    app: App, switch: Switched, tmp_path: Path
) -> None:
    orders = app.log("orders")
    switch.down = True
    for number in range(20):
        orders.track("made", number, key="a")
        if number % 5 == 4:
            wait_until(lambda: counts(app)["spooled"] == number + 1)  # noqa: B023
    assert not orders.flush(0.2)
    assert len(spool_files(tmp_path)) == 1
    switch.down = False
    for number in range(20, 30):
        orders.track("made", number, key="a")
    assert orders.flush(30)
    assert [event.data for event in orders.read_key("a")] == list(range(30))
    assert counts(app)["spooled"] == counts(app)["taken"]
    app.close()
    assert spool_files(tmp_path) == []


def test_a_commit_that_hangs_is_on_the_disk_meanwhile_and_counts_once_when_it_comes(
    app: App, switch: Switched, tmp_path: Path
) -> None:
    orders = app.log("orders")
    switch.holding = True
    orders.track("made", 0, key="a")
    wait_until(lambda: switch.held)
    orders.track("made", 1, key="a")
    wait_until(lambda: counts(app)["spooled"] == 2)
    assert spool_files(tmp_path)
    switch.let_go()
    assert orders.flush(30)
    assert [event.data for event in orders.read_key("a")] == [0, 1]
    assert switch.appended == 1  # the second; the first was let go


def test_a_commit_whose_answer_was_lost_is_not_made_twice(app: App, switch: Switched) -> None:
    orders = app.log("orders")
    switch.holding = True
    orders.track("made", 0, key="a")
    wait_until(lambda: switch.held)
    (lost,) = switch.held
    done = lost.done
    force_setattr(lost, "done", lambda rows, error: done(None, StoreError("no answer")))
    switch.let_go()
    assert orders.flush(30) or orders.flush(30)
    assert [event.data for event in orders.read_key("a")] == [0]


def test_an_event_that_the_store_will_never_take_is_put_aside_and_its_neighbours_are_stored(app: App) -> None:
    orders = app.log("orders")
    orders.append("made", "first", id="x")
    for number in range(5):
        orders.track("made", number, key="a")
    orders.track("made", "another", id="x")
    orders.track("made", "first", id="x")  # the same again: nothing to do
    for number in range(5, 10):
        orders.track("made", number, key="a")
    assert orders.flush()
    orders.flush()
    assert [event.data for event in orders.read_key("a")] == list(range(10))
    assert [one["error_type"] for one in data_of(app, "orders:refused")] == ["IdConflict"]


def test_close_brings_everything_into_the_store(app: App) -> None:
    for number in range(3000):
        app.log("orders").track("made", number)
    app.close()
    assert data_of(app) == list(range(3000))
    app.log("orders").track("made", 3000)
    app.close()
    assert len(data_of(app)) == 3001


def test_close_does_not_wait_for_a_store_that_is_away(app: App, switch: Switched, tmp_path: Path) -> None:
    switch.down = True
    app.log("orders").track("made", 1)
    app.close()
    (left,) = spool_files(tmp_path)
    assert left.stat().st_size > 0
    app.log("orders").track("made", 2)  # the store was opened anew: what is left is taken in before
    assert app.log("orders").flush(30)
    wait_until(lambda: data_of(app) == [1, 2])


def test_strict_waits_for_the_commit_and_comes_after_what_was_tracked_before(app: App) -> None:
    orders = app.log("orders")
    for number in range(50):
        orders.track("made", number, key="a")
    with strict():
        event_id = orders.track("made", 50, key="a")
        found = orders.read_key("a")
    assert [event.data for event in found] == list(range(51))
    assert found[-1].id == event_id


def test_strict_raises_if_there_was_no_commit_and_leaves_nothing_behind(app: App, switch: Switched) -> None:
    orders = app.log("orders")
    switch.down = True
    with strict(), pytest.raises(StoreError):
        orders.track("made", "strict")
    orders.track("made", "plain")
    wait_until(lambda: counts(app)["spooled"] == 1)
    with strict(), pytest.raises(StoreError, match="tracked before"):
        orders.track("made", "strict")
    switch.down = False
    assert orders.flush(30)
    assert data_of(app) == ["plain"]


def test_a_full_spool_and_a_full_memory_lose_the_newest_and_say_so(
    backend: str | None, tmp_path: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    small = settings.__class__(**{**_fields(settings), "spool_max": 2_000, "track_memory_max": 10_000})
    app = App(backend or str(tmp_path / "shop.db"), settings=small)
    heard: list[sig.Signal] = []
    app.listen(heard.extend)
    switch = Switched(app)
    switch.down = True
    orders = app.log("orders")
    for number in range(200):
        orders.track("made", number, key="a")
    wait_until(lambda: counts(app)["spooled"] > 0)
    for number in range(200, 300):
        orders.track("made", number, key="a")
    lost = counts(app)["dropped"]
    assert lost > 0
    assert sum(path.stat().st_size for path in spool_files(tmp_path)) <= 2_000
    switch.down = False
    wait_until(lambda: orders.flush(30))  # an attempt may be under way that began while the store was down
    found = [event.data for event in orders.read_key("a")]
    assert found == sorted(found)
    assert len(found) == 300 - lost
    app.close()
    app.runtime.signals.flush(5)
    assert sum(signal.count for signal in heard if isinstance(signal, sig.TrackDropped)) == lost
    assert "LOST" in caplog.text


def _fields(settings: Settings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


@pytest.mark.parametrize("forks", [1, 3])
def test_a_forked_child_tracks_its_own_and_nothing_of_its_parents(app: App, forks: int) -> None:
    orders = app.log("orders")
    for number in range(200):
        orders.track("made", f"parent {number}")
    for child in range(forks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                orders.track("made", f"child {child}")
                app.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    orders.track("made", "parent 200")
    assert orders.flush(30)
    found = data_of(app)
    assert len(found) == len(set(found)) == 201 + forks
    assert [one for one in found if one.startswith("parent")] == [f"parent {n}" for n in range(201)]


def test_a_fork_during_an_outage_leaves_the_parents_file_to_the_parent(
    app: App, switch: Switched, tmp_path: Path
) -> None:
    orders = app.log("orders")
    switch.down = True
    orders.track("made", "parent")
    wait_until(lambda: counts(app)["spooled"] == 1)
    (mine,) = spool_files(tmp_path)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            gc.collect()
            orders.track("made", "child")
            app.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert mine.exists()
    switch.down = False
    assert orders.flush(30)
    assert sorted(data_of(app)) == ["child", "parent"]


def test_a_process_of_multiprocessing_leaves_nothing_behind(app: App) -> None:
    """It ends by os._exit, as soon as its function returns."""
    orders = app.log("orders")
    child = multiprocessing.get_context("fork").Process(target=orders.track, args=("made", "child"))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert data_of(app) == ["child"]


def test_a_damaged_file_gives_what_is_whole_and_the_rest_is_set_aside_and_told(
    app: App, switch: Switched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[sig.Signal] = []
    app.listen(heard.extend)
    switch.down = True
    for number in range(5):
        app.log("orders").track("made", number, key="a")
    app.close()
    (left,) = spool_files(tmp_path)
    lines = left.read_bytes().splitlines(keepends=True)
    left.write_bytes(lines[0] + lines[1].replace(b"made", b"mode") + b"".join(lines[2:4]) + lines[4][:30])
    app.log("orders").track("made", 5, key="a")
    wait_until(lambda: data_of(app) == [0, 2, 3, 5])
    app.close()
    assert spool_files(tmp_path) == []
    (aside,) = (tmp_path / "spool").rglob("*.damaged")
    assert aside.read_bytes() == lines[1].replace(b"made", b"mode") + lines[4][:30] + b"\n"
    app.runtime.signals.flush(5)
    assert sum(signal.bytes for signal in heard if isinstance(signal, sig.SpoolDamaged)) == len(lines[1]) + 30
    assert "damaged; they were set aside" in caplog.text


def test_the_first_call_does_not_wait_for_a_store_that_is_being_opened(app: App) -> None:
    with app.runtime._lock:  # somebody is at it, and the server does not answer
        tracked = threading.Thread(target=app.log("orders").track, args=("made", 1))
        tracked.start()
        tracked.join(10)
        assert not tracked.is_alive()
        wait_until(lambda: counts(app)["spooled"] == 1)  # and it does not stay in memory either
    assert app.log("orders").flush(30)
    assert data_of(app) == [1]


def test_trouble_is_logged_once_in_a_while_not_once_per_event(
    app: App, switch: Switched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger.name)
    switch.down = True
    for number in range(300):
        app.log("orders").track("made", number)
        if number % 100 == 0:
            wait_until(lambda: counts(app)["spooled"] > number)  # noqa: B023
    wait_until(lambda: counts(app)["spooled"] == 300)
    assert len([line for line in caplog.messages if "does not take tracked events" in line]) == 1
    switch.down = False
    app.log("orders").flush(30)


def test_the_names_of_the_limits_are_what_the_documentation_says() -> None:
    assert (tracker.GATHER_SECONDS, haul.SLOW_SECONDS, tracker.FLUSH_SECONDS) == (0.005, 0.2, 5.0)
