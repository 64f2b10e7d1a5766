"""The storage format: a file of a newer redrive is refused and left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from redrive import App, UsageError


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
