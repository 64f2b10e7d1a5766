"""Every command in the documentation is typed: the `sh` blocks of a page, in order, into a shell.

The shop around it has had its share of trouble, and its worker runs. A command must end with 0, or with the code that
its comment ends with (`# … exit code 3`). A Python block that begins with `# name.py` is a file. What belongs to the
machine and not to redrive is a stub.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from redrive import App

ROOT = Path(__file__).parent.parent.parent
SHOP, SERVED = Path(__file__).with_name("shop.py"), Path(__file__).with_name("served.py")
CLIENT = runpy.run_path(str(SERVED))["CLIENT"]
SECONDS_MAX = 60.0

SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVER = re.compile(r"postgresql://\w+@db\.example/\w+")  # which is a server of the tests' own
CODE = re.compile(r"#.*exit code (\d)$")

# Commands of the machine: whether they exist, and what they print here, is not ours to test.
STUBS = ("pip", "journalctl", "dmesg", "fuser", "psql", "run.sh")
# A page of single examples: each is typed into a shop of its own.
CLI = ROOT / "docs" / "guide" / "cli.md"

# The shop as a service: `systemctl start|stop|restart shop`.
SYSTEMCTL = """\
#!{python} -IS
import fcntl, os, signal, subprocess, sys, threading
from pathlib import Path
verb, pid, lock = sys.argv[1], Path("worker.pid"), open("worker.lock", "w")
if verb in ("stop", "restart") and pid.exists():
    os.kill(int(pid.read_text()), signal.SIGTERM)
    pid.unlink()
fcntl.flock(lock, fcntl.LOCK_EX)  # the worker holds it as long as it lives
if verb in ("start", "restart"):
    log = open("worker.log", "w")
    command = [Path(__file__).with_name("service"), "run", "shop:app"]
    worker = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=[lock.fileno()], start_new_session=True)
    pid.write_text(str(worker.pid))
    while Path("worker.log").read_text().count("lease.taken") < 3:
        assert worker.poll() is None, Path("worker.log").read_text()
        threading.Event().wait(0.02)
"""


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The doctor warns of a store in memory, and only what else it says is meant here."""
    return on_disk


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if SHELL.search(page.read_text("utf-8")) and page != CLI]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(block: str) -> Iterator[str]:
    """The lines of a block, continued ones put together, without those that only comment."""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def environment(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "COLUMNS"))}
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return clean | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def redrive(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [folder / "bin" / "redrive", *arguments], cwd=folder, env=environment(folder), capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def place(folder: Path, *orders: tuple[str, int, str]) -> None:
    app = App(str(folder / "shop.db"))
    log = app.log("orders")
    for customer, cents, currency in orders:
        number = f"order-{1 + sum(1 for _ in log.read())}"
        log.append("order.placed", {"cents": cents, "currency": currency}, key=customer, id=number)
    app.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program that has its command line run by another, which has imported everything."""
    folder = tmp_path_factory.mktemp("served")
    place = str(folder / "socket")
    with subprocess.Popen(
        [sys.executable, str(SERVED), place], env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as served:  # fmt: skip
        assert served.stdin is not None and served.stdout is not None
        assert served.stdout.readline() == "ready\n"
        yield CLIENT.format(python=sys.executable, place=place)
        served.stdin.close()
        served.wait(SECONDS_MAX)


@pytest.fixture(scope="module")
def troubled(client: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Letter 1: cleo pays in pounds. 4: zoe's order costs nothing. 5, 6, 7: ada, bob and dan during an outage.

    The last two letters, 14 and 15, are retried in 12 hours.
    """
    folder = tmp_path_factory.mktemp("shop")
    shutil.copy(SHOP, folder / "shop.py")
    (folder / "redrive.toml").write_text('store = "shop.db"\n')
    (folder / "bin").mkdir()
    for name in STUBS:
        target = folder / name if name == "run.sh" else folder / "bin" / name
        target.write_text("#!/bin/sh\necho this would say oom or segfault\n")
        target.chmod(0o755)
    systemctl = SYSTEMCTL.format(python=sys.executable)
    for name, program in {"redrive": client, "service": client, "systemctl": systemctl}.items():
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o755)
    place(folder, ("ada", 1200, "EUR"), ("bob", 500, "USD"), ("cleo", 900, "GBP"), ("cleo", 100, "GBP"))
    place(folder, ("cleo", 300, "GBP"), ("zoe", 0, "EUR"))
    app = App(str(folder / "shop.db"))
    app.log("logins").append("login.failed", {"user": "ada"})
    app.close()
    redrive(folder, "run", "shop:app", "--until-idle", "--only", "watch_for_guessing")
    redrive(folder, "run", "shop:app", "--until-idle", "--only", "revenue")
    redrive(folder, "run", "shop:app", "--until-idle", "--only", "charge")
    (folder / "bank_is_down").touch()
    place(folder, *[(customer, 700, "EUR") for _ in range(3) for customer in ("ada", "bob", "dan")])
    redrive(folder, "run", "shop:app", "--until-idle", "--only", "charge")
    redrive(folder, "run", "shop:app", "--until-idle", "--only", "revenue")
    (folder / "bank_is_down").unlink()
    app = App(str(folder / "shop.db"))
    for customer in ("ada", "bob"):
        app.log("reminders").append("reminder.due", {}, key=customer)
    app.close()
    redrive(folder, "run", "shop:app", "--until-idle", "--only", "remind")
    app = App(str(folder / "shop.db"))
    for page in ("/", "/cart", "/pay"):
        app.log("events", intake="1/d").track("page.seen", {"page": page})
    app.close()
    return folder


