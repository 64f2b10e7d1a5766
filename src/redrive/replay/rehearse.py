"""Rehearse: run the current code on letters, inside transactions that are always rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.replay.rehearsal import Rehearsal, Rehearsed
from redrive.store.port import LetterRow

if TYPE_CHECKING:
    from redrive.app import App


def rehearse(app: App, letters: Sequence[LetterRow], *, lane: bool = False) -> Rehearsal:
    """What one more attempt of these letters would come to; `lane`: also of those that wait behind them."""
    return Rehearsal(tuple(Rehearsed(letter, "cannot rehearse", "not built yet") for letter in letters))
