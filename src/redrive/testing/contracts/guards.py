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
