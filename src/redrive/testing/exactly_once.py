"""Does an app keep its promise? Run its functions undisturbed, then through crashes and duplicates, and compare.

The engine keeps effect and progress together, but a function can still break the promise: by a global variable,
by a connection of its own, by a call that is not idempotent. Here that shows before production does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from msgspec import UNSET

from redrive import failpoints
from redrive.app import App, Lifespan
from redrive.errors import UsageError
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.harness import Harness

Query = Callable[..., list[tuple[Any, ...]]]
Observe = Callable[[Query], Any]
Item = Mapping[str, Any] | Sequence[Any]

_START = datetime(2026, 1, 1, tzinfo=UTC)
_LATER = "40d"  # longer than any chain of retries
_SHOWN_MAX = 2_000  # characters of a result in the message

_ADVICE = {
    "round.called": "The function had run and was not settled, so it ran again.",
    "batch.called": "The function had run inside a transaction that was lost, so it ran again.",
}
_USUAL = (
    "What a function does outside of `tx` and `ctx` happens again: a global variable, a connection of its own, "
    "a call that ignores `ctx.idempotency_key`."
)


def everything(query: Query) -> dict[str, Any]:
    """What is observed by default: your tables, what was emitted, keyed state, and the open letters, in no order."""
    names = query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    yours = [name for (name,) in names if not name.startswith(("redrive_", "sqlite_"))]
    found: dict[str, Any] = {f"table {name}": _sorted(query(f'SELECT * FROM "{name}"')) for name in yours}  # noqa: S608
    found["events"] = _sorted(
        query("SELECT l.name, e.type, e.key, e.data FROM redrive_events e JOIN redrive_logs l ON l.id = e.log")
    )
    found["state"] = _sorted(query("SELECT subscription, key, data FROM redrive_state"))
    found["open letters"] = _sorted(
        query("SELECT subscription, event_id, state, reason FROM redrive_letters WHERE state IN ('retrying', 'dead')")
    )
    return found


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def check_exactly_once(
    app: App,
    events: Iterable[Item],
    observe: Observe = everything,
    *,
    before_each: Callable[[], object] = lambda: None,
    hits_max: int = 3,
    lifespan: Lifespan | None = None,
    deps: Any = UNSET,
) -> int:
    """AssertionError if a crash or a duplicate changes what `observe(query)` sees; returns how many runs it took.

    >>> @app.projection(orders, tables={"revenue": "cents INTEGER"})
    ... def revenue(event, tx):
    ...     tx.execute("INSERT INTO revenue VALUES (:cents)", {"cents": event.data["cents"]})
    >>> check_exactly_once(app, [(orders, "order.placed", {"cents": 4200}, "order-1")]) > 10
    True

    An event is `(log, type, data, key)`, of which the last two may be missing, or a dict with these names.
    `before_each` resets what the functions talk to (a fake gateway) before every run; each failpoint that the
    app passes is tried at up to `hits_max` of its hits. `lifespan` and `deps` are those of `Harness`.
    """
    start = partial(Harness, app, lifespan=lifespan, deps=deps)
    trial = _Trial(start, [_item(number, item) for number, item in enumerate(events)], observe, before_each)
    if not trial.events:
        raise UsageError("check_exactly_once needs events to feed to the app")
    trial.expect(trial.run(), "a first, undisturbed run")
    trial.expect(trial.run(), "a second, undisturbed run: something outside the database remembers the first")
    trial.expect(trial.run(twice=True), "the same events, appended a second time")
    trial.expect(trial.run(one_by_one=True), "the same events, one at a time, with a restart after each")
    for name, count in list(trial.hits.items()):
        for at in sorted({1 + round(step * (count - 1) / max(1, hits_max - 1)) for step in range(hits_max)}):
            trial.expect(trial.run_through(name, at), f"a crash at {name} (hit {at}), then the same events again", name)
    return trial.runs


@dataclass(slots=True)
class _Trial:
    """The runs of one app, each on a store of its own."""

    start: Callable[[], Harness]
    events: list[dict[str, Any]]
    observe: Observe
    before_each: Callable[[], object]
    runs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    expected: Any = None

    def run(self, *, twice: bool = False, one_by_one: bool = False) -> Any:
        """Without a crash; the first run counts the failpoints that are passed."""
        self.before_each()
        with self.start() as harness:
            if not self.hits:
                failpoints.arm(lambda name: self.hits.update((name,)))
            try:
                for _ in range(1 + twice):
                    self._feed(harness, one_by_one)
                    harness.advance(_LATER)
            finally:
                failpoints.arm(None)
            return self.observe(harness.query)

    def run_through(self, name: str, at: int) -> Any:
        """Die at a failpoint, start again, and be fed everything again."""
        self.before_each()
        with self.start() as harness:
            with failpoint(name, harness.crash, at):
                for _ in range(2):
                    try:
                        self._feed(harness)
                        harness.advance(_LATER)
                    except Crashed:
                        continue
            self._feed(harness)
            harness.advance(_LATER)
            return self.observe(harness.query)

    def _feed(self, harness: Harness, one_by_one: bool = False) -> None:
        for item in self.events:
            harness.append(**item)
            if one_by_one:
                harness.run_until_idle()
                harness.restart()

    def expect(self, found: Any, what: str, place: str = "") -> None:
        """The first result is what all others must be."""
        self.runs += 1
        if self.runs == 1:
            self.expected = found
        if found != self.expected:
            advice = f"{_ADVICE.get(place, '')} {_USUAL}".strip()
            raise AssertionError(
                f"not exactly once: {what}\n  expected: {_show(self.expected, found)}\n"
                f"  found:    {_show(found, self.expected)}\n{advice}"
            )


def _show(value: Any, other: Any) -> str:
    """The part that differs, if it can be told."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {name: part for name, part in value.items() if part != other.get(name)}
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + " …"


def _item(number: int, item: Item) -> dict[str, Any]:
    """The arguments of `harness.append`, with an id and a time that are the same in every run."""
    fixed = {"id": f"event-{number}", "time": _START + timedelta(seconds=number)}
    if isinstance(item, Mapping) and {"log", "type"} <= item.keys():
        return {**fixed, **item}
    if isinstance(item, Mapping | str) or not 2 <= len(item) <= 4:
        raise UsageError(f"an event is (log, type, data, key) or a dict with these names, not {item!r}")
    return {**fixed, **dict(zip(("log", "type", "data", "key"), item, strict=False))}


__all__ = ["check_exactly_once", "everything"]
