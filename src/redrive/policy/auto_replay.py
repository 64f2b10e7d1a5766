"""What a program says about automatic replay, checked. Most programs say nothing: what acts on it is in healing.py."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from redrive.errors import UsageError
from redrive.options import named_options
from redrive.policy.cron import check_cron
from redrive.policy.limiter import bucket
from redrive.policy.retry import Duration, count_of, seconds_of

TIMES_MAX = 100
BATCH_MAX = 1_000  # letters of one operation: what is left of it is read before each step


class AutoReplay(Struct, frozen=True):
    """What a program says about automatic replay; made by `auto_replay()`, which checks it."""

    cron: str | None = None
    on_recovery: bool | None = None  # None: if there is a breaker that can close again
    times: int = 3
    max_age: float | None = 7 * 86_400.0
    batch: int = 100
    rate: float = 10.0


@named_options("auto_replay")
def auto_replay(
    cron: str | None = None,
    *,
    on_recovery: bool | None = None,
    times: int = 3,
    max_age: Duration | None = "7d",
    batch: int = 100,
    rate: str = "10/s",
) -> AutoReplay:
    """Replay dead letters whose failure may pass: at the times of a cron line, and when their dependency is well again.

    >>> auto_replay("*/10 * * * *", times=5).times
    5

    Times are UTC. Without `on_recovery=` it waits for recoveries wherever there is a breaker.
    """
    if cron is not None:
        check_cron(cron, "auto_replay: cron=")
    if on_recovery is not None and not isinstance(on_recovery, bool):
        raise UsageError(f"auto_replay: on_recovery is True or False, not {on_recovery!r}")
    return AutoReplay(
        cron,
        on_recovery,
        count_of("auto_replay: times", times, least=1, most=TIMES_MAX),
        None if max_age is None else seconds_of("auto_replay: max_age", max_age),
        count_of("auto_replay: batch", batch, least=1, most=BATCH_MAX),
        bucket(rate).rate,
    )


def settled_for(where: str, rule: AutoReplay | None, *, has_breaker: bool) -> AutoReplay | None:
    """The rule with `on_recovery` decided; an error if nothing could ever start it."""
    if rule is None:
        return None
    if not isinstance(rule, AutoReplay):
        raise UsageError(f"{where}: replay= takes auto_replay(…)")
    if rule.on_recovery and not has_breaker:
        raise UsageError(
            f"{where}: auto_replay(on_recovery=True) waits for a breaker to close: give it breaker=, one for all keys"
        )
    on_recovery = has_breaker if rule.on_recovery is None else rule.on_recovery
    if rule.cron is None and not on_recovery:
        raise UsageError(f'{where}: auto_replay would never start: give it a cron line, such as cron="*/10 * * * *"')
    return replace(rule, on_recovery=on_recovery)


def tuned_replay(where: str, rule: AutoReplay | None, said: dict[str, Any], *, has_breaker: bool) -> AutoReplay | None:
    """The rule as settings have it: `enabled` switches it off, anything else on, and beats what the code says."""
    given = {name: value for name, value in said.items() if name != "enabled"}
    if not said or said.get("enabled") is False:
        return None if said else rule
    if given.get("cron") is not None:
        check_cron(given["cron"], f"{where}: cron=")
    return settled_for(where, replace(rule or AutoReplay(), **given), has_breaker=has_breaker)
