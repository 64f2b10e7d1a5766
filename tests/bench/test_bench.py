"""The measurements run, and what they print has the shape that docs/performance.md relies on. Nothing here is timed."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

import bench  # noqa: E402
from bench import job, report, rows  # noqa: E402
from bench.contest import QUICK, TOPICS, Sizes, chosen, contestants, rounds  # noqa: E402
from bench.lab import Lab  # noqa: E402


@pytest.mark.parametrize("name", sorted({found.name for found in pkgutil.iter_modules(bench.__path__)} - {"__main__"}))
def test_every_module_of_the_bench_can_be_imported(name: str) -> None:
    assert importlib.import_module(f"bench.{name}").__doc__


def test_the_job_is_the_same_for_everybody_and_about_200_bytes_an_event() -> None:
    made = job.orders(200)
    assert made == job.orders(200)
    assert all(150 <= len(job.payload(order)) <= 250 for order in made)
    assert sum(count for count, _ in job.totals_of(made).values()) == 200
    assert 450 <= sum(order.is_poison for order in job.orders(50_000)) <= 550


def test_a_wrong_total_is_an_error_not_a_number() -> None:
    made = job.orders(50)
    expected = job.totals_of(made)
    right = [(key, count, amount) for key, (count, amount) in expected.items()]
    job.check("somebody", right, expected)
    with pytest.raises(job.WrongTotals, match="1 of"):
        job.check("somebody", [(right[0][0], right[0][1] + 1, right[0][2]), *right[1:]], expected)
    with pytest.raises(job.WrongTotals):
        job.check("somebody", right[1:], expected)


def test_every_row_is_computed_from_contestants_that_run_with_its_topic() -> None:
    everybody = {contestant.name for contestant in contestants(Sizes())}
    for row in rows.ROWS:
        here = {contestant.name for contestant in chosen(QUICK, {row.topic})}
        assert here <= everybody
        for value in (row.value, row.yardstick or row.value):
            named = _named(value)
            assert named and set(named) <= here, row.label
    assert {row.topic for row in rows.ROWS} == set(TOPICS)


def test_a_quick_run_of_the_main_rows_gives_every_figure_the_report_needs(tmp_path: Path) -> None:
    topics = {"projection", "poison", "handlers", "append", "letters"}
    (done,) = rounds(Lab(tmp_path), chosen(QUICK, topics), 1, lambda text: None)
    assert all(figures["n"] > 0 for figures in done.values())
    found = rows.results([done], topics)
    assert [result.row for result in found] == [row for row in rows.ROWS if row.topic in topics]
    assert all(result.median > 0 and result.verdict in report.SHOWN for result in found)
    text = report.table(found)
    assert all(result.row.label in text for result in found)
    data = report.as_json([done], found, QUICK)
    assert [row["what"] for row in data["rows"]] == [result.row.label for result in found]
    page = report.with_table(
        f"a\n{report.BEGIN}\nold\n{report.END}\nb\n", report.markdown([done], found, report.rates([done]), data)
    )
    assert "old" not in page
    assert page.startswith("a\n")
    assert page.endswith(f"{report.END}\nb\n")


def test_a_run_of_some_topics_leaves_the_rows_of_others_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text(f"{report.BEGIN}\n{report.END}\n")
    names = {name for row in rows.ROWS for value in (row.value, row.yardstick or row.value) for name in _named(value)}
    figures = dict.fromkeys([*(name for row in rows.ROWS for name in _figures(row)), "rate", "cpu_rate"], 2.0)
    done = {name: dict(figures) for name in names}
    all_topics = set(TOPICS)
    report.write(tmp_path, [done], rows.results([done], all_topics), QUICK)
    file = tmp_path / "performance.json"
    whole = json.loads(file.read_text())
    whole["measured_at"] = "2020-02-02T00:00:00+00:00"
    file.write_text(json.dumps(whole))
    for count in (3, 1, 2):  # of more rounds than there were, and of fewer
        faster = [{"raw": figures, "projection": {**figures, "rate": 4.0}}] * count
        report.write(tmp_path, faster, rows.results(faster, {"projection"}), QUICK)
    again = {row["what"]: row for row in json.loads(file.read_text())["rows"]}
    assert set(again) == {row.label for row in rows.ROWS}
    for row in whole["rows"]:
        new = again[row["what"]]
        if row["topic"] == "projection":
            assert (new["reached"], "measured_at" in new) == (2.0, False)
        else:
            assert {**row, "measured_at": new["measured_at"]} == new
            assert new["measured_at"].startswith("2020-02-02")
    page = (tmp_path / "performance.md").read_text()
    assert all(row.label in page for row in rows.ROWS)
    assert f"Rows of {', '.join(topic for topic in _in_order() if topic != 'projection')}: 2020-02-02." in page
    assert "| projection | 4 |" in page and "| emit | 2 |" in page


def _in_order() -> list[str]:
    return list(dict.fromkeys(row.topic for row in rows.ROWS))


def _named(value: Callable[..., float]) -> list[str]:
    """The contestants that a row looks at."""
    everybody = {contestant.name for contestant in contestants(Sizes())}
    return [name for cell in value.__closure__ or () if (name := cell.cell_contents) in everybody]


def _figures(row: rows.Row) -> list[str]:
    """The figures that it looks at."""
    return [cell.cell_contents for value in (row.value, row.yardstick or row.value) for cell in value.__closure__ or ()]


def test_a_quick_run_of_deliveries_failures_and_recovery_gives_its_figures(tmp_path: Path) -> None:
    topics = {"delivery", "failing", "recovery", "track"}
    with Lab(tmp_path) as lab:
        (done,) = rounds(lab, chosen(QUICK, topics), 1, lambda text: None)
    found = rows.results([done], topics)
    assert {result.row.topic for result in found} == topics
    assert all(result.median > 0 for result in found)
    assert done["recovery"]["worst_seconds"] <= 60, "virtual time: this one is no matter of the machine"
    assert done["recovery"]["probed_worst_seconds"] <= 10


def test_a_quick_run_of_our_own_streams_and_topics_gives_its_figures(tmp_path: Path) -> None:
    """Without the others, which the tests do not install; a log that was grown before is read on like an empty one."""
    peers = ("faststream", "dramatiq", "taskiq", "quixstreams")
    own = [one for one in chosen(QUICK, {"redis", "kafka"}) if not any(peer in one.name for peer in peers)]
    with Lab(tmp_path) as lab:
        (done,) = rounds(lab, own, 1, lambda text: None)
    assert {"redis group, grown", "redis latency", "kafka projection"} <= done.keys()
    assert all(figures["n"] > 0 for figures in done.values())


def test_the_page_in_docs_has_the_marks_between_which_a_run_writes_its_table() -> None:
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert page.count(report.BEGIN) == 1
    assert page.index(report.BEGIN) < page.index(report.END)
