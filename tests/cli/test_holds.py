"""`redrive hold` and `release`; `redrive dlq now` and `postpone`."""

from __future__ import annotations

import re
from typing import Any

import pytest

STORE = ("--store", "shop.db")


@pytest.fixture
def built(shop: Any) -> Any:
    """Three orders, one each of k0, k1 and k2, applied."""
    shop.append(1, 2, 4)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def run(shop: Any) -> None:
    answer = shop.redrive("run", "shop:app", "--until-idle")
    assert answer.code == 0, answer.err


def total(shop: Any) -> int:
    return int(shop.query("SELECT sum(cents) FROM revenue")[0][0])


def letter_of(shop: Any, subscription: str) -> int:
    found = shop.query(
        "SELECT l.id FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription "
        f"WHERE l.state IN ('retrying', 'dead') AND s.name = '{subscription}' ORDER BY l.position"
    )
    return int(found[0][0])


def test_held_key_waits_and_every_view_says_why(built: Any) -> None:
    answer = built.redrive("hold", "revenue", "--key", "k1", "--reason", "wrong price", *STORE)
    assert (answer.code, answer.out) == (0, "revenue: key k1 is held until it is released\n"), answer.err
    built.append(10, 20, 30, 100, 200, 300)
    run(built)
    assert total(built) == 7 + 660 - 220
    assert "revenue: 1 hold of keys; `redrive hold revenue` lists them" in built.redrive("status", *STORE).out
    letter = letter_of(built, "revenue")
    held = r"held by \S+ since [0-9 :-]+Z, until it is released: wrong price"
    listed = flat(built.redrive("hold", *STORE).out)
    assert re.fullmatch(rf"revenue: key k1 is {held} \(1 letter\)", listed)
    assert re.search(rf"k1 of revenue is {held}", flat(built.redrive("lanes", *STORE).out))
    shown = built.redrive("dlq", "show", str(letter), *STORE).out
    assert re.search(held, flat(shown))
    assert "due_at" not in shown
    (event,) = built.query(f"SELECT event_id FROM redrive_letters WHERE id = {letter}")[0]
    assert re.search(
        rf"letter {letter} is not called; its key is {held}", flat(built.redrive("explain", event, *STORE).out)
    )
    assert [one["reason"] for one in built.redrive("dlq", "list", "--dlq-reason", "held", "--json", *STORE).json] == [
        "held"
    ]
    answer = built.redrive("release", "revenue", "--key", "k1", "--reason", "fixed", *STORE)
    assert (answer.code, answer.out) == (0, "revenue: key k1 is released\n"), answer.err
    run(built)
    assert total(built) == 7 + 660
    assert built.redrive("hold", *STORE).out == "no key is held\n"
    assert built.redrive("verify", *STORE).code == 0


def flat(text: str) -> str:
    """Without the breaks between lines."""
    return " ".join(text.split())


def test_hold_by_prefix_of_every_subscription_until_a_time(built: Any) -> None:
    answer = built.redrive(
        "hold", "--all", "--key", "k*", "--until", "2100-01-31T00:00Z", "--reason", "migration", "--json", *STORE
    )
    assert answer.json["until"] == "2100-01-31T00:00:00.000Z"
    assert (answer.json["subscription"], answer.json["key"], answer.json["is_prefix"]) == (None, "k*", True)
    built.append(10, 20)
    run(built)
    assert total(built) == 7
    assert {one["holds"] for one in built.redrive("status", "--json", *STORE).json} == {1}
    answer = built.redrive("release", "revenue", "--key", "k1", *STORE)
    assert answer.out == "revenue: key k1 was not held\nstill held (migration): redrive release --all --key 'k*'\n"
    answer = built.redrive("release", "--all", "--key", "k*", *STORE)
    assert answer.out == "all subscriptions: the keys k* are released\n"
    run(built)
    assert total(built) == 37


def test_release_names_the_same_key_held_elsewhere(built: Any) -> None:
    for where in ("revenue", "--all"):
        assert built.redrive("hold", where, "--key", "k1", "--reason", f"by {where}", *STORE).code == 0
    answer = built.redrive("release", "revenue", "--key", "k1", *STORE)
    assert answer.out == "revenue: key k1 is released\nstill held (by --all): redrive release --all --key k1\n"
    assert built.redrive("hold", "revenue", "--key", "k1", "--reason", "again", *STORE).code == 0
    answer = built.redrive("release", "--all", "--key", "k1", *STORE)
    assert "still held (again): redrive release revenue --key k1" in answer.out
    answer = built.redrive("release", "revenue", "--key", "k1", *STORE)
    assert answer.out == "revenue: key k1 is released\n"


