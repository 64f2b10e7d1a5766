"""Above twenty lines a second of one kind, the log says how many there were, and shows some."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from redrive.observe import signals as sig
from redrive.observe import summaries
from redrive.observe.logs import JsonFormatter, LogListener, log_signals
from redrive.observe.summaries import EXAMPLES_MAX, KINDS_MAX, LINES_MAX


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listener(clock: Clock, caplog: pytest.LogCaptureFixture) -> Iterator[LogListener]:
    with caplog.at_level(logging.INFO, "redrive"):
        yield LogListener(monotonic=clock)


def recovered(number: int, subscription: str = "charge") -> sig.Recovered:
    return sig.Recovered(subscription, f"id-{number}", number, 2, True)


def buried(number: int, fingerprint: str = "f" * 12) -> sig.Buried:
    return sig.Buried(
        "charge", f"id-{number}", "order.placed", number, number, 1, "OSError", "no", fingerprint, "expired"
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.redrive for record in caplog.records]  # type: ignore[attr-defined]


def total(caplog: pytest.LogCaptureFixture) -> int:
    return sum(line.get("count", 1) for line in lines(caplog))


def test_one_repair_of_43003_letters_is_a_line_a_second(
    listener: LogListener, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It was 43,003 lines."""
    for number in range(43_003):
        listener([recovered(number)])
        clock.now += 0.001
    listener.close()
    assert len(caplog.records) == LINES_MAX + 44  # of 43 seconds, and what was left
    assert total(caplog) == 43_003


def test_first_lines_of_a_kind_are_written_at_once(listener: LogListener, caplog: pytest.LogCaptureFixture) -> None:
    listener([recovered(number) for number in range(LINES_MAX)])
    assert [line["event_id"] for line in lines(caplog)] == [f"id-{number}" for number in range(LINES_MAX)]
    listener.close()
    assert len(caplog.records) == LINES_MAX


def test_summary_has_count_time_and_examples(
    listener: LogListener, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    listener([recovered(number) for number in range(LINES_MAX + 7)])
    clock.now += 1.5
    listener([sig.Resumed("other")])
    summary = lines(caplog)[LINES_MAX]
    first = {"event_id": "id-20", "letter": 20, "attempt": 2, "replayed": True}
    assert (summary["signal"], summary["subscription"], summary["count"]) == ("recovered", "charge", 7)
    assert (summary["seconds"], len(summary["examples"]), summary["examples"][0]) == (1.5, EXAMPLES_MAX, first)
    record = caplog.records[LINES_MAX]
    assert record.message.startswith(
        'recovered subscription=charge count=7 seconds=1.5 examples="event_id=id-20 letter=20'
    )
    assert json.loads(JsonFormatter().format(record))["examples"][0] == first
    assert lines(caplog)[-1]["signal"] == "resumed"  # in the order in which it happened


def test_lines_come_back_when_there_are_few(
    listener: LogListener, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    listener([recovered(number) for number in range(LINES_MAX + 1)])
    for _ in range(2):
        clock.now += 1.0
        listener([recovered(900)])
    caplog.clear()
    clock.now += 1.0
    listener([recovered(901)])
    assert [line.get("event_id") for line in lines(caplog)] == ["id-901"]


def test_each_subscription_has_lines_of_its_own(listener: LogListener, caplog: pytest.LogCaptureFixture) -> None:
    listener([recovered(number) for number in range(500)])
    listener([recovered(1, "mail"), sig.Operated("replay", "charge", "letter 1", "ada")])
    assert [line["signal"] for line in lines(caplog)[LINES_MAX:]] == ["recovered", "operated"]


def test_each_warning_that_needs_an_operator_is_a_line(listener: LogListener, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3 * LINES_MAX):
        listener([sig.Halted("charge", f"reason {number}", 1.0), sig.LeaseLost("charge", number)])
    assert len(caplog.records) == 6 * LINES_MAX


def test_dead_letters_of_a_new_cause_are_shown_among_many(
    listener: LogListener, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(500):
        listener([buried(number)])
    listener([buried(501, "0" * 12)])
    listener.close()
    assert [line["fingerprint"] for line in lines(caplog)[LINES_MAX : LINES_MAX + 1]] == ["0" * 12]
    assert caplog.records[-1].levelno == logging.ERROR
    assert total(caplog) == 501


def test_memory_for_kinds_is_bounded(listener: LogListener, caplog: pytest.LogCaptureFixture) -> None:
    count = KINDS_MAX + 5 * LINES_MAX
    for number in range(count):
        listener([buried(number, f"{number:012x}")])
    assert len(listener._summaries._kinds) <= KINDS_MAX + 1
    listener.close()
    assert total(caplog) == count


def test_what_is_left_is_written_though_nothing_follows(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "PERIOD_SECONDS", 0.01)
    written = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "examples" in record.redrive:  # type: ignore[attr-defined]
                written.set()

    logging.getLogger("redrive").addHandler(handler := Handler())
    signals = sig.Signals()
    try:
        log_signals(signals)
        with caplog.at_level(logging.INFO, "redrive"):
            signals.tell([recovered(number) for number in range(500)])
            assert written.wait(30)
    finally:
        logging.getLogger("redrive").removeHandler(handler)
        signals.close()


@pytest.mark.parametrize("inline", [False, True])
def test_what_is_left_is_written_at_the_end(caplog: pytest.LogCaptureFixture, inline: bool) -> None:
    signals = sig.Signals(inline=inline)
    log_signals(signals)
    with caplog.at_level(logging.INFO, "redrive"):
        signals.tell([recovered(number) for number in range(500)])
        signals.close()
        signals.flush(30)
        signals.close()  # starts no thread
    assert total(caplog) == 500
    assert len(caplog.records) == LINES_MAX + 1
