"""From a Kafka message to an event: its key, its headers, and what stands for a message that has no value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.errors import EventError
from redrive.event import NewEvent, check_key
from redrive.sources.codec import Place
from redrive.sources.port import Message
from redrive.sources.refusal import UNDECODABLE, refusal
from redrive.subscription import REFUSED

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

SHOWN_BYTES_MAX = 100


class Decoder:
    """Reads the messages of one topic."""

    def __init__(self, topic: Topic) -> None:
        self._name, self._codec = topic.name, topic.codec
        self._decode = topic.codec.decode
        self._decode_null = replace(topic.codec, format="auto").decode
        # Partitions are chosen by the key of the message: what it is, order is kept by. A mapping may say otherwise.
        self._key_is_the_messages = topic.codec.format != "json"
        generation = "" if topic.generation == 1 else f"~{topic.generation}"  # offsets begin again, ids must not
        self.prefix = f"{topic.name}{generation}/"

    def __call__(self, message: Any) -> Message:
        """The event, or the refusal that stands for it."""
        partition, offset = message.partition(), message.offset()
        id, time_us = f"{self.prefix}{partition}/{offset}", max(message.timestamp()[1], 0) * 1_000
        raw_key, value, headers = message.key(), message.value(), message.headers()
        try:
            key = check_key(raw_key.decode()) if raw_key else None
        except (EventError, UnicodeDecodeError) as error:
            return Message(partition, str(offset), _keyless(id, time_us, raw_key, value, error), False)
        fields = {name: _readable(text) for name, text in headers} if headers else {}
        place = Place(id, self._name, key, time_us)
        if value is not None:
            event, has_id = self._decode(fields, value, place)
        else:  # a tombstone: what its key stood for is no more
            event, has_id = self._decode_null(fields, b"null", place)
        if key is not None and event.key != key and (self._key_is_the_messages or event.key is None):
            event = event._replace(key=key)
        return Message(partition, str(offset), event, has_id)


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
