"""`redrive pause`, `resume` and `seek`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def built(shop: Any) -> Any:
    """Six orders; the negative one of k1 is dead, the later one of k1 waits behind it."""
    shop.append(1, -2, 4, 1, 5, 6)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def test_a_paused_subscription_takes_nothing_in_until_it_is_resumed(built: Any) -> None:
    answer = built.redrive("pause", "revenue", "--reason", "maintenance", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "revenue is paused\n"), answer.err
    before = built.query("SELECT sum(cents) FROM revenue")
    built.append(100)
    built.redrive("run", "shop:app", "--until-idle")
    assert built.query("SELECT sum(cents) FROM revenue") == before
    assert built.redrive("status", "--store", "shop.db").out.splitlines()[2].split()[:2] == ["revenue", "paused"]
    answer = built.redrive("resume", "revenue", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "revenue is resumed\n"), answer.err
    built.redrive("run", "shop:app", "--until-idle")
    assert built.query("SELECT sum(cents) FROM revenue") == [(before[0][0] + 100,)]
    assert built.query("SELECT action, target, reason FROM redrive_audit") == [
        ("pause", "revenue", "maintenance"), ("resume", "revenue", ""),
    ]  # fmt: skip


def test_what_is_paused_already_is_said_and_not_audited_again(built: Any) -> None:
    assert built.redrive("resume", "charge", "--store", "shop.db").out == "charge was not paused\n"
    answer = built.redrive("pause", "charge", "revenue", "charge", "--json", "--store", "shop.db")
    assert answer.json == [
        {"subscription": "charge", "paused": True, "changed": True},
        {"subscription": "revenue", "paused": True, "changed": True},
    ]
    assert built.redrive("pause", "charge", "--store", "shop.db").out == "charge is paused already\n"
    assert built.query("SELECT count(*) FROM redrive_audit") == [(2,)]


def test_of_several_names_all_are_known_or_nothing_happens(built: Any) -> None:
    answer = built.redrive("pause", "charge", "revenu", "--store", "shop.db")
    assert answer.code == 2
    assert "did you mean 'revenue'?" in answer.err
    assert built.query("SELECT sum(paused) FROM redrive_progress") == [(0,)]
    assert built.redrive("pause", "--store", "shop.db").code == 2


def test_a_seek_forward_says_what_it_gives_up_and_asks(built: Any) -> None:
    built.append(7, 8, 9)
    built.append(10, kind="order.changed")
    log = built.query("SELECT position FROM redrive_events WHERE log = 1 ORDER BY position")
    (start,) = built.query("SELECT max(position) FROM redrive_progress")[0]
    line = ("seek", "revenue", str(log[-2][0]), "--reason", "test data", "--store", "shop.db")
    answer = built.redrive(*line)
    assert answer.code == 2
    assert f"from position {start} to {log[-2][0]}: 3 events will be discarded?" in answer.err
    assert built.query("SELECT count(*) FROM redrive_audit") == [(0,)]
    answer = built.redrive(*line, "--yes", "--json")
    assert answer.json == {
        "subscription": "revenue", "was": start, "position": log[-2][0], "superseded": 0, "discarded": 3, "again": 0,
    }  # fmt: skip
    answer = built.redrive("seek", "revenue", "now", "--reason", "and the rest", "--store", "shop.db", "--yes")
    assert answer.out == f"revenue went from position {log[-2][0]} to {log[-1][0]}: 1 event were discarded\n".replace(
        "were", "was"
    )
    assert built.redrive("verify", "--app", "shop:app").code == 0
    verdicts = {one["subscription"]: one for one in built.redrive("verify", "--json", "--app", "shop:app").json}
    assert verdicts["revenue"]["discarded"] == 4


def test_a_seek_back_runs_events_again_and_counts_them_before(built: Any) -> None:
    letter = built.query("SELECT l.id FROM redrive_letters l WHERE state = 'dead' AND subscription = 2")[0][0]
    with built.app() as app:
        app.operate("ada").letters.discard(letter, "stale")
    built.redrive("run", "shop:app", "--until-idle")  # what waited behind it is applied now
    (charged,) = built.query("SELECT count(*) FROM redrive_events WHERE log = 2")[0]
    assert charged == 5
    answer = built.redrive("seek", "charge", "1", "--reason", "lost", "--store", "shop.db")
    assert "4 events will come again, 1 letter will be superseded?" in answer.err
    answer = built.redrive("seek", "charge", "1", "--reason", "lost", "--store", "shop.db", "--yes")
    assert "4 events come again, 1 letter was superseded" in answer.out
    assert built.redrive("run", "shop:app", "--until-idle").code == 0
    assert built.query("SELECT applied FROM redrive_progress WHERE subscription = 2") == [(4,)]
    assert built.redrive("verify", "--app", "shop:app").code == 0


def test_a_projection_cannot_go_back(built: Any) -> None:
    answer = built.redrive("seek", "revenue", "first", "--reason", "hm", "--yes", "--store", "shop.db")
    assert answer.code == 2
    assert "`redrive rebuild revenue`" in answer.err


def test_a_seek_to_where_it_is_does_nothing(built: Any) -> None:
    (position,) = built.query("SELECT position FROM redrive_progress WHERE subscription = 1")[0]
    answer = built.redrive("seek", "revenue", str(position), "--reason", "hm", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, f"revenue is at position {position} already; nothing was done\n")
    assert built.query("SELECT count(*) FROM redrive_audit") == [(0,)]


@pytest.mark.parametrize("to", ["soon", "999", "2026-01-31", "9" * 5000, "", "0001-01-01T00:00+23:59", "1e3"])
def test_a_place_that_is_none_is_wrong_usage(built: Any, to: str) -> None:
    answer = built.redrive("seek", "charge", to, "--reason", "hm", "--store", "shop.db")
    assert answer.code == 2
    assert answer.err.startswith("redrive: ")


def test_a_seek_needs_a_reason_and_a_known_name(built: Any) -> None:
    assert built.redrive("seek", "charge", "now", "--yes", "--store", "shop.db").code == 2
    assert built.redrive("seek", "charge", "now", "--reason", " ", "--yes", "--store", "shop.db").code == 2
    answer = built.redrive("seek", "chrge", "now", "--reason", "hm", "--yes", "--store", "shop.db")
    assert (answer.code, "did you mean 'charge'?" in answer.err) == (2, True)


def test_a_worker_that_has_passed_the_place_meanwhile_changes_nothing(built: Any) -> None:
    with built.app() as app:
        desk = app.operate("ada").subscriptions
        agreed = desk.plan_seek("charge", 5)
        desk.seek("charge", 2, "elsewhere")
        with pytest.raises(Exception, match="has moved from position 6 to 2 meanwhile"):
            desk.seek("charge", 5, "hm", agreed)
        assert app.operate().status()[0].position == 2
