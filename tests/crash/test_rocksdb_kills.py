"""SIGKILL while state is kept in RocksDB: state and effects are of one moment whenever the worker dies."""

from __future__ import annotations

import random
import signal
import zlib
from pathlib import Path

import pytest
from processes import Zygote, wait_until
from stateful import KEYS, build

KILLS = 8
PLACES = ["round.effects", "round.before_commit", "round.committed", "lease.before_commit", "anywhere"]
BETWEEN = ["round.before_commit", "anywhere"]  # where the two stores differ; the rest is the same on both


def expected(said: int) -> list[tuple[str, int, int]]:
    """What an undisturbed worker would write down."""
    state: dict[int, int] = {}
    rows = []
    for event in range(said):
        key = event % KEYS
        state[key] = state.get(key, 0) + 1
        rows.append((f"k{key}", event, state[key]))
        if state[key] % 10 == 0:
            state[key] = 1_000 + state[key] if event % 2 else 0
    return sorted(rows)


@pytest.mark.parametrize(
    ("store", "place"),
    [("sqlite", place) for place in PLACES] + [("postgres", place) for place in BETWEEN],
    indirect=["store"],
)
def test_a_kill_leaves_state_and_effects_of_one_moment(
    store: str | None, place: str, zygote: Zygote, tmp_path: Path
) -> None:
    arguments = {"path": store or str(tmp_path / "shop.db"), "folder": str(tmp_path / "state")}
    dice, said = random.Random(zlib.crc32(place.encode())), 0
    app = build(**arguments)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE counted (key TEXT NOT NULL, event INTEGER NOT NULL, n INTEGER NOT NULL)")

    def say(count: int) -> None:
        nonlocal said
        for n in range(said, said + count):
            app.log("orders").append("order.placed", n, key=f"k{n % KEYS}")
        said += count

    def counted() -> int:
        with app.reader() as tx:
            return int(tx.execute("SELECT count(*) FROM counted").fetchall()[0][0])

    for _ in range(KILLS):
        say(dice.randint(3, 25))
        if place == "anywhere":
            before, more = counted(), dice.randint(0, 10)
            victim = zygote.start("stateful:work", tmp_path / "stderr", **arguments)
            wait_until(lambda: counted() >= min(before + more, said))  # noqa: B023
            victim.kill()
            continue
        armed = {"REDRIVE_FAILPOINT": f"{place}:{1 if place.startswith('lease') else dice.randint(1, 2)}:kill"}
        victim = zygote.start("stateful:work", tmp_path / "stderr", env=armed, **arguments)
        assert victim.wait() == -signal.SIGKILL, f"{place} was not reached: {victim.said}"
    say(3)
    last = zygote.start("stateful:work", tmp_path / "stderr", **arguments)
    wait_until(lambda: counted() >= said)
    last.signal(signal.SIGTERM)
    assert last.wait() == 0, last.said
    with app.reader() as tx:
        rows = [tuple(row) for row in tx.execute("SELECT key, event, n FROM counted").fetchall()]
    assert sorted(rows) == expected(said)
    desk = app.operate()
    assert desk.letters.list("dead") == []
    assert [verdict for verdict in desk.verify() if not verdict.sound] == []
    app.close()


def test_who_takes_over_has_the_state_of_the_one_who_was_killed(zygote: Zygote, tmp_path: Path) -> None:
    """The second worker waits beside the first, and cannot open the folder before it."""
    arguments = {"path": str(tmp_path / "shop.db"), "folder": str(tmp_path / "state")}
    app, said = build(**arguments), 0
    with app.transaction() as tx:
        tx.execute("CREATE TABLE counted (key TEXT NOT NULL, event INTEGER NOT NULL, n INTEGER NOT NULL)")

    def is_counted() -> bool:
        with app.reader() as tx:
            return bool(tx.execute("SELECT count(*) FROM counted").fetchall()[0][0] == said)

    workers = [zygote.start("stateful:work", tmp_path / "stderr", **arguments)]
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        for n in range(said, said + 20):
            app.log("orders").append("order.placed", n, key=f"k{n % KEYS}")
        said += 20
        wait_until(is_counted)
        workers.append(zygote.start("stateful:work", tmp_path / "stderr", **arguments))
        workers[-2].signal(number)
        workers[-2].wait()
    said += 1
    app.log("orders").append("order.placed", said - 1, key=f"k{(said - 1) % KEYS}")
    wait_until(is_counted)
    workers[-1].signal(signal.SIGTERM)
    assert workers[-1].wait() == 0, workers[-1].said
    with app.reader() as tx:
        rows = [tuple(row) for row in tx.execute("SELECT key, event, n FROM counted").fetchall()]
    assert sorted(rows) == expected(said)
    app.close()
