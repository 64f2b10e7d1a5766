"""What comes out: a table for people, JSON for machines, one picture, and the table inside docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from bench.contest import Round, Sizes
from bench.rows import Result

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = ("what", "must", "goal", "reached", "lowest … highest", "")
SHOWN = {"goal": "goal reached", "must": "reached", "missed": "MISSED"}


def show(value: float | None, unit: str) -> str:
    """A figure with three digits and its unit."""
    if value is None:
        return ""
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text}×" if unit == "x" else f"{text} {unit}"


def cells(result: Result) -> tuple[str, ...]:
    """One line of the table."""
    row, sign = result.row, "≥" if result.row.more_is_better else "≤"
    spread = f"{show(min(result.values), row.unit)} … {show(max(result.values), row.unit)}"
    goal = "" if row.goal is None else f"{sign} {show(row.goal, row.unit)}"
    return (row.label, f"{sign} {show(row.must, row.unit)}", goal, show(result.median, row.unit), spread,
            SHOWN[result.verdict])  # fmt: skip


def table(found: Sequence[Result]) -> str:
    """Columns for a terminal."""
    lines = [HEAD, *(cells(result) for result in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def rates(rounds: Sequence[Round]) -> dict[str, float]:
    """Median events per second of every contestant that has a rate."""
    names = [name for name, figures in rounds[0].items() if "rate" in figures]
    return {name: median(done[name]["rate"] for done in rounds) for name in names}


def rate_table(rounds: Sequence[Round]) -> str:
    """The absolute figures, which are this machine's and this minute's."""
    found = rates(rounds)
    return "\n".join(f"{name:<20} {rate:>10,.0f} events/s" for name, rate in found.items())


def as_json(rounds: Sequence[Round], found: Sequence[Result], sizes: Sizes) -> dict[str, Any]:
    """Everything, so that a later run can be compared with this one."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "sizes": asdict(sizes),
        "rows": [
            {"topic": result.row.topic, "what": result.row.label, "unit": result.row.unit, "must": result.row.must,
             "goal": result.row.goal, "reached": round(result.median, 4), "verdict": result.verdict,
             "rounds": [round(value, 4) for value in result.values]}
            for result in found
        ],
        "rounds": [
            {name: {key: round(value, 3) for key, value in figures.items()} for name, figures in done.items()}
            for done in rounds
        ],
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """Where it was measured."""
    packages = {}
    for name in ("redrive", "msgspec", "eventsourcing", "eventsource-py", "pgqueuer", "procrastinate"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "system": platform.system(),
            "processor": platform.machine(), "cores": os.cpu_count(), "packages": packages}  # fmt: skip


def write(folder: Path, rounds: Sequence[Round], found: Sequence[Result], sizes: Sizes) -> None:
    """The files in docs/."""
    from bench.picture import draw

    data = as_json(rounds, found, sizes)
    (folder / "performance.json").write_text(json.dumps(data, indent=1) + "\n")
    page = folder / "performance.md"
    page.write_text(with_table(page.read_text(), markdown(rounds, found, data)))
    draw(folder / "performance.svg", rates(rounds), found)


def markdown(rounds: Sequence[Round], found: Sequence[Result], data: dict[str, Any]) -> str:
    """The part of the page that a run writes."""
    where = data["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in where["packages"].items())
    lines = [
        f"Measured {data['measured_at'][:10]}: {len(rounds)} rounds, Python {where['python']}, "
        f"SQLite {where['sqlite']}, {where['cores']} cores of {where['processor']} ({where['system']}); {packages}.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
        *("| " + " | ".join(cells(result)) + " |" for result in found),
        "",
        "| contestant | events/s (median) |",
        "|---|---|",
        *(f"| {name} | {rate:,.0f} |" for name, rate in rates(rounds).items()),
    ]
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """The page with the part between the marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
