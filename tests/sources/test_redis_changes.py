"""A stream that is read in another way than before, and a store that is set back: nothing is passed over in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from streamshop import Shop, say

WAYS = pytest.mark.parametrize("way", [{"partitions": 1}, {}], ids=["in order", "through a group"])
FILE = pytest.mark.sqlite("what is set back is a file; what counts is what the server is asked for")

Opened = Callable[..., Any]


@pytest.fixture
def opened(valkey_url: str, server: Any, backend: str | None, tmp_path: Path) -> Opened:
    """A shop on the one store of this test, for as long as a block lasts."""

    @contextmanager
    def shop(**way: Any) -> Iterator[Shop]:
        found = Shop(valkey_url, backend or str(tmp_path / "shop.db"), **way)
        try:
            found.harness.run_until_idle()
            yield found
            assert [verdict for verdict in found.app.operate().verify() if not verdict.sound] == []
        finally:
            found.harness.close()

    return shop


def ids(shop: Shop) -> list[str]:
    return [id for id, _, _ in shop.given]


def test_what_was_read_through_a_group_is_read_on_in_order_and_back(opened: Opened, server: Any) -> None:
    said = say(server, 5)
    for way in ({}, {"partitions": 1}, {}, {"partitions": 1}):
        said += say(server, 3)
        with opened(**way) as shop:
            assert ids(shop) == [f"orders:{id}" for id in said]
            assert not shop.halted and not shop.reasons


def test_of_several_streams_the_first_is_another_than_the_one(opened: Opened, server: Any) -> None:
    """Its place was taken for that of the other: what was older was not read, or was to be trimmed by hand."""
    expected = [f"orders:{id}" for id in say(server, 2)] + [f"orders:0:{id}" for id in say(server, 2, "orders:0")]
    expected += [f"orders:{id}" for id in say(server, 2)]
    with opened(partitions=1):
        pass
    expected += [f"orders:1:{id}" for id in say(server, 2, "orders:1")]
    with opened(partitions=2) as shop:
        assert sorted(ids(shop)) == sorted(expected) and not shop.halted
    with opened(partitions=4) as shop:
        assert sorted(ids(shop)) == sorted(expected) and not shop.halted


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ({"partitions": 4}, {"partitions": 2}, "orders:3"),
        ({"partitions": 2}, {"partitions": 1}, "orders:1"),
        ({"partitions": 2}, {}, "orders:0"),
        ({"partitions": 1}, {"partitions": 2}, "orders"),
        ({}, {"partitions": 2}, "orders"),
    ],
    ids=["fewer", "one", "group", "several", "group to several"],
)
def test_what_is_left_in_a_stream_that_is_not_read_any_more_halts_the_reading(
    opened: Opened, server: Any, before: dict[str, Any], after: dict[str, Any], left: str
) -> None:
    expected = [f"{left}:{id}" for id in say(server, 2, left)]
    with opened(**before):
        pass
    expected += [f"{left}:{id}" for id in say(server, 2, left)]
    with opened(**after) as shop:
        assert f"'{left}'" in shop.halted and "until they are read" in shop.halted
        assert len(ids(shop)) == 2
    with opened(**before) as shop:
        assert ids(shop) == expected
    with opened(**after) as shop:
        assert ids(shop) == expected and not shop.halted


@WAYS
def test_what_is_trimmed_between_the_first_start_and_the_first_entry_is_told(
    opened: Opened, server: Any, way: dict[str, Any]
) -> None:
    say(server, 3)
    server.xtrim("orders", maxlen=0)
    with opened(**way) as shop:
        assert not shop.reasons, "what was gone before the first start is not ours"
    say(server, 5)
    server.xtrim("orders", maxlen=2, approximate=False)
    with opened(**way) as shop:
        assert len(shop.given) == 2
        assert shop.reasons == ["lost_at_source"]


@pytest.mark.parametrize("way", [{"partitions": 1}, {"partitions": 2}, {}], ids=["in order", "several", "group"])
def test_what_is_trimmed_of_a_stream_that_was_not_there_at_the_first_start_is_told(
    opened: Opened, server: Any, way: dict[str, Any]
) -> None:
    with opened(**way):
        pass
    say(server, 5, "orders:1" if way.get("partitions") == 2 else "orders")
    server.xtrim("orders:1" if way.get("partitions") == 2 else "orders", maxlen=2, approximate=False)
    with opened(**way) as shop:
        assert len(shop.given) == 2
        assert shop.reasons == ["lost_at_source"]


@WAYS
@pytest.mark.parametrize("count", [1, 20])
def test_a_stream_that_was_made_anew_is_read_and_what_it_had_is_told_once(
    opened: Opened, server: Any, way: dict[str, Any], count: int
) -> None:
    """Its new entries have larger ids: it went on with them as if nothing had been between."""
    said = say(server, 5)
    with opened(**way):
        pass
    say(server, 3)
    server.delete("orders")
    said += say(server, count)
    for _ in range(2):
        with opened(**way) as shop:
            assert ids(shop) == [f"orders:{id}" for id in said]
            assert shop.reasons == ["lost_at_source"] and not shop.halted


@FILE
@WAYS
@pytest.mark.parametrize("landed", [0, 4])
def test_a_store_that_is_set_back_reads_again_what_it_does_not_have(
    opened: Opened, server: Any, tmp_path: Path, way: dict[str, Any], landed: int
) -> None:
    file, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    said = say(server, landed)
    with opened(**way):
        pass
    shutil.copy(file, copy)
    said += say(server, 5)
    with opened(**way) as shop:
        assert len(ids(shop)) == landed + 5
    for old in tmp_path.glob("shop.db*"):
        old.unlink()
    copy.rename(file)
    said += say(server, 3)
    with opened(**way) as shop:
        assert ids(shop) == [f"orders:{id}" for id in said]


@FILE
def test_a_group_that_somebody_made_begins_where_they_said(opened: Opened, server: Any, tmp_path: Path) -> None:
    """Also for a store that is set back."""
    say(server, 3)
    server.xgroup_create("orders", "shop.orders", id="$")
    with opened():
        pass
    shutil.copy(tmp_path / "shop.db", tmp_path / "copy.db")
    said = say(server, 2)
    with opened() as shop:
        assert ids(shop) == [f"orders:{id}" for id in said]
    (tmp_path / "copy.db").rename(tmp_path / "shop.db")
    with opened() as shop:
        assert ids(shop) == [f"orders:{id}" for id in said]
