"""Transactions: all or nothing, one writer, snapshots for readers, savepoints, jobs, and who is to blame."""

from __future__ import annotations

import threading
from typing import Any

from redrive.errors import StoreError, UsageError, VersionConflict
from redrive.store.port import Appending, StoreTx
from redrive.store.sql import BOOKS
from redrive.testing.contracts.base import StoreTests, expect


def _set(tx: StoreTx, value: str) -> None:
    tx.books.set("test", value)


class TransactionContract(StoreTests):
    """What two writes that must agree rely on."""

    def _value(self) -> Any:
        with self.store.reading() as tx:
            return tx.books.get("test")

    def test_leaving_the_block_commits(self) -> None:
        for durable in (True, False):
            with self.store.transaction(durable=durable) as tx:
                _set(tx, f"{durable}")
            assert self._value() == f"{durable}"

    def test_any_exception_rolls_back_and_passes_through(self) -> None:
        for error in (ValueError("no"), KeyboardInterrupt()):

            def fail(error: BaseException = error) -> None:
                with self.store.transaction() as tx:
                    _set(tx, "half")
                    raise error

            expect(type(error), fail)
            assert self._value() is None

    def test_a_transaction_in_a_transaction_of_the_same_thread_is_refused(self) -> None:
        with self.store.transaction() as tx:
            _set(tx, "outer")
            assert self.store.inside_transaction()
            expect(UsageError, lambda: self.store.transaction().__enter__())
        assert not self.store.inside_transaction()
        assert self._value() == "outer"

    def test_a_reader_sees_one_moment(self) -> None:
        with self.store.reading() as reader:
            before = reader.books.get("test")
            done = threading.Event()

            def write() -> None:
                with self.store.transaction() as tx:
                    _set(tx, "later")
                done.set()

            writer = threading.Thread(target=write)
            writer.start()
            assert done.wait(30), "a reader must not block a writer"
            writer.join()
            assert reader.books.get("test") == before
        assert self._value() == "later"

    def test_a_look_sees_what_is_committed_and_holds_nobody_up(self) -> None:
        for word in ("once", "twice"):
            with self.store.transaction() as tx:
                _set(tx, word)
            with self.store.reading(snapshot=False) as look:
                assert look.books.get("test") == word
                assert not self.store.inside_transaction()

    def test_who_claims_the_same_writes_one_after_the_other(self) -> None:
        def count() -> None:
            for _ in range(20):
                with self.store.transaction() as tx:
                    tx.sql.claim((BOOKS,))
                    tx.books.set("test", (tx.books.get("test") or 0) + 1)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self._value() == 80

    def test_a_savepoint_is_undone_without_the_rest(self) -> None:
        with self.store.transaction() as tx:
            _set(tx, "before")
            tx.savepoint()
            _set(tx, "undone")
            tx.undo()
            tx.keep()
            tx.savepoint()
            tx.books.set("other", "kept")
            tx.keep()
        with self.store.reading() as tx:
            assert (tx.books.get("test"), tx.books.get("other")) == ("before", "kept")

    def test_a_job_runs_and_answers_with_its_result_or_its_error(self) -> None:
        def fail() -> None:
            raise ValueError("no")

        assert self._submit(lambda: 7) == (7, None)
        result, error = self._submit(fail)
        assert result is None
        assert isinstance(error, ValueError)

    def _submit(self, job: Any) -> tuple[Any, BaseException | None]:
        answered, answer = threading.Event(), []

        def done(result: Any, error: BaseException | None) -> None:
            answer.append((result, error))
            answered.set()

        self.store.submit(job, done)
        assert answered.wait(30)
        found: tuple[Any, BaseException | None] = answer[0]
        return found

    def test_one_append_of_a_group_fails_alone(self) -> None:
        answers: dict[str, Any] = {}
        good, bad = self._new(key="a"), self._new(key="a", expected_version=9)
        for name, event in (("good", good), ("bad", bad), ("more", self._new(key="b"))):
            waiting = threading.Event()

            def done(rows: Any, error: BaseException | None, name: str = name, waiting: Any = waiting) -> None:
                answers[name] = rows or error
                waiting.set()

            self.store.append(Appending("orders", [event], done))
            assert waiting.wait(30)
        assert [row[0] for row in (*answers["good"], *answers["more"])] == [1, 2]
        assert isinstance(answers["bad"], VersionConflict)

    def test_a_statement_that_fails_is_not_the_worlds_fault_and_the_store_being_down_is(self) -> None:
        def fail() -> None:
            with self.store.transaction() as tx:
                tx.connection.execute("SELECT no_such_column FROM no_such_table")

        assert not self.store.is_the_world(expect(Exception, fail))
        assert self.store.is_the_world(StoreError("down").of(self.store))
        assert not self.store.is_the_world(StoreError("another one is down"))

    def test_what_others_append_or_ask_is_noticed(self) -> None:
        other, row = self.make_store(self._folder), self._subscribe()
        try:
            assert self._hears(True)
            assert self._hears(False)
            with other.transaction() as tx:
                tx.logs.append("orders", [self._new()])
            assert self._hears(True)
            assert self._hears(False)
            with other.transaction() as tx:
                tx.progress.lock(row.id)
            assert self._hears(True)
            assert self._hears(False)
        finally:
            other.close()

    def _hears(self, news: bool) -> bool:
        """Within a while, or for a while no more: a store may be told by a thread that listens."""
        pause = threading.Event()
        return any(self.store.changed() is news and (pause.wait(0.2) or news or not self.store.changed())
                   for _ in range(500) if not pause.wait(0.01))  # fmt: skip

    def test_what_was_committed_is_there_after_reopening(self) -> None:
        with self.store.transaction(durable=False) as tx:
            _set(tx, "kept")
        self.store.sync()
        self._reopen()
        assert self._value() == "kept"
