"""Signals as log lines on the stdlib logger `redrive`: one line per fact, JSON or text, never a payload.

Events that failed alike and are told of together are one fact: their line names the first and says how many.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from math import isinf
from typing import Any

from msgspec.structs import asdict

from redrive.masking import mask_text
from redrive.observe import signals as sig
from redrive.observe.signals import Choosy, Closing, Later, Signal, Signals
from redrive.observe.summaries import Summaries

logger = logging.getLogger("redrive")

_LEVELS: dict[type[Signal], int] = {
    sig.Appended: logging.DEBUG,
    sig.Scheduled: logging.DEBUG,
    sig.CameDue: logging.DEBUG,
    sig.Settled: logging.DEBUG,
    sig.Retried: logging.WARNING,
    sig.Buried: logging.ERROR,
    sig.Discarded: logging.WARNING,
    sig.Halted: logging.ERROR,
    sig.StandingBy: logging.WARNING,
    sig.HandlerStuck: logging.ERROR,
    sig.LeaseLost: logging.WARNING,
    sig.LaneFull: logging.ERROR,
    sig.BreakerOpened: logging.ERROR,
    sig.RuleBroken: logging.ERROR,
    # The tracker writes lines of its own, also where nothing else of redrive runs.
    sig.Spooled: logging.DEBUG,
    sig.SpoolTaken: logging.DEBUG,
    sig.SpoolDamaged: logging.DEBUG,
    sig.TrackDropped: logging.DEBUG,
    sig.TrackRefused: logging.DEBUG,
    sig.TrackLimited: logging.DEBUG,
}


def name_of(signal: type[Signal]) -> str:
    """`LeaseTaken` is `lease.taken` in logs."""
    name = signal.__name__
    return "".join(f".{c.lower()}" if c.isupper() else c for c in name).lstrip(".")


_NAMES: dict[type[Signal], str] = {kind: name_of(kind) for kind in sig.ALL}


class LogListener(Choosy, Closing):
    """Writes signals to the logger, and of too many of one kind a summary each second."""

    def __init__(self, later: Later | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`later` calls a function after some seconds, in the thread that calls this one; None: nothing does."""
        self._later, self._monotonic = later, monotonic
        self._summaries = Summaries()
        self._is_awaited = False  # the function that ends the second is going to be called

    def wants(self, signals: Sequence[Signal]) -> bool:
        """Would any of them be a line?"""
        return any(logger.isEnabledFor(_LEVELS.get(type(signal), logging.INFO)) for signal in signals)

    def __call__(self, signals: Sequence[Signal]) -> None:
        now = self._monotonic()
        if self._summaries.has_ended(now):
            self.close()
        for signal, count in _together(signals):
            kind = type(signal)
            level = _LEVELS.get(kind, logging.INFO)
            if logger.isEnabledFor(level):
                name, counted = _NAMES[kind], _kind(signal, level)
                if counted is not None and not self._summaries.is_line(
                    counted, name, level, partial(asdict, signal), count, now
                ):
                    continue
                fields = asdict(signal)
                if count > 1:
                    fields["count"] = count
                _write(name, level, fields)
        if not self._is_awaited and self._later is not None and (rest := self._summaries.rest(now)) is not None:
            self._is_awaited = self._later(rest, self._end)

    def close(self) -> None:
        """Write the summaries of the signals that have no line yet."""
        for name, level, fields in self._summaries.end(self._monotonic()):
            _write(name, level, fields)

    def _end(self) -> None:
        self._is_awaited = False
        self.close()


def _kind(signal: Signal, level: int) -> Hashable | None:
    """The kind that a signal is counted under. None: each signal is a line, however many there are."""
    if isinstance(signal, sig.Failing):
        return _reason(signal)
    return None if level >= logging.WARNING else (type(signal), getattr(signal, "subscription", None))


def _write(name: str, level: int, fields: dict[str, Any]) -> None:
    text = mask_text(" ".join([name, *[f"{field}={_value(value)}" for field, value in fields.items()]]))
    # Not logger.log: it would walk the stack for every line to find out that it comes from here.
    extra = {"redrive": {"signal": name, **fields}}
    logger.handle(logger.makeRecord(logger.name, level, __file__, 0, text, (), None, extra=extra))


def _value(value: Any) -> str:
    if isinstance(value, list):  # examples of a summary
        return _short("; ".join(" ".join(f"{name}={part}" for name, part in one.items()) for one in value))
    return _short(value)


def _together(signals: Sequence[Signal]) -> Iterable[tuple[Signal, int]]:
    """The signals, and how often: an outage makes thousands of events fail for one reason, which is one line."""
    alike: dict[object, tuple[Signal, int]] = {}
    for signal in signals:
        same = _reason(signal)
        first, count = alike.get(same, (signal, 0))
        alike[same] = (first, count + 1)
    return alike.values()


def _reason(signal: Signal) -> object:
    """What the signal has in common with those that share its line."""
    if not isinstance(signal, sig.Failing):
        return id(signal)
    why = signal.reason if isinstance(signal, sig.Buried) else None
    return type(signal), signal.subscription, signal.type, signal.attempt, signal.fingerprint, why


@lru_cache(256, typed=True)  # most of what a line says was said in the line before
def _short(value: object) -> str:
    text = str(value)
    return _quoted(text) if " " in text or not text.isprintable() else text


_quoted = json.JSONEncoder().encode  # json.dumps takes five times as long to find out that it has nothing to do


class TextFormatter(logging.Formatter):
    """Lines for people; a traceback of the program's may quote an address with its password."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, and its traceback below it."""
        return mask_text(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; control characters are escaped by JSON itself."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "redrive", None)
        line |= _finite(fields) if isinstance(fields, dict) else {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return mask_text(json.dumps(line, default=str))


def _finite(fields: dict[str, object]) -> dict[str, object]:
    """JSON has no infinity: what lasts until somebody acts has null for its seconds."""
    return {name: None if isinstance(value, float) and isinf(value) else value for name, value in fields.items()}


def log_signals(signals: Signals) -> None:
    """Write signals to the logger; where its lines go is the program's business."""
    if not any(isinstance(listener, LogListener) for listener in signals._listeners):
        signals.listen(LogListener(signals.later))


def log_to_stderr(log_format: str) -> None:
    """What `app.run()` sets up, unless the program configured logging for `redrive` itself."""
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
