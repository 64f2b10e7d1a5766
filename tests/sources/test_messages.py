"""What a message becomes by a codec, where it is not what it seems."""

from __future__ import annotations

import base64

import pytest

from redrive.codec import from_json
from redrive.event import NewEvent
from redrive.sources.codec import Codec, Place
from redrive.sources.refusal import RAW_MAX, SCHEMA

HERE = Place("orders:1-0", "orders", None, 1_000)
MAPPED = Codec("json", id="meta.id", key="customer", time="at")


def decode(body: bytes, codec: Codec = Codec()) -> NewEvent:
    return codec.decode({}, body, HERE)[0]


def why(event: NewEvent) -> str:
    """In the words of the refusal."""
    assert event.schema == SCHEMA
    return str(from_json(event.data_raw)["message"])


@pytest.mark.parametrize(
    "body", [b'{"api": {"specversion": "1.0"}}', b'["specversion"]', b'"\\"specversion\\""', b'"specversion"']
)
def test_data_that_has_the_word_of_cloud_events_somewhere_is_data(body: bytes) -> None:
    event = decode(body)
    assert (event.id, event.schema, event.data_raw) == ("orders:1-0", 1, body)


def test_half_a_cloud_event_is_none() -> None:
    assert "it has no source" in why(decode(b'{"specversion": "1.0", "id": "1"}'))
    assert "not valid JSON" in why(decode(b'{"specversion": "1.0", '))


@pytest.mark.parametrize("body", [b'{"meta": {"id": {"n": 1}}}', b'{"customer": ["ada"]}'])
def test_an_id_or_a_key_is_a_text_or_a_number(body: bytes) -> None:
    assert "is neither a text nor a number" in why(decode(body, MAPPED))
    assert decode(b'{"meta": {"id": 7}, "customer": 8}', MAPPED)[:3] == ("7", "orders", "8")


@pytest.mark.parametrize("time", [b"1700000000000.5", b'"tomorrow"', b'"\xc2\xb2"'])
def test_a_time_that_cannot_be_read_is_named(time: bytes) -> None:
    assert "milliseconds since 1970" in why(decode(b'{"at": %s}' % time, MAPPED))


def test_what_is_too_long_to_be_kept_whole_says_so() -> None:
    event = decode(b"{" * (RAW_MAX + 1))
    assert why(event).endswith("of its 700,001 bytes the first 700,000 are kept")
    assert len(base64.b64decode(from_json(event.data_raw)["raw"])) == RAW_MAX
    assert "are kept" not in why(decode(b"{" * RAW_MAX))


CLOUD = b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "partitionkey": "ada", %s}'


@pytest.mark.parametrize(
    ("fields", "body", "codec"),
    [
        ({"ce_specversion": b"1.0", "ce_type": b"t", "ce_partitionkey": b"ada"}, b"{", Codec()),
        ({"ce_specversion": b"1.0", "ce_type": b"t", "ce_subject": b"ada"}, b"{", Codec("cloudevents")),
        ({"key": b"bob", "type": b"other"}, CLOUD % b'"data_base64": "aGk="', Codec()),
        ({"key": b"bob"}, CLOUD % b'"data": 1, "data_base64": ""', Codec("cloudevents")),
        ({}, b'{"type": "t", "customer": "ada", "at": "tomorrow"}', MAPPED),
        ({"type": b"t", "key": b"ada"}, b"{", Codec()),
    ],
)
def test_what_cannot_be_read_has_the_type_and_the_key_it_would_have_had(
    fields: dict[str, bytes], body: bytes, codec: Codec
) -> None:
    event, _ = codec.decode(fields, body, HERE)
    assert why(event)
    assert (event.type, event.key) == ("t", "ada")


@pytest.mark.parametrize("key", [b'""', b"[1]", b'"\\u0000"'])
def test_a_key_that_cannot_be_one_holds_no_lane(key: bytes) -> None:
    assert decode(b'{"specversion": "1.0", "type": 1, "subject": "s", "partitionkey": %s}' % key)[1:3] == (
        "1", None,
    )  # fmt: skip


def test_a_mapping_says_where_in_the_body_the_data_is() -> None:
    body = b'{"id": "1", "payload": {"z": 1}, "deep": {"er": null}}'
    assert decode(body, Codec("json", data="payload")).data_raw == b'{"z":1}'
    assert decode(b'{"deep": {"er": [2]}}', Codec("json", data="deep.er")).data_raw == b"[2]"
    assert decode(b'{"payload": null}', Codec("json", data="payload")).data_raw == b"null"
    assert decode(body, Codec("json", data="none")).data_raw == body
