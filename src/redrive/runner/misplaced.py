"""Open letters that wait in a lane which is not their key's: the key function has changed since.

They are looked for before a program is enrolled, without the write lock: with 300,000 letters it takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redrive.event import from_row
from redrive.runner.call import find_key
from redrive.runner.duty import Engine
from redrive.store.port import StoreTx, Subscribed
from redrive.subscription import Subscription

PAGE = 500  # letters read at a time, each with its event


def find_misplaced(engine: Engine, declared: Iterable[Subscription]) -> dict[str, str]:
    """What is wrong with the first letter of each subscription that waits in another lane than its key's."""
    with engine.store.reading() as tx:
        known = {row.name: row for row in tx.progress.all()}
        found = {one.name: _misplaced(engine, tx, one, known[one.name]) for one in declared if one.name in known}
    return {name: why for name, why in found.items() if why}


def _misplaced(engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed) -> str:
    """Open letters wait in lanes by key: a key function that answers differently now would mix them up."""
    if not subscription.order == row.ordering == "key":
        return ""
    query = "letters_misplaced" if subscription.key_by is None else "letters_with_events"
    above, log = 0, tx.logs.id_of(row.source)
    while page := tx.sql.all(query, (row.id, log, above, PAGE)):
        for letter, lane, *event in page:
            why = _compare(engine, subscription, row, letter, lane, event)
            if why:
                return why
        above = page[-1][2]
    return ""


def _compare(
    engine: Engine, subscription: Subscription, row: Subscribed, letter: int, lane: str, event: Sequence[Any]
) -> str:
    """The event is without its edit: that is for whoever runs it. A letter without a usable key stays in its lane."""
    key, problem = find_key(subscription.key_of, from_row(tuple(event), engine.types))
    if problem is not None or key == lane:
        return ""
    return (
        f"{row.name!r}: letter {letter} (position {event[0]}) waits in lane {lane!r}, but key_by now says {key!r}. "
        f"Restore the key function, or move all open letters: redrive rekey {row.name} --app MODULE:APP --reason …"
    )
