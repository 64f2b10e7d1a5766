"""Logs: positions in commit order, versions within a key, ids that name one fact."""

from __future__ import annotations

from datetime import UTC, datetime

from redrive.errors import IdConflict, UsageError, VersionConflict
from redrive.testing.contracts.base import StoreTests, expect


class LogContract(StoreTests):
    """What appends rely on."""

    def test_positions_grow_over_all_logs_and_each_log_has_its_own_events(self) -> None:
        first = self._put(self._new(), self._new())
        second = self._put(self._new(), log="payments")
        third = self._put(self._new())
        assert sorted({*first, *second, *third}) == [*first, *second, *third]
        with self.store.reading() as tx:
            assert [row[0] for row in tx.logs.after(tx.logs.id_of("orders"), 0, 10)] == [*first, *third]
            assert [row[0] for row in tx.logs.after(tx.logs.id_of("payments"), 0, 10)] == second

    def test_a_position_that_was_given_is_never_given_again(self) -> None:
        (before,) = self._put(self._new())

        def fail() -> None:
            with self.store.transaction() as tx:
                tx.logs.append("orders", [self._new()])
                raise ValueError

        expect(ValueError, fail)
        self._reopen()
        (after,) = self._put(self._new())
        assert after > before

    def test_a_row_comes_back_as_it_was_stored(self) -> None:
        event = self._new("order.placed", {"n": 1, "t": "é"}, key="ключ", headers={"h": "v"}, id="given")
        (position,) = self._put(event)
        with self.store.reading() as tx:
            [row] = tx.logs.after(tx.logs.id_of("orders"), 0, 10)
        assert tuple(row[:7]) == (position, "given", "order.placed", "ключ", 1, 1, event.time_us)
        assert (bytes(row[7]), bytes(row[8])) == (event.headers_raw, event.data_raw)

    def test_versions_count_from_one_within_a_key_and_a_log(self) -> None:
        self._put(self._new(key="a"), self._new(key="b"), self._new(key="a"), self._new())
        self._put(self._new(key="a"), log="payments")
        with self.store.reading() as tx:
            log = tx.logs.id_of("orders")
            assert [row[4] for row in tx.logs.after(log, 0, 10)] == [1, 1, 2, None]
            assert [row[4] for row in tx.logs.of_key(log, "a", 0, 10)] == [1, 2]
            assert [row[4] for row in tx.logs.of_key(log, "a", 1, 10)] == [2]
            assert [row[4] for row in tx.logs.of_key(tx.logs.id_of("payments"), "a", 0, 10)] == [1]

    def test_an_expected_version_is_checked(self) -> None:
        self._put(self._new(key="a", expected_version=0), self._new(key="a", expected_version=1))
        error = expect(VersionConflict, lambda: self._put(self._new(key="a", expected_version=1)))
        assert (error.expected, error.actual) == (1, 2)
        keyless = self._new()._replace(expected_version=0)
        expect(UsageError, lambda: self._put(keyless))

    def test_a_repeated_id_is_the_same_event_or_an_error(self) -> None:
        once = self._put(self._new(data=1, id="x"))
        with self.store.transaction() as tx:
            rows, repeated = tx.logs.append("orders", [self._new(data=1, id="x"), self._new(data=2)])
        assert (rows[0][0], repeated) == (once[0], True)
        expect(IdConflict, lambda: self._put(self._new(data=2, id="x")))
        assert len(self._put(self._new(data=2, id="x"), log="payments")) == 1

    def test_a_derived_event_that_is_stored_already_is_left_as_it_is(self) -> None:
        for data in (1, 2):
            self._put(self._new(data=data, id="derived", key="a")._replace(derived=True))
        with self.store.transaction() as tx:
            tx.logs.append_derived("orders", [self._new(data=3, id="derived", key="a")._replace(derived=True)])
            tx.logs.append_derived("orders", [self._new(data=4, key="a"), self._new(data=5, key="a"), self._new()])
        with self.store.reading() as tx:
            rows = tx.logs.after(tx.logs.id_of("orders"), 0, 10)
        assert [(bytes(row[8]), row[4]) for row in rows] == [(b"1", 1), (b"4", 2), (b"5", 3), (b"null", None)]

    def test_many_derived_events_get_versions_without_gaps_whichever_are_stored_already(self) -> None:
        keys = ["a", "b", None, 'c"\\ü\u2028']
        for stored in ((), (0,), (17,), (3, 40), tuple(range(41))):
            log = f"stored {len(stored)} {sum(stored)}"
            made = [self._new(data=n, id=f"derived {n}", key=keys[n % 4]) for n in range(41)]
            before = [self._new(data="first", id="before", key="a"), *(made[n] for n in stored)]
            self._put(*before, log=log)
            with self.store.transaction() as tx:
                tx.logs.append_derived(log, [event._replace(derived=True) for event in made])
            with self.store.reading() as tx:
                rows = tx.logs.after(tx.logs.id_of(log), 0, 100)
            late = [event.id for event in made if event not in before]
            assert [row[1] for row in rows] == [*(event.id for event in before), *late]
            for key in keys:
                versions = [row[4] for row in rows if row[3] == key]
                assert versions == ([None] * len(versions) if key is None else list(range(1, len(versions) + 1)))


