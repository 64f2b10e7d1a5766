"""SIGKILL while letters are mirrored: nothing is missing anywhere, and nothing counts twice."""

from __future__ import annotations

import os
import random
import signal
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from mirroring import build
from processes import Zygote

from redrive import mirrors
from redrive.failpoints import NAMES
from redrive.mirrors.folders import paths
from redrive.redis.letters import read

KILLS = 4
PLACES = [name for name in NAMES if name.startswith("mirror.")]


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_while_letters_are_mirrored_loses_nothing(
    valkey_url: str, store: str | None, place: str, zygote: Zygote, tmp_path: Path
) -> None:
    folder = tmp_path / "dead"
    arguments = {"store": store or str(tmp_path / "shop.db"), "folder": str(folder), "url": valkey_url}
    dice = random.Random(zlib.crc32(f"{place} {store is None}".encode()))
    app = build(**arguments)
    with redis.Redis.from_url(valkey_url) as server:
        server.flushall()
    for number in range(KILLS):
        for n in range(dice.randint(3, 30)):
            app.log("orders").append("order.placed", 3 * n + dice.randint(0, 1), key=f"k{n % 7}")
        app.log("orders").append("order.placed", 0, key=f"new{number}")  # one at least is rejected
        operate(app, dice)
        armed = {"REDRIVE_FAILPOINT": f"{place}:{dice.randint(1, 3)}:kill"}
        victim = zygote.start("mirroring:work", tmp_path / "stderr", env=armed, **arguments)
        assert victim.wait() == -signal.SIGKILL, f"{place} was not reached: {victim.said}"
        tear(folder, dice)
    last = zygote.start("mirroring:work", tmp_path / "stderr", env={}, **arguments, until_idle=True)
    assert last.wait() == 0, last.said
    compare(app, folder, valkey_url)
    app.close()


def operate(app: object, dice: random.Random) -> None:
    """Discard, edit and replay some of the letters that there are."""
    desk = app.operate("ada").letters  # type: ignore[attr-defined]
    for letter in desk.list(limit=1000):
        what = dice.randint(0, 5)
        if what == 0:
            desk.discard([letter.id], "not needed")
        elif what == 1:
            desk.edit(letter.id, 1, "it was 1")
            desk.replay([letter.id])


def tear(folder: Path, dice: random.Random) -> None:
    """The power goes as well: what was written last is not whole, though it was said to be on the disk."""
    files = paths(folder)
    if files:
        os.truncate(files[-1], max(0, files[-1].stat().st_size - dice.choice([0, 0, 1, 200, 2_000])))


def compare(app: object, folder: Path, valkey_url: str) -> None:
    with app.runtime.store.reading() as tx:  # type: ignore[attr-defined]
        rows = tx.sql.all("copy_journal", (0, 1_000_000))
        happened = {(row[1], row[5], row[4], datetime.fromtimestamp(row[6], UTC)) for row in rows}
    assert len(happened) == len(rows) > 20
    told = list(mirrors.read(folder))
    assert not [one for one in told if isinstance(one, mirrors.Damage)]
    assert {(one.letter, one.rev, one.state, one.at) for one in told if isinstance(one, mirrors.Entry)} == happened
    buried = {(one.letter, one.rev, one.state, one.at) for one in read(f"{valkey_url}/orders:dlq")}
    assert buried == {one for one in happened if one[2] == "dead"}
    dead = {letter.id for letter in app.operate().letters.list(limit=10_000)}  # type: ignore[attr-defined]
    assert {one.letter for one in read(f"{valkey_url}/shop:letters")} == dead
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []  # type: ignore[attr-defined]
