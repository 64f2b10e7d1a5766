"""Event data as JSON bytes, and back: what is stored can always be read again.

`encode_data` refuses, with the reason, whatever JSON would change or lose: NaN and infinity, whole numbers
beyond 64 bit, keys that are not text, lone surrogates, deep nesting, too many bytes. `check_data` holds bytes from
elsewhere (an editor, an import, a broker) to the same rules. Nothing here knows event types; see `redrive.types`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.errors import EventError, Undecodable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

DATA_BYTES_MAX = 1_048_576  # an event is a fact, not a file; a larger one would hold the write lock for its neighbours
DATA_DEPTH_MAX = 100  # far above any real payload, far below the recursion limit of every JSON reader

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)  # what msgspec raises for bytes it cannot read

_NOT_A_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # NaN or infinity in MessagePack; or other bytes, by chance
_OPEN, _CLOSE = set(b"{"), set(b"}")
_ENCODED = frozenset({msgspec.Raw, bytes, bytearray, memoryview})


def is_pydantic(cls: type) -> bool:
    """A pydantic model or pydantic dataclass; pydantic itself is not imported to find out."""
    return hasattr(cls, "__pydantic_validator__")


def is_model(cls: type) -> bool:
    """A class with fields (Struct, dataclass, pydantic), which knows how to read its own JSON."""
    return hasattr(cls, "__struct_fields__") or hasattr(cls, "__dataclass_fields__") or is_pydantic(cls)


@lru_cache(maxsize=1_000)  # building one costs 10 µs; a program has a few dozen models
def adapter(cls: type) -> TypeAdapter[Any]:
    """pydantic's reader and writer for a class."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _plain(value: Any) -> Any:
    """What msgspec does not encode by itself, as something it does."""
    if is_pydantic(type(value)):
        return _dump(value)
    if isinstance(value, str):  # a subclass, say Django's SafeString; below, say numpy's float64
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if value is None or isinstance(value, tuple | frozenset):  # as values they are encoded without asking us
        raise TypeError("only text keys are supported")
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


def _dump(model: Any) -> Any:
    cls: Any = type(model)
    dump = adapter(cls).dump_python
    # round_trip leaves computed fields out: they are not input. A field of the wrong type is an error.
    plain = dump(model, mode="json", by_alias=True, round_trip=True, warnings="error")
    if b"null" in _to_json(plain):  # pydantic writes NaN as null as well, where the field may be anything
        _refuse_nan(dump(model, round_trip=True))
    return plain


_to_json = msgspec.json.Encoder(enc_hook=_plain).encode
from_json = msgspec.json.Decoder().decode
_from_lines = msgspec.json.Decoder().decode_lines
to_json = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode
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
    if cls in _ENCODED:
        return _ready_made(data)
    try:
        if cls is dict or not is_model(cls):
            raw, probe = _to_json(data), _probe_keys(data)
        else:  # a model may have keys of other types: it turns them back when it is read
            plain = _dump(data) if is_pydantic(cls) else data
            raw, probe = _to_json(plain), _probe(plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventError(_why_not(error)) from error
    if len(raw) > 2 * DATA_DEPTH_MAX:  # every level costs two brackets: shorter bytes cannot be deeper
        _check_bounds(raw)
    # A byte is found in bytes five times as fast as a text of one byte.
    if 0xCB in probe and (0x7F in probe or 0xFF in probe) and _NOT_FINITE.search(probe):
        _refuse_nan(msgspec.msgpack.decode(probe))
    return raw


def decode_json(raw: bytes) -> Any:
    """The stored bytes as plain Python values, or Undecodable."""
    try:
        return from_json(raw)
    except (*NOT_JSON, RecursionError) as error:
        raise Undecodable(not_json(error, raw)) from None


def is_same_json(one: bytes, other: bytes) -> bool:
    """Do they say the same, however the names are ordered and whatever stands between them?"""
    if one == other:
        return True
    try:
        return _sorted(from_json(one)) == _sorted(from_json(other))
    except (*NOT_JSON, RecursionError):  # what a broker gave may be anything
        return False


def not_json(error: Exception, raw: bytes) -> str:
    """Why these bytes could not be read. A RecursionError that is not their fault is raised again."""
    if isinstance(error, UnicodeDecodeError):
        return f"data is not UTF-8: {error.reason}"
    if isinstance(error, RecursionError):
        if not is_deep(raw):
            raise error
        return f"data is nested deeper than {DATA_DEPTH_MAX} levels"
    return f"data is not valid JSON: {error}"


def check_data(raw: bytes) -> bytes:
    """Bytes from an editor, an import or a broker, unchanged, if they could have been appended; else EventError.

    >>> check_data(b'{"cents": 1, "cents": 2}')
    Traceback (most recent call last):
    redrive.errors.EventError: data has the key 'cents' twice in one object: readers disagree on which one counts
    """
    _check_bounds(raw)
    value = decode_json(raw)
    try:
        _probe(value)
        if _has_escaped(raw) or to_json(value).count(b'"') != raw.count(b'"'):
            json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, OverflowError) as error:
        raise EventError(_why_not(error)) from None
    return raw


