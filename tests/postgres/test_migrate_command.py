"""`redrive migrate`: what it says and does, on a database and on a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg

from redrive import App
from redrive.store.postgres.migrate import STEPS
from redrive.store.sqlite.migrate import FORMAT

NEWEST = STEPS[-1].format


def redrive(*words: str, store: str) -> tuple[int, str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    done = subprocess.run(
        [sys.executable, "-m", "redrive.cli", *words, "--store", store],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_database_is_brought_up_to_date_once(postgres_url: str) -> None:
    assert redrive("status", store=postgres_url)[0] == 2  # looking makes no store
    code, said, _ = redrive("migrate", "--check", store=postgres_url)
    assert (code, f"none, this version needs {NEWEST}: redrive migrate" in said) == (3, True)
    code, said, _ = redrive("migrate", store=postgres_url)
    assert (code, f"none -> {NEWEST}" in said) == (0, True)
    code, said, _ = redrive("migrate", "--check", store=postgres_url)
    assert (code, f"{NEWEST}, up to date" in said) == (0, True)
    code, said, _ = redrive("migrate", "--json", store=postgres_url)
    found = json.loads(said)
    assert (code, found.pop("store")) == (0, postgres_url)
    assert found == {"before": NEWEST, "format": NEWEST, "steps": [], "missing": 0}
    assert redrive("status", store=postgres_url)[0] == 0


def test_the_statements_may_be_run_by_somebody_else(postgres_url: str) -> None:
    code, script, _ = redrive("migrate", "--sql", store=postgres_url)
    assert code == 0
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('redrive.meta')").fetchone() == (None,)  # it only printed them
        connection.execute(script.encode())
    assert redrive("migrate", "--check", store=postgres_url)[0] == 0
    assert redrive("migrate", "--sql", store=postgres_url)[1] == f"-- storage format {NEWEST}: nothing to do\n"
    app = App(postgres_url)
    app.log("orders").append("order.placed", {"cents": 1})
    app.close()


def test_a_file_is_up_to_date_because_it_was_opened(tmp_path: Path) -> None:
    store = str(tmp_path / "shop.db")
    assert redrive("migrate", store=store)[0] == 2
    assert not Path(store).exists()
    app = App(store)
    app.log("orders").append("order.placed", {"cents": 1})
    app.close()
    code, said, _ = redrive("migrate", "--check", store=store)
    assert (code, f"{FORMAT}, up to date" in said) == (0, True)
    assert redrive("migrate", "--check", "--sql", store=store)[0] == 2


def test_a_password_is_never_shown(postgres_url: str) -> None:
    secret = postgres_url.replace("postgres@", "postgres:hunter2@")
    nowhere = secret.replace("127.0.0.1:", "127.0.0.1:1")
    for words in (("migrate",), ("migrate", "--json"), ("status",), ("doctor",), ("config", "show"), ("verify",)):
        for store in (secret, nowhere):
            code, said, told = redrive(*words, store=store)
            assert "hunter2" not in said + told, words
            assert (code == 0) or store is nowhere or words == ("doctor",), told
