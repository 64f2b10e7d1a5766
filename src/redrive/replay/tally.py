"""How many letters are meant: from the counters where they know it, else by looking at the first of them."""

from __future__ import annotations

from collections import Counter

from redrive.policy.letters import shown_state
from redrive.replay.select import Selection, select, subscription_of
from redrive.replay.shelf import Count, Stats, counted
from redrive.store.port import LetterRow, Store

LOOKED_AT = 1_500  # letters: 15 ms


def tally(store: Store, selection: Selection, limit: int = LOOKED_AT) -> Stats:
    """Totals of what is meant.

    The counters know letters in every state. By key, error and time only dead letters are found, and no more than
    `limit` of them are looked at: `exact` says whether there were more.
    """
    if not selection.is_of_counters:
        letters, exact = first_of(store, selection, limit)
        shared = Counter(
            (one.subscription, shown_state(one.state, one.reason), one.reason, one.type, one.fingerprint)
            for one in letters
        )
        return Stats(tuple(Count(*what, n) for what, n in shared.items()), exact)
    with store.reading() as tx:
        subscription_of(tx, selection)
        counts = [counted(row) for row in tx.sql.all("letter_counts")]
    return Stats(
        tuple(
            one
            for one in counts
            if selection.subscription in (None, one.subscription)
            and selection.covers(one.fingerprint, one.reason, one.type)
        )
    )


def first_of(store: Store, selection: Selection, limit: int) -> tuple[list[LetterRow], bool]:
    """The first letters that are meant, and whether these are all; those that are named by their IDs always are."""
    found = select(store, selection, limit=limit + 1)
    if selection.ids:
        return found, True
    return found[:limit], len(found) <= limit
