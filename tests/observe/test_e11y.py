"""What the page for users of e11y promises, seen in a run: defaults, alerts, and metrics that no other test moves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import eq, gt
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from redrive import App, StoreError, breaker, metrics, quiet, retry
from redrive.event import Event
from redrive.observe import signals as sig
from redrive.observe.prometheus import Metrics
from redrive.replay.prune import What, plan_prune, prune
from redrive.settings import Settings, load_settings
from redrive.sinks.http import HttpError
from redrive.sinks.port import Sink
from redrive.testing import Harness
from redrive.testing.fakes import FakeClock
from tests.observe.test_alerts import inside, rules
from tests.observe.test_metrics import failing, values

POLICY = pytest.mark.sqlite("what is tested is the policy; the store is the same contract")
PAGE = Path(__file__).parent.parent.parent / "docs" / "coming-from" / "e11y.md"


class Adapter(Sink):
    """Down or not; remembers when it was called."""

    def __init__(self) -> None:
        super().__init__("crm")
        self.is_down, self.calls = True, list[float]()
        self.clock = FakeClock()
        self.error: Exception = ConnectionRefusedError("nobody listens")
        self.on_call: Callable[[int], None] = lambda number: None

    async def send(self, events: Sequence[Event[Any]]) -> None:
        self.calls.append(self.clock.monotonic())
        self.on_call(len(self.calls))
        if self.is_down:
            raise self.error


class Asked(Adapter):
    """Can be asked how it is."""

    asked = 0

    async def probe(self) -> None:
        self.asked += 1
        if self.is_down:
            raise self.error


class Shop:
    """One adapter behind `app.deliver`, with its defaults but for what is given."""

    def __init__(
        self, backend: str | None, settings: Settings | None = None, kind: type[Adapter] = Adapter, **options: Any
    ) -> None:
        self.app = App("unused.db")
        self.crm = kind()
        self.app.deliver(self.app.log("orders"), to=self.crm, start="first", **options)
        self.registry = metrics(self.app, CollectorRegistry())
        self.harness = Harness(self.app, backend, settings=settings)
        self.crm.clock = self.harness.clock

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.close()

    def put(self, count: int) -> None:
        items = [{"type": "order.placed", "key": f"{number}"} for number in range(count)]
        self.app.log("orders").append_many(items)

    def value(self, name: str, *labels: str) -> float:
        return values(metrics(self.app, CollectorRegistry()) if "total" not in name else self.registry, name)[labels]


# ------------------------------------------------------------ options and defaults


@POLICY
def test_a_breaker_opens_after_5_errors_stays_open_for_60_seconds_and_is_probed_by_3(backend: str | None) -> None:
    with Shop(backend, concurrency=1) as shop:
        shop.put(20)
        shop.harness.advance("59s")
        assert len(shop.crm.calls) == 5
        shop.harness.advance("2s")
        assert shop.crm.calls[5] == pytest.approx(60, abs=0.5), "and the first bad probe opens it again"
        assert len(shop.crm.calls) == 6
        shop.crm.is_down = False
        shop.harness.advance("58s")
        assert len(shop.crm.calls) == 6
        shop.harness.advance("10s")
        assert len(shop.crm.calls) > 9
        assert not shop.harness.letters("dead")


@POLICY
def test_a_breaker_of_its_own_for_one_adapter(backend: str | None) -> None:
    with Shop(backend, concurrency=1, breaker=breaker(failures=3, cooldown="30s")) as shop:
        shop.put(20)
        shop.harness.advance("29s")
        assert len(shop.crm.calls) == 3
        shop.harness.advance("2s")
        assert len(shop.crm.calls) == 4


@POLICY
def test_a_retry_waits_1_2_4_8_seconds_give_or_take_a_tenth_and_the_fifth_is_the_last(backend: str | None) -> None:
    with Shop(backend, breaker=None) as shop:
        shop.put(1)
        shop.harness.advance("1h")
        pauses = [later - earlier for earlier, later in zip(shop.crm.calls, shop.crm.calls[1:], strict=False)]
        for pause, expected in zip(pauses, (1, 2, 4, 8), strict=True):
            assert expected * 0.9 <= pause <= expected * 1.1 + 0.1
        assert [letter.reason for letter in shop.harness.letters("dead")] == ["attempts_exhausted"]


@POLICY
def test_e11ys_own_timeline_can_be_had(backend: str | None) -> None:
    """`max_retries 3, base_delay_ms 100, max_delay_ms 5000`: at 0, 100, 300 and 700 ms."""
    with Shop(backend, breaker=None, retry=retry(attempts=4, wait="100ms", wait_max="5s", jitter=0)) as shop:
        shop.put(1)
        shop.harness.advance("1m")
        assert shop.crm.calls == pytest.approx([0, 0.1, 0.3, 0.7], abs=0.02)


@POLICY
@pytest.mark.parametrize(
    ("profile", "count", "in_a_second"), [(None, 250, 100), ("staging", 250, 100), ("production", 150, 50)]
)
def test_retries_have_a_budget_and_what_is_over_it_waits(
    backend: str | None, profile: str | None, count: int, in_a_second: int
) -> None:
    settings, _ = load_settings(None, {} if profile is None else {"REDRIVE_PROFILE": profile})
    once = retry(attempts=9, wait="10s", factor=1, jitter=0)
    with Shop(backend, settings, breaker=None, retry=once, concurrency=500) as shop:
        shop.put(count)
        shop.harness.advance("5s")
        assert len(shop.crm.calls) == count, "first attempts are not counted"
        shop.crm.is_down = False
        waiting: list[float] = []

        def look(number: int) -> None:
            if number == count + in_a_second:
                waiting.append(shop.value("redrive_letters_due", "crm"))

        shop.crm.on_call = look
        shop.harness.advance("30s")
        assert waiting[0] >= count - 2 * in_a_second
        seconds = Counter(int(at - 10) for at in shop.crm.calls[count:])
        assert max(seconds.values()) <= in_a_second * 1.1 + 1, "a tenth of a second's worth may be saved up"
        assert sum(seconds.values()) == count
        assert not shop.harness.letters("dead") and not shop.harness.letters("retrying")


@POLICY
def test_in_development_what_is_over_the_budget_is_a_dead_letter(backend: str | None) -> None:
    settings, _ = load_settings(None, {"REDRIVE_PROFILE": "development"})
    once = retry(attempts=9, wait="10s", factor=1, jitter=0)
    with Shop(backend, settings, breaker=None, retry=once, concurrency=500) as shop:
        shop.put(1_200)
        shop.harness.advance("5s")
        shop.crm.is_down = False
        shop.harness.advance("30s")
        buried = shop.value("redrive_buried_total", "crm", "retry_limited")
        assert buried == len(shop.harness.letters("dead")) > 0
        assert buried + shop.value("redrive_recovered_total", "crm", "retry") == 1_200


@POLICY
def test_retries_count_towards_the_limit_of_a_dependency(backend: str | None) -> None:
    with Shop(backend, breaker=None, limit="10/s", retry=retry(attempts=3, wait="1s", factor=1, jitter=0)) as shop:
        shop.put(30)
        shop.harness.advance("1m")
        assert len(shop.crm.calls) == 90
        assert max(Counter(int(at) for at in shop.crm.calls).values()) <= 11


@POLICY
def test_who_can_be_asked_is_asked_while_its_breaker_is_open_and_is_back_long_before_60_seconds(
    backend: str | None,
) -> None:
    with Shop(backend, kind=Asked) as shop:
        assert isinstance(shop.crm, Asked)
        shop.put(20)
        shop.harness.advance("30s")
        assert 4 <= shop.crm.asked <= 6, "every five seconds"
        assert shop.value("redrive_probes_total", "crm", "unwell") == shop.crm.asked
        (told, *_) = [signal for signal in shop.harness.signals if isinstance(signal, sig.Probed)]
        assert (told.well, told.error_type, told.error_message) == (False, "ConnectionRefusedError", "nobody listens")
        (found,) = shop.app.operate().breakers.list()
        assert shop.harness.clock.now() - found.since == pytest.approx(30, abs=2), (
            "open since then, however often asked"
        )
        shop.crm.is_down = False
        shop.harness.advance("10s")
        assert shop.value("redrive_breaker_state", "crm") == 0
        assert shop.value("redrive_probes_total", "crm", "well") == 1
        asked = shop.crm.asked
        shop.harness.advance("1m")
        assert shop.crm.asked == asked, "nobody asks who is well"


# ------------------------------------------------------------ metrics


def test_a_bad_dependency_is_seen_in_the_metrics_of_its_breaker(backend: str | None) -> None:
    with Shop(backend) as shop:
        shop.put(20)
        shop.harness.advance("30s")
        assert shop.value("redrive_breaker_state", "crm") == 2
        assert shop.value("redrive_lag_events", "crm") > 0
        assert shop.value("redrive_lag_seconds", "crm") >= 29
        assert shop.value("redrive_retried_total", "crm") >= 5
        shop.crm.is_down = False
        shop.harness.advance("2m")
        told = ("redrive_breaker_opened_total", "redrive_breaker_probing_total", "redrive_breaker_closed_total")
        assert [shop.value(name, "crm") for name in told] == [1, 1, 1]
        assert (shop.value("redrive_breaker_state", "crm"), shop.value("redrive_lag_events", "crm")) == (0, 0)
        assert shop.value("redrive_recovered_total", "crm", "retry") >= 5


def test_what_an_open_breaker_buries_is_counted_by_its_reason(backend: str | None) -> None:
    with Shop(backend, breaker=breaker(when_open="bury"), concurrency=1) as shop:
        shop.put(20)
        shop.harness.advance("1s")
        assert shop.value("redrive_buried_total", "crm", "breaker_open") >= 15
        assert shop.value("redrive_letters", "crm", "dead", "breaker_open") >= 15


def test_a_permanent_error_is_not_retried_and_its_replay_is_counted_once_it_works(backend: str | None) -> None:
    with Shop(backend) as shop:
        shop.crm.error = HttpError("https://crm.example.com", 404)
        shop.put(2)
        shop.harness.advance("1h")
        assert len(shop.crm.calls) == 2
        assert shop.value("redrive_retried_total", "crm") == 0
        assert shop.value("redrive_buried_total", "crm", "permanent") == 2
        shop.crm.is_down = False
        operate = shop.app.operate("ada")
        number = operate.bulk.begin("replay", shop.harness.letters("dead"), "they know the customer now")
        operate.bulk.ask(number, lambda letters, part: operate.letters.replay(letters, "again", within=part))
        shop.harness.run_until_idle()
        assert shop.value("redrive_recovered_total", "crm", "replay") == 2
        assert shop.value("redrive_replayed_letters", "applied") == 2
        assert shop.value("redrive_applied_total", "crm") == 0, "a letter that was applied is counted as recovered"


def test_pauses_of_retries_are_counted_and_added_up(backend: str | None) -> None:
    with Shop(backend, breaker=None, retry=retry(attempts=3, wait="2s", jitter=0)) as shop:
        shop.put(1)
        shop.harness.advance("1m")
        assert values(shop.registry, "redrive_retry_delay_seconds_count") == {("crm",): 2}
        assert values(shop.registry, "redrive_retry_delay_seconds_sum") == {("crm",): 6}
        assert values(shop.registry, "redrive_letter_attempts_sum")["crm", "buried"] == 3


def test_tracking_is_counted_where_it_is_limited_refused_or_spooled(backend: str | None) -> None:
    app = App("unused.db")
    views = app.log("views", intake="10/s", keep="payment.*")
    registry = metrics(app, CollectorRegistry())
    with Harness(app, backend) as harness, quiet():
        for number in range(20):
            views.track("payment.made" if number % 2 else "page.viewed", number)
        assert views.track("odd", object()) is None
        harness.run_until_idle()
        harness.fault = StoreError("the disk is away")
        assert app.log("clicks").track("made") is not None
        harness.fault = None
        app.runtime.tracker.report.tell(0.0, last=True)
        assert values(registry, "redrive_spooled_total") == {(): 1}
        assert values(registry, "redrive_track_limited_total") == {("views", "kept"): 5, ("views", "dropped"): 5}
        assert values(registry, "redrive_track_refused_total") == {("views",): 1}
        assert [event.type for event in app.log("views:refused").read()] == ["track.refused"]
        assert len(list(app.log("views:limited").read())) == 5
        assert values(registry, "redrive_appended_total")["views",] == 10


def test_a_prune_is_a_deed_that_is_counted(app: App, harness: Harness) -> None:
    registry = metrics(app)
    harness.append("orders", "fails.once", key="a")
    harness.advance("1m")
    harness.clock.advance(400 * 86_400)
    operator, what = app.operate("ada").operator, What(older_than=30 * 86_400.0)
    done = prune(operator, what, plan_prune(operator.store, operator.now(), what), "old")
    assert done.applied == 1
    found = {action: count for (_, action), count in values(registry, "redrive_operated_total").items()}
    assert found["prune"] == 1


# ------------------------------------------------------------ alerts


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in registry.collect() for one in family.samples
    }


def fires(expression: str, before: dict[Any, float], now: dict[Any, float], seconds: float) -> bool:
    """The few words of PromQL that these alerts are made of, for a scrape and the one `seconds` before it."""
    found = re.fullmatch(r"(.*) (>|==) ([\d.]+)", expression)
    assert found is not None, expression
    compare = {">": gt, "==": eq}[found[2]]
    return any(compare(value, float(found[3])) for value in evaluate(found[1], before, now, seconds).values())


def evaluate(text: str, before: dict[Any, float], now: dict[Any, float], seconds: float) -> dict[Any, float]:
    """Values by their labels."""
    if grouped := re.match(r"(sum|max) by \(([^)]*)\) \(", text):
        kept = {name.strip() for name in grouped[2].split(",")}
        values: dict[Any, list[float]] = {}
        for labels, value in evaluate(inside(text, grouped.end() - 1), before, now, seconds).items():
            values.setdefault(frozenset(pair for pair in labels if pair[0] in kept), []).append(value)
        return {labels: sum(many) if grouped[1] == "sum" else max(many) for labels, many in values.items()}
    if rated := re.fullmatch(r"rate\((.*)\[5m\]\)", text):
        old = evaluate(rated[1], before, before, seconds)
        return {
            labels: (value - old.get(labels, 0)) / seconds
            for labels, value in evaluate(rated[1], now, now, seconds).items()
        }
    selector = re.fullmatch(r"(\w+)(?:\{(\w+)=\"(\w+)\"\})?", text)
    assert selector is not None, text
    wanted = {(selector[2], selector[3])} if selector[2] else set()
    return {labels: value for (name, labels), value in now.items() if name == selector[1] and wanted <= labels}


def buried(reason: str, count: int) -> Iterator[sig.Signal]:
    return (sig.Buried(*failing(number), reason) for number in range(count))


MINUTES = 300.0
ALERTS = {  # what e11y alerts of, as that many signals in five minutes: one step above its threshold
    "RedriveRetryRateHigh": lambda more: (sig.Retried(*failing(n), 1.0) for n in range(30_000 + more)),
    "RedriveBreakerBuries": lambda more: buried("breaker_open", 1_500 + more),
    "RedriveRetryBudgetBuries": lambda more: buried("retry_limited", 15_000 + more),
    "RedriveTrackRefused": lambda more: [sig.TrackRefused("views", "x", 3_000 + more, "TypeError", "no")],
    "RedriveTrackLimited": lambda more: [sig.TrackLimited("views", 3_000 + more, "kept")],
}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_above_its_threshold_and_not_at_it(name: str) -> None:
    (rule,) = [rule for rule in rules() if rule.name == name]
    for more, expected in ((0, False), (1, True)):
        registry = CollectorRegistry()
        listener = Metrics(registry)
        before = samples(registry)
        listener(list(ALERTS[name](more)))
        assert fires(rule.fields["expr"], before, samples(registry), MINUTES) is expected


def test_the_alert_of_an_open_breaker_fires_while_it_is_open(backend: str | None) -> None:
    (rule,) = [rule for rule in rules() if rule.name == "RedriveBreakerOpen"]
    with Shop(backend) as shop:
        seen = []
        for wait in ("0s", "30s", "3m"):
            shop.harness.advance(wait)
            now = samples(metrics(shop.app, CollectorRegistry()))
            seen.append(fires(rule.fields["expr"], now, now, MINUTES))
            shop.put(20)
            shop.crm.is_down = wait == "0s"
        assert seen == [False, True, False]


def test_the_alert_of_many_dead_letters_adds_up_their_reasons(backend: str | None) -> None:
    (rule,) = [rule for rule in rules() if rule.name == "RedriveDeadLettersMany"]
    for more, expected in ((0, False), (1, True)):
        now = {
            ("redrive_letters", frozenset({"subscription": "crm", "state": state, "reason": reason}.items())): count
            for state, reason, count in (
                ("dead", "rejected", 4_000.0), ("dead", "permanent", 6_000.0 + more), ("retrying", "failed", 9_000.0),
            )
        }  # fmt: skip
        assert fires(rule.fields["expr"], now, now, MINUTES) is expected


def test_every_alert_of_the_page_is_tried_here() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Alerts")[1]
    named = set(re.findall(r"\| `(Redrive\w+)`", section))
    assert named == {*ALERTS, "RedriveBreakerOpen", "RedriveDeadLettersMany"}
