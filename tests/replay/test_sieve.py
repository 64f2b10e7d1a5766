"""A search in what letters say finds what a look at every letter finds, whatever the sieve passes over."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Reject, Tx, no_retry, retry
from redrive.replay import select as selecting
from redrive.replay.prune import What
from redrive.replay.select import Selection, select
from redrive.store import sieve
from redrive.store.sqlite.store import SqliteStore
from redrive.testing import Harness

pytestmark = pytest.mark.sqlite("there is no sieve where transactions write side by side")

SAYINGS = [
    "the bank refused order {}",
    "Größe {} ist zu groß",
    "no route to {}.example.org",
    "{}",
    "",
    "ÄÖ\0{}\n",
    "x" * 3000,
]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app whose projection fails with whatever its events say, at once or at the second attempt."""
    monkeypatch.setattr(sieve, "LETTERS", 8)
    monkeypatch.setattr(sieve, "PAGE", 3)
    monkeypatch.setattr(selecting, "RARE", 0.0)  # never by cause
    app = App("unused.db")
    notes = app.log("notes")

    @app.projection(notes, name="strict", tables={"strict": "n INTEGER"}, retry=no_retry)
    def strict(event: Event[Any], tx: Tx) -> None:
        raise Reject(event.data)

    @app.projection(notes, name="patient", order="none", tables={"patient": "n INTEGER"}, retry=retry(attempts=2))
    def patient(event: Event[Any], tx: Tx) -> None:
        raise ValueError(event.data)

    with Harness(app) as harness:
        yield harness


def speak(harness: Harness, dice: random.Random, count: int) -> None:
    for _ in range(count):
        saying = dice.choice(SAYINGS).format(dice.randrange(10 ** dice.randrange(1, 7)))
        harness.append("notes", "said", saying, key=dice.choice([None, "k", *"abcdef"]))
    harness.advance("10m")


def find(harness: Harness, text: str) -> list[int]:
    """As one who looks at every letter."""
    rows = harness.query(
        "SELECT id FROM redrive_letters WHERE state = 'dead' AND "
        "instr(lower(error_type || ': ' || error_message), lower(?)) ORDER BY id",
        (text,),
    )
    return [letter for (letter,) in rows]


@pytest.mark.parametrize("seed", range(3))
def test_every_part_of_every_error_is_found(said: Harness, seed: int) -> None:
    dice, store = random.Random(seed), said.app.runtime.store
    speak(said, dice, 80)
    letters = [letter for letter in said.letters() if letter.state == "dead"]
    texts = [f"{letter.error_type}: {letter.error_message}" for letter in letters]
    assert len(texts) > 40
    for _ in range(60):
        text = dice.choice(texts)
        low, high = sorted(dice.choices(range(len(text) + 1), k=2))
        part = dice.choice([str.upper, str.lower, str])(text[low : high if dice.random() < 0.5 else low + 5])
        part += dice.choice(["", "", "", "7", "é"])
        found = [letter.id for letter in select(store, Selection(error=part))]
        assert found == find(said, part), part
        after = dice.choice(letters).id
        page = [letter.id for letter in select(store, Selection(error=part), after=after, limit=3)]
        assert page == [number for number in find(said, part) if number > after][:3], part
    assert all(verdict.sound for verdict in said.app.operate("ada").verify())


def test_replayed_pruned_and_dead_again(said: Harness) -> None:
    dice, desk = random.Random(1), said.app.operate("ada")
    for _ in range(6):
        speak(said, dice, 10)
        for letter in dice.sample(desk.letters.list(), 4):
            dice.choice([desk.letters.discard, desk.letters.replay])(letter.id, "so")
        said.advance("1d")
        desk.prune(What(3600.0), desk.plan_prune(What(3600.0)), "old")
        assert all(verdict.sound for verdict in desk.verify())
        for text in ("bank", "refused order 1", "GRO", "ß", "route", "nothing like it", "xx"):
            assert [one.id for one in select(said.app.runtime.store, Selection(error=text))] == find(said, text)


def test_what_nobody_says_is_looked_for_nowhere(said: Harness) -> None:
    speak(said, random.Random(2), 60)
    with said.app.runtime.store.reading() as tx:
        assert list(tx.letters.sieve.ranges("no-such", 0)) == []
        assert list(tx.letters.sieve.ranges("bank", 0)) != []


@pytest.mark.parametrize(
    "damage", ["DELETE FROM redrive_sieve WHERE letters = 1", "UPDATE redrive_sieve SET bits = zeroblob(1024)"]
)
def test_a_sieve_with_too_little_in_it_is_found(said: Harness, damage: str) -> None:
    speak(said, random.Random(3), 30)
    with said.app.runtime.store.transaction() as tx:
        tx.connection.execute(damage)
    rules = {one.rule for verdict in said.app.operate("ada").verify() for one in verdict.violations}
    assert rules == {"sieve"}


def test_what_was_rolled_back_is_not_believed_to_be_there(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"), inline=True)

    with store.transaction() as tx:
        tx.letters.sieve.add([(1, "OSError", "the bank refused")])
    with suppress(OSError), store.transaction() as tx:
        tx.letters.sieve.add([(2, "OSError", "no route")])
        tx.letters.sieve.end()
        raise OSError("before the commit")
    with store.reading() as tx:
        assert not tx.letters.sieve.has(2, "OSError", "no route")
    with store.transaction() as tx:
        tx.letters.sieve.add([(2, "OSError", "no route")])
    with store.reading() as tx:
        assert tx.letters.sieve.has(2, "OSError", "no route") and tx.letters.sieve.has(1, "OSError", "the bank refused")
    store.close()
