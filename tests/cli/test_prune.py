"""`redrive prune`: numbers first, then the deed, and the ledger after it."""

from __future__ import annotations

from typing import Any

import pytest
import redis


@pytest.fixture
def settled(shop: Any) -> Any:
    """k1's negative order was dead and is applied by now, in both subscriptions; one of k2 is discarded."""
    shop.append(1, -2, -4, 1)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    with shop.app() as app:
        letters = app.operate("ada").letters
        for name in ("revenue", "charge"):
            (first, _), (second, _) = letters.heads(name)
            letters.discard(second, "stale")
            letters.replay(first)
    shop.write(strict=False)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def test_the_numbers_come_first_and_nothing_happens_unasked(settled: Any) -> None:
    before = settled.query("SELECT count(*) FROM redrive_letters")
    answer = settled.redrive("prune", "--older-than", "0s", "--store", "shop.db")
    assert answer.code == 2
    assert "2 applied letters, 0 superseded letters" in answer.out
    assert "the history of 2 discarded letters" in answer.out
    assert "with 6 attempts and 8 journal rows" in answer.out
    assert "add --yes" in answer.err
    dry = settled.redrive("prune", "--older-than", "0s", "--dry-run", "--json", "--store", "shop.db")
    assert (dry.code, dry.json["done"], dry.json["applied"], dry.json["emptied"]) == (0, False, 2, 2)
    assert settled.query("SELECT count(*) FROM redrive_letters") == before
    assert settled.query("SELECT count(*) FROM redrive_audit WHERE action = 'prune'") == [(0,)]


def test_what_was_said_is_deleted_and_the_ledger_stays_sound(settled: Any) -> None:
    accounts = settled.redrive("verify", "--app", "shop:app", "--json").json
    answer = settled.redrive("prune", "--older-than", "0s", "--yes", "--reason", "room", "--store", "shop.db")
    assert answer.code == 0, answer.err
    assert "deleted:" in answer.out
    assert settled.query("SELECT state, count(*) FROM redrive_letters GROUP BY state") == [("discarded", 2)]
    assert settled.query("SELECT count(*) FROM redrive_attempts") == [(0,)]
    assert settled.query("SELECT count(*) FROM redrive_journal") == [(2,)]
    assert settled.query("SELECT reason FROM redrive_audit WHERE action = 'prune'") == [("room",)]
    assert settled.redrive("verify", "--app", "shop:app", "--json").json == accounts
    assert settled.redrive("verify", "--audit", "--store", "shop.db").code == 0
    answer = settled.redrive("prune", "--older-than", "0s", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "nothing to prune\n")


def test_what_is_not_thirty_days_old_stays(settled: Any) -> None:
    assert settled.redrive("prune", "--store", "shop.db").out == "nothing to prune\n"


def test_events_go_when_the_rebuild_is_given_up(settled: Any) -> None:
    settled.append(5, 6, 7)
    assert settled.redrive("run", "shop:app", "--until-idle").code == 0
    line = ("prune", "--older-than", "0s", "--events", "orders", "--store", "shop.db")
    answer = settled.redrive(*line, "--dry-run")
    assert "--no-rebuild revenue gives that up" in " ".join(answer.out.split())
    answer = settled.redrive(*line, "--no-rebuild", "revenue", "--yes", "--json")
    assert answer.code == 0, answer.err
    (found,) = answer.json["events"]
    assert list(found) == ["log", "upto", "events", "letters", "held_by", "unacknowledged", "warning"]
    assert (found["log"], found["events"], found["letters"]) == ("orders", 4, 2)
    assert settled.query("SELECT count(*) FROM redrive_events WHERE log = 1") == [(3,)]
    assert settled.redrive("verify", "--app", "shop:app").code == 0
    answer = settled.redrive("rebuild", "revenue", "--app", "shop:app", "--yes")
    assert (answer.code, "was pruned up to position" in answer.err) == (2, True)
    assert settled.redrive("run", "shop:app", "--until-idle").code == 0


def test_several_logs_may_be_pruned_and_what_was_emitted_is_not_emitted_twice(settled: Any) -> None:
    settled.append(5, 6, 7)
    assert settled.redrive("run", "shop:app", "--until-idle").code == 0
    line = ("--events", "orders", "--events", "receipts", "--no-rebuild", "revenue", "--yes", "--json")
    answer = settled.redrive("prune", "--older-than", "0s", *line, "--store", "shop.db")
    assert answer.code == 0, answer.err
    assert [one["log"] for one in answer.json["events"]] == ["orders", "receipts"]
    assert settled.query("SELECT count(*) FROM redrive_events WHERE log = 2") == [(3,)]  # the newest of each key
    assert settled.redrive("verify", "--app", "shop:app").code == 0
    answer = settled.redrive("seek", "charge", "first", "--reason", "hm", "--yes", "--store", "shop.db")
    assert (answer.code, "were pruned" in answer.err) == (2, True)


def test_beside_a_running_worker_nothing_is_disturbed(settled: Any) -> None:
    settled.work()
    settled.append(5, 6, 7)
    answer = settled.redrive("prune", "--older-than", "0s", "--yes", "--json", "--store", "shop.db")
    assert (answer.code, answer.json["done"]) == (0, True), answer.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("--older-than", "30"), "is not a duration"),
        (("--events", "order"), "did you mean 'orders'?"),
        (("-s", "revenu"), "did you mean 'revenue'?"),
        (("--no-rebuild", "revenue"), "goes with --events"),
        (("--events", "orders", "--no-rebuild", "x"), "it does not read 'orders'"),
        (("--events", "orders", "-s", "charge"), "-s is about letters alone"),
    ],
)
def test_mistakes_are_wrong_usage(settled: Any, line: tuple[str, ...], told: str) -> None:
    answer = settled.redrive("prune", *line, "--store", "shop.db")
    assert (answer.code, told in " ".join(answer.err.split())) == (2, True), answer.err


FED = """
from redrive import App
from redrive.redis import Stream

app = App("shop.db")

@app.on(Stream("{url}", "orders"), order="none", start="first")
def ship(event, ctx): ...
"""


def test_prune_shows_what_a_broker_would_give_again_before_it_asks(shop: Any, valkey_url: str) -> None:
    """The entry stays in the group's list of pending ones, as it does if its acknowledgement is lost."""
    (shop.folder / "shop.py").write_text(shop._placed(FED.format(url=valkey_url)))
    with redis.Redis.from_url(valkey_url) as server:
        server.flushdb()
        ids = [server.xadd("orders", {"type": "order.placed", "data": "1"}) for _ in range(3)]
        assert shop.redrive("run", "shop:app", "--until-idle").code == 0
        (group,) = server.xinfo_groups("orders")
        server.xclaim("orders", group["name"], "redrive", 0, ids, force=True)
        line = ("prune", "--older-than", "0s", "--events", "redis:orders", "--store", "shop.db")
        asked = shop.redrive(*line, "--app", "shop:app")
        assert asked.code == 2 and "Delete this for good?" in asked.err
        said = " ".join(asked.out.split())
        assert "WARNING: group" in said and "has not acknowledged 2 of them" in said
        (one,) = shop.redrive(*line, "--app", "shop:app", "--dry-run", "--json").json["events"]
        assert (one["unacknowledged"], "applied again" in one["warning"]) == (2, True)
        (one,) = shop.redrive(*line, "--dry-run", "--json").json["events"]
        assert (one["unacknowledged"], "add --app" in one["warning"]) == (None, True)
        server.flushdb()