class ReadingContract(StoreTests):
    """What reads rely on."""

    def test_reading_goes_on_above_a_position_up_to_a_limit(self) -> None:
        positions = self._put(*(self._new(data=n) for n in range(5)))
        with self.store.reading() as tx:
            log = tx.logs.id_of("orders")
            assert [row[0] for row in tx.logs.after(log, positions[1], 2)] == positions[2:4]
            assert (tx.logs.last(log), tx.logs.lag(log, positions[1])) == (positions[-1], 3)
            assert tx.logs.lag(log, 0, limit=2) == 2
            marks = tx.sql.all("marks_after", (log, positions[1], 2))
            assert marks == [(row[0], row[1], row[3]) for row in tx.logs.after(log, positions[1], 2)]
            assert tx.logs.counts(log, positions[0], positions[3]) == {"order.placed": 3}

    def test_reading_in_pages_misses_nothing_where_a_log_is_alone_and_where_it_is_one_of_many(self) -> None:
        mine: list[int] = []
        for others in (0, 50, 0, 1, 0):  # between two of ours
            for _ in range(20):
                mine += self._put(self._new())
                self._put(*(self._new() for _ in range(others)), log="payments")
        for page in (1, 3, 7, 40, 1000):
            found: list[int] = []
            with self.store.reading() as tx:
                log = tx.logs.id_of("orders")
                while rows := tx.logs.after(log, found[-1] if found else 0, page):
                    found += [row[0] for row in rows]
            assert found == mine, f"pages of {page}"

    def test_an_anchor_is_the_last_event_at_or_below_a_position(self) -> None:
        (one,) = self._put(self._new(id="one"))
        self._put(self._new(id="elsewhere"), log="payments")
        (two,) = self._put(self._new(id="two"))
        with self.store.reading() as tx:
            log = tx.logs.id_of("orders")
            anchors = [tx.logs.anchor(log, position) for position in (one, two - 1, two, two + 9)]
        assert anchors == ["one", "one", "two", "two"]

    def test_a_time_is_found_among_events(self) -> None:
        days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
        positions = self._put(*(self._new(time=day) for day in days))
        with self.store.reading() as tx:
            log = tx.logs.id_of("orders")
            found = [tx.logs.last_before(log, round(day.timestamp() * 1e6)) for day in days]
            assert found == [positions[0] - 1, positions[0], positions[1]]
            assert tx.logs.last_before(log, 2**60) == positions[-1]
            assert tx.logs.oldest_above(log, positions[0]) == round(days[1].timestamp() * 1e6)
            assert tx.logs.oldest_above(log, positions[-1]) is None

    def test_a_log_that_has_no_events_reads_as_empty(self) -> None:
        with self.store.reading() as tx:
            log = tx.logs.id_of("nothing")
            assert (log, tx.logs.last(log), tx.logs.after(log, 0, 10)) == (0, 0, [])
