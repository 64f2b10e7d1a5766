"""`redrive dlq`: list, show, replay."""

from __future__ import annotations

import re
from typing import Any

import pytest

FIELDS = [
    "id", "subscription", "event_id", "type", "key", "state", "reason", "error_type", "error_message", "fingerprint",
    "attempts", "first_failed_at", "last_failed_at", "waiting",
]  # fmt: skip


@pytest.fixture
def failed(shop: Any) -> Any:
    """One dead letter per subscription on key k1, with one event behind it."""
    shop.append(1, -2, 4, 8, 16)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def test_the_list_shows_dead_heads_and_what_waits_behind_them(failed: Any) -> None:
    answer = failed.process("dlq", "list", "--store", "shop.db")
    assert answer.code == 0
    header, *rows = answer.out.splitlines()
    assert header.split() == ["id", "subscription", "key", "error", "tries", "at", "ago", "waiting"]
    assert len(rows) == 2
    assert all(re.search(r"\d\d-\d\d \d\d:\d\dZ +(just now|\d+\w+ ago) +1$", row) for row in rows)
    assert max(map(len, answer.out.splitlines())) <= 80


def test_the_list_as_json_has_the_documented_fields(failed: Any) -> None:
    answer = failed.redrive("dlq", "list", "-s", "charge", "--json", REDRIVE_STORE="shop.db")
    (letter,) = answer.json
    assert list(letter) == [*FIELDS, "behind"]
    assert (letter["subscription"], letter["key"], letter["state"], letter["waiting"]) == ("charge", "k1", "dead", 1)
    assert (letter["error_type"], letter["error_message"]) == ("ValueError", "cannot charge")
    assert letter["first_failed_at"].endswith("Z")


def test_pages_follow_each_other(failed: Any) -> None:
    first = failed.redrive("dlq", "list", "--limit", "1", "--store", "shop.db")
    assert "next page: --after 1" in first.out
    rest = failed.redrive("dlq", "list", "--after", "1", "--json", "--store", "shop.db")
    assert [letter["id"] for letter in rest.json] == [3]


def test_a_letter_is_shown_without_its_payload_unless_asked_for(failed: Any) -> None:
    answer = failed.redrive("dlq", "show", "1", "--store", "shop.db")
    assert answer.code == 0
    assert "negative amount" in answer.out
    assert "shop.py" in answer.out.replace("\n      ", "")  # the traceback, whose lines are broken where they are full
    assert "cents" not in answer.out
    assert '"cents": -2' in failed.redrive("dlq", "show", "1", "--store", "shop.db", "--payload").out
    found = failed.redrive("dlq", "show", "1", "--store", "shop.db", "--json").json
    assert list(found)[: len(FIELDS)] == FIELDS
    assert "data" not in found
    assert [entry["outcome"] for entry in found["history"]] == ["rejected"]
    assert failed.redrive("dlq", "show", "1", "--store", "shop.db", "--json", "--payload").json["data"]["cents"] == -2


def test_a_letter_says_whom_it_blames_and_how_often_it_came_round_by_itself(failed: Any) -> None:
    plain = failed.redrive("dlq", "show", "1", "--store", "shop.db")
    assert "auto replays" not in plain.out and "dependency" not in plain.out
    with failed.app() as app, app.transaction() as tx:
        table = "redrive_letters" if failed.url is None else "redrive.letters"
        tx.execute(f"UPDATE {table} SET dependency = 'bank', auto_replays = 2 WHERE id = 1")
    shown = failed.redrive("dlq", "show", "1", "--store", "shop.db").out
    assert "dependency       bank\n" in shown and "auto replays     2\n" in shown
    found = failed.redrive("dlq", "show", "1", "--store", "shop.db", "--json").json
    assert (found["dependency"], found["auto_replays"]) == ("bank", 2)
    explained = failed.redrive("explain", found["event_id"], "--store", "shop.db").out
    assert "replayed automatically 2 times" in " ".join(explained.split())


