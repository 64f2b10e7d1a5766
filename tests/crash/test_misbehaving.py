"""Functions that misbehave: each has its documented behaviour, and none harms its neighbours."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import Child, Zygote, wait_until

from redrive import App

FORMS = ("async", "sync", "projection", "list")
BAD = "bad-1"
GOOD = ("a-1", "b-1", "a-2", "c-1", "b-2", "a-3")
BEHIND = ("bad-2", "bad-3")


class Stage:
    """A store with seven good events around a bad one, two of them behind it in its lane."""

    def __init__(self, zygote: Zygote, folder: Path, form: str, deed: str) -> None:
        self.zygote, self.folder, self.form, self.deed = zygote, folder, form, deed
        self.path, self.calls_file, self.gate = str(folder / "store.db"), folder / "calls", folder / "gate"
        app = App(self.path)
        for id in ("a-1", "b-1", BAD, "a-2", BEHIND[0], "c-1", "b-2", BEHIND[1], "a-3"):
            app.log("things").append("thing", {"bad": id == BAD}, key=id.split("-")[0], id=id)
        with app.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS done_rows (event_id TEXT NOT NULL)")
        app.close()

    def worker(self, env: dict[str, str] | None = None, *, heard: str = "signals", **arguments: Any) -> Child:
        place = {"path": self.path, "calls": str(self.calls_file), "signals": str(self.folder / heard)}
        env = {"REDRIVE_HALT_WAIT": "20ms"} | (env or {})
        return self.zygote.start(
            "misbehaving:work", self.folder / "stderr", env=env, form=self.form, deed=self.deed, **place, **arguments
        )

    def rows(self, sql: str) -> list[Any]:
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def letters(self) -> dict[str, tuple[Any, ...]]:
        """Event id to (state, reason, attempts, error type, message)."""
        sql = "SELECT event_id, state, reason, attempts, error_type, error_message FROM redrive_letters"
        return {id: tuple(rest) for id, *rest in self.rows(sql)}

    def signals(self, kind: str, heard: str = "signals") -> list[dict[str, Any]]:
        file = self.folder / heard
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line["signal"] == kind]

    def calls(self, id: str) -> int:
        """How often the function was called for an event, by its own account."""
        return Counter(self.calls_file.read_text().split())[id] if self.calls_file.exists() else 0

    def is_drained(self) -> bool:
        heads = "SELECT count(*) FROM redrive_letters WHERE state = 'retrying' AND reason <> 'behind_head'"
        behind = "SELECT count(*) FROM redrive_events, redrive_progress p WHERE redrive_events.position > p.position"
        return self.rows(heads) == [(0,)] and self.rows(behind) == [(0,)]

    def check_only_the_bad_one_is_dead(self, reason: str, attempts: int) -> None:
        letters = self.letters()
        assert {id: row[0] for id, row in letters.items() if row[0] != "applied"} == {
            BAD: "dead", **dict.fromkeys(BEHIND, "retrying")
        }  # fmt: skip
        assert letters[BAD][1:3] == (reason, attempts)
        assert Counter(self.rows("SELECT event_id FROM done_rows")) == Counter((id,) for id in GOOD)
        assert self.rows("SELECT owner, unclean FROM redrive_progress") == [(None, 0)]


RAISED = {
    "CancelledError": "asyncio.exceptions.CancelledError",
    "MemoryError": "MemoryError",
    "RecursionError": "RecursionError",
    "StopIteration": "StopIteration",
    "StopAsyncIteration": "StopAsyncIteration",
    "GeneratorExit": "GeneratorExit",
    "ExceptionGroup": "ExceptionGroup",
    "BaseExceptionGroup": "BaseExceptionGroup",
    "Mute": "misbehaving.Mute",
    "100 MB": "ValueError",
    "surrogate": "ValueError",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("deed", RAISED)
def test_whatever_a_function_raises_is_a_failed_attempt(deed: str, form: str, zygote: Zygote, tmp_path: Path) -> None:
    stage = Stage(zygote, tmp_path, form, deed)
    for _ in range(5):
        worker = stage.worker()
        assert worker.wait() == 0, worker.said
        if stage.is_drained():
            break
    stage.check_only_the_bad_one_is_dead("attempts_exhausted", attempts=2)
    _, _, _, error_type, message = stage.letters()[BAD]
    wrapped = form == "async" and deed == "StopIteration"  # by Python itself, for every coroutine
    assert error_type == ("RuntimeError" if wrapped else RAISED[deed])
    assert len(message.encode()) <= 8192
    if form in ("async", "sync"):  # a projection may be called again: it touches nothing but the transaction
        assert stage.calls(BAD) == 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("deed", ["SystemExit", "KeyboardInterrupt"])
def test_a_function_that_wants_to_exit_stops_the_worker_and_spends_no_attempt(
    deed: str, form: str, zygote: Zygote, tmp_path: Path
) -> None:
    stage = Stage(zygote, tmp_path, form, deed)
    for _ in range(4):
        worker = stage.worker(until_idle=False)
        assert worker.wait() == 0, worker.said
        assert stage.letters().get(BAD) is None
        assert stage.rows("SELECT owner, unclean FROM redrive_progress") == [(None, 0)]
    assert stage.rows("SELECT * FROM redrive_inflight WHERE charges > 0") == []
    applied = Counter(stage.rows("SELECT event_id FROM done_rows"))
    assert set(applied.values()) <= {1}
    assert not {(BAD,), *((id,) for id in BEHIND)} & set(applied)


@pytest.mark.parametrize("form", FORMS)
def test_a_function_that_ends_the_process_is_charged_three_times_and_buried(
    form: str, zygote: Zygote, tmp_path: Path
) -> None:
    """The first death happens in company and is charged to nobody; then it dies alone, three times."""
    stage = Stage(zygote, tmp_path, form, "os._exit")
    deaths = 0
    while (code := stage.worker().wait()) != 0:
        assert code == 1
        deaths += 1
        assert deaths <= 4
    assert deaths == 4
    assert stage.calls(BAD) == 4
    while not stage.is_drained():
        assert stage.worker().wait() == 0
    stage.check_only_the_bad_one_is_dead("crashed_worker", attempts=1)


def test_a_coroutine_that_hangs_is_cancelled_at_its_timeout(zygote: Zygote, tmp_path: Path) -> None:
    stage = Stage(zygote, tmp_path, "async", "hang")
    worker = stage.worker(until_idle=False, timeout="50ms")
    wait_until(lambda: stage.letters().get(BAD, ("",))[0] == "dead")
    wait_until(stage.is_drained)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    stage.check_only_the_bad_one_is_dead("attempts_exhausted", attempts=2)
    assert stage.letters()[BAD][3] == "TimeoutError"
    assert stage.calls(BAD) == 2


def test_a_plain_function_that_hangs_keeps_only_its_key_busy_and_counts_as_a_timeout(
    zygote: Zygote, tmp_path: Path
) -> None:
    stage = Stage(zygote, tmp_path, "sync", "hang")
    worker = stage.worker(until_idle=False, timeout="50ms", gate=str(stage.gate))
    wait_until(lambda: stage.signals("HandlerStuck"))
    wait_until(lambda: Counter(stage.rows("SELECT event_id FROM done_rows")) == Counter((id,) for id in GOOD))
    assert stage.letters() == {}, "nothing is decided while the thread may still return"
    stage.gate.touch()  # the first call returns too late, the second in time
    wait_until(lambda: {row[0] for row in stage.letters().values()} == {"applied"})
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert [line["error_type"] for line in stage.signals("Retried")] == ["TimeoutError"]
    assert [line["event_id"] for line in stage.signals("HandlerStuck")] == [BAD]
    assert stage.calls(BAD) == 2
    applied = Counter(stage.rows("SELECT event_id FROM done_rows"))
    assert applied == Counter((id,) for id in (*GOOD, BAD, *BEHIND)), "what the late call asked of ctx is dropped"


@pytest.mark.parametrize("form", ["async", "sync"])
def test_a_stop_does_not_wait_for_ever_and_gives_the_attempt_back(form: str, zygote: Zygote, tmp_path: Path) -> None:
    stage = Stage(zygote, tmp_path, form, "hang")
    for turn in (1, 2):
        worker = stage.worker({"REDRIVE_STOP_TIMEOUT": "100ms"}, until_idle=False, gate=str(stage.gate))
        wait_until(lambda: stage.calls(BAD) == turn)  # noqa: B023
        wait_until(lambda: Counter(stage.rows("SELECT event_id FROM done_rows")) == Counter((id,) for id in GOOD))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said
        assert stage.letters() == {}
    assert stage.rows("SELECT * FROM redrive_inflight WHERE charges > 0") == []


def test_a_stop_that_leaves_a_thread_behind_is_no_crash(zygote: Zygote, tmp_path: Path) -> None:
    """After a crash everything runs one at a time: behind what hangs again, the other keys would wait, too."""
    stage = Stage(zygote, tmp_path, "sync", "hang")
    app = App(stage.path)
    for turn in (1, 2):
        app.log("things").append("thing", {"bad": False}, key="d", id=f"d-{turn}")
        heard = f"worker {turn}"
        worker = stage.worker({"REDRIVE_STOP_TIMEOUT": "100ms"}, until_idle=False, gate=str(stage.gate), heard=heard)
        wait_until(lambda: stage.calls(BAD) == turn)  # noqa: B023
        wait_until(lambda: (f"d-{turn}",) in stage.rows("SELECT event_id FROM done_rows"))  # noqa: B023
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said
        assert [line["unclean"] for line in stage.signals("LeaseTaken", heard)] == [False]
        assert stage.rows("SELECT owner IS NULL, unclean FROM redrive_progress") == [(0, 0)], (
            "while the process is there nobody may call it again"
        )
        assert stage.signals("LeaseReleased", heard) == []
    app.close()


def test_a_stop_spends_the_attempt_of_a_plain_function_that_has_overrun(zygote: Zygote, tmp_path: Path) -> None:
    """Else one that never returns begins again with its first attempt after every deploy, and is never a letter."""
    stage = Stage(zygote, tmp_path, "sync", "hang")
    for turn, state in enumerate(("retrying", "dead"), 1):
        heard = f"worker {turn}"
        impatient = {"REDRIVE_STOP_TIMEOUT": "100ms"}
        worker = stage.worker(impatient, until_idle=False, timeout="50ms", gate=str(stage.gate), heard=heard)
        wait_until(lambda: stage.signals("HandlerStuck", heard))  # noqa: B023
        wait_until(lambda: Counter(stage.rows("SELECT event_id FROM done_rows")) == Counter((id,) for id in GOOD))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said
        assert stage.letters()[BAD][:4:2] == (state, turn)
        assert stage.letters()[BAD][3] == "TimeoutError"
    assert stage.rows("SELECT * FROM redrive_inflight WHERE charges > 0") == []
    assert stage.worker(gate=str(stage.gate)).wait() == 0
    stage.check_only_the_bad_one_is_dead("attempts_exhausted", attempts=2)
    assert stage.calls(BAD) == 2


def test_a_stop_does_not_wait_for_ever_for_a_projection_that_blocks(zygote: Zygote, tmp_path: Path) -> None:
    """It holds the transaction, which is rolled back when the process ends; also when it runs alone after a kill."""
    stage = Stage(zygote, tmp_path, "projection", "block")
    impatient = {"REDRIVE_STOP_TIMEOUT": "100ms"}
    for turn, ending in enumerate([signal.SIGTERM, signal.SIGKILL, signal.SIGTERM], 1):
        worker = stage.worker(impatient, until_idle=False, gate=str(stage.gate))
        wait_until(lambda: stage.calls(BAD) == turn)  # noqa: B023
        worker.signal(ending)
        assert worker.wait() == (0 if ending == signal.SIGTERM else -ending), worker.said
        assert stage.letters() == {}
    stage.gate.touch()
    assert stage.worker(gate=str(stage.gate)).wait() == 0
    applied = Counter(stage.rows("SELECT event_id FROM done_rows"))
    assert applied == Counter((id,) for id in (*GOOD, BAD, *BEHIND))


@pytest.mark.parametrize("form", ["async", "sync"])
def test_a_second_signal_ends_the_worker_at_once(form: str, zygote: Zygote, tmp_path: Path) -> None:
    stage = Stage(zygote, tmp_path, form, "hang")
    worker = stage.worker({"REDRIVE_STOP_TIMEOUT": "10m"}, until_idle=False, gate=str(stage.gate))
    wait_until(lambda: stage.calls(BAD) == 1)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: stage.signals("Stopping"))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    assert stage.letters() == {}


def test_a_second_signal_ends_a_worker_whose_loop_is_blocked(zygote: Zygote, tmp_path: Path) -> None:
    stage = Stage(zygote, tmp_path, "async", "block")
    worker = stage.worker(until_idle=False, gate=str(stage.gate))
    wait_until(lambda: stage.calls(BAD) == 1)
    numbers = signal.SIGTERM, signal.SIGINT  # two of a kind that are pending at once would be one
    for number in numbers:
        worker.signal(number)
    assert worker.wait() in [128 + number for number in numbers]
    assert stage.letters() == {}


def test_a_function_that_blocks_the_loop_loses_its_lease_and_commits_nothing(zygote: Zygote, tmp_path: Path) -> None:
    stage = Stage(zygote, tmp_path, "async", "block")
    short = {"REDRIVE_LEASE": "300ms"}
    blocked = stage.worker(short, until_idle=False, gate=str(stage.gate), heard="blocked")
    wait_until(lambda: stage.calls(BAD) == 1)
    stage.deed = "MemoryError"  # the heir meets the same event and fails in another way
    heir = stage.worker(short, until_idle=False, heard="heir")
    wait_until(lambda: stage.signals("LeaseTaken", "heir"))
    wait_until(lambda: stage.letters().get(BAD, ("",))[0] == "dead")
    wait_until(stage.is_drained)
    stage.gate.touch()
    wait_until(lambda: stage.signals("LeaseLost", "blocked"))
    for worker in (blocked, heir):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said
    stage.check_only_the_bad_one_is_dead("attempts_exhausted", attempts=2)
