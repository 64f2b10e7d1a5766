"""Everything an operator can do, in one hand: what `app.operate()` returns and the command line is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from redrive.clock import Env
from redrive.observe.signals import Signals
from redrive.replay import ledger, rebuild
from redrive.replay.bulk import BulkDesk
from redrive.replay.deed import Operator, whoami
from redrive.replay.ledger import Verdict
from redrive.replay.letters import LetterDesk
from redrive.replay.rebuild import Rebuilding, ResetPlan
from redrive.replay.status import SubscriptionStatus, status
from redrive.replay.subscriptions import SubscriptionDesk
from redrive.store.port import Store
from redrive.subscription import Subscription
from redrive.types import EventTypes


@dataclass(frozen=True, slots=True)
class Operations:
    """Letters, subscriptions, the ledger and the state of things, for somebody with a name."""

    operator: Operator
    letters: LetterDesk
    subscriptions: SubscriptionDesk
    bulk: BulkDesk
    declared: Mapping[str, Subscription] = field(default_factory=dict)

    def verify(self) -> list[Verdict]:
        """Account for every event of every subscription."""
        plain = {name for name, sub in self.declared.items() if sub.key_by is None and sub.order == "key"}
        return ledger.verify(self.operator.store, plain)

    def status(self) -> list[SubscriptionStatus]:
        """Where every subscription stands."""
        return status(self.operator.store, self.operator.env)

    def reset(self, name: str, reason: str) -> Rebuilding:
        """Empty what a subscription built and take it back to its start; the next run builds it again."""
        return rebuild.reset(self.operator, name, reason, self.declared.get(name))

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
) -> Operations:
    """Put the desks together; what the program declares lets them check keys, filters and tables."""
    known = dict(declared or {})
    operator = Operator(store, env, signals, who or whoami())
    keys = {name: subscription.key_of for name, subscription in known.items()}
    letters = LetterDesk(store, env, signals, operator.who, keys=keys, types=types)
    return Operations(operator, letters, SubscriptionDesk(operator, known, types), BulkDesk(operator, letters), known)
