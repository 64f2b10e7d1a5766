"""Blocked lanes: which keys wait, for which letter, since when, and how much waits behind it. Nothing here writes."""

from __future__ import annotations

from typing import NamedTuple

from redrive.errors import UsageError
from redrive.replay.deed import find
from redrive.replay.holds import hold_on, told
from redrive.store.port import LetterRow, Store, StoreTx, Subscribed

EVERY_SIZE = 2**62


class Lane(NamedTuple):
    """A key of a subscription that is held back."""

    subscription: str
    lane: str
    head: LetterRow
    waiting: int  # open letters behind the head
    held: str | None = None  # by whom, since when, until when and why, if an operator holds its key

    def age(self, now: float) -> float:
        """Seconds since the head is held."""
        return max(0.0, now - self.head.parked_at)


def lanes(
    store: Store,
    subscription: str | None = None,
    after: int | None = None,
    limit: int = 50,
    *,
    key: str | None = None,
    now: float | None = None,
) -> list[Lane]:
    """Lanes with most behind their head first, then the oldest; the next page begins after a head's number.

    `key`: only the lane of this key, in each subscription.
    `now`: the time at which to look for holds of their keys; None: do not look.
    """
    with store.reading() as tx:
        rows = tx.progress.all() if subscription is None else [find(tx, subscription)]
        size, position, last = _cursor(tx, after)
        found = []
        for row in rows:
            # One event may hold a lane back in several subscriptions: those are sorted by their number.
            above = position if row.id <= last else position - 1
            if key is None:
                values = {"subscription": row.id, "size": size, "position": above, "limit": limit}
                lanes_here = tx.sql.all("lanes_worst", values)
            else:
                lanes_here = tx.sql.all("lane_of", {"subscription": row.id, "lane": key})
            found += [(-count, low, row.id, row, lane) for lane, low, count in lanes_here]
        found.sort(key=lambda one: one[:3])
        return [_lane(tx, row, lane, -negative, now) for negative, _, _, row, lane in found[:limit]]


def _cursor(tx: StoreTx, after: int | None) -> tuple[int, int, int]:
    """(open letters, position, subscription) of the lane after which a page begins."""
    if after is None:
        return EVERY_SIZE, 0, 0
    letter = tx.letters.get(after)
    if letter is None or letter.lane is None or letter.state not in ("retrying", "dead"):
        raise UsageError(f"letter {after} holds no lane back any more; begin again without --after")
    return 1 + tx.letters.waiting(letter), letter.position, letter.subscription_id


def _lane(tx: StoreTx, row: Subscribed, lane: str, count: int, now: float | None) -> Lane:
    head = tx.letters.head(row.id, lane)
    assert head is not None, "a lane with open letters has a head"
    letter = tx.letters.get(head.letter)
    assert letter is not None
    hold = None if now is None else hold_on(tx, row.id, letter.key, now)
    return Lane(row.name, lane, letter, count - 1, None if hold is None or now is None else told(hold, now))
