"""The codec: what is stored comes back equal, and what would not is refused with the reason."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import subprocess
import sys
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.codec import DATA_BYTES_MAX, DATA_DEPTH_MAX, are_plain, check_data, decode_json, encode_data, is_deep
from redrive.errors import EventError, Undecodable

INT64 = st.integers(min_value=-(2**63), max_value=2**64 - 1)
scalars = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5), max_leaves=30
)
# Whatever a program might hand over by mistake.
mistakes = (
    st.floats()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.text(st.characters(categories=["Cs", "L"]))
    | st.binary()
    | st.builds(object)
    | st.sets(st.integers())
    | st.complex_numbers()
)
wild_keys = st.text() | st.integers() | st.floats() | st.none() | st.booleans() | st.binary()
wild = st.recursive(
    scalars | mistakes,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(wild_keys, inner, max_size=4),
    max_leaves=15,
)


def nested(depth: int, inner: Any = 1) -> Any:
    for level in range(depth):
        inner = [inner] if level % 2 else {"a": inner}
    return inner


def depth_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


@given(values)
def test_what_is_stored_comes_back_equal_and_other_readers_agree(value: Any) -> None:
    raw = encode_data(value)
    assert decode_json(raw) == value
    assert json.loads(raw) == value
    assert check_data(raw) == raw


@given(wild)
@example({"a": math.nan})
@example([-math.inf])
@example({1: 2})
@example(2**64)
def test_anything_else_is_refused_with_an_event_error_or_comes_back_equal(value: Any) -> None:
    try:
        raw = encode_data(value)
    except EventError as error:
        assert str(error).startswith("data ")
    else:
        assert encode_data(decode_json(raw)) == raw
        assert json.loads(raw, parse_constant=lambda name: pytest.fail(name)) == decode_json(raw)


@given(st.binary())
def test_any_bytes_are_decoded_or_undecodable(raw: bytes) -> None:
    try:
        decode_json(raw)
    except Undecodable as error:
        assert str(error).startswith("data ")


@given(values, st.integers(0, 50), st.sampled_from(["cut", "flip", "double"]))
def test_damaged_json_is_decoded_or_undecodable(value: Any, place: int, damage: str) -> None:
    raw = encode_data(value)
    at = place % len(raw)
    match damage:
        case "cut":
            raw = raw[:at]
        case "flip":
            raw = raw[:at] + bytes([raw[at] ^ 0x81]) + raw[at + 1 :]
        case _:
            raw += raw
    try:
        decode_json(raw)
    except Undecodable:
        with pytest.raises(Undecodable):
            check_data(raw)


def test_the_order_of_keys_is_kept() -> None:
    assert list(decode_json(encode_data({"z": 1, "a": 2, "m": 3}))) == ["z", "a", "m"]


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    LARGE = "large"


class Weight(enum.IntEnum):
    HEAVY = 9


class SafeText(str):
    __slots__ = ()


class Metres(float):
    pass


class Count(int):
    pass


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), b'"2026-01-02T03:04:05Z"'),
        (date(2026, 1, 2), b'"2026-01-02"'),
        (Decimal("19.90"), b'"19.90"'),
        (UUID(int=7), b'"00000000-0000-0000-0000-000000000007"'),
        (Colour.RED, b'"red"'),
        ({Size.LARGE: Weight.HEAVY}, b'{"large":9}'),
        ((1, 2), b"[1,2]"),
        (Pair(1, 2), b"[1,2]"),
        ({"only"}, b'["only"]'),
        ({"photo": b"abc"}, b'{"photo":"YWJj"}'),
        (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
        ([SafeText("<b>"), Metres(1.5), Count(3), True], b'["<b>",1.5,3,true]'),
        (msgspec.Raw(b'{"a": 1}'), b'{"a": 1}'),
    ],
)
def test_common_python_values_have_a_documented_json_form(value: Any, stored: bytes) -> None:
    assert encode_data(value) == stored


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "object has no JSON form"),
        ({"when": lambda: 1}, "function has no JSON form"),
        (1j, "complex has no JSON form"),
        (b'{"a":1}', "data is bytes: give the value"),
        (bytearray(b"1"), "data is bytes"),
        (msgspec.Raw(b"{"), "not valid JSON"),
        (msgspec.Raw(b'{"a":1,"a":2}'), "'a' twice"),
        ({"a": {1: 2}}, "key that is not text"),
        ([{b"a": 2}], "key that is not text"),
        ({None: 2}, "key that is not text"),
        ({(1, 2): 3}, "key that is not text"),
    ],
)
def test_a_value_without_a_json_form_is_refused_with_its_reason(value: Any, reason: str) -> None:
    with pytest.raises(EventError, match=reason):
        encode_data(value)


class Point(msgspec.Struct):
    x: float
    names: dict[int, str] = {}


@dataclasses.dataclass
class Trip:
    start: Point
    stops: dict[float, str] = dataclasses.field(default_factory=dict)


class Order(pydantic.BaseModel):
    sender: str = pydantic.Field(alias="from")
    weight: float = 1.0

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def heavy(self) -> bool:
        return self.weight > 100


def test_models_are_stored_with_their_fields_and_may_have_keys_that_are_numbers() -> None:
    assert encode_data(Point(1.5, {3: "three"})) == b'{"x":1.5,"names":{"3":"three"}}'
    assert encode_data(Trip(Point(0.5), {1.5: "Ulm"})) == b'{"start":{"x":0.5,"names":{}},"stops":{"1.5":"Ulm"}}'


def test_pydantic_models_are_stored_by_alias_and_without_computed_fields_wherever_they_are() -> None:
    order = Order.model_validate({"from": "Ada"})
    assert encode_data(order) == b'{"from":"Ada","weight":1.0}'
    assert encode_data({"orders": [order]}) == b'{"orders":[{"from":"Ada","weight":1.0}]}'


def test_a_pydantic_model_with_a_field_of_the_wrong_type_is_refused() -> None:
    broken = Order.model_construct(sender="Ada", weight="heavy")
    with pytest.raises(EventError, match="cannot be stored as JSON"):
        encode_data(broken)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, r"\$,"),
        ({"a": [1, {"b": math.inf}], "c": None}, r"\$\.a\[1\]\.b,"),
        ([None, -math.inf], r"\$\[1\],"),
        ([Metres("nan")], r"\$\[0\],"),
        (Point(math.nan), r"\$\.x,"),
        (Trip(Point(math.inf)), r"\$\.start\.x,"),
        (Trip(Point(1.5), {math.nan: "nowhere"}), r"\$\.stops\.nan,"),
        (Order.model_validate({"from": "Ada", "weight": math.nan}), r"\$\.weight,"),
    ],
)
def test_what_is_not_a_number_is_refused_and_its_place_named(value: Any, path: str) -> None:
    with pytest.raises(EventError, match=rf"NaN or infinity at {path}"):
        encode_data(value)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.integers(0, 2**63) | st.text()))
@example([1.7976931348623157e308, None, -1, 127, 0x7FF0CB7FF0])
@example([b"\xcb\x7f\xf0".decode("latin-1"), None])
def test_finite_numbers_beside_nulls_are_never_taken_for_nan(value: list[Any]) -> None:
    assert decode_json(encode_data(value)) == value


def test_bytes_that_look_like_nan_in_the_probe_do_not_matter() -> None:
    assert encode_data({"photo": b"\xcb\x7f\xf0", "note": None, "x": 1.5}) == b'{"photo":"y3/w","note":null,"x":1.5}'


@pytest.mark.parametrize("inner", [1, "[[[[{{{{", "]]}}", 'quo"te', "back\\", '\\"[', None, []])
def test_a_hundred_levels_are_stored_and_one_more_is_not(inner: Any) -> None:
    levels = DATA_DEPTH_MAX - depth_of(inner)
    assert decode_json(encode_data(nested(levels, inner))) == nested(levels, inner)
    with pytest.raises(EventError, match="deeper than 100 levels"):
        encode_data(nested(levels + 1, inner))


@given(values, st.integers(90, 110), st.lists(st.text('[]{}"\\ a'), max_size=8))
def test_depth_is_found_in_the_bytes_as_in_the_tree(value: Any, levels: int, noise: list[str]) -> None:
    tree = [*noise, nested(levels, [*noise, value]), *noise]
    assert is_deep(msgspec.json.encode(tree)) is (depth_of(tree) > DATA_DEPTH_MAX)
    assert is_deep(json.dumps(tree, indent=1).encode()) is (depth_of(tree) > DATA_DEPTH_MAX)


def test_a_wide_payload_is_not_a_deep_one() -> None:
    wide: list[Any] = [{"lines": [[], {}]} for _ in range(10_000)]
    assert decode_json(encode_data(wide)) == wide


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EventError, match="contains itself"):
        encode_data(endless)


def test_a_recursion_error_that_the_data_did_not_cause_is_not_blamed_on_it() -> None:
    raw = encode_data(nested(90))

    def at_the_bottom_of_the_stack() -> Any:
        try:
            return at_the_bottom_of_the_stack()
        except RecursionError:
            return decode_json(raw)

    try:
        assert at_the_bottom_of_the_stack() == nested(90)
    except RecursionError as error:
        assert not isinstance(error, EventError)


def test_a_mebibyte_is_stored_and_a_byte_more_is_not() -> None:
    text = "x" * (DATA_BYTES_MAX - 2)
    assert len(encode_data(text)) == DATA_BYTES_MAX
    with pytest.raises(EventError, match=r"1,048,577 bytes; the limit is 1,048,576"):
        encode_data(text + "x")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a":1,"a":2}', "key 'a' twice"),
        (b'[{"a":{"b":1,"c":2,"b":3}}]', "key 'b' twice"),
        (b'{"a":1,"\\u0061":2}', "key 'a' twice"),
        (b'{"a":1,"a":2,"b":"\\u0022\\u0022"}', "key 'a' twice"),  # the quotes of one name are made up for
        (b'{"a":"\\"\\"","a":"\\\\","b":"x"}', "key 'a' twice"),
        (b"[18446744073709551616]", "beyond 64 bit"),
        (b"[" * 101 + b"]" * 101, "deeper than 100 levels"),
        (b"[" * 500_000 + b"]" * 500_000, "deeper than 100 levels"),
        (b" " * DATA_BYTES_MAX + b"1", "the limit is"),
        (b"", "not valid JSON"),
        (b"{}{}", "not valid JSON"),
    ],
)
def test_bytes_from_elsewhere_are_held_to_the_same_rules(raw: bytes, reason: str) -> None:
    with pytest.raises(EventError, match=reason):
        check_data(raw)


def test_bytes_from_elsewhere_are_kept_to_the_letter() -> None:
    raw = b'{ "b" : 1.50,\n "a" : "\\u00e9" }'
    assert check_data(raw) is raw


# Objects, and pieces that would be some if they stood together.
pieces = st.lists(st.sampled_from(['"', '"a":', "1", ",", "{", "}", "[", "]", "\n", " ", "\\", '{"a":1}', str(2**64)]))
lines = st.lists(st.builds("{{{}}}".format, pieces.map("".join)).map(str.encode), min_size=1, max_size=4)


@given(lines)
@example([b'{"a":1}{"b":2}'])
@example([b'{"a":"}', b'{"}'])
@example([b'{"a":{}', b"{}}"])
@example([b'{"a":1}{}', b'{"a":"}', b'{"}'])
@example([b'{"a":1}\n{}', b'{"a":{}', b"{}}"])
@example([b'{"a":1}', b'{"a":1,"a":2}'])
@example([b'{"a":1,"a":"\\u0022\\u0022"}'])
@example([b'{"a":18446744073709551616}', b"{}"])
@example([b'{"a":"\xff"}', b"{}"])
@example([b'{"a":' + b"[" * 101 + b"]" * 101 + b"}", b"{}"])
@example([b'{"a":"' + b" " * DATA_BYTES_MAX + b'"}'])
@example([b'{"a":{}', b',"b":1}', b"{}{}"])
@example([b'{"a":', b"{}}", b"{}{}"])
@example([b"", b"{}"])
@example([b'{"a":{"b":1,"b":2}}', b'{"a":[{"b":1,"b":2}]}'])
@example([b'{"a":' * 101 + b"1" + b"}" * 101])
@example([b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_many_are_plain_only_if_each_is_accepted(raws: list[bytes]) -> None:
    refused = 0
    for raw in raws:
        try:
            check_data(raw)
        except EventError:
            refused += 1
    assert not are_plain(raws) or not refused


@given(st.lists(st.dictionaries(st.text(), values, max_size=5), min_size=1))
@example([{"a": [[[]]] * 40}] * 3)
def test_objects_that_are_accepted_are_plain_together(objects: list[dict[str, Any]]) -> None:
    assert are_plain([encode_data(value) for value in objects])


def test_many_repeated_keys_are_found_in_linear_time() -> None:
    names = ",".join(f'"{number}":0' for number in range(80_000))
    with pytest.raises(EventError, match="'79999' twice"):
        check_data(f'{{{names},"79999":1}}'.encode())


def test_pydantic_is_not_needed_and_not_imported() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "import msgspec, redrive.types as t\n"
        "cls = t.event('a.b')(msgspec.defstruct('AB', [('x', int)]))\n"
        "types = t.EventTypes(); name, schema, raw = types.encode(cls(1))\n"
        "assert types.decode(name, schema, raw) == cls(1) and types.decode('c', 1, b'[1]') == [1]\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
