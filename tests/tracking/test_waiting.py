"""The queue between `track` and its thread: bounded, in order, and nothing is left behind when it closes."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any

import pytest

from redrive.event import NewEvent
from redrive.tracking.spool import Entry
from redrive.tracking.waiting import ENTRY_BYTES, LARGE_BYTES, UNWEIGHED_SHARE, Closed, Waiting

MEBIBYTE = 2**20


def event(number: int, size: int = 10) -> NewEvent:
    return NewEvent(f"e{number}", "order.placed", None, 1, 0, None, b"x" * size, None, False)


def ids(entries: list[Entry]) -> list[str]:
    return [entry.event.id for entry in entries]


def test_what_comes_first_goes_first_and_what_is_put_back_comes_first_again() -> None:
    waiting = Waiting(MEBIBYTE)
    for number in range(5):
        assert waiting.put("orders", event(number))
    taken = waiting.take(3, MEBIBYTE)
    assert ids(taken) == ["e0", "e1", "e2"]
    waiting.put_back(taken[1:])
    assert (len(waiting), waiting.put_count) == (4, 5)
    assert ids(waiting.take(9, MEBIBYTE)) == ["e1", "e2", "e3", "e4"]
    assert (len(waiting), waiting.put_count) == (0, 5)


def test_a_small_bound_is_kept_exactly() -> None:
    each = ENTRY_BYTES + 10
    waiting = Waiting(3 * each)
    assert [waiting.put("orders", event(number)) for number in range(5)] == [True, True, True, False, False]
    assert waiting.put("orders", event(5), force=True)
    waiting.take(2, MEBIBYTE)
    assert [waiting.put("orders", event(number)) for number in (6, 7)] == [True, False]


@pytest.mark.parametrize("size", [10, LARGE_BYTES - ENTRY_BYTES, LARGE_BYTES, 5 * LARGE_BYTES])
def test_a_large_bound_is_passed_by_a_sixteenth_at_most(size: int) -> None:
    most = 16 * MEBIBYTE
    waiting = Waiting(most)
    while waiting.put("orders", event(0, size)):
        pass
    held = len(waiting) * (size + ENTRY_BYTES)
    assert most - (size + ENTRY_BYTES) < held <= most + most // UNWEIGHED_SHARE
    waiting.take(len(waiting), 2 * most)
    assert waiting.put("orders", event(1, size)), "what was taken weighs nothing any more"


class _Meddling(deque[Any]):
    """Lets somebody else act at the moment an event is appended."""

    def __init__(self, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.before, self.after = before, after

    def append(self, entry: Any) -> None:
        if self.before:
            self.before()
        super().append(entry)
        if self.after:
            self.after()


def test_an_event_that_comes_while_the_queue_closes_goes_to_its_successor() -> None:
    waiting = Waiting(MEBIBYTE)
    waiting._entries = _Meddling(before=waiting.close)
    with pytest.raises(Closed):
        waiting.put("orders", event(1))
    assert len(waiting) == 0, "or it would be stored twice"


def test_an_event_that_was_rescued_when_the_queue_closed_is_not_put_again() -> None:
    waiting, rescued = Waiting(MEBIBYTE), []

    def close() -> None:
        waiting.close()
        rescued.extend(waiting.take(9, MEBIBYTE))

    waiting._entries = _Meddling(after=close)
    assert waiting.put("orders", event(1))
    assert ids(rescued) == ["e1"]
    with pytest.raises(Closed):
        waiting.put("orders", event(2))
    assert waiting.put("orders", event(3), force=True)


def test_threads_that_put_and_one_that_takes_lose_nothing_and_keep_their_order() -> None:
    waiting, done = Waiting(64 * MEBIBYTE), threading.Event()
    taken: list[Entry] = []

    def put(thread: int) -> None:
        for number in range(2_000):
            assert waiting.put(str(thread), event(number))

    def take() -> None:
        while not done.is_set() or len(waiting):
            taken.extend(waiting.take(100, MEBIBYTE))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        putting = [threading.Thread(target=put, args=(thread,)) for thread in range(4)]
        taking = threading.Thread(target=take)
        for one in (taking, *putting):
            one.start()
        for one in putting:
            one.join()
        done.set()
        taking.join()
    finally:
        sys.setswitchinterval(interval)
    for thread in range(4):
        assert [entry.event.id for entry in taken if entry.log == str(thread)] == [f"e{n}" for n in range(2_000)]
    assert (waiting.put_count, waiting._bytes) == (8_000, 0)