def test_replay_of_a_held_key_says_why_and_ends(shop: Any) -> None:
    shop.append(1, -1)
    run(shop)
    letter = letter_of(shop, "revenue")
    assert shop.redrive("hold", "revenue", "--key", "k*", "--reason", "moving", *STORE).code == 0
    shop.write(strict=False)
    answer = shop.redrive("dlq", "replay", str(letter), "--wait", "--app", "shop:app")
    assert re.match(r"1 letter waits: its key is held by \S+ since .*: moving; redrive release", flat(answer.err))
    assert answer.out == "operation 1: 1 selected = 1 waiting\n"
    told = flat(shop.redrive("ops", "1", *STORE).out)
    assert re.search(r"1 letter waits: its key is held by .*: moving; redrive release revenue --key 'k\*'", told)
    assert "retry budget" not in told
    assert shop.redrive("release", "revenue", "--key", "k*", *STORE).code == 0
    run(shop)
    assert total(shop) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("hold", "revenue", "--key", "k1"), "needs a reason"),
        (("hold", "--key", "k1", "--reason", "x"), "name one subscription, or say --all"),
        (("hold", "revenue", "--all", "--key", "k1", "--reason", "x"), "name one subscription, or say --all"),
        (("hold", "*", "--key", "k1", "--reason", "x"), "name one subscription, or say --all"),
        (("hold", "revenu", "--key", "k1", "--reason", "x"), "did you mean 'revenue'?"),
        (("hold", "revenue", "--until", "2h"), "name the key to hold"),
        (("hold", "revenue", "--key", "*", "--reason", "x"), "redrive pause"),
        (("hold", "revenue", "--key", "k1", "--until", "soon", "--reason", "x"), "neither a duration like 2h"),
        (("hold", "revenue", "--key", "k1", "--until", "2020-01-01T00:00Z", "--reason", "x"), "is over"),
        (("release", "revenue"), "name the key to release"),
        (("dlq", "postpone", "1"), "--until"),
        (("dlq", "postpone", "1", "--until", "then"), "neither a duration like 2h"),
        (("dlq", "now"), "ID"),
    ],
)
def test_bad_line_is_refused_with_what_to_do(built: Any, line: tuple[str, ...], said: str) -> None:
    answer = built.redrive(*line, *STORE)
    assert answer.code == 2
    assert said in flat(answer.err)
    assert built.query("SELECT count(*) FROM redrive_holds") == [(0,)]


def test_letter_is_tried_now_or_later(shop: Any) -> None:
    text = (shop.folder / "shop.py").read_text().replace("retry=no_retry", "retry=retry(wait='1m', jitter=0)")
    (shop.folder / "shop.py").write_text(text.replace("no_retry", "retry").replace("Reject(", "ValueError("))
    shop.append(-1)
    run(shop)
    letter = letter_of(shop, "revenue")
    answer = shop.redrive("dlq", "postpone", str(letter), "--until", "2100-01-01T00:00Z", "--reason", "later", *STORE)
    assert (answer.code, answer.out) == (0, f"letter {letter} is due at 2100-01-01 00:00:00Z\n"), answer.err
    run(shop)
    assert shop.query(f"SELECT attempts FROM redrive_letters WHERE id = {letter}") == [(1,)]
    answer = shop.redrive("dlq", "now", str(letter), "--reason", "fixed", *STORE)
    assert answer.out == f"letter {letter} is due now\nno worker runs revenue: start one\n"
    shop.write(strict=False)
    (shop.folder / "shop.py").write_text(text.replace("no_retry", "retry"))
    run(shop)
    assert total(shop) == -1
    answer = shop.redrive("dlq", "now", str(letter), "99", "--json", *STORE)
    assert answer.code == 1
    assert answer.json["refused"][0]["letter"] in (letter, 99)
    assert shop.query("SELECT action, target, reason FROM redrive_audit ORDER BY id") == [
        ("postpone", f"letter {letter}", "later"), ("now", f"letter {letter}", "fixed"),
    ]  # fmt: skip
