"""`redrive demo`: what it shows is true, and what it tells people to type works."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redrive.cli.demo import FIX
from redrive.demo.story import make_orders

PACKAGE = Path(__file__).parent.parent.parent / "src" / "redrive"
BESIDE = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    """That of somebody who has installed redrive."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "COLUMNS"))}
    return clean | {"PATH": f"{BESIDE}:{os.environ['PATH']}"} | more


def demo(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redrive.cli", "demo", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip


def rows(folder: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as connection:
        return connection.execute(sql).fetchall()


def counted(said: str) -> dict[str, dict[str, int]]:
    """The numbers of the picture: `{"revenue": {"applied": 5910, …}, …}`."""
    found: dict[str, dict[str, int]] = {}
    for line in said.splitlines():
        if head := re.match(r"  (\w+) \((?:projection|handler)\): (\d+) lanes flow, (\d+) are parked", line):
            found[head[1]] = {"flow": int(head[2]), "parked": int(head[3])}
        elif bar := re.match(r"    (?:· )?(applied|after retry|dead letters|wait behind) *(█*) +([\d,]+)$", line):
            found[[*found][-1]][bar[1]] = int(bar[3].replace(",", ""))
            assert bool(bar[2]) == (bar[3] != "0"), "a fate that somebody met has a bar"
    return found


def expected() -> dict[str, dict[str, int]]:
    """What must become of the orders, by somebody who knows neither redrive nor the demo's own sums."""
    orders = make_orders()
    customers = {order["key"] for order in orders}
    fates = {}
    for name, is_bad in {
        "revenue": lambda data: data["currency"] not in ("EUR", "USD"),
        "ship": lambda data: data["country"] not in ("DE", "GB", "US"),
    }.items():
        parked: Counter[str] = Counter()
        for order in orders:
            if order["key"] in parked or is_bad(order["data"]):
                parked[order["key"]] += 1
        fates[name] = {
            "flow": len(customers) - len(parked), "parked": len(parked), "applied": len(orders) - parked.total(),
            "dead letters": len(parked), "wait behind": parked.total() - len(parked),
        }  # fmt: skip
    return fates


def check_picture(said: str) -> None:
    shown = counted(said)
    retried = {name: fates.pop("after retry") for name, fates in shown.items()}
    assert shown == expected()
    assert retried["revenue"] == 0 and 20 < retried["ship"] < 400, "the Post is deaf one time in twenty-five"
    assert "each was applied once and in its turn" in said


def printed(said: str) -> str:
    """What the demo tells people to type, as it is."""
    return said.partition("Your turn. Type, or paste:\n")[2]


def test_the_demo_shows_what_happened_and_leaves_a_shop_to_repair(tmp_path: Path) -> None:
    done = demo("the shop", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_picture(done.stdout)
    assert "kill -9" in done.stdout and "ship     100 %" in done.stdout
    assert "\x1b" not in done.stdout and done.stderr == "", "no terminal, no escapes"
    folder = tmp_path / "the shop"
    assert {"shop.py", "shop.db", "redrive.toml", "worker.log"} <= {path.name for path in folder.iterdir()}
    assert (folder / "shop.py").read_text() == (PACKAGE / "demo" / "shop.py").read_text()
    reasons = rows(folder, "SELECT reason, count(*) FROM redrive_letters WHERE state = 'dead' GROUP BY 1 ORDER BY 1")
    assert reasons == [("attempts_exhausted", 3), ("rejected", 2)]
    assert [line for line in done.stdout.splitlines() if len(line) > 80 and str(folder) not in line] == []


def test_at_a_terminal_the_demo_draws_bars(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive.cli", "demo", "shop"], cwd=tmp_path, stdin=theirs, stdout=theirs,
        stderr=theirs, env=environment(TERM="xterm", COLUMNS="80"),
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the last reader of a closed terminal gets an error, not an end
        while chunk := os.read(ours, 65536):
            said += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0, said.decode()
    assert re.search(r"━+.*\d+/6000", said.decode())
    check_picture(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode()).replace("\r", ""))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("mine")
    done = demo(".", cwd=tmp_path)
    assert done.returncode == 2 and "not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["shop.py"]
    assert (tmp_path / "shop.py").read_text() == "mine"


def test_the_store_that_the_environment_names_is_left_alone(tmp_path: Path) -> None:
    """Neither the demo nor what it prints goes there."""
    done = demo("shop", cwd=tmp_path, REDRIVE_STORE=str(tmp_path / "precious.db"), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "  unset REDRIVE_STORE\n" in printed(done.stdout)
    assert not (tmp_path / "precious.db").exists()


def typed(folder: Path, script: str) -> Iterator[tuple[str, int, str]]:
    """Type what was printed, as it was printed; yields each command with its exit code and what it said."""
    shell = subprocess.Popen(
        ["sh"], cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert shell.stdin is not None and shell.stdout is not None
    for command in re.sub(r"\\\n *", "", script).splitlines():
        if not command.strip() or command.lstrip().startswith("#"):
            continue
        shell.stdin.write(f"{command}\nprintf '\\nended with %s\\n' $?\n")
        shell.stdin.flush()
        said = ""
        while not (ended := re.search(r"\n?^ended with (\d+)\n\Z", said, re.MULTILINE)):
            said += shell.stdout.readline() or f"ended with {shell.wait()}\n"
        yield command.strip(), int(ended[1]), said[: ended.start()]
    shell.communicate()


def test_what_the_demo_tells_people_to_type_repairs_the_shop(tmp_path: Path) -> None:
    done = demo("shop", cwd=tmp_path)
    answers = list(typed(tmp_path, printed(done.stdout)))
    codes = [(re.sub(r" --fingerprint .*|(?<=show) \d+", "", command), code) for command, code, _ in answers]
    assert codes == [
        (f"cd {tmp_path}/shop", 0), ("redrive dlq", 0), ("redrive dlq show --payload", 0),
        ("redrive dlq replay", 3), (FIX, 0), ("redrive dlq replay", 0), ("redrive dlq replay", 0),
        ("redrive dlq edit", 0), ("redrive dlq replay", 0), ("redrive run shop:app --until-idle", 0),
        ("redrive verify --app shop:app", 0), ("redrive status", 0),
    ], answers  # fmt: skip
    said = [text for _, _, text in answers]
    assert "KeyError" in said[1] and "no carrier ships to 'UK'" in said[1]
    assert '"currency": "GBP"' in said[2]
    assert "3 would fail the same way" in said[3] and "3 would succeed" in said[5]
    folder = tmp_path / "shop"
    fates = rows(folder, "SELECT state, count(*) FROM redrive_letters GROUP BY 1")
    assert [state for state, _ in fates] == ["applied"], "nothing is dead and nothing waits"
    orders = make_orders()
    assert rows(folder, "SELECT sum(orders) FROM revenue") == [(len(orders),)]
    expected: dict[str, list[int]] = {}
    for order in orders:
        expected.setdefault(order["key"], []).append(order["data"]["order"])
    sent: dict[str, list[int]] = {}
    for key, order in rows(
        folder, "SELECT key, data ->> 'order' FROM redrive_events WHERE type = 'parcel.sent' ORDER BY position"
    ):
        sent.setdefault(key, []).append(order)
    assert sent == expected, "every order was shipped once, and each customer's in their order"
