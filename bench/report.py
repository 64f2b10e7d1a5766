"""What comes out: a table for people, JSON for machines, one picture, and the table inside docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from bench.contest import BESIDE, Round, Sizes
from bench.rows import ROWS, Result

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
    reached = show(result.median, row.unit)
    if result.by_hand is not None:
        reached += f" (by hand {show(result.by_hand, row.unit)})"
    return row.label, f"{sign} {show(row.must, row.unit)}", goal, reached, spread, SHOWN[result.verdict]


def table(found: Sequence[Result]) -> str:
    """Columns for a terminal."""
    lines = [HEAD, *(cells(result) for result in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def rates(rounds: Sequence[Round]) -> dict[str, float]:
    """Median events per second of every contestant that has a rate."""
    names = dict.fromkeys(name for done in rounds for name, figures in done.items() if "rate" in figures)
    names = dict.fromkeys(name for name in names if not name.startswith(BESIDE))  # as `raw`, at other moments
    return {name: median(done[name]["rate"] for done in rounds if name in done) for name in names}


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
             "goal": result.row.goal, "reached": round(result.median, 4), "by_hand": result.by_hand,
             "verdict": result.verdict, "rounds": [round(value, 4) for value in result.values]}
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


def write(
    folder: Path, rounds: Sequence[Round], found: Sequence[Result], sizes: Sizes
) -> tuple[dict[str, float], list[Result]]:
    """The texts in docs/; back come the rates and rows for the picture, whose library only who measures has.

    What this run did not measure stays as it was, and is said to be of another day.
    """
    file, page = folder / "performance.json", folder / "performance.md"
    former = json.loads(file.read_text()) if file.exists() else {}
    data = as_json(rounds, found, sizes)
    results = [*found, *kept(former, found, data)]
    results.sort(key=lambda result: ROWS.index(result.row))
    every = all_rates(former, rounds)
    file.write_text(json.dumps(data, indent=1) + "\n")
    page.write_text(with_table(page.read_text(), markdown(rounds, results, every, data)))
    return every, results


def kept(former: dict[str, Any], found: Sequence[Result], data: dict[str, Any]) -> list[Result]:
    """Rows of an earlier run that this one has not measured; they are added to its data, with their day."""
    here, rows = {result.row.label for result in found}, {row.label: row for row in ROWS}
    old = [row for row in former.get("rows", ()) if row["what"] in rows and row["what"] not in here]
    data["rows"] += [{**row, "measured_at": row.get("measured_at", former["measured_at"])} for row in old]
    if old and rounds_of(former):
        data["former_rounds"] = rounds_of(former)
    return [Result(rows[row["what"]], tuple(row["rounds"]), row.get("by_hand")) for row in old]


def rounds_of(former: dict[str, Any]) -> list[Round]:
    """All that is known of earlier rounds, which may have been more, or fewer; of who ran again only the newer."""
    older, newer = former.get("former_rounds", []), former.get("rounds", [])
    again = {name for done in newer for name in done}
    kept = [{name: figures for name, figures in done.items() if name not in again} for done in older]
    return [{**one, **other} for one, other in zip_longest(kept, newer, fillvalue={})]


def all_rates(former: dict[str, Any], rounds: Sequence[Round]) -> dict[str, float]:
    """Of everybody, in this run or before."""
    return (rates(rounds_of(former)) if rounds_of(former) else {}) | rates(rounds)


def markdown(rounds: Sequence[Round], found: Sequence[Result], every: Mapping[str, float], data: dict[str, Any]) -> str:
    """The part of the page that a run writes."""
    where = data["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in where["packages"].items())
    lines = [
        f"Measured {data['measured_at'][:10]}: {len(rounds)} rounds, Python {where['python']}, "
        f"SQLite {where['sqlite']}, {where['cores']} cores of {where['processor']} ({where['system']}); {packages}.",
        *(f"Rows of {', '.join(topics)}: {day}." for day, topics in _days(data).items()),
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
        *("| " + " | ".join(cells(result)) + " |" for result in found),
        "",
        "| contestant | events/s (median) |",
        "|---|---|",
        *(f"| {name} | {rate:,.0f} |" for name, rate in every.items()),
    ]
    return "\n".join(lines)


def _days(data: dict[str, Any]) -> dict[str, list[str]]:
    """Topics that were measured on other days."""
    days: dict[str, list[str]] = {}
    for row in data["rows"]:
        topics = days.setdefault(row["measured_at"][:10], []) if "measured_at" in row else [row["topic"]]
        if row["topic"] not in topics:
            topics.append(row["topic"])
    return days


def with_table(page: str, text: str) -> str:
    """The page with the part between the marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
