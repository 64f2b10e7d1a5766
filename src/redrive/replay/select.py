"""Which letters an operator means: by number, by what they have in common, or all of them.

A selection is looked up once, when a command begins; what dies later is not meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import merge
from typing import Any

from redrive.errors import UsageError
from redrive.event import NAME_CHARS_MAX
from redrive.policy.action import BEHIND_HEAD, HELD
from redrive.policy.letters import OPEN, State
from redrive.replay.deed import find
from redrive.replay.shelf import is_head
from redrive.store.port import LetterRow, Store, StoreTx

PAGE = 1000
EVENT_CHARS_MIN = 4  # of an event's id; fewer are hardly ever unique
RARE = 0.05  # below this share of all dead letters a cause is found by its own index
FEW = 10_000  # letters of a time that are found by its index and sorted: 10 ms
NEAR = 20_000  # numbers of letters that are looked at before the index on the time is asked where to go on
EVERYWHERE = 2**62  # above all numbers and times


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything that is given must hold; times are seconds since 1970, of the last failure."""

    ids: tuple[str, ...] = ()
    subscription: str | None = None
    type: str | None = None  # a name, or a glob like order.*
    key: str | None = None
    reason: str | None = None
    error: str | None = None  # a part of "Type: message", in any case
    fingerprint: str | None = None  # or how it begins
    since: float | None = None
    until: float | None = None
    everything: bool = False

    @property
    def is_empty(self) -> bool:
        """Is nothing said? That is never taken for everything."""
        return not (self.ids or self.everything or any(value is not None for value in self._filters().values()))

    def check(self) -> None:
        """Numbers name letters completely, and everything is everything."""
        if self.is_empty:
            raise UsageError(
                "say which letters: IDs, -s, --type, --key, --dlq-reason, --error, --fingerprint, … or --all"
            )
        self.check_names()

    def check_names(self) -> None:
        """What is looked at may be everything without a word, but not two things at once."""
        given = [name for name, value in self._filters().items() if value is not None]
        if self.ids and (given or self.everything):
            raise UsageError("letters are named by their IDs or by what they have in common, not by both")
        if self.everything and [name for name in given if name != "subscription"]:
            option = "dlq-reason" if given[-1] == "reason" else given[-1]
            raise UsageError(f"--all means all of them; leave it out to select by --{option}")

    @property
    def is_of_counters(self) -> bool:
        """Do the counters know all that it asks for?"""
        return not self.ids and all(value is None for value in (self.key, self.error, self.since, self.until))

    def covers(self, fingerprint: str, reason: str, kind: str) -> bool:
        """Are letters with these meant, as far as the counters know?"""
        return (
            (self.fingerprint is None or fingerprint.startswith(self.fingerprint))
            and (self.reason is None or reason == self.reason)
            and (self.type is None or fnmatchcase(kind, self.type))
        )

    def _filters(self) -> dict[str, Any]:
        names = ("subscription", "type", "key", "reason", "error", "fingerprint", "since", "until")
        return {name: getattr(self, name) for name in names}


def select(
    store: Store, selection: Selection, *, after: int = 0, limit: int | None = None, heads: bool = False
) -> list[LetterRow]:
    """The letters that are meant, by ascending id; `heads`: only those that hold their lane back."""
    with store.reading() as tx:
        if selection.ids:
            found = [_named(tx, text) for text in dict.fromkeys(selection.ids)]
            return sorted({letter.id: letter for letter in found}.values(), key=lambda letter: letter.id)
        chosen: list[LetterRow] = []
        for letter in _matching(tx, selection, after, min(limit or PAGE, PAGE)):
            if not heads or is_head(tx, letter):
                chosen.append(letter)
                if limit is not None and len(chosen) == limit:
                    break
        return chosen


