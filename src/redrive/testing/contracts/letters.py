"""Letters: guarded by their revision, counted and journalled by the store itself; and the books."""

from __future__ import annotations

from redrive.policy.outcome import Failure
from redrive.store.books import chain
from redrive.store.letters import NewLetter
from redrive.testing.contracts.base import FAILURE, NOW, StoreTests, expect, head_of, park


class LetterContract(StoreTests):
    """What lanes, retries and operators rely on."""

    def test_a_letter_keeps_what_is_known_about_the_failure(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            number = park(tx, row, 3, "a")
            letter = tx.letters.get(number)
            assert letter is not None
            assert (letter.subscription, letter.position, letter.lane, letter.state) == ("charge", 3, "a", "retrying")
            assert (letter.reason, letter.attempts, letter.due_at) == ("failing", 1, NOW + 1)
            assert (letter.error_type, letter.error_message) == ("OSError", "it failed")
            assert (letter.fingerprint, letter.first_failed_at) == ("0123456789ab", NOW)
            assert tx.letters.get(number + 1) is None

    def test_the_head_is_the_open_letter_with_the_lowest_position(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            for position in (5, 3, 9):
                park(tx, row, position, "a")
            park(tx, row, 4, "b", state="dead", due_at=0.0)
            assert head_of(tx, row, "a").position == 3
            heads = {lane: (head.position, head.state, size) for lane, head, size in tx.letters.heads(row.id)}
            assert heads == {"a": (3, "retrying", 3), "b": (4, "dead", 1)}
            assert tx.letters.settle(head_of(tx, row, "a"), "applied", 2, NOW, "retry")
            assert head_of(tx, row, "a").position == 5
            assert tx.letters.head(row.id, "nobody") is None

    def test_letters_without_a_lane_matter_only_while_they_have_a_due_time(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            park(tx, row, 1, None)
            park(tx, row, 2, None, state="dead", due_at=0.0)
            assert [(lane, head.position) for lane, head, _ in tx.letters.heads(row.id)] == [(None, 1)]

    def test_an_attempt_that_knows_an_old_revision_changes_nothing(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            park(tx, row, 1, "a")
            old = head_of(tx, row, "a")
            again = {"reason": "failing", "attempts": 2, "due_at": NOW + 9, "delay": 8.0}
            assert tx.letters.retry([(old, "retrying", dict(again), FAILURE)], NOW)
            new = head_of(tx, row, "a")
            assert (new.rev, new.attempts, new.due_at) == (old.rev + 1, 2, NOW + 9)
            assert not tx.letters.retry([(old, "dead", {"reason": "permanent", "attempts": 3}, FAILURE)], NOW)
            assert not tx.letters.settle(old, "applied", 3, NOW, "retry")
            assert head_of(tx, row, "a") == new

    def test_of_several_attempts_one_that_is_not_found_is_noticed(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            park(tx, row, 1, "a")
            park(tx, row, 2, "b")
            heads = [head_of(tx, row, lane) for lane in "ab"]
            again = {"reason": "failing", "attempts": 2, "due_at": NOW + 9, "delay": 8.0}
            assert tx.letters.retry([(head, "retrying", dict(again), FAILURE) for head in heads], NOW)
            moved = head_of(tx, row, "a")
            dead = {"reason": "permanent", "attempts": 3}
            assert not tx.letters.retry([(head, "dead", dict(dead), FAILURE) for head in (moved, heads[1])], NOW)

    def test_an_attempt_settles_only_what_is_retrying(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            park(tx, row, 1, "a", state="dead", due_at=0.0)
            head = head_of(tx, row, "a")
            assert not tx.letters.settle(head, "applied", 2, NOW, "retry")
            assert not tx.letters.retry([(head, "dead", {"reason": "permanent", "attempts": 2}, FAILURE)], NOW)

    def test_one_event_has_one_letter_per_subscription(self) -> None:
        one, two = self._subscribe("one"), self._subscribe("two")
        with self.store.transaction() as tx:
            park(tx, one, 1, "a")
            park(tx, two, 1, "a")

        def again() -> None:
            with self.store.transaction() as tx:
                park(tx, one, 1, "a")

        expect(Exception, again)

    def test_counts_and_journal_follow_every_change(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            number = park(tx, row, 1, "a")
            park(tx, row, 2, "b")
            head = head_of(tx, row, "a")
            other = Failure("KeyError", "k", "", "ba9876543210")
            tx.letters.retry([(head, "dead", {"reason": "permanent", "attempts": 2}, other)], NOW)
            assert tx.letters.counts(row.id) == {"retrying": 1, "dead": 1}
            kept = sorted(tx.sql.all("ledger_kept_counts", {"subscription": row.id}))
            assert kept == sorted(tx.sql.all("ledger_counts", {"subscription": row.id}))
            assert tx.sql.all("ledger_journal_gaps", {"subscription": row.id}) == []
            replay = {"rev": head.rev + 1, "now": NOW, "due_at": NOW, "operation": None, "automatic": 0, "pace": 1}
            tx.sql.run("letter_replay", {"id": number, **replay})
            assert tx.letters.counts(row.id) == {"retrying": 2}
            tx.letters.add(row.id, [NewLetter((3, "id-3", "order.placed", None), "a", "retrying")], NOW)
            assert tx.letters.counts(row.id) == {"retrying": 2, "waiting": 1}
            assert tx.sql.all("ledger_journal_gaps", {"subscription": row.id}) == []

    def test_pages_go_by_state_and_subscription_in_order(self) -> None:
        one, two = self._subscribe("one"), self._subscribe("two")
        with self.store.transaction() as tx:
            for position in range(1, 6):
                park(tx, one, position, f"k{position}", state="dead" if position % 2 else "retrying")
            park(tx, two, 1, "a", state="dead")
            dead = tx.letters.page("dead", None, 0, 10)
            assert [(letter.subscription, letter.position) for letter in dead] == [
                ("one", 1), ("one", 3), ("one", 5), ("two", 1),
            ]  # fmt: skip
            assert [letter.position for letter in tx.letters.page("dead", one.id, dead[0].id, 1)] == [3]

    def test_waiting_counts_open_letters_behind(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            first = tx.letters.get(park(tx, row, 1, "a"))
            for position in (2, 3):
                park(tx, row, position, "a")
            park(tx, row, 4, "b")
            assert first is not None
            assert tx.letters.waiting(first) == 2

    def test_a_letter_finds_its_event_with_the_latest_edit(self) -> None:
        row = self._subscribe()
        (position,) = self._put(self._new(data=1, id="e"))
        with self.store.transaction() as tx:
            new = NewLetter((position, "e", "order.placed", None), None, "dead")
            (number,) = tx.letters.add(row.id, [new], NOW)
            found = tx.letters.event(number)
            assert found is not None
            assert (found[0], bytes(found[8])) == (position, b"1")
            for rev in (1, 2):
                values = {"subscription": row.id, "position": position, "rev": rev, "data": b"%d0" % rev, "audit": 1}
                tx.sql.run("edit_add", values)
            tx.sql.run("letter_edit", {"id": number, "rev": 0, "edits": 2, "now": NOW})
            edited = tx.letters.event(number)
            assert edited is not None
            assert bytes(edited[8]) == b"20"
            assert tx.letters.events([number, number + 1]) == {number: edited}

    def test_the_history_is_kept_in_order(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            number = park(tx, row, 1, "a")
            for attempt in (1, 2):
                tx.letters.log_attempts([(number, attempt, "failing", FAILURE)], NOW + attempt, "worker")
            history = tx.sql.all("attempts_of", {"letter": number})
        assert [(line[0], line[1], line[2], line[5]) for line in history] == [
            (1, NOW + 1, "failing", "a traceback"), (2, NOW + 2, "failing", "a traceback"),
        ]  # fmt: skip


class BookContract(StoreTests):
    """What operators and auditors rely on."""

    def test_letters_that_are_written_together_are_numbered_in_order_each_with_its_own_edit(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            for position in (2, 5):
                values = {"subscription": row.id, "position": position, "rev": position, "data": b"0", "audit": 1}
                tx.sql.run("edit_add", values)
            new = [NewLetter((at, f"id-{at}", "order.placed", None), f"lane {at}", "dead") for at in range(1, 12)]
            numbers = tx.letters.add(row.id, new, NOW)
            found = [tx.letters.get(number) for number in numbers]
            counts = tx.letters.counts(row.id)
        told = [(one.position, one.event_id, one.lane, one.edits) for one in found if one is not None]
        assert told == [(at, f"id-{at}", f"lane {at}", at if at in (2, 5) else 0) for at in range(1, 12)]
        assert numbers == sorted(numbers)
        assert counts == {"dead": 11}

    def test_each_audit_row_is_chained_to_the_one_before(self) -> None:
        with self.store.transaction() as tx:
            for reason in ("one", "two"):
                tx.books.audit(NOW, "ada", "discard", "charge", "letter 1", reason, {"n": 1})
            rows = tx.books.audited()
        assert [row[6] for row in rows] == ["one", "two"]
        before = ""
        for row in rows:
            assert row[8] == chain(before, tuple(row[1:8]))
            before = row[8]

    def test_a_control_waits_until_it_is_answered(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.books.ask(row.id, "reopen", 7, 3, "ada", "because", NOW)
            [(control, *rest)] = tx.books.asked(row.id)
            assert rest == ["reopen", 7, 3, "ada", "because"]
            tx.books.answered(control)
            assert tx.books.asked(row.id) == []

    def test_a_named_value_is_set_and_replaced(self) -> None:
        with self.store.transaction() as tx:
            assert tx.books.get("x") is None
            for value in (1, "two"):
                tx.books.set("x", value)
                assert tx.books.get("x") == value
