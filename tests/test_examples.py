"""The examples are programs that people copy: each is run as it is, and the README shows exactly these files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any
from xml.etree import ElementTree

import psycopg
import pytest
import redis

from redrive.testing.brokers import valkey
from redrive.testing.kafka import Kafka, write

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SECONDS_MAX = 30.0  # for a program that takes a second, on a machine that is busy with the other tests

# What each program prints when it is run twice in the same folder: the second run adds to the first, once.
PRINTED = {
    "03_keyed_state.py": ["account.locked ada\n", "account.locked ada\n"],
    "04_typed_events.py": ["32.50 EUR\n9.99 USD\n", "65.00 EUR\n19.98 USD\n"],
    "08_saga.py": [
        "00:00 order-1 order.placed\n"
        "00:00 order-2 order.placed\n"
        "00:10 order-1 payment.received\n"
        "00:10 order-1 order.confirmed\n"
        "00:30 order-2 payment.overdue\n"
        "00:30 order-2 order.cancelled\n"
        "00:30 order-2 payment.received\n"
        "00:30 order-2 payment.refunded\n"
    ],
    "06_batch_projection.py": ["{'/': 2000, '/about': 1000}\n", "{'/': 4000, '/about': 2000}\n"],
}


def environment(store: str | None = None) -> dict[str, str]:
    """That of a user: no option of ours is set, but for the store if it is not the program's own file."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    return found if store is None else found | {"REDRIVE_STORE": store}


