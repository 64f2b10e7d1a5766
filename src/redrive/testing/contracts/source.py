"""The contract of a source that is a log: append, read in order, and be read by subscriptions exactly once.

class TestMyLog(SourceContract):
    def make_source(self, app):
        return app.log("orders")
"""

from __future__ import annotations

from typing import Any

from redrive.app import App
from redrive.errors import IdConflict, VersionConflict
from redrive.testing.contracts.base import expect
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.harness import Harness


class SourceContract:
    """What subscriptions rely on. Every test has an app of its own in a harness, `self.harness`."""

    def make_source(self, app: App) -> Any:
        """The source under test, on this app."""
        raise AssertionError("a source's contract needs make_source(self, app)")

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self._app = App("/nonexistent/contract.db")
        self.source = self.make_source(self._app)
        self.harness = Harness(self._app)

    def teardown_method(self) -> None:
        """Called by pytest after each test."""
        self.harness.close()

    def _see(self, *types: str, **options: Any) -> None:
        """A handler that copies what it gets, in the order it gets it."""
        with self._app.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS seen (n INTEGER PRIMARY KEY, data)")

        def see(event: Any, ctx: Any) -> None:
            ctx.execute("INSERT INTO seen (data) VALUES (:data)", {"data": event.data})

        self._app.on(self.source, *types, name="see", **{"start": "first", **options})(see)

    def _seen(self) -> list[Any]:
        return [data for (data,) in self.harness.query("SELECT data FROM seen ORDER BY n")]

    def test_events_are_read_in_the_order_they_were_appended(self) -> None:
        for number in range(7):
            self.source.append("order.placed", number, key=f"k{number % 3}")
        events = list(self.source.read())
        assert [event.data for event in events] == list(range(7))
        assert [event.position for event in events] == sorted({event.position for event in events})
        assert [event.data for event in self.source.read(after=events[3].position)] == [4, 5, 6]

    def test_events_of_a_key_have_versions(self) -> None:
        for number in range(6):
            self.source.append("order.placed", number, key=f"k{number % 2}")
        assert [(event.version, event.data) for event in self.source.read_key("k1")] == [(1, 1), (2, 3), (3, 5)]

    def test_an_expected_version_and_a_repeated_id_are_checked(self) -> None:
        first = self.source.append("order.placed", 1, key="a", id="x", expected_version=0)
        assert self.source.append("order.placed", 1, key="a", id="x").position == first.position
        expect(IdConflict, lambda: self.source.append("order.placed", 2, key="a", id="x"))
        expect(VersionConflict, lambda: self.source.append("order.placed", 2, key="a", expected_version=0))

    def test_a_subscription_gets_every_event_once_in_order(self) -> None:
        self._see()
        for number in range(10):
            self.source.append("order.placed", number, key="a")
            if number % 3 == 0:
                self.harness.run_until_idle()
        self.harness.run_until_idle()
        assert self._seen() == list(range(10))

    def test_a_filter_chooses_types(self) -> None:
        self._see("order.*")
        for kind in ("order.placed", "user.born", "order.paid"):
            self.source.append(kind, kind)
        self.harness.run_until_idle()
        assert self._seen() == ["order.placed", "order.paid"]

    def test_a_start_now_leaves_out_what_was_there(self) -> None:
        self.source.append("order.placed", "old")
        self._see(start="now")
        self.harness.run_until_idle()
        self.source.append("order.placed", "new")
        self.harness.run_until_idle()
        assert self._seen() == ["new"]

    def test_a_restart_goes_on_where_it_ended(self) -> None:
        self._see()
        for number in range(6):
            self.source.append("order.placed", number)
            self.harness.run_until_idle()
            self.harness.restart()
        self.harness.run_until_idle()
        assert self._seen() == list(range(6))

    def test_a_crash_anywhere_in_settling_loses_and_doubles_nothing(self) -> None:
        self._see()
        expected = []
        places = ("round.called", "round.fenced", "round.effects", "round.before_commit", "round.committed")
        for number, place in enumerate(places):
            self.source.append("order.placed", number, key="a")
            expected.append(number)
            with failpoint(place, self.harness.crash):
                expect(Crashed, self.harness.run_until_idle)
            self.harness.run_until_idle()
        assert self._seen() == expected

    def test_an_append_in_a_transaction_is_there_when_it_commits_and_not_before(self) -> None:
        self._see()
        with self._app.transaction() as tx:
            self.source.append("order.placed", 1, tx=tx)
            assert list(self.source.read()) == []
        expect(ZeroDivisionError, self._fail_in_transaction)
        self.harness.run_until_idle()
        assert self._seen() == [1]

    def _fail_in_transaction(self) -> None:
        with self._app.transaction() as tx:
            self.source.append("order.placed", 2, tx=tx)
            raise ZeroDivisionError
