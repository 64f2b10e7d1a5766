"""Guards: breakers, probes under way and shared limits, as several workers rely on them."""

from __future__ import annotations

import math

from redrive.policy.breaker import PRISTINE, Breaker, State
from redrive.policy.limiter import Bucket
from redrive.testing.contracts.base import NOW, StoreTests


class GuardContract(StoreTests):
    """What keeps a dependency from being overrun, across workers."""

    def test_a_breaker_is_found_as_it_was_saved(self) -> None:
        tripped = Breaker(State.OPEN, failures=5, successes=1, since=NOW, until=NOW + 60)
        with self.store.transaction() as tx:
            assert tx.guards.breaker("stripe") == PRISTINE
            tx.guards.declare("stripe")
            assert tx.guards.lock("stripe") == PRISTINE
            tx.guards.save("stripe", tripped)
            tx.guards.declare("stripe")
        with self.store.reading() as tx:
            assert tx.guards.breaker("stripe") == tripped
            assert tx.guards.breakers() == {"stripe": tripped}

    def test_one_that_a_person_opened_is_open_for_ever(self) -> None:
        forced = Breaker(State.OPEN, since=NOW, until=math.inf)
        with self.store.transaction() as tx:
            tx.guards.lock("stripe")
            tx.guards.save("stripe", forced)
            assert tx.guards.breaker("stripe") == forced

    def test_probes_count_until_they_are_back(self) -> None:
        owner = (self._subscribe().id, 0)
        with self.store.transaction() as tx:
            tx.guards.take_probes("stripe", owner, 2, NOW + 10)
            tx.guards.take_probes("stripe", owner, 1, NOW + 10)
            assert tx.guards.probes("stripe", NOW) == 3
            assert tx.guards.probes("paypal", NOW) == 0
            tx.guards.return_probes("stripe", owner, 2)
            assert tx.guards.probes("stripe", NOW) == 1

    def test_probes_of_an_owner_that_was_fenced_or_never_came_back_count_no_more(self) -> None:
        row = self._subscribe()
        with self.store.transaction() as tx:
            tx.guards.take_probes("stripe", (row.id, 0), 2, NOW + 10)
            assert tx.guards.probes("stripe", NOW + 10) == 0
            until = {"member": row.id, "epoch": 0, "owner": "b", "until": NOW, "now": NOW, "boot": ""}
            taken = tx.sql.one("lease_take", until)
            assert taken is not None
            assert tx.guards.probes("stripe", NOW) == 0
            tx.guards.take_probes("stripe", (row.id, taken[0]), 1, NOW + 10)
            assert tx.guards.probes("stripe", NOW) == 1

    def test_a_bucket_is_shared(self) -> None:
        bucket = Bucket(rate=10.0, burst=5)
        with self.store.transaction() as tx:
            assert tx.guards.take("limit crm", bucket, NOW, 3).granted == 3
        with self.store.transaction() as tx:
            taken = tx.guards.take("limit crm", bucket, NOW, 3)
            assert taken.granted == 2
            assert 0 < taken.wait <= 0.11
            assert tx.guards.take("limit erp", bucket, NOW, 3).granted == 3

    def test_breakers_of_keys_are_found_by_their_name_and_forgotten_when_they_have_nothing_to_tell(self) -> None:
        tripped, owner = Breaker(State.OPEN, 3, 1, NOW, NOW + 60), (self._subscribe().id, 0)
        with self.store.transaction() as tx:
            for name in ("crm/", "crm/a", "crm/ä/b", "crm/\U0010ffff", "crm", "crm0", "crn/a", "CRM/a", "crm."):
                tx.guards.lock(name)
            for name in ("crm/", "crm/a"):
                tx.guards.save(name, tripped)
            tx.guards.take_probes("crm/ä/b", owner, 1, NOW + 10)
        with self.store.transaction() as tx:
            assert tx.guards.keyed("crm/", 10) == {"a": tripped, "ä/b": PRISTINE, "\U0010ffff": PRISTINE}
            assert tx.guards.keyed("crm/", 1) == {"a": tripped}
            tx.guards.forget("crm/ä/b", PRISTINE)
            tx.guards.forget("crm/a", tripped)
            tx.guards.forget("crm/\U0010ffff", Breaker(since=NOW))  # somebody has used it since
            assert tx.guards.probes("crm/ä/b", NOW) == 0
            assert sorted(tx.guards.keyed("crm/", 10)) == ["a", "\U0010ffff"]
            counts = tx.sql.all("breakers_count", {"low": "crm/", "high": "crm0"})
            assert [tuple(row) for row in counts] == [("closed", 1), ("open", 1)]

    def test_a_full_bucket_needs_no_row(self) -> None:
        bucket = Bucket(rate=1.0, burst=5)
        with self.store.transaction() as tx:
            for name, wanted in (("limit crm/a", 1), ("limit crm/b", 3), ("limit crm", 1), ("limit crm0", 1)):
                tx.guards.take(name, bucket, NOW, wanted)
            assert tx.guards.forget_full("limit crm/", NOW + 2)
            assert tx.guards.take("limit crm/b", bucket, NOW + 2, 5).granted == 4, "what is used is remembered"
            assert not tx.guards.forget_full("limit crm/", NOW + 7)
            for beside in ("limit crm", "limit crm0"):
                assert tx.guards.take(beside, bucket, NOW, 5).granted == 4
