"""Ids of stream entries: two numbers, compared as numbers. As texts, 9-0 comes after 10-0."""

from __future__ import annotations

Id = tuple[int, int]
FIRST = "0-0"
NUMBER_MAX = 2**64 - 1


def id_of(text: str | bytes) -> Id:
    """The id of an entry.

    >>> id_of("9-0") < id_of("10-0")
    True
    """
    milliseconds, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(milliseconds), int(number or 0)


def before(text: str | bytes) -> str:
    """The last id that is smaller.

    >>> before("5-0")
    '4-18446744073709551615'
    """
    milliseconds, number = id_of(text)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{NUMBER_MAX}" if milliseconds else FIRST
