"""The sieve: which pieces of text the errors of dead letters have, so that a search passes over letters without them.

For every 128 letters there is a row of bits; a piece of two or four bytes sets one of them. A text can be found only
where all its pieces are. The sieve may let through too much, since pieces share bits and letters move on, but never
too little: who searches looks at what it let through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import unpack_from

from redrive.store.sql import Sql

LETTERS = 128  # numbers of letters that share a row; a part of what is stored, as are the next three
BYTES = 1024  # in a row: a hundred messages of one cause with a number in each set a twentieth of its bits
PRIME = 8179  # the largest below the number of bits: pieces that are alike fall far apart
PIECES = ((2, "H"), (4, "I"))  # bytes of a piece, and how struct calls such a number
PAGE = 512  # rows that are read at a time

Said = tuple[int, str, str]  # a letter, the type of its error, and the message
Range = tuple[int, int]  # above the first letter, up to the second


class Sieve:
    """The pieces of one store's errors."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def add(self, letters: Iterable[Said]) -> None:
        """These letters are dead now, and say this."""
        wanted: dict[int, set[int]] = {}
        for letter, kind, message in letters:
            wanted.setdefault(letter // LETTERS, set()).update(_pieces(f"{kind}: {message}"))
        for row, pieces in wanted.items():
            stored: bytes = self._sql.value("sieve_get", (row,)) or bytes(BYTES)
            bits = bytearray(stored)
            for piece in pieces:
                bits[piece >> 3] |= 1 << (piece & 7)
            if bits != stored:
                self._sql.run("sieve_put", (row, bytes(bits)))

    def ranges(self, text: str, after: int) -> Iterator[Range]:
        """Where letters above a number may say this, in order."""
        pieces = [(piece >> 3, 1 << (piece & 7)) for piece in _pieces(text)]
        begun: Range | None = None
        for row, bits in self._rows(after // LETTERS):
            if not all(bits[at] & bit for at, bit in pieces):
                continue
            low, high = row * LETTERS - 1, row * LETTERS + LETTERS - 1
            if begun is not None and begun[1] == low and high - begun[0] <= PAGE * LETTERS:
                begun = begun[0], high
                continue
            if begun is not None:
                yield begun
            begun = max(after, low), high
        if begun is not None:
            yield begun

    def _rows(self, first: int) -> Iterator[tuple[int, bytes]]:
        while page := self._sql.all("sieve_page", (first, PAGE)):
            yield from ((row, bits) for row, bits in page)
            first = page[-1][0] + 1

    def has(self, letter: int, kind: str, message: str) -> bool:
        """Would a search for everything it says find this letter?"""
        bits: bytes | None = self._sql.value("sieve_get", (letter // LETTERS,))
        return bits is not None and all(bits[piece >> 3] >> (piece & 7) & 1 for piece in _pieces(f"{kind}: {message}"))

    def prune(self) -> None:
        """Rows whose letters are all gone have nothing to say."""
        self._sql.run("prune_sieve", {"letters": LETTERS})


@lru_cache(256)
def _pieces(text: str) -> frozenset[int]:
    """The bits of a text. Cases are alike as they are to SQLite, which knows those of ASCII only."""
    raw, numbers = text.encode("utf-8", "surrogatepass").lower(), set[int]()
    for size, letter in PIECES:
        for start in range(min(size, len(raw) - size + 1)):
            numbers.update(unpack_from(f"<{(len(raw) - start) // size}{letter}", raw, start))
    return frozenset({number % PRIME for number in numbers})
