"""One short name for one bug, however many events it hits.

Two failures share a fingerprint if the same kind of error came up through the same functions
with the same message, apart from what differs from event to event: numbers, ids, dates, quoted
values. Line numbers are left out, so that an unrelated edit of the file does not split a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, partial

_READ_MAX = 10_000  # characters looked at; what tells two bugs apart stands at the front
_KEPT_MAX = 500  # characters of the normalised text that count
_REMEMBERED_MAX = 200  # characters; a short message comes again with the next attempt

_VARIABLE = re.compile(
    r"""
    (?!(?<=\w)\w)(?:                                  # nothing below begins inside a word, so most text is passed over
      (?<!\w)[bruf]{0,2}'(?:[^'\\\n]|\\.)*'(?!\w)     # a quoted value; the apostrophe of "can't" opens nothing
    | (?<!\w)[bruf]{0,2}"(?:[^"\\\n]|\\.)*"(?!\w)
    | `[^`\n]*`
    | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b # a uuid, whose parts may be letters only
    | \b[0-9a-f]{8,}\b                                # a long hex id without any prefix
    | (?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)   # a number with its sign, point and exponent
    | \b\w*\d\w*\b                                    # a word with a digit in it: 0x7f3a, cus_N4x, 12ms
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# From an escaped quote to the quote that would close it, which is group 1, or to where the search for one ends.
_FROM_ESCAPED = {
    "'": re.compile(r"(?<!\\)(?:\\\\)*+\\'(?:[^'\\\n]|\\.)*+('(?!\w))?"),
    '"': re.compile(r'(?<!\\)(?:\\\\)*+\\"(?:[^"\\\n]|\\.)*+("(?!\w))?'),
}
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)  # characters for private use; more than a cut message can hold
_RUN_OF_VARIABLES = re.compile(r"\#(?:[-+.:,/\s]*\#)+")  # dates, lists and versions: however many parts, one value


def fingerprint(error_type: str, frames: Iterable[tuple[str, str]], message: str) -> str:
    """Twelve hex digits for the group of failures that this one belongs to.

    `frames` are (module, function), outermost first.

    >>> stack = [("shop.payments", "charge")]
    >>> fingerprint("KeyError", stack, "no order 17") == fingerprint("KeyError", stack, "no order 18")
    True
    """
    # A function counts once: the depth at which a recursion gave up says nothing about the bug.
    normalised = _alike(message) if len(message) <= _REMEMBERED_MAX else normalise(message)
    return _digest(error_type, tuple(dict.fromkeys(frames)), normalised)


@lru_cache(256)
def _digest(error_type: str, path: tuple[tuple[str, str], ...], message: str) -> str:
    from hashlib import sha256  # a program in which nothing fails need not load it

    # ascii() is unambiguous, and the same on every Python version for every character.
    return sha256(ascii((error_type, list(path), message)).encode()).hexdigest()[:12]


def normalise(message: str) -> str:
    """The message with everything that varies from event to event replaced by #."""
    return _normalised(message[:_READ_MAX])[:_KEPT_MAX]


def _normalised(text: str) -> str:
    if "\\'" in text or '\\"' in text:
        text = _without_hopeless_quotes(text)
    else:
        text = _VARIABLE.sub("#", text)
    return " ".join(_RUN_OF_VARIABLES.sub("#", text).split())


def _without_hopeless_quotes(text: str) -> str:
    """Replace the values in linear time where quotes are escaped.

    Each escaped quote may open a value, and the search for its end reads on to the next quote that is not escaped. If
    that closes nothing, all escaped quotes before it fail in the same way. `_VARIABLE` would try each of them, which
    took 137 ms for 8 kB; so they are hidden from it.
    """
    used = set(text)
    free = (chr(number) for number in _PLACEHOLDERS if chr(number) not in used)
    hidden = {quote: next(free) for quote in _FROM_ESCAPED}
    for quote, pattern in _FROM_ESCAPED.items():
        text = pattern.sub(partial(_hide, quote, hidden[quote]), text)
    text = _VARIABLE.sub("#", text)
    for quote, placeholder in hidden.items():
        text = text.replace(placeholder, quote)
    return text


def _hide(quote: str, placeholder: str, found: re.Match[str]) -> str:
    return found[0] if found[1] else found[0].replace(quote, placeholder)


_remembered = lru_cache(1024)(normalise)
_DIGITS_ALIKE = str.maketrans("123456789", "000000000")


def _alike(message: str) -> str:
    """The same, remembered: no digit survives, the patterns do not tell them apart, and often nothing else differs."""
    return _remembered(message.translate(_DIGITS_ALIKE))
