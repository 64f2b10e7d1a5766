"""What an event is: the value every function receives, its identifiers, and what its names may contain.

`Event` is created once per event and subscription, so it is a row and nothing more: time, headers and data are
decoded when somebody asks. It never changes; an edited event is another one (`with_data`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from redrive.codec import NOT_JSON, from_json
from redrive.errors import EventError, Undecodable, UsageError

if TYPE_CHECKING:
    from redrive.types import EventTypes

T_co = TypeVar("T_co", covariant=True)

KEY_BYTES_MAX = 512  # part of several indexes; longer keys are documents, not names
NAME_CHARS_MAX = 200  # types and ids: they appear in every listing, metric and log line
HEADERS_BYTES_MAX = 16_384  # what common HTTP servers take for all headers together, so that any sink can pass them on

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_US_MIN, TIME_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999: all a datetime has
# uuid5 of NAMESPACE_URL and urn:redrive:emission, without the module. Must never change: stored ids are made of it.
_EMISSIONS = bytes.fromhex("808ee307dc3851d8819790bc9d0d08c0")
_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # a UUID keeps two bits of this digit
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HEADERS: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(dict[str, str])


class Event(msgspec.Struct, Generic[T_co], frozen=True, eq=False, gc=False):  # nothing in it refers back to it
    """One stored event; `Event[OrderPlaced]` when its data is typed, `Event[Any]` when it is plain JSON.

    The arguments are a row of the store, in its order, and the registry that decodes the data.
    """

    position: int
    id: str
    type: str
    key: str | None
    version: int | None
    schema: int
    time_us: int
    headers_raw: bytes | None
    data_raw: bytes
    types: EventTypes
    _data: Any = UNSET

    @property
    def data(self) -> T_co:
        """The decoded payload; raises Undecodable if it does not fit the event's type."""
        data = self._data
        if data is UNSET:
            try:  # nearly all are plain JSON, and one more call would take as long as reading it
                data = from_json(self.data_raw) if self.type in self.types.plain else UNSET
            except (*NOT_JSON, RecursionError):
                data = UNSET
            if data is UNSET:  # there is more to it, or to be said of it
                data = self.types.decode(self.type, self.schema, self.data_raw)
            force_setattr(self, "_data", data)
        return data  # type: ignore[no-any-return]

    @property
    def time(self) -> datetime:
        """When it was appended (or when the producer says it happened): aware, in UTC."""
        return EPOCH + timedelta(0, 0, self.time_us)

    @property
    def due(self) -> datetime | None:
        """When it will be appended, if it is scheduled; None for an event of the log."""
        return None

    @property
    def headers(self) -> dict[str, str]:
        """Names and texts that travel with the event; a fresh dict each time."""
        if self.headers_raw is None:
            return {}
        try:
            return _HEADERS.decode(self.headers_raw)
        except NOT_JSON as error:
            raise Undecodable(f"{self.type}: headers: {error}") from None

    @property
    def raw(self) -> bytes:
        """The data as stored."""
        return self.data_raw

    @property
    def edits(self) -> int:
        """How often its data was edited, in a letter of the subscription that it is given to."""
        return 0

    def with_data(self, raw: bytes, edits: int = 1) -> Event[Any]:
        """The same event with other data, after so many edits."""
        schema = self.schema or 1  # what a broker gave and was no event is one now
        row = (self.position, self.id, self.type, self.key, self.version, schema, self.time_us, self.headers_raw, raw)
        return _Edited(*row, self.types, UNSET, edits)

    def forget(self) -> None:
        """Decode the data anew at the next access: a function that runs again must not see its own changes."""
        force_setattr(self, "_data", UNSET)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self._row() == other._row()

    def __hash__(self) -> int:
        return hash((self.position, self.id))

    def __repr__(self) -> str:
        # Without the payload: it may be large, and personal data does not belong into logs.
        return f"Event({self.position}, {self.type!r}, key={self.key!r}, id={self.id!r}, {len(self.data_raw)} bytes)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("position", self.position), ("type", self.type), ("key", self.key), ("id", self.id)]

    def _row(self) -> tuple[object, ...]:
        return (
            self.position,
            self.id,
            self.type,
            self.key,
            self.version,
            self.schema,
            self.time_us,
            self.headers_raw,
            self.data_raw,
        )


