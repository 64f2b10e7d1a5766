"""Celery, RQ and Dramatiq as they are: inside their jobs `track` fails nobody, and its events outlive the worker."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import fakeredis
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.worker import Worker as DramatiqWorker
from rq import Queue, SimpleWorker
from rq.timeouts import BaseDeathPenalty

from redrive import App, EventError, strict
from redrive.integrations import celery as on_celery
from redrive.integrations.dramatiq import Quiet
from redrive.integrations.rq import QuietJob
from redrive.settings import Settings
from redrive.tracking.modes import MODE, Mode

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A worker of Celery's takes the root logger for itself; other tests of this process want it back."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(str(tmp_path / "shop.db"), settings=Settings())
    yield app
    app.close()


def refused(app: App) -> int:
    app.log("orders").flush()
    return len(list(app.log("orders:refused").read()))


def stored(app: App) -> list[Any]:
    return [event.data for event in app.log("orders").read()]


# ------------------------------------------------------------ Celery


@pytest.fixture
def queue() -> Iterator[Celery]:
    celery = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    celery.conf.task_always_eager = False
    yield celery
    on_celery.uninstall()
    celery.close()


def send_mail_with(celery: Celery, app: App, sent: list[int]) -> Any:
    """The accident: a mail is sent, then the event about it cannot be stored, and the task is run again."""

    @celery.task(
        bind=True, autoretry_for=(EventError,), max_retries=3, default_retry_delay=0, name="send_mail", shared=False
    )
    def send_mail(self: Any, number: int) -> str:
        sent.append(number)
        app.log("orders").track("mail.sent", object())
        app.log("orders").track("mail.sent", number)
        return MODE.get().value

    return send_mail


def test_a_celery_task_sends_one_mail_although_its_event_cannot_be_stored(app: App, queue: Celery) -> None:
    on_celery.install(queue)
    sent: list[int] = []
    task = send_mail_with(queue, app, sent)
    with start_worker(queue, perform_ping_check=False, pool="solo", loglevel="ERROR"):
        results = [task.delay(number) for number in range(5)]
        assert [result.get(timeout=30) for result in results] == ["quiet"] * 5
    assert sorted(sent) == [0, 1, 2, 3, 4]
    assert sorted(stored(app)) == [0, 1, 2, 3, 4]  # the worker's end has seen to it
    assert refused(app) == 5


def test_without_the_integration_the_same_task_sends_four(app: App, queue: Celery) -> None:
    """The test above can fail."""
    sent: list[int] = []
    task = send_mail_with(queue, app, sent)
    with start_worker(queue, perform_ping_check=False, pool="solo", loglevel="CRITICAL"), pytest.raises(EventError):
        task.delay(7).get(timeout=30)
    assert sent == [7, 7, 7, 7]


def test_celery_is_quiet_on_worker_threads_and_eagerly_and_only_there(app: App, queue: Celery) -> None:
    on_celery.install(queue)

    @queue.task(name="mode", shared=False)
    def mode() -> tuple[str, str]:
        return MODE.get().value, threading.current_thread().name

    with start_worker(queue, perform_ping_check=False, pool="threads", concurrency=2, loglevel="ERROR"):
        found = [result.get(timeout=30) for result in [mode.delay() for _ in range(6)]]
    assert {one[0] for one in found} == {"quiet"}
    assert threading.current_thread().name not in {one[1] for one in found}
    queue.conf.task_always_eager = True
    assert mode.delay().get()[0] == "quiet"
    assert MODE.get() is Mode.PLAIN


def test_a_celery_task_that_must_fail_does(app: App, queue: Celery) -> None:
    on_celery.install(queue)

    @queue.task(name="audit", shared=False)
    @strict
    def audit() -> None:
        app.log("orders").track("audited", object())

    queue.conf.task_always_eager = True
    with pytest.raises(EventError):
        audit.delay().get()
    assert MODE.get() is Mode.PLAIN


def test_the_tasks_of_another_celery_app_are_left_alone(queue: Celery) -> None:
    on_celery.install(queue)
    other = Celery("other", broker="memory://", backend="cache+memory://", set_as_current=False)
    other.conf.task_always_eager = True

    @other.task(name="mode", shared=False)
    def mode() -> str:
        return MODE.get().value

    assert mode.delay().get() == "plain"
    other.close()


# ------------------------------------------------------------ RQ


class NoPenalty(BaseDeathPenalty):
    """RQ's own interrupts the main thread, which pytest-timeout does already."""

    def setup_death_penalty(self) -> None: ...
    def cancel_death_penalty(self) -> None: ...


_mailed: list[tuple[int, str]] = []
_shop: list[App] = []


def mail_of_rq(number: int) -> str:
    _mailed.append((number, MODE.get().value))
    _shop[0].log("orders").track("mail.sent", object())
    _shop[0].log("orders").track("mail.sent", number)
    return MODE.get().value


class InProcess(SimpleWorker):
    death_penalty_class = NoPenalty


@pytest.mark.parametrize("is_quiet", [True, False])
def test_an_rq_job_fails_because_of_its_event_only_without_the_integration(app: App, is_quiet: bool) -> None:
    _mailed.clear()
    _shop[:] = [app]
    connection = fakeredis.FakeStrictRedis()
    queue = Queue("mails", connection=connection)
    job = queue.enqueue(mail_of_rq, 7)
    worker = InProcess([queue], connection=connection, **({"job_class": QuietJob} if is_quiet else {}))
    worker.work(burst=True, logging_level="CRITICAL")
    if is_quiet:
        assert job.get_status(refresh=True) == "finished"
        assert stored(app) == [7]  # before the job was said to be done: RQ's processes just end
        assert refused(app) == 1
    else:
        assert job.get_status(refresh=True) == "failed"
    assert _mailed == [(7, "quiet" if is_quiet else "plain")]
    assert MODE.get() is Mode.PLAIN


def test_what_an_rq_job_tracks_outlives_its_process(app: App) -> None:
    """As RQ's worker does it: a fork for the job, which ends by os._exit."""
    _shop[:] = [app]
    connection = fakeredis.FakeStrictRedis()
    job = QuietJob.create(mail_of_rq, (3,), connection=connection)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if job.perform() == "quiet" else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert stored(app) == [3]


# ------------------------------------------------------------ Dramatiq


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    broker = StubBroker()
    broker.add_middleware(Quiet())
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


def test_a_dramatiq_actor_runs_once_although_its_event_cannot_be_stored(app: App, broker: StubBroker) -> None:
    seen: list[tuple[int, str]] = []

    @dramatiq.actor(max_retries=3, min_backoff=1, max_backoff=1)
    def send_mail(number: int) -> None:
        seen.append((number, MODE.get().value))
        app.log("orders").track("mail.sent", object())
        app.log("orders").track("mail.sent", number)

    @dramatiq.actor(max_retries=0)
    @strict
    def audit() -> None:
        seen.append((-1, MODE.get().value))
        app.log("orders").track("audited", object())

    worker = DramatiqWorker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        for number in range(5):
            send_mail.send(number)
        audit.send()
        broker.join(send_mail.queue_name, timeout=30_000, fail_fast=False)
        worker.join()
    finally:
        worker.stop()
    assert sorted(seen) == [(-1, "strict"), *((number, "quiet") for number in range(5))]
    assert sorted(stored(app)) == [0, 1, 2, 3, 4]  # the worker's end has seen to it
    assert len(broker.dead_letters) == 1
    assert refused(app) == 5
