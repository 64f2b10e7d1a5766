"""3,000 dead letters, two causes, one of them fixed already: from the first look to the proof, by commands alone.

On Postgres there are fewer: what is different there does not grow with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import App

PROGRAM = """
from pathlib import Path
from redrive import App, retry

app = App("shop.db")
payments = app.log("payments")

@app.projection(payments, tables={"balances": "account TEXT PRIMARY KEY, cents INTEGER, last INTEGER"},
                retry=retry(attempts=1))
def balances(event, tx):
    data = event.data
    if data["currency"] not in ("EUR", *(["USD"] if Path("usd-is-supported").exists() else [])):
        raise ValueError(f"unknown currency {data['currency']} of payment {data['number']}")
    cents = data["cents"] + 0
    tx.execute("INSERT INTO balances VALUES (?, ?, ?) ON CONFLICT (account) DO UPDATE SET cents = balances.cents + "
               "excluded.cents, last = excluded.last WHERE excluded.last > balances.last",
               (event.key, cents, data["number"]))
"""
BAD = {"sqlite": (2600, 400), "postgres": (180, 30)}  # how many accounts begin with each kind of bad payment
EACH = 3  # payments per account


def payment(number: int, account: int, turn: int, usd: int) -> dict[str, Any]:
    """The first payment of an account is in dollars, or has its amount as a text; the others are sound."""
    cents: Any = (number * 7) % 1000
    if turn == 0 and account >= usd:
        cents = f"{cents}"
    return {"number": number, "cents": cents, "currency": "USD" if turn == 0 and account < usd else "EUR"}


class Night:
    """The shop's folder, its worker, and somebody on call."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.url, self.store = folder, url, url or "shop.db"
        self.usd, self.text = BAD["postgres" if url else "sqlite"]
        self.accounts = self.usd + self.text
        self.rate = f"{self.usd // 5}/s"  # somebody must have time to kill it
        (folder / "shop.py").write_text(PROGRAM.replace("shop.db", self.store))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.env = kept | {"REDRIVE_STORE": self.store, "PYTHONDONTWRITEBYTECODE": "1", "USER": "ada"}
        self.workers: list[subprocess.Popen[str]] = []

    def fill(self) -> dict[str, tuple[int, int]]:
        """Append everything; what the balances must be in the end, worked out without redrive."""
        expected: dict[str, tuple[int, int]] = {}
        items = []
        for turn in range(EACH):
            for account in range(self.accounts):
                number = turn * self.accounts + account
                data, key = payment(number, account, turn, self.usd), f"account-{account:04d}"
                items.append({"type": "payment.made", "data": data, "key": key})
                cents, _ = expected.get(key, (0, 0))
                expected[key] = (cents + int(data["cents"]), number)
        app = App(self.url or str(self.folder / "shop.db"))
        app.log("payments").append_many(items)
        app.close()
        return expected

    def start(self, *line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "redrive.cli", *line], cwd=self.folder, env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def work(self) -> subprocess.Popen[str]:
        worker = self.start("run", "shop:app")
        self.workers.append(worker)
        return worker

    def redrive(self, *line: str, code: int = 0) -> str:
        process = self.start(*line)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, (line, process.returncode, out, err)
        assert all(len(text) <= 80 for text in out.splitlines()), out
        return out

    def json(self, *line: str, code: int = 0) -> Any:
        return json.loads(self.redrive_raw(*line, "--json", code=code))

    def redrive_raw(self, *line: str, code: int = 0) -> str:
        process = self.start(*line)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, (line, process.returncode, out, err)
        return out

    def until(self, sql: str, value: int) -> None:
        """Wait until a count in the store has reached a value."""
        give_up = time.monotonic() + 120  # seconds: a busy machine
        while self.count(sql) < value:
            assert time.monotonic() < give_up, f"{sql} is {self.count(sql)}, not {value}"
            threading.Event().wait(0.02)  # another process works

    def count(self, sql: str) -> int:
        return int(self.rows(sql)[0][0])

    def balances(self) -> dict[str, tuple[int, int]]:
        rows = self.rows("SELECT account, cents, last FROM balances")
        return {account: (cents, last) for account, cents, last in rows}

    def rows(self, sql: str) -> list[Any]:
        """What the driver alone sees."""
        if self.url:
            with psycopg.connect(self.url, autocommit=True) as server:
                return server.execute(re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql).encode()).fetchall()
        with contextlib.closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return connection.execute(sql).fetchall()

    def end(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=30)


@pytest.fixture
def night(tmp_path: Path, backend: str | None) -> Any:
    night = Night(tmp_path, backend)
    yield night
    night.end()


APPLIED = "SELECT count(*) FROM redrive_operation_letters WHERE result = 'applied' AND operation = 2"


