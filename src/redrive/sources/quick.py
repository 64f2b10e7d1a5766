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
        self._types: dict[bytes, str] = {}
        self._keys: dict[bytes, str] = {}

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
        kind, key, is_given = self._type, None, False
        try:
            if at_type:
                raw = fields[at_type]
                kind = self._types.get(raw) or _checked(self._types, raw, check_type) or kind
            if at_key:
                raw = fields[at_key]
                key = self._keys.get(raw) or _checked(self._keys, raw, check_key)
            if at_id and fields[at_id]:
                id, is_given = check_id(fields[at_id].decode()), True
            check_data(data)
        except (EventError, ValueError):
            return None
        # As NewEvent(…) with its defaults, in a third of the time.
        return tuple.__new__(NewEvent, (id, kind, key, 1, time_us, None, data, None, False, False, None)), is_given

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


def _checked(known: dict[bytes, str], raw: bytes, check: Callable[[str], str]) -> str | None:
    """A text, remembered if it is in order; None for an empty one."""
    if not raw:
        return None
    if len(known) >= TEXTS_MAX:
        known.clear()
    text = known[raw] = check(raw.decode())
    return text
