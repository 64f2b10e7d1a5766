"""Failpoints: make a named place of the engine raise, end or kill the process, once, at a chosen hit.

`REDRIVE_FAILPOINT=batch.before_commit:3:kill` arms one in a child process; `failpoint(…)` arms one in this
process for the length of a `with` block. The names are in `redrive.failpoints.NAMES`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from redrive import failpoints
from redrive.errors import UsageError

VARIABLE = "REDRIVE_FAILPOINT"
EXIT_CODE = 86  # of ":exit"; nothing else in the suite ends with it

Arm = Callable[[Callable[[str], None] | None], None]
Action = str | BaseException | type[BaseException] | Callable[[], object]


class FailpointHit(Exception):
    """What `:raise` raises."""


@dataclass(slots=True)
class Failpoint:
    """One armed place: counts its hits and acts at hit number `at`, once."""

    name: str
    act: Callable[[], object]
    at: int = 1
    hits: int = field(default=0, init=False)

    @property
    def fired(self) -> bool:
        """Has it acted?"""
        return self.hits >= self.at

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.hits += 1
            if self.hits == self.at:
                self.act()


def parse(text: str) -> Failpoint:
    """A failpoint from `name[:at[:action]]`; the action is kill (the default), exit or raise.

    >>> parse("batch.before_commit:3:exit").at
    3
    """
    name, _, rest = text.partition(":")
    count, _, action = rest.partition(":")
    if count and not (count.isdecimal() and int(count) > 0):
        raise UsageError(f"{VARIABLE}={text}: the hit to act at is a number from 1 up, not {count!r}")
    return _make(name, action or "kill", int(count or 1))


def arm_from_environment(arm: Arm, environ: Mapping[str, str] = os.environ) -> None:
    """Arm what the variable says; a wrong one is an error at import, not a test that proves nothing."""
    if text := environ.get(VARIABLE):
        arm(parse(text))


@contextmanager
def failpoint(name: str, action: Action = "raise", at: int = 1) -> Iterator[Failpoint]:
    """Inside the block, the hit number `at` of a failpoint acts: an exception is raised, a function called.

    >>> with failpoint("append.committed", lambda: None) as place:
    ...     _ = orders.append("order.placed", {"cents": 1})
    >>> place.fired
    True
    """
    former = failpoints.armed()
    place = _make(name, action, at)
    failpoints.arm(place)
    try:
        yield place
    finally:
        failpoints.arm(former)


def _make(name: str, action: Action, at: int) -> Failpoint:
    if name not in failpoints.NAMES:
        raise UsageError(f"there is no failpoint {name!r}; known are {', '.join(failpoints.NAMES)}")
    return Failpoint(name, _act(name, action), at)


def _act(name: str, action: Action) -> Callable[[], object]:
    if isinstance(action, str):
        if action not in _ACTIONS:
            raise UsageError(f"failpoint {name}: the action is {', '.join(_ACTIONS)}, not {action!r}")
        return _ACTIONS[action]
    if isinstance(action, BaseException) or (isinstance(action, type) and issubclass(action, BaseException)):
        raised = action

        def act() -> None:
            raise raised

        return act
    return action


def _raise() -> None:
    raise FailpointHit("a failpoint raised this")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(EXIT_CODE)


_ACTIONS: dict[str, Callable[[], object]] = {"kill": _kill, "exit": _exit, "raise": _raise}
