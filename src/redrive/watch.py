"""Watching an app from inside its process: health, metrics, and the pages that `redrive run` answers with.

Nothing in here is needed to process events, and nothing in here can stop them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from redrive.errors import RedriveError, StoreError, UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from redrive.app import App
    from redrive.observe.http import Answer, Query
    from redrive.observe.prometheus import Sample
    from redrive.replay.health import Health, Process
    from redrive.replay.ledger import Verdict

log = logging.getLogger("redrive")

STUCK_SECONDS = 2.0  # an event loop that has not turned for so long does nothing else either
FLUSH_SECONDS_MAX = 0.5  # how long a scrape waits for what was told before it to be counted
VERIFY_SECONDS_MIN = 60.0  # a ledger reads the whole log: asking more often gets the last answer


def health(app: App, *, verify: bool = False) -> Health:
    """Is this app well? `verify=True` also accounts for every event, which reads the whole log.

    >>> health(app).healthy
    True
    """
    from redrive.replay.health import examine_health

    return examine_health(
        _store(app), app.runtime.env, _process(app), app.subscriptions, _verified(app) if verify else None
    )


def metrics(app: App, registry: CollectorRegistry | None = None) -> CollectorRegistry:
    """Count what the app does from here on, for Prometheus: into this registry, or into one of its own."""
    from redrive.observe.prometheus import listen
    from redrive.replay.gauges import read_gauges

    runtime = app.runtime

    def read() -> list[Sample]:
        return read_gauges(
            lambda: runtime.store, runtime.env, runtime.signals, runtime.settings.lease,
            halted_here=_process(app, patience=0.0).halted, breakers=_breakers(app),
        )  # fmt: skip

    breakers = [name.removesuffix("/") for name in _breakers(app)]
    return listen(runtime.signals, read, registry, app.subscriptions, breakers)


def _breakers(app: App) -> list[str]:
    """The names of the breakers that the program declares; NAME/ where each key has one."""
    return list(dict.fromkeys(name for one in app.subscriptions.values() if (name := one.breaker_name) is not None))


def _store(app: App) -> Any:
    try:
        return app.runtime.store
    except (StoreError, UsageError) as error:
        return error


def _process(app: App, patience: float = STUCK_SECONDS) -> Process:
    from redrive.replay.health import Process

    runtime = app.runtime
    supervisor = runtime.supervisor
    posts, waiting = (supervisor.posts, dict(supervisor.waiting)) if supervisor is not None else ((), {})
    return Process(runtime.turns(patience), tuple(posts), waiting, runtime.signals.dropped)


def _verified(app: App) -> list[Verdict]:
    return app.operate("health").verify()


# ------------------------------------------------------------ over HTTP


class Pages:
    """What is answered where."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = Lock()
        self._ledger: list[Verdict] | None = None  # a violation stays in sight until a later look finds none
        self._verified_at = float("-inf")
        try:
            self._registry: CollectorRegistry | None = metrics(app)
        except UsageError as error:
            self._registry, self._why_not = None, str(error)

    def all(self) -> dict[str, Any]:
        """By path."""
        return {"/metrics": self.metrics, "/livez": self.livez, "/readyz": self.readyz, "/healthz": self.healthz}

    def metrics(self, query: Query) -> Answer:
        """For Prometheus."""
        from redrive.observe.http import Answer
        from redrive.observe.prometheus import exposition

        if self._registry is None:
            return Answer(501, "text/plain; charset=utf-8", f"{self._why_not}\n".encode())
        self._app.runtime.signals.flush(FLUSH_SECONDS_MAX)
        body, content_type = exposition(self._registry)
        return Answer(200, content_type, body)

    def livez(self, query: Query) -> Answer:
        """503: restart this process."""
        from redrive.replay.health import check_loop

        check = check_loop(_process(self._app))  # and nothing of the store, which may be slow to answer
        return _as_json(check.ok, {"live": check.ok, "message": check.message})

    def readyz(self, query: Query) -> Answer:
        """200: it works or stands by."""
        found = self._look()
        return _as_json(found.is_ready, found.shown())

    def healthz(self, query: Query) -> Answer:
        """200: there is nothing to look at. With `?verify=1` every event is accounted for first."""
        if "verify" in query:
            self._verify()
        found = self._look()
        return _as_json(found.healthy, found.shown())

    def _look(self) -> Health:
        from redrive.replay.health import examine_health

        app = self._app
        return examine_health(_store(app), app.runtime.env, _process(app), app.subscriptions, self._ledger)

    def _verify(self) -> None:
        with self._lock:
            if time.monotonic() - self._verified_at >= VERIFY_SECONDS_MIN:
                try:
                    self._ledger = _verified(self._app)
                    self._verified_at = time.monotonic()
                except RedriveError as error:  # the store cannot be read, which the look will say
                    log.warning("could not verify: %s", error)


def _as_json(ok: bool, value: dict[str, Any]) -> Answer:
    from redrive.observe.http import Answer

    return Answer(200 if ok else 503, "application/json", json.dumps(value, indent=1).encode() + b"\n")


@contextmanager
def serving(app: App) -> Iterator[tuple[str, int] | None]:
    """Answer over HTTP while the block lasts, where the setting `http` says; where that cannot be, say so and go on."""
    address = app.runtime.settings.http
    if address == "off":
        yield None
        return
    from redrive.observe.http import answering

    host, _, port = address.rpartition(":")
    manager = answering(host.strip("[]"), int(port), Pages(app).all())
    try:
        where = manager.__enter__()
    except OSError as error:
        log.warning(
            "no metrics and health on http://%s: %s; processing goes on. Give each worker an address of its own "
            '(REDRIVE_HTTP=127.0.0.1:9465), or http = "off"', address, error.strerror or error,
        )  # fmt: skip
        yield None
        return
    log.info("metrics and health on http://%s:%s/", *where)
    try:
        yield where
    finally:
        manager.__exit__(None, None, None)
