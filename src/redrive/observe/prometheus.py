"""Signals as Prometheus metrics, summed up per batch; gauges are read from the store when somebody scrapes.

A listener like any other: it runs on the signals' thread and can neither delay nor harm an event. Needs
prometheus-client, which is imported only here and only when metrics are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from redrive.errors import UsageError
from redrive.observe import metrics as m
from redrive.observe.metrics import HEARD, SCRAPED, TOLD, Heard, Labels, Metric
from redrive.observe.signals import Patient, Signal, Signals
from redrive.policy.action import BEHIND_HEAD, FAILING, HELD, REASONS
from redrive.policy.healing import Cause, Ending

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LABELS_MAX = 1_000  # sets of labels per metric; a program that makes up names gets one called "other" for the rest
OTHER = "other"
FRESH_SECONDS = 5.0  # scrapes share what was read from the store for so long: many scrapers cost as much as one

Sample = tuple[Metric, Labels, float]


def client() -> Any:
    """The library, or what to do about it."""
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise UsageError("metrics need prometheus-client: pip install 'redrive[metrics]'") from error
    return prometheus_client


class Metrics(Patient):
    """Listens, and keeps the counters and histograms of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        library = client()
        self.registry = registry
        makers = {"counter": library.Counter, "gauge": library.Gauge}
        self._made: dict[Metric, Any] = {}
        for metric in TOLD:
            if metric.kind == "histogram":
                made = library.Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry
                )
            else:
                made = makers[metric.kind](metric.name, metric.help, metric.labels, registry=registry)
            self._made[metric] = made
        self._children: dict[Metric, dict[Labels, Any]] = {metric: {} for metric in TOLD}
        self._heard: dict[type[Signal], list[Heard]] = {}
        for heard in HEARD:
            self._heard.setdefault(heard.signal, []).append(heard)

    def __call__(self, signals: Sequence[Signal]) -> None:
        """Take a batch: one step per counter, however many signals make it grow."""
        grown: dict[tuple[Metric, Labels], float] = {}
        for signal in signals:
            for heard in self._heard.get(type(signal), ()):
                metric, labels, amount = heard.metric, heard.labels(signal), heard.amount(signal)
                if metric.kind == "counter":
                    grown[metric, labels] = grown.get((metric, labels), 0.0) + amount
                elif metric.kind == "histogram":
                    self._child(metric, labels).observe(amount)
                else:
                    self._child(metric, labels).set(amount)
        for (metric, labels), amount in grown.items():
            if amount:
                self._child(metric, labels).inc(amount)

    def expect(self, subscriptions: Iterable[str], breakers: Iterable[str] = ()) -> None:
        """Begin at zero: who appears out of nothing with a one has, for Prometheus, not grown."""
        for metric in (m.BREAKER_OPENED, m.BREAKER_PROBING, m.BREAKER_CLOSED):
            for name in breakers:
                self._child(metric, (name,))
        for name in subscriptions:
            for metric in TOLD:
                if metric.labels == ("subscription",):
                    self._child(metric, (name,))
            for reason in set(REASONS) - {FAILING, HELD, BEHIND_HEAD}:  # those are not dead yet
                self._child(m.BURIED, (name, reason))
            for how in ("retry", "replay"):
                self._child(m.RECOVERED, (name, how))
            for cause in Cause:
                self._child(m.AUTO_REPLAYED, (name, str(cause)))
            for ending in Ending:
                self._child(m.AUTO_REPLAYS, (name, str(ending)))

    def _child(self, metric: Metric, labels: Labels) -> Any:
        """The metric with these labels, bound once: finding it anew would take as long as changing it."""
        children = self._children[metric]
        child = children.get(labels)
        if child is None:
            if len(children) >= LABELS_MAX:
                labels = (OTHER,) * len(labels)
            made = self._made[metric]
            child = children[labels] = made.labels(*labels) if labels else made
        return child


class Scraped:
    """A collector of what the store says, at most every few seconds."""

    def __init__(self, read: Callable[[], Iterable[Sample]], now: Callable[[], float] = time.monotonic) -> None:
        self._read, self._now = read, now
        self._lock = Lock()  # scrapes that come together share one reading
        self._seen: list[Sample] = []
        self._until = float("-inf")

    def describe(self) -> list[Any]:
        """Names and no values: whoever registers this must not open a store."""
        return list(self._families({}))

    def collect(self) -> Iterator[Any]:
        """For the registry, at each scrape."""
        with self._lock:
            if self._now() >= self._until:
                self._seen = list(self._read())
                self._until = self._now() + FRESH_SECONDS
            samples = self._seen
        by_metric: dict[Metric, list[tuple[Labels, float]]] = {}
        for metric, labels, value in samples:
            by_metric.setdefault(metric, []).append((labels, value))
        return self._families(by_metric)

    def _families(self, samples: dict[Metric, list[tuple[Labels, float]]]) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        for metric in SCRAPED:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in samples.get(metric, ())[:LABELS_MAX]:
                family.add_metric(labels, value)
            yield family


def listen(
    signals: Signals,
    read: Callable[[], Iterable[Sample]],
    registry: CollectorRegistry | None = None,
    subscriptions: Iterable[str] = (),
    breakers: Iterable[str] = (),
) -> CollectorRegistry:
    """Metrics of these signals in a registry, one of its own if none is given; asked again, the same as before."""
    for listener in signals._listeners:
        if isinstance(listener, Metrics) and registry in (None, listener.registry):
            break
    else:
        listener = Metrics(client().CollectorRegistry() if registry is None else registry)
        listener.registry.register(Scraped(read))
        signals.listen(listener)
    listener.expect(subscriptions, breakers)
    return listener.registry


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """What a scraper gets, and the type of it."""
    library = client()
    return library.generate_latest(registry), library.CONTENT_TYPE_LATEST
