"""The documentation is checked like code: links lead somewhere, options and signals are complete, snippets run."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import failpoints, mirrors, sinks
from redrive.observe import logs, signals
from redrive.policy import action
from redrive.policy.rules import Candidate
from redrive.settings import Settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDE = DOCS / "guide"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

SINKS = (sinks.file, sinks.stdout, sinks.loki, sinks.otlp, sinks.sentry)

# Not hidden, because the engine uses them across modules; of no use to a function.
FOR_THE_ENGINE = {
    "check_in", "data_raw", "effects", "forget", "headers_raw", "is_dead", "kill", "runtime", "subscriptions",
    "time_us", "touched", "types", "with_data",
}  # fmt: skip

# What the snippets of a page may use without saying so, and how each page ends: what it declared must start.
PRELUDE = """\
import redrive
from redrive import App
app = App("shop.db")
orders, payments, receipts = app.log("orders"), app.log("payments"), app.log("receipts")
logins, alerts, views, metrics = app.log("logins"), app.log("alerts"), app.log("views"), app.log("metrics")
with app.transaction() as tx:
    tx.execute("CREATE TABLE audit_trail (line TEXT)")
"""
FINALE = """
app.run(until_idle=True)
app.close()
"""
NEED_A_BROKER = {"kafka", "mirrors", "redis"}  # their snippets name a server that does not run here
FINALE_WITHOUT_BROKER = """
try:
    app.run(until_idle=True)
except redrive.Halted as error:
    assert all(name.startswith(("dead-", "kafka:", "redis:")) for name in error.subscriptions), error
else:
    raise AssertionError("no broker runs, and nothing was halted")
