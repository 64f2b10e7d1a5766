"""Named places where a test may stop the world. In production `hit` is one comparison.

`REDRIVE_FAILPOINT` arms one in a child process (see `redrive.testing.failpoints`); every name
is listed here, and the crash suite kills a worker at each of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

NAMES = (
    "append.begun",  # inside the append transaction, nothing written
    "append.before_commit",
    "append.committed",
    "batch.read",  # a projection's batch is in memory, no transaction yet, but that in which it lands
    "batch.fenced",
    "batch.called",  # the functions ran, progress not yet written
    "batch.before_commit",
    "batch.committed",
    "letter.fenced",  # a projection's retry or replay
    "letter.before_commit",
    "letter.committed",
    "round.called",  # a handler returned, nothing settled
    "round.fenced",
    "round.effects",  # effects written, progress not yet
    "round.before_commit",
    "round.committed",
    "due.taken",  # scheduled events have left their table and are not appended yet
    "due.before_commit",
    "due.committed",
    "land.fenced",  # messages of a broker are in memory
    "land.before_commit",
    "land.committed",  # the broker does not know it yet
    "trim.before_commit",  # what an outbox has delivered is deleted
    "mirror.block",  # a part of what is to be mirrored lies in a file
    "mirror.written",  # the mirror has it, the store does not know it yet
    "mirror.before_commit",
    "lease.before_commit",
    "lease.committed",
    "release.before_commit",
    "alone.before_commit",  # in-flight row of crash counting
    "operator.before_commit",
    "operator.committed",
    "reset.before_commit",
    "reset.committed",
    "checkpoint.begun",
    "migrate.before_commit",  # the tables of a new format are there, the format is not yet
)

_armed: Callable[[str], None] | None = None


def hit(name: str) -> None:
    """Say that execution passed the named place."""
    if _armed is not None:
        _armed(name)


def armed() -> Callable[[str], None] | None:
    """What is installed, so that a test can put it back."""
    return _armed


def arm(hook: Callable[[str], None] | None) -> None:
    """Install what happens at a failpoint; None disarms."""
    global _armed
    _armed = hook


if os.environ.get("REDRIVE_FAILPOINT"):  # only ever set by tests
    from redrive.testing.failpoints import arm_from_environment

    arm_from_environment(arm)
