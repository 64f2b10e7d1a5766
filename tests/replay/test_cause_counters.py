"""Counters of causes: lanes with a dead head, and what waits behind it, are counted as the letters have it."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive.policy.lanes import Head
from redrive.policy.outcome import Failure
from redrive.replay.causes import causes
from redrive.store.letters import NewLetter
from redrive.store.port import StoreTx
from redrive.store.sqlite import migrate
from redrive.store.sqlite.store import SqliteStore

FINGERPRINTS = ("f1", "f2", "f3")
LANES = ("a", "b", "c", None)
SELECT = "SELECT id, position, lane, state, fingerprint, rev FROM redrive_letters WHERE subscription = 1"
KEPT = "SELECT fingerprint, lanes, waiting FROM redrive_causes WHERE subscription = 1"


def counted(letters: list[Any]) -> dict[str, tuple[int, int]]:
    """The same from the letters themselves."""
    heads: dict[str, Any] = {}
    sizes: Counter[str] = Counter()
    lanes: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for _, position, lane, state, fingerprint, _ in letters:
        if lane is None:
            lanes[fingerprint] += state == "dead"
        elif state in ("retrying", "dead"):
            sizes[lane] += 1
            if lane not in heads or position < heads[lane][0]:
                heads[lane] = position, state, fingerprint
    for lane, (_, state, fingerprint) in heads.items():
        if state == "dead":
            lanes[fingerprint] += 1
            waiting[fingerprint] += sizes[lane] - 1
    return {fingerprint: (lanes[fingerprint], waiting[fingerprint]) for fingerprint in lanes if lanes[fingerprint]}


def change(tx: StoreTx, dice: random.Random, letter: Any, position: int) -> None:
    """Something that may happen to a letter; where it cannot, nothing does."""
    number, at, lane, state, _, rev = letter
    failure = Failure("Error", "it failed", "", dice.choice(FINGERPRINTS))
    head = Head(at, number, state, 0.0, 0.0, 0.0, rev, 1, 0, 0)
    where = {"id": number, "rev": rev, "now": float(position)}
    match dice.randrange(8):
        case 0 | 1:
            tx.letters.retry([(head, "dead", {"reason": "rejected", "attempts": 2}, failure)], where["now"])
        case 2:
            again = {"reason": "failing", "attempts": 2, "due_at": 0.0, "delay": 0.0}
            tx.letters.retry([(head, "retrying", again, failure)], where["now"])
        case 3:
            tx.sql.run("letter_replay", {**where, "due_at": 0.0, "operation": None, "automatic": 0, "pace": 1})
        case 4:
            tx.sql.run("letter_discard", {**where, "resolved_by": "discard: ada"})
        case 5:
            tx.sql.run("letter_reopen", where)
        case 6:
            lane = dice.choice(LANES)
            tx.sql.run("letter_rekey", {"id": number, "lane": lane, "key": lane, "now": where["now"]})
        case 7:
            tx.letters.settle(head, "applied", 2, where["now"], "retry")


@pytest.mark.parametrize("seed", range(6))
def test_counters_equal_the_letters_after_random_histories(bank: Any, seed: int) -> None:
    dice, position = random.Random(seed), 0
    for _ in range(60):
        with bank.app.runtime.store.transaction() as tx:
            for _ in range(dice.randrange(4)):
                position += 1
                lane, state = dice.choice(LANES), dice.choice(["dead", "retrying", "retrying", "discarded"])
                failure = Failure("Error", "it failed", "", dice.choice(FINGERPRINTS))
                tx.letters.add(
                    1, [NewLetter((position, f"e{position}", "t", lane), lane, state, "failing", failure)], 0.0
                )
            letters = [tuple(row) for row in bank.harness.query(SELECT)] if position % 2 else []
            for letter in dice.sample(letters, min(len(letters), 4)):
                change(tx, dice, letter, position)
            if dice.random() < 0.05:
                values = {"subscription": 1, "above": position // 2, "now": 1.0, "was_open": "open", "was_settled": "x"}
                tx.sql.run("letters_supersede", values)
        kept = {row[0]: (row[1], row[2]) for row in bank.harness.query(KEPT)}
        assert kept == counted(bank.harness.query(SELECT))
        with bank.app.runtime.store.reading() as tx:
            assert tx.sql.all("ledger_causes", {"subscription": 1}) == []


def test_verify_notices_a_wrong_counter_of_a_cause(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    bank.deposit("a", 2)
    bank.run()
    bank.check_sound()
    with bank.app.runtime.store.transaction() as tx:
        tx.connection.execute(
            "UPDATE redrive_causes SET waiting = 7" if not tx.sql.is_far else "UPDATE redrive.causes SET waiting = 7"
        )
    rules = {violation.rule for verdict in bank.desk.verify() for violation in verdict.violations}
    assert rules == {"causes"}


def test_causes_are_exact_beyond_any_number_of_letters(bank: Any) -> None:
    """4,000 letters, of which each holds a lane back: more than were ever looked at."""
    bank.run()
    failure = Failure("Error", "it failed", "", "f1")
    dead = [NewLetter((n, f"e{n}", "t", f"k{n}"), f"k{n}", "dead", "rejected", failure, 1) for n in range(1, 4001)]
    behind = [NewLetter((n + 5000, f"x{n}", "t", f"k{n}"), f"k{n}", "retrying") for n in range(1, 101)]
    with bank.app.runtime.store.transaction() as tx:
        tx.letters.add(1, [*dead, *behind], 5.0)
    (found,) = causes(bank.app.runtime.store).found
    assert (found.dead, found.lanes, found.waiting) == (4000, 4000, 100)
    assert (found.first_seen, found.last_seen) == (5.0, 5.0)


def test_file_of_format_3_gets_its_counters(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    folder = Path(migrate.__file__).parent
    for step in migrate.STEPS[:3]:
        for statement in migrate._statements((folder / step).read_text("utf-8")):
            connection.execute(statement)
    connection.execute("INSERT INTO redrive_meta VALUES ('format', 3), ('compatible_from', 3), ('syncs', 0)")
    dice = random.Random(3)
    for position in range(1, 200):
        lane, state = dice.choice(LANES), dice.choice(["dead", "dead", "retrying", "applied", "superseded"])
        connection.execute(
            "INSERT INTO redrive_letters (subscription, position, lane, event_id, type, key, state, reason, attempts, "
            "due_at, due_set_at, delay, parked_at, touched_at, fingerprint, last_failed_at) "
            "VALUES (1, ?, ?, 'e', 't', ?, ?, 'failing', 1, 0, 0, 0, 0, 0, ?, ?)",
            (position, lane, lane, state, dice.choice(FINGERPRINTS), position),
        )
    connection.close()
    SqliteStore(str(path)).close()
    connection = sqlite3.connect(path)
    letters = connection.execute(SELECT).fetchall()
    assert {row[0]: (row[1], row[2]) for row in connection.execute(KEPT)} == counted(letters)
    last = {name: max(one[1] for one in letters if one[3] == "dead" and one[4] == name) for name in FINGERPRINTS}
    kept = connection.execute(
        "SELECT fingerprint, max(last_at) FROM redrive_letter_counts WHERE state = 'dead' GROUP BY 1"
    )
    assert dict(kept.fetchall()) == last
    connection.close()
