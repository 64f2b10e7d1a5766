"""From a broker's message to an event: CloudEvents, plain JSON, or bytes.

A message has named fields (of a Redis entry, or the headers of a Kafka record) and a body. What cannot be read
becomes a refusal, which lands like an event: nothing that a broker holds is passed over in silence.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from redrive import cloudevents
from redrive.codec import NOT_JSON, check_data, from_json, to_json
from redrive.errors import EventError, UsageError
from redrive.event import NewEvent, check_id, check_key, check_time, check_type, encode_headers
from redrive.sources.refusal import RAW_MAX, UNDECODABLE, refusal
from redrive.subscription import REFUSED

Format = Literal["auto", "cloudevents", "json", "raw"]
FORMATS = ("auto", "cloudevents", "json", "raw")
BINARY = ("ce_", "ce-")  # how the attributes of a CloudEvent in binary mode begin, on Kafka and on Redis


class Place(NamedTuple):
    """Where a message was, from which follows what it does not say itself."""

    id: str
    type: str
    key: str | None
    time_us: int


@dataclass(frozen=True, slots=True)
class Codec:
    """How messages are read; the names are those of the fields, or for "json" of members of the body (`meta.id`)."""

    format: Format = "auto"
    id: str = "id"
    type: str = "type"
    key: str = "key"
    time: str = "time"
    data: str = "data"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UsageError(f"format is one of {', '.join(FORMATS)}, not {self.format!r}")

    @property
    def field(self) -> str:
        """Where the body is, if it is a field among others."""
        return "data" if self.format == "json" else self.data

    def decode(self, fields: Mapping[str, bytes], body: bytes | None, place: Place) -> tuple[NewEvent, bool]:
        """The event, and whether the producer gave it its id; a refusal if it is none."""
        try:
            return self._decode(fields, body, place)
        except (EventError, UnicodeDecodeError, ValueError) as error:
            raw = body if body is not None else to_json({name: value.hex() for name, value in fields.items()})
            why = f"the message at {place.id} is no event: {error}"
            if len(raw) > RAW_MAX:
                why += f"; of its {len(raw):,} bytes the first {RAW_MAX:,} are kept"
            kind, key = self._said(fields, body)
            known = refusal(
                UNDECODABLE,
                why,
                id=place.id,
                type=_checked(kind, check_type) or REFUSED,
                key=_checked(key, check_key) or place.key,
                time_us=place.time_us,
                raw=raw,
            )
            return known, False

    def _said(self, fields: Mapping[str, bytes], body: bytes | None) -> tuple[Any, Any]:
        """Type and key of a message that cannot be read, from where they would have been taken: it holds its lane."""
        if self.format == "json":
            found = _object(body)
            return _inside(found, self.type), _inside(found, self.key)
        if self.format != "raw":
            attributes: Mapping[str, Any] = _binary(fields)
            if "specversion" not in attributes:
                attributes = _object(body)
            if "specversion" in attributes:
                key = attributes.get("partitionkey")
                return attributes.get("type"), attributes.get("subject") if key is None else key
        return fields.get(self.type), fields.get(self.key)

    def _decode(self, fields: Mapping[str, bytes], body: bytes | None, place: Place) -> tuple[NewEvent, bool]:
        if self.format != "raw" and self.format != "json":
            binary = _binary(fields)
            if "specversion" in binary:
                return self._binary(binary, body, place), True
            if body is not None and (self.format == "cloudevents" or _is_envelope(body)):
                return cloudevents.decode(body, place.time_us), True
            if self.format == "cloudevents":
                raise EventError("it has neither ce_ fields nor a body")
        if self.format == "json":
            return self._mapped(body, place)
        return self._plain(fields, body, place)

    def _binary(self, fields: Mapping[str, bytes], body: bytes | None, place: Place) -> NewEvent:
        """Attributes in the fields, the data in the body."""
        texts: dict[str, Any] = {name: value.decode() for name, value in fields.items()}
        if "redriveschema" in texts:
            texts["redriveschema"] = int(texts["redriveschema"])
        line = to_json({**texts, "data": None})
        event = cloudevents.decode(line, place.time_us)
        return event._replace(data_raw=check_data(body if body is not None else b"null"))

    def _plain(self, fields: Mapping[str, bytes], body: bytes | None, place: Place) -> tuple[NewEvent, bool]:
        known = {name: fields[name].decode() for name in (self.id, self.type, self.key, self.time) if name in fields}
        rest = {name: value for name, value in fields.items() if name not in known and name != self.data}
        if body is not None:
            data = to_json(base64.b64encode(body).decode()) if self.format == "raw" else body
            headers = {name: value.decode() for name, value in rest.items()}
        else:  # the fields themselves are what was said
            data, headers = to_json({name: value.decode() for name, value in rest.items()}), {}
        return _event(known, headers, data, place, (self.id, self.type, self.key, self.time))

    def _mapped(self, body: bytes | None, place: Place) -> tuple[NewEvent, bool]:
        """Everything is in the body."""
        if body is None:
            raise EventError("it has no body")
        try:
            found = from_json(body)
        except (*NOT_JSON, RecursionError) as error:
            raise EventError(f"not JSON: {error}") from None
        if not isinstance(found, dict):
            raise EventError("its body is not a JSON object")
        names = (self.id, self.type, self.key, self.time)
        known = {name: _word(name, value) for name in names if (value := _inside(found, name)) is not None}
        inner = _inside(found, self.data)
        data = body if inner is None and self.data not in found else to_json(inner)
        return _event(known, {}, data, place, names)


def codec_of(name: str, format: Format, codec: Codec | None) -> Codec:
    """How a source is read: by a format, or by a codec that says more."""
    if codec is None:
        return Codec(format)
    if not isinstance(codec, Codec):
        raise UsageError(f"{name}: codec= takes a Codec(…), not {codec!r}; a format goes by its name, format=")
    if format not in ("auto", codec.format):
        raise UsageError(f"{name}: format={format!r}, but the codec reads {codec.format!r}; give one of them")
    return codec


def _checked(said: Any, check: Callable[[str], str]) -> str | None:
    """What can be read of a message that cannot be read."""
    try:
        return None if said is None else check(said.decode() if isinstance(said, bytes) else _word("", said))
    except (EventError, UnicodeDecodeError):
        return None


def _binary(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """The attributes of a CloudEvent in binary mode."""
    return {name[3:]: value for name, value in fields.items() if name.startswith(BINARY)}


def _object(body: bytes | None) -> dict[str, Any]:
    """The members of a body that is a JSON object; none of any other."""
    try:
        found = from_json(body or b"")
    except (*NOT_JSON, RecursionError):  # told by whoever reads it as data
        return {}
    return found if isinstance(found, dict) else {}


def _inside(found: Any, path: str) -> Any:
    """A member, or one of a member: `meta.id`."""
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def _is_envelope(body: bytes) -> bool:
    """Is it a CloudEvent, and not data that has one, or the word, somewhere in it?"""
    return b'"specversion"' in body and "specversion" in _object(body)


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict | list):
        raise EventError(f"its {name} is neither a text nor a number")
    return str(value)


def _event(
    known: Mapping[str, str], headers: Mapping[str, str], data: bytes, place: Place, names: tuple[str, str, str, str]
) -> tuple[NewEvent, bool]:
    id, kind, key, time = (known.get(name) for name in names)
    event = NewEvent(
        check_id(id) if id else place.id,
        check_type(kind) if kind else place.type,
        check_key(key) if key else place.key,
        1,
        place.time_us if not time else _time_us(time),
        encode_headers(headers),
        check_data(data),
    )
    return event, bool(id)


def _time_us(text: str) -> int:
    if text.isdecimal():
        return check_time(int(text) * 1_000)  # milliseconds, as brokers have it
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise EventError(
            f"the time {text[:40]!r} is neither like 2026-01-31T03:00:00Z nor whole milliseconds since 1970"
        ) from None
    if found.tzinfo is None:
        raise EventError(f"the time {text!r} has no zone")
    return check_time(round(found.timestamp() * 1e6))
