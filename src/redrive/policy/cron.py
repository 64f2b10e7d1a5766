"""Cron lines: five fields, in UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from redrive.errors import UsageError


def next_time(cron: str, after: float) -> float:
    """The first time of the line after this one, in seconds since 1970.

    >>> next_time("*/10 * * * *", 60.0)
    600.0
    """
    from cronsim import CronSim  # the few who use it pay for it

    return next(CronSim(cron, datetime.fromtimestamp(math.floor(after), UTC))).timestamp()


def check_cron(cron: object, where: str) -> None:
    """Refuse what is no such line, or is never due."""
    from cronsim import CronSim, CronSimError

    try:
        if not isinstance(cron, str):
            raise CronSimError("not a text")
        next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        raise UsageError(
            f'{where}{cron!r} is no line of five fields that is ever due, such as "*/10 * * * *"'
        ) from None
