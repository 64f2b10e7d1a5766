"""Who takes part in a rehearsal: the chosen letters by lane, what waits behind them, and who cannot come on.

A lane is followed as a replay would follow it: from its head, in order, until one fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from redrive.policy.letters import OPEN
from redrive.replay.rehearsal import Rehearsed
from redrive.store.port import LetterRow, Store, StoreTx

PAGE = 500  # letters of a lane read at a time


@dataclass(eq=False, slots=True)
class Lane:
    """Chosen letters that share a lane; without one, a single letter."""

    subscription: int
    name: str | None
    followers: bool  # those who wait behind the chosen take part, too
    chosen: dict[int, LetterRow] = field(default_factory=dict)

    def letters(self, tx: StoreTx, above: int = 0) -> Iterator[LetterRow]:
        """Everything open in the lane as far as it matters here, in order, as the store has it now."""
        if self.name is None:
            found = [tx.letters.get(letter) for letter in self.chosen]
            yield from (one for one in found if one is not None and one.state in OPEN and one.position > above)
            return
        last = max(letter.position for letter in self.chosen.values())
        where = {"subscription": self.subscription, "lane": self.name, "limit": PAGE}
        while True:
            page = [LetterRow(*row) for row in tx.sql.all("lane_letters", {**where, "above": above})]
            for letter in page:
                if letter.position > last and not self.followers:
                    return
                yield letter
            if len(page) < PAGE:
                return
            above = page[-1].position

    def is_stranger(self, letter: LetterRow) -> bool:
        """Is it in the way, neither chosen nor behind one that is?"""
        return letter.id not in self.chosen and not (self.followers and letter.position > self._first)

    @property
    def _first(self) -> int:
        return min(letter.position for letter in self.chosen.values())


@dataclass(slots=True)
class Run:
    """What came of a lane: results in order, and why it did not go on, if it did not."""

    lane: Lane
    results: list[Rehearsed] = field(default_factory=list)
    held: str = ""
    above: int = 0  # how far it went

    def add(self, letter: LetterRow, one: Rehearsed) -> None:
        """One more; if it would not succeed, nothing behind it is reached."""
        self.results.append(one if letter.id in self.lane.chosen else replace(one, follower=True))
        self.above = letter.position
        if one.result != "would succeed":
            fate = "cannot be rehearsed" if one.result == "cannot rehearse" else "would fail"
            self.held = f"it waits behind letter {letter.id}, which {fate}"

    def stop_before(self, letter: LetterRow) -> None:
        """Somebody who was not chosen is in the way."""
        self.held = f"it waits behind letter {letter.id}, which is not among those chosen"

    def finished(self, tx: StoreTx) -> list[Rehearsed]:
        """All results, also of those that were not reached or have moved meanwhile."""
        found = list(self.results)
        seen = {one.letter.id for one in found}
        if self.held and self.lane.name is not None:
            for letter in self.lane.letters(tx, self.above):
                if not self.lane.is_stranger(letter):
                    found.append(cannot(letter, self.held, follower=letter.id not in self.lane.chosen))
                    seen.add(letter.id)
        gone = [letter for number, letter in self.lane.chosen.items() if number not in seen]
        return found + [cannot(letter, moved(tx.letters.get(letter.id))) for letter in gone]


def cannot(letter: LetterRow, why: str, *, follower: bool = False) -> Rehearsed:
    """It could not be tried."""
    return Rehearsed(letter, "cannot rehearse", why, follower=follower)


def moved(letter: LetterRow | None) -> str:
    """Why a letter that was chosen is not among the open ones."""
    return "there is no such letter" if letter is None else f"it is {letter.state} already"


def by_lane(
    store: Store, letters: Iterable[LetterRow], *, followers: bool
) -> tuple[dict[str, list[Lane]], Sequence[Rehearsed]]:
    """The lanes of each subscription, by the position of their first letter; and letters that are not open any more."""
    lanes: dict[tuple[str, str | int], Lane] = {}
    settled = []
    with store.reading() as tx:
        for given in sorted(letters, key=lambda letter: (letter.subscription, letter.position)):
            letter = tx.letters.get(given.id)
            if letter is None or letter.state not in OPEN:
                settled.append(cannot(letter or given, moved(letter)))
                continue
            place = letter.id if letter.lane is None else letter.lane
            if (letter.subscription, place) not in lanes:
                new = Lane(letter.subscription_id, letter.lane, followers)
                lanes[letter.subscription, place] = new
            lanes[letter.subscription, place].chosen[letter.id] = letter
    found: dict[str, list[Lane]] = {}
    for (subscription, _), lane in lanes.items():
        found.setdefault(subscription, []).append(lane)
    return found, settled
