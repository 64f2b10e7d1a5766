"""What comes back of the values that a program appends, and when it is warned."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

import redrive
from redrive import App
from redrive.lossy import VALUES_MAX, LossyDataWarning, find_loss
from redrive.testing import Harness


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    LARGE = "large"


class Line(msgspec.Struct):
    sku: str


@dataclasses.dataclass
class Trip:
    stops: int


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "events.md"
LOSSY = [
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None), "2026-01-02T03:04:05"),
    (date(2026, 1, 2), "2026-01-02"),
    (time(3, 4, 5), "03:04:05"),
    (timedelta(minutes=90), "PT5400S"),
    (Decimal("19.90"), "19.90"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (b"abc", "YWJj"),
    ({"a"}, ["a"]),
    (frozenset({"a"}), ["a"]),
    (Colour.RED, "red"),
    (Line("a-1"), {"sku": "a-1"}),
    (Trip(3), {"stops": 3}),
]
SAME = ["text", 7, 1.5, True, None, [1, [2]], {"a": {"b": 1}}, Size.LARGE]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(str(tmp_path / "shop.db"))
    yield app
    app.close()


@pytest.mark.parametrize(("value", "found"), LOSSY, ids=lambda value: type(value).__name__)
def test_append_warns_of_a_value_that_comes_back_as_another(app: App, value: Any, found: Any) -> None:
    name = type(value).__qualname__
    with pytest.warns(LossyDataWarning, match=rf"order.placed: data holds a {name} at \$\.order\[0\], which comes"):
        event = app.log("orders").append("order.placed", {"order": [value]})
    assert event.data == {"order": [found]}


@pytest.mark.parametrize("value", SAME, ids=repr)
def test_append_is_silent_about_a_value_that_comes_back_as_it_was(app: App, value: Any) -> None:
    assert app.log("orders").append("order.placed", {"order": [value]}).data == {"order": [value]}


def test_append_is_silent_about_a_tuple_that_comes_back_as_a_list(app: App) -> None:
    assert app.log("orders").append("order.placed", {"pair": (1, 2)}).data == {"pair": [1, 2]}


def test_append_of_a_typed_event_is_silent_and_gives_all_back(app: App) -> None:
    @redrive.event("lossy.typed")
    class Typed(msgspec.Struct):
        at: datetime
        price: Decimal
        tags: set[str]
        photo: bytes
        id: UUID
        colour: Colour
        line: Line

    value = Typed(
        datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), {"a", "b"}, b"abc", UUID(int=7), Colour.RED, Line("x")
    )
    assert app.log("orders").append(value).data == value
    plain = {"at": value.at, "price": value.price, "tags": value.tags, "photo": value.photo, "id": value.id}
    event = app.log("orders").append("lossy.typed", plain | {"colour": Colour.RED, "line": value.line})
    assert event.data == value


def test_the_warning_points_to_the_line_that_appends(app: App) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app.log("orders").append("order.placed", {"at": date(2026, 1, 2)})
        app.log("orders").append_many([{"type": "order.sent", "data": {"at": date(2026, 1, 2)}}])
        app.log("orders").append("order.listed", [date(2026, 1, 2)])
    assert {warning.filename for warning in caught} == {__file__}
    assert len({warning.lineno for warning in caught}) == 3


def test_a_handler_that_emits_such_a_value_is_warned_too(tmp_path: Path) -> None:
    app = App(str(tmp_path / "unused.db"))

    @app.on(app.log("orders"), start="first")
    def answer(event: Any, ctx: Any) -> None:
        ctx.emit(app.log("answers"), "order.answered", {"at": event.time})

    with Harness(app) as harness:
        harness.append("orders", "order.placed")
        with pytest.warns(LossyDataWarning, match=r"order.answered: data holds a datetime at \$.at"):
            harness.run_until_idle()


def test_append_looks_at_few_of_many_events_of_one_type(app: App) -> None:
    """A value that only some events have is found later."""
    found: list[int] = []
    for number in range(1, 257):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            app.runtime.types.encode({"at": date(2026, 1, 2)}, "order.placed")
        found += [number] * len(caught)
    assert found == [1, 64, 128, 192, 256]


def test_a_large_event_is_looked_at_in_part() -> None:
    assert find_loss([*range(VALUES_MAX), date(2026, 1, 2)]) is None
    assert find_loss([*range(VALUES_MAX - 2), date(2026, 1, 2)]) is not None


def test_the_guide_says_what_comes_back() -> None:
    table = PAGE.read_text("utf-8").partition("| you append | comes back |")[2].partition("\n\n")[0]
    for value, _ in LOSSY:
        name = type(value).__name__
        assert f"`{name}`" in table or name in ("Colour", "Line", "Trip"), name
    assert "`Enum`" in table and "dataclass" in table and "`tuple`" in table
