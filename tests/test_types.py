"""Typed events: which class the data becomes, for the registry and for the type checker."""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import mypy.api
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import EventError, Undecodable, UsageError
from redrive.event import Event
from redrive.types import EventTypes, event


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@event("types.struct", schema=2)
class StructPlaced(msgspec.Struct):
    cents: int
    weight: float = 0.0
    at: datetime | None = None
    colour: Colour = Colour.RED
    names: dict[int, str] = {}
    lines: list[tuple[str, Decimal]] = []
    photo: bytes = b""
    id: UUID | None = None


@event("types.dataclass")
@dataclasses.dataclass(frozen=True, slots=True)
class DataPlaced:
    cents: int
    lines: tuple[StructPlaced, ...] = ()
    tags: frozenset[str] = frozenset()


@event("types.pydantic")
class ModelPlaced(pydantic.BaseModel):
    cents: int
    sender: str = pydantic.Field("nobody", alias="from")
    at: datetime | None = None
    price: Decimal = Decimal(0)


@event("types.pydantic.dataclass")
@pydantic.dataclasses.dataclass
class CheckedPlaced:
    cents: pydantic.PositiveInt


times = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-1_000_000, max_value=1_000_000, places=2)
int64 = st.integers(-(2**63), 2**63 - 1)
structs = st.builds(
    StructPlaced,
    cents=int64,
    weight=st.floats(allow_nan=False, allow_infinity=False),
    at=st.none() | times,
    colour=st.sampled_from(Colour),
    names=st.dictionaries(int64, st.text()),
    lines=st.lists(st.tuples(st.text(), decimals)),
    photo=st.binary(),
    id=st.none() | st.uuids(),
)
dataclasses_ = st.builds(
    DataPlaced,
    cents=int64,
    lines=st.lists(structs, max_size=3).map(tuple),
    tags=st.frozensets(st.text()),
)
models = st.builds(
    lambda cents, sender, at, price: ModelPlaced.model_validate(
        {"cents": cents, "from": sender, "at": at, "price": price}
    ),
    int64,
    st.text(),
    st.none() | times,
    decimals,
)
checked = st.builds(CheckedPlaced, cents=st.integers(1, 2**63 - 1))


@given(structs | dataclasses_ | models | checked)
def test_a_typed_event_comes_back_equal_and_of_its_class(value: Any) -> None:
    name, schema, raw = EventTypes().encode(value)
    assert name is not None
    back = EventTypes().decode(name, schema, raw)
    assert back == value
    assert type(back) is type(value)


def test_the_decorator_marks_the_class_and_returns_it() -> None:
    class Local(msgspec.Struct):
        cents: int

    assert event("types.local", schema=3)(Local) is Local
    assert Local.__redrive_event__ == ("types.local", 3)  # type: ignore[attr-defined]


def test_a_decorated_class_is_known_to_every_registry_even_an_older_one() -> None:
    types = EventTypes()
    assert types.decode("types.late", 1, b'{"cents":1}') == {"cents": 1}

    @event("types.late")
    class Late(msgspec.Struct):
        cents: int

    assert types.decode("types.late", 1, b'{"cents":1}') == Late(1)
    assert types.schema_of("types.late") == 1


def test_a_name_without_a_class_is_plain_json_of_any_schema() -> None:
    types = EventTypes()
    assert types.decode("types.unheard_of", 1, b'{"a":[1,2.5]}') == {"a": [1, 2.5]}
    assert types.decode("types.unheard_of", 7, b"null") is None
    assert types.schema_of("types.unheard_of") == 1
    assert types.encode({"a": 1}) == (None, 1, b'{"a":1}')


def test_plain_data_for_a_typed_name_is_stored_with_the_schema_of_the_class() -> None:
    assert EventTypes().encode({"cents": 1}, "types.struct") == ("types.struct", 2, b'{"cents":1}')


def test_a_typed_event_under_another_name_is_refused() -> None:
    assert EventTypes().encode(DataPlaced(1), "types.dataclass")[0] == "types.dataclass"
    with pytest.raises(EventError, match=r"DataPlaced is 'types.dataclass' and cannot be appended as 'other'"):
        EventTypes().encode(DataPlaced(1), "other")


@pytest.mark.parametrize(
    ("value", "place"),
    [(DataPlaced(cents="many"), r"\$\.cents"), (StructPlaced(1, names={1: 2}), r"\$\.names")],  # type: ignore[arg-type,dict-item]
)
def test_a_typed_event_that_could_not_be_read_again_is_refused_at_append(value: Any, place: str) -> None:
    with pytest.raises(EventError, match=rf"values that its fields do not allow: Expected .* - at `{place}"):
        EventTypes().encode(value)


def test_name_of_registers_the_class_and_refuses_others() -> None:
    assert EventTypes().name_of(StructPlaced) == "types.struct"

    class Undecorated(StructPlaced):
        pass

    for wrong in (Undecorated, dict, "types.struct", StructPlaced(1)):
        with pytest.raises(UsageError, match=r"decorate the class with @redrive\.event"):
            EventTypes().name_of(wrong)  # type: ignore[arg-type]


