"""Pruning deletes what is settled and old, and neither the ledger nor a rebuild misses it."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from redrive import App, Ctx, Event, Reject, Tx, no_retry
from redrive.errors import UsageError
from redrive.replay.prune import PrunePlan, What, plan_prune, prune
from redrive.testing import Harness

DAY = 86_400.0


def run_prune(
    bank: Any, *logs: str, days: float = 30, no_rebuild: tuple[str, ...] = (), name: str | None = None
) -> Any:
    """Plan, do, and check that what was planned was done and that the ledger has nothing to say."""
    operator = bank.app.operate("ada").operator
    what = What(days * DAY, name, logs, no_rebuild)
    plan = plan_prune(operator.store, operator.now(), what)
    before = [(one.subscription, one.applied, one.discarded, one.ignored) for one in bank.app.operate().verify()]
    done = prune(operator, what, plan, "room")
    assert done == plan
    verdicts = bank.app.operate().verify()
    assert [one.violations for one in verdicts] == [()] * len(verdicts)
    assert [(one.subscription, one.applied, one.discarded, one.ignored) for one in verdicts] == before
    again = plan_prune(operator.store, operator.now(), What(days * DAY, name, logs, no_rebuild))
    assert again.nothing, again
    return plan


def count(bank: Any, table: str) -> int:
    return int(bank.harness.query(f"SELECT count(*) FROM redrive_{table}")[0][0])


@pytest.fixture
def old(bank: Any) -> Any:
    """Of each subscription: a dead letter, a discarded one, one applied after a replay; all of it 40 days old."""
    for account, note in [("a", ""), ("b", "poison"), ("b", ""), ("d", "poison"), ("e", "late"), ("f", "ignore")]:
        bank.deposit(account, 1, note)
    bank.bad.add("late")
    bank.run()
    bank.bad.discard("late")
    for name in ("balances", "remind"):
        bank.desk.letters.discard(bank.letter(name, 4), "stale")
        bank.desk.letters.replay(bank.letter(name, 5))
    bank.run()
    bank.harness.clock.advance(40 * DAY)
    bank.deposit("g", 1)
    bank.run()
    bank.check_sound()
    return bank


def test_applied_letters_become_a_number_and_discards_keep_their_row(old: Any) -> None:
    plan = run_prune(old)
    assert (plan.applied, plan.superseded, plan.emptied) == (2, 0, 2)
    assert (plan.attempts, plan.journal) == (6, 8)
    states = old.harness.query("SELECT state, count(*) FROM redrive_letters GROUP BY state ORDER BY state")
    assert states == [("dead", 2), ("discarded", 2), ("retrying", 2)]
    assert old.audit()[-1] == ("ada", "prune", "older than 30d", "room")


def test_what_is_young_stays(old: Any) -> None:
    assert run_prune(old, days=50).nothing
    assert run_prune(old, days=40.5).nothing
    assert not run_prune(old, days=39.5).nothing


def test_one_subscription_may_be_pruned_alone(old: Any) -> None:
    assert run_prune(old, name="remind").applied == 1
    with pytest.raises(UsageError, match="did you mean 'remind'"):
        plan_prune(old.app.runtime.store, 0.0, What(0.0, "remnd"))


def test_a_rebuild_after_pruning_makes_the_same_tables_and_no_second_emission(old: Any) -> None:
    run_prune(old)
    tables, emitted = old.balances(), old.emitted("balance.changed")
    old.desk.reset("balances", "to see")
    old.run()
    assert old.balances() == tables
    assert old.emitted("balance.changed") == emitted
    old.check_sound()
    assert old.state_of("balances", 4) == "discarded"


def test_superseded_letters_go_but_not_before_their_event_is_settled_again(old: Any) -> None:
    old.desk.subscriptions.pause("balances")
    old.desk.reset("balances", "again")
    old.harness.clock.advance(40 * DAY)
    plan = run_prune(old)
    assert (plan.applied, plan.superseded) == (1, 1)  # the letter that had been applied; the open ones are needed
    old.desk.subscriptions.resume("balances")
    old.run()
    emitted = old.emitted("balance.changed")
    old.harness.clock.advance(40 * DAY)
    assert run_prune(old).superseded == 0  # their events are open again
    old.bad.clear()
    old.desk.letters.replay(old.letter("balances", 2))
    old.run()
    assert old.emitted("balance.changed") == [*emitted, 2, 3]  # never before, once now
    assert run_prune(old).superseded == 2
    old.desk.reset("balances", "and again")
    old.run()
    assert old.emitted("balance.changed") == [*emitted, 2, 3]


def test_open_letters_and_their_edits_are_never_touched(old: Any) -> None:
    letter = old.letter("balances", 2)
    old.desk.letters.edit(letter, {"cents": 7}, "better")
    old.harness.clock.advance(400 * DAY)
    before = old.harness.query("SELECT * FROM redrive_attempts WHERE letter = ?", (letter,))
    run_prune(old)
    assert old.harness.query("SELECT * FROM redrive_attempts WHERE letter = ?", (letter,)) == before
    old.desk.letters.replay(letter)
    old.run()
    assert old.balances()["b"] == 8
    old.check_sound()


def test_many_letters_go_in_several_transactions(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.replay.prune.BATCH", 3)
    monkeypatch.setattr("redrive.replay.prune.PLAN_PAGE", 4)
    bank.bad.add("late")
    for number in range(10):
        bank.deposit(f"k{number}", 1, "late")
    bank.run()
    bank.bad.clear()
    bank.desk.letters.replay([bank.letter("balances", number) for number in range(1, 11)])
    bank.run()
    bank.harness.clock.advance(31 * DAY)
    assert run_prune(bank).applied == 10


def test_an_applied_letter_that_no_filter_explains_stays_as_evidence(old: Any) -> None:
    with old.app.runtime.store.transaction() as tx:
        tx.connection.execute("UPDATE redrive_letters SET type = 'other' WHERE subscription = 1 AND state = 'applied'")
        tx.connection.execute("UPDATE redrive_filters SET types = '[\"deposited\"]' WHERE subscription = 1")
    operator = old.desk.operator
    plan = plan_prune(operator.store, operator.now(), What(30 * DAY))
    assert plan.applied == 1  # of remind


# ------------------------------------------------------------ events


class Post:
    """`mail` is a handler without state, `sums` a projection that begins where it is told."""

    def __init__(self, start: str | None) -> None:
        self.app = App("unused.db")
        self.orders = self.app.log("orders")
        self.mailed: list[int] = []
        self.bad = {"poison"}
        post = self

        @self.app.on(self.orders, "order.*", start="first", retry=no_retry)
        def mail(event: Event[Any], ctx: Ctx) -> None:
            if event.data in post.bad:
                raise Reject("no")
            post.mailed.append(event.position)

        if start is not None:

            @self.app.projection(self.orders, start=start, tables={"sums": "n INTEGER"})
            def sums(event: Event[Any], tx: Tx) -> None:
                tx.execute("INSERT INTO sums VALUES (1)")

        self.harness = Harness(self.app)

    def add(self, *events: tuple[str, str | None]) -> None:
        for data, key in events:
            self.harness.append(self.orders, "order.placed", data, key=key)
        self.harness.run_until_idle()

    def left(self) -> list[int]:
        return [one for (one,) in self.harness.query("SELECT position FROM redrive_events ORDER BY position")]


OLD = [("x", "a"), ("x", None), ("y", "a"), ("z", "b"), ("z", None), ("z", "a")]


def test_old_events_go_but_the_newest_of_each_key_stays() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD)
        post.harness.clock.advance(40 * DAY)
        post.add(("new", "c"), ("new", None))
        plan = run_prune(post, "orders")
        (events,) = plan.events
        assert (events.events, events.upto) == (4, 6)
        assert post.left() == [4, 6, 7, 8]
        assert "not old enough" in events.held_by
        assert post.harness.append(post.orders, "order.placed", "x", key="a").version == 4
        assert post.harness.append(post.orders, "order.placed", "x", key="b").version == 2
        post.harness.run_until_idle()
        run_prune(post, "orders")
        assert post.left() == [7, 8, 9, 10]  # those of a and b have newer ones now
        with pytest.raises(UsageError, match="there is no log 'order' in this store; did you mean 'orders'"):
            plan_prune(post.app.runtime.store, 0.0, What(0.0, None, ("order",)))


def test_an_open_letter_and_an_unread_event_hold_events_back() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD[:3], ("poison", "p"), ("behind", "p"), *OLD[:3])
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None))
        plan = run_prune(post, "orders")
        assert plan.events[0].held_by == "mail has an open letter at position 4"
        assert post.left() == [4, 5, 6, 7, 8, 9]
        post.app.operate("ada").subscriptions.pause("mail")
        post.add(("more", None))
        post.app.operate("ada").letters.discard(1, "junk")
        post.harness.run_until_idle()
        post.harness.clock.advance(1)
        plan = run_prune(post, "orders", days=0)
        assert "mail has an open letter at position 5" in plan.events[0].held_by


def test_prune_keeps_the_event_of_a_letter_that_was_settled_lately() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD[:3], ("poison", None), *OLD[:3])
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None), ("new", None))
        post.app.operate("ada").letters.discard(1, "junk")
        post.harness.run_until_idle()
        plan = run_prune(post, "orders")
        assert plan.events[0].held_by == "mail has a letter at position 4 that was settled since"
        assert post.left() == [4, 5, 6, 7, 8, 9]
        post.app.operate("ada").letters.reopen(1, "it was none")
        post.harness.run_until_idle()
        post.bad.clear()
        post.app.operate("ada").letters.replay(1)
        post.harness.run_until_idle()
        assert post.mailed[-1] == 4


@pytest.mark.parametrize("deed", ["reopen", "seek"])
def test_prune_keeps_events_that_are_needed_again_since_the_plan(deed: str) -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD[:3], ("poison", None), *OLD[:3])
        post.app.operate("ada").letters.discard(1, "junk")
        post.harness.run_until_idle()
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None), ("new", None))
        operator = post.app.operate("ada").operator
        what = What(30 * DAY, None, ("orders",))
        plan = plan_prune(operator.store, operator.now(), what)
        assert (plan.events[0].upto, plan.events[0].events) == (7, 6)
        if deed == "reopen":
            post.app.operate("ada").letters.reopen(1, "it was none")
        else:
            post.app.operate("ada").subscriptions.pause("mail")
            post.harness.run_until_idle()
            post.app.operate("ada").subscriptions.seek("mail", 4, "again")
        post.harness.run_until_idle()
        prune(operator, what, plan)
        assert post.left() == [4, 5, 6, 7, 8, 9]
        assert all(one.sound for one in post.app.operate().verify())


def test_a_discarded_letter_goes_with_its_event_and_stays_counted() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD[:3], ("poison", "p"), ("behind", "p"), *OLD[:3])
        letters = post.app.operate("ada").letters
        letters.edit(1, "poison!", "try")
        letters.discard(1, "junk")
        post.harness.run_until_idle()
        post.app.operate("ada").subscriptions.pause("mail")
        post.add(("s1", None), ("s2", None), ("s3", "k"))
        post.app.operate("ada").subscriptions.seek("mail", "now", "skipped")
        post.harness.clock.advance(40 * DAY)
        post.app.operate("ada").subscriptions.resume("mail")
        post.add(("new", None), ("new", "k"))
        (verdict,) = post.app.operate().verify()
        assert (verdict.discarded, verdict.applied) == (4, 9)
        plan = run_prune(post, "orders")
        assert (plan.events[0].letters, plan.events[0].events) == (1, 9)
        assert count(post, "letters") == 0
        assert count(post, "edits") == 0
        assert count(post, "ranges") == 0
        assert post.left() == [5, 8, 12, 13]
        post.add(("later", None))
        assert all(one.sound for one in post.app.operate().verify())


def test_what_a_rebuild_needs_stays_unless_it_is_given_up() -> None:
    post = Post("first")
    with post.harness:
        post.add(*OLD)
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None))
        plan = run_prune(post, "orders")
        assert (plan.events[0].events, plan.events[0].upto) == (0, 0)
        assert "--no-rebuild sums gives that up" in plan.events[0].held_by
        rows = post.harness.query("SELECT count(*) FROM sums")
        assert run_prune(post, "orders", no_rebuild=("sums",)).events[0].events == 4
        for deed in (post.app.operate().plan_reset, lambda name: post.app.operate().reset(name, "hm")):
            with pytest.raises(UsageError, match="was pruned up to position 5"):
                deed("sums")
        assert post.harness.query("SELECT count(*) FROM sums") == rows
        with pytest.raises(UsageError, match="it does not read 'orders'; those that do: mail, sums"):
            run_prune(post, "orders", no_rebuild=("other",))


def test_a_projection_that_began_later_holds_back_only_what_it_read() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD)

        @post.app.projection(post.orders, start="now", tables={"sums": "n INTEGER"})
        def sums(event: Event[Any], tx: Tx) -> None:
            tx.execute("INSERT INTO sums VALUES (1)")

        post.add()
        post.add(("w", None), ("w", None))
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None))
        plan = run_prune(post, "orders")
        assert plan.events[0].upto == 6
        post.app.operate("ada").reset("sums", "again")
        post.harness.run_until_idle()
        assert post.harness.query("SELECT count(*) FROM sums") == [(3,)]
        assert all(one.sound for one in post.app.operate().verify())


def test_nobody_goes_back_or_begins_below_what_was_pruned() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD)
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None), ("new", None))
        run_prune(post, "orders")
        desk = post.app.operate("ada").subscriptions
        with pytest.raises(UsageError, match="can go back to 5 at most"):
            desk.seek("mail", 2, "again")
        assert desk.seek("mail", 6, "again").again == 2
        post.harness.run_until_idle()
        assert post.mailed[-2:] == [7, 8]
        assert all(one.sound for one in post.app.operate().verify())
        run_prune(post, "orders")

        @post.app.projection(post.orders)
        def late(event: Event[Any], tx: Tx) -> None: ...

        with pytest.raises(UsageError, match="were pruned, up to position 5: it cannot start there"):
            post.harness.run_until_idle()


def test_events_go_in_several_transactions_and_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.replay.prune_events.BATCH", 3)
    post = Post(None)
    with post.harness:
        post.add(*[("x", None)] * 10)
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None))
        operator = post.app.operate("ada").operator
        what = What(30 * DAY, None, ("orders",))
        plan = plan_prune(operator.store, operator.now(), what)
        assert plan.events[0].events == 10

        deletions = 0
        real = operator.store.transaction

        def failing(*, durable: bool = True) -> Any:
            nonlocal deletions
            deletions += 1
            if deletions > 6:
                raise RuntimeError("killed")
            return real(durable=durable)

        with monkeypatch.context() as patch:
            patch.setattr(operator.store, "transaction", failing)
            with pytest.raises(RuntimeError, match="killed"):
                prune(operator, what, plan)
        assert 0 < len(post.left()) < 11
        assert all(one.sound for one in post.app.operate().verify())
        run_prune(post, "orders")
        assert post.left() == [11]


@pytest.mark.sqlite("there are no spans where transactions append side by side")
def test_prune_removes_the_index_of_pruned_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.store.spans.SPAN", 4)
    post = Post(None)
    with post.harness:
        post.add(*[("x", None)] * 40)
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None))
        spans = "SELECT count(*) FROM redrive_spans"
        [(before,)] = post.harness.query(spans)
        run_prune(post, "orders")
        [(after,)] = post.harness.query(spans)
        assert before >= 9 and after <= 2


def test_a_log_that_nobody_reads_keeps_its_newest_event() -> None:
    post = Post(None)
    with post.harness:
        other = post.app.log("other")
        for _ in range(3):
            post.harness.append(other, "o", {})
        post.harness.clock.advance(40 * DAY)
        assert run_prune(post, "other").events[0].events == 2
        assert post.left() == [3]


def test_a_wrong_number_of_pruned_events_is_found_by_the_ledger() -> None:
    post = Post(None)
    with post.harness:
        post.add(*OLD)
        post.harness.clock.advance(40 * DAY)
        post.add(("new", None))
        run_prune(post, "orders")
        with post.app.runtime.store.transaction() as tx:
            tx.books.set("pruned 1", tx.books.get("pruned 1").replace("4", "5"))
        (verdict,) = post.app.operate().verify()
        assert [one.rule for one in verdict.violations] == ["balance"]


def test_a_plan_is_nothing_when_it_is_nothing() -> None:
    assert PrunePlan(0.0).nothing


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_before_and_happens_after_the_ledger_adds_up(seed: int) -> None:
    """A random life of failures, repairs, seeks, resets and prunes: nothing the projection built is lost or doubled."""
    dice, post = random.Random(seed), Post("first")
    with post.harness:
        post.add(("x", None))
        appended, given_up = 1, False
        for _ in range(60):
            desk = post.app.operate("ada")
            match dice.randrange(9):
                case 0 | 1 | 2:
                    for _ in range(dice.randrange(1, 6)):
                        key = dice.choice([None, "a", "b", "c"])
                        data = dice.choice(["x", "x", "poison", "late"])
                        post.harness.append(post.orders, dice.choice(["order.placed", "other"]), data, key=key)
                        appended += 1
                case 3:
                    post.bad = dice.choice([{"poison"}, {"poison", "late"}, set()])
                    desk.letters.replay([letter for letter, _ in desk.letters.heads("mail")])
                case 4:
                    heads = [letter for letter, _ in desk.letters.heads("mail")]
                    if heads:
                        desk.letters.discard(dice.choice(heads), "junk")
                case 5:
                    last = desk.subscriptions.plan_seek("mail", "now").position
                    with contextlib.suppress(UsageError):
                        desk.subscriptions.seek("mail", dice.randrange(last + 1), "elsewhere")
                case 6:
                    with contextlib.suppress(UsageError):
                        desk.reset(dice.choice(["mail", "sums"]), "again")
                case 7 | 8:
                    post.harness.clock.advance(dice.choice([1, 20 * DAY]))
                    given_up = given_up or dice.random() < 0.3
                    run_prune(post, "orders", days=10, no_rebuild=("sums",) if given_up else ())
            if dice.random() < 0.7:
                post.harness.run_until_idle()
            verdicts = post.app.operate().verify()
            assert [one.violations for one in verdicts] == [()] * len(verdicts)
        post.harness.run_until_idle()
        assert post.harness.query("SELECT count(*) FROM sums") == [(appended,)]
        assert post.app.operate().verify_audit().sound
