"""`redrive explain`, `redrive lanes` and `redrive state`."""

from __future__ import annotations

from typing import Any

import pytest

FATE = [
    "subscription", "fate", "why", "at", "letter", "lane", "behind", "ahead", "error", "attempts", "superseded",
    "emitted",
]  # fmt: skip
LANE = [
    "subscription", "lane", "letter", "position", "event_id", "type", "state", "reason", "error_type", "error_message",
    "attempts", "parked_at", "age_seconds", "due_at", "waiting", "held",
]  # fmt: skip


@pytest.fixture
def failed(shop: Any) -> Any:
    """One dead letter per subscription on key k1, with one event behind it."""
    shop.append(1, -2, 4, 8, 16)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def ids(shop: Any) -> list[str]:
    return [row[0] for row in shop.query("SELECT id FROM redrive_events WHERE log = 1 ORDER BY position")]


def test_every_subscription_says_what_became_of_an_event(failed: Any) -> None:
    dead, behind = ids(failed)[1], ids(failed)[4]
    found = failed.redrive("explain", dead, "--json", "--store", "shop.db").json
    assert (found["id"], found["log"], found["position"], found["key"]) == (dead, "orders", 2, "k1")
    assert [(fate["subscription"], fate["fate"]) for fate in found["fates"]] == [
        ("charge", "dead"),
        ("revenue", "dead"),
    ]
    assert all(list(fate) == FATE for fate in found["fates"])
    waiting = failed.redrive("explain", behind, "--json", "--store", "shop.db").json["fates"]
    heads = dict(failed.query("SELECT s.name, min(l.id) FROM redrive_letters l JOIN redrive_subscriptions s "
                              "ON s.id = l.subscription GROUP BY s.name"))  # fmt: skip
    assert {fate["subscription"]: fate["behind"] for fate in waiting} == heads
    words = failed.redrive("explain", behind, "--store", "shop.db").out
    assert "charge: waiting" in words
    assert max(map(len, words.splitlines())) <= 80


def test_the_beginning_of_an_id_is_enough_also_with_the_mark_of_a_cut(failed: Any) -> None:
    event = ids(failed)[0]
    for text in (event, event[:-1], f"{event[:30]}…"):
        assert failed.redrive("explain", text, "--json", "--store", "shop.db").json["id"] == event
    for text, word in ((event[:2], "several"), ("zzz", "no event")):
        answer = failed.redrive("explain", text, "--store", "shop.db")
        assert (answer.code, word in answer.err) == (2, True)


def test_an_event_that_nobody_reads(failed: Any) -> None:
    ((receipt,),) = failed.query("SELECT id FROM redrive_events WHERE log = 2 LIMIT 1")
    assert "no subscription reads the log receipts" in failed.redrive("explain", receipt, "--store", "shop.db").out
    assert failed.redrive("explain", receipt, "--json", "--store", "shop.db").json["fates"] == []


def test_what_an_event_caused_is_named(failed: Any) -> None:
    fates = failed.redrive("explain", ids(failed)[0], "--json", "--store", "shop.db").json["fates"]
    (made,) = fates[0]["emitted"]
    ((expected, position),) = failed.query(
        "SELECT id, position FROM redrive_events WHERE log = 2 AND key = 'k0' LIMIT 1"
    )
    assert made == {"log": "receipts", "id": expected, "position": position}
    assert fates[1]["emitted"] == []


def test_lanes_show_the_blast_radius(failed: Any) -> None:
    answer = failed.redrive("lanes", "--store", "shop.db")
    header, *rows = answer.out.splitlines()
    assert header.split() == ["letter", "subscription", "key", "state", "error", "since", "age", "waiting"]
    assert len(rows) == 2
    assert max(map(len, answer.out.splitlines())) <= 80
    (lane,) = failed.redrive("lanes", "-s", "charge", "--json", "--store", "shop.db").json
    assert list(lane) == LANE
    assert (lane["lane"], lane["state"], lane["waiting"], lane["error_message"]) == ("k1", "dead", 1, "cannot charge")
    first = failed.redrive("lanes", "--limit", "1", "--store", "shop.db")
    assert "next page: --after 1" in first.out
    (other,) = failed.redrive("lanes", "--after", "1", "--json", "--store", "shop.db").json
    assert other["subscription"] == "charge"


def test_lanes_of_one_key(failed: Any) -> None:
    found = failed.redrive("lanes", "--key", "k1", "--json", "--store", "shop.db").json
    assert [(lane["subscription"], lane["lane"]) for lane in found] == [("revenue", "k1"), ("charge", "k1")]
    (lane,) = failed.redrive("lanes", "--key", "k1", "-s", "charge", "--json", "--store", "shop.db").json
    assert lane["subscription"] == "charge"
    assert failed.redrive("lanes", "--key", "k0", "--store", "shop.db").out == "no letter holds the key k0 back\n"


def test_no_lane_is_held_back(shop: Any) -> None:
    shop.append(1)
    assert shop.redrive("lanes", "--store", "shop.db").out == "no key is held back\n"
    assert shop.redrive("lanes", "-s", "nobody", "--store", "shop.db").code == 2
    assert shop.redrive("lanes", "--after", "7", "--store", "shop.db").code == 2


def test_the_state_of_a_key_is_shown_only_when_asked_for(shop: Any) -> None:
    text = (shop.folder / "shop.py").read_text()
    counting = """
@app.on(orders, start="first")
def count(event, ctx):
    ctx.state["seen"] = ctx.state.get("seen", 0) + 1
    ctx.state["api_token"] = "abc"
"""
    (shop.folder / "shop.py").write_text(text + counting)
    shop.append(1, 2, 3, 4)
    assert shop.process("run", "shop:app", "--until-idle").code == 0
    found = shop.redrive("state", "count", "k0", "--json", "--store", "shop.db").json
    assert list(found) == ["subscription", "key", "version", "bytes", "event_id", "event_type", "event_time"]
    assert (found["version"], found["event_id"]) == (4, ids(shop)[3])
    full = shop.redrive("state", "count", "k0", "--json", "--payload", "--store", "shop.db").json
    assert full["data"] == {"seen": 2, "api_token": "[redacted]"}
    assert '"seen": 2' in shop.redrive("state", "count", "k0", "--payload", "--store", "shop.db").out
    assert "seen" not in shop.redrive("state", "count", "k0", "--store", "shop.db").out
    assert shop.redrive("state", "count", "nokey", "--store", "shop.db").code == 1
    assert shop.redrive("state", "cuont", "k0", "--store", "shop.db").code == 2