def run(name: str, folder: Path, store: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def run_until(name: str, folder: Path, store: str | None, reached: Callable[[], bool]) -> None:
    """Run a program that never ends by itself, and end it the way an operator does."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, env=environment(store), stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(int(SECONDS_MAX / 0.05)):
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                if reached():
                    break
            else:
                raise AssertionError(f"{name} ended by itself with {process.returncode}")
        assert reached()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()


def rows(file: Path, store: str | None, sql: str) -> list[tuple[Any, ...]]:
    """What is in a user's table; nothing while the program has not made it."""
    if store is not None:
        with psycopg.connect(store) as server:
            try:
                return server.execute(sql.replace("redrive_", "redrive.").encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                return []
    connection = sqlite3.connect(file)
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise
    finally:
        connection.close()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should_and_once_more_when_it_is_run_again(
    name: str, tmp_path: Path, backend: str | None
) -> None:
    for expected in PRINTED[name]:
        done = run(name, tmp_path, backend)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_sqlalchemy_writes_the_statements_of_a_projection(tmp_path: Path, postgres_url: str) -> None:
    for cents in (5200, 10400):
        done = run("07_sqlalchemy.py", tmp_path, postgres_url)
        assert (done.returncode, done.stdout) == (0, f"[('2026-11-16', {cents})]\n"), done.stderr
    letters = rows(tmp_path / "unused.db", postgres_url, "SELECT state, error_type FROM redrive_letters")
    assert letters == [("retrying", "psycopg.errors.NotNullViolation")] * 2


def test_the_projection_counts_each_order_once_over_two_runs(tmp_path: Path, backend: str | None) -> None:
    for orders in (1, 2):
        run_until(
            "01_projection.py",
            tmp_path,
            backend,
            lambda: rows(tmp_path / "shop.db", backend, "SELECT sum(cents) FROM revenue") == [(4200 * orders,)],  # noqa: B023
        )
    assert len(rows(tmp_path / "shop.db", backend, "SELECT * FROM redrive_events")) == 2


def test_the_handler_emits_a_receipt_and_keeps_what_it_rejects(tmp_path: Path, backend: str | None) -> None:
    file = tmp_path / "shop.db"
    letters = "SELECT key, state, reason FROM redrive_letters ORDER BY id"
    run_until(
        "02_handler.py", tmp_path, backend, lambda: rows(file, backend, letters) == [("customer-2", "dead", "rejected")]
    )
    behind = [("customer-2", "dead", "rejected"), ("customer-2", "retrying", "behind_head")]
    run_until("02_handler.py", tmp_path, backend, lambda: rows(file, backend, letters) == behind)
    receipts = rows(file, backend, "SELECT key, type FROM redrive_events WHERE type = 'payment.charged'")
    assert receipts == [("customer-1", "payment.charged")] * 2


def test_a_refused_order_leaves_neither_a_row_nor_an_event(tmp_path: Path, backend: str | None) -> None:
    done = run("05_transaction.py", tmp_path, backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "order-2 was refused: too expensive",
        "[('order-1', 4200, 'shipped')]",
        "['order-1']",
    ]


def test_fastapi_applies_what_its_requests_append(tmp_path: Path, backend: str | None) -> None:
    """In a process of its own: a class marked with @redrive.event claims its name in the whole process."""
    client = Path(__file__).with_name("fastapi_client.py")
    done = subprocess.run(
        [sys.executable, str(client), str(EXAMPLES / "fastapi_app.py")],
        cwd=tmp_path,
        env=environment(backend),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "positions": [1, 2, 3, 4],
        "refused": [422, 422],
        "revenue": {"ada": 201, "bob": 201},
        "signals_untouched": True,
    }


def test_the_example_for_pytest_passes(tmp_path: Path) -> None:
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(EXAMPLES / "test_shop.py")]
    done = subprocess.run(
        [sys.executable, *arguments, "-c", "/dev/null", "--rootdir", str(EXAMPLES)],
        cwd=tmp_path,
        env=environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0 and re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "a harness must not touch the app's own store"


def test_payments_come_from_kafka_and_balances_go_to_redis(
    tmp_path: Path, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/crash/test_chain_kills.py kills it at every step of the way."""
    cluster = Kafka()
    cluster.make("payments", 2)
    paid = [("ada", 100), ("bob", 30), ("ada", 20), ("ada", 3)]
    write(cluster.bootstrap, [
        {"topic": "payments", "key": key, "value": json.dumps({"cents": cents})} for key, cents in paid
    ])  # fmt: skip
    with valkey() as url, redis.Redis.from_url(url) as server:
        server.delete("balances:0", "balances:1")
        monkeypatch.setenv("KAFKA", cluster.bootstrap)
        monkeypatch.setenv("REDIS", url)

        def published(key: str) -> list[int]:
            entries = [fields for name in ("balances:0", "balances:1") for _, fields in server.xrange(name)]
            return [json.loads(one[b"data"])["cents"] for one in entries if one[b"ce_partitionkey"] == key.encode()]

        run_until(
            "09_broker_to_broker.py", tmp_path, backend,
            lambda: (published("ada"), published("bob")) == ([100, 120, 123], [30]),
        )  # fmt: skip
    cluster.close()
    accounts = rows(tmp_path / "bank.db", backend, "SELECT name, cents FROM accounts ORDER BY name")
    assert accounts == [("ada", 123), ("bob", 30)]


def outage(folder: Path, **how: Any) -> tuple[dict[str, Any], Any]:
    """outage.py, as it is: what it has, and what it measured at servers of its own."""
    example = runpy.run_path(str(EXAMPLES / "outage.py"))
    story = example["Story"](**how)
    asyncio.run(story.run(folder))
    return example, story


def check_arrived(story: Any) -> None:
    """Each sink got what the producer appended, once and in the order of each key. Outside of the database the promise
    is at least once: what comes twice is left out here only if its first reply may be lost, and counts else.
    """
    keys = {id: key for id, key, _ in story.appended}
    expected = {key: [id for id in keys if keys[id] == key] for key in keys.values()}
    for name, arrived in story.order.items():
        excused = story.unanswered if name == "warehouse" else ()
        got: dict[str, list[str]] = {key: [] for key in expected}
        for number, id in enumerate(arrived):
            if id not in excused or id not in arrived[:number]:
                got[keys[id]].append(id)
        assert got == expected, name


def test_a_sink_that_was_down_for_ten_seconds_is_not_drowned_and_nobody_else_notices(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The whole story over real connections; tests/runner/test_outage.py has it on virtual time."""
    example, story = outage(tmp_path)
    assert (story.rate, story.down_for, example["CAPACITY"], len(story.appended)) == (100.0, 10.0, 150, 2_000)
    check_arrived(story)
    for name in ("crm", "search"):
        # Not the maximum: one hiccup of a busy machine must not fail this. The outage lasts for half of the events.
        assert quantiles(story.lags[name], n=20)[-1] < 1.0, f"{name}: the 95th percentile of its lag"
    assert 0 < story.peak <= example["CAPACITY"]
    assert story.refused["warehouse"] == [], "it was never asked for more than it can take"
    assert 0 < story.recovered_after < 60
    healthy = max(story.lags["crm"] + story.lags["search"])
    record_property(
        "outage",
        f"healthy sinks at most {healthy:.2f} s behind; the one that was down met at most {story.peak} requests a "
        f"second and had everything after {story.recovered_after:.1f} s",
    )
    assert story.letters == 0


def test_without_protection_the_sink_that_is_back_meets_a_storm(tmp_path: Path) -> None:
    """What the test above is worth."""
    example, story = outage(tmp_path, protected=False)
    assert story.peak > example["CAPACITY"]
    assert len(story.refused["warehouse"]) > example["CAPACITY"]


def test_a_sink_that_is_down_and_says_so_gets_nothing_twice(tmp_path: Path) -> None:
    example, story = outage(tmp_path, rate=40.0, down_for=2.0, down_at=1.0, seconds=4.0, gone=False)
    assert story.unanswered == set()
    check_arrived(story)
    assert story.letters == 0
    assert 0 < len(story.refused["warehouse"]) < 40, "it is left alone while it is down"
    bars = ElementTree.fromstring(example["drawn"]([story])).findall("{*}rect[@fill='#2a7f4f']")
    drawn = sum(float(bar.attrib["height"]) for bar in bars) / example["UNIT"]
    assert round(drawn) == sum(map(len, story.arrived.values()))


def shown_programs() -> list[tuple[str, str]]:
    """The code blocks of the README that say which file they show."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"<!-- (examples/\S+) -->\n+```python\n(.*?)```", text, re.DOTALL)


def test_the_readme_shows_the_examples_as_they_are() -> None:
    shown = shown_programs()
    assert [name for name, _ in shown][:2] == ["examples/01_projection.py", "examples/02_handler.py"]
    for name, block in shown:
        assert block == (ROOT / name).read_text(encoding="utf-8"), f"{name} and the README differ"


def test_every_python_block_of_the_readme_is_an_example() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("```python") == len(shown_programs())


def test_every_example_is_run_by_a_test() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in here] == []
