"""Mirroring: an owner carries what happened to letters to one mirror, in order, and remembers how far it is.

First the mirror holds it, then the store says so: after a crash it is told again, and never left out. A mirror that
cannot be written to halts its own subscription, with the reason, and is tried again; it spends no letters.
"""

from __future__ import annotations

from typing import NamedTuple

from redrive.failpoints import hit
from redrive.mirrors.entry import entry_of
from redrive.mirrors.port import Mirror
from redrive.policy.following import NO_GAP, Gap, complete
from redrive.runner.asking import AskingLoop
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Duty
from redrive.runner.wake import Wake
from redrive.store import journal, landed

PAGE = 100  # entries at a time: each may bring an event of a megabyte
LOOK_SECONDS = 1.0  # what another process did to a letter is not always heard of


class Carried(NamedTuple):
    """What one page brought: up to where, and whether there may be more."""

    upto: int
    more: bool


class Mirroring:
    """Reads for the owner of a mirror, writes to it, and remembers."""

    def __init__(self, duty: Duty, mirror: Mirror) -> None:
        self.duty, self.mirror = duty, mirror
        self.position = 0
        self._gap: Gap = NO_GAP

    def load(self) -> None:
        """Where we are, as the store has it; or further back, if the mirror has lost something since."""
        with self.duty.engine.store.reading() as tx:
            self.position = int(landed.positions(tx.sql, self.duty.id).get(0, "0"))
        known = self.mirror.resume()
        if known is not None and known < self.position:
            self.position = known

    def carry(self) -> Carried:
        """The next page, from the store to the mirror."""
        with self.duty.engine.store.reading() as tx:
            rows = journal.following(tx.sql, self.position, PAGE)
            numbers = [row.seq for row in rows]
            count, self._gap = complete(self.position, numbers, *journal.horizon(tx.sql), self._gap)
        if count == 0:
            return Carried(self.position, False)
        only = self.duty.subscription.only
        entries = [entry_of(row) for row in rows[:count] if not only or row.subscription in only]
        if entries:
            self.mirror.write(entries, self.duty.engine.env.clock.now())
        hit("mirror.written")
        return Carried(numbers[count - 1], True)

    def remember(self, upto: int) -> None:
        """One transaction: the fence, and how far we are."""
        duty, engine = self.duty, self.duty.engine
        with engine.store.transaction(durable=False) as tx:
            _, paused, *_ = tx.progress.fence(duty.member, duty.epoch, duty.window.position)
            landed.move(tx.sql, duty.id, {0: str(upto)})
            now = engine.env.clock.now()
            tx.progress.advance(
                {
                    "member": duty.member, "epoch": duty.epoch, "position": duty.window.position, "anchor": None,
                    "applied": 0, "ignored": 0, "now": now, "last_type": None, "last_time_us": None,
                }
            )  # fmt: skip
            hit("mirror.before_commit")
        duty.settled_at, duty.paused, self.position = now, bool(paused), upto

    def look(self) -> None:
        """Are we still the owner, and is there a pause?"""
        with self.duty.engine.store.reading(snapshot=False) as tx:
            self.duty.refresh(tx)


class MirrorLoop(AskingLoop):
    """Page after page while there is something; the mirror is waited for by a thread of its own."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake, *, threads: bool = True) -> None:
        super().__init__(duty, bridge, wake, "redrive-mirror" if threads else None)
        assert duty.subscription.mirror is not None
        self.mirroring = Mirroring(duty, duty.subscription.mirror)

    async def run(self) -> None:
        try:
            await self._ask(self.mirroring.load)
            while not self.stopping:
                await self._round()
        finally:
            await self._ask(self.mirroring.mirror.close)
            self._ask_no_more()

    async def _round(self) -> None:
        await self.renew_if_due()
        carried = Carried(0, False) if self.duty.paused else await self._ask(self.mirroring.carry)
        if carried.more:
            await self.bridge.run(lambda: self.mirroring.remember(carried.upto))
            return
        await self.rest(not self.wake.pending, min(LOOK_SECONDS, self.pause_length()))
        await self.bridge.run(self.mirroring.look)
