"""The port for keyed state that is kept outside the store, and what the store remembers of it.

The store decides: its transaction holds a mark, and what was written elsewhere counts if it bears that mark. So the
other place is written first, inside that transaction, and keeps what it replaced until it knows that it was committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from redrive.store.port import StoreTx

State = tuple[int, bytes]  # version and encoded state; version 0: there is none


class Owner(NamedTuple):
    """On whose behalf state is kept."""

    id: int
    name: str
    epoch: int


class Keeper(ABC):
    """Keeps the state of one subscription for its owner, until `close`."""

    @abstractmethod
    def load(self, key: str) -> State:
        """As it was last committed."""

    @abstractmethod
    def write(self, tx: StoreTx, states: Sequence[tuple[str, State]]) -> None:
        """The last deed of a settling transaction: these states, if it is committed.

        What a transaction wrote that failed is taken back, also if there is nothing new.
        """

    @abstractmethod
    def committed(self) -> None:
        """The transaction of the last `write` is."""

    @abstractmethod
    def close(self) -> None:
        """The lease is over."""

    def save(self, subscription: int, key: str, version: int, data: bytes, position: int) -> bool:
        """Is it still what the function was given? It is written at the end, by `write`."""
        return self.load(key)[0] == version

    def save_all(self, subscription: int, states: Sequence[tuple[str, int, bytes, int]]) -> bool:
        """The same for many."""
        return all(self.load(key)[0] == version for key, version, *_ in states)


class States(ABC):
    """A place for keyed state, as a program names it."""

    @abstractmethod
    def open(self, tx: StoreTx, owner: Owner) -> Keeper:
        """In the transaction that makes somebody the owner. Halted if it is not of the store's moment."""


def token_of(tx: StoreTx, subscription: int) -> str | None:
    """What the place was called when the store first met it."""
    found = tx.books.get(f"states:{subscription}")
    return None if found is None else str(found)


def remember_token(tx: StoreTx, subscription: int, token: str) -> None:
    """Call it so from now on; from here on the subscription counts as one that has kept state."""
    tx.books.set(f"states:{subscription}", token)


def mark_of(tx: StoreTx, subscription: int) -> str | None:
    """What was written there last and counts; None: nothing does."""
    found = tx.books.get(f"states_mark:{subscription}")
    return None if found is None else str(found)


def set_mark(tx: StoreTx, subscription: int, mark: str) -> None:
    """What bears this mark counts, if this transaction is committed."""
    tx.books.set(f"states_mark:{subscription}", mark)


def disown(tx: StoreTx, subscription: int) -> None:
    """A rebuild starts with no state: what is there counts no more."""
    tx.books.drop(f"states_mark:{subscription}")
