"""The outbox: what goes to a broker is stored with the effect, carried by a delivery, trimmed when it arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from redrive import App, Event, Sink, UsageError, retry
from redrive.sinks import SomeFailed
from redrive.sinks.brokers import BrokerDown, TooLarge
from redrive.sources.port import Reader, Source
from redrive.testing import Harness
from redrive.testing.fakes import FakeCtx, make_event


class Board(Source):
    """A broker in memory."""

    scheme, partitions, ordered, acknowledges = "board", 1, True, False

    def __init__(self, name: str) -> None:
        self.name = name
        self.taken: list[Event[Any]] = []
        self.is_down = False
        self.too_large: set[Any] = set()

    def open(self, group: str) -> Reader:
        raise AssertionError("nobody reads here")

    def check_order(self, order: str) -> None:
        """Whatever."""

    def sink(self, name: str) -> Sink:
        return Pin(self, name)

    @property
    def said(self) -> list[Any]:
        return [event.data for event in self.taken]


class Pin(Sink):
    batch_max = 100

    def __init__(self, board: Board, name: str) -> None:
        super().__init__(name)
        self.board = board

    async def send(self, events: Sequence[Event[Any]]) -> None:
        if self.board.is_down:
            raise BrokerDown("out of order")
        bad: dict[int, BaseException] = {}
        for at, event in enumerate(events):
            if event.data in self.board.too_large:
                bad[at] = TooLarge("too large")
            else:
                self.board.taken.append(event)
        if bad:
            raise SomeFailed(bad)


@pytest.fixture
def app() -> App:
    return App("/nonexistent/x.db", name="shop")


def test_what_is_emitted_to_a_broker_commits_with_the_effect_and_arrives(app: App, backend: Any) -> None:
    orders, board = app.log("orders"), Board("shipped")
    app.outbox(board)

    @app.on(orders, start="first", retry=retry(attempts=3, wait="1s"))
    def ship(event: Any, ctx: Any) -> None:
        ctx.emit(board, "order.shipped", event.data)
        if ctx.attempt == 1:
            raise OSError("the emission of this attempt is dropped")

    @app.projection(orders, tables={"seen": "n INTEGER"})
    def note(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})
        tx.emit(board, "order.seen", event.data)

    with Harness(app, backend) as harness:
        for n in range(10):
            harness.append(orders, "order.placed", n, key=f"k{n % 3}")
        harness.run_until_idle()
        harness.advance("1m")
        shipped = [event for event in board.taken if event.type == "order.shipped"]
        assert sorted(event.data for event in shipped) == list(range(10))
        for key in range(3):
            assert [event.data for event in shipped if event.key == f"k{key}"] == list(range(key, 10, 3))
        assert sorted(event.data for event in board.taken if event.type == "order.seen") == list(range(10))
        assert len(harness.emitted(board)) == 20
        assert {one.subscription: one.lag_events for one in app.operate().status()}["to:board:shipped"] == 0
        assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []


def test_business_code_writes_to_an_outbox_in_its_own_transaction(app: App, backend: Any) -> None:
    board = Board("mail")
    outbox = app.outbox(board)
    with Harness(app, backend) as harness:
        with app.transaction() as tx:
            outbox.append("mail.sent", 1, key="ada", tx=tx)
        with suppress(ZeroDivisionError), app.transaction() as tx:
            outbox.append("mail.sent", 2, key="ada", tx=tx)
            raise ZeroDivisionError
        outbox.append("mail.sent", 3, key="ada")
        harness.run_until_idle()
        assert board.said == [1, 3]


def test_what_nobody_would_carry_is_an_error_that_names_the_way_out(app: App, backend: Any) -> None:
    orders, board = app.log("orders"), Board("shipped")

    @app.on(orders, start="first")
    def ship(event: Any, ctx: Any) -> None:
        ctx.emit(board, "order.shipped", event.data)

    with Harness(app, backend) as harness:
        harness.append(orders, "order.placed", 1, key="k")
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        assert "app.outbox(" in letter.error_message
        assert harness.emitted(board) == []
    app.outbox(board)
    with pytest.raises(UsageError, match="declare it once"):
        app.outbox(board)
    with pytest.raises(UsageError, match=r"such as redrive\.redis\.Stream"):
        app.outbox(orders)  # type: ignore[arg-type]


def test_an_outbox_in_total_order_refuses_to_send_side_by_side(app: App) -> None:
    with pytest.raises(UsageError, match="one at a time: leave concurrency out"):
        app.outbox(Board("shipped"), order="total", concurrency=2)
    app.outbox(Board("billed"), order="total")
    assert app.subscriptions["to:board:billed"].concurrency == 1


def test_an_outbox_keeps_no_versions(app: App, backend: Any) -> None:
    orders, board = app.log("orders"), Board("shipped")
    outbox = app.outbox(board)

    @app.on(orders, start="first")
    def ship(event: Any, ctx: Any) -> None:
        ctx.emit(board, "order.shipped", event.data, expected_version=0)

    with Harness(app, backend) as harness:
        for refused in (
            lambda: outbox.append("x", 1, key="k", expected_version=0),
            lambda: outbox.append_many([{"type": "x", "key": "k", "expected_version": 0}]),
            lambda: asyncio.run(outbox.append_async("x", 1, key="k", expected_version=0)),
        ):
            with pytest.raises(UsageError, match="keeps no versions"):
                refused()
        harness.append(orders, "order.placed", 1, key="k")
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        assert "keeps no versions" in letter.error_message


def test_a_broker_that_is_down_delays_the_outbox_and_nobody_else(app: App, backend: Any) -> None:
    orders, board = app.log("orders"), Board("shipped")
    app.outbox(board, retry=retry(attempts=10, wait="1s"))
    done = []

    @app.on(orders, start="first")
    def ship(event: Any, ctx: Any) -> None:
        done.append(event.data)
        ctx.emit(board, "order.shipped", event.data)

    with Harness(app, backend) as harness:
        board.is_down = True
        for n in range(20):
            harness.append(orders, "order.placed", n, key=f"k{n % 2}")
        harness.advance("2m")
        assert (done, board.said) == (list(range(20)), [])
        lag = {one.subscription: one.lag_events for one in app.operate().status()}
        assert lag["ship"] == 0
        board.is_down = False
        harness.advance("10m")
        for key in range(2):
            assert [e.data for e in board.taken if e.key == f"k{key}"] == list(range(key, 20, 2))


def test_an_event_too_large_for_the_broker_is_a_letter_and_parks_its_key(app: App, backend: Any) -> None:
    board = Board("shipped")
    outbox = app.outbox(board)
    with Harness(app, backend) as harness:
        board.too_large = {2}
        for n in range(10):
            outbox.append("order.shipped", n, key=f"k{n % 2}")
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        assert (letter.key, letter.attempts, letter.error_type) == ("k0", 1, "redrive.sinks.brokers.TooLarge")
        assert sorted(board.said) == [0, 1, 3, 5, 7, 9]
        board.too_large = set()
        harness.replay()
        assert [n for n in board.said if n % 2 == 0] == [0, 2, 4, 6, 8]


def test_the_id_is_the_same_each_time_it_is_published(app: App, backend: Any) -> None:
    board = Board("shipped")
    outbox = app.outbox(board)
    with Harness(app, backend) as harness:
        event = outbox.append("order.shipped", 1, key="k")
        harness.run_until_idle()
        desk = app.operate().subscriptions
        desk.seek("to:board:shipped", "first", "once more")
        harness.run_until_idle()
        assert [one.id for one in board.taken] == [event.id, event.id]


def test_a_fake_ctx_knows_what_went_to_a_broker() -> None:
    board, ctx = Board("shipped"), FakeCtx(make_event("x", 1, key="k"))
    ctx.emit(board, "order.shipped", 7)
    assert ctx.emitted(board) == [("order.shipped", 7)]


# ------------------------------------------------------------ trimming


def left(app: App, board: Board) -> list[Any]:
    return [event.data for event in app.log(board.outbox).read()]


def test_what_has_arrived_is_trimmed_when_it_is_old(app: App, backend: Any) -> None:
    board = Board("shipped")
    outbox = app.outbox(board, keep="1h")
    with Harness(app, backend) as harness:
        outbox.append_many([{"type": "x", "data": n, "key": f"k{n % 50}"} for n in range(2_500)])
        harness.advance("50m")
        assert len(left(app, board)) == 2_500
        outbox.append_many([{"type": "x", "data": n, "key": "young"} for n in range(3)])
        harness.advance("30m")
        assert left(app, board) == [0, 1, 2]  # also the newest of a key: nobody asks for its version
        harness.advance("2h")
        assert left(app, board) == [2]  # by which progress recognises the log
        outbox.append("x", 7, key="k1")
        harness.run_until_idle()
        assert board.said[-1] == 7
        assert len(board.said) == 2_504
        assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
        (row,) = app.operate().status()
        assert (row.lag_events, row.applied) == (0, 2_504)


def test_what_has_not_arrived_is_never_trimmed(app: App, backend: Any) -> None:
    board = Board("shipped")
    outbox = app.outbox(board, keep="1m", retry=retry(attempts=3, wait="1s"))
    with Harness(app, backend) as harness:
        board.too_large = {3}
        for n in range(10):
            outbox.append("x", n, key=f"k{n % 2}")
        harness.advance("3m")
        assert left(app, board) == list(range(3, 10))  # the letter's event, and what is behind it
        board.too_large = set()
        harness.replay()
        harness.advance("3m")
        assert left(app, board) == [9]
        board.is_down = True
        for n in range(10, 15):
            outbox.append("x", n, key="k")
        harness.advance("3m")
        assert left(app, board) == list(range(10, 15))
        board.is_down = False
        harness.advance("3m")
        harness.replay()
        assert [n for n in board.said if n >= 10] == list(range(10, 15))
        assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []


def test_another_reader_holds_what_it_has_not_read(app: App, backend: Any) -> None:
    board, seen = Board("shipped"), []
    outbox = app.outbox(board, keep="1m")
    app.on(outbox, name="look", start="first")(lambda event, ctx: seen.append(event.data))
    with Harness(app, backend) as harness:
        harness.run_until_idle()
        app.operate().subscriptions.pause("look")
        for n in range(5):
            outbox.append("x", n, key="k")
        harness.advance("3m")
        assert (board.said, left(app, board)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
        app.operate().subscriptions.resume("look")
        harness.run_until_idle()
        harness.advance("3m")
        assert (seen, left(app, board)) == ([0, 1, 2, 3, 4], [4])