def test_an_automatic_replay_is_not_resumed_by_hand(failed: Any) -> None:
    with failed.app() as app:
        letters = app.operate().letters.list()
        number = app.operate("auto-replay").bulk.begin("replay", letters, "cron * * * * *")
    assert "resume" not in failed.redrive("ops", str(number), "--store", "shop.db").out
    assert failed.redrive("ops", "--json", "--store", "shop.db").json[0]["state"] == "running"
    answer = failed.redrive("ops", "resume", str(number), "--store", "shop.db")
    assert answer.code == 2
    assert "goes on by itself" in answer.err
    assert failed.redrive("ops", "cancel", str(number), "--yes", "--store", "shop.db").code == 0


def test_totals_of_what_is_meant(failed: Any) -> None:
    def total(*chosen: str) -> dict[str, int]:
        answer = failed.redrive("dlq", "stats", "--json", *chosen, "--store", "shop.db")
        assert (answer.code, answer.err) == (0, "")
        found: dict[str, int] = {}
        for one in answer.json:
            found[one["state"]] = found.get(one["state"], 0) + one["n"]
        return found

    assert total() == total("--all") == {"dead": 2, "waiting": 2}
    assert total("-s", "charge") == total("-s", "charge", "--type", "*") == {"dead": 1, "waiting": 1}
    assert total("--key", "k1") == total("--since", "1h") == {"dead": 2}
    assert total("--error", "cannot charge") == total("--dlq-reason", "rejected") == total("1") == {"dead": 1}
    assert total("--key", "k2") == total("--until", "1h") == {}
    answer = failed.redrive("dlq", "stats", "--by", "subscription", "--key", "k1", "--limit", "1", "--store", "shop.db")
    assert answer.out.split()[:2] == ["subscription", "letters"]
    assert answer.err == "only the first 1 letters that match were counted; there are more: --limit\n"
    assert "no such letters" in failed.redrive("dlq", "stats", "--key", "k2", "--store", "shop.db").out


def test_causes_of_what_is_meant(failed: Any) -> None:
    def subscriptions(*chosen: str) -> list[str]:
        return sorted(
            one["subscription"] for one in failed.redrive("dlq", *chosen, "--json", "--store", "shop.db").json
        )

    both = subscriptions()
    assert len(both) == 2
    assert subscriptions("--key", "k1") == subscriptions("--type", "*") == subscriptions("--since", "1h") == both
    assert subscriptions("--error", "cannot charge") == subscriptions("-s", "charge") == ["charge"]
    assert subscriptions("--key", "k2") == subscriptions("--dlq-reason", "bad_key") == []


def test_the_letter_that_is_shown_may_be_the_oldest_of_a_selection(failed: Any) -> None:
    answer = failed.redrive("dlq", "show", "--key", "k1", "--store", "shop.db")
    assert "negative amount" in answer.out
    assert "there are more: --limit, or redrive dlq list --after 1" in answer.out
    several = failed.redrive("dlq", "show", "--all", "--limit", "9", "--json", "--store", "shop.db").json
    assert [one["id"] for one in several] == [1, 3]
    assert failed.redrive("dlq", "show", "3", "1", "--json", "--store", "shop.db").json == several
    assert failed.redrive("dlq", "show", "--key", "k2", "--store", "shop.db").out == "no dead letters\n"
    assert failed.redrive("dlq", "show", "--payload", "--all", "7", "--store", "shop.db").code == 2


def test_bare_show_shows_the_letter_that_failed_last(failed: Any) -> None:
    failed.append(-1)
    assert failed.redrive("run", "shop:app", "--until-idle", "--only", "revenue").code == 0
    ((newest,),) = failed.query("SELECT max(id) FROM redrive_letters WHERE state = 'dead'")
    (shown,) = failed.redrive("dlq", "show", "--json", "--store", "shop.db").json
    assert shown["id"] == newest
    said = failed.redrive("dlq", "show", "--store", "shop.db").out
    assert said.startswith(f"letter           {newest}\n") and "there are more: --limit, or redrive dlq list\n" in said
    two = failed.redrive("dlq", "show", "--limit", "2", "--json", "--store", "shop.db").json
    assert [one["id"] for one in two] == [newest, 3]


