"""The power fails: the end of the WAL is gone. Effects and progress agree, and no promise is broken.

One run whose WAL holds everything from the first transaction on is cut at many places; each cut is opened again.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Zygote
from script import script
from worker_app import OF_HANDLERS, OF_PROJECTIONS
from world import World

EVENTS, CUTS, REPLAYED = 80, 120, 12
SEED = 7


@dataclass(frozen=True)
class Run:
    """What a machine left on its disk, and what it had promised."""

    database: Path
    wal: bytes
    promises: list[dict[str, int]]


@pytest.fixture(scope="module")
def run(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run with a reader that stops every checkpoint from copying the WAL back."""
    folder = tmp_path_factory.mktemp("power")
    world = World(zygote, folder, SEED, env={"REDRIVE_BATCH_MAX": "4", "REDRIVE_SETTLE_MAX": "4"})
    reader = sqlite3.connect(world.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
    before = Path(world.path).read_bytes()
    diary = str(folder / "diary")
    machine = world.start(
        "powered:run", path=world.path, flakes=str(world.flakes), diary=diary, seed=SEED, count=EVENTS
    )
    assert machine.wait(60) == -signal.SIGKILL, machine.said
    assert Path(world.path).read_bytes() == before, "the database file itself was not touched"
    wal = Path(f"{world.path}-wal").read_bytes()
    reader.close()
    (folder / "base.db").write_bytes(before)
    return Run(folder / "base.db", wal, [json.loads(line) for line in Path(diary).read_text().splitlines()])


def after_the_cut(zygote: Zygote, folder: Path, run: Run, size: int, tail: bytes) -> World:
    """The machine is up again: the WAL ends after `size` bytes, or goes on with what never reached the disk."""
    folder.mkdir()
    shutil.copy(run.database, folder / "shop.db")
    (folder / "shop.db-wal").write_bytes(run.wal[:size] + tail)
    shutil.copytree(run.database.parent / "flakes", folder / "flakes")  # a flake's failures are not forgotten
    return World(zygote, folder, SEED, new=False)


def check_promises(world: World, run: Run, size: int) -> int:
    """What was acknowledged and synced before the cut is there; how many events survived."""
    kept = [promise for promise in run.promises if promise["synced"] <= size]
    tables = {name for (name,) in world.rows("SELECT name FROM sqlite_master")}
    if "redrive_events" not in tables:
        assert kept == []
        return 0
    stored = [id for (id,) in world.rows("SELECT id FROM redrive_events WHERE log = 1 ORDER BY position")]
    assert stored == [event.id for event in script(SEED, len(stored))]
    assert [p for p in kept if "said" in p and p["said"] >= len(stored)] == []
    dead = {letter for (letter,) in world.rows("SELECT id FROM redrive_letters WHERE state = 'dead'")}
    assert [p for p in kept if "dead" in p and p["dead"] not in dead] == []
    return len(stored)


def check_effects_agree_with_progress(world: World) -> None:
    """Every effect is accounted for, every account has its effect."""
    if "progress" not in world.ours():  # cut before there were any tables
        return
    for name in (*OF_PROJECTIONS, *OF_HANDLERS):
        letters = "SELECT count(*) FROM redrive_letters l WHERE l.subscription = s.id AND l.state = 'applied'"
        accounts = world.rows(
            f"SELECT p.applied + ({letters}) FROM redrive_progress p"
            " JOIN redrive_subscriptions s ON s.id = p.subscription WHERE s.name = ?", (name,)
        )  # fmt: skip
        if accounts:
            assert world.rows(f"SELECT count(*), count(DISTINCT event_id) FROM {name}_rows") == [accounts[0] * 2], name
    if world.rows("SELECT 1 FROM sqlite_master WHERE name = 'balance'"):
        assert world.rows("SELECT coalesce(sum(cents), 0) FROM balance") == world.rows(
            "SELECT coalesce(sum(cents), 0) FROM balance_rows"
        )
        assert all(verdict.sound for verdict in world.verify())


def test_the_run_made_promises_and_synced_before_it_made_them(run: Run) -> None:
    said = [promise["synced"] for promise in run.promises if "said" in promise]
    assert len(said) == EVENTS
    assert len({promise["dead"] for promise in run.promises if "dead" in promise}) >= 6
    assert 0 < said[0] < said[-1] <= len(run.wal)


@pytest.mark.parametrize("part", range(4))
def test_a_wal_that_ends_anywhere_breaks_no_promise(part: int, run: Run, zygote: Zygote, tmp_path: Path) -> None:
    dice = random.Random(part)
    for number in range(CUTS // 4):
        size = dice.randrange(len(run.wal))
        lost = len(run.wal) - size
        tail = dice.choice([b"", bytes(lost), dice.randbytes(min(lost, 20_000)), run.wal[size + 1 :]])
        world = after_the_cut(zygote, tmp_path / str(number), run, size, tail)
        survived = check_promises(world, run, size)
        check_effects_agree_with_progress(world)
        if number % (CUTS // REPLAYED) == 0 and survived:
            world.said = survived
            world.acks.write_text("".join(f"{n}\n" for n in range(survived)))
            assert world.producer(5).wait() == 0
            world.drain()
            world.check()


def test_a_wal_cut_right_after_each_promise_still_keeps_it(run: Run, zygote: Zygote, tmp_path: Path) -> None:
    """The hardest moment: nothing but what was synced when the promise was made."""
    for number, size in enumerate(sorted({promise["synced"] for promise in run.promises})[::4]):
        world = after_the_cut(zygote, tmp_path / str(number), run, size, b"")
        assert check_promises(world, run, size) > 0
        check_effects_agree_with_progress(world)


def test_entry_is_acknowledged_only_after_its_landing_is_synced(zygote: Zygote, tmp_path: Path) -> None:
    """The broker gives an acknowledged entry to nobody again: a power cut must not take its landing back."""
    diary = tmp_path / "diary"
    zygote.run("acknowledging:run", tmp_path / "stderr", path=str(tmp_path / "x.db"), diary=str(diary), rounds=3)
    notes = json.loads(diary.read_text())
    assert len(notes) == 3
    assert [landed - synced for synced, landed in notes if synced < landed] == []
