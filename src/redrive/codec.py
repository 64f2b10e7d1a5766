"""Event data as JSON bytes, and back: what is stored can always be read again.

`encode_data` refuses, with the reason, whatever JSON would change or lose: NaN and infinity, whole numbers
beyond 64 bit, keys that are not text, lone surrogates, deep nesting, too many bytes. `check_data` holds bytes from
elsewhere (an editor, an import, a broker) to the same rules. Nothing here knows event types; see `redrive.types`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from redrive.errors import EventError, Undecodable

DATA_BYTES_MAX = 1_048_576  # an event is a fact, not a file; a larger one would hold the write lock for its neighbours
DATA_DEPTH_MAX = 100  # far above any real payload, far below the recursion limit of every JSON reader
_SHALLOW_BYTES = 2 * DATA_DEPTH_MAX  # every level costs two brackets: shorter bytes cannot be deeper

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)  # what msgspec raises for bytes it cannot read

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NOT_A_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_ODD_FLOAT = re.compile(rb"\xcb[\x7f\xff]")  # MessagePack: a double whose exponent may be that of NaN or infinity


def is_pydantic(cls: type) -> bool:
    """A pydantic model or pydantic dataclass; pydantic itself is not imported to find out."""
    return hasattr(cls, "__pydantic_validator__")


def is_model(cls: type) -> bool:
    """A class with fields (Struct, dataclass, pydantic), which knows how to read its own JSON."""
    return hasattr(cls, "__struct_fields__") or hasattr(cls, "__dataclass_fields__") or is_pydantic(cls)


def _plain(value: Any) -> Any:
    """What msgspec does not encode by itself, as something it does."""
    if is_pydantic(type(value)):
        from pydantic import TypeAdapter

        # round_trip leaves computed fields out: they are not input.
        return TypeAdapter(type(value)).dump_python(value, mode="json", by_alias=True, round_trip=True)
    if isinstance(value, str):  # a subclass, say Django's SafeString; below, say numpy's float64
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


_to_json = msgspec.json.Encoder(enc_hook=_plain).encode
_from_json = msgspec.json.Decoder().decode
# The second, binary encoding is thrown away: it fails or shows where JSON would quietly change the data. It costs
# less than half a microsecond, which a walk over the tree in Python does not.
_probe = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_probe_keys = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic").encode  # refuses keys that are not str


def encode_data(data: Any) -> bytes:
    """The JSON bytes to store for `data`; EventError says what cannot be stored and what to do.

    >>> encode_data({"cents": 4200})
    b'{"cents":4200}'
    """
    cls = type(data)
    try:
        raw = _to_json(data)
        probe = (_probe_keys if cls is dict or not is_model(cls) else _probe)(data)
    except UnicodeEncodeError:
        raise EventError("data holds a lone surrogate, which is not text: decode it properly first") from None
    except OverflowError:
        raise EventError("data holds a whole number beyond 64 bit: send it as text") from None
    except RecursionError:
        raise EventError(f"data is nested deeper than {DATA_DEPTH_MAX} levels, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise EventError(_why_not(error)) from error
    if b"\xcb" in probe and _ODD_FLOAT.search(probe):
        _refuse_nan(probe)
    check_bounds(raw, EventError)
    return raw


def decode_json(raw: bytes) -> Any:
    """The stored bytes as plain Python values, or Undecodable."""
    if len(raw) > _SHALLOW_BYTES:
        check_bounds(raw, Undecodable)
    try:
        return _from_json(raw)
    except NOT_JSON as error:
        raise Undecodable(not_json(error)) from None


def check_data(raw: bytes) -> bytes:
    """Bytes from an editor, an import or a broker, unchanged, if they could have been appended; else EventError."""
    value = decode_json(raw)
    try:
        json.loads(raw, object_pairs_hook=_unique)
        _probe(value)
    except OverflowError:
        raise EventError("data holds a whole number beyond 64 bit: send it as text") from None
    except ValueError as error:
        raise EventError(str(error)) from None
    return raw


def check_bounds(raw: bytes, error: type[EventError]) -> None:
    """Refuse bytes that are too many or nested too deep, without parsing them."""
    if len(raw) > DATA_BYTES_MAX:
        raise error(
            f"data is {len(raw):,} bytes; the limit is {DATA_BYTES_MAX:,}: store the file elsewhere and refer to it"
        )
    if len(raw) > _SHALLOW_BYTES and raw.count(b"[") + raw.count(b"{") > DATA_DEPTH_MAX and _too_deep(raw):
        raise error(f"data is nested deeper than {DATA_DEPTH_MAX} levels: flatten it")


def not_json(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"data is not UTF-8 ({error.reason})"
    return f"data is not valid JSON: {error}"


def _too_deep(raw: bytes) -> bool:
    """Peel one level of brackets per round; what remains after the last allowed round is too deep."""
    rest = _STRING.sub(b"", raw).translate(_SQUARE, delete=_NOT_A_BRACKET)
    for _ in range(DATA_DEPTH_MAX):
        rest = rest.replace(b"[]", b"")
        if not rest:
            return False
    return b"[]" in rest  # unbalanced brackets are not depth; the parser will say what they are


def _why_not(error: Exception) -> str:
    text = str(error)
    if "keys are supported" in text:
        return "data has a key that is not text: JSON objects have text keys only, write str(key)"
    if "digits" in text:
        return "data holds a whole number beyond 64 bit: send it as text"
    return f"data cannot be stored as JSON: {text}"


def _refuse_nan(probe: bytes) -> None:
    path = _find_nan(msgspec.msgpack.decode(probe, strict=False), "$")
    if path:
        raise EventError(f"data holds NaN or infinity at {path}, which JSON cannot express: use null or text")


def _find_nan(value: Any, path: str) -> str | None:
    match value:
        case float():
            return None if math.isfinite(value) else path
        case dict():
            inner = ((f"{path}.{name}", item) for name, item in value.items())
        case list():
            inner = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        case _:
            return None
    return next((found for place, item in inner if (found := _find_nan(item, place))), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"data has the key {twice!r} twice in one object: readers disagree on which one counts")
    return found