class _Edited(Event[Any], frozen=True, eq=False, gc=False):
    """One whose data was edited; few are, and the others need not carry the number."""

    number: int = 1

    @property
    def edits(self) -> int:
        return self.number


class _Appended(Event[Any], frozen=True, eq=False, gc=False):
    """One that `append` has stored and returned."""

    if not TYPE_CHECKING:  # a type checker must refuse `await log.append(…)`, as ever

        def __await__(self) -> Any:
            return _refuse_await(self)


def _refuse_await(event: Event[Any]) -> Any:
    raise TypeError(
        f"append returns the event, which is stored already (id {event.id!r}), and nothing to await: leave out await, "
        "or write `await log.append_async(…)`, which does not block the event loop"
    )


def appended(row: tuple[Any, ...], types: EventTypes) -> Event[Any]:
    """What `append` returns for a row: an event of the log, or one that waits for its time."""
    return _Appended(*row, types) if row[0] is not None else scheduled_from(row, types)  # type: ignore[call-arg]


def from_row(row: tuple[Any, ...], types: EventTypes) -> Event[Any]:
    """The event of a store's row."""
    return Event(*row, types)  # type: ignore[call-arg]  # a row is exactly the fields before `types`


def events_of(rows: Iterable[tuple[Any, ...]], types: EventTypes) -> list[Event[Any]]:
    """The events of many rows. Taken apart: to pass *row on makes a list and another tuple."""
    return [Event(a, b, c, d, e, f, g, h, i, types) for a, b, c, d, e, f, g, h, i in rows]


def forget_all(events: Iterable[Event[Any]]) -> None:
    """Each decodes its data anew at the next access."""
    for event in events:
        if event._data is not UNSET:
            event.forget()


class Scheduled(Event[T_co], frozen=True, eq=False):
    """An event that is appended when it is due: until then it has neither position nor version."""

    due_at: float = 0.0

    if not TYPE_CHECKING:

        def __await__(self) -> Any:
            return _refuse_await(self)

    @property
    def due(self) -> datetime | None:
        """When it is appended: aware, in UTC."""
        return EPOCH + timedelta(0, self.due_at)

    def __repr__(self) -> str:
        due = EPOCH + timedelta(0, round(self.due_at, 3))
        return (
            f"Event(due {due.isoformat()}, {self.type!r}, key={self.key!r}, id={self.id!r}, {len(self.data_raw)} bytes)"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("due", self.due), ("type", self.type), ("key", self.key), ("id", self.id)]


def scheduled_from(row: tuple[Any, ...], types: EventTypes) -> Scheduled[Any]:
    """The event of a row that waits: no position, and its due time at the end."""
    *fields, due_at = row
    return Scheduled(*fields, types, UNSET, due_at)  # type: ignore[call-arg]


class Due(NamedTuple):
    """When an event is to be appended, and how that was said."""

    at: float
    set_at: float
    delay: float | None  # None: at that very time, whatever the clock did meanwhile
    time_us: int | None  # what the producer says; None: the time at which it is due


