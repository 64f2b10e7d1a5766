"""Retry rules: which failures are tried again, how often, and after what delay.

A rule is data; it never waits. `attempts` counts the first call, so `attempts=1` means no
retry. In a list of rules the first one that speaks about the failure decides, and a list in
which none does means: do not try again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta

from msgspec import Struct

from redrive.errors import UsageError, Verdict
from redrive.options import named_options
from redrive.policy.classify import is_permanent, leaves
from redrive.policy.patterns import Types, matches, type_patterns
from redrive.units import duration, show_duration

ATTEMPTS_MAX = 1_000  # each attempt leaves an entry in the letter's history, which is kept for good
WAIT_MAX_S = 366 * 86_400.0  # a letter due later than this is forgotten rather than waiting
RERUNS_MAX = 100  # re-runs hold the key; a conflict that outlasts this needs a real backoff

Errors = type[BaseException] | Iterable[type[BaseException]]
Duration = str | float | timedelta


class Retry(Struct, frozen=True):
    """One rule; made by `retry()`, which checks it."""

    attempts: int = 5
    wait: float = 1.0
    factor: float = 2.0
    wait_max: float = 300.0
    jitter: float = 0.1
    on: tuple[type[BaseException], ...] | None = None  # None: whatever is not permanent by itself
    never: tuple[type[BaseException], ...] = ()
    types: tuple[str, ...] = ("*",)

    def covers(self, event_type: str) -> bool:
        """Whether this rule is about events of this type."""
        return self.types == ("*",) or any(matches(pattern, event_type) for pattern in self.types)

    def forbids(self, error: BaseException) -> bool:
        """Whether this rule says that the error is never to be tried again."""
        return bool(self.never) and any(isinstance(one, self.never) for one in leaves(error))

    def allows(self, error: BaseException) -> bool:
        """Whether this rule is about the error: named in `on`, or transient where nothing is named."""
        if self.on is None:
            return not is_permanent(error)
        return any(isinstance(one, self.on) for one in leaves(error))

    def delay(self, attempt: int, dice: float) -> float:
        """Seconds to wait after attempt number `attempt` failed; `dice` in 0..1 spreads the herd."""
        if not self.wait:
            return 0.0
        try:
            grown = self.wait * self.factor ** (attempt - 1)
        except OverflowError:  # 2.0 ** 1024 has no float; wait_max was passed long before
            grown = self.wait_max
        spread = 1.0 + self.jitter * (2.0 * dice - 1.0)
        return max(0.0, min(min(grown, self.wait_max) * spread, self.wait_max))


class Conflicts(Struct, frozen=True):
    """Version conflicts are re-run in place, a few times and quickly, before they count as failures."""

    times: int = 3
    wait: float = 0.05
    wait_max: float = 1.0

    def delay(self, reruns: int) -> float:
        """Seconds to wait before the next re-run, after `reruns` of them: 50, 100, 200 ms."""
        doublings = min(reruns, 62)  # stays a finite float; wait_max hides the cap long before
        return min(self.wait * 2.0**doublings, self.wait_max)


@named_options("retry")
def retry(
    attempts: int = 5,
    wait: Duration = "1s",
    factor: float = 2.0,
    wait_max: Duration = "5m",
    jitter: float = 0.1,
    on: Errors | None = None,
    never: Errors | None = None,
    types: Types | None = None,
) -> Retry:
    """A retry rule.

    >>> retry(attempts=3, wait="2s", wait_max="1m", on=ConnectionError, types="payment.*").attempts
    3

    `on` names the errors this rule is about (default: all but the permanent ones), `never` those that
    go straight to the dead letters, even if `on` names them too; `types` the event types it is about.
    """
    first, longest = _waits("retry", wait, wait_max)
    return Retry(
        attempts=count_of("retry: attempts", attempts, least=1, most=ATTEMPTS_MAX),
        wait=first,
        factor=_number("retry: factor", factor, least=1.0, most=1_000.0),
        wait_max=longest,
        jitter=_number("retry: jitter", jitter, least=0.0, most=1.0),
        on=None if on is None else errors_of("retry: on", on),
        never=() if never is None else errors_of("retry: never", never),
        types=("*",) if types is None else type_patterns("retry: types", types),
    )


no_retry = Retry(attempts=1)


def tuned(rule: Retry, **numbers: float | str) -> Retry:
    """The same rule with other numbers, as settings may ask: what it is about stays what the code says.

    >>> tuned(retry(on=ConnectionError), attempts=9, wait="5s").attempts
    9
    """
    about = {"on": rule.on, "never": rule.never or None, "types": rule.types}
    plain = {"attempts": rule.attempts, "wait": rule.wait, "factor": rule.factor}
    return retry(**{**plain, "wait_max": rule.wait_max, "jitter": rule.jitter, **numbers, **about})  # type: ignore[arg-type]


@named_options("conflicts")
def conflicts(times: int = 3, wait: Duration = "50ms", wait_max: Duration = "1s") -> Conflicts:
    """How often a version conflict is re-run in place; `times=0` treats it like any other error.

    >>> conflicts(times=5).times
    5
    """
    first, longest = _waits("conflicts", wait, wait_max)
    return Conflicts(count_of("conflicts: times", times, least=0, most=RERUNS_MAX), first, longest)


def _waits(where: str, wait: Duration, wait_max: Duration) -> tuple[float, float]:
    first, longest = seconds_of(f"{where}: wait", wait), seconds_of(f"{where}: wait_max", wait_max)
    if first > longest:  # would be capped without a word
        raise UsageError(
            f"{where}: wait is {show_duration(first)} but wait_max only {show_duration(longest)}; raise wait_max"
        )
    return first, longest


def seconds_of(where: str, given: Duration) -> float:
    """A duration, or an error that says where it was given."""
    try:
        seconds = duration(given)
    except ValueError as why:
        raise UsageError(f"{where}: {why}") from why
    return _number(where, seconds, least=0.0, most=WAIT_MAX_S)


def count_of(where: str, given: object, least: int, most: int) -> int:
    """A whole number within bounds, or an error that says where it was given."""
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise UsageError(f"{where} must be a whole number from {least} to {most}, not {given!r}")
    return given


def _number(where: str, given: object, least: float, most: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise UsageError(f"{where} must be a number from {least:g} to {most:g}, not {given!r}")
    assert math.isfinite(given)
    return float(given)


def errors_of(where: str, given: object) -> tuple[type[BaseException], ...]:
    """Exception classes, or an error that says where they were given."""
    classes = tuple(given) if isinstance(given, Iterable) and not isinstance(given, type) else (given,)
    if not classes:
        raise UsageError(f"{where} is empty, so the rule would never apply; leave it out or name an exception")
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise UsageError(f"{where} takes exception classes, not {one!r}")
        if issubclass(one, Verdict):  # a verdict beats every rule, so naming one here would do nothing
            raise UsageError(f"{where} names {one.__name__}, a verdict: it decides by itself, no rule can change it")
    return classes
