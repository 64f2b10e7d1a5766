"""SIGKILL while events are tracked: what was committed or spooled is there exactly once and in order."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from processes import PATIENCE, Child, Zygote, wait_until
from tracking import KEYS, build

from redrive.store.address import is_postgres

ROUNDS = 8


class Shop:
    """A store that can be locked, a spool, and processes that track."""

    def __init__(self, zygote: Zygote, folder: Path, url: str | None) -> None:
        self._zygote, self._folder = zygote, folder
        self.path = url or str(folder / "shop.db")
        self.spool = folder / "spool"
        app = build(self.path, str(self.spool), PATIENCE)
        app.log("orders").append("made", {"by": "nobody", "n": 0}, key="nobody-0")
        app.close()

    def start(self, name: str, count: int, failpoint: str = "", **more: object) -> Child:
        env = {"REDRIVE_FAILPOINT": failpoint} if failpoint else {}
        return self._zygote.start(
            "tracking:track", self._folder / "stderr", env=env, path=self.path, spool=str(self.spool),
            said=str(self._folder / name), name=name, count=count, **more,
        )  # fmt: skip

    def take_in(self, failpoint: str = "") -> Child:
        env = {"REDRIVE_FAILPOINT": failpoint} if failpoint else {}
        return self._zygote.start(
            "tracking:take_in", self._folder / "stderr", env=env, path=self.path, spool=str(self.spool)
        )

    def said(self, name: str) -> int:
        """How far a process knew that its events were safe."""
        file = self._folder / name
        return int(file.read_text()) if file.exists() else 0

    def is_done(self, name: str) -> bool:
        return (self._folder / f"{name}-done").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else can write."""
        if is_postgres(self.path):
            with psycopg.connect(self.path) as connection:
                connection.execute("LOCK TABLE redrive.events IN ACCESS EXCLUSIVE MODE")
                yield
                connection.rollback()
            return
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
        connection.close()

    def found(self, name: str) -> list[int]:
        """The numbers of a process, in the order of the log; those of each key must be in order there too."""
        app = build(self.path, str(self.spool), PATIENCE)
        events = [event for event in app.log("orders").read() if event.data["by"] == name]
        for key in range(KEYS):
            versions = [event.version for event in events if event.key == f"{name}-{key}"]
            assert versions == list(range(1, len(versions) + 1))
        app.close()
        return [event.data["n"] for event in events]

    def check(self, name: str, tracked: int) -> None:
        """A beginning of what was tracked, without gaps or doubles, that holds at least what was known to be safe."""
        found = self.found(name)
        assert found == list(range(len(found)))
        assert self.said(name) <= len(found) <= tracked

    def files(self) -> list[Path]:
        return [path for path in self.spool.rglob("*") if path.is_file()]


@pytest.fixture
def shop(zygote: Zygote, tmp_path: Path, store: str | None) -> Shop:
    return Shop(zygote, tmp_path, store)


def test_a_kill_at_any_moment_takes_only_the_end_of_what_was_not_confirmed(shop: Shop) -> None:
    dice = random.Random(53)
    for turn in range(ROUNDS):
        child = shop.start(f"p{turn}", 100_000, flush=20)
        enough = dice.randint(20, 400)
        wait_until(lambda: shop.said(f"p{turn}") >= enough)  # noqa: B023
        child.kill()
    for turn in range(ROUNDS):
        shop.check(f"p{turn}", 100_000)


def test_what_was_spooled_when_the_process_was_killed_is_taken_in_once_by_the_next(shop: Shop) -> None:
    dice = random.Random(54)
    with shop.locked():
        for turn in range(3):
            child = shop.start(f"p{turn}", 100_000)
            enough = dice.randint(50, 400)
            wait_until(lambda: shop.said(f"p{turn}") >= enough)  # noqa: B023
            child.kill()
        assert len(shop.files()) == 3
    assert shop.take_in().wait() == 0
    assert shop.files() == []
    for turn in range(3):
        shop.check(f"p{turn}", 100_000)
        assert shop.said(f"p{turn}") > 0


@pytest.mark.parametrize("place", ["append.begun", "append.before_commit", "append.committed"])
def test_a_kill_while_the_spool_is_taken_in_stores_nothing_twice(place: str, shop: Shop) -> None:
    with shop.locked():
        child = shop.start("old", 2_500, stay=True)
        wait_until(lambda: shop.said("old") == 2_500)
        child.kill()
    for hit in (1, 2):
        assert shop.take_in(f"{place}:{hit}:kill").wait() == -9
        assert shop.files()
    assert shop.take_in().wait() == 0
    assert shop.found("old") == list(range(2_500))
    assert shop.files() == []


def test_two_that_find_the_same_file_take_it_in_once(shop: Shop) -> None:
    with shop.locked():
        child = shop.start("old", 2_000, stay=True)
        wait_until(lambda: shop.said("old") == 2_000)
        child.kill()
    takers = [shop.take_in() for _ in range(4)]
    assert [taker.wait() for taker in takers] == [0] * 4
    assert shop.found("old") == list(range(2_000))
    assert shop.files() == []


def test_a_process_that_lives_through_the_outage_keeps_its_order(shop: Shop) -> None:
    with shop.locked():
        child = shop.start("p", 1_000, stay=True)
        wait_until(lambda: shop.said("p") >= 500)
    wait_until(lambda: shop.is_done("p"))
    wait_until(lambda: len(shop.found("p")) == 1_000, every=0.1)
    child.kill()
    assert shop.found("p") == list(range(1_000))


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from tracking import build
app = build({path!r}, {spool!r})
for number in range(300):
    app.log("orders").track("made", {{"by": "script", "n": number}}, key=f"script-{{number % 5}}")
"""


@pytest.mark.parametrize("away", [False, True])
def test_a_script_that_simply_ends_leaves_nothing_behind(away: bool, shop: Shop) -> None:
    program = PROGRAM.format(folder=str(Path(__file__).parent), path=shop.path, spool=str(shop.spool))

    def run() -> None:
        line = [sys.executable, "-c", program]
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    if away:
        with shop.locked():
            run()
        assert len(shop.files()) == 1
        assert shop.take_in().wait() == 0
    else:
        run()
    assert shop.found("script") == list(range(300))
    assert shop.files() == []
