"""The alert rules, tried by Prometheus itself: each of them fires when it should, and is silent a step before that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from redrive import App, metrics
from redrive.observe.prometheus import exposition
from redrive.testing import Harness
from tests.observe.test_alerts import SHIPPED, named, rules

VARIABLE = "REDRIVE_TEST_PROMTOOL"  # its path; ./run.sh test unpacks one
PROMTOOL = os.environ.get(VARIABLE) or shutil.which("promtool")
RULES = SHIPPED / "redrive-alerts.yml"
LAST = "75m"  # more than the longest `for:`; a value every minute

QUIET = "0x75"


def always(value: float) -> str:
    return f"{value:g}x75"


def per_second(rate: float) -> str:
    """A counter that grows so fast."""
    return f"0+{rate * 60:g}x75"


LATELY = "0x70 1x5"  # a counter that went up five minutes ago
NOW = "0+60x75"  # a time that is always now, as Prometheus' clock begins at 0

# For each alert: what is scraped when it fires, and what when it barely does not.
Scraped = dict[str, str]
ALERTS: dict[str, tuple[Scraped, Scraped]] = {
    "RedriveHalted": ({"redrive_halted": always(1)}, {"redrive_halted": QUIET}),
    "RedriveUnowned": (
        {"redrive_owned": QUIET, "redrive_lag_events": always(1)},
        {"redrive_owned": QUIET, "redrive_lag_events": QUIET},
    ),
    "RedriveStale": (
        {"redrive_lag_events": always(1), "redrive_settled_timestamp_seconds": QUIET, "redrive_paused": QUIET},
        {"redrive_lag_events": always(1), "redrive_settled_timestamp_seconds": NOW, "redrive_paused": QUIET},
    ),
    "RedriveLagHigh": (
        {"redrive_lag_seconds": always(301), "redrive_paused": QUIET, "redrive_rebuilding": QUIET},
        {"redrive_lag_seconds": always(301), "redrive_paused": QUIET, "redrive_rebuilding": always(1)},
    ),
    "RedriveScheduledLate": (
        {"redrive_scheduled_late_seconds": always(61)},
        {"redrive_scheduled_late_seconds": always(60)},
    ),
    "RedrivePausedLong": ({"redrive_paused": always(1)}, {"redrive_paused": "0x40 1x35"}),
    "RedriveStoreUnreadable": ({"redrive_store_up": QUIET}, {"redrive_store_up": always(1)}),
    "RedriveNoWorker": ({}, {"redrive_store_up": QUIET}),
    "RedriveDeadLettersMany": (
        {'redrive_letters{state="dead",reason="rejected"}': always(6000),
         'redrive_letters{state="dead",reason="timed_out"}': always(4001)},
        {'redrive_letters{state="dead",reason="rejected"}': always(10000),
         'redrive_letters{state="retrying",reason="timed_out"}': always(4001)},
    ),
    "RedriveDeadLettersGrow": ({"redrive_buried_total": per_second(1.1)}, {"redrive_buried_total": per_second(0.9)}),
    "RedriveDeadLettersOld": (
        {'redrive_letter_age_seconds{state="dead"}': always(7 * 86400 + 1)},
        {'redrive_letter_age_seconds{state="retrying"}': always(7 * 86400 + 1)},
    ),
    "RedriveRetryingLong": (
        {'redrive_letter_age_seconds{state="retrying"}': always(86401)},
        {'redrive_letter_age_seconds{state="dead"}': always(86401)},
    ),
    "RedriveRetryRateHigh": ({"redrive_retried_total": per_second(101)}, {"redrive_retried_total": per_second(99)}),
    "RedriveBreakerOpen": ({"redrive_breaker_state": always(2)}, {"redrive_breaker_state": always(1)}),
    "RedriveBreakerBuries": (
        {'redrive_buried_total{reason="breaker_open"}': per_second(6)},
        {'redrive_buried_total{reason="rejected"}': per_second(6)},
    ),
    "RedriveRetryBudgetBuries": (
        {'redrive_buried_total{reason="retry_limited"}': per_second(51)},
        {'redrive_buried_total{reason="retry_limited"}': per_second(49)},
    ),
    "RedriveLaneNearlyFull": (
        {"redrive_fullest_lane_letters": always(80001)},
        {"redrive_fullest_lane_letters": always(80000)},
    ),
    "RedriveLaneFull": ({"redrive_lane_full_total": LATELY}, {"redrive_lane_full_total": always(1)}),
    "RedriveHandlerStuck": ({"redrive_stuck_total": LATELY}, {"redrive_stuck_total": always(1)}),
    "RedriveRuleBroken": ({"redrive_rules_broken_total": LATELY}, {"redrive_rules_broken_total": always(1)}),
    "RedriveTrackLost": ({"redrive_track_dropped_total": LATELY}, {"redrive_track_dropped_total": always(1)}),
    "RedriveTrackRefused": (
        {"redrive_track_refused_total": per_second(11)},
        {"redrive_track_refused_total": per_second(9)},
    ),
    "RedriveTrackSpooling": ({"redrive_spooled_total": per_second(6)}, {"redrive_spooled_total": per_second(4)}),
    "RedriveTrackLimited": (
        {'redrive_track_limited_total{fate="kept"}': per_second(11)},
        {'redrive_track_limited_total{fate="bypass"}': per_second(11)},
    ),
    "RedriveOwnersChange": (
        {'redrive_leases_total{change="lost"}': "0x65 2x10", 'redrive_leases_total{change="unclean"}': "0x65 2x10"},
        {'redrive_leases_total{change="lost"}': "0x65 2x10", 'redrive_leases_total{change="taken"}': "0x65 2x10"},
    ),
    "RedriveSignalsDropped": ({"redrive_signals_dropped": always(1)}, {"redrive_signals_dropped": QUIET}),
}  # fmt: skip


def series(name: str, job: str) -> str:
    """The name as it is scraped: with every label that the metric has."""
    name, _, given = name.partition("{")
    labels = dict.fromkeys(named(name).labels, '"x"') | {"job": f'"{job}"', "instance": '"one:9400"'}
    labels |= dict(one.split("=") for one in given.rstrip("}").split(",") if one)
    return f"{name}{{{','.join('='.join(pair) for pair in labels.items())}}}"


def trial(alerts: dict[str, Scraped], *, fires: bool) -> dict[str, Any]:
    """Every alert has a job of its own, so that one run of promtool tries them all."""
    return {
        "interval": "1m",
        "input_series": [
            {"series": series(name, alert), "values": values}
            for alert, scraped in alerts.items()
            for name, values in scraped.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing",job=~"{alert}|"}})',
                "eval_time": LAST,
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for alert in alerts
        ],
    }


def promtool(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=120, **options)


def tried(folder: Path, trials: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """What promtool says of them; JSON is YAML."""
    file = folder / "trials.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": trials}), "utf-8")
    return promtool("test", "rules", str(file))


def test_every_alert_has_its_trial_and_the_run_says_who_tried_them(record_property: Any) -> None:
    assert set(ALERTS) == {rule.name for rule in rules()}
    said = promtool("--version").stdout.split(" (")[0] if PROMTOOL else f"NO PROMTOOL: {VARIABLE} names none"
    record_property("alerts", f"tried by {said}")


if PROMTOOL is not None:

    def test_the_rules_are_rules() -> None:
        said = promtool("check", "rules", str(RULES))
        assert said.returncode == 0, said.stderr
        assert f"{len(ALERTS)} rules found" in said.stdout

    def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
        alone = "RedriveNoWorker"  # what any worker answers ends it
        fires = {alert: both[0] for alert, both in ALERTS.items() if alert != alone}
        silent = {alert: both[1] for alert, both in ALERTS.items()}
        trials = [trial(fires, fires=True), trial({alone: {}}, fires=True), trial(silent, fires=False)]
        said = tried(tmp_path, trials)
        assert said.returncode == 0, said.stdout + said.stderr

    @pytest.mark.parametrize("alert", ["RedriveHalted", "RedriveNoWorker"])
    def test_an_alert_that_does_not_fire_is_noticed(alert: str, tmp_path: Path) -> None:
        scraped, quiet = ALERTS[alert]
        for wrong in (trial({alert: quiet}, fires=True), trial({alert: scraped}, fires=False)):
            said = tried(tmp_path, [wrong])
            assert said.returncode == 1 and alert in said.stdout + said.stderr

    @pytest.mark.sqlite("what is told does not depend on the store")
    def test_the_page_of_metrics_is_as_prometheus_wants_it(app: App, harness: Harness) -> None:
        registry = metrics(app)
        harness.append("orders", "rejected", key="a")
        harness.run_until_idle()
        page, _ = exposition(registry)
        said = promtool("check", "metrics", input=page.decode())
        assert (said.returncode, said.stdout + said.stderr) == (0, "")
