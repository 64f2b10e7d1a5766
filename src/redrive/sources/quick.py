"""The way of most messages through a codec: the same few fields every time, and nothing special in them.

What is not quite like that takes the long way, which also says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redrive.codec import check_data
from redrive.errors import EventError
from redrive.event import NewEvent, check_id, check_key, check_type
from redrive.sources.codec import Codec

SHAPES_MAX = 1_000  # lists of field names that are remembered: more would be names that are made up
TEXTS_MAX = 10_000  # types, or keys

Shape = tuple[int, int, int, int]  # where the values of id, type, key and data are; 0: there is none, a name is there


class Quick:
    """Reads messages whose fields come in a row: name, value, name, value."""

    def __init__(self, codec: Codec, type: str) -> None:
        self._names = tuple(name.encode() for name in (codec.id, codec.type, codec.key, codec.data))
        self._is_plain = codec.format == "auto"
        self._type = type
        self._shapes: dict[tuple[bytes, ...], Shape | None] = {}
        self._types: dict[bytes, str | None] = {}
        self._keys: dict[bytes, str | None] = {}

    def decode(self, fields: Sequence[bytes], id: str, time_us: int) -> tuple[NewEvent, bool] | None:
        """The event, and whether its producer gave it its id; None: take the long way."""
        names = tuple(fields[::2])
        try:
            shape = self._shapes[names]
        except KeyError:
            shape = self._learn(names)
        if shape is None:
            return None
        at_id, at_type, at_key, at_data = shape
        data = fields[at_data]
        if b'"specversion"' in data:
            return None
        key, kind, given = None, self._type, b""
        try:
            if at_type:
                kind = _text(self._types, fields[at_type], check_type) or kind
            if at_key:
                key = _text(self._keys, fields[at_key], check_key)
            if at_id and (given := fields[at_id]):
                id = check_id(given.decode())
            check_data(data)
        except (EventError, ValueError):
            return None
        return NewEvent(id, kind, key, 1, time_us, None, data, None, False), bool(given)

    def _learn(self, names: tuple[bytes, ...]) -> Shape | None:
        """Where each of the fields is; None, if there are others, or one comes twice."""
        shape = None
        if (
            self._is_plain
            and self._names[3] in names
            and len(set(names)) == len(names)
            and set(names) <= {*self._names}
        ):
            at_id, at_type, at_key, at_data = (
                2 * names.index(name) + 1 if name in names else 0 for name in self._names
            )
            shape = at_id, at_type, at_key, at_data
        if len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
        self._shapes[names] = shape
        return shape


def _text(known: dict[bytes, str | None], raw: bytes, check: Callable[[str], str]) -> str | None:
    """A text that was checked, now or before; None for an empty one."""
    try:
        return known[raw]
    except KeyError:
        text = check(raw.decode()) if raw else None
        if len(known) >= TEXTS_MAX:
            known.clear()
        known[raw] = text
        return text
