"""What a mirror is told: one change of a letter, with its event. As JSON, it can be read back without loss."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from redrive import cloudevents
from redrive.codec import NOT_JSON
from redrive.errors import EventError
from redrive.event import NewEvent
from redrive.store.journal import JournalRow

OPEN = ("retrying", "dead")
NOTHING = msgspec.Raw(b"null")
Key = tuple[str, int, int, datetime]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`state`, `rev` and `at` are those of the change; the rest is what was known of the letter when it was written."""

    seq: int
    letter: int
    rev: int
    state: str
    at: datetime
    subscription: str
    source: str
    position: int
    reason: str
    born: bool = False  # the letter's first
    lane: str | None = None
    attempts: int = 0
    first_failed_at: datetime | None = None
    last_failed_at: datetime | None = None
    error_type: str = ""
    error_message: str = ""
    fingerprint: str = ""
    resolved_by: str | None = None
    worker: str | None = None
    event: msgspec.Raw = NOTHING  # a CloudEvent, as it lies in the log; null: it was pruned
    edited: msgspec.Raw = NOTHING  # the same with the latest edit of its data, if there is one

    @property
    def key(self) -> Key:
        """Written twice, it is the same entry."""
        return self.subscription, self.letter, self.rev, self.at

    @property
    def is_open(self) -> bool:
        """Did it still wait for somebody?"""
        return self.state in OPEN

    @property
    def event_id(self) -> str | None:
        """The id of its event."""
        return None if self.event == NOTHING else self._said.id

    @property
    def schema(self) -> int:
        """The schema of its event."""
        return 1 if self.event == NOTHING else self._said.redriveschema

    @property
    def _said(self) -> _Said:
        try:
            return msgspec.json.decode(self.event, type=_Said)
        except msgspec.ValidationError as error:
            raise EventError(f"the event of letter {self.letter} of {self.subscription} is none: {error}") from None


class _Said(msgspec.Struct):
    id: str
    redriveschema: int = 1


_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode(entry: Entry) -> bytes:
    """As JSON, on one line, without its end."""
    return cloudevents.one_line(_encoder.encode(entry))


def decode(body: bytes) -> Entry:
    """The entry of a line; EventError if it is none."""
    try:
        return _decoder.decode(body)
    except (*NOT_JSON, msgspec.ValidationError, RecursionError) as error:
        raise EventError(f"it is no entry of a mirror: {error}") from None


def entry_of(row: JournalRow) -> Entry:
    """What the store says, for a mirror."""
    source = cloudevents.source_of(row.source)
    event = edited = NOTHING
    if row.id is not None:
        event = msgspec.Raw(cloudevents.encode(_stored(row, bytes(row.data_raw)), source))
        if row.edited_raw is not None:
            edited = msgspec.Raw(cloudevents.encode(_stored(row, bytes(row.edited_raw)), source))
    return Entry(
        seq=row.seq, letter=row.letter, rev=row.rev, state=row.state, at=_time(row.at), subscription=row.subscription,
        source=row.source, position=row.position, reason=row.reason, born=bool(row.born), lane=row.lane,
        attempts=row.attempts,
        first_failed_at=None if row.first_failed_at is None else _time(row.first_failed_at),
        last_failed_at=None if row.last_failed_at is None else _time(row.last_failed_at),
        error_type=row.error_type, error_message=row.error_message, fingerprint=row.fingerprint,
        resolved_by=row.resolved_by, worker=row.worker, event=event, edited=edited,
    )  # fmt: skip


def _stored(row: JournalRow, data: bytes) -> NewEvent:
    assert row.id is not None
    headers = None if row.headers_raw is None else bytes(row.headers_raw)
    return NewEvent(row.id, row.type, row.key, row.schema, row.time_us, headers, data)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