def newest(store: Store, limit: int) -> list[LetterRow]:
    """The dead letters that failed last, the last one first."""
    with store.reading() as tx:
        found = [tx.letters.get(number) for (number,) in tx.sql.all("select_newest", {"limit": limit})]
    return [letter for letter in found if letter is not None]


def select_with_waiting(
    store: Store, selection: Selection, *, after: int = 0, limit: int = 50
) -> list[tuple[LetterRow, int]]:
    """Dead letters that hold their lane back, each with how many wait behind it."""
    found = select(store, selection, after=after, limit=limit, heads=True)
    with store.reading() as tx:
        return [(letter, tx.letters.waiting(letter)) for letter in found]


def select_parked(
    store: Store, selection: Selection, *, after: int = 0, limit: int = 50
) -> list[tuple[LetterRow, int]]:
    """What waits behind a dead letter, each with how many wait behind it in turn."""
    with store.reading() as tx:
        values = {**_values(tx, selection), "reason": selection.reason or BEHIND_HEAD, "state": State.RETRYING.value}
        found: list[tuple[LetterRow, int]] = []
        for letter in _pages(tx, "select_letters", {**values, "limit": limit}, after):
            if len(found) == limit:
                break
            if not is_head(tx, letter):
                found.append((letter, tx.letters.waiting(letter)))
        return found


def select_held(store: Store, selection: Selection, *, after: int = 0, limit: int = 50) -> list[tuple[LetterRow, int]]:
    """Letters that exist because their key is held, each with how many wait behind it."""
    with store.reading() as tx:
        values = {**_values(tx, selection), "reason": HELD, "state": State.RETRYING.value, "limit": limit}
        found = zip(range(limit), _pages(tx, "select_letters", values, after), strict=False)
        return [(letter, tx.letters.waiting(letter)) for _, letter in found]


def subscription_of(tx: StoreTx, selection: Selection) -> int | None:
    """The subscription that is meant, if one is; what cannot be meant is an error."""
    if len(selection.type or "") > NAME_CHARS_MAX:  # a longer glob takes seconds to match
        raise UsageError(f"no event type has more than {NAME_CHARS_MAX} characters")
    return None if selection.subscription is None else find(tx, selection.subscription).id


def with_followers(store: Store, letters: Sequence[LetterRow]) -> list[LetterRow]:
    """These letters and everything open behind them in their lanes."""
    found = {letter.id: letter for letter in letters}
    with store.reading() as tx:
        for letter in letters:
            above = letter.position
            while letter.lane is not None:
                where = {"subscription": letter.subscription_id, "lane": letter.lane, "above": above, "limit": PAGE}
                page = [LetterRow(*row) for row in tx.sql.all("lane_letters", where)]
                found |= {follower.id: follower for follower in page}
                if len(page) < PAGE:
                    break
                above = page[-1].position
    return sorted(found.values(), key=lambda letter: letter.id)


def released(store: Store, letters: Sequence[LetterRow]) -> int:
    """How many events can run when these letters are closed: those of lanes whose head is among them."""
    chosen = {letter.id for letter in letters}
    mates: dict[tuple[int, str], list[LetterRow]] = {}
    for letter in letters:
        if letter.lane is not None and letter.state in OPEN:
            mates.setdefault((letter.subscription_id, letter.lane), []).append(letter)
    total = 0
    with store.reading() as tx:
        for (subscription, lane), group in mates.items():
            head = tx.letters.head(subscription, lane)
            if head is not None and head.letter in chosen:
                first = min(group, key=lambda letter: letter.position)
                total += tx.letters.waiting(first) - (len(group) - 1)
    return total


