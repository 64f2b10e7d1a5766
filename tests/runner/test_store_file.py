"""The file of a store is deleted, moved or replaced while processes have it open."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, health
from redrive.errors import StoreGone
from redrive.settings import Settings
from redrive.store.sqlite.place import check_free
from redrive.store.sqlite.store import SqliteStore
from redrive.testing import Harness
from redrive.watch import Pages

Damage = Callable[[Path], Any]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    app = App(str(tmp_path / "shop.db"))
    app.log("orders").append("order.placed", 1)
    yield app
    app.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def replace(path: Path) -> None:
    """`mv other.db shop.db`, where other.db is a complete store."""
    SqliteStore(f"{path}.other", inline=True).close()
    os.replace(f"{path}.other", path)


def replace_all(path: Path) -> None:
    """`rm shop.db*; mv other.db shop.db`."""
    other = path.with_name("other")
    SqliteStore(str(other), inline=True).close()
    delete_all(path)
    other.rename(path)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


DAMAGES = {
    "deleted": (delete, "is gone"),
    "deleted with its WAL": (delete_all, "is gone"),
    "moved": (move, "is gone"),
    "replaced": (replace, "another file"),
    "replaced with its WAL": (replace_all, "another file"),
    "emptied": (empty, "is empty"),
}
damages = pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)


def folder(path: Path) -> dict[str, tuple[int, int]]:
    """What lies there: inode and size of each file."""
    return {file.name: ((found := file.stat()).st_ino, found.st_size) for file in path.parent.iterdir()}


@damages
def test_append_raises_when_the_store_file_is_not_in_its_place(
    shop: App, path: Path, damage: Damage, words: str
) -> None:
    damage(path)
    before = folder(path)
    with pytest.raises(StoreGone, match=words):
        shop.log("orders").append("order.placed", 2)
    with pytest.raises(StoreGone, match=words), shop.transaction():
        raise AssertionError("the block must not run")
    assert folder(path) == before


@damages
def test_reading_raises_when_the_store_file_is_not_in_its_place(
    shop: App, path: Path, damage: Damage, words: str
) -> None:
    """More readers at once than before, so that a connection has to be opened: it would read the other file."""
    damage(path)
    before = folder(path)
    with pytest.raises(StoreGone, match=words):
        next(shop.log("orders").read())
    with pytest.raises(StoreGone, match=words), shop.reader():
        raise AssertionError("the block must not run")
    assert folder(path) == before


def test_a_reader_that_is_open_keeps_its_snapshot_but_a_second_is_refused(shop: App, path: Path) -> None:
    with shop.reader() as tx:
        replace(path)
        assert tx.execute("SELECT count(*) FROM redrive_events").fetchone() == (1,)
        with pytest.raises(StoreGone), shop.reader():
            raise AssertionError("the block must not run")


def test_append_works_again_when_the_right_file_is_back(shop: App, path: Path) -> None:
    kept = path.with_name("kept.db")
    path.rename(kept)
    with pytest.raises(StoreGone):
        shop.log("orders").append("order.placed", 2)
    kept.rename(path)
    shop.log("orders").append("order.placed", 3)
    assert [event.data for event in shop.log("orders").read()] == [1, 3]


def test_track_keeps_events_until_the_right_file_is_back(shop: App, path: Path) -> None:
    kept = path.with_name("kept.db")
    path.rename(kept)
    shop.log("orders").track("order.placed", 2)
    assert not shop.log("orders").flush("50ms")
    kept.rename(path)
    assert shop.log("orders").flush("20s")
    assert [event.data for event in shop.log("orders").read()] == [1, 2]


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_deleted_wal_stops_all_writing_and_is_saved_at_the_end(
    path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, one with the former WAL and one with a new one, would damage the file."""
    monkeypatch.setattr("redrive.store.sqlite.place.BESIDE_SECONDS", 0.0)
    shop = App(path)
    for number in (1, 2):
        shop.log("orders").append("order.placed", number)
    Path(f"{path}{suffix}").unlink()
    with pytest.raises(StoreGone, match=rf"shop\.db{suffix} is gone.*stop all processes"):
        shop.log("orders").append("order.placed", 3)
    monkeypatch.undo()  # what was found once is found again at once
    assert not health(shop).healthy
    with pytest.raises(StoreGone, match="this process still has the file open"):
        App(path).log("orders").append("order.placed", 4)
    assert "still has the file open" in append_in_a_new_process(path)
    shop.close()
    app = App(path)
    assert [event.data for event in app.log("orders").read()] == [1, 2]
    assert all(verdict.sound for verdict in app.operate().verify())
    app.close()


