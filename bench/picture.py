"""One picture: how fast each contestant does the job, and how each row stands to its bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.rows import Result

COLOURS = {"goal": "#2a7f4f", "must": "#6aa84f", "missed": "#c0392b"}
OURS, RAW, PEER = "#2a7f4f", "#777777", "#b5651d"
KINDS = {
    "raw": RAW,
    "append one by one": RAW,
    "pg raw pipeline": RAW,
    "pg raw unnest": RAW,
    "eventsourcing": PEER,
    "eventsource-py": PEER,
    "pg eventsourcing": PEER,
    "pg pgqueuer": PEER,
    "pg procrastinate": PEER,
}


def draw(path: Path, rates: Mapping[str, float], found: Sequence[Result]) -> None:
    """Two panels, both on logarithmic scales because the figures span four powers of ten."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "redrive"  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    height = 0.32 * max(len(rates), len(found)) + 1.2
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, height), layout="constrained")

    names = list(rates)[::-1]
    left.barh(names, [rates[name] for name in names], color=[KINDS.get(name, OURS) for name in names])
    for name in names:
        left.text(rates[name] * 1.08, name, f"{rates[name]:,.0f}", va="center", fontsize=8)
    left.set(xscale="log", title="events/s (grey: by hand, brown: others)")
    left.set_xlim(right=max(rates.values()) * 6)

    shown = list(found)[::-1]
    scores = [_score(result, result.median) for result in shown]
    labels = [result.row.label for result in shown]
    right.barh(labels, [score - 1 for score in scores], left=1, color=[COLOURS[result.verdict] for result in shown])
    for index, result in enumerate(shown):
        if result.row.goal is not None:
            right.plot(_score(result, result.row.goal), index, "|", color="black", markersize=12)
    right.axvline(1, color="black", linewidth=1)
    right.set(xscale="log", title="times better than it must be ( | goal )")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _score(result: Result, value: float) -> float:
    """How many times better than what must be reached."""
    return value / result.row.must if result.row.more_is_better else result.row.must / max(value, 1e-9)
