"""What can wait is heard together: some moments later, or at once when somebody asks or all ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from redrive.observe import hearing
from redrive.observe import signals as sig
from redrive.observe.hearing import QUEUE_MAX


class Counting(sig.Patient):
    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.changed = threading.Condition()

    def __call__(self, signals: Sequence[Any]) -> None:
        with self.changed:
            self.calls.append([signal.position for signal in signals])
            self.changed.notify_all()

    @property
    def heard(self) -> list[int]:
        return [position for call in self.calls for position in call]

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.heard) >= count, timeout=30), self.calls


def appended(number: int) -> list[sig.Signal]:
    return [sig.Appended("orders", 1, number)]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard for the passing of time alone."""
    monkeypatch.setattr(hearing, "LATE_SECONDS", 3_600.0)


def test_many_batches_are_one_call(late: None) -> None:
    signals, counting = sig.Signals(), Counting()
    signals.listen(counting)
    for number in range(100):
        signals.tell(appended(number))
    assert counting.calls == []
    signals.flush(30)
    assert counting.calls == [[*range(100)]]
    signals.tell(appended(100))
    signals.close()
    signals.flush(30)
    assert counting.heard == [*range(101)]


def test_nobody_has_to_ask() -> None:
    signals, counting = sig.Signals(), Counting()
    signals.listen(counting)
    for number in range(3):
        signals.tell(appended(number))
        counting.wait_for(number + 1)
    assert counting.heard == [0, 1, 2]


def test_who_has_no_time_does_not_wait_for_who_has(late: None) -> None:
    signals, counting, prompt = sig.Signals(), Counting(), threading.Event()
    signals.listen(counting)
    signals.listen(lambda batch: prompt.set())
    signals.tell(appended(1))
    assert prompt.wait(30)
    assert counting.calls == []


def test_what_finds_no_room_is_counted_as_dropped_and_the_rest_is_heard(late: None) -> None:
    signals, counting = sig.Signals(), Counting()
    signals.listen(counting)
    for number in range(QUEUE_MAX + 5):
        signals.tell(appended(number))
    assert signals.dropped == 5
    signals.flush(30)
    assert counting.heard == [*range(QUEUE_MAX)]


def test_told_by_many_threads_each_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "LATE_SECONDS", 0.0)
    signals, counting = sig.Signals(), Counting()
    signals.listen(counting)

    def tell(first: int) -> None:
        for number in range(first, first + 500):
            signals.tell(appended(number))

    threads = [threading.Thread(target=tell, args=(500 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counting.wait_for(2_000)
    assert sorted(counting.heard) == [*range(2_000)]


def test_a_patient_listener_that_raises_harms_nobody(late: None, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(sig.Patient):
        def __call__(self, signals: Sequence[Any]) -> None:
            raise ValueError("no")

    signals, counting = sig.Signals(), Counting()
    signals.listen(Failing())
    signals.listen(counting)
    signals.tell(appended(1))
    signals.flush(30)
    assert counting.heard == [1]
    assert "a listener or on_error hook raised" in caplog.text


def test_who_has_time_is_heard_although_there_is_always_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that is slower than what is told keeps the queue full; that is no reason to count nothing."""
    monkeypatch.setattr(hearing, "LATE_SECONDS", 0.0)
    signals, counting, enough = sig.Signals(), Counting(), threading.Event()
    signals.listen(counting)
    signals.listen(lambda batch: enough.wait(0.002))
    number = 0
    while not counting.calls and number < QUEUE_MAX // 2:
        signals.tell(appended(number))
        number += 1
    counting.wait_for(1)
    enough.set()


def test_what_was_put_off_while_there_was_no_room_is_heard_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "LATE_SECONDS", 0.0)
    signals, counting, blocked, go_on = sig.Signals(), Counting(), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(30)

    signals.call(block)
    assert blocked.wait(30)
    for _ in range(QUEUE_MAX):
        signals.call(lambda: None)
    signals.listen(counting)
    signals.tell(appended(1))
    go_on.set()
    counting.wait_for(1)
    assert (counting.heard, signals.dropped) == ([1], 0)


def test_who_is_held_up_between_two_words_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has heard all of it before the teller has said that there is something: what comes next is news."""
    monkeypatch.setattr(hearing, "LATE_SECONDS", 0.0)
    signals, counting = sig.Signals(), Counting()
    signals.listen(counting)
    put = hearing.Hearing._put

    def slow(self: Any, run: Any) -> bool:
        found = put(self, run)
        counting.wait_for(1)
        return found

    signals.flush(30)
    monkeypatch.setattr(hearing.Hearing, "_put", slow)
    signals.tell(appended(1))
    monkeypatch.setattr(hearing.Hearing, "_put", put)
    signals.tell(appended(2))
    counting.wait_for(2)
    assert counting.heard == [1, 2]