def are_plain(raws: Sequence[bytes]) -> bool:
    """Whether these are objects that `check_data` accepts, found for all at once. False: ask it about each.

    What is not closed cannot be closed by the next one: between them is a line's end, which no text may have, and
    behind a brace nothing begins with another but a new object. So as many values as lines are one in each.
    """
    if not all(raws) or {raw[0] for raw in raws} != _OPEN or {raw[-1] for raw in raws} != _CLOSE:
        return False
    if max(map(len, raws)) > DATA_BYTES_MAX:
        return False
    lines = b"\n".join(raws)
    try:
        values = _from_lines(lines)
        _probe(values)
        if len(values) != len(raws):
            return False
        # As many names as colons: none comes twice, and none inside of another. What is deep would need lists.
        if 0x5B not in lines and lines.count(b":") == sum(map(len, values)):
            return True
        is_same = not _has_escaped(lines) and to_json(values).count(b'"') == lines.count(b'"')
    except (*NOT_JSON, ValueError, OverflowError, RecursionError):
        return False
    return is_same and not any(map(_has_many_brackets, raws))


def _has_escaped(raw: bytes) -> bool:
    """A name that comes twice is gone from the value, and its quotes with it. Only \\u0022 is a quote that has none."""
    return 0x5C in raw and b"u0022" in raw


def is_deep(raw: bytes) -> bool:
    """Whether JSON bytes are nested deeper than allowed, found without parsing them."""
    # Every second piece between quotes is outside of texts, once escaped backslashes and quotes are gone.
    outside = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    rest = b"".join(outside).translate(_SQUARE, delete=_NOT_A_BRACKET)
    for _ in range(DATA_DEPTH_MAX):  # each round peels off the innermost level
        rest = rest.replace(b"[]", b"")
        if not rest:
            return False
    return b"[]" in rest  # unbalanced brackets are not depth; the parser will say what they are


def _check_bounds(raw: bytes) -> None:
    if len(raw) > DATA_BYTES_MAX:
        size = f"data is {len(raw):,} bytes; the limit is {DATA_BYTES_MAX:,}"
        raise EventError(f"{size}: store the large part elsewhere and refer to it")
    if len(raw) > DATA_DEPTH_MAX and _has_many_brackets(raw) and is_deep(raw):
        raise EventError(f"data is nested deeper than {DATA_DEPTH_MAX} levels: flatten it")


def _has_many_brackets(raw: bytes) -> bool:
    return raw.count(b"[") + raw.count(b"{") > DATA_DEPTH_MAX


def _why_not(error: Exception) -> str:
    text = str(error)
    if isinstance(error, UnicodeEncodeError):
        return "data holds a lone surrogate, which is not text: decode it properly first"
    if isinstance(error, RecursionError):
        return f"data is nested deeper than {DATA_DEPTH_MAX} levels, or contains itself"
    if isinstance(error, OverflowError) or "integer string conversion" in text:
        return "data holds a whole number beyond 64 bit, which other readers of JSON round: send it as text"
    if "keys are supported" in text:
        return "data has a key that is not text: JSON objects have text keys only, write str(key)"
    return text if text.startswith("data ") else f"data cannot be stored as JSON: {text}"


def _ready_made(data: Any) -> bytes:
    if isinstance(data, msgspec.Raw):
        return check_data(bytes(data))
    raise EventError("data is bytes: give the value, or JSON that is encoded already as msgspec.Raw(data)")


def _refuse_nan(value: Any) -> None:
    path = _find_nan(value, "$")
    if path:
        raise EventError(f"data holds NaN or infinity at {path}, which JSON cannot express: use null or text")


def _find_nan(value: Any, path: str) -> str | None:
    match value:
        case float():
            return None if math.isfinite(value) else path
        case dict():  # the names as well: those of dict[float, …] are numbers here
            inner = ((f"{path}.{name}", part) for name, item in value.items() for part in (name, item))
        case list() | tuple() | set() | frozenset():
            inner = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        case _:
            return None
    return next((found for place, item in inner if (found := _find_nan(item, place))), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"data has the key {twice!r} twice in one object: readers disagree on which one counts")
    return found
