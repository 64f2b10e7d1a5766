"""What is sent without waiting for an answer: how often a worker waits, and what the server does if it is not so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
import pytest

from redrive import App, no_retry
from redrive.runner.handle import Handling
from redrive.runner.project import Projector
from redrive.store.port import Disbelief
from redrive.testing import Harness
from redrive.testing.failpoints import failpoint

SEEN = {"seen": "n INTEGER PRIMARY KEY"}


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator[list[int]]:
    """How often each call of a method waits for the server."""
    count, found = 0, list[int]()
    wait, method = psycopg.Connection.wait, getattr(owner, name)

    def counted(connection: Any, *args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return wait(connection, *args, **options)

    def measured(*args: Any, **options: Any) -> Any:
        before = count
        try:
            return method(*args, **options)
        finally:
            found.append(count - before)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "wait", counted)
        patch.setattr(owner, name, measured)
        yield found


def seen(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM seen ORDER BY n")]


def project(app: App, looks: Callable[[Any], None] = lambda tx: None) -> None:
    @app.projection(app.log("orders"), name="project", tables=SEEN)
    def apply(event: Any, tx: Any) -> None:
        looks(tx)
        tx.execute("INSERT INTO seen VALUES (?)", (event.data,))


def said(harness: Harness, *numbers: int) -> None:
    for number in numbers:
        harness.append("orders", "order.placed", number)


def test_a_projection_settles_with_one_wait(app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    project(app)
    said(harness, 1)
    harness.run_until_idle()
    with waits(monkeypatch, Projector, "_commit") as found:
        for number in (2, 3):
            said(harness, number)
            harness.run_until_idle()
    assert (seen(harness), found) == ([1, 2, 3], [1, 1])


@pytest.mark.parametrize(("does", "most"), [("nothing", 1), ("fails", 2), ("emits", 4)])
def test_a_handler_settles_with_few_waits(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch, does: str, most: int
) -> None:
    """The fence is waited for only if there are effects, which are not to be tried by who is not the owner."""

    @app.on(app.log("orders"), start="first", retry=no_retry, order="none")
    def handle(event: Any, ctx: Any) -> None:
        if does == "fails":
            raise ValueError("no")
        if does == "emits":
            ctx.emit(app.log("said"), "order.said", event.data)

    said(harness, 1)
    harness.run_until_idle()
    with waits(monkeypatch, Handling, "_settle") as found:
        said(harness, 2)
        harness.run_until_idle()
    assert found == [most]
    assert (len(harness.letters("dead")), len(harness.emitted("said"))) == (
        2 * (does == "fails"),
        2 * (does == "emits"),
    )


def test_an_append_waits_for_its_event_and_for_its_commit(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(harness, 1)
    with waits(monkeypatch, Harness, "append") as found:
        said(harness, 2)
    assert found == [2]


CHANGES = {
    "another owner": "UPDATE redrive.progress SET epoch = epoch + 1, owner = NULL, lease_until = 0",
    "an operator": "UPDATE redrive.progress SET parked_version = parked_version + 1",
    "moved": "UPDATE redrive.progress SET position = position + 2, epoch = epoch + 1, owner = NULL, lease_until = 0, "
    "anchor = (SELECT id FROM redrive.events WHERE position = 3), applied = applied + 2",
}


def happen(store: str, change: str) -> None:
    """Somebody else does this now."""
    with psycopg.connect(store, autocommit=True) as other:
        other.execute(CHANGES[change].encode())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["batch.read", "batch.fenced"])
def test_who_is_wrong_about_its_progress_writes_nothing(
    app: App, harness: Harness, postgres_store: str, change: str, place: str
) -> None:
    """Between reading and settling; what was written by then is gone, and all of it comes again."""
    called: list[int] = []
    project(app, lambda tx: called.append(1))
    said(harness, 1)
    harness.run_until_idle()
    said(harness, 2, 3)

    with failpoint(place, lambda: happen(postgres_store, change)) as armed:
        harness.run_until_idle()
        harness.advance("1m")
    assert armed.fired
    assert seen(harness) == ([1] if change == "moved" else [1, 2, 3])
    assert len(called) >= 1 + 2, "it was called before it knew"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["round.called", "round.fenced"])
def test_a_handler_that_is_wrong_about_its_progress_writes_its_letters_once(
    app: App, harness: Harness, postgres_store: str, change: str, place: str
) -> None:
    """Its letters, too, are gone with the fence that did not hold; they are written by what is there, or not at all."""

    @app.on(app.log("orders"), start="first", retry=no_retry, order="none")
    def handle(event: Any) -> None:
        raise ValueError("no")

    said(harness, 1)
    harness.run_until_idle()
    said(harness, 2, 3)

    with failpoint(place, lambda: happen(postgres_store, change)) as armed:
        harness.run_until_idle()
        harness.advance("1m")
    assert armed.fired
    kept = sorted(letter.position for letter in harness.letters("dead"))
    assert kept == ([1] if change == "moved" else [1, 2, 3])
    [(attempts,)] = harness.query("SELECT count(*) FROM redrive.attempts")
    assert attempts == len(kept)


def test_what_is_paused_meanwhile_waits(app: App, harness: Harness, postgres_store: str) -> None:
    project(app)
    said(harness, 1)
    harness.run_until_idle()
    said(harness, 2)
    with failpoint("batch.read", lambda: app.operate().subscriptions.pause("project")) as armed:
        harness.run_until_idle()
    assert armed.fired
    assert seen(harness) == [1]
    app.operate().subscriptions.resume("project")
    harness.run_until_idle()
    assert seen(harness) == [1, 2]


def test_a_function_that_passes_over_every_error_does_not_commit_what_was_refused(
    app: App, harness: Harness, postgres_store: str
) -> None:
    heard: list[str] = []

    def look(tx: Any) -> None:
        try:
            tx.execute("SELECT count(*) FROM seen").fetchone()
        except Exception as error:
            heard.append(type(error).__name__)

    project(app, look)
    said(harness, 1)
    harness.run_until_idle()
    said(harness, 2)
    with failpoint("batch.read", lambda: happen(postgres_store, "an operator")):
        harness.run_until_idle()
    assert heard == ["Disbelief"]
    assert seen(harness) == [1, 2]
    assert harness.letters() == []


FORGET = {
    "said": "DEALLOCATE ALL",
    "discarded": "DISCARD PLANS; DEALLOCATE ALL",
    "hidden": "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$",
}


@pytest.mark.parametrize("way", [*FORGET, "by psycopg"])
def test_a_server_that_forgets_our_own_plans_is_told_them_again(app: App, harness: Harness, way: str) -> None:
    """Psycopg forgets all plans when it goes back to a savepoint; whoever hides it from us costs a moment."""

    calls = iter(range(100))

    def forget(tx: Any) -> None:
        if next(calls) % 4 != 3:
            return
        if way in FORGET:
            tx.connection.execute(FORGET[way])
        else:
            with pytest.raises(psycopg.errors.DivisionByZero), tx.connection.transaction():
                tx.connection.execute("SELECT 1 / 0")

    project(app, forget)
    for number in range(6):
        said(harness, number)
        harness.run_until_idle()
        harness.advance("1m")
    assert seen(harness) == [*range(6)]
    assert harness.letters() == []
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []


WRONG = ["member", "epoch", "position", "parked_version", "quiet_until", "paused"]


@pytest.mark.parametrize("what", [*WRONG, ""])
def test_each_thing_that_is_believed_is_seen_to_be_so(harness: Harness, app: App, what: str) -> None:
    """The server passes over what was sent behind it, the commit too; if all is as it was believed, it stays."""
    project(app)
    said(harness, 1)
    harness.run_until_idle()
    if what == "paused":
        with app.transaction() as tx:
            tx.execute("UPDATE redrive.progress SET paused = 1")
    store = app.runtime.store
    with store.reading() as tx:
        row = tx.progress.get(1)
    now = {"member": row.member, **{name: getattr(row, name) for name in WRONG[1:5]}}
    if what in now:
        now[what] += 1
    member, epoch, position, *rest = now.values()

    def settle() -> None:
        with store.transaction() as tx:
            tx.progress.fence(member, epoch, position, (rest[0], 0, rest[1]))
            tx.pipelined(lambda n, tx: tx.execute("INSERT INTO seen VALUES (?)", (n,)))(99, tx)
            assert tx.answers(late=True) is None, "nobody has asked the server yet"

    with pytest.raises(Disbelief) if what else nullcontext():
        settle()
    assert seen(harness) == ([1] if what else [1, 99])
