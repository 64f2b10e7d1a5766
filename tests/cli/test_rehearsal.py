"""`dlq replay --rehearse`, as it is read by people and by programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive.cli.rehearsal import GROUPS_SHOWN, show_rehearsal
from redrive.replay.rehearsal import Rehearsal, Rehearsed, Result
from redrive.store.port import Counts, LetterRow

HOSTILE = "\x1b[31mred\x1b[0m \u202eltr\u200b " + "x" * 500 + "\n\r\t'; DROP TABLE orders; --"
REHEARSE = ("dlq", "replay", "--all", "--rehearse", "--app", "shop:app")


@pytest.fixture
def failed(shop: Any) -> Any:
    """Two dead heads per subscription, with two letters behind one of them."""
    shop.append(-1, -2, 3, 4, 5, 6, 7)
    shop.redrive("run", "shop:app", "--until-idle")
    return shop


def letter(number: int, subscription: str = "revenue", **more: Any) -> LetterRow:
    fields = {name: more.get(name, 0) for name in LetterRow._fields}
    texts = {"event_id": "e", "type": "t", "key": "k", "fingerprint": "f", "lane": "k"}
    return LetterRow(**fields | texts | more | {"id": number, "subscription": subscription})  # type: ignore[arg-type]


def rehearsed(number: int, result: Result, why: str = "", **more: Any) -> Rehearsed:
    return Rehearsed(letter(number, more.pop("subscription", "revenue")), result, why, **more)


def test_before_the_fix_it_would_fail_the_same_way_and_nothing_is_changed(failed: Any) -> None:
    everything = "SELECT * FROM redrive_letters ORDER BY id"
    before = failed.query(everything)
    answer = failed.redrive(*REHEARSE, "-s", "revenue", "--json")
    assert answer.code == 3, answer
    assert answer.json["totals"]["would_fail_the_same_way"] == 2
    assert {one["fingerprint"] for one in answer.json["letters"]} == {
        one["was_fingerprint"] for one in answer.json["letters"]
    }
    assert failed.query(everything) == before


def test_after_the_fix_it_would_succeed_with_what_waits_behind(failed: Any) -> None:
    failed.write(strict=False)
    answer = failed.redrive(*REHEARSE, "-s", "revenue", "--lane", "--json")
    assert answer.code == 0, answer
    found = answer.json
    assert set(found) == {"totals", "tables", "emitted", "letters"}
    assert sorted((one["key"], one["follower"]) for one in found["letters"]) == [
        ("k0", False), ("k0", True), ("k0", True), ("k1", False), ("k1", True)
    ]  # fmt: skip
    assert found["tables"] == {"revenue": {"inserted": 2, "updated": 3, "deleted": 0}}
    assert failed.query("SELECT key FROM revenue") == [("k2",)]


def test_people_read_results_reasons_rows_and_events(failed: Any) -> None:
    failed.write(strict=False)
    answer = failed.redrive(*REHEARSE, "--lane")
    assert answer.code == 3  # charge is not rehearsable
    assert "handler 'charge' may talk to the world; declare rehearsable=True" in answer.out
    assert "5 would succeed" in answer.out
    assert "revenue" in answer.out and "inserted" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_the_same_reason_is_shown_once_and_failures_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = [rehearsed(n, "cannot rehearse", f"it waits behind letter {n + 50}, which would fail") for n in range(40)]
    found += [rehearsed(99, "would fail differently", "no such day", error_type="shop.Closed", fingerprint="abc")]
    assert show_rehearsal(Rehearsal(tuple(found)), False) == 3
    said = capsys.readouterr().out
    assert said.index("Closed: no such day") < said.index("it waits behind a letter that would fail")
    assert said.count("waits behind") == 1
    assert "letters 0, 1, 2, 3, 4 and 35 more" in said


def test_many_different_reasons_are_cut_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = [rehearsed(n, "would fail differently", "", error_type=f"E{n}", fingerprint=str(n)) for n in range(15)]
    show_rehearsal(Rehearsal(tuple(found)), False)
    assert f"and {15 - GROUPS_SHOWN} more kinds; --json has all of them" in capsys.readouterr().out


def test_hostile_text_reaches_neither_the_terminal_nor_breaks_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    one = rehearsed(1, "would fail differently", HOSTILE, error_type=HOSTILE, fingerprint="f", subscription=HOSTILE)
    rehearsal = Rehearsal((one,), {HOSTILE: Counts(1, 2, 3)}, {HOSTILE: {HOSTILE: 4}})
    for as_json in (False, True):
        assert show_rehearsal(rehearsal, as_json) == 3
        said = capsys.readouterr().out
        assert all(character == "\n" or character.isprintable() for character in said)
        if as_json:
            assert json.loads(said)["letters"][0]["why"] == HOSTILE
        else:
            assert max(map(len, said.splitlines())) <= 80


def test_nothing_chosen_is_nothing_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_rehearsal(Rehearsal(), False) == 0
    assert capsys.readouterr().out == "no letters to rehearse\n"
