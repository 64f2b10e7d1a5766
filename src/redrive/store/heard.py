"""Whose emissions a rebuild leaves out: those of events that were applied before it.

Not of what was held in an open letter then; and not of what a wider filter asks for now: it was never called for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from redrive.store.filters import EVERYWHERE, Asked
from redrive.store.letters import WAS_OPEN
from redrive.store.port import StoreTx


class Heard:
    """Which events had their say before progress was taken back. Nothing is asked about those above `quiet_until`."""

    __slots__ = ("_asked", "_unheard")

    def __init__(self, unheard: frozenset[int] = frozenset(), asked: Asked | None = None) -> None:
        self._unheard, self._asked = unheard, asked

    def has(self, position: int, event_type: str) -> bool:
        """Were the emissions of this one made?"""
        return position not in self._unheard and (self._asked is None or self._asked.wants(position, event_type))


def heard_of(tx: StoreTx, subscription: int) -> Heard:
    """What is known of it."""
    upto, emitted = json.loads(tx.books.get(_letters_place(subscription)) or f"[{EVERYWHERE}, []]")
    values = {"subscription": subscription, "was_open": WAS_OPEN, "upto": upto}
    unheard, known = tx.sql.all("letters_unheard", values), set(emitted)
    return Heard(frozenset(position for letter, position in unheard if letter not in known), _kept(tx, subscription))


def keep_emitted(tx: StoreTx, subscription: int, emitted: Sequence[int]) -> None:
    """Before a rebuild: the discarded letters whose events emitted earlier, and the number of the newest letter.

    A letter with a higher number is made in the rebuild: it does not tell whether its event emitted before.
    """
    tx.books.set(_letters_place(subscription), json.dumps([tx.sql.value("letter_newest"), emitted]))


def keep_heard(tx: StoreTx, subscription: int) -> None:
    """Before progress and filters are taken back: what was asked for up to now, and in earlier rounds."""
    was, now = tx.progress.get(subscription), Asked(tx.progress.filters(subscription))
    earlier = _kept(tx, subscription) or Asked([(0, ())])  # a rebuild that left no word found no narrower filter
    begun = {0, was.position, was.quiet_until, *now.begins, *earlier.begins}
    spans = []
    for begin in sorted(one for one in begun if one < max(was.position, was.quiet_until)):
        at = begin + 1
        asked = [one.at(at) for one, upto in ((now, was.position), (earlier, was.quiet_until)) if at <= upto]
        spans.append((begin, sorted({kind for types in asked for kind in types}) if all(asked) else []))
    if any(types for _, types in spans):
        tx.books.set(_place(subscription), json.dumps(spans))
    else:
        tx.books.drop(_place(subscription))


def _kept(tx: StoreTx, subscription: int) -> Asked | None:
    text = tx.books.get(_place(subscription))
    return None if text is None else Asked(json.loads(text))


def _letters_place(subscription: int) -> str:
    return f"heard letters {subscription}"


def _place(subscription: int) -> str:
    return f"heard {subscription}"