app.close()
"""


@cache
def pages() -> dict[Path, str]:
    found = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return {path: path.read_text(encoding="utf-8") for path in sorted(found)}


@cache
def everything() -> str:
    return "\n".join(pages().values())


def prose(text: str) -> str:
    return FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """The names under which a forge makes the headings of a page reachable."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def check_none(found: list[str]) -> None:
    assert not found, "\n".join(["", *found])


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ------------------------------------------------------------ links


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page, text in pages().items():
        for target in LINK.findall(prose(text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                broken.append(f"{name_of(page)}: {target}: there is no such file")
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                broken.append(f"{name_of(page)}: {target}: there is no such heading")
    check_none(broken)


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = LINK.findall(pages().get(page, ""))
        waiting += [(page.parent / target.partition("#")[0]).resolve() for target in targets]
    check_none([name_of(page) for page in pages() if page not in reached])


def test_every_file_of_the_project_that_a_page_names_exists() -> None:
    named = re.compile(r"(?<![\w/.-])((?:src|tests|examples|scripts|bench|docs)/[\w./-]*\w)(?!\w)")
    paths = [(page, path) for page, text in pages().items() for path in sorted(set(named.findall(text)))]
    check_none([f"{name_of(page)}: {path}" for page, path in paths if not (ROOT / path).exists()])


def test_every_statement_about_a_guarantee_names_a_test_that_exists() -> None:
    text = pages()[DOCS / "guarantees.md"]
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert len(set(named)) >= 8
    tables = re.findall(r"^\|.*\| *attacked by *\|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert tables
    check_none([row for table in tables for row in table.splitlines() if "`tests/" not in row])


def test_every_failpoint_that_a_page_names_exists() -> None:
    known = {name.split(".")[0] for name in failpoints.NAMES}
    named = set(re.findall(r"REDRIVE_FAILPOINT=([\w.]+)", everything()))
    named |= set(re.findall(r"failpoint\(\"([\w.]+)\"", everything()))
    check_none([name for name in named if name not in failpoints.NAMES and name.split(".")[0] in known])


# ------------------------------------------------------------ complete


def documented(name: str, text: str) -> bool:
    """Named as code: `name`, `name(…)`, `redrive.name`, or in a snippet."""
    return re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", text) is not None


def test_every_public_name_is_documented() -> None:
    guide = "\n".join(text for page, text in pages().items() if GUIDE in page.parents or page.parent == DOCS)
    check_none([name for name in redrive.__all__ if not documented(name, guide)])


def test_every_public_attribute_of_what_users_hold_is_documented() -> None:
    check_none(
        [
            f"{cls.__name__}.{name}"
            for cls in (redrive.App, redrive.Log, redrive.Ctx, redrive.Tx, redrive.Event)
            for name in dir(cls)
            if not name.startswith("_") and name not in FOR_THE_ENGINE and not documented(name, everything())
        ]
    )


def options(function: Callable[..., Any]) -> list[str]:
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_POSITIONAL
    ]


def rows_of(page: str, heading: str) -> set[str]:
    """The first cells of the first table below a heading, or of the table that begins with it."""
    text = (GUIDE / page).read_text(encoding="utf-8")
    table = re.search(r"^\|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", text[text.index(heading) :], re.MULTILINE)
    assert table is not None
    return {name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("function", "page", "heading"),
    [
        (redrive.App.on, "handlers.md", "## Options of `app.on`"),
        (redrive.App.projection, "projections.md", "## Options of `app.projection`"),
        (redrive.retry, "retries-and-letters.md", "| option of `retry` |"),
        (redrive.conflicts, "retries-and-letters.md", "| option of `conflicts` |"),
        (redrive.rules, "retries-and-letters.md", "| option of `rules` |"),
        (redrive.App, "embedding.md", "| option of `App` |"),
        (redrive.App.deliver, "delivery.md", "| option of `deliver` |"),
        (redrive.App.outbox, "outbox.md", "| option of `outbox` |"),
        (redrive.breaker, "protection.md", "| option of `breaker` |"),
        (redrive.auto_replay, "protection.md", "| option of `auto_replay` |"),
        (redrive.webhook, "delivery.md", "| option of `webhook` |"),
        *((sink, "delivery.md", f"| option of `{sink.__name__}` |") for sink in SINKS),
        (redrive.App.mirror, "mirrors.md", "| option of `mirror` |"),
        (mirrors.files, "mirrors.md", "| option of `files` |"),
    ],
    ids=[
        "on",
        "projection",
        "retry",
        "conflicts",
        "rules",
        "App",
        "deliver",
        "outbox",
        "breaker",
        "auto_replay",
        "webhook",
        *(sink.__name__ for sink in SINKS),
        "mirror",
        "mirrors.files",
    ],
)
def test_the_table_of_options_is_exactly_the_signature(function: Callable[..., Any], page: str, heading: str) -> None:
    known = set(options(function))
    if function.__qualname__.startswith("Declarations."):
        known -= {"source"}  # the log, which is spoken of above the table
    assert rows_of(page, heading) == known


def test_the_documented_numbers_of_retry_are_the_defaults() -> None:
    text = (GUIDE / "retries-and-letters.md").read_text(encoding="utf-8")
    for function in (redrive.retry, redrive.conflicts):
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not None:
                shown = f'`"{parameter.default}"`' if isinstance(parameter.default, str) else str(parameter.default)
                assert f"| `{name}` | {shown} |" in text, name


@pytest.mark.parametrize("sink", [redrive.webhook, *SINKS], ids=lambda sink: sink.__name__)
def test_the_documented_defaults_of_a_sink_are_the_defaults(sink: Callable[..., Any]) -> None:
    text = (GUIDE / "delivery.md").read_text(encoding="utf-8")
    table = text[text.index(f"| option of `{sink.__name__}` |") :].partition("\n\n")[0]
    for name, parameter in inspect.signature(sink).parameters.items():
        default = parameter.default
        if default is parameter.empty or (default is None and f"| `{name}` |" in table):
            continue
        shown = {True: "yes", False: "no"}.get(default) if isinstance(default, bool) else str(default)
        shown = f'`"{default}"`' if isinstance(default, str) else shown
        assert f"| `{name}` | {shown} |" in table, name


def test_every_argument_of_append_is_documented() -> None:
    text = (GUIDE / "events.md").read_text(encoding="utf-8")
    check_none([name for name in options(redrive.Log.append) if not documented(name, text)])


def test_every_signal_is_documented_with_its_name_level_and_fields() -> None:
    text = (GUIDE / "signals.md").read_text(encoding="utf-8")
    failure = re.search(r"^\*failure\* stands for (.*)$", text, re.MULTILINE)
    assert failure is not None
    assert re.findall(r"`(\w+)`", failure[1]) == list(signals.Failing.__struct_fields__)
    for signal in signals.ALL:
        row = re.search(rf"^\| `{signal.__name__}` \| `([\w.]+)` \| (\w+) \| (.*?) \| .+ \|$", text, re.MULTILINE)
        assert row is not None, f"{signal.__name__} has no row in signals.md"
        mine = list(signal.__struct_fields__)
        shown = re.findall(r"`(\w+)`", row[3])
        if "*failure*" in row[3]:
            shown = list(signals.Failing.__struct_fields__) + shown
        level = logs._LEVELS.get(signal, 20)
        levels = {10: "debug", 20: "info", 30: "warning", 40: "error"}
        assert (row[1], row[2], shown) == (logs.name_of(signal), levels[level], mine)


def test_every_reason_of_a_letter_is_documented() -> None:
    text = (GUIDE / "retries-and-letters.md").read_text(encoding="utf-8")
    check_none([reason for reason in action.REASONS if f"| `{reason}` |" not in text])


def test_what_a_rule_sees_of_a_letter_is_documented() -> None:
    text = (GUIDE / "retries-and-letters.md").read_text(encoding="utf-8")
    check_none([field for field in Candidate.__struct_fields__ if f"`{field}`" not in text])


def test_every_setting_that_a_page_names_exists() -> None:
    named = set(re.findall(r"(?<!_)REDRIVE_([A-Z_]+)=", everything())) - {"CONFIG", "FAILPOINT"}
    known = {name.upper() for name in Settings.__struct_fields__}
    check_none([name for name in sorted(named) if name.split("__")[0] not in known and not name.startswith("TEST")])


# ------------------------------------------------------------ true


def snippet_pages() -> list[Path]:
    written_here = {"settings.md", "testing.md", "cli.md"}  # those have their own tests
    return [path for path in sorted(GUIDE.glob("*.md")) if path.name not in written_here]


@pytest.mark.slow
@pytest.mark.parametrize("page", snippet_pages(), ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run_as_one_program(page: Path, tmp_path: Path) -> None:
    """In the order of the page: what a function of a snippet would do to the world is not tried, its options are."""
    blocks = PYTHON.findall(page.read_text(encoding="utf-8"))
    program = tmp_path / f"page_{page.stem}.py"  # not redis.py, which would be imported
    finale = FINALE if page.stem not in NEED_A_BROKER else FINALE_WITHOUT_BROKER
    program.write_text("\n".join([PRELUDE, *blocks, finale]), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_package_shows_the_readme_and_the_changelog_knows_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] == "README.md"
    assert f"## {redrive.__version__}" in pages()[ROOT / "CHANGELOG.md"]
