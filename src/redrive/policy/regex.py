"""Regular expressions from a settings file: all states at once, never back, so that no pattern can hang a worker.

The usual notation without what needs going back (look-around, back references): letters, `.`, `[a-z]`, `\\d \\w \\s`,
groups, `|`, `* + ? {2,5}`. A pattern speaks about the whole text. The work is at most the length of the text times
STATES_MAX, whatever the pattern says; both are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from redrive.errors import UsageError

PATTERN_CHARS_MAX = 200  # a longer one is a program, and belongs into a function
TEXT_CHARS_MAX = 1_000  # five times the longest event type
STATES_MAX = 2_000  # what repeats of repeats may grow to
DEPTH_MAX = 20  # groups in groups; each is a call of ours

_KINDS: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda one: one.isalnum() or one == "_",
    "s": str.isspace,
}

Fits = Callable[[str], bool]


@dataclass(slots=True, eq=False)
class _State:
    """A place in the pattern: on a character that fits, or on nothing, to the places behind it."""

    fits: Fits | None = None
    then: list[_State] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the automaton, from its entry to its end."""

    entry: _State
    end: _State


@dataclass(frozen=True, slots=True)
class Regex:
    """A pattern, ready to be asked; made by `regex`."""

    pattern: str
    _start: _State = field(repr=False, compare=False)
    _end: _State = field(repr=False, compare=False)

    def fits(self, text: str) -> bool:
        """Is the whole text as the pattern says? One that is too long to ask about is not."""
        if len(text) > TEXT_CHARS_MAX:
            return False
        here = _reached((self._start,))
        for one in text:
            here = _reached(
                state for place in here if place.fits is not None and place.fits(one) for state in place.then
            )
            if not here:
                return False
        return self._end in here


def regex(option: str, pattern: str) -> Regex:
    r"""The pattern, checked; `option` is what a complaint should name.

    >>> regex("discard", r"debug\.(a|b)+").fits("debug.abba")
    True
    """
    return _Parser(option, pattern).whole()


def _reached(states: Iterable[_State]) -> set[_State]:
    """These, and those that are reached from them on nothing."""
    found: set[_State] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        if state not in found:
            found.add(state)
            if state.fits is None:
                waiting += state.then
    return found


