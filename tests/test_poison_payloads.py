"""Poison payloads, W58 to W68: what each gets when it is appended, when it arrives as bytes, and when it is read.

Appending (`encode_data`) and bytes from elsewhere (`check_data`) refuse with an EventError that names the reason.
Reading never refuses to hold the bytes: it raises Undecodable, for plain data and for every kind of class.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import sqlite3
import sys
from typing import Any

import msgspec
import pydantic
import pytest

from redrive.codec import DATA_BYTES_MAX, check_data, encode_data
from redrive.errors import EventError, Undecodable
from redrive.event import Event, check_id, check_key, check_type, encode_headers
from redrive.types import EventTypes, event


@event("poison.struct")
class Struct(msgspec.Struct):
    x: Any = None


@event("poison.dataclass")
@dataclasses.dataclass
class Data:
    x: Any = None


@event("poison.model")
class Model(pydantic.BaseModel):
    x: Any = None


TYPES = ["poison.plain", "poison.struct", "poison.dataclass", "poison.model"]


def stored(raw: bytes, name: str = "poison.plain", schema: int = 1) -> Event[Any]:
    return Event(1, "id-1", name, "key-1", 1, schema, 0, None, raw, EventTypes())


def check_refused_everywhere(raw: bytes, reason: str) -> None:
    """Refused on the way in, undecodable for every kind of type, and the bytes still there to look at."""
    with pytest.raises(EventError, match=reason):
        check_data(raw)
    for name in TYPES:
        poisoned = stored(raw, name)
        with pytest.raises(Undecodable, match=rf"^{name} \(schema 1\): "):
            _ = poisoned.data
        assert poisoned.raw == raw


def deep(levels: int, opening: bytes = b"[", closing: bytes = b"]", inner: bytes = b"") -> bytes:
    return b'{"x":' + opening * levels + inner + closing * levels + b"}"


@pytest.mark.parametrize(
    "raw",
    [deep(100_000), deep(100_000, b'{"x":', b"}", b"1"), deep(20_000, b'[{"x":', b"}]", b"1")],
    ids=["[", "{", "[{"],
)
def test_w58_very_deep_nesting_is_refused_and_undecodable(raw: bytes) -> None:
    check_refused_everywhere(raw, "nested deeper than 100 levels")


def test_w58_moderately_deep_nesting_is_refused_on_the_way_in_but_can_be_read_if_it_is_there() -> None:
    # Written by somebody else into the store: it can be decoded, so it is not a dead letter.
    raw = deep(100)
    with pytest.raises(EventError, match="nested deeper than 100 levels"):
        check_data(raw)
    with pytest.raises(EventError, match="nested deeper than 100 levels"):
        encode_data(json.loads(raw))
    assert stored(raw).data == json.loads(raw)


@pytest.mark.parametrize("digits", [4_301, 100_000])
def test_w59_a_number_with_thousands_of_digits_is_refused_and_undecodable(digits: int) -> None:
    check_refused_everywhere(b'{"x":' + b"9" * digits + b"}", "out of range")


def test_w59_a_number_that_cannot_even_be_printed_is_refused_at_append() -> None:
    assert sys.get_int_max_str_digits() == 4300
    with pytest.raises(EventError, match="beyond 64 bit"):
        encode_data({"x": 10**5_000})


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30, -(10**4000)])
def test_w59_whole_numbers_beyond_64_bit_are_refused_on_the_way_in_and_exact_when_read(number: int) -> None:
    with pytest.raises(EventError, match=r"beyond 64 bit.*send it as text"):
        encode_data({"x": number})
    raw = b'{"x":%d}' % number
    with pytest.raises(EventError, match="beyond 64 bit"):
        check_data(raw)
    assert stored(raw).data == {"x": number}


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63), 2**53 + 1])
def test_w59_whole_numbers_of_64_bit_are_exact_in_both_directions(number: int) -> None:
    raw = encode_data({"x": number})
    assert check_data(raw) == raw
    assert [getattr(stored(raw, name).data, "x", None) for name in TYPES[1:]] == [number] * 3


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"1e400", b"-1e400"])
def test_w60_numbers_json_does_not_have_are_undecodable(literal: bytes) -> None:
    check_refused_everywhere(b'{"x":' + literal + b"}", "not valid JSON|out of range")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_w60_nan_and_infinity_are_refused_at_append_and_not_turned_into_null(number: float) -> None:
    for value in (
        {"x": number},
        [[number]],
        Struct(number),
        Data({"y": number}),
        Model(x=[number]),
        {"x": None, "y": number},
    ):
        with pytest.raises(EventError, match="NaN or infinity at"):
            EventTypes().encode(value)


def test_w60_a_number_too_small_to_hold_is_zero() -> None:
    assert stored(b'{"x":1e-400}').data == {"x": 0.0}


def test_w61_repeated_keys_are_refused_on_the_way_in() -> None:
    raw = b'{"amount":1,"amount":1000000}'
    with pytest.raises(EventError, match="'amount' twice"):
        check_data(raw)
    # Nothing that was appended has them. Bytes that got in another way are read as every JSON reader does: last wins.
    assert stored(raw).data == {"amount": 1_000_000}


def test_w62_nul_in_a_text_is_kept_and_survives_the_database() -> None:
    raw = encode_data({"x": "a\0b"})
    with sqlite3.connect(":memory:") as connection:
        (back,) = connection.execute("SELECT ?", (raw,)).fetchone()
    connection.close()
    assert b"\0" not in raw
    assert stored(back).data == {"x": "a\0b"}


def test_w62_a_bare_control_character_in_a_json_text_is_undecodable() -> None:
    check_refused_everywhere(b'{"x":"a\0b"}', "not valid JSON")


@pytest.mark.parametrize("value", [{"x": "\ud800"}, {"\udfff": 1}, ["a\udc80b"], Struct("\ud800"), Model(x="\ud800")])
def test_w63_a_lone_surrogate_is_refused_at_append(value: Any) -> None:
    with pytest.raises(EventError, match=r"surrogate|cannot be stored"):
        EventTypes().encode(value)


@pytest.mark.parametrize("text", [rb'"\ud800"', rb'"\udc00"', rb'"\ud800\ud800"', rb'"\ud800 and more of it"'])
def test_w63_an_escaped_lone_surrogate_is_undecodable(text: bytes) -> None:
    check_refused_everywhere(b'{"x":' + text + b"}", "not valid JSON")


def test_w63_a_pair_of_escaped_surrogates_is_a_character() -> None:
    assert stored(rb'{"x":"\ud83d\ude00"}').data == {"x": "😀"}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"x":"\xff"}',
        b'{"x":{"\xff":1}}',
        b'{"x":"\xc0\xaf"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":"\xf4\x90\x80\x80"}',
        '{"x":"é"}'.encode("latin-1"),
        '{"x":1}'.encode("utf-16"),
        '{"x":1}'.encode("utf-32-be"),
        b'\xef\xbb\xbf{"x":1}',
    ],
)
def test_w64_anything_but_plain_utf8_is_undecodable(raw: bytes) -> None:
    check_refused_everywhere(raw, "not UTF-8|not valid JSON")


def test_w64_a_class_leaves_out_a_field_it_does_not_know_whatever_its_name_is() -> None:
    raw = b'{"x":1,"\xff":"\xff"}'
    with pytest.raises(EventError, match="not UTF-8"):
        check_data(raw)
    with pytest.raises(Undecodable, match="not UTF-8"):
        _ = stored(raw).data
    assert stored(raw, "poison.struct").data == Struct(1)


def test_w65_a_payload_beyond_a_mebibyte_is_refused_on_the_way_in() -> None:
    large = "x" * DATA_BYTES_MAX
    for value in (large, {"x": large}, Struct(large), Data(large), Model(x=large), ["x"] * DATA_BYTES_MAX):
        with pytest.raises(EventError, match=r"the limit is 1,048,576: store the large part elsewhere"):
            EventTypes().encode(value)
    with pytest.raises(EventError, match=r"the limit is 1,048,576"):
        check_data(b'"' + large.encode() + b'"')


def test_w66_no_bytes_at_all_are_undecodable() -> None:
    check_refused_everywhere(b"", "not valid JSON")
    check_refused_everywhere(b" \n", "not valid JSON")


@pytest.mark.parametrize("raw", [b"null", b"[]", b"[1]", b"7", b'"text"', b"true"])
def test_w66_anything_but_an_object_is_plain_data_and_does_not_fit_a_class(raw: bytes) -> None:
    assert stored(raw).data == json.loads(raw)
    for name in TYPES[1:]:
        with pytest.raises(Undecodable):
            _ = stored(raw, name).data


def test_w66_an_unknown_type_is_plain_data_and_an_unknown_schema_of_a_known_type_is_undecodable() -> None:
    assert stored(b'{"x":1}', "poison.from.the.future", schema=9).data == {"x": 1}
    with pytest.raises(Undecodable, match="deploy the newer version"):
        _ = stored(b'{"x":1}', "poison.struct", schema=9).data
    with pytest.raises(Undecodable, match="no upcast from schema 0"):
        _ = stored(b'{"x":1}', "poison.struct", schema=0).data


def test_w67_compressed_bytes_are_not_inflated_by_anybody() -> None:
    bomb = gzip.compress(b'{"x":"' + b"0" * 10_000_000 + b'"}')
    check_refused_everywhere(bomb, "not valid JSON|not UTF-8")


CONTROL = ["\0", "\n", "\r", "\t", "\x1b[31m", "\x7f", "\x85", "\x9b", "\ud800"]


@pytest.mark.parametrize("bad", CONTROL)
def test_w68_control_characters_are_refused_in_every_name(bad: str) -> None:
    for refuse in (check_key, check_type, check_id):
        with pytest.raises(EventError, match="control characters and lone surrogates are not allowed") as caught:
            refuse(f"a{bad}b")
        assert str(caught.value).isprintable()
    for headers in ({f"a{bad}": "x"}, {"a": f"x{bad}"}):
        with pytest.raises(EventError, match="control characters"):
            encode_headers(headers)


def test_w68_a_huge_key_or_header_is_refused_and_a_path_is_only_a_name() -> None:
    with pytest.raises(EventError, match="the limit is 512"):
        check_key("k" * 1_000_000)
    with pytest.raises(EventError, match="the limit is 16,384"):
        encode_headers({"a": "x" * 1_000_000})
    with pytest.raises(EventError, match="allowed are 1 to 200"):
        encode_headers({"a" * 1_000_000: "x"})
    assert check_key("../../etc/passwd") == "../../etc/passwd"
    assert check_key("'; DROP TABLE redrive_events; --") == "'; DROP TABLE redrive_events; --"
