"""Bringing letters back from a mirror: what was still open there is a letter here, and nobody else is touched.

A letter whose event this store has is left to its subscription; only an edit that it lacks is taken over. Any other
event is appended, and settled in the same transaction for everybody who reads the log: a letter for those whose
letter the mirror holds, a discard for the rest. Run again, it finds what it did and does nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from redrive import cloudevents
from redrive.errors import EventError
from redrive.event import NewEvent
from redrive.mirrors.entry import NOTHING, Entry
from redrive.policy.letters import OPEN, State
from redrive.policy.outcome import NO_FAILURE, Failure
from redrive.replay.deed import Operator, Told, untold
from redrive.replay.letters import LetterDesk
from redrive.sources.refusal import SCHEMA as REFUSED
from redrive.store.filters import Asked
from redrive.store.letters import NewLetter
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import member_of
from redrive.store.sql import Row
from redrive.subscription import TOTAL_LANE

CHUNK = 100  # events in one transaction: whoever reads their log begins anew after each
NOT_FUNCTIONS = ("intake", "mirror")


@dataclass(slots=True)
class Brought:
    """What came of it: every letter that was open in the mirror is in one of the first three."""

    imported: int = 0
    edited: int = 0
    skipped: list[tuple[Entry, str]] = field(default_factory=list)
    settled: int = 0  # letters of the mirror that wait for nobody


def newest(entries: Iterable[Entry]) -> tuple[list[Entry], int]:
    """What each letter of a mirror came to: those that are open, by position, and how many are not."""
    seen: set[object] = set()
    letters: dict[tuple[str, int], Entry] = {}  # by subscription and number; a restored store may give a number again
    events: dict[tuple[str, str, str | None], Entry | None] = {}
    for entry in entries:
        if entry.key in seen:
            continue
        seen.add(entry.key)
        place = (entry.subscription, entry.letter)
        before = letters.get(place)
        if entry.event == NOTHING and before is not None:
            entry = msgspec.structs.replace(entry, event=before.event, edited=before.edited)
        letters[place] = entry
        events[entry.source, entry.subscription, entry.event_id] = entry if entry.is_open else None
    found = [entry for entry in events.values() if entry is not None]
    return sorted(found, key=lambda one: (one.source, one.position, one.subscription)), len(events) - len(found)


def bring_back(
    operator: Operator, desk: LetterDesk, entries: Iterable[Entry], reason: str, told: Told = untold
) -> Brought:
    """Make letters of what a mirror holds; `told` is called with the number of letters looked at, and of all."""
    found, settled = newest(entries)
    brought, known, looked_at = Brought(settled=settled), list[tuple[Entry, int]](), 0
    for source, of_source in groupby(found, key=lambda one: one.source):
        by_event = [list(one) for _, one in groupby(of_source, key=lambda one: one.event_id)]
        for start in range(0, len(by_event), CHUNK):
            chunk = by_event[start : start + CHUNK]
            known += _Import(operator, source, reason, brought).take(chunk)
            looked_at += sum(map(len, chunk))
            told(looked_at, len(found))
    for entry, number in known:
        _edit(desk, entry, number, brought, reason)
    return brought


def _edit(desk: LetterDesk, entry: Entry, number: int, brought: Brought, reason: str) -> None:
    """A letter that this store has; perhaps it lacks an edit."""
    letter = desk.get(number)
    if letter is None or letter.state not in OPEN:
        why = f"it is {letter.state if letter else 'gone'} here, as letter {number}"
    elif entry.edited == NOTHING or letter.edits:
        why = f"it is letter {number} here"
    else:
        receipt = desk.edit(letter, msgspec.Raw(cloudevents.data_of(entry.edited)), reason)
        brought.edited += len(receipt.done)
        why = "".join(one.why for one in receipt.refused)
    if why:
        brought.skipped.append((entry, why))


class _Import:
    """Some events of one log and their letters, in one transaction."""

    def __init__(self, operator: Operator, source: str, reason: str, brought: Brought) -> None:
        self.operator, self.source, self.reason, self.brought = operator, source, reason, brought
        self.now = operator.now()
        self.known: list[tuple[Entry, int]] = []

    def take(self, events: Sequence[Sequence[Entry]]) -> list[tuple[Entry, int]]:
        """Those that are not here become letters, the others are skipped; those that are letters here, and which."""
        imported = 0
        with self.operator.transaction() as tx:
            everybody = [row for row in tx.progress.all() if row.source == self.source]
            readers = {row.name: row for row in everybody if row.kind not in NOT_FUNCTIONS}
            new = list(self._new(tx, events, readers))
            if new:
                for row in everybody:  # before the log is held, as everybody does: whoever runs them begins anew
                    tx.sql.run("epoch_bump", {"subscription": row.id})
                rows, _ = tx.logs.append(self.source, [event for event, _ in new])
                for row in everybody:
                    if row.kind == "intake":
                        _land(tx, row, rows, self.now)
                for stored, (_, entries) in zip(rows, new, strict=True):
                    imported += self._settle(tx, stored, {one.subscription: one for one in entries}, readers)
        self.brought.imported += imported
        if imported:
            self.operator.tell("import", "", f"{imported} letters of {self.source}")
        return self.known

    def _new(
        self, tx: StoreTx, events: Sequence[Sequence[Entry]], readers: Mapping[str, Subscribed]
    ) -> Iterator[tuple[NewEvent, list[Entry]]]:
        log = tx.logs.id_of(self.source)
        for entries in events:
            mine = [one for one in entries if one.subscription in readers]
            for one in entries:
                if one.subscription not in readers:
                    self._skip(one, f"no subscription {one.subscription!r} reads {self.source!r} here")
            if not mine:
                continue
            stored = tx.sql.one("event_by_id", (log, entries[0].event_id)) if log and entries[0].event_id else None
            if stored is not None:
                for one in mine:
                    self._pass_by(tx, one, readers[one.subscription], stored[0])
                continue
            try:
                if entries[0].event == NOTHING:
                    raise EventError("the mirror does not have its event")
                if entries[0].schema == REFUSED:  # its letter may say otherwise: it waited behind another
                    raise EventError("it was no event when it came; what came is in the mirror, as base64 in its data")
                event = cloudevents.decode(entries[0].event, int(self.now * 1e6))
            except EventError as error:
                for one in mine:
                    self._skip(one, str(error))
            else:
                yield event, mine

    def _skip(self, entry: Entry, why: str) -> None:
        self.brought.skipped.append((entry, why))

    def _pass_by(self, tx: StoreTx, entry: Entry, row: Subscribed, position: int) -> None:
        """The log holds its event."""
        letter = tx.sql.value("letter_at", {"subscription": row.id, "position": position})
        if letter is not None:
            self.known.append((entry, letter))
        elif position <= tx.progress.get(row.id).position or tx.progress.done.has(row.id, position):
            self._skip(entry, f"{row.name} has settled its event here")
        else:
            self._skip(entry, f"{row.name} has its event before it")

    def _settle(self, tx: StoreTx, stored: Row, entries: Mapping[str, Entry], readers: Mapping[str, Subscribed]) -> int:
        """An event that was just appended is settled for everybody: as a letter, or given up; how many letters."""
        position, kind, count = stored[0], stored[2], 0
        for row in readers.values():
            entry = entries.get(row.name)
            if not Asked(tx.progress.filters(row.id)).wants(position, kind):
                if entry is not None:
                    self._skip(entry, f"{row.name} does not ask for {kind} any more")
                continue
            tx.progress.done.add(member_of(row.id, 0), [position])
            if entry is None:
                self._give_up(tx, row, stored)
            else:
                self._hold(tx, row, stored, entry)
                count += 1
        return count

    def _give_up(self, tx: StoreTx, row: Subscribed, stored: Row) -> None:
        resolved_by = f"import: {self.operator.who}"
        letter = NewLetter(_head(stored), None, State.DISCARDED, reason="imported", resolved_by=resolved_by)
        tx.letters.add(row.id, [letter], self.now)

    def _hold(self, tx: StoreTx, row: Subscribed, stored: Row, entry: Entry) -> None:
        facts = {"event": stored[1], "position": stored[0], "was": entry.letter, "state": entry.state}
        audit = self.operator.audit(tx, "import", row.name, f"event {stored[1]}", self.reason, facts)
        if entry.edited != NOTHING:
            data = cloudevents.data_of(entry.edited)
            where = {"subscription": row.id, "position": stored[0], "rev": 1, "audit": audit}
            tx.sql.run("edit_add", {**where, "data": data})
        failed = entry.last_failed_at is not None or entry.state == State.DEAD
        failure = Failure(entry.error_type, entry.error_message, "", entry.fingerprint) if failed else NO_FAILURE
        lanes = {"key": entry.lane, "total": TOTAL_LANE}
        held = NewLetter(
            _head(stored), lanes.get(row.ordering), entry.state, entry.reason, failure, entry.attempts, self.now
        )
        (letter,) = tx.letters.add(row.id, [held], self.now)
        if failed:
            tx.letters.log_attempts([(letter, entry.attempts, "imported", failure)], self.now, entry.worker or "")


def _head(stored: Row) -> Row:
    return (stored[0], *stored[1:4])


def _land(tx: StoreTx, row: Subscribed, rows: Sequence[Row], now: float) -> None:
    """The log is that of a broker: these have landed, and are recognised should the broker give them again."""
    progress, last = tx.progress.member(row.id), rows[-1]
    tx.progress.advance(
        {
            "member": row.id, "epoch": progress.epoch, "position": last[0], "anchor": last[1], "applied": len(rows),
            "ignored": 0, "now": now, "last_type": last[2], "last_time_us": last[6],
        }
    )  # fmt: skip
