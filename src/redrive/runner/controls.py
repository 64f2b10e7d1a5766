"""Controls: what an operator can only ask for, because the owner alone knows that a lane is idle.

Each is performed, or refused, in the transaction that consumes it, with an audit row in the asker's name.
The caches change after the commit, like after any other transaction of the owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redrive.errors import Fenced
from redrive.event import from_row
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.runner.call import find_key
from redrive.runner.duty import Duty
from redrive.runner.open_letters import catch_up, is_asked
from redrive.store.filters import Asked
from redrive.store.port import LetterRow, StoreTx

SCAN_MAX = 1000  # events per page when nothing but the key function knows the lanes

Busy = Callable[[str | None, int], bool]


class Control(NamedTuple):
    """What somebody asks of the owner."""

    id: int
    verb: str
    letter: int
    rev: int
    who: str
    reason: str


def perform(duty: Duty, busy: Busy) -> None:
    """Answer what was asked, except where the lane is busy: that waits. Runs where writing happens."""
    with duty.engine.store.reading() as tx:
        asked = [(control, _letter(tx, duty, control)) for control in map(Control._make, tx.books.asked(duty.id))]
    mine = [(control, letter) for control, letter in asked if is_asked(duty, letter)]
    ready = [control for control, letter in mine if letter is None or _is_idle(duty, letter, busy)]
    for control in ready:
        _answer(duty, control)
    if not ready:
        return
    with duty.engine.store.reading() as tx:
        row = tx.progress.member(duty.member)
        if row.epoch != duty.epoch:
            raise Fenced(f"{duty.subscription.name}: epoch {duty.epoch} is over, {row.epoch} rules")
        catch_up(duty, tx, row.parked_version)


def _letter(tx: StoreTx, duty: Duty, control: Control) -> LetterRow | None:
    """The letter, in the lane where its event would be now: what was closed stayed where it was at every rekey."""
    letter = tx.letters.get(control.letter)
    row = None if letter is None else tx.sql.one("event_by_position", (letter.position, duty.log_id))
    if letter is None or row is None:
        return letter
    work = duty.work(from_row(row, duty.engine.types))
    return letter if work.lane == letter.lane else letter._replace(lane=work.lane, key=work.key)


def _is_idle(duty: Duty, letter: LetterRow, busy: Busy) -> bool:
    """Nothing of the lane runs, and nothing before the letter is still to come, as it is early in a rebuild."""
    return letter.position <= duty.window.position and not busy(letter.lane, letter.id)


def _answer(duty: Duty, control: Control) -> None:
    engine, name, target = duty.engine, duty.subscription.name, f"letter {control.letter}"
    with engine.store.transaction() as tx:
        tx.progress.lock(duty.id)  # it is an operator's change, and listed like any other; before the fence, as theirs
        tx.progress.fence(duty.member, duty.epoch, duty.window.position)
        now, letter = engine.env.clock.now(), _letter(tx, duty, control)
        why = "there is no such letter" if letter is None else _reopen(tx, duty, control, letter, now)
        tx.books.answered(control.id)
        action = "reopen refused" if why else "reopened"
        tx.books.audit(now, control.who, action, name, target, why or control.reason, {"control": control.id})
        hit("operator.before_commit")
    hit("operator.committed")
    engine.signals.tell([sig.Operated(action, name, target, control.who)])


def _reopen(tx: StoreTx, duty: Duty, control: Control, letter: LetterRow, now: float) -> str:
    """Why a discard cannot be taken back; empty if it was."""
    later = _settled_later(tx, duty, letter)
    if later is not None:
        return f"a later event of its lane is settled already (position {later})"
    values = {"id": letter.id, "rev": control.rev, "now": now}
    changed = tx.sql.run("letter_reopen", values)
    stored = tx.letters.get(letter.id)
    if changed and stored is not None and stored.lane != letter.lane:
        tx.sql.run("letter_rekey", {"id": letter.id, "lane": letter.lane, "key": letter.key, "now": now})
    if changed:
        tx.letters.changes.add(duty.id, [(letter.id, letter.lane)])
    return "" if changed else f"it changed since it was asked for: it is {letter.state} now (revision {letter.rev})"


def _settled_later(tx: StoreTx, duty: Duty, letter: LetterRow) -> int | None:
    """The first later event of the lane that is settled other than by a discard: nothing may be applied before it."""
    if letter.lane is None:
        return None
    subscription, position = duty.subscription, letter.position
    asked = Asked(tx.progress.filters(duty.id))
    skipped = [(row[0], row[1]) for row in tx.sql.all("range_all", {"subscription": duty.id})]
    plain = subscription.key_by is None and subscription.order == "key"
    query = "settled_after_of_key" if plain else "settled_after"
    while True:
        values = {
            "subscription": duty.id, "log": duty.log_id, "key": letter.lane, "position": position,
            "progress": duty.window.position, "limit": SCAN_MAX,
        }  # fmt: skip
        rows = tx.sql.all(query, values)
        for row in rows:
            position = row[0]
            event = from_row(row, duty.engine.types)
            if not asked.wants(position, event.type) or any(above < position <= upto for above, upto in skipped):
                continue
            key, outcome = find_key(subscription.key_of, event)
            if outcome is None and subscription.lane_of(key) == letter.lane:
                return int(position)
        if len(rows) < SCAN_MAX:
            return None
