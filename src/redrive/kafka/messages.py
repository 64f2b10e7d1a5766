"""From a Kafka message to an event: its key, its headers, and what stands for a message that has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.codec import are_plain, check_data
from redrive.errors import EventError
from redrive.event import TIME_US_MAX, NewEvent, check_id, check_key, check_type
from redrive.sources.codec import Place
from redrive.sources.port import Message, Plain
from redrive.sources.quick import ENVELOPE, TEXTS_MAX, TOGETHER_MAX
from redrive.sources.refusal import UNDECODABLE, refusal
from redrive.subscription import REFUSED

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

Headers = Sequence[tuple[str, bytes | None]]
SHOWN_BYTES_MAX = 100


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

    def __call__(self, messages: Sequence[Any]) -> list[Message | Plain]:
        """The events, or the refusals that stand for them."""
        found: list[Message | Plain] = []
        for at in range(0, len(messages), TOGETHER_MAX):
            some = messages[at : at + TOGETHER_MAX]
            values = [message.value() for message in some]
            # Most messages have nothing special about them. Others take the long way, which says what is wrong.
            is_plain = self._is_plain and are_plain(values) and ENVELOPE not in b"".join(values)
            found += self._many(some, values, is_plain=is_plain)
        return found

    def _many(
        self, messages: Sequence[Any], values: Sequence[bytes | None], *, is_plain: bool
    ) -> Iterator[Message | Plain]:
        name, prefix, keys = self._name, self.prefix, self._keys
        for message, value in zip(messages, values, strict=True):
            partition, position, raw_key = message.partition(), str(message.offset()), message.key()
            id, time_us = f"{prefix}{partition}/{position}", message.timestamp()[1] * 1_000
            key, headers = keys.get(raw_key), message.headers()
            if is_plain and not headers and 0 <= time_us <= TIME_US_MAX and (key or not raw_key):
                yield Plain(partition, position, False, id, name, key, time_us, value)  # type: ignore[arg-type]
            else:
                place = Place(id, name, None, min(max(time_us, 0), TIME_US_MAX))
                yield self._one(partition, position, place, raw_key, value, headers or (), is_plain=is_plain)

    def _one(
        self, partition: int, position: str, place: Place, raw_key: bytes | None, value: bytes | None,
        headers: Headers, *, is_plain: bool,
    ) -> Message | Plain:  # fmt: skip
        try:
            if raw_key:
                place = place._replace(key=_text(self._keys, raw_key, check_key))
        except (EventError, UnicodeDecodeError) as error:
            return Message(partition, position, _keyless(place, raw_key or b"", value, error), False)
        quick = self._quick(partition, position, place, value, headers, is_plain=is_plain)
        return quick or Message(partition, position, *self._decoded(headers, value, place))

    def _quick(
        self, partition: int, position: str, place: Place, value: bytes | None, headers: Headers, *, is_plain: bool
    ) -> Plain | None:
        """With headers for the type and the id, and no others. None: take the long way."""
        if not self._is_plain or value is None or (not is_plain and ENVELOPE in value):
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
            id = check_id(given.decode()) if given else place.id
            if not is_plain:
                check_data(value)
        except (EventError, UnicodeDecodeError):
            return None
        return Plain(partition, position, bool(given), id, kind, place.key, place.time_us, value)

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


def _keyless(place: Place, key: bytes, value: bytes | None, error: Exception) -> NewEvent:
    shown = key[:SHOWN_BYTES_MAX].hex(" ") + (" …" if len(key) > SHOWN_BYTES_MAX else "")
    why = f"the message at {place.id} is no event: its key ({shown}) cannot be one: {error}"
    return refusal(UNDECODABLE, why, id=place.id, type=REFUSED, key=None, time_us=place.time_us, raw=value or b"")
