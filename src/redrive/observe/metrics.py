"""Every metric by name: what it means, its labels, and from where its value comes. Data alone.

Labels are bounded by construction: names that the program declares (subscription, log, breaker) and words of
ours (state, reason, how). Never an id, a key, a message or the type of an event. The guide's table, the alert
rules and the dashboard are checked against this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from redrive.observe import signals as sig
from redrive.observe.signals import Signal

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # of a transaction
DELAYS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 6 * 3_600.0)  # between attempts
BATCHES = (1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1_000.0)  # events in a transaction
ATTEMPTS = (1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is scraped."""

    name: str
    kind: Kind
    labels: Labels
    help: str
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """How a signal changes a metric: counters grow by `amount`, histograms observe it, gauges are set to it."""

    signal: type[Signal]
    metric: Metric
    labels: Callable[[Any], Labels]
    amount: Callable[[Any], float] = lambda signal: 1.0


def _subscription(signal: Any) -> Labels:
    return (signal.subscription,)


def _breaker(signal: Any) -> Labels:
    return (signal.breaker,)


def _log(signal: Any) -> Labels:
    return (signal.log,)


def _limited(signal: Any) -> Labels:
    """A rule that dropped an event is told by its text, which is no label."""
    return signal.log, signal.fate if signal.fate in ("kept", "bypass") else "dropped"


def _counter(name: str, labels: str, text: str) -> Metric:
    return Metric(name, "counter", tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str) -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), text)


