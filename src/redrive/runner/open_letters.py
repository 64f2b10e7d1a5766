"""What the owner of a subscription remembers of its open letters: read whole at a take-over, later only what changed.

`duty.lanes` changes in two ways: by the owner's own commits (`Settling.learn`), and here, when operators have changed
letters. Their transactions raise `parked_version` and list the letters (`store/changes.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.errors import Fenced
from redrive.policy.lanes import Head, Lanes, rebased
from redrive.store.port import LetterRow, StoreTx

if TYPE_CHECKING:
    from redrive.runner.duty import Duty

DELAY_MAX = 30 * 86_400.0  # no due time lies further ahead, whatever the clock did

CHANGES_MAX = 2_000  # letters that operators changed and that are read in a transaction that writes: 20 ms


class FarBehind(Exception):
    """Operators changed more letters than may be read in a transaction that writes: roll back, and read them first."""


def load(duty: Duty, tx: StoreTx) -> None:
    """Read the open letters after the commit that made us the owner: nobody else's attempts change them now.

    It is not done in that transaction: with 300,000 letters it would hold the write lock for seconds. What operators
    change meanwhile has a later version, which the next look at the store finds.
    """
    row = tx.progress.member(duty.member)
    if row.epoch != duty.epoch:
        raise Fenced(f"{duty.subscription.name}: epoch {duty.epoch} is over, {row.epoch} rules")
    heads = load_lanes(duty, tx, row.parked_version)
    if duty.is_after_crash:
        now = duty.engine.env.clock.now()
        duty.suspects = {  # one that was charged stays one, also when a clock set back makes it wait again
            head.letter
            for _, head, _ in heads
            if head.state == "retrying" and (head.due_at <= now or head.position in duty.charges)
        }
    duty.suspects |= duty.engine.losses.letters(duty.member, heads)
    duty.engine.crashed.discard(duty.member)


def load_lanes(duty: Duty, tx: StoreTx, version: int) -> list[tuple[str | None, Head, int]]:
    """Read all open letters: at a take-over, or when a list of changed letters is missing."""
    heads = tx.letters.heads(duty.id, duty.share.has)
    duty.lanes = Lanes(heads, now=duty.engine.env.clock.now(), delay_max=DELAY_MAX)
    _has_looked(duty, tx, version)
    return heads


def catch_up_within(duty: Duty, tx: StoreTx, version: int) -> None:
    """The same in a transaction that writes; raises `FarBehind` if operators changed too much."""
    count = tx.letters.changes.count(duty.id, duty.parked_version, version)
    if count is None or count > CHANGES_MAX:
        raise FarBehind
    catch_up(duty, tx, version)


def catch_up(duty: Duty, tx: StoreTx, version: int) -> None:
    """Read the letters that operators changed since we looked last, up to this version."""
    changed = tx.letters.changes.after(duty.id, duty.parked_version, version, duty.share.has)
    if changed is None:
        load_lanes(duty, tx, version)
        return
    now = duty.engine.env.clock.now()
    for lane, head, size in changed.lanes:
        duty.lanes.learn(lane, 0, head and rebased(head, now, DELAY_MAX), size)
    for letter, head in changed.loose:
        duty.lanes.learn(None, letter, head and rebased(head, now, DELAY_MAX), 1)
    _has_looked(duty, tx, version)


def _has_looked(duty: Duty, tx: StoreTx, version: int) -> None:
    """The lanes are as the store had them at this version."""
    duty.parked_version = version
    duty.looks += 1
    duty.holds.load(tx, duty.lanes)
    duty.controls = any(is_asked(duty, tx.letters.get(letter)) for _, _, letter, *_ in tx.books.asked(duty.id))


def is_asked(duty: Duty, letter: LetterRow | None) -> bool:
    """Is it this owner's to answer what an operator asks about a letter? About one that is gone, the first answers."""
    if letter is None:
        return duty.share.partition == 0
    return duty.share.has_event(letter.event_id, letter.key)
