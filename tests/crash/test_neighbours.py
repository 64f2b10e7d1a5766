"""Others at the same file, in the same process and in others: nobody reads torn data, nobody's commit is lost."""

from __future__ import annotations

import signal
from pathlib import Path

from processes import Zygote
from world import World

CHECKPOINT_ALWAYS = {"REDRIVE_CHECKPOINT_PAGES": "1"}


def test_users_may_read_and_write_the_file_in_the_process_of_the_engine(zygote: Zygote, tmp_path: Path) -> None:
    world = World(zygote, tmp_path, env=CHECKPOINT_ALWAYS)
    world.said, report = 120, tmp_path / "report"
    place = {"path": world.path, "flakes": str(world.flakes), "acks": str(world.acks), "report": str(report)}
    worker = world.start("neighbours:work_among_readers", **place, seed=world.seed, upto=world.said)
    assert worker.wait(60) == 0, worker.said
    *errors, stdlib, sqlalchemy, written = report.read_text().splitlines()
    assert errors == []
    assert int(stdlib.split()[1]) > 20
    assert int(sqlalchemy.split()[1]) > 20
    assert world.rows("SELECT count(*) FROM mine") == [(int(written.split()[1]),)]
    world.drain()
    world.check()


def test_many_writers_and_checkpoints_leave_a_sound_file(zygote: Zygote, tmp_path: Path) -> None:
    """What it takes to meet SQLite's WAL-reset bug: several processes that write and checkpoint at once."""
    world = World(zygote, tmp_path, env=CHECKPOINT_ALWAYS)
    count, start = 250, tmp_path / "start"
    worker = world.worker()
    hammers = [
        world.start("neighbours:hammer", path=world.path, name=name, count=count, start=str(start))
        for name in ("left", "right")
    ]
    start.touch()
    assert world.producer(40).wait() == 0
    for hammer in hammers:
        assert hammer.wait(60) == 0, hammer.said
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    world.drain()
    world.check()  # with an integrity check
    sql = "SELECT count(*), max(e.version) FROM redrive_events e JOIN redrive_logs g ON g.id = e.log WHERE g.name = ?"
    for name in ("left", "right"):
        assert world.rows(sql, (name,)) == [(count, count // 5)]


def test_a_stranger_that_checkpoints_by_itself_does_no_harm(zygote: Zygote, tmp_path: Path) -> None:
    world = World(zygote, tmp_path, env=CHECKPOINT_ALWAYS)
    assert world.producer(1).wait() == 0
    start = tmp_path / "start"
    stranger = world.start("neighbours:hammer_plainly", path=world.path, count=200, start=str(start))
    hammer = world.start("neighbours:hammer", path=world.path, name="left", count=200, start=str(start))
    start.touch()
    assert hammer.wait(60) == 0, hammer.said
    assert stranger.wait(60) == -signal.SIGKILL, stranger.said
    assert world.rows("PRAGMA integrity_check") == [("ok",)]
    assert world.rows("SELECT count(*) FROM sent WHERE n >= 1000") == [(200,)]
    left = "SELECT count(*) FROM redrive_events e JOIN redrive_logs g ON g.id = e.log WHERE g.name = 'left'"
    assert world.rows(left) == [(200,)]
