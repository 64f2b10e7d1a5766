"""One database with its producer and workers, and the checks that must hold whatever was killed."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from processes import Child, Zygote, wait_until
from script import Fates, Said, fates, script
from worker_app import OF_HANDLERS, OF_PROJECTIONS, ORDERED, build, found

from redrive.event import emission_id
from redrive.replay.ledger import Verdict
from redrive.store.address import is_postgres

SMALL = {  # small windows: a crash makes what was in flight run one by one
    "REDRIVE_WINDOW_MAX": "16",
    "REDRIVE_SETTLE_MAX": "8",
    "REDRIVE_BATCH_MAX": "8",
    "REDRIVE_HALT_WAIT": "20ms",
    "REDRIVE_HALT_WAIT_MAX": "100ms",
    "REDRIVE_CRASH_CHARGES_MAX": "100000",  # the tests kill, not the events: nobody is to blame
}


class World:
    """A folder with a store, a producer's list and the flakes' memory."""

    def __init__(
        self,
        zygote: Zygote,
        folder: Path,
        seed: int = 0,
        env: dict[str, str] | None = None,
        *,
        new: bool = True,
        store: str | None = None,
    ) -> None:
        self.zygote, self.folder, self.seed = zygote, folder, seed
        self.env = SMALL | (env or {})
        self.path = store or str(folder / "shop.db")
        self.acks, self.flakes = folder / "acks", folder / "flakes"
        self.flakes.mkdir(exist_ok=True)
        self.replays = 1  # how often a letter may have been sent round by the operators of this world
        self.said = 0  # how many events the producer was told to say
        self._server: psycopg.Connection[Any] | None = None
        if new:
            found(self.path)

    # ------------------------------------------------------------ processes

    def start(self, program: str, env: dict[str, str] | None = None, **arguments: Any) -> Child:
        """A process on this world's store."""
        return self.zygote.start(program, self.folder / "stderr", env=self.env | (env or {}), **arguments)

    def worker(self, env: dict[str, str] | None = None, *, heard: str = "signals", **arguments: Any) -> Child:
        """A worker on all subscriptions; what its listener hears is in the file `heard`."""
        place = {"path": self.path, "flakes": str(self.flakes), "signals": str(self.folder / heard)}
        return self.start("worker_app:work", env, **place, **arguments)

    def producer(self, more: int, env: dict[str, str] | None = None) -> Child:
        """A producer that says so many more events; one that was killed says the last ones again."""
        self.said += more
        return self.start(
            "worker_app:produce", env, path=self.path, acks=str(self.acks), seed=self.seed, upto=self.said
        )

    def operator(self, deed: str, env: dict[str, str] | None = None, **arguments: Any) -> Child:
        """Somebody who replays or resets."""
        return self.start(f"operating:{deed}", env, path=self.path, flakes=str(self.flakes), **arguments)

    def repair(self) -> None:
        """Deploy the fixed code and replay until no letter is left that the fix could help."""
        for _ in range(20):
            child = self.operator("replay")
            assert child.wait() == 0, child.said
            self.drain(fixed=True)
            if self.rows("SELECT count(*) FROM redrive_letters WHERE state = 'dead' AND reason <> 'rejected'") == [
                (0,)
            ]:
                return
        raise AssertionError("dead letters remain that the fixed code would apply")

    def drain(self, *, fixed: bool = False) -> None:
        """Run workers until nothing is due any more."""
        for _ in range(20):
            child = self.worker(fixed=fixed, until_idle=True)
            assert child.wait() == 0, child.said
            if self.is_drained():
                return
        raise AssertionError("still not drained")

    def is_drained(self) -> bool:
        """No event above anybody's progress, no head of a lane that waits for its time."""
        lag = "SELECT count(*) FROM redrive_events e JOIN redrive_logs g ON g.id = e.log"
        behind = (
            f"{lag} JOIN redrive_subscriptions s ON s.source = g.name JOIN redrive_progress p ON p.subscription = s.id"
            " WHERE e.position > p.position"
        )
        heads = (
            "SELECT count(*) FROM redrive_letters l WHERE l.state = 'retrying' AND NOT EXISTS (SELECT 1 FROM"
            " redrive_letters h WHERE h.subscription = l.subscription AND h.lane = l.lane AND h.state = 'dead'"
            " AND h.position < l.position)"
        )
        known = "SELECT count(*) FROM redrive_subscriptions"
        with self.looking():
            if "subscriptions" not in self.ours():
                return False
            # One snapshot: a head may emit as it leaves.
            together = self.rows(f"SELECT ({known}), ({behind}), ({heads})")
            waiting = self.rows("SELECT count(*) FROM redrive_scheduled")
        return together == [(len(OF_PROJECTIONS) + len(OF_HANDLERS), 0, 0)] and waiting == [(0,)]

    # ------------------------------------------------------------ looking

    def ours(self) -> list[str]:
        """The tables of redrive's that are there."""
        if is_postgres(self.path):
            return [name for (name,) in self.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'redrive'")]
        found = self.rows("SELECT name FROM sqlite_master WHERE name LIKE 'redrive%'")
        return [name.removeprefix("redrive_") for (name,) in found]

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """What a user with the driver alone sees."""
        if is_postgres(self.path):
            words = re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql).replace("?", "%s")
            with self.looking():
                assert self._server is not None
                return self._server.execute(words.encode(), parameters or None).fetchall()
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.close()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """What is asked of a server in here goes through one connection, which takes longer to open than to ask."""
        if self._server is not None or not is_postgres(self.path):
            yield
            return
        with psycopg.connect(self.path, autocommit=True) as server:
            self._server = server
            try:
                yield
            finally:
                self._server = None

    def change(self, *statements: str) -> None:
        """What a user with the driver alone does."""
        if is_postgres(self.path):
            with psycopg.connect(self.path) as server:
                for statement in statements:
                    server.execute(re.sub(r"\bredrive_(?=[a-z])", "redrive.", statement).encode())
            return
        connection = sqlite3.connect(self.path, timeout=30)
        with connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    def signals(self, kind: str = "", heard: str = "signals") -> list[dict[str, Any]]:
        """What listeners heard, oldest first."""
        file = self.folder / heard
        text = file.read_text() if file.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in lines if kind in ("", line["signal"])]

    def durable_state(self, *, owned: bool = True) -> list[Any]:
        """Everything that settling writes, to see whether anybody settled anything in between.

        `owned`: and who owns what. Where many are awake, leases lapse on a busy machine, and are shared out anew.
        """
        if is_postgres(self.path):
            listing = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('public', 'redrive')"
        else:
            listing = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in self.rows(f"{listing} ORDER BY 1")]
        # Leases are renewed, syncs counted.
        quiet = tuple(f"redrive{dot}{name}" for dot in "_." for name in ("progress", "meta", "workers"))
        owner = ", epoch, owner" if owned else ""
        with self.looking():
            progress = self.rows(f"SELECT subscription, position, applied, ignored{owner} FROM redrive_progress")
            found = [progress, *(self.rows(f"SELECT * FROM {name}") for name in tables if name not in quiet)]
        return [sorted(rows, key=repr) for rows in found]  # a table has no order of its own

    @property
    def acked(self) -> int:
        """How many events the producer knows to be stored: its list, a line each, synced."""
        return len(self.acks.read_text().splitlines()) if self.acks.exists() else 0

    # ------------------------------------------------------------ checks

    def check(self, *, fixed: bool = False) -> None:
        """Everything, after the world was drained: totals, order, letters, emissions, state, ledger."""
        assert self.acked == self.said, "the producer itself did not finish"
        with self.looking():
            self.check_all(script(self.seed, self.said), fixed=fixed)

    def check_all(self, said: tuple[Said, ...], *, fixed: bool) -> None:
        """What must have become of what was said."""
        self.check_log(said)
        for name in (*ORDERED, "loose"):
            expected = fates(said, fixed=fixed, ordered=name in ORDERED)
            self.check_effects(name, expected)
            self.check_letters(name, expected)
        calm = [event for event in said if event.type != "noise"]
        self.check_effects("calm", Fates(applied=calm))
        check_order("calm", self.rows("SELECT key, key_seq FROM calm_rows ORDER BY seq"))
        self.check_balance(fates(said, fixed=fixed))
        self.check_emissions(fates(said, fixed=fixed))
        self.check_ledger()
        suspected = self.rows("SELECT * FROM redrive_inflight")
        assert suspected == [], f"who completed is no longer suspected: {suspected}"
        if not is_postgres(self.path):
            assert self.rows("PRAGMA integrity_check") == [("ok",)]

    def check_log(self, said: Sequence[Said]) -> None:
        """The log holds what the producer said, once and in its order, and its own writes beside."""
        sql = "SELECT e.id, e.key FROM redrive_events e JOIN redrive_logs g ON g.id = e.log AND g.name = 'orders'"
        assert self.rows(f"{sql} ORDER BY e.position") == [(event.id, event.key) for event in said]
        assert self.rows("SELECT n FROM sent ORDER BY n") == [(event.n,) for event in said if event.n % 5 == 0]

    def check_effects(self, name: str, expected: Fates) -> None:
        """Exactly the expected effects, once each, and in key order."""
        effects = self.rows(f"SELECT event_id, key, key_seq, cents FROM {name}_rows ORDER BY seq")
        assert Counter(effects) == Counter((e.id, e.key, e.key_seq, e.cents) for e in expected.applied), name
        if name in ORDERED:
            check_order(name, [(key, key_seq) for _, key, key_seq, _ in effects])

    def check_letters(self, name: str, expected: Fates) -> None:
        """The open letters are the poison and what waits behind it; only an Ignore verdict ends one unapplied."""
        sql = (
            "SELECT l.event_id, l.state, l.reason, l.attempts, l.resolved_by FROM redrive_letters l"
            " JOIN redrive_subscriptions s ON s.id = l.subscription WHERE s.name = ? AND l.state <> 'superseded'"
        )
        letters = self.rows(sql, (name,))
        by_state = defaultdict[str, set[str]](set)
        for id, state, *_ in letters:
            by_state[state].add(id)
        kinds = {event.id: event.kind for event in (*expected.dead, *expected.waiting)}
        assert by_state["dead"] == {event.id for event in expected.dead}, name
        assert by_state["retrying"] == {event.id for event in expected.waiting}, name
        assert by_state["discarded"] <= {event.id for event in expected.ignored}, name
        assert by_state["applied"] <= {event.id for event in expected.applied}, name
        for id, state, reason, attempts, resolved_by in letters:
            assert attempts <= 3 + self.replays, (name, id, attempts)
            if state == "dead":
                assert reason == {"reject": "rejected", "bug": "attempts_exhausted"}[kinds[id]], (name, id)
            elif state == "retrying":
                assert (reason, attempts) == ("behind_head", 0), (name, id)
            elif state == "discarded":
                assert resolved_by == "ignore verdict", (name, id)

    def check_balance(self, expected: Fates) -> None:
        """The upserted totals."""
        totals = defaultdict[str, int](int)
        for event in expected.applied:
            totals[event.key or ""] += event.cents
        assert dict(self.rows("SELECT key, cents FROM balance")) == dict(totals)

    def check_emissions(self, expected: Fates) -> None:
        """One emission per applied event, with the derived id, in key order; keyed state to match."""
        for name, log in (("relay", "relayed"), ("charge", "receipts")):
            sql = "SELECT e.id, e.key, e.data FROM redrive_events e JOIN redrive_logs g ON g.id = e.log AND g.name = ?"
            emitted = self.rows(f"{sql} ORDER BY e.position", (log,))
            wanted = Counter((emission_id(name, e.id, 0), e.key) for e in expected.applied)
            assert Counter((id, key) for id, key, _ in emitted) == wanted, name
            check_order(log, [(key, json.loads(data)["key_seq"]) for _, key, data in emitted])
        self.check_reminders(expected)
        mirrored = Counter(self.rows("SELECT event_id FROM mirror_rows"))
        assert mirrored == Counter((emission_id("charge", e.id, 0),) for e in expected.applied)
        states = defaultdict[str, list[int]](lambda: [0, 0])
        for event in expected.applied:
            if event.key is not None:
                states[event.key][0] += event.cents
                states[event.key][1] += 1
        stored = {key: json.loads(data) for key, data in self.rows("SELECT key, data FROM redrive_state")}
        assert {key: [state["cents"], state["events"]] for key, state in stored.items()} == dict(states)

    def check_reminders(self, expected: Fates) -> None:
        """What was scheduled has come, once: by the handler in key order, by the producer with its own writes."""
        sql = "SELECT e.id, e.type, e.key, e.data FROM redrive_events e JOIN redrive_logs g ON g.id = e.log"
        came = self.rows(f"{sql} AND g.name = 'reminders' ORDER BY e.position")
        wanted = Counter((emission_id("charge", e.id, 1), "late") for e in expected.applied)
        said = Counter((e.id, "said") for e in script(self.seed, self.said) if e.n % 5 == 0)
        assert Counter((id, kind) for id, kind, *_ in came) == wanted + said
        late = [(key, json.loads(data)["key_seq"]) for _, kind, key, data in came if kind == "late"]
        check_order("reminders", late)
        assert self.rows("SELECT id FROM redrive_scheduled") == []

    def check_ledger(self) -> None:
        """Each event that a filter asked for has exactly one fate, says the ledger that users run."""
        verdicts = self.verify()
        assert {verdict.subscription for verdict in verdicts} == {*OF_PROJECTIONS, *OF_HANDLERS}
        assert [(verdict.subscription, verdict.violations) for verdict in verdicts if not verdict.sound] == []
        assert {verdict.pending for verdict in verdicts} == {0}

    def verify(self) -> list[Verdict]:
        """What `redrive verify` says."""
        app = build(self.path, str(self.flakes))
        try:
            return app.operate("crash test").verify()
        finally:
            app.close()


def check_order(name: str, effects: Sequence[tuple[str | None, int]]) -> None:
    """Within each key the producer's numbers only ever grow."""
    last: dict[str, int] = {}
    for key, key_seq in effects:
        if key is not None:
            assert key_seq > last.get(key, 0), f"{name}: {key} went back from {last[key]} to {key_seq}"
            last[key] = key_seq


__all__ = ["World", "check_order", "wait_until"]