def test_an_undecorated_subclass_is_plain_data_without_a_type() -> None:
    class Undecorated(StructPlaced):
        pass

    assert EventTypes().encode(Undecorated(1))[:2] == (None, 1)


@pytest.mark.parametrize("wrong", [dict, int, "text", type("Bare", (), {})])
def test_only_classes_with_fields_can_be_events(wrong: Any) -> None:
    with pytest.raises(UsageError, match="write @event above @dataclass"):
        event("types.wrong")(wrong)


@pytest.mark.parametrize("name", ["", "two words", "line\nbreak", "x" * 201])
def test_a_bad_name_is_refused_by_the_decorator(name: str) -> None:
    with pytest.raises(UsageError, match="the event type"):
        event(name)


@pytest.mark.parametrize("schema", [0, -1, True, 1.5, "2", None])
def test_a_schema_is_a_whole_number_from_one(schema: Any) -> None:
    with pytest.raises(UsageError, match="from 1 up"):
        event("types.wrong", schema=schema)
    with pytest.raises(UsageError, match="from 1 up"):
        EventTypes().upcast("types.wrong", schema, dict)


def rivals() -> tuple[type, type]:
    class One(msgspec.Struct):
        a: int = 0

    class Two(msgspec.Struct):
        b: int = 0

    return event("types.rivals")(One), event("types.rivals")(Two)


def test_two_classes_for_one_name_are_an_error_until_one_is_registered() -> None:
    one, two = rivals()
    with pytest.raises(UsageError, match=r"claimed by .*One and .*Two"):
        EventTypes().decode("types.rivals", 1, b"{}")
    types = EventTypes()
    types.register(two)
    assert types.decode("types.rivals", 1, b"{}") == two()
    with pytest.raises(UsageError, match=r"claimed by .*Two and .*One.*@app\.upcast"):
        types.register(one)


@event("types.versions", schema=2)
class New(msgspec.Struct):
    cents: int


@event("types.versions", schema=1)
class Old(msgspec.Struct):
    euros: int


def test_without_a_registration_the_class_of_the_newest_schema_counts() -> None:
    assert EventTypes().schema_of("types.versions") == 2
    assert EventTypes().decode("types.versions", 2, b'{"cents":1}') == New(1)


def test_an_event_of_an_old_class_may_be_appended_and_is_read_as_the_new_one() -> None:
    for register in (True, False):
        types = EventTypes()
        types.upcast("types.versions", 1, lambda data: {"cents": data["euros"] * 100})
        if register:
            types.register(New)
        assert types.encode(Old(1)) == ("types.versions", 1, b'{"euros":1}')
        assert types.decode("types.versions", 1, b'{"euros":1}') == New(100)
        assert types.encode(New(1))[1] == 2
        with pytest.raises(EventError, match="Old has values that its fields do not allow"):
            types.encode(Old("many"))  # type: ignore[arg-type]


def test_a_registration_takes_effect_on_a_name_that_was_read_before() -> None:
    types = EventTypes()
    assert types.decode("types.versions", 2, b'{"cents":1}') == New(1)
    types.register(Old)
    assert types.decode("types.versions", 1, b'{"euros":1}') == Old(1)


def test_the_same_class_defined_again_replaces_itself() -> None:
    def define(default: int) -> type:
        class Again(msgspec.Struct):
            cents: int = default

        return event("types.again")(Again)

    types, first = EventTypes(), define(1)
    types.register(first)
    second = define(2)
    assert EventTypes().decode("types.again", 1, b"{}") == second()
    types.register(second)
    assert types.decode("types.again", 1, b"{}") == second()


def test_a_script_that_is_imported_as_well_is_no_rival_of_itself() -> None:
    script = type("Script", (msgspec.Struct,), {"__module__": "__main__", "__qualname__": "Script"})
    module = type("Script", (msgspec.Struct,), {"__module__": "shop", "__qualname__": "Script"})
    event("types.script")(script)
    event("types.script")(module)
    assert type(EventTypes().decode("types.script", 1, b"{}")) is module


def test_a_registry_does_not_remember_every_name_it_meets() -> None:
    types = EventTypes()
    for number in range(3_000):
        types.decode(f"types.flood.{number}", 1, b"1")
    assert len(types._readers) <= 1_000
    assert types.decode("types.struct", 2, b'{"cents":1}') == StructPlaced(1)