# ------------------------------------------------------------ workers


def working(path: Path, seen: list[Any]) -> Harness:
    """A worker with an ordinary lease on a file of the test."""
    app = App("unused.db")
    app.on(app.log("orders"), name="charge", start="first")(lambda event, ctx: seen.append(event.data))
    app.projection(app.log("orders"), name="count", tables={"counted": "n INTEGER"})(
        lambda event, tx: tx.execute("INSERT INTO counted VALUES (:n)", {"n": event.data})
    )
    return Harness(app, str(path), settings=Settings(lease=30, poll_max=1.0))


def test_an_idle_worker_halts_at_its_next_renewal_and_resumes(path: Path) -> None:
    seen: list[Any] = []
    with working(path, seen) as harness:
        harness.append("orders", "order.placed", 1)
        harness.advance("1s")
        kept = path.with_name("kept.db")
        path.rename(kept)
        harness.advance("11s")
        assert sorted(harness.halted) == ["charge", "count"]
        assert all("shop.db is gone" in why for why in harness.halted.values())
        found = health(harness.app)
        assert (found.ready, found.healthy, found.is_ready) == ("broken", False, False)
        assert not path.exists()
        kept.rename(path)
        harness.advance("1m")
        harness.append("orders", "order.placed", 2)
        harness.advance("1s")
        assert (harness.halted, seen, health(harness.app).healthy) == ({}, [1, 2], True)
        assert harness.query("SELECT n FROM counted ORDER BY n") == [(1,), (2,)]
        assert all(verdict.sound for verdict in harness.app.operate().verify())


@damages
def test_health_is_bad_at_once_when_the_store_file_is_not_in_its_place(
    shop: App, path: Path, damage: Damage, words: str
) -> None:
    pages = Pages(shop)
    assert pages.healthz({}).status == 200
    damage(path)
    for page in (pages.healthz, pages.readyz):
        answer = page({})
        assert (answer.status, words in answer.body.decode()) == (503, True), answer.body


# ------------------------------------------------------------ processes that open it later


APPEND = """
import sys
from redrive import App, StoreError
app = App(sys.argv[1])
try:
    app.log("orders").append("order.placed", 2)
except StoreError as error:
    sys.exit(f"refused: {error}")
"""


def append_in_a_new_process(path: Path) -> str:
    """What it says, or nothing if it appends."""
    done = subprocess.run([sys.executable, "-c", APPEND, path], capture_output=True, text=True, timeout=60, check=False)
    return done.stderr


@pytest.mark.parametrize("damage", [delete, delete_all, replace, replace_all])
def test_a_new_process_is_refused_while_another_works_on_the_removed_file(
    shop: App, path: Path, damage: Damage
) -> None:
    damage(path)
    before = folder(path)
    assert f"refused: cannot open the store {path}: process {os.getpid()} still has the file open that was" in (
        append_in_a_new_process(path)
    )
    assert folder(path) == before
    with pytest.raises(StoreGone, match="this process still has the file open that was"):
        App(path).log("orders").append("order.placed", 2)
    with pytest.raises(StoreGone, match="still has the file open"):
        App(path).runtime.check_exists()
    assert folder(path) == before


