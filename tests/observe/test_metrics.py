"""Metrics: every signal moves one, labels stay few, and a scrape reads the store seldom and never writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from redrive import App, StoreError, auto_replay, breaker, metrics, no_retry, retry
from redrive.observe import metrics as m
from redrive.observe import signals as sig
from redrive.observe.prometheus import FRESH_SECONDS, LABELS_MAX, OTHER, Metrics, Scraped, exposition
from redrive.testing import Harness

DOCS = Path(__file__).parent.parent.parent / "docs"
GUIDE = DOCS / "guide" / "observability.md"
LABELS = {"subscription", "log", "state", "reason", "how", "outcome", "change", "action", "result", "breaker", "fate"}


def values(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric, by the values of its labels in the order of the table."""
    metric = max((one for one in m.ALL if name.startswith(one.name)), key=lambda one: len(one.name))
    return {
        tuple(sample.labels[label] for label in metric.labels): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def failing(number: int) -> tuple[Any, ...]:
    return ("charge", f"id-{number}", "order.placed", number, number, 1, "OSError", f"no {number}", "f" * 12)


def test_every_signal_moves_a_metric() -> None:
    assert {heard.signal for heard in m.HEARD} == set(sig.ALL)


def test_names_are_unique_and_say_their_kind_and_unit() -> None:
    names = [metric.name for metric in m.ALL]
    assert len(set(names)) == len(names)
    for metric in m.ALL:
        assert re.fullmatch(r"redrive_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith(".")
        assert set(metric.labels) <= LABELS, f"{metric.name}: is that label bounded?"


def test_what_happens_is_counted(app: App, harness: Harness) -> None:
    registry = metrics(app)
    for kind, key in [("fine", "a"), ("fails.once", "b"), ("fails.twice", "c"), ("fine", "c"), ("drop.me", "d")]:
        harness.append("orders", kind, key=key)
    harness.run_until_idle()
    harness.append("orders", "rejected")
    harness.advance("1m")
    harness.replay()

    one = ("charge",)
    assert values(registry, "redrive_appended_total") == {("orders",): 6}
    assert values(registry, "redrive_applied_total") == {one: 1}
    assert values(registry, "redrive_retried_total") == {one: 2}
    assert values(registry, "redrive_discarded_total") == {one: 1}
    assert values(registry, "redrive_parked_total") == {one: 1}
    assert values(registry, "redrive_recovered_total") == {("charge", "retry"): 1, ("charge", "replay"): 0}
    buried = values(registry, "redrive_buried_total")
    assert (buried["charge", "attempts_exhausted"], buried["charge", "rejected"]) == (2, 2)  # each again by its replay
    assert values(registry, "redrive_retry_delay_seconds_sum") == {one: 2}
    assert values(registry, "redrive_letter_attempts_sum")["charge", "recovered"] == 2
    assert values(registry, "redrive_settle_events_sum") == {one: 1}
    assert values(registry, "redrive_leases_total") == {("charge", "taken"): 1}


def test_a_batch_is_one_step_for_each_counter() -> None:
    listener, steps = Metrics(CollectorRegistry()), []

    class Child:
        inc = staticmethod(steps.append)

    listener._children[m.RETRIED]["charge",] = Child()
    listener([sig.Retried(*failing(number), 1.0) for number in range(1000)])
    assert steps == [1000.0]


def test_the_rule_that_drops_a_tracked_event_is_no_label() -> None:
    registry = CollectorRegistry()
    fates = ("kept", "bypass", "dropped by keep_if", "dropped by discard x")
    Metrics(registry)([sig.TrackLimited("views", 2, fate) for fate in fates])
    found = values(registry, "redrive_track_limited_total")
    assert found == {("views", "kept"): 2, ("views", "bypass"): 2, ("views", "dropped"): 4}


def test_a_counter_begins_at_zero_so_that_its_first_step_is_seen(app: App) -> None:
    registry = metrics(app)
    assert values(registry, "redrive_halts_total") == {("charge",): 0}
    assert values(registry, "redrive_buried_total")["charge", "permanent"] == 0


def test_a_program_that_makes_up_names_does_not_fill_the_memory() -> None:
    registry = CollectorRegistry()
    listener = Metrics(registry)
    listener([sig.Appended(f"tenant-{number}", 1, number) for number in range(LABELS_MAX + 500)])
    found = values(registry, "redrive_appended_total")
    assert len(found) == LABELS_MAX + 1
    assert found[OTHER,] == 500


def test_what_comes_round_by_itself_is_counted(app: App, harness: Harness) -> None:
    down = [True]

    @app.on(app.log("mails"), start="first", name="mail", retry=no_retry, replay=auto_replay("*/10 * * * *"))
    def mail(event: Any, ctx: Any) -> None:
        if down[0]:
            raise ConnectionError("refused")

    registry = metrics(app)
    for key in "ab":
        harness.append("mails", "mail.asked", key=key)
    harness.advance("10m")
    down.clear()
    down.append(False)
    harness.advance("10m")
    replayed = {key: value for key, value in values(registry, "redrive_auto_replayed_total").items() if value}
    ended = {key: value for key, value in values(registry, "redrive_auto_replays_total").items() if value}
    assert replayed == {("mail", "cron"): 3}
    assert ended == {("mail", "relapse"): 1, ("mail", "done"): 1}


def test_no_metric_tells_an_id_a_key_a_type_or_a_message(app: App, harness: Harness) -> None:
    registry = metrics(app)
    harness.append("orders", "rejected", {"card": "secret-data"}, key="secret-key", id="secret-id")
    harness.append("orders", "fails.twice", key="secret-two")
    harness.advance("1m")
    text = exposition(registry)[0].decode()
    assert 'redrive_letters{reason="rejected",state="dead",subscription="charge"} 1.0' in text
    assert not re.search(r"secret|fails|OSError|twice", text)


def test_gauges_are_what_the_store_says(app: App, harness: Harness) -> None:
    registry = metrics(app)
    for kind, key in [("rejected", "a"), ("fine", "a"), ("fine", "a"), ("rejected", "b")]:
        harness.append("orders", kind, key=key)
    harness.run_until_idle()
    app.operate("ada").subscriptions.pause("charge", "a test")
    harness.append("orders", "fine", key="z")
    harness.append("orders", "fine", key="z")
    harness.advance("10s")
    expected = {
        "redrive_store_up": {(): 1.0}, "redrive_signals_dropped": {(): 0.0},
        "redrive_lag_events": {("charge",): 2.0}, "redrive_lag_seconds": {("charge",): 10.0},
        "redrive_letters": {("charge", "dead", "rejected"): 2.0, ("charge", "waiting", "behind_head"): 2.0},
        "redrive_letter_age_seconds": {
            ("charge", "dead"): 10.0, ("charge", "waiting"): 10.0, ("charge", "retrying"): 0.0,
        },
        "redrive_letters_due": {("charge",): 0.0},
        "redrive_parked_lanes": {("charge",): 2.0}, "redrive_fullest_lane_letters": {("charge",): 3.0},
        "redrive_halted": {("charge",): 0.0}, "redrive_paused": {("charge",): 1.0}, "redrive_owned": {("charge",): 1.0},
        "redrive_rebuilding": {("charge",): 0.0}, "redrive_log_position": {("orders",): 6.0},
        "redrive_log_age_seconds": {("orders",): 10.0},
        "redrive_workers": {("working",): 1.0, ("standby",): 0.0, ("silent",): 0.0, ("dead",): 0.0},
    }  # fmt: skip
    found = {name: values(registry, name) for name in expected}
    ages = ("redrive_lag_seconds", "redrive_letter_age_seconds", "redrive_log_age_seconds")
    for name in ages:
        found[name] = {labels: round(value) for labels, value in found[name].items()}
    assert found == expected
    assert values(registry, "redrive_store_bytes")[()] > 10_000
    settled = values(registry, "redrive_settled_timestamp_seconds")["charge",]
    assert harness.clock.now() - settled == pytest.approx(10, abs=1)


def test_every_metric_of_the_table_can_be_scraped(app: App, harness: Harness) -> None:
    registry = metrics(app)
    harness.append("orders", "rejected", key="a")
    harness.run_until_idle()
    families = {family.name for family in registry.collect()}
    assert {metric.name.removesuffix("_total") for metric in m.ALL} == families
    read = {sample.name for family in registry.collect() for sample in family.samples}
    assert {metric.name for metric in m.SCRAPED} <= read


def test_a_breaker_is_a_state_and_its_changes_are_counted(tmp_path: Path, backend: str | None) -> None:
    app = App(str(tmp_path / "untouched.db"))
    down = [True]
    rule = breaker(failures=2, cooldown="10s", probes=1)

    @app.on(app.log("orders"), start="first", breaker=rule, retry=retry(attempts=9, wait="1s", jitter=0))
    def charge(event: Any, ctx: Any) -> None:
        if down[0]:
            raise ConnectionError("down")

    with Harness(app, backend) as harness:
        registry, states, due = metrics(app), [], []
        for wait in ("0s", "5s", "60s"):
            harness.append("orders", "x")
            harness.append("orders", "x")
            harness.advance(wait)
            seen = metrics(app, CollectorRegistry())
            states.append(values(seen, "redrive_breaker_state")["charge",])
            due.append(values(seen, "redrive_letters_due")["charge",])
            down[0] = wait == "0s"
        assert (states[1], states[2]) == (2, 0)
        assert (due[1], due[2]) == (2, 0)  # the two that failed wait for the breaker
        assert values(registry, "redrive_breaker_opened_total")["charge",] == 1
        assert values(registry, "redrive_breaker_closed_total")["charge",] == 1


def test_of_the_breakers_of_keys_there_are_counts_and_no_names(tmp_path: Path, backend: str | None) -> None:
    app = App(str(tmp_path / "untouched.db"))
    down = {"a", "b"}
    rule = breaker("tenants", per="key", failures=1, cooldown="10s", probes=1)

    @app.on(app.log("orders"), start="first", breaker=rule, retry=retry(attempts=9, wait="1s", jitter=0))
    def call(event: Any, ctx: Any) -> None:
        if event.key in down:
            raise ConnectionError("down")

    with Harness(app, backend) as harness:
        registry, found = metrics(app), []
        for wait in ("1s", "1s", "60s"):
            for key in ("a", "b", "c"):
                harness.append("orders", "x", key=key)
            harness.advance(wait)
            seen = values(metrics(app, CollectorRegistry()), "redrive_breaker_keys")
            found.append((seen["tenants", "open"], seen["tenants", "probing"]))
            down -= {"a"} if wait == "1s" else set()
        assert found == [(2, 0), (2, 0), (1, 0)]
        assert values(registry, "redrive_breaker_opened_total")["tenants",] >= 2
        assert values(registry, "redrive_breaker_closed_total")["tenants",] == 1
        labels = {value for family in registry.collect() for one in family.samples for value in one.labels.values()}
        assert not labels & {"a", "b", "tenants/a", "tenants/b", "tenants/"}


def test_a_scheduled_event_that_nobody_appends_is_late(app: App, harness: Harness) -> None:
    harness.append("orders", "fine", after="1h")
    harness.run_until_idle()
    assert values(metrics(app, CollectorRegistry()), "redrive_scheduled_late_seconds") == {(): 0}
    harness.clock.advance(3630)
    late = values(metrics(app, CollectorRegistry()), "redrive_scheduled_late_seconds")[()]
    assert late == pytest.approx(30, abs=1)
    registry = metrics(app, CollectorRegistry())
    harness.run_until_idle()
    assert values(registry, "redrive_came_due_total") == {("orders",): 1}
    assert values(metrics(app, CollectorRegistry()), "redrive_scheduled_late_seconds") == {(): 0}


def test_bulk_replays_are_counted_by_their_receipts(app: App, harness: Harness) -> None:
    harness.append("orders", "rejected", key="a")
    harness.run_until_idle()
    operate = app.operate("ada")
    number = operate.bulk.begin("replay", harness.letters("dead"), "again")
    operate.bulk.ask(number, lambda letters, part: operate.letters.replay(letters, "again", within=part))
    harness.run_until_idle()
    assert values(metrics(app), "redrive_replayed_letters")["failed",] == 1


def test_the_guide_has_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(redrive_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    found = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert found == [(metric.name, metric.kind, metric.labels, metric.help) for metric in m.ALL]


@pytest.mark.parametrize("page", ["guide/observability.md", "coming-from/e11y.md"])
def test_the_pages_speak_of_metrics_and_labels_that_exist(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    named = re.findall(r"\b(redrive_\w+)(?:\{(\w+)=)?", text)
    assert named
    known = {metric.name + suffix: metric for metric in m.ALL for suffix in ("", "_sum", "_count")}
    for name, label in named:
        assert name in known, name
        assert not label or label in known[name].labels, (name, label)


def test_scrapes_share_a_reading_for_a_few_seconds() -> None:
    reads, clock = [], [0.0]

    def read() -> Sequence[Any]:
        reads.append(clock[0])
        return [(m.STORE_UP, (), float(len(reads)))]

    scraped = Scraped(read, lambda: clock[0])
    assert scraped.describe() and reads == []
    for clock[0] in (0.0, FRESH_SECONDS - 0.1, FRESH_SECONDS, FRESH_SECONDS + 1):
        list(scraped.collect())
    assert reads == [0.0, FRESH_SECONDS]


def test_a_store_that_cannot_be_read_is_a_zero_and_the_counters_are_still_told(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = metrics(app)
    harness.append("orders", "fine")
    harness.run_until_idle()

    def gone() -> Any:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(app.runtime.store, "reading", gone)
        assert values(registry, "redrive_store_up") == {(): 0.0}
        assert values(registry, "redrive_lag_events") == {}
        assert values(registry, "redrive_applied_total") == {("charge",): 1}


def test_a_halt_that_could_not_be_written_down_is_told_by_who_halted(app: App, harness: Harness) -> None:
    registry = metrics(app)
    harness.run_until_idle()
    harness.append("orders", "fine")
    harness.fault = StoreError("the disk is full")
    harness.advance("10s")
    assert values(registry, "redrive_halted") == {("charge",): 1.0}
    assert values(registry, "redrive_halts_total")["charge",] >= 1
    harness.fault = None
    harness.advance("1m")
    assert values(metrics(app, CollectorRegistry()), "redrive_halted") == {("charge",): 0.0}


def test_asked_twice_nothing_is_counted_twice(app: App, harness: Harness) -> None:
    registry = metrics(app)
    assert metrics(app) is registry and metrics(app, registry) is registry
    harness.append("orders", "fine")
    assert values(registry, "redrive_appended_total") == {("orders",): 1}