class Stored(Protocol):
    """What is stored of an event, in whatever row it comes: `Event`, or a line of a listing."""

    @property
    def id(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def schema(self) -> int: ...
    @property
    def time_us(self) -> int: ...
    @property
    def headers_raw(self) -> bytes | None: ...
    @property
    def data_raw(self) -> bytes | None: ...


class NewEvent(NamedTuple):
    """What an append stores; every field has passed its check."""

    id: str
    type: str
    key: str | None
    schema: int
    time_us: int
    headers_raw: bytes | None
    data_raw: bytes
    expected_version: int | None = None
    may_repeat: bool = True  # the id was given, so it may be stored already
    derived: bool = False  # an emission: one that is stored already is left as it is
    due: Due | None = None  # not now; see also WITHDRAWN


# In the place of a due time: not an event, but the wish that the one with this id is not appended. It must still wait.
WITHDRAWN = Due(0.0, 0.0, None, None)


def withdrawal(id: str, *, seen: bool = False) -> NewEvent:
    """What takes a scheduled event back; `seen`: it was there a moment ago, and not to find it is an error."""
    return NewEvent(check_id(id), "", None, 1, 0, None, b"", None, True, seen, WITHDRAWN)


def new_id(now_s: float, dice: Random) -> str:
    """A UUIDv7: sorts by time to a quarter of a microsecond; equal times are ordered by the dice.

    It keeps no memory of the last one, so the same clock and dice give the same ids.
    """
    ticks = int(now_s * 4_096_000.0)  # 48 bits of milliseconds, 12 of their fraction; then the variant and chance
    digits = (ticks << 64 | 0x8000_0000_0000_0000 | dice.getrandbits(62)).to_bytes(16).hex()
    return f"{digits[1:9]}-{digits[9:13]}-7{digits[13:16]}-{digits[16:20]}-{digits[20:]}"


@cache
def _sha1() -> Any:
    """Loaded with the first emission: a program that makes none need not wait for OpenSSL when it starts."""
    from hashlib import sha1

    return sha1


def emission_id(subscription: str, event_id: str, ordinal: int) -> str:
    """The id of the n-th event that `subscription` emits for `event_id`: the same at every attempt (a UUIDv5)."""
    # NUL is in no name, so no two triples give the same text.
    digest = _sha1()(_EMISSIONS + f"{subscription}\0{event_id}\0{ordinal}".encode(), usedforsecurity=False).hexdigest()
    variant = _VARIANTS[digest[16]]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def check_key(key: str) -> str:
    """The key, if it can name a lane."""
    if not isinstance(key, str):
        raise EventError(f"the key must be text, not {type(key).__name__}: write str(key)")
    if not key:
        raise EventError("the key is empty: leave it out for an event without a key")
    if not key.isprintable():
        _refuse_control(key, "key")
    if len(key) > KEY_BYTES_MAX // 4 and (size := len(key.encode())) > KEY_BYTES_MAX:
        raise EventError(f"the key has {size:,} bytes; the limit is {KEY_BYTES_MAX}: use a short name or a hash")
    return key


def check_type(name: str) -> str:
    """The event type, if it can be filtered, listed and counted by name."""
    return _check_word(name, "event type", "order.placed")


def check_log(name: str) -> str:
    """The name of a log, likewise."""
    try:
        return _check_word(name, "log's name", "orders")
    except EventError as error:
        raise UsageError(str(error)) from None


def check_subscription(name: str) -> str:
    """The name of a subscription, likewise."""
    try:
        return _check_word(name, "subscription's name", "charge_card")
    except EventError as error:
        raise UsageError(str(error)) from None


def check_source(name: str) -> str:
    """The name of a broker's stream or topic, likewise."""
    try:
        return _check_word(name, "name of a stream or topic", "orders")
    except EventError as error:
        raise UsageError(str(error)) from None


def _check_word(name: str, what: str, like: str) -> str:
    _check_name(name, what)
    if " " in name or (not name.isprintable() and any(map(str.isspace, name))):
        raise EventError(f"the {what} {name!r} contains white space: write it like {like}")
    return name


def check_id(event_id: str) -> str:
    """The event id, if it can be stored and shown."""
    return _check_name(event_id, "event id")


def check_time(time_us: int) -> int:
    """Microseconds since 1970, if there is a time for them."""
    if not TIME_US_MIN <= time_us <= TIME_US_MAX:
        raise EventError("the time is not in the years 1 to 9999, UTC")
    return time_us


def encode_headers(headers: Mapping[str, str] | None) -> bytes | None:
    """Headers as stored: nothing when there are none."""
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise EventError(f"headers= takes a dict of text to text, not {type(headers).__name__}")
    for name, text in headers.items():
        _check_name(name, "header name")
        if not isinstance(text, str):
            raise EventError(f"the header {name!r} must be text, not {type(text).__name__}")
        if not text.isprintable():
            _refuse_control(text, f"header {name!r}")
    raw = msgspec.json.encode(dict(headers))
    if len(raw) > HEADERS_BYTES_MAX:
        raise EventError(
            f"the headers have {len(raw):,} bytes; the limit is {HEADERS_BYTES_MAX:,}: put it into the data"
        )
    return raw


def _check_name(name: str, what: str) -> str:
    if not isinstance(name, str):
        raise EventError(f"the {what} must be text, not {type(name).__name__}")
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise EventError(f"the {what} has {len(name):,} characters; allowed are 1 to {NAME_CHARS_MAX}")
    if not name.isprintable():
        _refuse_control(name, what)
    return name


def _refuse_control(text: str, what: str) -> None:
    """`isprintable` is quick but too strict (it refuses a soft hyphen); this decides."""
    found = _UNPRINTABLE.search(text)
    if found:
        raise EventError(f"the {what} contains {found[0]!a}: control characters and lone surrogates are not allowed")