def test_from_the_first_look_to_the_proof(night: Night) -> None:
    expected = night.fill()
    worker = night.work()
    night.until("SELECT count(*) FROM redrive_letters", night.accounts * EACH)  # each account: one dead, two behind it

    # What broke, and who waits behind it?
    usd, text = night.json("dlq")
    assert [(one["dead"], one["lanes"]) for one in (usd, text)] == [(night.usd, night.usd), (night.text, night.text)]
    assert "unknown currency" in usd["error_message"]
    assert text["error_type"] == "TypeError"
    assert text["waiting"] == night.text * (EACH - 1)
    shown = night.redrive("dlq")
    assert f"{night.usd:,} letters" in shown
    assert usd["fingerprint"][:8] in shown
    first = night.json("dlq", "list", "--fingerprint", text["fingerprint"][:6], "--limit", "1")[0]
    assert (first["waiting"], first["key"]) == (EACH - 1, f"account-{night.usd:04d}")
    assert "payment.made" in night.redrive("dlq", "show", str(first["id"]))

    # The first cause is fixed in the new version of the program: rehearse it, and nothing is changed by that.
    (night.folder / "usd-is-supported").touch()
    before = night.count("SELECT count(*) FROM redrive_attempts")
    of_usd = ["--fingerprint", usd["fingerprint"]]
    tried = night.json("dlq", "replay", *of_usd, "--limit", "50", "--rehearse", "--lane", "--app", "shop:app")
    assert Counter(one["result"] for one in tried["letters"]) == {"would succeed": 50 * EACH}
    of_text = ["--fingerprint", text["fingerprint"]]
    tried = night.json("dlq", "replay", *of_text, "--limit", "5", "--rehearse", "--app", "shop:app", code=3)
    assert {one["result"] for one in tried["letters"]} == {"would fail the same way"}
    assert night.count("SELECT count(*) FROM redrive_attempts") == before
    assert night.balances() == {}

    # One letter first, then all of the cause, at a rate; the command is killed, then the worker.
    first_usd = night.json("dlq", "list", *of_usd, "--limit", "1")[0]["id"]
    assert night.redrive("dlq", "replay", str(first_usd), "--wait") == "operation 1: 1 selected = 1 applied\n"
    replay = night.start("dlq", "replay", *of_usd, "--rate", night.rate, "--wait", "--yes", "--reason", "usd supported")
    night.until(APPLIED, night.usd // 20)
    replay.kill()
    replay.communicate(timeout=30)
    worker.kill()
    worker.communicate(timeout=30)
    if night.json("ops", "2")["state"] == "interrupted":
        night.redrive("ops", "resume", "2")
    operation = night.json("ops", "2")
    done = operation["applied"]
    assert operation["selected"] == night.usd - 1
    assert operation["applied"] + operation["waiting"] == night.usd - 1
    assert 0 < done < night.usd - 1
    night.work()
    night.until(APPLIED, night.usd - 1)
    receipt = night.json("ops", "2")
    assert (receipt["state"], receipt["selected"], receipt["applied"]) == ("done", night.usd - 1, night.usd - 1)
    assert (receipt["failed"], receipt["skipped"], receipt["who"], receipt["reason"]) == (0, 0, "ada", "usd supported")

    # The second cause is bad data: a patch for each, from a file that was exported and repaired.
    night.redrive("dlq", "export", *of_text, "--out", "letters.jsonl")
    lines = [json.loads(line) for line in (night.folder / "letters.jsonl").read_text().splitlines()]
    assert len(lines) == night.text
    patched, *rest = lines
    cents = int(patched["data"]["cents"])
    shown = night.redrive(
        "dlq",
        "edit",
        str(patched["id"]),
        "--patch",
        json.dumps({"cents": cents}),
        "--reason",
        "amount as text",
        "--yes",
    )
    assert f'-  "cents": "{cents}",' in shown
    assert f'+  "cents": {cents},' in shown
    for line in rest:
        line["data"]["cents"] = int(line["data"]["cents"])
    (night.folder / "repaired.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rest))
    answer = night.redrive("dlq", "import", "repaired.jsonl", "--reason", "amount as text", "--yes")
    assert f"{night.text - 1} selected = {night.text - 1} applied" in answer
    answer = night.redrive("dlq", "replay", *of_text, "--wait", "--yes")
    assert f"{night.text} selected = {night.text} applied" in answer

    # Over: nothing is dead, nothing waits, the books add up, and the balances are what they must be.
    night.until("SELECT count(*) FROM redrive_letters WHERE state = 'applied'", night.accounts * EACH)
    assert night.redrive("dlq") == "no dead letters\n"
    proof = night.json("verify", "--audit", "--app", "shop:app")
    (verdict,) = proof["subscriptions"]
    assert proof["audit"]["sound"]
    assert (verdict["sound"], verdict["applied"], verdict["pending"]) == (True, night.accounts * EACH, 0)
    assert night.balances() == expected
    night.redrive("dlq", "note", usd["fingerprint"], "usd supported since 1.2", "--resolved")
