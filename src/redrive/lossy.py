"""Values that JSON does not give back as they were appended: the program is warned when it appends them.

Data without a class is stored as JSON. A `datetime` comes back as text, a set as a list. A class that is marked with
`@redrive.event` gives both back, because it knows the types of its fields.
"""

from __future__ import annotations

import enum
import sys
import warnings
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

from redrive.codec import is_model

VALUES_MAX = 1_000  # values looked at in one event: a large one must not hold up its append

_FORMS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((str, int, float), ""),  # also subclasses, such as a StrEnum: they are equal to what comes back
    (datetime, "text in ISO 8601"),
    ((date, time), "text in ISO 8601"),
    (timedelta, "text in ISO 8601"),
    ((Decimal, UUID), "text"),
    ((bytes, bytearray, memoryview), "text in base64"),
    ((set, frozenset), "a list in no fixed order"),
    (enum.Enum, "its value"),
)


class LossyDataWarning(UserWarning):
    """Data of an event comes back as something else than was appended."""


def warn_of_loss(name: str, data: Any) -> None:
    """Warn, at the line of the program that appends, if some value of this data would come back as another type."""
    found = find_loss(data)
    if found is None:
        return
    path, value, form = found
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "redrive":
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{name}: data holds a {type(value).__qualname__} at {path}, which comes back as {form}. Convert it before you "
        f"append, or append a class marked with @redrive.event({name!r}), which gives it back",
        LossyDataWarning,
        stacklevel=level,
    )


def find_loss(data: Any) -> tuple[str, Any, str] | None:
    """The first value that comes back as another type: where it is, the value, and as what.

    >>> find_loss({"at": date(2026, 1, 31)})
    ('$.at', datetime.date(2026, 1, 31), 'text in ISO 8601')
    """
    for path, value in islice(_values(data, "$"), VALUES_MAX):
        form = _form(value)
        if form:
            return path, value, form
    return None


def _form(value: Any) -> str:
    """What comes back in the place of this value; "" if it is the same."""
    for types, form in _FORMS:
        if isinstance(value, types):
            return form
    return "a dict" if is_model(type(value)) else ""


def _values(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, data
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _values(value, f"{path}.{name}")
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _values(value, f"{path}[{index}]")