@pytest.fixture
def shop(troubled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(troubled, tmp_path / "shop"))


@contextmanager
def worker(folder: Path) -> Iterator[None]:
    """The shop's worker, as in production: it runs while somebody types."""
    systemctl(folder, "start")
    try:
        yield
    finally:
        systemctl(folder, "stop")


def systemctl(folder: Path, verb: str) -> None:
    subprocess.run(
        [str(folder / "bin" / "systemctl"), verb, "shop"], cwd=folder, env=environment(folder), timeout=SECONDS_MAX,
        check=True,
    )  # fmt: skip


def check_types(line: str, shell: subprocess.Popen[str]) -> None:
    """Type a line; its exit code must be the one that is promised."""
    assert shell.stdin is not None and shell.stdout is not None
    shell.stdin.write(f"{line}\nprintf '\\nended with %s\\n' $?\n")
    shell.stdin.flush()
    said = ""
    while not (ended := re.search(r"^ended with (\d+)\n\Z", said, re.MULTILINE)):
        more = shell.stdout.readline()
        assert more, f"{line}: the shell ended\n{said}"
        said += more
    promised = CODE.search(line)
    assert ended[1] == (promised[1] if promised else "0"), f"{line}\n{said}"
    assert "Traceback" not in said, f"{line}\n{said}"


def open_shell(folder: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh"], cwd=folder, env=environment(folder) | more, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def check_page(text: str, folder: Path) -> None:
    for name, program in PROGRAM.findall(text):
        (folder / name).write_text(program)
    shell = open_shell(folder)
    try:
        for block in SHELL.findall(text):
            for line in commands(block):
                check_types(line, shell)
    finally:
        shell.kill()
        shell.communicate()


def dead(folder: Path) -> set[tuple[int, str]]:
    """Letters and fingerprints."""
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return set(connection.execute("SELECT id, fingerprint FROM redrive_letters WHERE state = 'dead'"))


# What is dead after a page that repairs something; the others only look.
OUTAGE = {(number, "8b70c4d053a6") for number in (5, 6, 7)}
OVER = {
    "docs/runbooks/dead-letters.md": set(),
    "docs/runbooks/replay-after-a-fix.md": OUTAGE,
    "docs/runbooks/replay-after-an-outage.md": {(1, "8a0627526422"), (4, "ef80a8445478")},
    "docs/runbooks/discard-stale-letters.md": {(1, "8a0627526422")} | OUTAGE,
}


def test_every_runbook_says_what_to_see_where_to_look_what_to_do_and_when_it_is_over() -> None:
    for page in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text("utf-8")
        headings = " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))
        assert "**You see**" in text, page.name
        assert re.match(r"Look .*(Decide|decide).*Over\?$", headings) and re.search(r"[Dd]o\b", headings), page.name


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_command_of_a_page_works_when_it_is_typed(page: Path, shop: Path, request: pytest.FixtureRequest) -> None:
    text = page.read_text("utf-8")
    if SERVER.search(text):
        text = SERVER.sub(request.getfixturevalue("postgres_url"), text)
    if PROGRAM.search(text):  # it brings its own program, and begins with nothing else
        for path in (shop / "redrive.toml", shop / "shop.py", *shop.glob("shop.db*")):
            path.unlink()
        check_page(text, shop)
        return
    with worker(shop):
        check_page(text, shop)
    redrive(shop, "verify", "--app", "shop:app")
    over = OVER.get(name_of(page))
    assert over is None or dead(shop) == over


def test_the_shop_has_the_trouble_that_the_pages_speak_of(troubled: Path) -> None:
    assert dead(troubled) == {(1, "8a0627526422"), (4, "ef80a8445478"), *((n, "8b70c4d053a6") for n in (5, 6, 7))}
    with closing(sqlite3.connect(troubled / "shop.db")) as connection:
        failing = connection.execute("SELECT id FROM redrive_letters WHERE state = 'retrying' AND reason = 'failing'")
        assert failing.fetchall() == [(14,), (15,)]


def examples() -> list[str]:
    return [line for block in SHELL.findall(CLI.read_text("utf-8")) for line in commands(block)]


@pytest.fixture(scope="module")
def stocked(troubled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shop with a few files, and four operations, the last of which nobody has run yet."""
    folder = Path(shutil.copytree(troubled, tmp_path_factory.mktemp("stocked") / "shop"))
    (folder / "order.json").write_text('{"cents": 750, "currency": "EUR"}')
    redrive(folder, "export", "orders", "--out", "orders.jsonl")
    for cents in (100, 200, 300):
        redrive(folder, "dlq", "edit", "4", "--patch", f'{{"cents": {cents}}}', "--reason", "trying", "--yes")
    redrive(folder, "dlq", "replay", "7")
    redrive(folder, "dlq", "export", "--fingerprint", "8b70", "--out", "letters.jsonl")
    letters = (folder / "letters.jsonl").read_text()
    assert letters.count("700") == 2
    (folder / "letters.jsonl").write_text(letters.replace("700", "701"))  # repaired by somebody's own tools
    return folder


@pytest.mark.parametrize("line", examples(), ids=lambda line: line.split("#")[0].strip())
def test_an_example_works_when_it_is_typed(line: str, stocked: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(stocked, tmp_path / "shop"))
    with worker(folder) if "--wait" in line else nullcontext():
        shell = open_shell(folder, SOMEBODY_SAYS_YES="1")
        try:
            check_types(line, shell)
        finally:
            shell.kill()
            shell.communicate()