def _histogram(name: str, labels: str, text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", tuple(labels.split()), text, buckets)


# ------------------------------------------------------------ told by signals, since this process started

APPENDED = _counter("redrive_appended_total", "log", "Events that this process appended.")
SCHEDULED = _counter("redrive_scheduled_total", "log", "Events that this process stored to be appended later.")
CAME_DUE = _counter("redrive_came_due_total", "log", "Scheduled events that this process appended at their time.")
CAME_LATE = _histogram("redrive_came_due_late_seconds", "log", "How late the first of each batch of them was.", DELAYS)
APPLIED = _counter("redrive_applied_total", "subscription", "Events applied.")
IGNORED = _counter("redrive_ignored_total", "subscription", "Events that the function asked to ignore, or no filter.")
RETRIED = _counter("redrive_retried_total", "subscription", "Attempts that failed and are followed by another.")
BURIED = _counter("redrive_buried_total", "subscription reason", "Letters that became dead, by reason.")
DISCARDED = _counter("redrive_discarded_total", "subscription", "Events dropped because an explicit rule asks for it.")
PARKED = _counter("redrive_parked_total", "subscription", "Events queued behind the failed head of their lane.")
RECOVERED = _counter(
    "redrive_recovered_total", "subscription how", "Letters applied after all, by a retry or a replay."
)
OPERATED = _counter("redrive_operated_total", "subscription action", "Deeds of operators inside this process.")
HALTS = _counter("redrive_halts_total", "subscription", "Times that a subscription stopped by itself.")
RESUMED = _counter("redrive_resumed_total", "subscription", "Times that a halted subscription went on.")
STUCK = _counter("redrive_stuck_total", "subscription", "Calls that overran their timeout and cannot be stopped.")
LANES_FULL = _counter("redrive_lane_full_total", "subscription", "Times that intake stopped because a lane was full.")
BREAKER_OPENED = _counter("redrive_breaker_opened_total", "breaker", "Times that a breaker opened.")
BREAKER_PROBING = _counter("redrive_breaker_probing_total", "breaker", "Times that probing a dependency began.")
BREAKER_CLOSED = _counter("redrive_breaker_closed_total", "breaker", "Times that a breaker closed again.")
PROBES = _counter("redrive_probes_total", "breaker result", "Times that a sink was asked how it is: well or unwell.")
AUTO_REPLAYED = _counter(
    "redrive_auto_replayed_total", "subscription how", "Dead letters replayed automatically, by cron or recovery."
)
AUTO_REPLAYS = _counter(
    "redrive_auto_replays_total", "subscription outcome", "Automatic replays that ended: done, relapse or cancelled."
)
RULES_BROKEN = _counter(
    "redrive_rules_broken_total", "subscription", "Rules that could not answer; the letter is kept."
)
LEASES = _counter(
    "redrive_leases_total", "subscription change", "Changes of ownership: taken, unclean, released, lost, refused."
)
SPOOLED = _counter("redrive_spooled_total", "", "Tracked events that went to the spool: the store did not take them.")
SPOOL_TAKEN = _counter("redrive_spool_taken_total", "", "Events of a spool that are in the store now.")
SPOOL_DAMAGED = _counter("redrive_spool_damaged_bytes_total", "", "Bytes of spools that are no event; set aside.")
TRACK_DROPPED = _counter("redrive_track_dropped_total", "log", "Tracked events that are lost: no room anywhere.")
TRACK_REFUSED = _counter("redrive_track_refused_total", "log", "Calls of track in quiet() that could not be stored.")
TRACK_LIMITED = _counter(
    "redrive_track_limited_total", "log fate", "Tracked events over the intake limit of their log."
)
STOPPING = _counter("redrive_stopping_total", "", "Times that this process was asked to stop.")
SETTLE_SECONDS = _histogram(
    "redrive_settle_seconds", "subscription",
    "How long a transaction took that applied or ignored events, calls of a projection included.", SECONDS,
)  # fmt: skip
SETTLE_EVENTS = _histogram(
    "redrive_settle_events", "subscription", "Events applied or ignored per such transaction.", BATCHES
)
RETRY_DELAY = _histogram(
    "redrive_retry_delay_seconds", "subscription", "Pauses between a failed attempt and the next.", DELAYS
)
LETTER_ATTEMPTS = _histogram(
    "redrive_letter_attempts", "subscription outcome", "Attempts until a letter was recovered or buried.", ATTEMPTS
)

# One line for each change of a metric by a signal. A new signal needs lines here, rows in the guide, and nothing else.
HEARD: tuple[Heard, ...] = (
    Heard(sig.Appended, APPENDED, _log, lambda s: float(s.count)),
    Heard(sig.Scheduled, SCHEDULED, _log, lambda s: float(s.count)),
    Heard(sig.CameDue, CAME_DUE, _log, lambda s: float(s.count)),
    Heard(sig.CameDue, CAME_LATE, _log, lambda s: float(s.late)),
    Heard(sig.Settled, APPLIED, _subscription, lambda s: float(s.applied)),
    Heard(sig.Settled, IGNORED, _subscription, lambda s: float(s.ignored)),
    Heard(sig.Settled, SETTLE_SECONDS, _subscription, lambda s: float(s.seconds)),
    Heard(sig.Settled, SETTLE_EVENTS, _subscription, lambda s: float(s.applied + s.ignored)),
    Heard(sig.Retried, RETRIED, _subscription),
    Heard(sig.Retried, RETRY_DELAY, _subscription, lambda s: float(s.delay)),
    Heard(sig.Buried, BURIED, lambda s: (s.subscription, s.reason)),
    Heard(sig.Buried, LETTER_ATTEMPTS, lambda s: (s.subscription, "buried"), lambda s: float(s.attempt)),
    Heard(sig.Discarded, DISCARDED, _subscription),
    Heard(sig.Parked, PARKED, _subscription, lambda s: float(s.count)),
    Heard(sig.Recovered, RECOVERED, lambda s: (s.subscription, "replay" if s.replayed else "retry")),
    Heard(sig.Recovered, LETTER_ATTEMPTS, lambda s: (s.subscription, "recovered"), lambda s: float(s.attempt)),
    Heard(sig.Operated, OPERATED, lambda s: (s.subscription, s.action)),
    Heard(sig.LeaseTaken, LEASES, lambda s: (s.subscription, "unclean" if s.unclean else "taken")),
    Heard(sig.LeaseReleased, LEASES, lambda s: (s.subscription, "released")),
    Heard(sig.LeaseLost, LEASES, lambda s: (s.subscription, "lost")),
    Heard(sig.Halted, HALTS, _subscription),
    Heard(sig.Resumed, RESUMED, _subscription),
    Heard(sig.StandingBy, LEASES, lambda s: (s.subscription, "refused")),
    Heard(sig.HandlerStuck, STUCK, _subscription),
    Heard(sig.LaneFull, LANES_FULL, _subscription),
    Heard(sig.BreakerOpened, BREAKER_OPENED, _breaker),
    Heard(sig.BreakerProbing, BREAKER_PROBING, _breaker),
    Heard(sig.BreakerClosed, BREAKER_CLOSED, _breaker),
    Heard(sig.Probed, PROBES, lambda s: (s.breaker, "well" if s.well else "unwell")),
    Heard(sig.AutoReplayed, AUTO_REPLAYED, lambda s: (s.subscription, s.cause), lambda s: float(s.count)),
    Heard(sig.AutoReplayEnded, AUTO_REPLAYS, lambda s: (s.subscription, s.how)),
    Heard(sig.RuleBroken, RULES_BROKEN, _subscription),
    Heard(sig.Spooled, SPOOLED, lambda s: (), lambda s: float(s.count)),
    Heard(sig.SpoolTaken, SPOOL_TAKEN, lambda s: (), lambda s: float(s.count)),
    Heard(sig.SpoolDamaged, SPOOL_DAMAGED, lambda s: (), lambda s: float(s.bytes)),
    Heard(sig.TrackDropped, TRACK_DROPPED, _log, lambda s: float(s.count)),
    Heard(sig.TrackRefused, TRACK_REFUSED, _log, lambda s: float(s.count)),
    Heard(sig.TrackLimited, TRACK_LIMITED, _limited, lambda s: float(s.count)),
    Heard(sig.Stopping, STOPPING, lambda s: ()),
)

# ------------------------------------------------------------ read when scraped: the same in every process on a store

STORE_UP = _gauge(
    "redrive_store_up", "", "1 if the store could be read for this scrape; 0: the gauges below are missing."
)
STORE_BYTES = _gauge("redrive_store_bytes", "", "Size of the store: the file, or redrive's tables in Postgres.")
LAG_EVENTS = _gauge("redrive_lag_events", "subscription", "Events not settled yet, counted up to 100,000.")
LAG_SECONDS = _gauge(
    "redrive_lag_seconds", "subscription", "Age of the oldest event not settled yet; 0 if there is none."
)
SETTLED_AT = _gauge(
    "redrive_settled_timestamp_seconds", "subscription", "When it last settled anything, as Unix time; 0: never."
)
LETTERS = _gauge(
    "redrive_letters", "subscription state reason", "Open letters: retrying, waiting behind another, or dead; and why."
)
LETTER_AGE = _gauge(
    "redrive_letter_age_seconds",
    "subscription state",
    "How long the oldest open letter has been one, among the first 10,000.",
)
LETTERS_DUE = _gauge(
    "redrive_letters_due", "subscription",
    "Letters to be retried now that wait for a breaker, a budget, a limit or for room, among 10,000 lanes.",
)  # fmt: skip
PARKED_LANES = _gauge("redrive_parked_lanes", "subscription", "Keys with open letters, counted up to 100,000.")
FULLEST_LANE = _gauge("redrive_fullest_lane_letters", "subscription", "Open letters of the key that has most of them.")
HALTED = _gauge("redrive_halted", "subscription", "1 if it stopped by itself and could not go on yet.")
PAUSED = _gauge("redrive_paused", "subscription", "1 if an operator paused it.")
OWNED = _gauge("redrive_owned", "subscription", "1 if a living worker owns it (all of its partitions).")
REBUILDING = _gauge(
    "redrive_rebuilding", "subscription", "1 while it is on its way back to where it was before a reset."
)
BREAKER_STATE = _gauge("redrive_breaker_state", "breaker", "0 closed, 1 probing, 2 open.")
BREAKER_KEYS = _gauge("redrive_breaker_keys", "breaker state", "Keys whose own breaker is in this state.")
LOG_POSITION = _gauge("redrive_log_position", "log", "Position of the newest event.")
LOG_AGE = _gauge("redrive_log_age_seconds", "log", "Age of the oldest event that is kept.")
REPLAYED = _gauge(
    "redrive_replayed_letters", "result", "Letters of all bulk replays on record: applied, failed, skipped, waiting."
)
SCHEDULED_LATE = _gauge("redrive_scheduled_late_seconds", "", "Since when the next scheduled event is due; 0: not yet.")
WORKERS = _gauge("redrive_workers", "state", "Processes on this store: working, standby, silent, dead.")
SIGNALS_DROPPED = _gauge(
    "redrive_signals_dropped", "", "Batches of signals that no listener got, since this process started."
)

SCRAPED: tuple[Metric, ...] = (
    STORE_UP, STORE_BYTES, LAG_EVENTS, LAG_SECONDS, SETTLED_AT, LETTERS, LETTER_AGE, LETTERS_DUE, PARKED_LANES,
    FULLEST_LANE, HALTED, PAUSED, OWNED, REBUILDING, BREAKER_STATE, BREAKER_KEYS, LOG_POSITION, LOG_AGE,
    SCHEDULED_LATE, REPLAYED, WORKERS, SIGNALS_DROPPED,
)  # fmt: skip

TOLD: tuple[Metric, ...] = tuple(dict.fromkeys(heard.metric for heard in HEARD))
ALL: tuple[Metric, ...] = (*TOLD, *SCRAPED)
