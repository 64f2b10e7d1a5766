"""Progress: the fence, the prefix, the done rows, leases, keyed state and crash counting."""

from __future__ import annotations

from functools import partial

from redrive.errors import Fenced
from redrive.testing.contracts.base import NOW, StoreTests, expect, take


class ProgressContract(StoreTests):
    """What settling relies on: a former owner, or one with an old idea of progress, writes nothing."""

    def test_a_new_subscription_starts_where_it_was_told(self) -> None:
        row = self._subscribe(position=7)
        with self.store.reading() as tx:
            found = tx.progress.get(row.id)
            assert (found.position, found.epoch, found.owner, found.unclean) == (7, 0, None, 0)
            assert (tx.progress.find("charge"), tx.progress.all()) == (row, [row])
            assert tx.progress.find("other") is None

    def test_the_fence_lets_only_the_current_owner_at_the_current_position_pass(self) -> None:
        row = self._subscribe(position=7)
        with self.store.transaction() as tx:
            epoch = take(tx, row)
            tx.progress.fence(row.id, epoch, 7)
            expect(Fenced, lambda: tx.progress.fence(row.id, epoch - 1, 7))
            expect(Fenced, lambda: tx.progress.fence(row.id, epoch, 6))

    def test_taking_a_lease_grows_the_epoch_marks_it_unclean_and_needs_the_epoch_that_was_seen(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            first = take(tx, row, "first")
            second = take(tx, row, "second")
            assert second == first + 1
            values = {"member": row.id, "epoch": first, "owner": "x", "until": 0.0, "now": NOW, "boot": "b"}
            assert tx.sql.one("lease_take", values) is None
            found = tx.progress.get(row.id)
            assert (found.owner, found.unclean, found.boot) == ("second", 1, "boot")
            assert abs(found.lease_until - found.lease_set_at - 10) < 0.001  # by the clock of the store

    def test_a_former_owner_can_neither_renew_nor_release(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            first = take(tx, row, "first")
            take(tx, row, "second")
            values = {"member": row.id, "epoch": first, "until": NOW + 99, "now": NOW}
            assert tx.sql.one("lease_renew", values) is None
            assert tx.sql.run("lease_release", {"member": row.id, "epoch": first}) == 0
            assert tx.progress.get(row.id).owner == "second"

    def test_a_release_frees_and_cleans_the_lease(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            epoch = take(tx, row)
            assert tx.sql.run("lease_release", {"member": row.id, "epoch": epoch}) == 1
            found = tx.progress.get(row.id)
            assert (found.owner, found.unclean, found.lease_until, found.epoch) == (None, 0, 0, epoch)

    def test_who_leaves_something_behind_cleans_the_lease_and_stays_the_owner(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            former, epoch = take(tx, row), take(tx, row)
            assert tx.sql.run("lease_leave", {"member": row.id, "epoch": former}) == 0
            before = tx.progress.get(row.id)
            assert tx.sql.run("lease_leave", {"member": row.id, "epoch": epoch}) == 1
            assert (before.unclean, tx.progress.get(row.id)) == (1, before._replace(unclean=0))

    def test_advancing_moves_the_prefix_and_adds_to_the_counters(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            epoch = take(tx, row)
            change = {
                "member": row.id, "epoch": epoch, "position": 5, "anchor": "e5", "applied": 3, "ignored": 1,
                "now": NOW, "last_type": "order.placed", "last_time_us": 9,
            }  # fmt: skip
            tx.progress.advance(change)
            tx.progress.advance({**change, "position": 6, "anchor": None, "last_type": None, "last_time_us": None})
            found = tx.progress.get(row.id)
            assert (found.position, found.anchor, found.applied, found.ignored) == (6, "e5", 6, 2)
            assert (found.last_type, found.last_time_us) == ("order.placed", 9)
        expect(Fenced, lambda: self._advance_wrongly({**change, "epoch": epoch - 1}))
        with self.store.reading() as tx:
            assert tx.logs.id_of("afterwards") == 0
            assert tx.progress.get(row.id).applied == 6

    def _advance_wrongly(self, change: dict[str, object]) -> None:
        """At the latest the commit says so, and nothing is written, neither what came before it nor what follows."""
        with self.store.transaction() as tx:
            tx.logs.id_of("afterwards", create=True)
            tx.progress.advance(change)

    def test_a_mark_below_the_floor_that_we_do_not_know_of_is_refused(self) -> None:
        """At the latest by the commit: somebody else has settled there."""
        row, marks = self._subscribe(), [3, 2_000, 70_000]
        with self.store.transaction() as tx:
            tx.progress.done.move(row.id, marks, 0, 0)
        for floor in (3, 4, 1_999, 2_000, 69_999, 70_000, 200_000):
            expect(Fenced, partial(self._pass, row.id, floor))
        self._pass(row.id, 2)
        with self.store.reading() as tx:
            assert tx.progress.done.all(row.id) == marks
        with self.store.transaction() as tx:
            tx.progress.done.move(row.id, [], 3, 1)
            tx.progress.done.move(row.id, [], 1_999, 0)
        with self.store.reading() as tx:
            assert tx.progress.done.all(row.id) == marks[1:]

    def test_done_rows_are_kept_above_the_prefix_and_counted_when_it_passes_them(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.progress.done.move(row.id, [3, 5, 9], 0, 0)
        with self.store.transaction() as tx:
            tx.progress.done.move(row.id, [11], 5, 2)
            assert tx.progress.done.all(row.id) == [9, 11]
        expect(Fenced, self._prune_wrongly)
        expect(Exception, self._settle_twice)
        with self.store.reading() as tx:
            assert tx.progress.done.all(row.id) == [9, 11]

    def test_marks_join_those_that_are_there_and_none_is_made_twice(self) -> None:
        """However far apart they are: one that is there already was settled by somebody else."""
        row, there, mine = self._subscribe(), [3, 600, 2_000, 70_000], [4, 601, 1_500, 2_001, 69_999]
        with self.store.transaction() as tx:
            tx.progress.done.move(row.id, there, 0, 0)
            tx.progress.done.move(row.id, mine, 0, 0)
            tx.progress.done.add(row.id, [])
        for one in there:
            expect(Fenced, partial(self._settle, row.id, sorted([5, 602, 1_501, 2_002, 70_001, one])))
        with self.store.reading() as tx:
            assert tx.progress.done.all(row.id) == sorted(there + mine)

    def _settle(self, member: int, positions: list[int]) -> None:
        with self.store.transaction() as tx:
            tx.progress.done.move(member, positions, 0, 0)

    def _pass(self, member: int, floor: int) -> None:
        with self.store.transaction() as tx:
            tx.progress.done.move(member, [], floor, 0)

    def _prune_wrongly(self) -> None:
        with self.store.transaction() as tx:
            tx.progress.done.move(1, [], 9, 5)

    def _settle_twice(self) -> None:
        with self.store.transaction() as tx:
            tx.progress.done.move(1, [9], 0, 0)

    def test_an_operators_lock_tells_the_owner_to_look_again(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            epoch = take(tx, row)
            before = tx.progress.fence(row.id, epoch, 0)[0]
            tx.progress.lock(row.id)
            assert tx.progress.fence(row.id, epoch, 0)[0] == before + 1

    def test_filters_hold_from_a_position_on(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.progress.add_filter(row.id, 0, ["b", "a"])
            tx.progress.add_filter(row.id, 5, [])
            tx.progress.add_filter(row.id, 5, ["c"])
            assert tx.progress.filters(row.id) == [(0, ["a", "b"]), (5, ["c"])]


class KeyedContract(StoreTests):
    """What keyed state and crash counting rely on."""

    def test_a_state_is_saved_only_on_top_of_the_version_that_was_read(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            assert tx.keyed.get(row.id, "a") == (0, b"")
            assert tx.keyed.save(row.id, "a", 0, b"1", 10)
            assert not tx.keyed.save(row.id, "a", 0, b"again", 20)
            assert not tx.keyed.save(row.id, "a", 7, b"stale", 20)
            assert tx.keyed.save(row.id, "a", 10, b"2", 20)
            version, data = tx.keyed.get(row.id, "a")
            assert (version, bytes(data)) == (20, b"2")

    def test_an_empty_state_deletes(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.keyed.save(row.id, "a", 0, b"1", 10)
            assert not tx.keyed.save(row.id, "a", 7, b"", 20)
            assert tx.keyed.save(row.id, "a", 10, b"", 20)
            assert tx.keyed.save(row.id, "never", 0, b"", 20)
            assert tx.keyed.get(row.id, "a") == (0, b"")

    def test_a_version_does_not_come_back_when_a_state_was_deleted(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.keyed.save(row.id, "a", 0, b"1", 10)
            tx.keyed.save(row.id, "a", 10, b"", 20)
            tx.keyed.save(row.id, "a", 0, b"2", 30)
            assert not tx.keyed.save(row.id, "a", 10, b"read before it was deleted", 40)
            assert not tx.keyed.save_all(row.id, [("a", 10, b"likewise", 40)])

    def test_many_states_are_saved_together_or_the_answer_is_no(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            assert tx.keyed.save_all(row.id, [(key, 0, b"1", 10) for key in "abc"] + [("d", 0, b"", 10)])
            assert tx.keyed.save_all(row.id, [("a", 10, b"2", 20), ("b", 10, b"", 20), ("e", 0, b"1", 30)])
            assert [tx.keyed.get(row.id, key)[0] for key in "abce"] == [20, 0, 10, 30]
        with self.store.transaction() as tx:
            assert not tx.keyed.save_all(row.id, [("a", 20, b"3", 40), ("c", 9, b"2", 40)])

    def test_states_of_subscriptions_do_not_mix(self) -> None:
        one, two = self._subscribe("one"), self._subscribe("two")
        with self.store.transaction() as tx:
            tx.keyed.save(one.id, "a", 0, b"1", 10)
            assert tx.keyed.get(two.id, "a") == (0, b"")

    def test_only_what_ran_alone_on_this_boot_is_charged(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.keyed.run_alone(row.id, 1, "boot")
            tx.keyed.run_alone(row.id, 2, "an older boot")
            assert tx.keyed.charge(row.id, "boot") == {1: (1, 0), 2: (0, 0)}
            assert tx.keyed.charge(row.id, "boot") == {1: (1, 0), 2: (0, 0)}
            tx.keyed.run_alone(row.id, 1, "boot")
            assert tx.keyed.charge(row.id, "boot") == {1: (2, 0), 2: (0, 0)}
            tx.keyed.run_alone(row.id, 1, "boot")
            assert tx.keyed.charge(row.id, "boot", lost=True) == {1: (3, 1), 2: (0, 0)}

    def test_an_excuse_and_a_completion_leave_no_charge(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.keyed.run_alone(row.id, 1, "boot")
            tx.keyed.excuse(row.id)
            assert tx.keyed.charge(row.id, "boot") == {}
            tx.keyed.ran(row.id, 1)
            assert tx.keyed.charge(row.id, "boot") == {}
