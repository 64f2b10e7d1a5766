"""The event itself: a row that decodes itself on demand, its ids, and what its names may contain."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import EventError, Undecodable
from redrive.event import (
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    NAME_CHARS_MAX,
    Event,
    NewEvent,
    check_id,
    check_key,
    check_type,
    emission_id,
    encode_headers,
    new_id,
)
from redrive.types import EventTypes

NOW_S = 1_760_000_000.123456
TIMES_S = st.floats(min_value=0, max_value=4_102_444_800)  # until 2100
texts = st.text(min_size=1, max_size=60)
names = st.text("ab.:/0", max_size=4)  # few letters, so that parts of one could be taken for parts of another


def make(raw: bytes = b'{"cents":4200}', **changes: Any) -> Event[Any]:
    row: dict[str, Any] = {
        "position": 7,
        "id": "id-7",
        "type": "order.placed",
        "key": "order-1",
        "version": 1,
        "schema": 1,
        "time_us": 1_760_000_000_123_457,
        "headers_raw": None,
        "data_raw": raw,
        "types": EventTypes(),
    }
    return Event(**(row | changes))


class CountingTypes(EventTypes):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def decode(self, name: str, schema: int, raw: bytes) -> Any:
        self.calls += 1
        return super().decode(name, schema, raw)


def test_an_event_is_a_row_of_the_store_and_the_registry_in_that_order() -> None:
    event: Event[Any] = Event(7, "id-7", "order.placed", "order-1", 3, 2, 0, b'{"a":"b"}', b"[1]", EventTypes())
    assert (event.position, event.id, event.type, event.key) == (7, "id-7", "order.placed", "order-1")
    assert (event.version, event.schema, event.time, event.headers) == (
        3,
        2,
        datetime(1970, 1, 1, tzinfo=UTC),
        {"a": "b"},
    )
    assert (event.raw, event.data) == (b"[1]", [1])


def test_data_is_decoded_when_asked_for_and_once() -> None:
    types = CountingTypes()
    event = make(types=types)
    assert types.calls == 0
    assert event.data is event.data
    assert types.calls == 1


def test_null_is_data_too_and_decoded_once() -> None:
    types = CountingTypes()
    event = make(b"null", types=types)
    assert (event.data, event.data, types.calls) == (None, None, 1)


def test_an_undecodable_event_can_be_looked_at_and_says_so_every_time() -> None:
    event = make(b"{not json")
    for _ in range(2):
        with pytest.raises(Undecodable, match=r"^order\.placed \(schema 1\): data is not valid JSON"):
            _ = event.data
    assert event.raw == b"{not json"
    assert "order.placed" in repr(event)


def test_the_time_is_exact_to_the_microsecond_and_in_utc() -> None:
    assert make().time == datetime(2025, 10, 9, 8, 53, 20, 123457, tzinfo=UTC)
    assert make().time.utcoffset() == timedelta(0)


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_time_a_datetime_can_hold_comes_back(time: datetime) -> None:
    microseconds = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert make(time_us=microseconds).time == time


def test_an_edited_event_is_another_one_and_the_first_stays_as_it_was() -> None:
    event = make()
    assert event.data == {"cents": 4200}
    edited = event.with_data(b'{"cents":1}')
    assert (edited.data, event.data) == ({"cents": 1}, {"cents": 4200})
    assert (edited.position, edited.id, edited.key, edited.time) == (event.position, event.id, event.key, event.time)


def test_a_copy_with_the_same_bytes_forgets_what_a_function_did_to_the_data() -> None:
    event = make()
    event.data.clear()
    assert event.with_data(event.raw).data == {"cents": 4200}


def test_data_that_a_function_changed_is_forgotten_before_it_runs_again() -> None:
    event = make()
    assert event.data.pop("cents") == 4200
    event.forget()
    assert event.data == {"cents": 4200}


@pytest.mark.parametrize("name", ["position", "id", "key", "data", "data_raw", "unheard_of"])
def test_an_event_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(make(), name, "other")


def test_events_with_the_same_content_are_equal_whether_read_or_not() -> None:
    one, other = make(), make()
    _ = one.data
    assert one == other
    assert hash(one) == hash(other)
    assert one != make(b"{}")
    assert one != "an event"


def test_a_payload_shows_up_neither_in_repr_nor_in_a_rich_table() -> None:
    event = make(b'{"name":"Ada Lovelace"}', headers_raw=b'{"auth":"hunter2"}')
    _ = event.data
    shown = f"{event} {event!r} {event.__rich_repr__()}"
    assert "Ada" not in shown
    assert "hunter2" not in shown
    assert "order-1" in shown


def test_headers_are_a_fresh_dict_and_damaged_ones_are_undecodable() -> None:
    event = make(headers_raw=encode_headers({"trace": "abc"}))
    event.headers["trace"] = "changed"
    assert event.headers == {"trace": "abc"}
    for damaged in (b"{", b"[]", b'{"a":1}', b'{"a":"\xff"}'):
        with pytest.raises(Undecodable, match="headers"):
            _ = make(headers_raw=damaged).headers


def test_a_new_event_expects_no_version_unless_told() -> None:
    assert NewEvent("id", "t", None, 1, 0, None, b"{}").expected_version is None


@given(TIMES_S, st.integers())
def test_a_new_id_is_a_uuid_of_version_seven_that_carries_its_millisecond(now_s: float, seed: int) -> None:
    made = uuid.UUID(new_id(now_s, Random(seed)))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == int(now_s * 4_096_000.0) >> 12
    assert abs((made.int >> 80) - now_s * 1000) <= 1


@given(TIMES_S, st.floats(min_value=1e-6, max_value=10), st.integers())
def test_new_ids_sort_by_time_to_the_microsecond(now_s: float, later_s: float, seed: int) -> None:
    dice = Random(seed)
    assert new_id(now_s, dice) < new_id(now_s + later_s, dice)


def test_the_same_clock_and_dice_give_the_same_ids() -> None:
    assert [new_id(NOW_S, dice) for dice in (Random(1), Random(1))] == [new_id(NOW_S, Random(1))] * 2


def test_ids_made_at_one_instant_differ() -> None:
    dice = Random(1)
    assert len({new_id(NOW_S, dice) for _ in range(10_000)}) == 10_000


def test_an_emission_id_is_the_uuid_of_version_five_of_its_three_parts() -> None:
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "urn:redrive:emission")
    assert emission_id("shop.charge", "id-7", 0) == str(uuid.uuid5(namespace, "shop.charge\0id-7\x000"))
    # Stored ids are made of it: if this text changes, events are emitted twice after an upgrade.
    assert emission_id("charge", "id-7", 1) == "6aa167b4-5d7a-5de1-94fd-974b4106e42b"


@given(st.lists(st.tuples(names, names, st.integers(0, 99)), max_size=20))
def test_no_two_emissions_share_an_id(triples: list[tuple[str, str, int]]) -> None:
    assert len({emission_id(*triple) for triple in triples}) == len(set(triples))


@given(st.text())
def test_a_key_is_taken_as_it_is_or_refused_with_an_event_error(key: str) -> None:
    try:
        assert check_key(key) is key
    except EventError:
        assert not key or len(key) > 128 or not key.isprintable()
    else:
        assert 0 < len(key.encode()) <= KEY_BYTES_MAX


@pytest.mark.parametrize(
    "key", ["order-1", "a b", "日本", "soft\u00adhyphen", "no\u00a0break", "../../etc", "x" * 512, "é" * 256]
)
def test_ordinary_and_unusual_keys_are_taken(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        ("x" * 513, "513 bytes"),
        ("é" * 257, "514 bytes"),
        ("x" * 1_000_000, "1,000,000 bytes"),
        (7, "not int"),
        (None, "not NoneType"),
        (b"order-1", "not bytes"),
    ],
)
def test_a_bad_key_is_refused_with_its_reason(key: Any, reason: str) -> None:
    with pytest.raises(EventError, match=reason):
        check_key(key)


@pytest.mark.parametrize("name", ["order.placed", "OrderPlaced", "shop/order:placed@2", "注文", "x" * NAME_CHARS_MAX])
def test_an_event_type_may_be_any_name_without_white_space(name: str) -> None:
    assert check_type(name) == name


@pytest.mark.parametrize(
    "name", ["", "order placed", "order\tplaced", "order\u00a0placed", "order\u2028placed", "x" * 201, 7, None]
)
def test_a_bad_event_type_is_refused(name: Any) -> None:
    with pytest.raises(EventError, match="the event type"):
        check_type(name)


def test_an_id_may_contain_spaces_and_has_a_limit() -> None:
    assert check_id("import 7, line 12") == "import 7, line 12"
    for bad in ("", "x" * 201, 7):
        with pytest.raises(EventError, match="the event id"):
            check_id(bad)  # type: ignore[arg-type]


def test_no_headers_are_stored_as_nothing() -> None:
    assert encode_headers(None) is None
    assert encode_headers({}) is None


@given(st.dictionaries(texts, st.text(max_size=60), min_size=1, max_size=5))
def test_headers_come_back_as_given_or_are_refused(headers: dict[str, str]) -> None:
    try:
        raw = encode_headers(headers)
    except EventError:
        assert not all(part.isprintable() for item in headers.items() for part in item)
    else:
        assert make(headers_raw=raw).headers == headers


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"a": 1}, "must be text, not int"),
        ({1: "a"}, "header name must be text, not int"),
        ({"": "a"}, "header name has 0 characters"),
        ({"a": "x" * HEADERS_BYTES_MAX}, "the limit is 16,384"),
        ({"a": math.nan}, "not float"),
    ],
)
def test_bad_headers_are_refused_with_their_reason(headers: Any, reason: str) -> None:
    with pytest.raises(EventError, match=reason):
        encode_headers(headers)
