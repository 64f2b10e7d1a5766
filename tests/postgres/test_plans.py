"""What is asked often, or by somebody who waits, is answered from an index, however much there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from redrive.store.postgres.migrate import prepare
from redrive.store.postgres.params import translate
from redrive.store.postgres.queries import queries
from redrive.testing.servers import Databases

# Enough of everything that reading all of it would be the dearer plan.
MUCH = """
ALTER TABLE redrive.letters DISABLE TRIGGER USER;
INSERT INTO redrive.logs (name) VALUES ('orders'), ('news');
INSERT INTO redrive.events (log, id, type, key, version, schema, time_us, data)
    SELECT 1 + (n % 10 = 0)::int, md5(n::text), 'type.' || n % 7, 'k' || n % 2000, n / 2000 + 1, 1, n, 'x'
    FROM generate_series(1, 40000) n;
INSERT INTO redrive.subscriptions (name, kind, source, ordering, created_at)
    SELECT 's' || n, 'handler', 'orders', 'key', 0 FROM generate_series(1, 5) n;
INSERT INTO redrive.progress (member, subscription, position) SELECT n, n, 30000 FROM generate_series(1, 5) n;
INSERT INTO redrive.letters (subscription, position, lane, event_id, type, key, state, reason, attempts, due_at,
       due_set_at, delay, parked_at, touched_at, fingerprint, last_failed_at)
    SELECT 1 + n % 5, n, 'k' || n % 2000, md5(n::text), 'type.' || n % 7, 'k' || n % 2000,
           (ARRAY['dead', 'dead', 'retrying', 'applied', 'applied', 'discarded', 'superseded'])[1 + n % 7], 'failing',
           1, n, n, 0, n, n, 'f' || n % 97, n FROM generate_series(1, 30000) n;
INSERT INTO redrive.lanes SELECT subscription, lane, count(*), min(position) FROM redrive.letters
    WHERE state IN ('retrying', 'dead') GROUP BY subscription, lane;
INSERT INTO redrive.causes SELECT 1 + n % 5, 'f' || n, 1, 1 FROM generate_series(1, 5000) n;
INSERT INTO redrive.changes SELECT 1, n / 3, n % 3, 'k' || n % 2000 FROM generate_series(1, 30000) n;
INSERT INTO redrive.attempts (letter, attempt, at, outcome)
    SELECT n % 30000 + 1, 1, n, 'failed' FROM generate_series(1, 60000) n;
INSERT INTO redrive.journal (letter, subscription, position, state, rev, at)
    SELECT id, subscription, position, state, 0, 0 FROM redrive.letters;
INSERT INTO redrive.operation_letters (operation, letter, rev) SELECT 1 + n % 30, n, 0 FROM generate_series(1, 30000) n;
INSERT INTO redrive.operations (action, who, reason, at, selected)
    SELECT 'replay', 'ada', '', n, 1 FROM generate_series(1, 3000) n;
