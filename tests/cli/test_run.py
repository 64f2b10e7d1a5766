"""`redrive run`: a worker, and programs that cannot be found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest


def test_a_worker_runs_until_nothing_is_left_to_do(shop: Any) -> None:
    shop.append(1, 2, 4)
    answer = shop.process("run", "shop:app", "--until-idle")
    assert answer.code == 0, answer.err
    assert sorted(shop.query("SELECT * FROM revenue")) == [("k0", 1), ("k1", 2), ("k2", 4)]


def test_only_and_except_choose_subscriptions(shop: Any) -> None:
    shop.append(1)
    assert shop.redrive("run", "shop:app", "--until-idle", "--only", "charge").code == 0
    assert shop.query("SELECT count(*) FROM redrive_subscriptions") == [(1,)]
    assert shop.redrive("run", "shop:app", "--until-idle", "--except", "charge,nothing").code == 2
    answer = shop.redrive("run", "shop:app", "--until-idle", "--only", "revenu")
    assert (answer.code, "did you mean 'revenue'?" in answer.err) == (2, True)
    assert shop.redrive("run", "shop:app", "--until-idle", "--except", "charge").code == 0
    assert shop.query("SELECT cents FROM revenue") == [(1,)]


@pytest.mark.parametrize("option", ["--only", "--except"])
def test_a_choice_that_names_nobody_is_refused_and_does_not_run_everything(shop: Any, option: str) -> None:
    shop.append(1)
    answer = shop.redrive("run", "shop:app", "--until-idle", option, " , ")
    assert (answer.code, f"{option} is empty" in answer.err) == (2, True)
    assert shop.query("SELECT count(*) FROM redrive_subscriptions") == [(0,)]


def test_a_store_or_program_without_a_name_is_refused_and_does_not_mean_another(shop: Any) -> None:
    shop.append(1)
    for line in (("status", "--store", ""), ("--store", "", "status")):
        answer = shop.redrive(*line)
        assert (answer.code, "--store is empty" in answer.err) == (2, True)
    answer = shop.redrive("status", "--app", "")
    assert (answer.code, "is not MODULE:APP" in answer.err) == (2, True)


def test_a_worker_stops_gracefully_on_sigterm(shop: Any) -> None:
    shop.append(1)
    worker = shop.work()
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=30)
    assert worker.returncode == 0, said
    assert shop.query("SELECT DISTINCT owner FROM redrive_progress") == [(None,)]


def test_a_run_that_ends_halted_says_so(shop: Any) -> None:
    shop.append(1)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    shop.query("UPDATE redrive_progress SET anchor = 'x'")
    answer = shop.redrive("run", "shop:app", "--until-idle")
    assert answer.code == 1
    assert "is halted" in answer.err
    assert "Traceback" not in answer.err
    other = "from redrive import App\napp = App('shop.db')\n@app.on(app.log('visits'))\ndef visit(event, ctx): ...\n"
    (shop.folder / "other.py").write_text(other)
    answer = shop.redrive("run", "other:app", "--until-idle")
    assert (answer.code, answer.err) == (0, ""), "only its own subscriptions count"


def test_a_run_until_idle_that_a_function_has_ended_before_is_not_done(shop: Any) -> None:
    (shop.folder / "leaving.py").write_text(
        "import sys\nfrom redrive import App\napp = App('leaving.db')\n"
        "@app.on(app.log('orders'), start='first')\n"
        "def leave(event, ctx):\n    sys.exit(7)\n"
    )
    assert shop.redrive("append", "orders", "order.placed", "1", "--store", "leaving.db", "--create").code == 0
    answer = shop.process("run", "leaving:app", "--until-idle")
    assert answer.code == 1
    assert "stopped before everything was done: leave raised SystemExit" in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("shopp:app", "no module 'shopp'"),
        ("shop:application", "it has: shop:app"),
        ("shop:orders", "it has: shop:app"),
        ("shop.py", "write shop:app"),
        ("shop.py:app", "write shop:app"),
        ("./shop:app", "write shop:app"),
        (":app", "MODULE:APP"),
        ("", "MODULE:APP"),
        ("empty:app", "no App at all"),
        ("pack.missing:app", "no module 'pack"),
    ],
)
def test_a_program_that_is_not_there_names_the_fix(shop: Any, program: str, hint: str) -> None:
    (shop.folder / "empty.py").write_text("x = 1")
    answer = shop.redrive("run", program)
    assert answer.code == 2
    assert hint in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("text", ["import nonexistent_thing", "1 / 0", "def broken(:", "raise SystemExit(7)"])
def test_a_program_that_cannot_be_imported_is_a_failure_with_its_reason(shop: Any, text: str) -> None:
    (shop.folder / "broken.py").write_text(text)
    answer = shop.redrive("run", "broken:app")
    assert answer.code == 1
    assert answer.err.startswith("redrive: importing broken failed: ")
    assert "Traceback" in shop.redrive("run", "broken:app", "--debug").err


def test_a_module_alone_is_enough_if_it_has_one_app(shop: Any) -> None:
    shop.append(1)
    assert shop.redrive("run", "shop", "--until-idle").code == 0


def test_the_store_of_a_flag_beats_the_programs(shop: Any) -> None:
    shop.append(1)
    assert shop.redrive("run", "shop:app", "--until-idle", "--store", "other.db", REDRIVE_STORE="third.db").code == 0
    made = {"other.db"} if shop.url else {"shop.db", "other.db"}
    assert {path for path in os.listdir(shop.folder) if path.endswith(".db")} == made


def test_wrong_settings_are_wrong_usage(shop: Any) -> None:
    answer = shop.redrive("run", "shop:app", "--until-idle", REDRIVE_LEASE="soon")
    assert answer.code == 2
    assert "REDRIVE_LEASE" in answer.err


def test_the_package_is_the_command_where_no_script_is_on_the_path(shop: Any) -> None:
    line = [sys.executable, "-m", "redrive", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, shop.redrive("--help").out)
