"""Fakes for unit tests of single functions, and the world an engine under test lives in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import structs

from redrive.clock import Env
from redrive.codec import encode_data
from redrive.context import Ctx, Emitter, LiveCtx, name_of
from redrive.draft import draft
from redrive.event import WITHDRAWN, Event, from_row
from redrive.testing.virtual import FakeClock
from redrive.types import EventTypes


class FakeEnv(Env):
    """Clock, dice and identity that a test decides about; `dead` are owners known to have died."""

    def __init__(
        self, clock: FakeClock | None = None, *, seed: int = 0, owner: str = "worker-1", boot: str = "boot-1"
    ) -> None:
        self.fake_clock, self.seed = clock or FakeClock(), seed
        super().__init__(self.fake_clock, random.Random(seed), owner, boot)
        self.dead: set[str] = set()

    def owner_is_dead(self, owner: str) -> bool:
        return owner in self.dead


def make_event(
    type: Any,
    data: Any = None,
    *,
    key: str | None = None,
    id: str | None = None,
    position: int = 1,
    version: int | None = None,
    headers: Mapping[str, str] | None = None,
    time: datetime | None = None,
    types: EventTypes | None = None,
) -> Event[Any]:
    """An event as a function receives it; the same checks as at append.

    >>> make_event("order.placed", {"cents": 4200}, key="order-1").data["cents"]
    4200
    """
    registry = types or EventTypes()
    made = draft(registry, FakeEnv(), type, data, key=key, id=id, headers=headers, time=time)
    if version is None and key is not None:
        version = 1
    row = (position, made.id, made.type, key, version, made.schema, made.time_us, made.headers_raw, made.data_raw)
    return from_row(row, registry)


@dataclass(frozen=True, slots=True)
class FakeOffice:
    """The subscription a FakeCtx pretends to belong to."""

    name: str
    epoch: int
    deps: Any
    emitter: Emitter
    stored: tuple[int, bytes]
    scheduled: frozenset[str] = frozenset()

    def load_state(self, key: str) -> tuple[int, bytes]:
        """The state the test gave, whatever the key."""
        return self.stored

    def is_scheduled(self, log: str, id: str) -> bool:
        """What the test says, whatever the log."""
        return id in self.scheduled


class FakeCtx(Ctx):
    """A handler's `ctx` that keeps what was asked of it.

    >>> ctx = FakeCtx(make_event("login.failed", {"user": "ada"}, key="ada"), state={"failures": 2})
    >>> ctx.state["failures"] += 1
    >>> id = ctx.emit(alerts, "account.locked", {"user": ctx.key})
    >>> ctx.emitted(alerts)
    [('account.locked', {'user': 'ada'})]
    """

    __slots__ = (*LiveCtx.__struct_fields__, "_types")

    def __init__(
        self,
        event: Event[Any] | None = None,
        *,
        key: str | None = None,
        state: Mapping[str, Any] | None = None,
        attempt: int = 1,
        deps: Any = None,
        epoch: int = 1,
        name: str = "function",
        scheduled: Iterable[str] = (),
    ) -> None:
        event = event or make_event("test.event", key=key)
        self._types = event.types
        stored = (1, encode_data(dict(state))) if state else (0, b"")
        office = FakeOffice(name, epoch, deps, Emitter(name, event.types, FakeEnv()), stored, frozenset(scheduled))
        live = LiveCtx(event, event.key if key is None else key, attempt, 0, office)
        for field, value in structs.asdict(live).items():
            setattr(self, field, value)

    def emitted(self, log: Any) -> list[tuple[str, Any]]:
        """(type, data) of what was emitted to a log or a broker, in order."""
        name = log if isinstance(log, str) else name_of(log, "emitted")
        found = [emission.event for emission in self._emissions or () if emission.log == name]
        found = [event for event in found if event.due is not WITHDRAWN]
        return [(event.type, self._types.decode(event.type, event.schema, event.data_raw)) for event in found]

    def cancelled(self, log: Any) -> list[str]:
        """Ids of the scheduled events of a log that are taken back, in order."""
        name = log if isinstance(log, str) else name_of(log, "cancelled")
        asked = [emission.event for emission in self._emissions or () if emission.log == name]
        return [event.id for event in asked if event.due is WITHDRAWN]

    @property
    def executed(self) -> list[tuple[str, Any]]:
        """(statement, parameters) of what was queued, in order."""
        return list(self._statements or ())
