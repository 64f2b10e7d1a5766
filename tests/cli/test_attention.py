"""`--check` of `status`, `dlq` and `doctor`, and what `status` and `doctor` say that no counter tells."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Tx

CHECKS = (("status",), ("dlq",), ("doctor",))
OWNER = "'h|b|n|1|2|3'"  # a process of another machine: nobody can say that it is dead


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The doctor warns of a store in memory, and only what else it says is meant here."""
    return on_disk


def check(shop: Any, *line: str) -> tuple[int, list[tuple[str, str | None, int | None]]]:
    """The exit code of a check, and what needs an operator."""
    answer = shop.redrive(*line, "--check", "--json", "--store", "shop.db")
    assert list(answer.json) == ["ok", "needs"] and answer.json["ok"] == (answer.code == 0)
    for need in answer.json["needs"]:
        assert list(need) == ["check", "message", "advice", "subscription", "count"]
    return answer.code, [(need["check"], need["subscription"], need["count"]) for need in answer.json["needs"]]


@pytest.fixture
def sound(shop: Any) -> Any:
    """Everything is applied; no worker runs."""
    shop.append(1, 2, 4)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


@pytest.mark.parametrize("line", CHECKS)
def test_check_ends_with_zero_if_nothing_needs_an_operator(sound: Any, line: tuple[str, ...]) -> None:
    assert check(sound, *line) == (0, [])
    assert sound.redrive(*line, "--check", "--store", "shop.db").out == "nothing needs an operator\n"


@pytest.mark.parametrize("line", CHECKS)
def test_check_ends_with_four_for_dead_letters(sound: Any, line: tuple[str, ...]) -> None:
    sound.append(1, -2, 4, 8, 16)
    assert sound.redrive("run", "shop:app", "--until-idle").code == 0
    both = [("dead letters", "charge", 1), ("dead letters", "revenue", 1)]
    assert check(sound, *line) == (4, both)
    answer = sound.redrive(*line, "--check", "--store", "shop.db")
    assert (answer.code, answer.out.splitlines()[:2]) == (
        4, ["dead letters: charge: 1 dead letter", "   -> redrive dlq -s charge"]
    )  # fmt: skip


def test_check_of_dlq_counts_the_letters_that_the_filters_choose(sound: Any) -> None:
    sound.append(1, -2, 4, 8, 16)
    assert sound.redrive("run", "shop:app", "--until-idle").code == 0
    assert check(sound, "dlq", "--dlq-reason", "rejected") == (4, [("dead letters", "revenue", 1)])
    assert check(sound, "dlq", "-s", "charge", "--key", "k1") == (4, [("dead letters", "charge", 1)])
    assert check(sound, "dlq", "--key", "k2") == (0, [])


@pytest.mark.parametrize("line", CHECKS)
def test_check_ends_with_four_for_a_halted_subscription(sound: Any, line: tuple[str, ...]) -> None:
    sound.query("UPDATE redrive_progress SET halted = 'the disk is full'" + ONE_OF_TWO)
    assert check(sound, *line) == (4, [("halted", "charge", None)])


ONE_OF_TWO = " WHERE subscription = (SELECT id FROM redrive_subscriptions WHERE name = 'charge')"


@pytest.mark.parametrize("line", CHECKS)
def test_check_ends_with_four_for_due_letters_without_a_worker(sound: Any, line: tuple[str, ...]) -> None:
    """The letters behind a due one are not due; with a worker, or paused, the subscription needs nobody."""
    sound.append(1, -2, 4, 8, 16)
    assert sound.redrive("run", "shop:app", "--until-idle").code == 0
    sound.query("UPDATE redrive_letters SET state = 'retrying', due_at = 1.0 WHERE state = 'dead'")
    assert sound.redrive("pause", "revenue", "--store", "shop.db").code == 0
    assert check(sound, *line) == (4, [("due letters", "charge", 1)])
    sound.query("UPDATE redrive_letters SET due_at = 9e9 WHERE due_at = 1.0")
    assert check(sound, *line) == (0, [])


@pytest.mark.parametrize("line", CHECKS)
def test_due_letter_of_a_held_key_needs_no_worker(sound: Any, line: tuple[str, ...]) -> None:
    sound.append(1, -2, 4, 8, 16)
    assert sound.redrive("run", "shop:app", "--until-idle").code == 0
    sound.query("UPDATE redrive_letters SET state = 'retrying', due_at = 1.0 WHERE state = 'dead'")
    why = ("--reason", "ticket 7", "--store", "shop.db")
    assert sound.redrive("pause", "revenue", "--store", "shop.db").code == 0
    assert sound.redrive("hold", "charge", "--key", "k1", *why).code == 0
    assert check(sound, *line) == (0, [])
    assert sound.redrive("hold", "charge", "--key", "k2", *why).code == 0
    assert sound.redrive("release", "charge", "--key", "k1", *why).code == 0
    assert check(sound, *line) == (4, [("due letters", "charge", 1)])


