"""Looking at keyed state: what a handler keeps for one key, and which event wrote it last. Nothing here writes."""

from __future__ import annotations

from typing import NamedTuple

from redrive.errors import RedriveError
from redrive.replay.deed import find
from redrive.store.port import Store
from redrive.store.states import mark_of

NEAR_MAX = 3


class KeyState(NamedTuple):
    """The state of one key; its version is the position of the event that wrote it."""

    subscription: str
    key: str
    version: int
    data: bytes
    event_id: str | None  # None if the log no longer holds that event
    event_type: str | None
    event_time: float | None


def state_of(store: Store, subscription: str, key: str) -> KeyState:
    """What a subscription remembers for a key; an error that names keys nearby if it is nothing."""
    with store.reading() as tx:
        row = find(tx, subscription)
        version, data = tx.keyed.get(row.id, key)
        if not version and mark_of(tx, row.id) is not None:
            raise RedriveError(f"{subscription!r} keeps its state outside the store, where only its worker can look")
        if not version:
            values = {"subscription": row.id, "start": key[:1], "limit": NEAR_MAX}
            near = [name for (name,) in tx.sql.all("state_near", values)]
            hint = f"it has some for {', '.join(map(repr, near))}" if near else "it has none for keys like it"
            raise RedriveError(f"{subscription!r} keeps no state for key {key!r}; {hint}")
        event = tx.sql.one("event_by_position", (version, tx.logs.id_of(row.source)))
    if event is None:
        return KeyState(subscription, key, version, bytes(data), None, None, None)
    return KeyState(subscription, key, version, bytes(data), event[1], event[2], event[6] / 1e6)
