"""The alert rules and the dashboard that are shipped speak of metrics and labels that exist, and of nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from redrive.observe import metrics as m
from redrive.policy.action import REASONS
from redrive.policy.healing import Ending

ROOT = Path(__file__).parent.parent.parent
SHIPPED = ROOT / "src" / "redrive" / "observe"
ALERTS = (SHIPPED / "redrive-alerts.yml").read_text(encoding="utf-8")
BOARD = json.loads((SHIPPED / "redrive-dashboard.json").read_text(encoding="utf-8"))

SCRAPER = {"job", "instance", "le"}  # labels that Prometheus adds, and the buckets of a histogram
WORDS = {
    "state": {"retrying", "waiting", "dead", "working", "standby", "silent"},
    "reason": set(REASONS),
    "change": {"taken", "unclean", "released", "lost"},
    "how": {"retry", "replay"},
    "outcome": {"recovered", "buried", *Ending},
    "fate": {"kept", "bypass", "dropped"},
    "result": {"applied", "failed", "skipped", "waiting", "well", "unwell"},
}
# For people who look at one process, or build their own: not worth a place on everybody's wall.
UNSEEN = {"redrive_operated_total", "redrive_resumed_total", "redrive_stopping_total"}


@dataclass
class Rule:
    name: str
    fields: dict[str, str] = field(default_factory=dict)


def rules() -> list[Rule]:
    """The file in the few words of YAML that it uses: `key: value` lines, and `>-` for an expression of several."""
    found: list[Rule] = []
    folding = ""
    for line in ALERTS.splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, colon, value = text.removeprefix("- ").partition(": ")
        if folding and len(line) - len(line.lstrip()) == 10 and not re.match(r"[a-z_]+: ", text):
            found[-1].fields[folding] += f" {text}"
            continue
        folding = ""
        if text.startswith("- alert: "):
            found.append(Rule(value))
        elif found and colon:
            folding = key if value == ">-" else ""
            found[-1].fields[key] = "" if folding else value
    return found


def named(name: str) -> m.Metric:
    """The metric that a name in an expression means."""
    for metric in m.ALL:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        if name in [metric.name + suffix for suffix in suffixes]:
            return metric
    raise AssertionError(f"there is no metric {name}")


def inside(text: str, start: int) -> str:
    """What the parenthesis that opens at `start` encloses."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1 : at]
    raise AssertionError(f"unbalanced: {text}")


def check_expression(expression: str) -> None:
    """Every name, every label of a selector and of a grouping, and every word that a label is compared with."""
    assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}"), expression
    names = re.findall(r"\bredrive_\w+", expression)
    assert names, f"{expression}: about nothing of ours"
    for name in names:
        named(name)
    for name, selector in re.findall(r"\b(redrive_\w+)\{([^}]*)\}", expression):
        for label, _, value in re.findall(r"(\w+)(=~|!~|!=|=)\"([^\"]*)\"", selector):
            assert label in {*named(name).labels, *SCRAPER}, f"{expression}: {name} has no label {label}"
            if label in WORDS and not value.startswith("$"):
                assert set(value.split("|")) <= WORDS[label], f"{expression}: no {label} is ever {value}"
    for found in re.finditer(r"\bby \(([^)]*)\) ?(?=\()", expression):
        body = inside(expression, found.end())
        for name in re.findall(r"\bredrive_\w+", body):
            missing = set(re.findall(r"\w+", found[1])) - {*named(name).labels, *SCRAPER}
            assert not missing, f"{expression}: {name} has no label {missing}"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_an_alert_is_about_metrics_that_exist_and_says_what_to_do(rule: Rule) -> None:
    check_expression(rule.fields["expr"])
    assert re.fullmatch(r"Redrive[A-Z]\w+", rule.name)
    assert rule.fields["labels"] in [f"{{severity: {one}}}" for one in ("critical", "warning", "info")]
    assert re.fullmatch(r"\d+[mh]", rule.fields.get("for", "0m"))
    assert rule.fields["summary"] and rule.fields["description"].rstrip('"').endswith(".")
    assert (ROOT / rule.fields["runbook"]).is_file()
    grouped = re.search(r"\bby \(([^)]*)\)", rule.fields["expr"])
    known = set(re.findall(r"\w+", grouped[1])) if grouped else SCRAPER
    told = set(re.findall(r"\$labels\.(\w+)", rule.fields["summary"] + rule.fields["description"]))
    assert told <= known, f"the text speaks of {told - known}, which the expression does not keep"


