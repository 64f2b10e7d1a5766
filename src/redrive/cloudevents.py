"""Events as CloudEvents 1.0 in JSON, one to a line, or as HTTP headers; and back from a line without loss.

The key is `partitionkey` (and `subject`). A header is an extension attribute where CloudEvents allows its name; the
others are in `redriveheaders`. The data keeps its bytes: an event that comes back is recognised as the same.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec

from redrive.codec import NOT_JSON, check_data, from_json, to_json
from redrive.errors import EventError, Undecodable
from redrive.event import NewEvent, Stored, check_id, check_key, check_time, check_type, encode_headers

SOURCE = "urn:redrive:log:"
LINE_BYTES_MAX = 4_000_000  # the data as base64, the headers, and room for escapes

_KNOWN = (
    "specversion", "id", "source", "type", "subject", "partitionkey", "time", "datacontenttype", "data",
    "data_base64", "redriveschema", "redriveheaders",
)  # fmt: skip
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}")  # what CloudEvents lets an extension be called
_JSON_TYPE = re.compile(r"application/json\b|[^;]*\+json\b", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(0, 0, 1)
_HEADERS: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(dict[str, str])
_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SCHEMA_MAX = 1_000_000
_UNESCAPED = (
    "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # of what can be printed, all but the space, the quote and the percent sign
)
_PLAIN = re.compile(r"[!#$&-~]*")
# What some readers take for the end of a line besides those that JSON has to escape: NEL, and the separators.
_LINE_ENDS = {text.encode(): f"\\u{ord(text):04x}".encode() for text in ("\x85", "\u2028", "\u2029")}


@lru_cache(256)
def source_of(log: str) -> str:
    """The `source` of the events of a log.

    >>> source_of("orders")
    'urn:redrive:log:orders'
    """
    return SOURCE + quote(log, safe="")


def attributes(row: Stored, source: str) -> dict[str, Any]:
    """Everything but the data."""
    fields: dict[str, Any] = {
        "specversion": "1.0", "id": row.id, "source": source, "type": row.type,
        "time": time_text(row.time_us),
    }  # fmt: skip
    if row.key is not None:
        fields["subject"] = fields["partitionkey"] = row.key
    if row.schema != 1:
        fields["redriveschema"] = row.schema
    if row.headers_raw is not None:
        _add_headers(fields, row.headers_raw)
    fields["datacontenttype"] = "application/json"
    return fields


def time_text(time_us: int) -> str:
    """A time as CloudEvents writes it.

    >>> time_text(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    """
    return f"{_second(time_us // 1_000_000)}.{time_us % 1_000_000:06d}Z"


@lru_cache(1_024)  # a batch has few: a third of the cost of a line otherwise
def _second(since_1970: int) -> str:
    return (_EPOCH + timedelta(seconds=since_1970)).isoformat().removesuffix("+00:00")


def _add_headers(fields: dict[str, Any], raw: bytes) -> None:
    hidden: dict[str, str] = {}
    try:
        headers = _HEADERS.decode(raw)
    except NOT_JSON as error:
        raise Undecodable(f"{fields['type']}: headers: {error}") from None
    for name, text in headers.items():
        is_attribute = _ATTRIBUTE.fullmatch(name) and name not in _KNOWN and text
        (fields if is_attribute else hidden)[name] = text
    if hidden:
        fields["redriveheaders"] = to_json(hidden).decode()


def encode(row: Stored, source: str) -> bytes:
    """One event as a line, without its end."""
    raw = row.data_raw
    assert raw is not None
    fields = attributes(row, source)
    if _fits_a_line(raw):
        fields["data"] = msgspec.Raw(raw)
    else:
        fields["data_base64"] = base64.b64encode(raw).decode()
    return one_line(to_json(fields))  # not in the data, so in the text of an attribute


def one_line(line: bytes) -> bytes:
    """JSON that nobody takes for two lines."""
    if not line.isascii():
        for end, escape in _LINE_ENDS.items():
            line = line.replace(end, escape)
    return line


def http_headers(row: Stored, source: str) -> dict[str, str]:
    """The headers of an event in binary mode, where the body is the data as it is stored."""
    if row.headers_raw is not None or row.schema != 1:
        fields = attributes(row, source)
        kind = fields.pop("datacontenttype")
        return {"content-type": kind, **{f"ce-{name}": header_text(str(value)) for name, value in fields.items()}}
    headers = _common_headers(source, row.type).copy()  # the ordinary event, by hand: every delivery takes it
    headers["ce-id"], headers["ce-time"] = header_text(row.id), time_text(row.time_us)
    if row.key is not None:
        headers["ce-subject"] = headers["ce-partitionkey"] = header_text(row.key)
    return headers


@lru_cache(1_024)
def _common_headers(source: str, type: str) -> dict[str, str]:
    """What all events of a type have in common."""
    common = {"specversion": "1.0", "source": header_text(source), "type": header_text(type)}
    return {"content-type": "application/json", **{f"ce-{name}": text for name, text in common.items()}}


def header_text(text: str) -> str:
    """A text as CloudEvents puts it into an HTTP header: spaces, quotes, percent signs and non-ASCII are escaped.

    >>> header_text("Köln 50%")
    'K%C3%B6ln%2050%25'
    """
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_UNESCAPED)


def _fits_a_line(raw: bytes) -> bool:
    """JSON that is read back byte for byte: nothing in it that anybody takes for a line end, no blank around it."""
    if 0x0A in raw or 0x0D in raw or raw != raw.strip():  # a byte is found sooner than a text of one byte
        return False
    if not raw.isascii() and any(end in raw for end in _LINE_ENDS):
        return False
    try:
        from_json(raw)
    except (*NOT_JSON, RecursionError):
        return False
    return True


def decode(line: bytes, now_us: int) -> NewEvent:
    """The event of a line; EventError says what is wrong with it."""
    try:
        fields = _FIELDS.decode(line)
    except (*NOT_JSON, RecursionError) as error:
        raise EventError(f"not a JSON object: {error}") from None
    version = _text(fields, "specversion")
    if version != "1.0":
        raise EventError("no specversion: not a CloudEvent" if version is None else f"specversion {version!r}, not 1.0")
    headers = _headers(fields)
    key, subject = _text(fields, "partitionkey"), _text(fields, "subject")
    if key is None:
        key = subject
    elif subject not in (None, key):
        headers.setdefault("subject", str(subject))
    return NewEvent(
        check_id(_needed(fields, "id")),
        check_type(_needed(fields, "type")),
        None if key is None else check_key(key),
        _schema(fields),
        _time(_text(fields, "time"), now_us),
        encode_headers(headers),
        check_data(_data(fields)),
    )


def data_of(line: bytes) -> bytes:
    """The data of a line that `encode` has made, whether or not its event could be appended."""
    return check_data(_data(_FIELDS.decode(line)))


def _text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    value = None if raw is None else from_json(raw)
    if value is not None and not isinstance(value, str):
        raise EventError(f"{name} is not text")
    return value


def _needed(fields: dict[str, msgspec.Raw], name: str) -> str:
    found = _text(fields, name)
    if found is None:
        raise EventError(f"it has no {name}")
    return found


def _schema(fields: dict[str, msgspec.Raw]) -> int:
    raw = fields.get("redriveschema")
    schema = 1 if raw is None else from_json(raw)
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= _SCHEMA_MAX:
        raise EventError("redriveschema is not a whole number from 1 up")
    return schema


def _headers(fields: dict[str, msgspec.Raw]) -> dict[str, str]:
    """Extensions, what came from elsewhere, and headers that CloudEvents has no name for."""
    found: dict[str, str] = {}
    source = _needed(fields, "source")
    if not source.startswith(SOURCE):
        found["source"] = source
    for name, raw in fields.items():
        if name not in _KNOWN:
            value = from_json(raw)
            if isinstance(value, dict | list):
                raise EventError(f"the attribute {name!r} is not a simple value")
            if value is not None:
                found[name] = value if isinstance(value, str) else bytes(raw).decode()
    hidden = _text(fields, "redriveheaders")
    if hidden is not None:
        try:
            found |= _HEADERS.decode(hidden)
        except NOT_JSON:
            raise EventError("redriveheaders is not a JSON object of texts") from None
    return found


def _time(text: str | None, now_us: int) -> int:
    if text is None:
        return now_us
    if not _TIME.fullmatch(text):
        raise EventError(f"time {text!r} is not like 2026-01-31T03:00:00Z")
    try:
        return check_time((datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND)
    except (ValueError, OverflowError) as error:
        raise EventError(f"time {text!r}: {error}") from None


def _data(fields: dict[str, msgspec.Raw]) -> bytes:
    packed = _text(fields, "data_base64")
    if packed is None:
        return bytes(fields.get("data", b"null"))
    if "data" in fields:
        raise EventError("it has both data and data_base64")
    kind = _text(fields, "datacontenttype") or "application/json"
    if not _JSON_TYPE.match(kind):
        raise EventError(f"its data is {kind}, and a log holds JSON")
    try:
        return base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        raise EventError("data_base64 is not base64") from None
