"""Landing: what a broker gives is written to a log, once, together with how far it was read.

One owner reads, fenced like every other; the order in which it reads is the order of the log. A message whose id the
log holds already is the same message again, or, with other content, one that a function must not be called with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from redrive.event import NewEvent
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Duty
from redrive.runner.loop import Loop
from redrive.runner.wake import Wake
from redrive.sources.port import Message, Reader, Source
from redrive.sources.refusal import ID_COLLISION, refused
from redrive.store import landed
from redrive.store.port import StoreTx
from redrive.store.sql import Row

READ_MAX = 1_000  # messages in one transaction
WAIT_SECONDS = 0.2  # for which a read may block: a stop waits for it

T = TypeVar("T")


class Landing:
    """Writes for the owner of a broker; runs where writing happens."""

    def __init__(self, duty: Duty, source: Source) -> None:
        self.duty, self.source = duty, source
        self.positions: dict[int, str] = {}
        self._has_imports = False

    def load(self) -> None:
        """Where we are, as the store has it."""
        with self.duty.engine.store.reading() as tx:
            self.positions = landed.positions(tx.sql, self.duty.id)
            self._has_imports = landed.has_imports(tx, self.duty.subscription.source)

    def look(self) -> None:
        """Are we still the owner, and is there a pause?"""
        with self.duty.engine.store.reading(snapshot=False) as tx:
            self.duty.refresh(tx)

    def land(self, messages: Sequence[Message]) -> bool:
        """One transaction: the fence, the events that are new, how far we are. False: there is a pause."""
        duty, engine = self.duty, self.duty.engine
        to = {**self.positions, **{message.partition: message.position for message in messages}}
        # What the broker is told to have landed must have; what it gives again after a power cut need not.
        with engine.store.transaction(durable=self.source.acknowledges) as tx:
            _, paused, *_ = tx.progress.fence(duty.member, duty.epoch, duty.window.position)
            hit("land.fenced")
            if paused:
                duty.paused = True
                return False
            events = self._new(tx, messages)
            rows: list[Row] = tx.logs.append(duty.subscription.source, events)[0] if events else []
            landed.move(tx.sql, duty.id, to)
            now, last = engine.env.clock.now(), rows[-1] if rows else None
            position = last[0] if last else duty.window.position
            tx.progress.advance(
                {
                    "member": duty.member, "epoch": duty.epoch, "position": position, "anchor": last and last[1],
                    "applied": len(rows), "ignored": 0, "now": now, "last_type": last and last[2],
                    "last_time_us": last and last[6],
                }
            )  # fmt: skip
            hit("land.before_commit")
        hit("land.committed")
        duty.window.position = duty.window.cursor = position
        duty.settled_at, self.positions = now, to
        if rows:
            engine.signals.tell([sig.Appended(duty.subscription.source, len(rows), position)])
            engine.appended(duty.subscription.source)
        return True

    def _new(self, tx: StoreTx, messages: Sequence[Message]) -> list[NewEvent]:
        """The events that the log does not hold yet."""
        duty = self.duty
        duty.log_id = duty.log_id or tx.logs.id_of(duty.subscription.source, create=True)
        seen = landed.known(
            tx.sql, duty.log_id, [message.event.id for message in messages if self._may_repeat(message)]
        )
        events = []
        for message in messages:
            event, content = message.event, content_of(message.event)
            if self._may_repeat(message):
                stored = seen.get(event.id)
                if stored is not None and (*stored[:3], bytes(stored[3])) == content:
                    continue
                if stored is not None:
                    event = refused(event, message, ID_COLLISION, f"the log holds another event {event.id!r}")
                    again = landed.known(tx.sql, duty.log_id, [event.id])
                    if again or event.id in seen:
                        continue
                seen[event.id] = content_of(event)
            events.append(event._replace(may_repeat=False))
        return events

    def _may_repeat(self, message: Message) -> bool:
        """A position is read once; what a producer, a group that gives again, or an import names may come twice."""
        return message.has_id or self.source.acknowledges or self._has_imports


def content_of(event: NewEvent) -> Row:
    """What makes two messages with one id the same."""
    return event.type, event.key, event.schema, event.data_raw


class LandingLoop(Loop):
    """Read, land, tell the broker; the next read is under way while the last one lands."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake, *, threads: bool = True) -> None:
        super().__init__(duty, bridge, wake)
        source = duty.subscription.origin
        assert source is not None
        self.source, self.landing = source, Landing(duty, source)
        self._thread = ThreadPoolExecutor(1, "redrive-intake") if threads else None

    async def run(self) -> None:
        await self.bridge.run(self.landing.load)
        try:
            while not self.stopping:
                if self.duty.paused:
                    await self.renew_if_due()
                    await self.rest(True, self.pause_length())
                    await self.bridge.run(self.landing.look)
                else:
                    await self._read_on()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)

    async def _read_on(self) -> None:
        """Until a stop or a pause. What was read and did not land is read again by whoever opens it next."""
        reader = await self._ask(lambda: self.source.open(self.duty.subscription.group))
        try:
            while not (self.stopping or self.duty.paused):
                await self._round(reader)
        finally:
            await self._ask(reader.close)

    async def _round(self, reader: Reader) -> None:
        await self.renew_if_due()
        await self.wake.wait(0.0)  # what rings is about the store; the broker is asked anyway
        positions, wait = dict(self.landing.positions), WAIT_SECONDS if self.idle and self._thread else 0.0
        messages = await self._ask(lambda: reader.read(positions, READ_MAX, wait))
        if not messages:
            if self._thread is None:
                await self.rest(True, self.pause_length())
            elif not self.idle:
                self.idle = True
                self.on_idle()
            else:
                await self.bridge.run(self.landing.look)
            return
        self.idle = False
        has_landed = await self.bridge.run(lambda: self.landing.land(messages))
        if has_landed and self.source.acknowledges:
            await self._ask(lambda: reader.settled(messages))

    async def _ask(self, question: Callable[[], T]) -> T:
        """Something that blocks until the broker answers."""
        if self._thread is None:
            return question()
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)
