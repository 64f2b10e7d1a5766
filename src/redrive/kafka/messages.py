"""From a Kafka message to an event: its key, its headers, and what stands for a message that has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.codec import check_data
from redrive.errors import EventError
from redrive.event import NewEvent, check_id, check_key, check_type
from redrive.sources.codec import Place
from redrive.sources.port import Message
from redrive.sources.refusal import UNDECODABLE, refusal
from redrive.subscription import REFUSED

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

Headers = Sequence[tuple[str, bytes | None]]
SHOWN_BYTES_MAX = 100
TEXTS_MAX = 10_000  # keys, or types, that are remembered as checked


class Decoder:
    """Reads the messages of one topic."""

    def __init__(self, topic: Topic) -> None:
        codec = topic.codec
        self._name, self._id, self._type = topic.name, codec.id, codec.type
        self._decode, self._decode_null = codec.decode, replace(codec, format="auto").decode
        self._is_plain = codec.format == "auto"
        # Partitions are chosen by the key of the message: what it is, order is kept by. A mapping may say otherwise.
        self._is_mapped = codec.format == "json"
        self._keys: dict[bytes, str] = {}
        self._types: dict[bytes, str] = {}
        generation = "" if topic.generation == 1 else f"~{topic.generation}"  # offsets begin again, ids must not
        self.prefix = f"{topic.name}{generation}/"

    def __call__(self, messages: Iterable[Any]) -> list[Message]:
        """The events, or the refusals that stand for them."""
        found, name, prefix, keys, is_plain = [], self._name, self.prefix, self._keys, self._is_plain
        for message in messages:
            partition, offset, raw_key, value = message.partition(), message.offset(), message.key(), message.value()
            id, time_us = f"{prefix}{partition}/{offset}", message.timestamp()[1] * 1_000
            key, headers = keys.get(raw_key), message.headers()
            # Most messages have nothing special about them. Others take the long way, which says what is wrong.
            if is_plain and not headers and value and time_us >= 0 and (key or not raw_key):
                try:
                    if b'"specversion"' not in value:
                        event = NewEvent(id, name, key, 1, time_us, None, check_data(value), None, False)
                        found.append(Message(partition, str(offset), event, False))
                        continue
                except EventError:
                    pass
            found.append(self._one(partition, offset, id, max(time_us, 0), raw_key, value, headers or ()))
        return found

    def _one(
        self, partition: int, offset: int, id: str, time_us: int, raw_key: bytes | None, value: bytes | None,
        headers: Headers,
    ) -> Message:  # fmt: skip
        try:
            key = _text(self._keys, raw_key, check_key) if raw_key else None
        except (EventError, UnicodeDecodeError) as error:
            return Message(partition, str(offset), _keyless(id, time_us, raw_key or b"", value, error), False)
        event, has_id = (
            self._quick(headers, value, id, key, time_us)
            or self._decoded(headers, value, Place(id, self._name, key, time_us))
        )  # fmt: skip
        return Message(partition, str(offset), event, has_id)

    def _quick(
        self, headers: Headers, value: bytes | None, id: str, key: str | None, time_us: int
    ) -> tuple[NewEvent, bool] | None:
        """With headers for the type and the id, and no others. None: take the long way."""
        if not self._is_plain or value is None or b'"specversion"' in value:
            return None
        kind, given = self._name, b""
        try:
            for name, text in headers:
                if name == self._type and text:
                    kind = _text(self._types, text, check_type)
                elif name == self._id and text:
                    given = text
                else:
                    return None
            if given:
                id = check_id(given.decode())
            check_data(value)
        except (EventError, UnicodeDecodeError):
            return None
        return NewEvent(id, kind, key, 1, time_us, None, value, None, False), bool(given)

    def _decoded(self, headers: Headers, value: bytes | None, place: Place) -> tuple[NewEvent, bool]:
        fields = {name: _readable(text) for name, text in headers}
        if value is not None:
            event, has_id = self._decode(fields, value, place)
        else:  # a tombstone: what its key stood for is no more
            event, has_id = self._decode_null(fields, b"null", place)
        if place.key is not None and event.key != place.key and (event.key is None or not self._is_mapped):
            event = event._replace(key=place.key)
        return event, has_id


def _text(known: dict[bytes, str], raw: bytes, check: Callable[[str], str]) -> str:
    """A text that was checked, now or before."""
    try:
        return known[raw]
    except KeyError:
        if len(known) >= TEXTS_MAX:
            known.clear()
        text = known[raw] = check(raw.decode())
        return text


def _readable(text: bytes | None) -> bytes:
    """A header's value as text; what is none, such as the ids of some tracers, in hexadecimal digits."""
    if not text or text.isascii():
        return text or b""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.hex().encode()
    return text


def _keyless(id: str, time_us: int, key: bytes, value: bytes | None, error: Exception) -> NewEvent:
    shown = key[:SHOWN_BYTES_MAX].hex(" ") + (" …" if len(key) > SHOWN_BYTES_MAX else "")
    why = f"the message at {id} is no event: its key ({shown}) is no text: {error}"
    return refusal(UNDECODABLE, why, id=id, type=REFUSED, key=None, time_us=time_us, raw=value or b"")