def test_a_process_that_is_refused_names_the_file_behind_a_link(shop: App, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    delete_all(path)
    assert "still has the file open" in append_in_a_new_process(link)


def test_a_process_that_is_just_closing_the_file_is_waited_for(path: Path) -> None:
    """The last connection deletes the WAL and its index, and closes them afterwards."""
    closing = sqlite3.connect(path)
    closing.execute("PRAGMA journal_mode = WAL")
    closing.execute("CREATE TABLE t (n)")
    Path(f"{path}-wal").unlink()
    pauses: list[float] = []
    with pytest.raises(StoreGone, match="this process still has the file open"):
        check_free(str(path), pauses.append)
    assert sum(pauses) == pytest.approx(1)

    check_free(str(path), lambda seconds: closing.close())


@pytest.mark.parametrize("damage", [delete_all, replace_all])
def test_a_new_store_may_be_made_when_nobody_has_the_removed_one(shop: App, path: Path, damage: Damage) -> None:
    shop.close()
    damage(path)
    assert append_in_a_new_process(path) == ""
    assert [event.data for event in App(path).log("orders").read()] == [2]


@pytest.mark.parametrize("damage", [delete, delete_all])
def test_a_deleted_file_can_be_rescued_from_the_process_that_has_it_open(
    shop: App, path: Path, tmp_path: Path, damage: Damage
) -> None:
    """As the runbook says. `cp` is another process: whoever closes a file of SQLite's loses its locks on it."""
    damage(path)
    rescued = tmp_path / "rescued"
    for name, copy in ((str(path), "r.db"), (f"{path}-wal", "r.db-wal")):
        found = next(
            file for file in Path("/proc/self/fd").iterdir() if os.readlink(file).removesuffix(" (deleted)") == name
        )
        rescued.mkdir(exist_ok=True)
        subprocess.run(["cp", f"/proc/{os.getpid()}/fd/{found.name}", rescued / copy], check=True)
    app = App(str(rescued / "r.db"))
    assert all(verdict.sound for verdict in app.operate().verify())
    app.close()
    assert [file.name for file in rescued.iterdir()] == ["r.db"]
    assert [event.data for event in App(str(rescued / "r.db")).log("orders").read()] == [1]


def left_by_a_dead_worker(path: Path) -> None:
    """A process was killed: its last commits are in the WAL alone."""
    done = subprocess.run(
        [sys.executable, "-c", APPEND + "import os; os.kill(os.getpid(), 9)", path], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("damage", [delete, empty])
def test_a_wal_without_its_file_is_never_thrown_away(path: Path, damage: Damage) -> None:
    left_by_a_dead_worker(path)
    kept = path.with_name("kept.db")
    shutil.copy(path, kept)
    damage(path)
    before = folder(path)
    with pytest.raises(StoreGone, match=r"shop\.db-wal belongs to .* put .*shop\.db back, or remove .*shop\.db-wal"):
        App(path).log("orders").append("order.placed", 3)
    assert folder(path) == before
    kept.rename(path)
    App(path).log("orders").append("order.placed", 3)
    assert [event.data for event in App(path).log("orders").read()] == [2, 3]


def test_a_wal_without_its_file_may_be_removed_to_start_over(path: Path) -> None:
    left_by_a_dead_worker(path)
    delete(path)
    path.with_name("shop.db-wal").unlink()
    path.with_name("shop.db-shm").unlink()
    App(path).log("orders").append("order.placed", 3)
    assert [event.data for event in App(path).log("orders").read()] == [3]


def test_the_cli_says_that_the_store_is_gone(shop: App, path: Path) -> None:
    delete(path)
    command = [sys.executable, "-m", "redrive", "status", "--store", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, path.exists()) == (1, False)
    assert "shop.db-wal belongs to" in " ".join(done.stderr.split()) or "still has the file open" in done.stderr


# ------------------------------------------------------------ what must go on working


def test_a_store_with_a_relative_path_outlives_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    app = App("shop.db")
    app.log("orders").append("order.placed", 1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    app.log("orders").append("order.placed", 2)
    with app.reader(), app.reader() as tx:
        assert tx.execute("SELECT count(*) FROM redrive_events").fetchone() == (2,)
    app.close()
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_file_that_is_only_renamed_around_is_the_same_file(shop: App, path: Path) -> None:
    os.link(path, path.with_name("second-name.db"))
    shop.log("orders").append("order.placed", 2)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM redrive_events").fetchone() == (2,)
    other.close()
