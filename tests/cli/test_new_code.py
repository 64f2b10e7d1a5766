"""A rebuild with new code while a process runs the old code: what the old function computes is never in the result."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from redrive.runner.supervise import STANDBY

PROGRAM = """
from redrive import App

app = App("shop.db")
orders = app.log("orders")

@app.projection(orders, tables={{"revenue": "{columns}"}}, {more})
def revenue(event, tx):
    tx.execute("INSERT INTO revenue (cents) VALUES (?)", (event.data["cents"] * {factor},))

if __name__ == "__main__":
    app.run()
"""
OLD, NEW = "cents INTEGER", "cents INTEGER, note TEXT"
PATIENCE = 20.0


class Beside:
    """A shop whose old program runs, and a new program beside it."""

    def __init__(self, shop: Any) -> None:
        self.shop = shop

    def write(self, name: str, factor: int, columns: str = OLD, more: str = "") -> None:
        text = PROGRAM.format(factor=factor, columns=columns, more=more)
        (self.shop.folder / f"{name}.py").write_text(self.shop._placed(text))

    def work(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "redrive.cli", "run", f"{name}:app"]
        worker = subprocess.Popen(
            command, cwd=self.shop.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.shop._env(),
        )  # fmt: skip
        self.shop.workers.append(worker)
        return worker

    def rebuild(self) -> Any:
        return self.shop.process("rebuild", "revenue", "--app", "new:app", "--yes", "--json")

    def cents(self) -> list[int]:
        return sorted(cents for (cents,) in self.shop.query("SELECT cents FROM revenue"))

    def standing(self) -> list[dict[str, str]]:
        """The workers that do not run the projection, with their reasons, as soon as there is one."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            [one] = self.shop.process("status", "--json", "--store", "shop.db").json
            if one["not_run_by"]:
                return list(one["not_run_by"])
        raise AssertionError("no worker is shown as standing by")


@pytest.fixture
def beside(shop: Any) -> Beside:
    shop.append(*range(1, 41))
    made = Beside(shop)
    made.write("old", 1)
    return made


def heard(worker: subprocess.Popen[str], *words: str) -> list[str]:
    """The lines of its log, up to the first that has all these words."""
    lines: list[str] = []
    assert worker.stderr is not None
    for line in worker.stderr:
        lines.append(line)
        if all(word in line for word in words):
            return lines
    raise AssertionError(f"it has ended without a line with {words}: {lines}")


def test_rebuild_with_new_table_applies_only_new_code(beside: Beside) -> None:
    beside.write("new", 100, NEW)
    heard(beside.work("old"), "lease.taken")
    answer = beside.rebuild()
    assert answer.code == 0, answer.err
    assert answer.json == {"subscription": "revenue", "position": 40, "target": 40, "done": True}
    assert beside.cents() == [100 * cents for cents in range(1, 41)]


def test_rebuild_applies_only_new_code_if_nothing_differs(beside: Beside) -> None:
    """The store cannot tell the two programs apart: the reservation alone keeps the old one away, five times."""
    old = beside.work("old")
    for factor in range(100, 105):
        heard(old, "lease.taken")
        beside.write("new", factor)
        answer = beside.rebuild()
        assert answer.code == 0, answer.err
        assert beside.cents() == [factor * cents for cents in range(1, 41)]


def test_old_worker_stands_by_with_reason_after_rebuild(beside: Beside) -> None:
    beside.write("new", 100, NEW, "version='net'")
    old = beside.work("old")
    heard(old, "lease.taken")
    assert beside.rebuild().code == 0
    beside.shop.append(1, 2, 3)
    [standing] = beside.standing()
    told = "version 'net' (here none)"
    assert standing["worker"].endswith(f":{old.pid}")
    assert told in standing["reason"] or "rebuilds it" in standing["reason"]
    lines = heard(old, "standing.by", told)
    shown = beside.shop.process("workers", "--store", "shop.db").out
    assert f":{old.pid} does not run revenue: revenue: another version of this program" in " ".join(shown.split())
    [worker] = beside.shop.process("workers", "--json", "--store", "shop.db").json
    assert told in worker["waits"]["revenue"] and worker["state"] == STANDBY
    status = beside.shop.process("status", "--store", "shop.db").out
    assert "standby" in status and "another version of this program" in status and "halted" not in status
    assert beside.cents() == [100 * cents for cents in range(1, 41)]
    old.terminate()
    _, rest = old.communicate(timeout=30)
    assert sum("version 'net'" in line for line in [*lines, *rest.splitlines()]) == 1  # it says so once
    new = beside.work("new")
    heard(new, "lease.taken")
    answer = beside.shop.process("run", "new:app", "--until-idle")
    assert answer.code == 0, answer.err


def test_process_on_same_host_frees_reservation_by_dying(beside: Beside) -> None:
    """The store is free at once: no other process has to wait for the reservation to lapse."""
    beside.write("new", 100)
    (beside.shop.folder / "dies.py").write_text(
        "import os, signal, new\nnew.app.operate().rebuilds.begin('revenue', 'test')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert beside.shop.process("run", "new:app", "--until-idle").code == 0
    done = subprocess.run(
        [sys.executable, "dies.py"], cwd=beside.shop.folder, env=beside.shop._env() | {"PATH": os.environ["PATH"]},
        check=False,
    )  # fmt: skip
    assert done.returncode == -9
    assert beside.cents() == []
    answer = beside.shop.process("run", "new:app", "--until-idle")
    assert answer.code == 0, answer.err
    assert beside.cents() == [100 * cents for cents in range(1, 41)]
