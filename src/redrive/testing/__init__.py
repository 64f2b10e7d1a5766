"""For tests, yours and ours: a harness with its own clock, fakes, crash checks, failpoints, a fault proxy, contracts.

Imported when asked for: a worker armed with a failpoint must not load the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.testing.exactly_once import check_exactly_once
    from redrive.testing.failpoints import failpoint
    from redrive.testing.fakes import FakeCtx, FakeEnv, make_event
    from redrive.testing.harness import Harness
    from redrive.testing.proxy import FaultProxy
    from redrive.testing.virtual import FakeClock

_HOMES = {
    "FakeClock": "virtual",
    "FakeCtx": "fakes",
    "FakeEnv": "fakes",
    "FaultProxy": "proxy",
    "Harness": "harness",
    "check_exactly_once": "exactly_once",
    "failpoint": "failpoints",
    "make_event": "fakes",
}

__all__ = ["FakeClock", "FakeCtx", "FakeEnv", "FaultProxy", "Harness", "check_exactly_once", "failpoint", "make_event"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__]
