"""`redrive status` and `redrive verify`."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import App, Event, Tx
from redrive.store.address import is_postgres


@pytest.fixture
def store(tmp_path: Path, backend: str | None) -> str:
    """A store in which everything is applied."""
    path = backend or str(tmp_path / "s.db")
    app = App(path)
    orders = app.log("orders")

    @app.projection(orders)
    def totals(event: Event[Any], tx: Tx) -> None: ...

    for number in range(3):
        orders.append("order.placed", {}, key=f"k{number}")
    app.run(until_idle=True)
    orders.append("order.placed", {})
    app.close()
    return path


def damage(store: str, sql: str) -> None:
    if is_postgres(store):
        with psycopg.connect(store) as connection:
            connection.execute(re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql).encode())
        return
    with closing(sqlite3.connect(store)) as file:
        file.execute(sql)
        file.commit()


def test_a_status_in_words(inside: Any, store: str) -> None:
    answer = inside("status", "--store", store)
    assert answer.code == 0
    assert answer.out.splitlines()[1].split()[:4] == ["totals", "stopped", "3", "1"]


def test_a_status_as_json_has_the_documented_fields(inside: Any, store: str) -> None:
    (found,) = inside("status", "--store", store, "--json").json
    assert list(found) == [
        "subscription", "state", "kind", "source", "order", "position", "lag_events", "lag_seconds", "oldest_seconds",
        "scheduled", "applied", "ignored", "retrying", "waiting", "dead", "holds", "owner", "lease_until",
        "silent_seconds", "silent_owner", "paused", "halted", "rebuilding_until", "last_id", "last_type", "last_time",
        "settled_at", "version", "reserved_by", "not_run_by", "full_lanes",
    ]  # fmt: skip
    assert found["full_lanes"] == []
    assert (found["position"], found["lag_events"], found["applied"], found["owner"]) == (3, 1, 3, None)
    assert found["last_time"].endswith("Z")


def test_a_halted_subscription_says_why(inside: Any, store: str) -> None:
    damage(store, "UPDATE redrive_progress SET halted = 'the disk is full'")
    assert "totals is halted: the disk is full" in inside("status", "--store", store).out


def test_a_full_lane_is_told_where_everybody_looks_first(inside: Any, store: str, monkeypatch: Any) -> None:
    """The subscription runs, and takes nothing in: its lag alone would not say why."""
    damage(
        store,
        "INSERT INTO redrive_lanes (subscription, lane, n, oldest) SELECT id, 'k1', 2000, 2 FROM redrive_subscriptions",
    )
    assert "holds" not in inside("status", "--store", store).out
    monkeypatch.setenv("REDRIVE_LANE_MAX", "2000")
    answer = inside("status", "--store", store)
    wanted = "totals: lane 'k1' holds 2,000 letters of 2,000: intake has stopped; redrive dlq -s totals: repair or"
    assert (answer.code, wanted in " ".join(answer.out.split())) == (0, True)
    (found,) = inside("status", "--store", store, "--json").json
    assert found["full_lanes"] == ["k1"]


def test_a_sound_store_is_verified(inside: Any, store: str) -> None:
    answer = inside("verify", "--store", store)
    assert answer.code == 0
    assert answer.out.splitlines()[1].split() == ["totals", "3", "0", "0", "0", "0", "1", "sound"]
    (found,) = inside("verify", "--store", store, "--json").json
    assert list(found) == [
        "subscription", "position", "pending", "applied", "retrying", "waiting", "dead", "discarded", "ignored",
        "violations", "sound",
    ]  # fmt: skip


def test_a_violation_has_an_exit_code_of_its_own_and_its_positions(inside: Any, store: str) -> None:
    damage(store, f"INSERT INTO redrive_done_chunks VALUES (1, 0, '001{'':0>509}')")
    answer = inside("verify", "--store", store)
    assert answer.code == 3
    assert "1 violation" in answer.out
    assert "stale_done" in answer.out
    assert "at position 2" in answer.out
    answer = inside("verify", "--store", store, "--json")
    assert answer.code == 3
    assert answer.json[0]["violations"][0]["positions"] == [2]


def test_the_audit_is_verified_when_asked_for(inside: Any, store: str) -> None:
    for reason in ("one", "two", "three"):
        inside("pause", "totals", "--store", store, "--reason", reason)
        inside("resume", "totals", "--store", store)
    answer = inside("verify", "--audit", "--store", store)
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "audit: 6 rows, each fits the one before it")
    damage(store, "UPDATE redrive_audit SET reason = 'another' WHERE id = 5")
    assert inside("verify", "--store", store).code == 0  # the events are all there
    answer = inside("verify", "--audit", "--store", store)
    assert (answer.code, "audit: row 5 was changed" in answer.out) == (3, True)
    answer = inside("verify", "--audit", "--json", "--store", store)
    assert answer.code == 3
    assert answer.json["audit"] == {
        "rows": 4, "first_wrong": 5, "message": "row 5 was changed, or belongs to another chain", "sound": False,
    }  # fmt: skip
    assert [one["subscription"] for one in answer.json["subscriptions"]] == ["totals"]


@pytest.mark.parametrize(
    ("line", "meant"),
    [("letters", "dlq"), ("lag", "status"), ("stauts", "status"), ("dlq retry", "replay"), ("dlq delete", "discard")],
)
def test_words_of_other_systems_lead_to_ours(inside: Any, line: str, meant: str) -> None:
    answer = inside(*line.split())
    assert (answer.code, f"did you mean {meant}?" in answer.err) == (2, True)


def test_looking_never_makes_a_store(inside: Any, tmp_path: Path) -> None:
    for command in (["status"], ["verify"], ["dlq", "list"], ["dlq", "show", "1"], ["dlq", "replay", "1"]):
        answer = inside(*command, "--store", str(tmp_path / "none.db"))
        assert answer.code == 2
        assert "no store at" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_left_alone(inside: Any, tmp_path: Path) -> None:
    junk, other = tmp_path / "junk.db", tmp_path / "other.db"
    junk.write_text("not a database at all")
    damage(str(other), "CREATE TABLE t (a)")
    assert inside("status", "--store", str(junk)).code == 1
    assert inside("status", "--store", str(other)).code == 2
    assert junk.read_text() == "not a database at all"
    with closing(sqlite3.connect(other)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]


def test_a_store_with_no_subscriptions_is_no_error(inside: Any, tmp_path: Path) -> None:
    app = App(str(tmp_path / "new.db"))
    app.log("orders").append("order.placed", {})
    app.close()
    for command in ("status", "verify"):
        answer = inside(command, "--store", str(tmp_path / "new.db"))
        assert (answer.code, answer.out.startswith("no subscriptions yet")) == (0, True)


def test_the_store_may_be_named_before_the_command_or_in_the_settings(
    inside: Any, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inside("--store", store, "status").code == 0
    monkeypatch.setenv("REDRIVE_STORE", "")
    monkeypatch.chdir(tmp_path)
    assert inside("status").code == 2
    (tmp_path / "redrive.toml").write_text(f'store = "{store if is_postgres(store) else "s.db"}"')
    assert inside("status").code == 0


def test_workers_in_words_and_as_json(inside: Any, store: str) -> None:
    assert "no worker runs on this store" in inside("workers", "--store", store).out
    app = App(store)

    @app.projection(app.log("orders"), partitions=2)
    def totals(event: Event[Any], tx: Tx) -> None: ...

    async def look() -> tuple[Any, Any]:
        async with app.running():
            while sum(len(one.owns) for one in app.operate().workers(10.0)) < 2:
                await asyncio.sleep(0.01)
            return await asyncio.to_thread(inside, "workers", "--store", store), app.operate().workers(10.0)

    said, [worker] = asyncio.run(look())
    app.close()
    assert said.code == 0
    owned = re.findall(r"  (totals ./2)  (?:just now|\d+s ago)$", said.out, re.MULTILINE)
    assert owned == ["totals 1/2", "totals 2/2"]
    assert "…" not in said.out, "who owns what, since when and with which version is told in eighty columns"
    assert (worker.state, worker.runs) == ("working", ("totals",))
    assert inside("workers", "--store", store, "--json").json == []
