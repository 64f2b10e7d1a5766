"""Reading one event type: old schemas are lifted step by step, and every misfit has its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

from redrive.errors import Undecodable
from redrive.types import EventTypes, event


class Line(msgspec.Struct):
    sku: str
    count: int


@event("reader.struct", schema=3)
class Struct(msgspec.Struct):
    cents: int
    lines: list[Line] = []

    def __post_init__(self) -> None:
        if self.cents == 666:
            raise KeyError("cents")
        if self.cents < 0:
            raise ValueError("an amount is positive")
        if self.cents == 404:
            raise OSError("the disk is gone")


@event("reader.dataclass", schema=3)
@dataclasses.dataclass
class Data:
    cents: int
    lines: list[Line] = dataclasses.field(default_factory=list)


class ModelLine(pydantic.BaseModel):
    sku: str
    count: int


@event("reader.model", schema=3)
class Model(pydantic.BaseModel):
    cents: pydantic.StrictInt
    lines: list[ModelLine] = []


@event("reader.mixed")
class Mixed(msgspec.Struct):
    line: ModelLine


@event("reader.foreign")
@dataclasses.dataclass
class Foreign:
    value: complex


NAMES = ["reader.struct", "reader.dataclass", "reader.model"]


def registry() -> EventTypes:
    types = EventTypes()
    for name in NAMES:
        types.upcast(name, 1, lambda data: {"euros": data["amount"]})
        types.upcast(name, 2, lambda data: {"cents": data["euros"] * 100})
    types.check()
    return types


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("schema", "raw"),
    [(1, b'{"amount":42}'), (2, b'{"euros":42}'), (3, b'{"cents":4200}'), (3, b'{"cents":4200,"new":1}')],
)
def test_data_of_every_schema_becomes_the_class_and_unknown_fields_are_left_out(
    name: str, schema: int, raw: bytes
) -> None:
    data = registry().decode(name, schema, raw)
    assert (data.cents, data.lines) == (4200, [])


def test_upcasts_without_a_class_lift_plain_data() -> None:
    types = EventTypes()
    types.upcast("reader.plain", 1, lambda data: {"cents": data["euros"] * 100})
    assert types.schema_of("reader.plain") == 2
    assert types.decode("reader.plain", 1, b'{"euros":1}') == {"cents": 100}
    assert types.decode("reader.plain", 2, b'{"cents":7}') == {"cents": 7}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"{}", "cents"),
        (b'{"cents":"4200"}', "cents"),
        (b'{"cents":1.5}', "cents"),
        (b'{"cents":null}', "cents"),
        (b'{"cents":1,"lines":[{"sku":"a","count":1},{"sku":"b"}]}', "lines[1]"),
        (b'{"cents":1,"lines":[{"sku":7,"count":1}]}', "lines[0].sku"),
        (b"[]", ""),
        (b"null", ""),
        (b'"text"', ""),
    ],
)
def test_missing_and_mistyped_fields_are_undecodable_with_their_path(name: str, raw: bytes, place: str) -> None:
    with pytest.raises(Undecodable) as caught:
        registry().decode(name, 3, raw)
    assert str(caught.value).startswith(f"{name} (schema 3): ")
    assert place in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_reason_does_not_quote_the_payload(name: str) -> None:
    for raw in (b'{"cents":"Ada Lovelace"}', b'{"Ada Lovelace', b'{"cents":1,"lines":["Ada Lovelace"]}'):
        with pytest.raises(Undecodable) as caught:
            registry().decode(name, 3, raw)
        assert "Ada" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_what_the_class_itself_refuses_is_undecodable_and_shows_where() -> None:
    with pytest.raises(Undecodable, match="an amount is positive"):
        registry().decode("reader.struct", 3, b'{"cents":-1}')
    with pytest.raises(Undecodable, match="KeyError: 'cents'") as caught:
        registry().decode("reader.struct", 3, b'{"cents":666}')
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_that_is_not_the_fault_of_the_data_is_left_to_the_retry_rules() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        registry().decode("reader.struct", 3, b'{"cents":404}')


def test_a_newer_schema_than_the_program_knows_says_to_deploy_and_replay() -> None:
    with pytest.raises(Undecodable, match=r"reader.struct \(schema 4\): .*schema 3 at most: deploy the newer version"):
        registry().decode("reader.struct", 4, b'{"cents":1}')


def test_a_missing_upcast_is_named() -> None:
    with pytest.raises(Undecodable, match=r"no upcast from schema 1: add @app.upcast\('reader.struct', 1\)"):
        EventTypes().decode("reader.struct", 1, b"{}")


def test_a_failing_upcast_is_named_and_its_traceback_kept() -> None:
    with pytest.raises(Undecodable, match="the upcast from schema 1 failed: KeyError: 'amount'") as caught:
        registry().decode("reader.struct", 1, b"{}")
    assert isinstance(caught.value.__cause__, KeyError)


def forgetful(data: Any) -> Any:
    data["cents"] = 1


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (forgetful, "returned None: return the new data"),
        (lambda data: {"cents": float("nan")}, r"NaN or infinity at \$\.cents"),
        (lambda data: {"cents": "many"}, r"Expected `int`, got `str` - at `\$\.cents`"),
        (lambda data: object(), "object has no JSON form"),
        (lambda: 1, "TypeError"),
    ],
)
def test_an_upcast_that_makes_no_fitting_data_is_undecodable(fn: Any, reason: str) -> None:
    types = EventTypes()
    types.upcast("reader.struct", 2, fn)
    with pytest.raises(Undecodable, match=reason):
        types.decode("reader.struct", 2, b"{}")


def test_an_upcast_that_cannot_reach_the_world_is_left_to_the_retry_rules() -> None:
    def ask(data: Any) -> Any:
        raise ConnectionError("no rates")

    types = EventTypes()
    types.upcast("reader.struct", 2, ask)
    with pytest.raises(ConnectionError):
        types.decode("reader.struct", 2, b"{}")


def test_a_pydantic_model_may_be_a_field_of_a_struct() -> None:
    types = EventTypes()
    name, schema, raw = types.encode(Mixed(ModelLine(sku="a", count=1)))
    assert name == "reader.mixed"
    assert types.decode(name, schema, raw) == Mixed(ModelLine(sku="a", count=1))
    with pytest.raises(Undecodable, match="sku"):
        types.decode(name, schema, b'{"line":{"count":1}}')


def test_a_field_that_json_cannot_express_is_undecodable_and_named() -> None:
    with pytest.raises(Undecodable, match="a field of type complex cannot be read from JSON: use a pydantic model"):
        EventTypes().decode("reader.foreign", 1, b'{"value":"1j"}')


def test_a_model_with_many_faults_names_the_first_few() -> None:
    raw = b'{"cents":1,"lines":[' + b",".join([b"{}"] * 50) + b"]}"
    with pytest.raises(Undecodable) as caught:
        registry().decode("reader.model", 3, raw)
    assert str(caught.value).count("Field required") == 3