def test_a_class_that_cannot_be_read_from_json_stops_the_start() -> None:
    @event("types.unreadable")
    class Unreadable(msgspec.Struct):
        either: StructPlaced | DataPlaced

    types = EventTypes()
    types.register(Unreadable)
    with pytest.raises(UsageError, match=r"Unreadable cannot be read from JSON"):
        types.check()


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ({1: dict, 2: dict, 3: dict}, None),
        ({3: dict}, None),  # nothing older is stored, says the user
        ({}, None),
        ({1: dict, 3: dict}, "no upcast from schema 2"),
        ({1: dict, 2: dict}, "no upcast from schema 3"),
        ({3: dict, 4: dict}, r"4\) leads past schema 4: raise schema="),
    ],
)
def test_a_chain_of_upcasts_must_lead_to_the_class(steps: dict[int, Any], problem: str | None) -> None:
    @event("types.chain", schema=4)
    class Chain(msgspec.Struct):
        cents: int

    types = EventTypes()
    types.register(Chain)
    for step, fn in steps.items():
        types.upcast("types.chain", step, fn)
    if problem is None:
        types.check()
        assert types.schema_of("types.chain") == 4
    else:
        with pytest.raises(UsageError, match=problem):
            types.check()


def test_an_upcast_is_given_once_and_is_a_plain_function() -> None:
    async def later(data: Any) -> Any:
        return data

    types = EventTypes()
    types.upcast("types.once", 1, dict)
    types.upcast("types.once", 1, dict)
    with pytest.raises(UsageError, match="given twice"):
        types.upcast("types.once", 1, list)
    for wrong in (later, "text"):
        with pytest.raises(UsageError, match="plain function"):
            types.upcast("types.other", 1, wrong)  # type: ignore[arg-type]


def test_an_event_gives_its_data_as_its_class() -> None:
    stored: Event[StructPlaced] = Event(
        1, "id", "types.struct", None, None, 2, 0, None, b'{"cents":4200}', EventTypes()
    )
    assert stored.data.cents == 4200
    assert stored.data is stored.data


def data_of(types: EventTypes, kind: str, raw: bytes, schema: int = 1) -> Any:
    stored: Event[Any] = Event(1, "id", kind, None, None, schema, 0, None, raw, types)
    return stored.data


def test_an_event_that_was_plain_json_when_it_was_last_read_is_of_its_class_as_soon_as_there_is_one() -> None:
    types = EventTypes()
    for kind in ("types.marked", "types.registered", "types.lifted"):
        assert data_of(types, kind, b'{"cents":1}') == {"cents": 1} == data_of(types, kind, b'{"cents":1}')
    assert types.plain == {"types.marked", "types.registered", "types.lifted"}

    @event("types.marked")
    class Marked(msgspec.Struct):
        cents: int

    assert data_of(types, "types.marked", b'{"cents":1}') == Marked(1)

    class Registered(msgspec.Struct):
        cents: int

    Registered.__redrive_event__ = ("types.registered", 1)  # type: ignore[attr-defined]  # no registry hears of it
    assert data_of(types, "types.registered", b'{"cents":1}') == {"cents": 1}
    types.register(Registered)
    assert data_of(types, "types.registered", b'{"cents":1}') == Registered(1)

    assert data_of(types, "types.lifted", b'{"cents":1}') == {"cents": 1}
    types.upcast("types.lifted", 1, lambda data: {**data, "lifted": True})
    assert data_of(types, "types.lifted", b'{"cents":1}') == {"cents": 1, "lifted": True}


@pytest.mark.parametrize("raw", [b"{", b'"\xff"', b"[" * 200_000 + b"]" * 200_000])
def test_plain_json_that_cannot_be_read_is_undecodable_however_often_its_type_was_read(raw: bytes) -> None:
    types = EventTypes()
    assert data_of(types, "types.plain", b"1") == 1
    with pytest.raises(Undecodable, match=r"types\.plain"):
        data_of(types, "types.plain", raw)


TYPED_PROGRAM = """
from dataclasses import dataclass
from typing import Any
from redrive.event import Event
from redrive.types import event

@event("order.placed", schema=2)
@dataclass
class OrderPlaced:
    cents: int

class Special(OrderPlaced): ...

def total(stored: Event[OrderPlaced]) -> int:
    reveal_type(stored.data)
    reveal_type(stored.headers)
    return stored.data.cents

def plain(stored: Event[Any]) -> str:
    reveal_type(stored.data)
    return str(stored.data["name"])

def both(special: Event[Special], placed: type[OrderPlaced]) -> int:
    reveal_type(OrderPlaced(1))
    return total(special)

def wrong(stored: Event[OrderPlaced]) -> None:
    stored.data.euros
    stored.position = 3
"""


@pytest.mark.slow
def test_the_types_are_right_for_users_who_run_mypy_strict(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED_PROGRAM)
    shown, problems, _ = mypy.api.run(["--strict", "--no-error-summary", str(program)])
    found = [line.split(":", 2)[2].strip() for line in shown.splitlines()]
    assert problems == ""
    assert found == [
        'note: Revealed type is "program.OrderPlaced"',
        'note: Revealed type is "dict[str, str]"',
        'note: Revealed type is "Any"',
        'note: Revealed type is "program.OrderPlaced"',
        'error: "OrderPlaced" has no attribute "euros"  [attr-defined]',
        'error: Property "position" defined in "Event" is read-only  [misc]',
    ]
