"""What a rehearsal found: a result per letter, rows touched per table, events per log. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from redrive.store.port import Counts, LetterRow

Result = Literal["would succeed", "would fail the same way", "would fail differently", "cannot rehearse"]
RESULTS: tuple[Result, ...] = (
    "would succeed",
    "would fail the same way",
    "would fail differently",
    "cannot rehearse",
)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One letter as it was looked at, and what one more attempt would come to."""

    letter: LetterRow
    result: Result
    why: str = ""  # the reason why not, the error's text, or what the function said when it ignored the event
    error_type: str = ""
    fingerprint: str = ""  # of the error that it would fail with
    follower: bool = False  # not chosen itself: it waits behind one that was


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a replay would do now; a letter whose lane is held up by one that would fail cannot be rehearsed."""

    letters: tuple[Rehearsed, ...] = ()
    tables: Mapping[str, Counts] = field(default_factory=dict)  # rows that those who succeed would write
    emitted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # log -> type -> events

    @property
    def totals(self) -> dict[Result, int]:
        """How many letters have each result, also those that none has."""
        found = [one.result for one in self.letters]
        return {result: found.count(result) for result in RESULTS}

    @property
    def sound(self) -> bool:
        """Would every one of them succeed?"""
        return all(one.result == "would succeed" for one in self.letters)
