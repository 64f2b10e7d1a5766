"""The storage format: a file of a newer redrive is refused and left alone, one of an older is brought up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from redrive import App, UsageError, failpoints
from redrive.event import NewEvent
from redrive.store import landed
from redrive.store.sqlite import migrate


def test_a_file_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    app = App(str(path))
    app.log("orders").append("paid", {"cents": 1})
    app.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE redrive_meta SET value = 99 WHERE name IN ('format', 'compatible_from')")
    before = list(connection.iterdump())
    with pytest.raises(UsageError, match=r"storage format 99.*upgrade redrive"):
        App(str(path)).log("orders").append("paid", {"cents": 2})
    assert list(connection.iterdump()) == before
    connection.close()


def test_a_newer_format_that_still_allows_us_is_used(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    app = App(str(path))
    app.log("orders").append("paid", {"cents": 1})
    app.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE redrive_meta SET value = 99 WHERE name = 'format'")
    connection.close()
    app = App(str(path))
    app.log("orders").append("paid", {"cents": 2})
    assert [event.data["cents"] for event in app.log("orders").read()] == [1, 2]
    app.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.write_bytes(b"this is a shopping list, not a database" * 100)
    with pytest.raises(Exception, match="not a database"):
        App(str(path)).log("orders").append("paid", {"cents": 2})
    assert path.read_bytes().startswith(b"this is a shopping list")


FORMER = """INSERT INTO redrive_meta VALUES ('format', 1), ('compatible_from', 1), ('syncs', 0);
INSERT INTO redrive_logs (name) VALUES ('orders'), ('redis:clicks');
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, data) VALUES
    (1, 'o1', 'paid', 'a', 1, 1, 0, '1'), (1, 'o2', 'paid', 'a', 2, 1, 0, '2'),
    (1, 'o3', 'paid', NULL, NULL, 1, 0, '3'),
    (2, 'c1', 'seen', 'a', 1, 1, 0, '1'), (2, 'c2', 'seen', 'b', 1, 1, 0, '2'), (2, 'c3', 'seen', 'a', 2, 1, 0, '3');
"""


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A file of format 1; in the second log a broker's messages have landed, with versions as they were given then."""
    path = tmp_path / "former.db"
    connection = sqlite3.connect(path)
    connection.executescript((Path(migrate.__file__).parent / "schema.sql").read_text("utf-8") + FORMER)
    connection.close()
    return path


def test_a_file_of_the_first_format_is_brought_up_to_date_and_used(former: Path) -> None:
    app = App(str(former))
    orders, clicks = app.log("orders"), app.log("redis:clicks")
    assert orders.append("paid", 4, key="a", expected_version=2).version == 3
    store: Any = app.runtime.store
    with store.transaction() as tx:
        new = [NewEvent(id, "seen", "a", 1, 0, None, b"4", None, False) for id in ("c4", "c5")]
        landed.append_new(tx.logs, tx.sql, clicks.name, new, is_first=True)
    assert [(e.id, e.version) for e in orders.read_key("a")] == [("o1", 1), ("o2", 2), (ANY, 3)]
    assert [(e.id, e.version) for e in clicks.read_key("a")] == [("c1", 1), ("c3", 2), ("c4", None), ("c5", None)]
    app.close()
    connection = sqlite3.connect(former)
    numbers = dict(
        connection.execute("SELECT name, value FROM redrive_meta WHERE name IN ('format', 'compatible_from')")
    )
    assert numbers == {"format": migrate.FORMAT, "compatible_from": migrate.COMPATIBLE_FROM}
    assert connection.execute("SELECT count(*), max(position) FROM redrive_keys").fetchone() == (5, 6)
    connection.close()


def test_in_a_long_file_of_the_second_format_all_are_found_by_their_key_afterwards(former: Path) -> None:
    """Some of its events lie behind the last span."""
    connection = sqlite3.connect(former)
    with connection:
        connection.executescript((Path(migrate.__file__).parent / "format_2.sql").read_text("utf-8"))
        connection.execute("UPDATE redrive_meta SET value = 2 WHERE name IN ('format', 'compatible_from')")
        rows = [(f"e{n}", f"k{n % 7}", 1 + n // 7) for n in range(5_000)]
        connection.executemany(
            "INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, data) "
            "VALUES (1, ?, 'paid', ?, ?, 1, 0, '1')", rows,
        )  # fmt: skip
        connection.execute("INSERT INTO redrive_spans VALUES (0, 1, 'paid', 0, 0), (1, 1, 'paid', 0, 0)")
    connection.close()
    app = App(str(former))
    log = app.log("orders")
    for key in ("k0", "k6"):
        expected = [id for id, its, _ in rows if its == key]
        assert [event.id for event in log.read_key(key)] == expected
        assert log.append("paid", 1, key=key, expected_version=len(expected)).version == len(expected) + 1
    log.append_many([{"type": "paid", "key": "k0"}] * 3_000)  # the next spans
    assert [event.version for event in log.read_key("k0", after_version=700)] == [*range(701, 3_717)]
    app.close()


def test_who_dies_while_a_file_is_brought_up_to_date_leaves_the_former_format(former: Path) -> None:
    connection = sqlite3.connect(former)
    before = list(connection.iterdump())
    armed = failpoints.armed()

    def die(name: str) -> None:
        if name == "migrate.before_commit":
            raise KeyboardInterrupt

    failpoints.arm(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            App(str(former)).log("orders").append("paid", 4, key="a")
    finally:
        failpoints.arm(armed)
    assert list(connection.iterdump()) == before
    connection.close()
    app = App(str(former))
    assert app.log("orders").append("paid", 4, key="a").version == 3
    app.close()