def test_times_stand_beside_ages_and_a_waiting_letter_names_the_one_that_blocks(failed: Any) -> None:
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \((just now|\d+\w+ ago)\)"
    assert re.search(rf"^  first {day}, last {day}$", failed.redrive("dlq", "--store", "shop.db").out, re.MULTILINE)
    assert re.search(
        r"last_failed_at +\S+Z \((just now|.* ago)\)", failed.redrive("dlq", "show", "1", "--store", "shop.db").out
    )
    parked = failed.process("dlq", "list", "--parked", "--store", "shop.db").out
    assert "waits behind letter 1" in parked and "waits behind letter 3" in parked and "behind_head" not in parked
    assert max(map(len, parked.splitlines())) <= 80
    found = failed.redrive("dlq", "list", "--parked", "--json", "--store", "shop.db").json
    assert [one["behind"] for one in found] == [1, 3]
    shown = failed.redrive("dlq", "show", "2", "--store", "shop.db").out
    assert "waits behind letter 1" in shown and "behind_head" not in shown and "due_at" not in shown


def test_commands_in_hints_stay_on_one_line(failed: Any) -> None:
    """At 80 columns, without a terminal, as in a chat or a ticket."""
    said = failed.process("dlq", "--store", "shop.db").out
    assert re.search(
        r"^rehearse: redrive dlq replay --fingerprint \w{8} --rehearse --app MODULE:APP$", said, re.MULTILINE
    )
    assert max(map(len, said.splitlines())) <= 80


def test_what_is_said_of_a_verb_stands_behind_it(failed: Any) -> None:
    for before in (["-s", "charge"], ["--store", "shop.db"], ["--json"], ["--limit", "3"]):
        answer = failed.redrive("dlq", *before, "list")
        assert (answer.code, answer.out) == (2, "")
        assert "goes behind the verb: redrive dlq list" in answer.err


def test_a_letter_that_is_not_there_is_a_failure(failed: Any) -> None:
    answer = failed.redrive("dlq", "show", "99", "--store", "shop.db")
    assert answer.code == 2
    assert answer.err.startswith("redrive: there is no letter 99; `redrive dlq list` shows those there are")


def test_a_replay_here_applies_the_letter_and_what_waits_behind_it(failed: Any) -> None:
    failed.write(strict=False)
    answer = failed.process("dlq", "replay", "1", "--app", "shop:app")
    assert (answer.code, answer.out) == (0, "operation 1: 1 selected = 1 applied\n"), answer.err
    assert dict(failed.query("SELECT key, cents FROM revenue"))["k1"] == 14
    assert failed.redrive("verify", "--app", "shop:app").code == 0


def test_a_replay_that_fails_again_is_done_in_part(failed: Any) -> None:
    answer = failed.process("dlq", "replay", "--all", "--yes", "--app", "shop:app", "--json")
    assert answer.code == 3
    assert {name: answer.json[name] for name in ("selected", "applied", "failed", "skipped", "waiting")} == {
        "selected": 2, "applied": 0, "failed": 2, "skipped": 0, "waiting": 0,
    }  # fmt: skip
    assert failed.query("SELECT DISTINCT attempts, state FROM redrive_letters WHERE reason <> 'behind_head'") == [
        (2, "dead")
    ]


def test_a_running_worker_replays_for_those_who_wait(failed: Any) -> None:
    failed.write(strict=False)
    failed.work()
    answer = failed.redrive("dlq", "replay", "--all", "--yes", "--wait", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "operation 1: 2 selected = 2 applied\n"), answer.err


