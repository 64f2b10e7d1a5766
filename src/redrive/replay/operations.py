"""Everything an operator can do, in one hand: what `app.operate()` returns and the command line is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redrive.clock import Env
from redrive.observe.signals import Signals
from redrive.replay import ledger, rebuild
from redrive.replay.bulk import BulkDesk
from redrive.replay.deed import Operator, Told, untold, whoami
from redrive.replay.foreign import foreign_writers
from redrive.replay.ledger import Verdict
from redrive.replay.letters import LetterDesk
from redrive.replay.rebuild import Rebuilding, ResetPlan
from redrive.replay.status import SubscriptionStatus, status
from redrive.replay.subscriptions import SubscriptionDesk
from redrive.store.port import Store
from redrive.subscription import Subscription
from redrive.types import EventTypes

if TYPE_CHECKING:
    from redrive.replay.breakers import BreakerDesk
    from redrive.replay.chain import AuditVerdict
    from redrive.replay.doctor import Finding
    from redrive.replay.holds import HoldDesk
    from redrive.replay.prune import PrunePlan, What
    from redrive.replay.workers import Worker
    from redrive.settings import Settings


@dataclass(frozen=True, slots=True)
class Operations:
    """Letters, subscriptions, the ledger and the state of things, for somebody with a name."""

    operator: Operator
    letters: LetterDesk
    subscriptions: SubscriptionDesk
    bulk: BulkDesk
    declared: Mapping[str, Subscription] = field(default_factory=dict)
    runs_here: Callable[[str], bool] = lambda name: False  # does this process run a subscription of this name?

    def foreign_writers(self) -> list[str]:
        """Name the user's triggers, functions and views that can write to redrive's own tables unseen."""
        return foreign_writers(self.operator.store)

    def verify(self, told: Told = untold) -> list[Verdict]:
        """Account for every event of every subscription; `told` is called after each check."""
        plain = {name for name, sub in self.declared.items() if sub.key_by is None and sub.order == "key"}
        return ledger.verify(self.operator.store, plain, told)

    def verify_audit(self) -> AuditVerdict:
        """Walk the audit's hash chain."""
        from redrive.replay.chain import verify_audit

        return verify_audit(self.operator.store)

    def doctor(self, settings: Settings) -> list[Finding]:
        """What about the store, the machine and the subscriptions will hurt."""
        from redrive.replay.doctor import examine

        return list(examine(self.operator.store, self.operator.env, settings, self.declared or None))

    def plan_prune(self, what: What) -> PrunePlan:
        """What `prune` would delete, and whether a broker would give some of it again."""
        from redrive.replay.prune import plan_prune
        from redrive.replay.prune_events import check_unacknowledged

        store, intakes = self.operator.store, {one.source: one for one in self.declared.values() if one.origin}
        plan = plan_prune(store, self.operator.now(), what)
        plan.events = [check_unacknowledged(store, one, intakes.get(one.log)) for one in plan.events]
        return plan

    def prune(self, what: What, plan: PrunePlan, reason: str = "", told: Told = untold) -> PrunePlan:
        """Delete what was planned; `told` is called after each batch."""
        from redrive.replay.prune import prune

        return prune(self.operator, what, plan, reason, told)

    def workers(self, lease: float) -> list[Worker]:
        """Who runs what; one that has been silent for longer than a lease is said to be."""
        from redrive.replay.workers import workers

        return workers(self.operator.store, self.operator.env, lease)

    @property
    def breakers(self) -> BreakerDesk:
        """Look at breakers, open and close them by hand."""
        from redrive.replay.breakers import BreakerDesk

        return BreakerDesk(self.operator)

    @property
    def holds(self) -> HoldDesk:
        """Keep the events of a key back, and release them."""
        from redrive.replay.holds import HoldDesk

        return HoldDesk(self.operator)

    def status(self) -> list[SubscriptionStatus]:
        """Where every subscription stands."""
        return status(self.operator.store, self.operator.env)

    def reset(self, name: str, reason: str) -> Rebuilding:
        """Empty what a subscription built and take it back to its start; the next run builds it again."""
        declared = self.declared.get(name)
        if declared is not None and self.runs_here(name):
            return rebuild.reset_to_rebuild(self.operator, name, reason, declared)
        return rebuild.reset(self.operator, name, reason, declared)

    @property
    def rebuilds(self) -> rebuild.RebuildDesk:
        """Rebuild subscriptions in this process, while other workers wait."""
        return rebuild.RebuildDesk(self.operator, self.declared)

    def plan_reset(self, name: str) -> ResetPlan:
        """What `reset` would clear."""
        return rebuild.plan_reset(self.operator.store, name, self.declared.get(name))

    def progress(self, name: str) -> Rebuilding:
        """How far a rebuild has come."""
        return rebuild.progress(self.operator.store, name)


def operate(
    store: Store,
    env: Env,
    signals: Signals | None = None,
    who: str | None = None,
    *,
    types: EventTypes | None = None,
    declared: Mapping[str, Subscription] | None = None,
    patience: float = 0.0,
    runs_here: Callable[[str], bool] = lambda name: False,
) -> Operations:
    """Put the desks together; what the program declares lets them check keys, filters and tables.

    `patience`: seconds for which a command goes on trying while others hold the write lock.
    """
    known = dict(declared or {})
    operator = Operator(store, env, signals, who or whoami(), patience)
    keys = {name: subscription.key_of for name, subscription in known.items()}
    letters = LetterDesk(store, env, signals, operator.who, keys=keys, types=types, patience=patience)
    subscriptions = SubscriptionDesk(operator, known, types)
    return Operations(operator, letters, subscriptions, BulkDesk(operator, letters), known, runs_here)
