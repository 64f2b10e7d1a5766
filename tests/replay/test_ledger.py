"""The verifier, verified: a good database is sound, and each way to damage one is reported by name and position."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import App, Event, Reject, Tx, no_retry
from redrive.replay.chain import AuditVerdict, verify_audit
from redrive.replay.ledger import Verdict, verify
from redrive.store.address import is_postgres
from redrive.testing import Harness

BALANCES, REMIND = 1, 2  # subscriptions, in the order they were registered


@pytest.fixture
def books(bank: Any) -> Any:
    """A database with something of everything.

    Positions of `balances`: 1 applied at intake, 2 dead, 3 its follower, 5 discarded, 6 applied after a replay,
    7 ignored, then two that are skipped and one that is edited and dead, between emissions of the other log.
    """
    for account, note in [("a", ""), ("b", "poison"), ("b", ""), ("c", ""), ("d", "poison"), ("e", "late")]:
        bank.deposit(account, 1, note)
    bank.deposit("f", 1, "ignore")
    bank.bad.add("late")
    bank.run()
    bank.bad.discard("late")
    bank.desk.letters.discard(bank.letter("balances", 5), "stale")
    bank.desk.letters.replay(bank.letter("balances", 6))
    bank.run()
    bank.desk.subscriptions.pause("balances")
    skipped = [bank.deposit("g", 1), bank.deposit("g", 2)]
    bank.desk.subscriptions.seek("balances", skipped[-1], "junk")
    bank.desk.subscriptions.resume("balances")
    edited = bank.deposit("h", 1, "poison")
    bank.run()
    bank.desk.letters.edit(bank.letter("balances", edited), {"cents": 2, "note": "poison"}, "hm")
    bank.skipped, bank.edited = skipped, edited
    return bank


IN_OTHER_WORDS = {  # what Postgres calls it
    "DROP TRIGGER redrive_letter_moved": "ALTER TABLE redrive.letters DISABLE TRIGGER letter_moved",
    "DROP INDEX redrive_letters_position": "DROP INDEX redrive.letters_position",
}


def account(bank: Any, name: str = "balances") -> Verdict:
    """The verdict about one subscription."""
    verdicts: dict[str, Verdict] = {verdict.subscription: verdict for verdict in bank.desk.verify()}
    return verdicts[name]


def damage(bank: Any, *statements: str) -> None:
    """Change the store behind the engine's back."""
    on_postgres = is_postgres(bank.harness.path)
    with bank.app.runtime.store.transaction() as tx:
        for statement in statements:
            tx.connection.execute(IN_OTHER_WORDS.get(statement, statement) if on_postgres else statement)


def test_a_good_database_is_sound_and_every_event_is_somewhere(books: Any) -> None:
    verdict = account(books)
    assert verdict.sound, verdict
    opened = (verdict.retrying, verdict.waiting, verdict.dead)
    counts = (verdict.applied, *opened, verdict.discarded, verdict.ignored, verdict.pending)
    assert counts == (3, 0, 1, 2, 3, 1, 0)
    assert sum(counts) == len(books.harness.query("SELECT 1 FROM redrive_events WHERE log = 1"))
    books.check_sound()


def test_what_is_not_read_yet_is_pending(books: Any) -> None:
    books.deposit("z", 1)
    assert account(books).pending == 1
    assert account(books).sound


LETTER = "subscription = 1 AND position"

