"""The way of most messages through a codec: the same few fields every time, and nothing special in them.

What is not quite like that takes the long way, which also says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redrive.codec import are_plain, check_data
from redrive.errors import EventError
from redrive.event import check_id, check_key, check_type
from redrive.sources.codec import Codec
from redrive.sources.port import Plain

SHAPES_MAX = 1_000  # lists of field names that are remembered: more would be names that are made up
TEXTS_MAX = 10_000  # types, or keys
TOGETHER_MAX = 100  # messages whose data is checked at once; one that is special has each of them checked by itself
ENVELOPE = b"specversion"  # has a CloudEvent that is the whole data

Shape = tuple[int, int, int, int]  # where the values of id, type, key and data are; 0: there is none, a name is there


class Quick:
    """Reads messages whose fields come in a row: name, value, name, value."""

    def __init__(self, codec: Codec, type: str) -> None:
        self._names = tuple(name.encode() for name in (codec.id, codec.type, codec.key, codec.data))
        self._is_plain = codec.format == "auto"
        self._type = type
        self._shapes: dict[tuple[bytes, ...], Shape | None] = {}
        self._last: tuple[list[bytes], Shape] | None = None  # names and shape of the last message that had one
        self._types: dict[bytes, str] = {}
        self._keys: dict[bytes, str] = {}

    def checked(self, messages: Sequence[Sequence[Any]]) -> Sequence[bytes | None]:
        """Where the last message had its data: what these have there, if all of it is data with nothing special."""
        nothing = [None] * len(messages)
        if self._last is None:
            return nothing
        at = self._last[1][3]
        try:
            found: list[bytes] = [fields[at] for _, fields in messages]
        except (TypeError, IndexError, KeyError):  # one has no fields, or fewer
            return nothing
        return found if are_plain(found) and ENVELOPE not in b"".join(found) else nothing

    def decode(
        self, fields: list[bytes], partition: int, position: str, id: str, time_us: int, checked: bytes | None = None
    ) -> Plain | None:
        """The message, if there is nothing special about it; None: take the long way.

        `checked`: these very bytes are known to be in order, if they are the data.
        """
        names, last = fields[::2], self._last
        if last is None or last[0] != names:
            shape = self._shape(names)
            if shape is None:
                return None
            last = self._last = names, shape
        at_id, at_type, at_key, at_data = last[1]
        data = fields[at_data]
        if data is not checked and ENVELOPE in data:
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
            if data is not checked:
                check_data(data)
        except (EventError, ValueError):
            return None
        return Plain(partition, position, is_given, id, kind, key, time_us, data)

    def _shape(self, fields: list[bytes]) -> Shape | None:
        names = tuple(fields)
        try:
            return self._shapes[names]
        except KeyError:
            return self._learn(names)

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
