"""`redrive doctor`: every illness is found, named, and told its cure."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Reject, Tx, no_retry
from redrive.replay import machine
from redrive.replay.doctor import Finding, examine
from redrive.replay.machine import examine_machine, kind_of
from redrive.settings import Settings
from redrive.testing import Harness

DAY = 86_400.0


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The doctor warns of a store in memory, and only what else it says is meant here."""
    return on_disk


@pytest.fixture
def store(tmp_path: Path) -> str:
    """One dead letter with a follower, everything else applied."""
    path = str(tmp_path / "s.db")
    app = App(path)
    orders = app.log("orders")

    @app.projection(orders, retry=no_retry)
    def totals(event: Event[Any], tx: Tx) -> None:
        if event.key == "bad":
            raise Reject("no")

    for key in ("a", "bad", "bad", "b"):
        orders.append("order.placed", {}, key=key)
    app.run(until_idle=True)
    app.close()
    return path


def damage(store: str, sql: str) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute(sql)
        connection.commit()


def findings(answer: Any) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in answer.json}


def test_a_healthy_store_says_what_was_looked_at(inside: Any, store: str) -> None:
    answer = inside("doctor", "--store", store)
    assert answer.code == 0, answer.err
    assert max(map(len, answer.out.splitlines())) <= 80
    found = findings(inside("doctor", "--store", store, "--json"))
    assert {"file system", "free space", "write-ahead log", "write lock", "durability", "sqlite", "pages", "clock",
            "settings", "subscriptions"} == set(found)  # fmt: skip
    assert [one["state"] for name, one in found.items() if name not in ("file system", "free space")] == ["ok"] * 8
    assert list(found["clock"]) == ["check", "state", "message", "advice", "subscription"]