def test_check_ends_with_four_if_no_worker_may_run_a_subscription(sound: Any) -> None:
    """The store has another version than every living worker, and the lag grows."""
    sound.query(
        f"INSERT INTO redrive_workers (owner, version, started_at, seen_at, runs, waits) "
        f"VALUES ({OWNER}, '1', 1, 9e9, '{{\"charge\": 1}}', '{{\"charge\": \"another version\"}}')"
    )
    assert check(sound, "status") == (4, [("standby", "charge", None)])
    said = " ".join(sound.redrive("status", "--store", "shop.db").out.split())
    assert "h:1 does not run charge: another version" in said


def test_status_and_doctor_show_due_letters_without_a_worker(sound: Any) -> None:
    sound.append(1, -2, 4, 8, 16)
    assert sound.redrive("run", "shop:app", "--until-idle").code == 0
    sound.query("UPDATE redrive_letters SET state = 'retrying', due_at = 1.0 WHERE state = 'dead'")
    said = " ".join(sound.redrive("status", "--store", "shop.db").out.split())
    assert "charge: 1 letter is due, the first for " in said and "no worker runs it; start a worker" in said
    found = [
        one for one in sound.redrive("doctor", "--json", "--store", "shop.db").json if one["check"] == "due letters"
    ]
    assert [(one["state"], one["subscription"]) for one in found] == [("warning", "charge"), ("warning", "revenue")]


def test_owner_without_a_sign_of_life_is_silent_and_not_running_or_stopped(sound: Any) -> None:
    """A worker that cannot write to the store cannot write down that it is halted."""
    sound.query(f"UPDATE redrive_progress SET owner = {OWNER}, lease_until = 5" + ONE_OF_TWO)
    found = {one["subscription"]: one for one in sound.redrive("status", "--json", "--store", "shop.db").json}
    assert (found["charge"]["state"], found["charge"]["owner"]) == ("silent", None)
    assert found["charge"]["silent_owner"] == "h|b|n|1|2|3" and found["charge"]["silent_seconds"] > 60
    assert (found["revenue"]["state"], found["revenue"]["silent_seconds"]) == ("stopped", None)
    said = " ".join(sound.redrive("status", "--store", "shop.db").out.split())
    assert "charge: its owner h:1 has shown no sign of life for" in said
    assert check(sound, "status") == (4, [("silent", "charge", None)])
    (lease,) = [one for one in sound.redrive("doctor", "--json", "--store", "shop.db").json if one["check"] == "lease"]
    assert "cannot write to the store" in lease["advice"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A store whose only event is applied."""
    path = str(tmp_path / "s.db")
    app = App(path)

    @app.projection(app.log("orders"))
    def totals(event: Event[Any], tx: Tx) -> None: ...

    app.log("orders").append("order.placed", {})
    app.run(until_idle=True)
    app.close()
    return path


def test_status_and_doctor_show_a_full_disk(inside: Any, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters were written before the disk was full, and say that all is well."""
    usage = shutil.disk_usage(Path(file).parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
    said = " ".join(inside("status", "--store", file).out.split())
    assert "4.1 kB of" in said and "make room now" in said
    found = {one["check"]: one for one in inside("doctor", "--json", "--store", file).json}
    assert found["free space"]["state"] == "problem"
    assert found["subscriptions"]["state"] == "warning" and "logs of the workers" in found["subscriptions"]["advice"]
    for line in CHECKS:
        answer = inside(*line, "--check", "--json", "--store", file)
        assert (answer.code, [need["check"] for need in answer.json["needs"]]) == (4, ["free space"])


def test_doctor_writes_to_the_store_to_see_whether_it_can(file: str) -> None:
    """A quota, or what is kept for root: the disk has room, but not for us. Here no file may grow beyond 100 kB."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE mine (data BLOB)")
        connection.execute("INSERT INTO mine VALUES (zeroblob(200000))")
        connection.commit()
        done = subprocess.run(
            [sys.executable, "-m", "redrive.cli", "doctor", "--store", file], capture_output=True, text=True,
            timeout=60, check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert (done.returncode, "writing: the store takes no writes:" in said) == (3, True), done
    assert "as far as the store could be written to" in said