DAMAGES = {
    "an applied event that was not": ("balance", "UPDATE redrive_progress SET applied = applied - 1"),
    "an event applied twice": ("balance", "UPDATE redrive_progress SET applied = applied + 1"),
    "an ignored event too many": ("balance", "UPDATE redrive_progress SET ignored = ignored + 1"),
    "counters below nothing": ("counters", "UPDATE redrive_progress SET applied = -1"),
    "progress beyond the log": ("beyond_log", "UPDATE redrive_progress SET position = 1000"),
    "progress before its start": ("before_start", "UPDATE redrive_progress SET started_from = 999"),
    "progress that fell back": ("unsettled_letters", "UPDATE redrive_progress SET position = 1"),
    "an anchor of another log": ("anchor", "UPDATE redrive_progress SET anchor = 'somebody else'"),
    "a letter that was deleted": ("missing_letters", f"DELETE FROM redrive_letters WHERE {LETTER} = 2"),
    "a letter that was applied by hand": ("journal", f"DROP TRIGGER redrive_letter_moved; UPDATE redrive_letters SET state = 'applied' WHERE {LETTER} = 2"),  # noqa: E501
    "a letter that came back to life": ("steps", f"UPDATE redrive_letters SET state = 'retrying' WHERE {LETTER} = 6"),
    "a journal that was rewritten": ("journal", "UPDATE redrive_journal SET state = 'dead' WHERE subscription = 1"),
    "a journal that was emptied": ("journal", "DELETE FROM redrive_journal"),
    "a birth that cannot be": ("steps", "UPDATE redrive_journal SET state = 'applied' WHERE position = 3 AND subscription = 1"),  # noqa: E501
    "a counter that is off": ("counters", "UPDATE redrive_letter_counts SET n = n + 1 WHERE state = 'dead'"),
    "a counter that is gone": ("counters", "DELETE FROM redrive_letter_counts WHERE state = 'discarded'"),
    "a counter of nothing": (
        "counters", "INSERT INTO redrive_letter_counts (subscription, state, reason, type, fingerprint, n) "
        "VALUES (1, 'dead', 'x', 'y', 'z', 1)",
    ),
    "a lane that counts too many": ("lanes", "UPDATE redrive_lanes SET n = n + 1 WHERE lane = 'b'"),
    "a lane that is forgotten": ("lanes", "DELETE FROM redrive_lanes WHERE lane = 'b' AND subscription = 1"),
    "a lane of nothing": (
        "lanes", "INSERT INTO redrive_lanes (subscription, lane, n, oldest) VALUES (1, 'nobody', 1, 2)",
    ),
    "a lane with another head": ("lanes", "UPDATE redrive_lanes SET oldest = oldest + 1"),
    "an event that was deleted under a letter": ("lost_events", "DELETE FROM redrive_events WHERE position = 2"),
    "an event that is another one": ("lost_events", "UPDATE redrive_events SET id = 'other' WHERE position = 2"),
    "an applied event that was deleted": ("balance", "DELETE FROM redrive_events WHERE position = 1"),
    "an event whose type was changed": ("lost_events", "UPDATE redrive_events SET type = 'x' WHERE position = 2"),
    "versions with a hole": ("log_holes", "UPDATE redrive_events SET version = 7 WHERE position = 3"),
    "a done row below the progress": ("stale_done", f"INSERT INTO redrive_done_chunks VALUES (1, 0, '{'1':0>3}{'':0>509}')"),  # noqa: E501
    "a done row without an event": ("empty_done", f"INSERT INTO redrive_done_chunks VALUES (1, 9, '{'1':0>393}{'':0>119}')"),  # noqa: E501
    "a dead letter without history": ("unexplained", "DELETE FROM redrive_attempts"),
    "a discard without a name": ("unsigned", "UPDATE redrive_letters SET resolved_by = NULL WHERE state = 'discarded'"),
    "an edit that is gone": ("lost_edits", "DELETE FROM redrive_edits"),
    "an audit that is gone": ("unaudited", "DELETE FROM redrive_audit"),
    "a letter in another lane": ("misfiled", f"UPDATE redrive_letters SET lane = 'other' WHERE {LETTER} = 3"),
    "an order that letters contradict": ("misfiled", "UPDATE redrive_subscriptions SET ordering = 'none'"),
    "a follower that overtook": ("overtaken", f"UPDATE redrive_letters SET state = 'applied' WHERE {LETTER} = 3"),
    "a skipped range with a wrong number": ("ranges", "UPDATE redrive_ranges SET discarded = 5"),
    "a skipped range that grew": ("ranges", "UPDATE redrive_ranges SET from_position = 0"),
    "a skipped range that is gone": ("balance", "DELETE FROM redrive_ranges"),
    "a letter inside a skipped range": ("two_fates", "UPDATE redrive_ranges SET from_position = 1, discarded = 8"),
    "skipped ranges that overlap": ("ranges", "INSERT INTO redrive_ranges SELECT 1, from_position + 1, to_position, 1, audit FROM redrive_ranges"),  # noqa: E501
    "a filter that is gone": ("no_filter", "DELETE FROM redrive_filters"),
    "a filter that asked for less": ("unasked_letters", "UPDATE redrive_filters SET types = '[\"x\"]'"),
    "progress that is gone": ("no_progress", "DELETE FROM redrive_progress"),
    "two letters for one event": ("doubled_letters", "DROP INDEX redrive_letters_position; INSERT INTO redrive_letters (subscription, position, lane, event_id, type, key, state, reason, rev, attempts, due_at, due_set_at, delay, parked_at, touched_at) SELECT subscription, position, lane, event_id, type, key, state, reason, rev, attempts, due_at, due_set_at, delay, parked_at, touched_at FROM redrive_letters WHERE subscription = 1 AND position = 2"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_found(books: Any, what: str) -> None:
    rule, statements = DAMAGES[what]
    damage(books, *statements.split("; "))
    verdict = account(books)
    assert rule in [violation.rule for violation in verdict.violations], verdict


def test_progress_that_jumped_over_an_event_is_found(books: Any) -> None:
    lost = books.deposit("z", 1)
    damage(books, f"UPDATE redrive_progress SET position = {lost}")
    assert {one.rule for one in account(books).violations} == {"balance", "anchor"}


def test_rows_of_a_subscription_that_nobody_knows_are_found(books: Any) -> None:
    damage(books, "DELETE FROM redrive_subscriptions WHERE id = 1")
    assert [v.violations[0].rule for v in books.desk.verify() if v.subscription == "#1"] == ["orphan"]


RECEIPTS = {
    "a success too many": "UPDATE redrive_operations SET applied = applied + 1",
    "a failure that is forgotten": "UPDATE redrive_operations SET failed = 0, waiting = 1",
    "a selection that grew": "UPDATE redrive_operations SET selected = 9",
    "a letter that is gone": "DELETE FROM redrive_operation_letters",
    "letters of no operation": "INSERT INTO redrive_operation_letters (operation, letter, rev) VALUES (1, 99, 0)",
}


@pytest.mark.parametrize("what", RECEIPTS)
def test_a_receipt_that_is_not_what_came_of_the_letters_is_found(books: Any, what: str) -> None:
    number = books.desk.bulk.begin("replay", [books.desk.letters.get(books.letter("balances", 2))], "again")
    books.desk.bulk.ask(number, lambda rows, ticket: books.desk.letters.replay(rows, "again", within=ticket))
    books.run()
    assert books.desk.bulk.get(number).failed == 1
    books.check_sound()
    damage(books, RECEIPTS[what])
    (verdict,) = [one for one in books.desk.verify() if not one.sound]
    assert (verdict.subscription, verdict.violations[0].rule) == (f"operation {number}", "receipt")


def test_the_positions_of_a_violation_are_exact(books: Any) -> None:
    damage(books, "DELETE FROM redrive_letters WHERE subscription = 1 AND position IN (2, 5)")
    (found,) = [one for one in account(books).violations if one.rule == "missing_letters"]
    assert found.positions == (2, 5)
    assert found.message.startswith("2 ")


def test_an_event_that_overtook_at_intake_is_found_where_the_program_tells_the_keys(books: Any) -> None:
    passed = books.deposit("b", 9)
    with books.app.runtime.store.transaction() as tx:
        tx.execute("UPDATE redrive_progress SET position = ?, applied = applied + 1", (passed,))
        tx.execute("UPDATE redrive_progress SET anchor = (SELECT id FROM redrive_events WHERE position = ?)", (passed,))
    (found,) = account(books).violations
    assert (found.rule, found.positions) == ("overtaken", (passed,))
    assert all(verdict.sound for verdict in verify(books.app.runtime.store))  # without the program nobody can tell


def test_an_event_that_passed_a_failed_one_in_total_order_is_found() -> None:
    app = App("unused.db")
    orders = app.log("orders")

    @app.projection(orders, order="total", retry=no_retry)
    def total(event: Event[Any], tx: Tx) -> None:
        raise Reject("bad")

    with Harness(app) as harness:
        harness.append(orders, "o", 1)
        second = harness.append(orders, "o", 2)
        harness.run_until_idle()
        assert all(verdict.sound for verdict in app.operate().verify())
        with app.runtime.store.transaction() as tx:
            tx.execute("UPDATE redrive_progress SET position = 2, applied = 1, anchor = ?", (second.id,))
        (verdict,) = app.operate().verify()
        assert [(one.rule, one.positions) for one in verdict.violations] == [("overtaken", (2,))]


def test_a_subscription_that_has_not_begun_is_sound() -> None:
    app = App("unused.db")

    @app.projection(app.log("orders"))
    def nothing(event: Event[Any], tx: Tx) -> None: ...

    with Harness(app) as harness:
        harness.run_until_idle()
        (verdict,) = app.operate().verify()
        assert verdict == Verdict("nothing")
        assert verdict.sound


# ------------------------------------------------------------ the audit


def chain(bank: Any) -> AuditVerdict:
    return verify_audit(bank.app.runtime.store)


def test_an_audit_that_nobody_touched_is_whole(books: Any) -> None:
    (count,) = books.harness.query("SELECT count(*) FROM redrive_audit")[0]
    assert chain(books) == AuditVerdict(count)
    assert count == 7
    assert chain(books).sound


def test_an_empty_audit_is_whole(bank: Any) -> None:
    bank.run()
    assert chain(bank) == AuditVerdict(0)


FORGERIES = {
    "another name": (3, "UPDATE redrive_audit SET who = 'eve' WHERE id = 3"),
    "another time": (3, "UPDATE redrive_audit SET at = at + 0.001 WHERE id = 3"),
    "another deed": (3, "UPDATE redrive_audit SET action = 'resume' WHERE id = 3"),
    "another reason": (4, "UPDATE redrive_audit SET reason = 'no reason' WHERE id = 4"),
    "another target": (4, "UPDATE redrive_audit SET target = 'letter 1' WHERE id = 4"),
    "another subscription": (4, "UPDATE redrive_audit SET subscription = 'remind' WHERE id = 4"),
    "other details": (4, "UPDATE redrive_audit SET details = '{}' WHERE id = 4"),
    "another hash": (5, "UPDATE redrive_audit SET hash = 'x' WHERE id = 5"),
    "bytes for a text": (2, "UPDATE redrive_audit SET reason = x'00' WHERE id = 2"),
    "the first row gone": (1, "DELETE FROM redrive_audit WHERE id = 1"),
    "a row gone": (3, "DELETE FROM redrive_audit WHERE id = 3"),
    "a row gone, and the gap closed": (3, "DELETE FROM redrive_audit WHERE id = 3; UPDATE redrive_audit SET id = id - 1 WHERE id > 3"),  # noqa: E501
    "the last row gone": (7, "DELETE FROM redrive_audit WHERE id = 7"),
    "all rows gone": (1, "DELETE FROM redrive_audit"),
    "a row put in": (8, "INSERT INTO redrive_audit SELECT 8, at, who, action, subscription, target, reason, details, hash FROM redrive_audit WHERE id = 7"),  # noqa: E501
    "two rows exchanged": (3, "UPDATE redrive_audit SET id = -id WHERE id IN (3, 4); UPDATE redrive_audit SET id = 7 + id WHERE id < 0"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_audit_is_found_and_its_first_wrong_row_named(books: Any, what: str) -> None:
    row, statements = FORGERIES[what]
    damage(books, *statements.split("; "))
    verdict = chain(books)
    assert (verdict.sound, verdict.first_wrong) == (False, row), verdict
    assert verdict.rows == row - 1
    assert f"row {row}" in verdict.message or f"row {row - 1}" in verdict.message


def test_there_are_more_than_thirty_kinds_of_damage() -> None:
    assert len(DAMAGES) + len(FORGERIES) >= 50
