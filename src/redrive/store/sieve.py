"""The sieve: which pieces of text the errors of dead letters have, so that a search passes over letters without them.

For every 128 letters there is a row of bits; a piece of three bytes sets one of them. A text can be found only where
all its pieces are. The sieve may let through too much, since pieces share bits and letters move on, but never
too little: who searches looks at what it let through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import unpack_from

from redrive.store.sql import Sql

LETTERS = 128  # numbers of letters that share a row; a part of what is stored, as are the next two
BYTES = 1024  # in a row: a hundred messages of one cause with a number in each set a twentieth of its bits
PRIME = 8179  # the largest below the number of bits: pieces that are alike fall far apart
PAGE = 512  # rows that are read at a time
EVERYWHERE = 2**62

Said = tuple[int, str, str]  # a letter, the type of its error, and the message
Range = tuple[int, int]  # above the first letter, up to the second


class Sieve:
    """The pieces of one store's errors."""

    __slots__ = ("_known", "_new", "_sql")

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._new: dict[int, set[int]] = {}  # by row, what this transaction has still to write
        self._known: tuple[int, bytes, set[int]] = (-1, b"", set())  # a row as we wrote it, and some of what is in it

    def begin(self) -> None:
        """A transaction begins; what another had still to write went with it."""
        self._new.clear()

    def add(self, letters: Iterable[Said]) -> None:
        """These letters are dead now, and say this. It is written at the end: many that die together share a row."""
        said: dict[int, list[str]] = {}
        for letter, kind, message in letters:
            said.setdefault(letter // LETTERS, []).append(f"{kind}: {message}")
        for row, texts in said.items():  # read as one text: what it seems to say where two meet does no harm
            _read("\0".join(texts), self._new.setdefault(row, set()))

    def end(self) -> None:
        """The transaction is about to commit."""
        for row, numbers in self._new.items():
            stored: bytes = self._sql.value("sieve_get", (row,)) or bytes(BYTES)
            known = self._known[2] if self._known[:2] == (row, stored) else set()  # else it was undone, or changed
            bits = bytearray(stored)
            for piece in _pieces(numbers - known):
                bits[piece >> 3] |= 1 << (piece & 7)
            if bits != stored:
                stored = bytes(bits)
                self._sql.run("sieve_put", (row, stored))
            known |= numbers
            self._known = row, stored, known

    def ranges(self, text: str, after: int) -> Iterator[Range]:
        """Where letters above a number may say this, in order."""
        pieces = [(piece >> 3, 1 << (piece & 7)) for piece in _pieces(_read(text, set()))]
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
        pieces = _pieces(_read(f"{kind}: {message}", set()))
        return bits is not None and all(bits[piece >> 3] >> (piece & 7) & 1 for piece in pieces)

    def prune(self) -> None:
        """Rows whose letters are all gone have nothing to say."""
        self._sql.run("prune_sieve", {"letters": LETTERS})


class NoSieve(Sieve):
    """For a store on which transactions write side by side: two would overwrite each other's bits. It scans."""

    __slots__ = ()

    def begin(self) -> None: ...
    def add(self, letters: Iterable[Said]) -> None: ...
    def end(self) -> None: ...
    def prune(self) -> None: ...

    def ranges(self, text: str, after: int) -> Iterator[Range]:
        """Everywhere."""
        yield after, EVERYWHERE

    def has(self, letter: int, kind: str, message: str) -> bool:
        """Nothing is left out."""
        return True


def _read(text: str, numbers: set[int]) -> set[int]:
    """Add the four bytes at every place of a text. Cases are alike as to SQLite, which knows those of ASCII only."""
    raw = text.encode("utf-8", "surrogatepass").lower() + b"\0"
    for start in range(min(4, len(raw) - 3)):
        numbers.update(unpack_from(f"<{(len(raw) - start) // 4}I", raw, start))
    return numbers


def _pieces(numbers: set[int]) -> set[int]:
    """The bits for the first three bytes of each: many texts are read before that, since most say nearly the same."""
    return {(number & 0xFFFFFF) % PRIME for number in numbers}
