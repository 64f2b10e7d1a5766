"""What a Kafka message becomes does not depend on the way it takes: the quick one of most, or the long one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redrive.kafka import Topic
from redrive.kafka.messages import Decoder
from redrive.kafka.places import Place
from redrive.sources import port as sources
from redrive.sources.quick import TOGETHER_MAX


class Message:
    """As the driver gives it."""

    def __init__(self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None) -> None:
        self.parts = {"partition": 3, "offset": 7, "timestamp": (1, 5), "key": key, "value": value, "headers": headers}

    def __getattr__(self, name: str) -> Any:
        return lambda: self.parts[name]


def full(found: sources.Message | sources.Plain) -> sources.Message:
    return sources.Message(found.partition, found.position, found.event, found.has_id)


KEYS = st.sampled_from([None, b"", b"k", "ö".encode(), b"\xff", b"\x00", b"k" * 600])
VALUES = st.sampled_from(
    [None, b"", b"null", b"1", b'{"a": 1}', b'{"a": 1, "a": 2}', b"{", b"\xff", b'"specversion"', b"NaN"]
)
TEXTS = st.sampled_from([None, b"", b"a", b"two words", b"\xff", b"1970-01-01T00:00:01Z", "ö".encode(), b"x" * 300])
HEADERS = st.lists(st.tuples(st.sampled_from(["id", "type", "key", "time", "data", "trace"]), TEXTS), max_size=4)


@given(KEYS, VALUES, HEADERS)
def test_the_quick_way_and_the_long_way_lead_to_the_same(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    quick, long = (Decoder(Topic("localhost:9092", "orders")) for _ in range(2))
    long._is_plain, long._quick = False, lambda *_, **__: None  # type: ignore[method-assign]
    message = Message(key, value, headers or None)
    expected = long([message])[0]
    for found in quick([message, message]):  # the second time its key is known
        assert full(found)._replace(event=found.event._replace(may_repeat=True)) == expected


@given(st.lists(st.tuples(KEYS, VALUES | st.just(b'{"a": 1}'), HEADERS | st.just([])), max_size=TOGETHER_MAX + 20))
def test_a_message_becomes_the_same_in_any_company(
    parts: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    messages = [Message(key, value, headers or None) for key, value, headers in parts]
    decoder = Decoder(Topic("localhost:9092", "orders"))
    assert [*map(full, decoder(messages))] == [full(*decoder([message])) for message in messages]


@given(st.integers(-1), st.sampled_from(["", "1794837328684;0badcafe"]), st.integers(1))
def test_a_place_is_read_as_it_was_written(offset: int, anchor: str, generation: int) -> None:
    place = Place(offset, anchor, generation)
    assert Place.of(str(place)) == place
