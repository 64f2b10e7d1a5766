"""Leases: taking, renewing and handing over a subscription. The epoch does the fencing."""

from __future__ import annotations

from contextlib import ExitStack

from redrive.clock import short_name
from redrive.errors import Differs, Fenced
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.policy.declaration import Reservation, differences, explained, is_other_code
from redrive.policy.lease import Lease, may_take
from redrive.runner import open_letters
from redrive.runner.duty import Duty, Engine
from redrive.runner.open_letters import DELAY_MAX
from redrive.store.declared import renew_reservation, stored_of
from redrive.store.port import ProgressRow, StoreTx, Subscribed
from redrive.store.progress import member_of
from redrive.subscription import Subscription

RENEWALS_PER_LEASE = 4  # one every third of a lease: so many take longer than a lease lasts


def lease_of(row: ProgressRow) -> Lease:
    """The ownership columns as policy sees them."""
    return Lease(row.owner, row.epoch, row.lease_until, bool(row.unclean), row.boot or "")


def take(
    engine: Engine,
    subscription: Subscription,
    row: Subscribed,
    watched: Lease | None = None,
    watched_for: float = 0.0,
    *,
    partition: int = 0,
) -> Duty | Lease:
    """Become the owner if the lease is free, lapsed or its owner dead; else the lease as it was seen.

    `watched` is the lease that was seen last, and how long ago it was first seen: that one may be known to
    stand still. Progress and done rows are loaded in the transaction that bumps the epoch, letters after its commit.
    Declarations are compared in that transaction, which holds the subscription's row: Differs if this process must
    stand by.
    """
    env, length, member = engine.env, engine.settings.lease, member_of(row.id, partition)
    with engine.store.reading() as tx:
        now = tx.progress.now(env.clock)
        members = {one.member: one for one in tx.progress.members(row.id)}
        check_agrees(engine, tx, subscription, row, now)  # without the write lock; the transaction asks again
    if member not in members:
        raise Fenced(f"{subscription.name}: its partitions have just changed")
    seen = lease_of(members[member])
    if not _allowed(engine, seen, now, watched_for if seen == watched else 0.0):
        return seen
    with ExitStack() as unless_taken:
        with engine.store.transaction() as tx:
            now, former = tx.progress.now(env.clock), lease_of(tx.progress.member(member))
            if not _allowed(engine, former, now, watched_for if former == watched else 0.0):
                return former
            values = {
                "member": member, "epoch": former.epoch, "owner": env.owner, "until": now + length, "now": now,
                "boot": env.boot,
            }  # fmt: skip
            taken = tx.sql.one("lease_take", values)
            if taken is None:
                raise Fenced(f"{subscription.name}: somebody else took the lease")
            reservation = check_agrees(engine, tx, subscription, row, now)
            duty = Duty(engine, subscription, row, taken[0], partition)
            duty.reserved = reservation.owner == env.owner
            unless_taken.callback(leave, duty)
            duty.load(tx, former)
            hit("lease.before_commit")
        engine.losses.judged(duty.member, duty.loss)
        with engine.store.reading() as tx:
            open_letters.load(duty, tx)
        unless_taken.pop_all()
    hit("lease.committed")
    engine.signals.tell([sig.LeaseTaken(subscription.name, duty.epoch, duty.horizon > 0 or bool(duty.suspects))])
    return duty


def check_agrees(engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed, now: float) -> Reservation:
    """Raise Differs if another process has reserved the subscription, or if we declare it otherwise than the store."""
    stored, reservation = stored_of(tx, row.id)
    check_reservation(engine, subscription.name, reservation, now)
    mine = subscription.declaration
    if found := differences(mine, stored):
        may_declare = not (stored.by_operator and is_other_code(mine, stored))
        raise Differs(explained(subscription.name, found), may_declare=may_declare)
    return reservation


def check_reservation(engine: Engine, name: str, reservation: Reservation, now: float) -> None:
    """Raise Differs if another living process has reserved the subscription."""
    env, owner = engine.env, reservation.owner
    if owner is not None and reservation.holds(me=env.owner, now=now, owner_is_dead=env.owner_is_dead(owner)):
        raise Differs(f"{name}: {short_name(owner)} rebuilds it; until that is done, other workers wait")


def _allowed(engine: Engine, lease: Lease, now: float, unchanged_for: float) -> bool:
    env = engine.env
    dead = lease.owner is not None and lease.owner != env.owner and env.owner_is_dead(lease.owner)
    return may_take(
        lease,
        me=env.owner,
        now=now,
        owner_is_dead=dead,
        unchanged_for=unchanged_for,
        length=engine.settings.lease,
    )


def renew(duty: Duty) -> None:
    """Keep the lease; learn of operators and pauses on the way. Fenced if it is not ours any more."""
    engine = duty.engine
    with engine.store.transaction() as tx:
        now = tx.progress.now(engine.env.clock)
        set_back = tx.progress.member(duty.member).lease_set_at > now  # due times must be looked at again
        values = {"member": duty.member, "epoch": duty.epoch, "until": now + engine.settings.lease, "now": now}
        row = tx.sql.one("lease_renew", values)
        if row is None:
            raise Fenced(f"{duty.subscription.name}: the lease was taken over")
        if (read := _read_by_all(duty)) is not None:
            tx.letters.changes.forget(duty.id, read)
        if duty.reserved:
            duty.reserved = renew_reservation(tx, duty.id, engine.env.owner, now)
    fresh_version, paused = row
    duty.paused = bool(paused)
    if set_back:
        duty.lanes.notice(engine.env.clock.now(), DELAY_MAX, is_set_back=True)
    if fresh_version != duty.parked_version:  # not in the transaction: reading must not hold the write lock
        with engine.store.reading() as tx:
            open_letters.catch_up(duty, tx, fresh_version)
    duty.known_versions.append(duty.parked_version)


def _read_by_all(duty: Duty) -> int | None:
    """A version that every owner of a partition has read: each reads when it renews, and has lost its lease if not."""
    if duty.share.partition != 0 or len(duty.known_versions) < RENEWALS_PER_LEASE:
        return None
    return duty.known_versions.popleft()


def release(duty: Duty) -> None:
    """Hand over at once: the next owner need not wait, and nobody is suspected of a crash.

    Who leaves a function behind is waited for: until the process is gone, or for the rest of the lease.
    """
    verb = "lease_leave" if duty.left_behind else "lease_release"
    with duty.engine.store.transaction() as tx:
        hit("release.before_commit")
        tx.keyed.excuse(duty.member)
        found = tx.sql.run(verb, {"member": duty.member, "epoch": duty.epoch})
    if found and not duty.left_behind:
        duty.engine.signals.tell([sig.LeaseReleased(duty.subscription.name, duty.epoch)])


def leave(duty: Duty) -> None:
    """We own it no more: let go of what only its owner may hold."""
    if duty.keeper is not None:
        duty.keeper.close()


def excuse(duty: Duty) -> None:
    """A stop was asked for: should we be killed before we finish, no event is charged for it."""
    with duty.engine.store.transaction() as tx:
        tx.keyed.excuse(duty.member)


def halted(engine: Engine, row: Subscribed, partition: int, reason: str | None) -> None:
    """Write down why the subscription stands still, for everybody who asks the store."""
    with engine.store.transaction() as tx:
        member = member_of(row.id, partition)
        epoch, owner = (found := tx.progress.member(member)).epoch, found.owner
        if owner in (None, engine.env.owner):
            tx.sql.run("halted_set", {"member": member, "epoch": epoch, "reason": reason})
