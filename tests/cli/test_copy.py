"""`redrive copy` from the outside: what it says, what it refuses, and a process that is killed in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.testing.failpoints import VARIABLE


@pytest.fixture
def target(shop: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The other kind of store than the shop's."""
    if shop.url is not None:
        yield str(tmp_path / "moved.db")
        return
    databases = request.getfixturevalue("postgres")
    url = databases.make()
    yield url
    databases.drop(url)


def stocked(shop: Any) -> None:
    """Two dead letters, one of them charged in the end, and orders that are applied."""
    shop.append(1, -2, 3, 4, -5, 6)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    shop.write(strict=False)
    assert shop.redrive("dlq", "replay", "-s", "charge", "--key", "k1", "--app", "shop:app", "--yes").code == 0


def test_a_shop_moves_and_runs_on(shop: Any, target: str) -> None:
    stocked(shop)
    before = shop.redrive("verify", "--store", "shop.db", "--json").json
    answer = shop.redrive("copy", "--from", "shop.db", "--to", target, "--json", REDRIVE_STORE="another.db")
    assert answer.code == 0, answer.err
    said = answer.json
    assert said["subscriptions"] == before and said["audit"]["sound"] and said["rebuild"] == ["revenue"]
    assert said["copied"] > 0 and not said["resumed"] and said["rows"] == said["copied"] + 1, "its own audit row"
    assert shop.redrive("run", "shop:app", "--until-idle", "--store", target).code == 1, "revenue has no table yet"
    assert shop.redrive("rebuild", "revenue", "--app", "shop:app", "--store", target, "--yes").code == 0
    assert shop.redrive("append", "orders", "order.placed", '{"cents": 7}', "--key", "k9", "--store", target).code == 0
    assert shop.redrive("run", "shop:app", "--until-idle", "--store", target).code == 0
    after = {one["subscription"]: one for one in shop.redrive("verify", "--store", target, "--json").json}
    assert all(one["sound"] for one in after.values())
    assert {name: one["applied"] + one["dead"] + one["retrying"] for name, one in after.items()} == {
        "revenue": 7, "charge": 7,
    }  # fmt: skip
    assert shop.redrive("verify", "--audit", "--store", target).code == 0


def test_it_says_what_it_did_and_what_is_left_to_do(shop: Any, target: str) -> None:
    stocked(shop)
    told = shop.redrive("copy", "--from", "shop.db", "--to", target).out
    assert "2 subscriptions, the same on both sides" in told and "each fits the one before it" in told
    assert "redrive rebuild revenue --app MODULE:APP" in told
    again = shop.redrive("copy", "--from", "shop.db", "--to", target)
    assert again.code == 0 and "nothing, it was there already" in again.out


def test_with_tables_moved_nobody_waits_for_a_rebuild(shop: Any, target: str) -> None:
    stocked(shop)
    answer = shop.redrive("copy", "--from", "shop.db", "--to", target, "--tables-moved", "--json")
    assert answer.json["rebuild"] == []
    answer = shop.redrive("run", "shop:app", "--until-idle", "--store", target)
    assert answer.code == 1 and "table 'revenue' is gone" in answer.err  # it was not moved
    there = App(target if "://" in target else shop.folder / target)
    with there.transaction() as tx:
        tx.execute("CREATE TABLE revenue (key TEXT PRIMARY KEY, cents INTEGER)")
    there.close()
    assert shop.redrive("run", "shop:app", "--until-idle", "--store", target).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 4, 12, 22])
def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(shop: Any, target: str, at: int) -> None:
    stocked(shop)
    before = shop.redrive("verify", "--store", "shop.db", "--json").json
    line = [sys.executable, "-m", "redrive.cli", "copy", "--from", shop.store, "--to", target]
    killed = subprocess.run(
        line, cwd=shop.folder, env=shop._env() | {VARIABLE: f"operator.before_commit:{at}:kill"}, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    if at > 1:
        refused = shop.redrive("status", "--store", target)
        assert refused.code == 2 and "is not finished" in refused.err
    answer = shop.redrive("copy", "--from", "shop.db", "--to", target, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["resumed"] == (at > 1) and answer.json["subscriptions"] == before
    assert shop.redrive("verify", "--audit", "--store", target).code == 0


def test_somebody_who_looks_sees_a_bar(shop: Any, target: str) -> None:
    stocked(shop)
    answer = shop.at_terminal("copy", "--from", "shop.db", "--to", target, answer="")
    assert answer.code == 0 and "100%" in answer.out


def test_a_running_worker_is_in_the_way(shop: Any, target: str) -> None:
    stocked(shop)
    shop.work()
    refused = shop.redrive("copy", "--from", "shop.db", "--to", target)
    assert refused.code == 2 and "stop every worker and producer first" in refused.err


def test_what_cannot_be_is_refused_before_anything_is_made(shop: Any, target: str, tmp_path: Path) -> None:
    shop.append(1)
    same = shop.redrive("copy", "--from", "shop.db", "--to", "shop.db")
    assert same.code == 2 and "are the same store" in same.err
    missing = shop.redrive("copy", "--from", "none.db", "--to", "new.db")
    assert missing.code == 2 and "there is no store at none.db" in missing.err
    assert not (tmp_path / "new.db").exists() and not (tmp_path / "none.db").exists()
    shop.redrive("append", "mine", "thing", "1", "--create", "--store", target)
    full = shop.redrive("copy", "--from", "shop.db", "--to", target)
    assert full.code == 2 and "is not empty: it holds 1 logs, 1 events" in full.err
    assert len(shop.redrive("events", "--store", target, "--json").out.splitlines()) > 0


def test_a_password_is_never_shown(shop: Any) -> None:
    shop.append(1)
    refused = shop.redrive("copy", "--from", "shop.db", "--to", "postgresql://ada:secret@127.0.0.1:1/shop")
    assert refused.code == 1 and "secret" not in refused.err + refused.out
