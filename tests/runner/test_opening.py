"""Opening a new file while others do: whoever comes second waits, as for every other lock."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from redrive import StoreError
from redrive.store.sqlite import SqliteStore
from redrive.store.sqlite.connection import advice, let_go, open_connection

FILES, OPENERS = 100, 4


def test_many_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    """The first of them changes its mode, for which it must be alone: the others were told that it is locked."""
    together = threading.Barrier(OPENERS)

    def open_it(path: Path) -> str:
        together.wait(30)
        connection = open_connection(str(path), synchronous="NORMAL", busy_timeout=10.0)
        connection.execute("CREATE TABLE IF NOT EXISTS seen (n)")
        connection.commit()
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        let_go(connection)
        return mode

    with ThreadPoolExecutor(OPENERS) as pool:
        for number in range(FILES):
            paths = [tmp_path / f"{number}.db"] * OPENERS
            assert list(pool.map(open_it, paths)) == ["wal"] * OPENERS


def test_who_has_waited_long_enough_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE theirs (n)")
        other.execute("BEGIN")
        other.execute("SELECT * FROM theirs").fetchall()  # while the file is not in WAL mode yet
        with pytest.raises(StoreError, match=r"cannot open the store .*: this process itself holds a lock on the file"):
            SqliteStore(str(path), inline=True, busy_timeout=0.0)


@pytest.mark.parametrize(
    ("name", "what_to_do"),
    [
        ("letter.txt", "file is not a database; it holds something else, or is damaged: name another file"),
        ("folder", "it is a folder: name a file in it"),
        ("nowhere/shop.db", "nowhere does not exist"),
    ],
)
def test_who_cannot_open_a_file_says_what_to_do(tmp_path: Path, name: str, what_to_do: str) -> None:
    (tmp_path / "letter.txt").write_text("this is no database, and it is long enough to be looked at " * 20)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=what_to_do):
        SqliteStore(str(tmp_path / name), inline=True)


def test_a_file_that_may_only_be_read_is_told_from_one_that_is_damaged(tmp_path: Path) -> None:
    refused = sqlite3.OperationalError("attempt to write a readonly database")  # which root would not meet
    refused.sqlite_errorcode = sqlite3.SQLITE_READONLY
    assert str(tmp_path) in advice(str(tmp_path / "shop.db"), refused)
    assert advice(str(tmp_path / "shop.db"), sqlite3.OperationalError("database is locked")) == ""