def test_a_running_worker_is_left_alone_by_a_replay_with_the_program(failed: Any) -> None:
    worker = failed.work()
    answer = failed.redrive("dlq", "replay", "--all", "--yes", "--wait", "--app", "shop:app")
    assert answer.code == 3, answer.err
    assert worker.poll() is None
    ((owners,),) = failed.query("SELECT count(*) FROM redrive_progress WHERE epoch = 2")
    assert owners == 2  # the first run and the worker; nobody else took the lease


def test_without_a_worker_letters_wait_and_waiting_for_them_is_refused(failed: Any) -> None:
    answer = failed.redrive("dlq", "replay", "1", "--wait", "--store", "shop.db")
    assert answer.code == 2
    assert "nobody runs revenue" in answer.err
    assert failed.query("SELECT count(*) FROM redrive_audit") == [(0,)]
    answer = failed.redrive("dlq", "replay", "1", "--store", "shop.db", "--reason", "fixed in 1.2")
    assert answer.code == 0
    assert "nobody runs revenue now" in answer.out
    assert failed.query("SELECT action, reason FROM redrive_audit") == [("replay", "fixed in 1.2")]


def test_a_follower_is_refused_with_the_name_of_its_head(failed: Any) -> None:
    answer = failed.redrive("dlq", "replay", "2", "--store", "shop.db")
    assert answer.code == 1
    assert "behind letter 1" in answer.out
    answer = failed.redrive("dlq", "replay", "1", "2", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out.splitlines()[0]) == (3, "operation 2: 2 selected = 1 skipped + 1 waiting")
    assert failed.redrive("dlq", "replay", "1", "99", "--yes", "--store", "shop.db").code == 2


def test_everything_is_only_replayed_when_somebody_said_yes(failed: Any) -> None:
    answer = failed.process("dlq", "replay", "--all", "--store", "shop.db", answer="y\n")
    assert answer.code == 2
    assert "Replay all 2 dead letters?" in answer.err
    assert failed.query("SELECT DISTINCT state FROM redrive_letters WHERE reason <> 'behind_head'") == [("dead",)]


@pytest.mark.parametrize("arguments", [[], ["1", "--all"], ["1", "-s", "charge"], ["one"], ["0"]])
def test_a_replay_must_say_which_letters(failed: Any, arguments: list[str]) -> None:
    assert failed.redrive("dlq", "replay", *arguments, "--store", "shop.db").code == 2


def test_nothing_dead_is_nothing_to_do(shop: Any) -> None:
    shop.append(1)
    shop.redrive("run", "shop:app", "--until-idle")
    assert shop.redrive("dlq", "list", "--store", "shop.db").out == "no dead letters\n"
    assert shop.redrive("dlq", "replay", "--all", "--yes", "--store", "shop.db").out == "no dead letters\n"


def test_a_paused_subscription_ends_the_waiting(failed: Any) -> None:
    failed.work()
    with failed.app() as app:
        app.operate("ada").subscriptions.pause("revenue")
    answer = failed.redrive("dlq", "replay", "1", "--wait", "--store", "shop.db")
    assert answer.code == 1
    assert "revenue is paused" in answer.err


def test_waiting_letters_are_not_called_retrying_in_any_view(failed: Any) -> None:
    (found, _) = failed.redrive("status", "--store", "shop.db", "--json").json
    assert (found["dead"], found["retrying"], found["waiting"], found["lag_events"]) == (1, 0, 1, 0)
    assert found["oldest_seconds"] > 0
    (account, _) = failed.redrive("verify", "--store", "shop.db", "--json").json
    assert (account["dead"], account["retrying"], account["waiting"]) == (1, 0, 1)
    assert failed.redrive("dlq", "list", "--parked", "--store", "shop.db", "--json").json[0]["state"] == "waiting"
    assert failed.redrive("dlq", "show", "2", "--store", "shop.db", "--json").json["state"] == "waiting"
    header, *rows = failed.redrive("status", "--store", "shop.db").out.splitlines()
    assert header.split()[-3:] == ["retrying", "waiting", "dead"]
    assert [row.split()[-3:] for row in rows] == [["0", "1", "1"]] * 2