def test_the_alerts_of_e11y_are_among_them_with_its_thresholds() -> None:
    found = {rule.name: rule.fields for rule in rules()}
    assert len(found) == len(rules()) >= 18
    many, retries = found["RedriveDeadLettersMany"], found["RedriveRetryRateHigh"]
    assert many["expr"].endswith("> 10000") and (many["for"], many["labels"]) == ("5m", "{severity: critical}")
    for name, tail, wait in (
        ("RedriveBreakerBuries", "> 5", "2m"), ("RedriveRetryBudgetBuries", "> 50", "5m"),
        ("RedriveTrackRefused", "> 10", "5m"), ("RedriveTrackLimited", "> 10", "2m"),
    ):  # fmt: skip
        assert found[name]["expr"].endswith(tail) and found[name]["for"] == wait
    assert found["RedriveBreakerOpen"]["expr"].endswith("== 2") and found["RedriveBreakerOpen"]["for"] == "1m"
    assert retries["expr"].endswith("> 100") and (retries["for"], retries["labels"]) == ("2m", "{severity: warning}")


def test_the_guide_has_every_alert_with_its_severity_and_runbook() -> None:
    text = (ROOT / "docs" / "guide" / "observability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(Redrive\w+)` \| (\w+) \| .+ \| \[.*\]\(\.\./(.*)\) \|$", text, re.MULTILINE)
    expected = [
        (
            rule.name,
            re.findall(r"severity: (\w+)", rule.fields["labels"])[0],
            rule.fields["runbook"].removeprefix("docs/"),
        )
        for rule in rules()
    ]
    assert rows == expected


def test_the_dashboard_is_about_metrics_that_exist() -> None:
    for query in queries():
        check_expression(query)
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.findall(r"label_values\((redrive_\w+).*, (\w+)\)", variable["definition"])[0]
            assert label in {*named(name).labels, "job"}


def test_a_legend_speaks_of_labels_that_its_query_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert any(label in re.findall(r"\w+", one) for one in grouped), (panel["title"], label)


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for one, other in combinations((panel["gridPos"] for panel in BOARD["panels"]), 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart and one["x"] + one["w"] <= 24


def test_every_metric_is_watched_by_an_alert_or_a_panel() -> None:
    text = " ".join([*queries(), *(rule.fields["expr"] for rule in rules())])
    watched = {named(name).name for name in re.findall(r"\bredrive_\w+", text)}
    assert {metric.name for metric in m.ALL} - watched == UNSEEN


@pytest.mark.parametrize(
    "wrong",
    [
        "redrive_nothing > 0",
        "redrive_settle_seconds > 0",
        "redrive_lag_events_sum > 0",
        'redrive_letters{type="x"} > 0',
        'redrive_letters{state="deceased"} > 0',
        "max by (log) (redrive_lag_events) > 0",
        "max(redrive_lag_events > 0",
    ],
)
def test_a_wrong_expression_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_expression(wrong)


def test_the_commands_print_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    from redrive.cli import main

    for command, file in (("alerts", "redrive-alerts.yml"), ("dashboard", "redrive-dashboard.json")):
        with pytest.raises(SystemExit) as ended:
            main([command])
        assert ended.value.code == 0
        assert capsys.readouterr().out == (SHIPPED / file).read_text(encoding="utf-8")