INSERT INTO redrive.state SELECT 1, 'k' || n, 1, 'x' FROM generate_series(1, 30000) n;
INSERT INTO redrive.edits SELECT 1, n, 1, 'x', 1 FROM generate_series(1, 5000) n;
INSERT INTO redrive.audit SELECT n, 0, 'a', 'b', 's1', 'letter ' || n, '', '{}', 'h' FROM generate_series(1, 30000) n;
ANALYZE;
"""
NOBODY = {"subscription": None, "type": None, "key": None, "reason": None, "fingerprint": None, "error": None,
          "since": None, "until": None, "after": 20000, "upto": 10**9, "limit": 50}  # fmt: skip
PAGE = {"after": 20000, "upto": 39000, "since": 0, "until": 10**12, "type": None, "key": None, "payload": 1,
        "limit": 50}  # fmt: skip
LANE = {"subscription": 1, "lane": "k17"}
ASKED: dict[str, Any] = {
    "event_by_id": (1, "abc"), "event_by_position": (7, 1), "pg_key_version": (1, "k17"),
    "key_versions": (1, '["k1","k2"]'), "events_after": (1, 20000, 100), "events_near": (1, 20000, 20200, 100),
    "marks_after": (1, 20000, 100), "events_of_key": (1, "k17", 3, 50), "log_last": (1,), "event_anchor": (1, 30000),
    "lag_count": {"log": 1, "above": 39000, "limit": 1000}, "lag_oldest": {"log": 1, "above": 30000},
    "events_up": {**PAGE, "log": 1}, "events_down": {**PAGE, "log": 1, "type": "type.*"},
    "events_of_key_up": {**PAGE, "log": 1, "key": "k17"}, "events_of_key_down": {**PAGE, "log": 1, "key": "k17"},
    "events_anywhere_up": PAGE, "events_anywhere_down": PAGE,
    "events_between": {"log": 1, "above": 30000, "below": 30100, "limit": 100},
    "events_by_prefix": {"log": 1, "start": "abc", "limit": 2}, "lane_head": (1, "k17"), "letter_event": (77,),
    "letter_events": ("[1,2,3]",), "letter_get": {"id": 77}, "attempts_of": {"letter": 77},
    "letter_open_first": {"subscription": 1},
    "select_newest": {"limit": 3}, "lane_of": LANE,
    "attention_due": {"subscription": 1, "before": 5.0, "limit": 1000}, "metrics_letters_held": {"limit": 100},
    "letters_page": {"state": "dead", "after": 20000, "limit": 50},
    "letters_to_heal": {"subscription": 1, "above": 20000, "limit": 50},
    "operation_relapsed": {"id": 7},
    "letters_page_of": {"state": "dead", "subscription": 1, "after": 20000, "limit": 50},
    "letters_waiting": {**LANE, "position": 5}, "lane_ahead": {**LANE, "position": 5000},
    "lane_letters": {**LANE, "above": 0, "limit": 50}, "letter_at": {"subscription": 1, "position": 5},
    "select_letters": {**NOBODY, "state": "dead"}, "select_letters_by_key": {**NOBODY, "key": "k17"},
    "select_letters_by_cause": {**NOBODY, "cause": "f5", "of": 1},
    "select_by_event": {"start": "abc", "limit": 2}, "cause_first": {"fingerprint": "f5", "subscription": 1},
    "cause_counts": {"fingerprint": "f5", "subscription": 1},
    "letter_settle": {"id": 7, "rev": 0, "state": "applied", "attempts": 1, "now": 1.0, "resolved_by": "x"},
    "operation_page": {"before": 500, "limit": 20},
    "operation_results": {"id": 5, "after": 0, "result": None, "limit": 50},
    "operation_bad": {"id": 5, "after": 0, "result": "failed", "limit": 50},
    "operation_unasked": {"id": 5, "after": 0, "limit": 50},
    "operation_unfinished": {"id": 5, "after": 100, "now": 1.0, "limit": 400}, "operations_waiting": {"limit": 5},
    "changed_lanes": (1, 100, 102), "changed_loose": (1, 100, 102), "change_count": (1, 100, 102),
    "operation_waiting": {"id": 5, "limit": 50},
    "state_get": (1, "k17"), "state_near": {"subscription": 1, "start": "k1", "limit": 3},
    "audit_all": {"after": 20000, "limit": 100}, "doctor_old_dead": {"subscription": 1, "limit": 1000, "before": 5.0},
    "doctor_late": {"subscription": 1, "limit": 1000, "before": 5.0},
    "prune_applied": {"subscription": 1, "after": 20000, "before": 50.0, "limit": 100},
    "prune_attempt_count": {"ids": "[1,2,3]"}, "prune_journal_count": {"ids": "[1,2,3]"},
    "prune_events_page": {"log": 1, "upto": 20000, "last": 40000, "limit": 100},
    "trim_page": {"log": 1, "upto": 20000, "limit": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def connection(postgres: Databases) -> Iterator[psycopg.Connection[Any]]:
    url = postgres.make()
    with psycopg.connect(url, autocommit=True) as connection:
        prepare(connection, url)
        connection.execute(MUCH.encode())
        yield connection
    postgres.drop(url)


def plan_of(connection: psycopg.Connection[Any], name: str, values: Any) -> list[str]:
    text = queries()[name]
    statement = translate(text, named=isinstance(values, dict))
    cursor = psycopg.RawCursor(connection)
    with connection.transaction(force_rollback=True):
        return [line for (line,) in cursor.execute(f"EXPLAIN {statement.text}", statement.bind(values)).fetchall()]


@pytest.mark.parametrize("name", ASKED)
def test_it_is_answered_from_an_index(connection: psycopg.Connection[Any], name: str) -> None:
    plan = plan_of(connection, name, ASKED[name])
    few = ("Seq Scan on subscriptions", "Seq Scan on logs")
    whole = [line for line in plan if "Seq Scan on" in line and not any(one in line for one in few)]
    assert whole == [], "\n".join(plan)


def test_a_plan_that_reads_everything_would_be_noticed(connection: psycopg.Connection[Any]) -> None:
    assert any("Seq Scan on audit" in line for line in plan_of(connection, "audit_of_target", {
        "subscription": "s1", "target": "letter 5"}))  # fmt: skip


def test_marks_become_positions_quickly(connection: psycopg.Connection[Any]) -> None:
    """Each mark used to be cut out of its chunk by itself, from the chunk's beginning on."""
    with connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO redrive.done_chunks VALUES (1, 2, '01' || repeat('0', 509) || '1')")
        found = connection.execute("SELECT position FROM redrive.done ORDER BY 1").fetchall()
    assert found == [(2 * 512 + 1,), (2 * 512 + 511,)]
