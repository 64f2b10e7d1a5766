"""Every listing of the command line on a million letters: how long until its first page is there.

Measured inside a process that has already answered once: what Python and the imports take is the topic `start`. Each
look opens the store anew, as a command does.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
import time
from pathlib import Path
from statistics import median

from bench.lab import Figures

LOOKS = 7

# By the name of its figure. {key}, {event} and so on are taken from the store; a listing that finds nothing has looked
# at everything, or at an index.
LISTINGS = {
    "status": "status",
    "groups": "dlq",
    "groups_of": "dlq -s totals",
    "list": "dlq list",
    "list_middle": "dlq list --after {middle}",
    "list_parked": "dlq list --parked",
    "list_subscription": "dlq list -s totals",
    "list_type": "dlq list --type order.placed",
    "list_glob": "dlq list --type order.*",
    "list_type_none": "dlq list --type no.such",
    "list_key": "dlq list --key {key}",
    "list_key_big": "dlq list --key customer-big",
    "list_reason": "dlq list --dlq-reason rejected",
    "list_reason_none": "dlq list --dlq-reason bad_key",
    "list_error": "dlq list --error PaymentRefused",
    "list_error_rare": "dlq list --error {rare_error}",
    "list_error_none": "dlq list --error no-such",
    "list_fingerprint": "dlq list --fingerprint 000000000001",
    "list_fingerprint_rare": "dlq list --fingerprint feedface",
    "list_since": "dlq list --since {late}",
    "list_until": "dlq list --until {early}",
    "list_since_all": "dlq list --since {early}",
    "list_since_none": "dlq list --since 1h",
    "list_mixed": "dlq list -s totals --type order.placed --dlq-reason rejected --since {late}",
    "stats": "dlq stats",
    "stats_subscription": "dlq stats --by reason -s totals",
    "stats_type": "dlq stats --type order.*",
    "stats_key_big": "dlq stats --key customer-big",
    "stats_error": "dlq stats --error PaymentRefused",
    "stats_error_none": "dlq stats --error no-such",
    "stats_since_all": "dlq stats --since {early}",
    "groups_key_big": "dlq --key customer-big",
    "groups_error": "dlq --error PaymentRefused",
    "groups_since_all": "dlq --since {early}",
    "show": "dlq show {letter}",
    "show_cause": "dlq show --fingerprint 000000000001",
    "show_since": "dlq show --since {late}",
    "lanes": "lanes",
    "lanes_of": "lanes -s totals",
    "ops": "ops",
    "operation": "ops 1",
    "events": "events",
    "events_log": "events orders",
    "events_key": "events --key {event_key}",
    "events_key_none": "events --key nobody",
    "events_type": "events --type order.placed",
    "events_type_none": "events --type no.such",
    "events_since": "events --since 1h",
    "events_since_none": "events --since 2100-01-01T00:00:00Z",
    "explain": "explain {event}",
    "explain_waiting": "explain {waiting}",
}


def look(folder: Path, template: str, n: int) -> Figures:
    """The median of a few looks for each listing, in milliseconds."""
    values, figures = _values(template, n), {"n": float(n)}
    for name, line in LISTINGS.items():
        words = [word.format(**values) for word in line.split()]
        _once(words, template)  # imports what it needs
        figures[f"{name}_ms"] = median(_once(words, template) for _ in range(LOOKS)) * 1e3
    return figures


def _values(template: str, n: int) -> dict[str, object]:
    with contextlib.closing(sqlite3.connect(template)) as connection:

        def one(sql: str, *arguments: object) -> object:
            found = connection.execute(sql, arguments).fetchone()
            assert found is not None, sql
            return found[0]

        dead = one("SELECT id FROM redrive_letters WHERE state = 'dead' AND id >= ? LIMIT 1", n // 3)
        return {
            "middle": n // 2, "letter": dead, "key": one("SELECT key FROM redrive_letters WHERE id = ?", dead),
            "event": one("SELECT event_id FROM redrive_letters WHERE id = ?", dead),
            "waiting": one("SELECT event_id FROM redrive_letters WHERE lane = 'customer-big' AND subscription = 1 AND "
                           "state = 'retrying' ORDER BY position DESC LIMIT 1"),
            "event_key": one("SELECT key FROM redrive_events WHERE position = ?", n // 2),
            "rare_error": f"order-{n * 84 // 100}".replace("order-", ""),
            "early": _moment(1_700_000_000 + n // 100), "late": _moment(1_700_000_000 + n * 849 // 1000),
        }  # fmt: skip


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _once(words: list[str], store: str) -> float:
    from redrive.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    started = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*words, "--store", store])
        except SystemExit as ended:
            code = int(ended.code or 0)
    seconds = time.perf_counter() - started
    if code not in (0, 3):  # 3: an operation that was done in part is shown as that
        raise RuntimeError(f"redrive {words}: {code}: {err.getvalue()[-500:]}")
    return seconds
