"""Landing: what a broker gives is written to a log, once, together with how far it was read.

One owner reads, fenced like every other; the order in which it reads is the order of the log. A message whose id the
log holds already is the same message again, or, with other content, one that a function must not be called with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

from redrive.errors import CommitUnknown
from redrive.event import NewEvent
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.runner.asking import AskingLoop
from redrive.runner.bridge import Bridge, answer, heard
from redrive.runner.duty import Duty
from redrive.runner.handed import Landed
from redrive.runner.standing import Apart, Together
from redrive.runner.turns import BEHIND_MAX, Turn
from redrive.runner.wake import Wake
from redrive.sources.port import Message, Plain, Positions, Reader, Source
from redrive.sources.refusal import ID_COLLISION, refused
from redrive.store import landed
from redrive.store.port import StoreTx
from redrive.store.sql import Row

READ_MAX = 1_000  # messages in one transaction
# While there is a backlog of small ones, so many times as many: a commit costs less, and pages of the index on the keys
# are written once per transaction. More would let what has landed pile up faster than it is applied, and leave memory.
MORE, SMALL_BYTES, SAMPLE = 2, 1_000, 50
# Seconds for which a read may block: a stop waits for it. Short at first: who stops when idle, stops soon after.
WAIT_MIN, WAIT_MAX = 0.01, 0.2
# Seconds for which what comes now and then is read and landed without a word to the loop, if no lease is to be renewed
# before that. A word takes one to three milliseconds, in which others come.
AWAY_SECONDS_MAX = 2.0
WARY_BATCHES = 100  # where one message came again, others will

log = logging.getLogger("redrive")


class Read(NamedTuple):
    """What was read, and whether it has landed, if that was tried already."""

    messages: Sequence[Message | Plain]
    starts: Positions
    landed: bool | None


class Repeated(Exception):
    """The log holds some of them already: nothing was written, and each is to be looked at."""


class Landing:
    """Writes for the owner of a broker; runs where writing happens."""

    def __init__(self, duty: Duty, source: Source) -> None:
        self.duty, self.source = duty, source
        self.positions: dict[int, str] = {}
        self._has_said = False  # that events in this log have no versions
        self._wary = 0  # batches left to be looked at before they are written

    def load(self) -> None:
        """Where we are, as the store has it."""
        with self.duty.engine.store.reading() as tx:
            self.positions = landed.positions(tx.sql, self.duty.id)

    def look(self) -> None:
        """Are we still the owner, and is there a pause?"""
        with self.duty.engine.store.reading(snapshot=False) as tx:
            self.duty.refresh(tx)

    def rest(self) -> None:
        """There was nothing for a while: whoever reads the log has read it."""
        self.duty.engine.handed.forget(self.duty.subscription.source)
        self.look()

    def land(self, messages: Sequence[Message | Plain], starts: Positions) -> bool:
        """What is new of these, and how far we are. False: there is a pause."""
        is_wary, self._wary = self._wary > 0, max(0, self._wary - 1)
        # Where something is to be acknowledged the broker hears of it first: nothing is pending meanwhile.
        stand = None if self.source.acknowledges else self.duty.engine.standing.only(self.duty.subscription.source)
        while True:  # at most once more for each of the two
            try:
                return self._land(messages, starts, Together(stand), is_wary=is_wary)
            except Repeated:
                if is_wary:
                    raise
                self._wary, is_wary = WARY_BATCHES, True
            except Apart:
                stand = None
            except CommitUnknown:  # who had its turn in there has to look again, too
                self.duty.engine.appended(self.duty.subscription.source)
                raise

    def _land(
        self, messages: Sequence[Message | Plain], starts: Positions, together: Together, *, is_wary: bool
    ) -> bool:
        """One transaction: the fence, the events, how far we are, and the turn of who waits for them."""
        duty, engine = self.duty, self.duty.engine
        to = {**self.positions, **starts, **_ends(messages)}
        # What the broker is told to have landed must have; what it gives again after a power cut need not.
        with together, engine.store.transaction(durable=self.source.acknowledges) as tx:
            _, paused, *_ = tx.progress.fence(duty.member, duty.epoch, duty.window.position)
            hit("land.fenced")
            if paused:
                duty.paused = True
                return False
            added, events = self._append(tx, messages, is_wary=is_wary)
            position = added.position
            landed.move(tx.sql, duty.id, to)
            now, last = engine.env.clock.now(), events[-1] if events else None
            tx.progress.advance(
                {
                    "member": duty.member, "epoch": duty.epoch, "position": position, "anchor": last and last.id,
                    "applied": len(events), "ignored": 0, "now": now, "last_type": last and last.type,
                    "last_time_us": last and last.time_us,
                }
            )  # fmt: skip
            new = Landed(added.above, added.events(events, engine.types))
            if new.events:
                together.join(tx, new)
            hit("land.before_commit")
        hit("land.committed")
        duty.window.position = duty.window.cursor = position
        duty.settled_at, self.positions, self._has_said = now, to, self._has_said or bool(events)
        if new.events:
            if not together.is_quiet:
                engine.handed.put(duty.subscription.source, new)
            engine.store.news.told(added.first, position)
        if events:  # who waits for them first: everybody who is woken wants the interpreter
            begins = not (self.source.acknowledges or together.has_turn)
            if not (together.is_quiet or (begins and engine.standing.begin(duty.subscription.source))):
                engine.appended(duty.subscription.source)
            engine.signals.tell([sig.Appended(duty.subscription.source, len(events), position)])
        return True

    def _append(
        self, tx: StoreTx, messages: Sequence[Message | Plain], *, is_wary: bool
    ) -> tuple[landed.Appended, Sequence[landed.Fields]]:
        """What was added, and the events that were new: nearly always all, which writing them shows soonest."""
        duty, log = self.duty, self.duty.subscription.source
        events: Sequence[landed.Fields]
        is_plain = set(map(type, messages)) == {Plain} and not is_wary
        if is_plain:
            events = cast("Sequence[Plain]", messages)
        elif is_wary:
            events = self._new(tx, messages)
        else:
            events = [m if type(m) is Plain else m.event for m in messages]
        if not events:
            return landed.Appended(0, duty.window.position, 0), events
        is_first = not self._has_said
        added = landed.append_new(tx.logs, tx.sql, log, events, is_first=is_first, is_plain=is_plain)
        if added is None:
            raise Repeated
        return added, events

    def _new(self, tx: StoreTx, messages: Sequence[Message | Plain]) -> list[NewEvent]:
        """The events that the log does not hold yet."""
        duty = self.duty
        duty.log_id = duty.log_id or tx.logs.id_of(duty.subscription.source, create=True)
        tx.sql.claim((duty.log_id,))  # nobody may append one of them between the look and the landing
        seen = landed.known(tx.sql, duty.log_id, [message.event.id for message in messages])
        events = []
        for message in messages:
            event, stored = message.event, seen.get(message.event.id)
            if stored is not None and (*stored[:3], bytes(stored[3])) == content_of(event):
                continue
            if stored is not None:
                event = refused(event, message, ID_COLLISION, f"the log holds another event {event.id!r}")
                again = landed.known(tx.sql, duty.log_id, [event.id])
                if again or event.id in seen:
                    continue
            seen[event.id] = content_of(event)
            events.append(event._replace(may_repeat=False))
        return events


def content_of(event: NewEvent) -> Row:
    """What makes two messages with one id the same."""
    return event.type, event.key, event.schema, event.data_raw


class LandingLoop(AskingLoop):
    """Read, land, tell the broker; while there is a backlog the next read is under way before the last one lands."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake, *, threads: bool = True) -> None:
        super().__init__(duty, bridge, wake, "redrive-intake" if threads else None)
        source = duty.subscription.origin
        assert source is not None
        self.source, self.landing = source, Landing(duty, source)
        self._cursor: dict[int, str] = {}  # how far was read, which may not have landed yet
        self._ahead: asyncio.Future[Read] | None = None  # a read that was begun before its turn
        self._wait = 0.0
        self._waiting: Reader | None = None  # who may wait for what is not there yet
        self._turn = Turn(duty, source.behind) if source.behind is not None else None
        self._read_max = READ_MAX if self._turn is None else BEHIND_MAX

    def stop(self) -> None:
        """What waits for the broker need not, any more."""
        super().stop()
        if self._waiting is not None:
            asyncio.get_running_loop().run_in_executor(None, self._waiting.hurry)

    @property
    def is_idle(self) -> bool:
        """What rings is about the store, and only of interest in a pause: the broker is asked anyway."""
        return self.idle and not (self.duty.paused and self.wake.pending)

    async def run(self) -> None:
        await self.bridge.run(self.landing.load)
        try:
            await self._warn()
            while not self.stopping:
                if self.duty.paused:
                    await self.renew_if_due()
                    await self.rest(True, self.pause_length())
                    await self.bridge.run(self.landing.look)
                else:
                    await self._read_on()
        finally:
            self._ask_no_more()

    async def _warn(self) -> None:
        """Tell what about the broker will hurt one day."""
        if not self.source.has_warned:
            for text in await self._ask(self.source.warnings):
                log.warning("%s: %s", self.source.log, text)
            self.source.has_warned = True

    async def _read_on(self) -> None:
        """Until a stop or a pause. What was read and did not land is read again by whoever opens it next."""
        reader = await self._ask(lambda: self.source.open(self.duty.subscription.group))
        self._cursor = dict(self.landing.positions)
        try:
            while not (self.stopping or self.duty.paused):
                await self._round(reader)
        finally:
            if self._ahead is not None:
                self._ahead.cancel()
                self._ahead = None
            closing = self._ask(reader.close)
            closing.add_done_callback(heard)
            if not self.abandoned:  # else a function may hang before it
                await closing

    async def _round(self, reader: Reader) -> None:
        await self.renew_if_due()
        await self.wake.wait(0.0)
        if self._turn is not None and (wait := await self.bridge.run(self._turn.look)):
            await self.rest(wait.idle, min(wait.seconds, self.pause_length()))
            return
        self._waiting = reader if self._wait > 0 else None
        reading, self._ahead = self._ahead or self._read(reader), None
        messages, starts, has_landed = await reading
        self._waiting = None
        if not (messages or starts):
            await self._had_nothing()
            return
        self.idle = False
        self._wait = WAIT_MIN if self._thread is not None and len(messages) < READ_MAX else 0.0
        self._cursor |= {**starts, **_ends(messages)}
        # A few may be all there is, or say that something is lost: let them land first.
        if len(messages) >= READ_MAX and self._turn is None:
            sample = [*map(_size, messages[:: 1 + len(messages) // SAMPLE])]
            are_small = sum(sample) <= SMALL_BYTES * len(sample)
            self._read_max = MORE * READ_MAX if are_small else READ_MAX
            self._ahead = self._read(reader)
            self._ahead.add_done_callback(heard)
        elif self._turn is None:
            self._read_max = READ_MAX
        if has_landed is None:
            has_landed = await self.bridge.run(lambda: self.landing.land(messages, starts))
        if has_landed and self.source.acknowledges:
            await self._ask(lambda: reader.settled(messages))

    async def _had_nothing(self) -> None:
        if self._thread is None:
            await self.rest(True, self.pause_length())
        elif not self.idle and self._wait > 0:
            self._wait = 0.0  # nothing has come in time; only who does not wait is told whether there is anything
        elif not self.idle:
            self.idle, self._wait = True, WAIT_MIN
            self.on_idle()
        else:
            self._wait = min(2 * self._wait, WAIT_MAX)
            await self.bridge.run(self.landing.rest)

    def _read(self, reader: Reader) -> asyncio.Future[Read]:
        """Begin to read. What was waited for lands at once: to wake us first would take as long as writing it."""
        positions, limit, wait = dict(self._cursor), self._read_max, self._wait
        if wait <= 0 or self._turn is not None or self._thread is None:
            return self._ask(lambda: Read(reader.read(positions, limit, wait), reader.starts, None))
        future: asyncio.Future[Read] = asyncio.get_running_loop().create_future()

        def read() -> Read | None:
            return self._read_and_land(reader, positions, limit, wait, future)

        def done(found: Read | None, error: BaseException | None) -> None:
            if found is not None or error is not None:
                answer(future, found, error)

        self._thread.submit(read, done)
        return future

    def _read_and_land(
        self, reader: Reader, positions: Positions, limit: int, wait: float, future: asyncio.Future[Read]
    ) -> Read | None:
        """On the broker's thread: read and land, and again while few come at a time. None: it waits for who writes."""
        clock, has_landed = self.duty.engine.env.clock, None
        until = min(clock.monotonic() + AWAY_SECONDS_MAX, self._renew_at)
        while True:
            messages, starts = reader.read(positions, limit, wait), reader.starts
            if not (messages or starts):
                return Read(messages, positions if has_landed else starts, has_landed)
            positions = {**positions, **starts, **_ends(messages)}
            landed = self.bridge.run_here(partial(self._land, messages, positions, starts), future)
            if not landed:
                return None
            has_landed = landed[0].landed
            goes_on = has_landed and not (self.source.acknowledges or self.stopping) and len(messages) < READ_MAX
            if not goes_on or clock.monotonic() >= until:
                return landed[0]

    def _land(self, messages: Sequence[Message | Plain], positions: Positions, starts: Positions) -> Read:
        return Read(messages, positions, self.landing.land(messages, starts))


def _ends(messages: Sequence[Message | Plain]) -> Positions:
    """How far they reach: the last of each partition."""
    return {message.partition: message.position for message in messages}


def _size(message: Message | Plain) -> int:
    return len(message.data_raw if type(message) is Plain else message.event.data_raw)