class _Parser:
    """From left to right, a character at a time; builds the automaton as it goes."""

    def __init__(self, option: str, pattern: str) -> None:
        self._option, self._text, self._at, self._states = option, pattern, 0, 0
        if len(pattern) > PATTERN_CHARS_MAX:
            self._refuse(f"has {len(pattern)} characters; {PATTERN_CHARS_MAX} are allowed")

    def whole(self) -> Regex:
        body = self._text.removeprefix("^")
        if body.endswith("$") and not body.endswith("\\$"):
            body = body[:-1]
        pattern, self._text = self._text, body
        if not body:
            self._refuse("is empty, which fits no event")
        piece = self._alternatives(0)
        if self._at < len(self._text):
            self._refuse("closes a group that was not opened")
        return Regex(pattern, piece.entry, piece.end)

    # ------------------------------------------------------------ grammar

    def _alternatives(self, depth: int) -> _Piece:
        if depth > DEPTH_MAX:
            self._refuse(f"nests groups more than {DEPTH_MAX} deep")
        first = self._sequence(depth)
        if self._peek() != "|":
            return first
        entry, end = self._state(), self._state()
        branches = [first]
        while self._take("|"):
            branches.append(self._sequence(depth))
        for branch in branches:
            entry.then.append(branch.entry)
            branch.end.then.append(end)
        return _Piece(entry, end)

    def _sequence(self, depth: int) -> _Piece:
        entry = end = self._state()
        while self._peek() not in ("", "|", ")"):
            begun = self._at
            pieces = [self._atom(depth)]
            low, high = self._count()
            for _ in range(max(low, high or 0, 1) - 1):  # once more for each time it may occur
                after, self._at = self._at, begun
                pieces.append(self._atom(depth))
                self._at = after
            piece = self._repeated(pieces, low, high)
            end.then.append(piece.entry)
            end = piece.end
        return _Piece(entry, end)

    def _repeated(self, pieces: list[_Piece], low: int, high: int | None) -> _Piece:
        if (low, high) == (1, 1):
            return pieces[0]
        entry = last = self._state()
        end = self._state()
        for number, piece in enumerate(pieces):
            if number >= low:
                last.then.append(end)  # enough, if it has to be
            last.then.append(piece.entry)
            last = self._state()
            piece.end.then.append(last)
        if high is None:
            last.then.append(pieces[-1].entry)
        if high != 0:
            last.then.append(end)
        else:
            entry.then[:] = [end]
        return _Piece(entry, end)

    def _atom(self, depth: int) -> _Piece:
        one = self._next()
        if one == "(":
            if self._take("?") and not self._take(":"):
                self._refuse("has (?…), which is not known here; (…) and (?:…) are")
            piece = self._alternatives(depth + 1)
            if not self._take(")"):
                self._refuse("opens a group that is not closed")
            return piece
        if one in "*+?{":
            self._refuse(f"repeats nothing with {one!r}")
        if one in "^$":
            self._refuse(f"has {one!r} inside: a rule speaks about the whole type anyway")
        fits = self._class() if one == "[" else self._escape() if one == "\\" else _any if one == "." else one.__eq__
        end = self._state()
        entry = self._state()
        entry.fits = fits
        entry.then.append(end)
        return _Piece(entry, end)

    def _count(self) -> tuple[int, int | None]:
        low: int
        high: int | None
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif self._take("{"):
            low, high = self._braces()
        else:
            return 1, 1
        if self._peek() in ("*", "+", "?", "{"):
            self._refuse("has two signs of repetition in a row")
        return low, high

    def _braces(self) -> tuple[int, int | None]:
        inner, closed, _ = self._text[self._at :].partition("}")
        least, comma, most = inner.partition(",")
        if not closed or not least.isdecimal() or (most and not most.isdecimal()) or len(inner) > 9:
            self._refuse("has { that is not like {2}, {2,} or {2,5}; write \\{ for the character")
        self._at += len(inner) + 1
        low = int(least)
        high = low if not comma else int(most) if most else None
        if (high is not None and high < low) or max(low, high or 0) > STATES_MAX:
            self._refuse(f"cannot repeat {{{inner}}}")
        return low, high

    def _escape(self) -> Fits:
        one = self._next("ends with \\")
        kind = _KINDS.get(one.lower())
        if kind is not None:
            return kind if one.islower() else lambda given: not kind(given)
        if one.isalnum():
            self._refuse(f"has \\{one}, which is not known here; \\d, \\w, \\s and their capitals are")
        return one.__eq__

    def _class(self) -> Fits:
        negated = self._take("^")
        tests: list[Fits] = []
        first = True
        while first or self._peek() != "]":
            one = self._next("has [ that is not closed")
            first = False
            if one == "\\":
                tests.append(self._escape())
                continue
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                last = self._next()
                if last == "\\" or last < one:
                    self._refuse(f"has the range {one}-{last}")
                tests.append(lambda given, low=one, high=last: low <= given <= high)  # type: ignore[misc]
            else:
                tests.append(one.__eq__)
        self._at += 1
        return lambda given: any(test(given) for test in tests) != negated

    # ------------------------------------------------------------ characters and states

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, one: str) -> bool:
        found = self._peek() == one
        self._at += found
        return found

    def _next(self, otherwise: str = "ends too early") -> str:
        one = self._peek()
        if not one:
            self._refuse(otherwise)
        self._at += 1
        return one

    def _state(self) -> _State:
        self._states += 1
        if self._states > STATES_MAX:
            self._refuse("repeats too much: write it with *, or as a function")
        return _State()

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(f"{self._option}: /{self._text[:PATTERN_CHARS_MAX]}/ {why}")


def _any(_: str) -> bool:
    return True