def _named(tx: StoreTx, text: str) -> LetterRow:
    """A letter by its number, or by how its event's id begins."""
    if text.isascii() and text.isdecimal() and len(text) < 19:
        letter = tx.letters.get(int(text))
        if letter is not None:
            return letter
    found = []
    if len(text) >= EVENT_CHARS_MIN:
        found = [row[0] for row in tx.sql.all("select_by_event", {"start": text, "limit": 6})]
    if len(found) == 1:
        letter = tx.letters.get(found[0])
        assert letter is not None
        return letter
    if not found:
        is_short = len(text) < EVENT_CHARS_MIN and not text.isdecimal()
        few = f" ({EVENT_CHARS_MIN} characters of an event's id are wanted)" if is_short else ""
        raise UsageError(f"there is no letter {text}{few}; `redrive dlq list` shows those there are")
    several = ", ".join(map(str, found[:5])) + (", …" if len(found) > 5 else "")
    raise UsageError(f"{text} is the beginning of several: letters {several}; use a letter's number")


def _matching(tx: StoreTx, selection: Selection, after: int, page: int) -> Iterator[LetterRow]:
    """Dead letters, a page at a time, by the index that finds them soonest."""
    values = {**_values(tx, selection), "limit": page}
    if selection.key is not None:
        yield from _pages(tx, "select_letters_by_key", values, after)
        return
    if _is_in_time(selection) and _is_few(tx, values):
        yield from _pages(tx, "select_letters_by_time", values, after)
        return
    causes, matching, total = _causes(tx, selection, values["subscription"])
    if matching == 0:
        return
    if matching < RARE * total or (len(causes) == 1 and selection.error is None):
        each = [
            _pages(tx, "select_letters_by_cause", {**values, "cause": cause, "of": of}, after) for cause, of in causes
        ]
        yield from merge(*each, key=lambda letter: letter.id)  # a page is asked for, not all that match
        return
    if selection.error is not None:
        for above, upto in tx.letters.sieve.ranges(selection.error, after):
            yield from _pages(tx, "select_letters", {**values, "upto": upto}, above)
        return
    if _is_in_time(selection):
        # Letters are numbered nearly as they fail: the first of a time may lie behind all that do not match.
        near = after + NEAR
        yield from _pages(tx, "select_letters", {**values, "upto": near}, after)
        first = tx.sql.value("select_first_in_time", {**values, "after": near})
        if first is None:
            return
        after = first - 1
    yield from _pages(tx, "select_letters", values, after)


def _is_in_time(selection: Selection) -> bool:
    return selection.since is not None or selection.until is not None


def _is_few(tx: StoreTx, values: dict[str, Any]) -> bool:
    return int(tx.sql.value("select_count_in_time", {**values, "limit": FEW})) < FEW


def _values(tx: StoreTx, selection: Selection) -> dict[str, Any]:
    """A selection as the queries know it."""
    subscription = subscription_of(tx, selection)
    fields = ("type", "key", "reason", "error", "fingerprint", "since", "until")
    values = {name: getattr(selection, name) for name in fields}
    span = {
        "from_time": -EVERYWHERE if selection.since is None else selection.since,
        "to_time": EVERYWHERE if selection.until is None else selection.until,
    }
    return {**values, **span, "subscription": subscription, "state": State.DEAD.value, "upto": EVERYWHERE}


def _causes(tx: StoreTx, selection: Selection, subscription: int | None) -> tuple[list[tuple[str, int]], int, int]:
    """Fingerprints that match as far as the counters know, with how many letters they have, and all there are."""
    causes: dict[tuple[str, int], int] = {}
    total = 0
    for fingerprint, number, _, reason, kind, count, _ in tx.sql.all("causes"):
        total += count
        if subscription in (None, number) and selection.covers(fingerprint, reason, kind):
            causes[fingerprint, number] = causes.get((fingerprint, number), 0) + count
    return list(causes), sum(causes.values()), total


def _pages(tx: StoreTx, query: str, values: dict[str, Any], after: int) -> Iterator[LetterRow]:
    while True:
        rows = [LetterRow(*row) for row in tx.sql.all(query, {**values, "after": after})]
        yield from rows
        if len(rows) < values["limit"]:
            return
        after = rows[-1].id