FUTURE = "(SELECT CAST(strftime('%s', 'now') AS REAL) + 3600)"
LONG_AGO = "(SELECT CAST(strftime('%s', 'now') AS REAL) - 900000)"
ILLNESSES = {
    "halted": ("problem", "UPDATE redrive_progress SET halted = 'the disk is full'", "the disk is full"),
    "paused": ("warning", "UPDATE redrive_progress SET paused = 1", "redrive resume totals"),
    "clock": ("problem", f"UPDATE redrive_progress SET settled_at = {FUTURE}", "set the clock"),
    "lease": ("warning", "UPDATE redrive_progress SET owner = 'h|b|n|1|2|3', lease_until = 5", "owner h:1 has been"),
    "dead letters": ("warning", f"UPDATE redrive_letters SET parked_at = {LONG_AGO}", "1 letter is dead for more"),
    "crashes": ("warning", "INSERT INTO redrive_inflight VALUES (1, 9, 0, 2, '', 0)", "at position 9 was alone"),
    "unowned": ("warning", f"UPDATE redrive_progress SET position = 1, lease_set_at = {LONG_AGO}", "nobody has run it"),
    "late letters": (
        "warning", "UPDATE redrive_progress SET owner = 'h|b|n|1|2|3', lease_until = 9e9; "
        "UPDATE redrive_letters SET state = 'retrying', due_at = 1.0", "1 letter is due",  # the other waits behind it
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", ILLNESSES)
def test_an_illness_is_found_and_told_its_cure(inside: Any, store: str, check: str) -> None:
    state, statements, told = ILLNESSES[check]
    for statement in statements.split("; "):
        damage(store, statement)
    answer = inside("doctor", "--store", store, "--json")
    found = findings(answer)[check]
    assert answer.code == (3 if state == "problem" else 0)
    assert found["state"] == state
    assert told in found["message"] + found["advice"]
    assert found["advice"]
    assert found["subscription"] == (None if check == "clock" else "totals")
    assert check in inside("doctor", "--store", store).out


def test_a_page_that_nobody_reads_is_found_to_be_damaged(inside: Any, store: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("CREATE TABLE mine (n INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO mine (text) VALUES (?)", [("x" * 1000,)] * 50)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    with open(store, "r+b") as file:
        file.seek((pages - 3) * 4096)
        file.write(b"\xff" * 100)
    answer = inside("doctor", "--store", store, "--json")
    assert answer.code == 3
    assert findings(answer)["pages"]["state"] == "problem"
    assert "backup" in findings(answer)["pages"]["advice"]
    assert max(map(len, inside("doctor", "--store", store).out.splitlines())) <= 80


def test_the_pages_of_a_large_file_are_left_to_its_owner(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PAGES_READ_MAX", 1)
    app = App(store)
    found = {one.check: one for one in examine(app.runtime.store, app.runtime.env, Settings())}
    app.close()
    assert (found["pages"].state, "not looked at" in found["pages"].message) == ("ok", True)
    assert "quick_check" in found["pages"].advice


def test_who_waits_behind_a_dead_letter_is_not_late(inside: Any, store: str) -> None:
    damage(store, "UPDATE redrive_progress SET owner = 'h|b|n|1|2|3', lease_until = 9e9")
    damage(store, "UPDATE redrive_letters SET due_at = 1.0")  # the head is dead, its follower was parked long ago
    assert "late letters" not in findings(inside("doctor", "--store", store, "--json"))


def test_a_subscription_that_the_program_lost_is_an_orphan(inside: Any, store: str, tmp_path: Path) -> None:
    (tmp_path / "emptied.py").write_text("from redrive import App\napp = App('s.db')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        found = findings(inside("doctor", "--app", "emptied:app", "--json"))
    assert found["orphan"]["subscription"] == "totals"
    assert "redrive rename totals NEW" in found["orphan"]["advice"]
    assert "orphan" not in findings(inside("doctor", "--store", store, "--json"))


def test_full_lanes_are_a_problem_and_nearly_full_ones_a_warning() -> None:
    app = App("unused.db")
    orders = app.log("orders")

    @app.projection(orders, retry=no_retry)
    def totals(event: Event[Any], tx: Tx) -> None:
        raise Reject("no")

    with Harness(app) as harness:
        for _ in range(8):
            harness.append(orders, "o", {}, key="k")
        harness.run_until_idle()

        def lane(most: int) -> list[tuple[str, str]]:
            seen = examine(app.runtime.store, app.runtime.env, Settings(lane_max=most))
            return [(one.state, one.message) for one in seen if one.check == "lane"]

        assert lane(8) == [("problem", "totals: lane 'k' holds 8 letters of 8: intake has stopped")]
        assert lane(10) == [("warning", "totals: lane 'k' holds 8 letters of 10")]
        assert lane(11) == []


def test_old_letters_are_found_by_the_stores_clock() -> None:
    app = App("unused.db")
    orders = app.log("orders")

    @app.projection(orders, retry=no_retry)
    def totals(event: Event[Any], tx: Tx) -> None:
        raise Reject("no")

    def checks() -> set[str]:
        seen: list[Finding] = list(examine(app.runtime.store, app.runtime.env, Settings()))
        return {one.check for one in seen if one.subscription}

    with Harness(app) as harness:
        harness.append(orders, "o", {})
        harness.run_until_idle()
        assert checks() == set()
        harness.clock.advance(6 * DAY)
        assert checks() == set()
        harness.clock.advance(2 * DAY)
        assert checks() == {"dead letters"}


def test_who_holds_the_write_lock_too_long_is_a_problem(
    inside: Any, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_BUSY_TIMEOUT", "50ms")
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = inside("doctor", "--store", store, "--json")
    assert (answer.code, findings(answer)["write lock"]["state"]) == (3, "problem")


@pytest.mark.parametrize("variable", ["REDRIVE_LESE", "REDRIVE_SUBSCRIPTIONS__TOTALS__ORDER"])
def test_unknown_settings_are_a_problem_and_the_rest_is_looked_at(
    inside: Any, store: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1s")
    answer = inside("doctor", "--store", store, "--json")
    assert answer.code == 3
    assert findings(answer)["settings"]["state"] == "problem"
    assert variable in findings(answer)["settings"]["message"]
    assert findings(answer)["clock"]["state"] == "ok"
    assert [one["check"] for one in answer.json].count("settings") == 1


@pytest.mark.parametrize("wrong", ["REDRIVE_LESE", None])
def test_a_store_that_the_settings_file_names_is_looked_at_though_a_setting_is_wrong(
    inside: Any, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "redrive.toml").write_text(f"store = {store!r}\n" + ("" if wrong else "leas = '5s'\n"))
    if wrong:
        monkeypatch.setenv(wrong, "1s")
    found = findings(inside("doctor", "--json"))
    assert (found["settings"]["state"], found["clock"]["state"]) == ("problem", "ok")


def test_settings_of_a_subscription_that_nobody_has_are_mentioned(
    inside: Any, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_SUBSCRIPTIONS__TOTAL__TIMEOUT", "1s")
    found = findings(inside("doctor", "--store", store, "--json"))
    assert (found["settings"]["state"], "did you mean `totals`?" in found["settings"]["message"]) == ("warning", True)


def test_a_file_that_is_no_store_is_a_problem_and_no_store_wrong_usage(inside: Any, tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_text("not a database at all")
    answer = inside("doctor", "--store", str(tmp_path / "junk.db"), "--json")
    assert answer.code == 3
    assert [one["check"] for one in answer.json] == ["store", "file system", "free space", "write-ahead log"]
    assert inside("doctor", "--store", str(tmp_path / "none.db")).code == 2
    assert not (tmp_path / "none.db").exists()


MOUNTS = """
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:20 / /srv rw,relatime shared:1 - nfs4 host:/x rw
23 22 0:21 / /srv/fast\\040disk rw - tmpfs tmpfs rw
24 21 0:22 / /box rw - overlay overlay rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "state"),
    [
        ("/var/shop.db", "ext4", "ok"),
        ("/srvx/shop.db", "ext4", "ok"),
        ("/srv/a/shop.db", "nfs4", "problem"),
        ("/srv/fast disk/shop.db", "tmpfs", "problem"),
        ("/box/shop.db", "overlay", "warning"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_point(path: str, kind: str, state: str) -> None:
    assert kind_of(path, MOUNTS) == kind
    assert kind_of(path, "") is None


def test_a_network_file_system_is_a_problem(tmp_path: Path) -> None:
    mounts = f"1 1 0:1 / {tmp_path} rw - nfs host:/x rw"
    found = {check: (state, advice) for check, state, _, advice in examine_machine(f"{tmp_path}/s.db", 4000, mounts)}
    assert found["file system"][0] == "problem"
    assert "local disk" in found["file system"][1]


def test_a_long_write_ahead_log_is_mentioned(tmp_path: Path) -> None:
    (tmp_path / "s.db-wal").write_bytes(bytes(10 * 4096))
    state = {check: state for check, state, *_ in examine_machine(f"{tmp_path}/s.db", 1, "")}
    assert state["write-ahead log"] == "warning"


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    sizes: Callable[[int], Any] = lambda free: type("Usage", (), {"free": free, "total": 10**12})  # noqa: E731
    for free, expected in ((10**7, "problem"), (5 * 10**8, "warning"), (10**11, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: sizes(free))
        assert {check: state for check, state, *_ in examine_machine(f"{tmp_path}/s.db", 1, "")}[
            "free space"
        ] == expected
