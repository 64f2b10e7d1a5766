"""Supervise: own what can be owned, start loops, start them again, stop them all gracefully.

Nothing that happens to one subscription reaches another. A loop that raises is halted, says why,
and is tried again with growing pauses; it resumes by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from redrive.errors import ConnectionLost, Differs, Fenced, Halted, NotBegun, StoreError, Unfit, is_conflict
from redrive.mirrors.port import LETTERS
from redrive.observe import signals as sig
from redrive.policy.halting import HALTED
from redrive.policy.lease import Lease
from redrive.policy.limiter import FULL, Bucket
from redrive.runner import leases
from redrive.runner.bridge import Bridge, ask
from redrive.runner.deliver import DeliveryLoop
from redrive.runner.duty import Duty, Engine
from redrive.runner.enroll import Enrolled, admit
from redrive.runner.healing import Heal, Healing, Steps
from redrive.runner.land import LandingLoop
from redrive.runner.loop import HandlerLoop, Loop, ProjectionLoop
from redrive.runner.mirror import MirrorLoop
from redrive.runner.roster import Roster
from redrive.runner.scheduling import Scheduler
from redrive.runner.trimming import Trim, Trimming
from redrive.runner.wake import Looks, Wake, listen, watch
from redrive.runner.watchman import Watchman
from redrive.store.port import Subscribed
from redrive.store.progress import member_of
from redrive.subscription import Subscription

log = logging.getLogger("redrive")

STANDBY = "standby"
IDLE = "idle"  # why who was to stop when nothing is left to do has stopped
STANDBY_LOOKS = Bucket(rate=20.0, burst=10)  # the owner may commit all the time, and each time rings who stands by
LEAVE_SECONDS_MAX = 1.0
UPKEEP_EVERY = 60.0  # seconds between two looks, at most: a clock may have been set
AGAIN_MAX = {True: 1, False: 10}  # connections lost, and conflicts, within a lease, before we call it a halt


class Post(NamedTuple):
    """A partition of a subscription, which somebody has to own."""

    subscription: Subscription
    row: Subscribed
    partition: int


class Supervisor:
    """All subscriptions that this process runs."""

    def __init__(
        self,
        engine: Engine,
        bridge: Bridge,
        enrolled: Enrolled,
        heal: Heal,
        trim: Trim,
        upkeep: Steps | None = None,
        *,
        threads: bool = True,
    ) -> None:
        self.engine, self.bridge = engine, bridge
        self.posts = {
            name if subscription.partitions == 1 else f"{name}/{partition}": Post(subscription, row, partition)
            for name, (subscription, row) in enrolled.rows.items()
            for partition in range(subscription.partitions)
        }
        # Who lands something in a log does not read it.
        engine.standing.read_by(
            Counter(post.subscription.source for post in self.posts.values() if post.subscription.origin is None)
        )
        self.roster = Roster(engine, enrolled.rows)
        self._refused = set(enrolled.refused)  # subscriptions that are to be checked once more before they run
        self._unclaimed: dict[str, float] = {}  # by name: since when no living process declares what the store has
        self.scheduler = Scheduler(engine, bridge, pause=engine.settings.poll_max if threads else 0.0)
        self._resting: asyncio.Event | threading.Event = threading.Event() if threads else asyncio.Event()
        self.wakes = {post: Wake(self._resting) for post in self.posts}
        self.loops: dict[str, Loop] = {}
        self.waiting: dict[str, str] = {}  # post -> why it does not run here: standby, halted
        self._looked: dict[str, float] = {}  # post -> how many looks at its lease are left to who stands by
        self.stopped_by = ""
        self.halted_at_end: dict[str, str] = {}  # name -> reason, of a run that was to end when nothing is left to do
        self.stopping = self.is_left = False  # is left: it has ended, and something is under way where writing happens
        self.healing: dict[str, Healing] = {}  # of subscriptions whose first partition is ours; "" is pruning
        self._heal, self._trim, self._upkeep, self._threads = heal, trim, upkeep, threads
        self._settled = asyncio.Event()
        self._stop_asked = asyncio.Event()

    # ------------------------------------------------------------ from outside

    def appended(self, log_name: str) -> None:
        """Events were appended, or scheduled: wake whoever reads that log."""
        if log_name != LETTERS:  # a letter schedules nothing, and a look would end the hop of who writes them
            self.scheduler.wake.ring()
        for post, (subscription, _, _) in self.posts.items():
            if subscription.source == log_name:
                self.wakes[post].ring()

    async def _watch(self) -> None:
        """Have whoever waits hear of what other processes commit, until cancelled."""
        engine, wakes, also = self.engine, self.wakes.values(), self.scheduler.wake
        low, high, bell = engine.settings.poll_min, engine.settings.poll_max, engine.store.bell
        if bell is not None:
            await listen(bell, [*wakes, also])
        elif isinstance(self._resting, asyncio.Event):
            await watch(engine.store, wakes, self._resting, low, high, also=also)
        else:
            await Watchman(
                engine.store, wakes, self._resting, Looks(low, high), standing=engine.standing,
                ring=partial(self._ring, asyncio.get_running_loop()), monotonic=engine.env.clock.monotonic,
            ).work()  # fmt: skip

    def _ring(self, loop: asyncio.AbstractEventLoop, quiet: Collection[str]) -> None:
        """Somebody has committed: wake everybody but those who read these logs. From any thread."""
        wakes = [
            self.wakes[post]
            for post, (subscription, _, _) in self.posts.items()
            if subscription.origin is not None or subscription.source not in quiet  # who lands reads the broker
        ]
        if not self.scheduler.wake.pending:
            wakes.append(self.scheduler.wake)
        if wakes:
            ask(loop, _ring_all, wakes)

    def stop(self, why: str) -> None:
        """Finish or roll back, then hand over. Only from the event loop's thread."""
        if not self.stopping:
            self.stopping, self.stopped_by = True, why
            self.engine.signals.tell([sig.Stopping(why)])
            self._stop_asked.set()
            for loop in self.loops.values():
                loop.stop()
            for wake in self.wakes.values():
                wake.ring()

    async def run(self, *, until_idle: bool = False) -> None:
        """Until stopped, or until nothing is left to do."""
        watcher = asyncio.create_task(self._always(self._watch, "looking for what other processes commit"))
        await self._beat()
        beating = asyncio.create_task(self._beat_on())
        self.scheduler.on_idle = self._settled.set
        scheduling = asyncio.create_task(self._always(self.scheduler.run, "appending what is due"))
        keepers = [asyncio.create_task(self._keep(post), name=f"redrive {post}") for post in self.posts]
        try:
            async with self._kept_up():
                if until_idle:
                    await self._wait_idle()
                    self.halted_at_end = {} if self.stopping else self._halted()
                    self.stop(IDLE)
                await self._stop_asked.wait()
            await self._wind_down(keepers)
        except asyncio.CancelledError:  # how `serve` is stopped; who cancels a stop does not want to wait for it
            if not self.stopping:
                self.stop("cancelled")
                await self._wind_down(keepers)
            raise
        finally:
            for loop in self.loops.values():
                loop.abandon()
            for task in (watcher, beating, scheduling, *keepers):
                task.cancel()
            await asyncio.gather(watcher, beating, scheduling, *keepers, return_exceptions=True)
            try:
                await asyncio.wait_for(self._quietly(self.roster.leave), LEAVE_SECONDS_MAX)
            except TimeoutError:  # a function may hang where writing happens
                self.is_left = True

    async def _always(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        """Do it, and again after whatever ends it: no subscription has to do with it, and all need it."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("%s stopped by a bug; it is tried again", what)
                await asyncio.sleep(self.engine.settings.halt_wait_max)

    async def _wind_down(self, keepers: list[asyncio.Task[None]]) -> None:
        """A graceful stop: running functions may finish, but not for ever."""
        careful = [loop.duty for loop in self.loops.values() if loop.duty.is_careful]
        # Not awaited one by one: the thread that would write it may be the one that hangs.
        excuses = [asyncio.create_task(self._quietly(partial(leases.excuse, duty))) for duty in careful]
        if keepers:
            await asyncio.wait([*keepers, *excuses], timeout=self.engine.settings.stop_timeout)
        for loop in self.loops.values():
            loop.abandon()
        for excuse in excuses:
            excuse.cancel()
        if keepers:  # what has overrun is written down, unless a function hangs where writing happens
            await asyncio.wait(keepers, timeout=LEAVE_SECONDS_MAX)

    async def _wait_idle(self) -> None:
        while not self.stopping:
            if self._loops_are_idle():
                if self.scheduler.is_idle:
                    return
                self.scheduler.hurry()
            self._settled.clear()
            await self._settled.wait()

    def _halted(self) -> dict[str, str]:
        """The halted subscriptions of this process, and why."""
        return {
            self.posts[post].subscription.name: why.removeprefix(HALTED)
            for post, why in self.waiting.items()
            if why.startswith(HALTED)
        }

    def check_end(self) -> None:
        """Raise `Halted` if the run became idle while subscriptions were halted."""
        if self.halted_at_end:
            raise Halted.at_end(self.halted_at_end)

    def _loops_are_idle(self) -> bool:
        return all(one.is_idle for one in self.healing.values()) and all(
            post in self.waiting or (post in self.loops and self.loops[post].is_idle) for post in self.posts
        )

    # ------------------------------------------------------------ who else is there

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self.roster.interval)
            await self._beat()

    async def _beat(self) -> None:
        """Say that we live; hand over what others should have by now."""
        stuck = {
            self.posts[post].subscription.name: why.partition(": ")[2]
            for post, why in self.waiting.items()
            if why != STANDBY
        }
        declared = {post.subscription.name: post.subscription.partitions for post in self.posts.values()}
        runs = {name: count for name, count in declared.items() if name not in stuck}
        await self._quietly(lambda: self.roster.beat(runs, stuck))
        for name in self.roster.shared:
            for partition in self.roster.surplus(name, self._owned(name)):
                self.loops[f"{name}/{partition}"].stop()
        for post in self.waiting:
            self.wakes[post].ring()
        self.scheduler.wake.ring()

    def _owned(self, name: str) -> dict[int, bool]:
        """The partitions that we have, and whether what runs there does not end."""
        mine = [loop for loop in self.loops.values() if loop.duty.subscription.name == name]
        return {loop.duty.share.partition: loop.is_stuck for loop in mine}

    # ------------------------------------------------------------ one subscription

    async def _keep(self, post: str) -> None:
        """Own it, run it, and again after whatever ends it."""
        subscription, row, partition = self.posts[post]
        name = subscription.name
        settings, clock = self.engine.settings, self.engine.env.clock
        halt_wait = settings.halt_wait
        seen: Lease | None = None
        seen_at = clock.monotonic()
        again: list[float] = []
        while not self.stopping:
            reason = ""
            taken: Duty | Lease | None = None
            try:
                if name in self._refused:
                    await self.bridge.run(partial(admit, self.engine, subscription, row))
                    self._refused.discard(name)
                since = clock.monotonic() - seen_at
                if self.roster.may_take(name, self._owned(name)):
                    taken = await self.bridge.run(partial(
                        leases.take, self.engine, subscription, row, seen, since, partition=partition
                    ))  # fmt: skip
                if not isinstance(taken, Duty):
                    if taken != seen:
                        seen, seen_at = taken, clock.monotonic()
                    self._wait_for(post, STANDBY)
                    await self._stand_by(post)
                    continue
                if self.waiting.pop(post, "").startswith(HALTED):
                    self.engine.signals.tell([sig.Resumed(name)])
                began, before = clock.monotonic(), taken.settled_at
                try:
                    await self._work(post, taken)
                finally:  # who halts again at once, as those do whose broker is down, has not been well meanwhile
                    if taken.settled_at != before or clock.monotonic() - began >= settings.halt_wait_max:
                        halt_wait = settings.halt_wait
            except Fenced:
                seen, seen_at = None, clock.monotonic()
            except Differs as error:
                await self._differ(post, error)
            except Unfit as error:
                reason = str(error)
            except (StoreError, Halted) as error:
                reason = str(error)
                self.engine.losses.note(member_of(row.id, partition), error)
                is_lost = isinstance(error, ConnectionLost | NotBegun)
                if is_lost or is_conflict(error):
                    # Take over from ourselves: looking is what a take-over does. Several soon after are no accident.
                    since = clock.monotonic() - settings.lease
                    again = [*(at for at in again if at > since), clock.monotonic()]
                    reason = reason if len(again) > AGAIN_MAX[is_lost] else ""
            except Exception as error:  # a bug of ours must not stop the other subscriptions
                log.exception("subscription %s stopped by a bug", post)
                reason = f"bug: {type(error).__name__}: {error}"
            if reason and not self.stopping:
                await self._halt(post, reason, halt_wait)
                halt_wait = min(halt_wait * 2, settings.halt_wait_max)
            if reason and self.stopping and isinstance(taken, Duty):  # until now it was ours to take again
                await self._quietly(partial(leases.release, taken))

    async def _stand_by(self, post: str) -> None:
        """Until the lease is worth another look."""
        await self.wakes[post].wait(min(self.engine.settings.lease / 4, 0.5))
        while not self.stopping:
            looks = STANDBY_LOOKS.take(self._looked.get(post, FULL), self.engine.env.clock.monotonic())
            self._looked[post] = looks.state
            if looks.granted:
                break
            await self._unless_stopped(looks.wait)

    async def _differ(self, post: str, error: Differs) -> None:
        """Wait until the store agrees with this program. Log and show the reason when it is new."""
        name, why = self.posts[post].subscription.name, f"{STANDBY}: {error}"
        partitions = [other for other, one in self.posts.items() if one.subscription.name == name]
        is_new = why not in [self.waiting.get(other) for other in partitions]
        self._wait_for(post, why)
        if is_new:
            self.engine.signals.tell([sig.StandingBy(name, str(error))])
            await self._beat()
        if error.may_declare and self._is_unclaimed(name):
            self._refused.add(name)
        await self._stand_by(post)

    def _is_unclaimed(self, name: str) -> bool:
        """Has no other living process declared what the store has, for the length of a lease?

        Those that did are gone, as after a deployment that was taken back. Then this process declares it again, as if
        it had just been started. Otherwise no process would run the subscription.
        """
        now = self.engine.env.clock.monotonic()
        if self.roster.is_run_elsewhere(name):
            self._unclaimed.pop(name, None)
            return False
        if now - self._unclaimed.setdefault(name, now) < self.engine.settings.lease:
            return False
        self._unclaimed[name] = now  # if it is refused, it is tried again as much later
        return True

    async def _work(self, post: str, duty: Duty) -> None:
        wake, name = self.wakes[post], duty.subscription.name
        loop: Loop
        if duty.subscription.kind == "projection":
            loop = ProjectionLoop(duty, self.bridge, wake)
        elif duty.subscription.origin is not None:
            loop = LandingLoop(duty, self.bridge, wake, threads=self._threads)
        elif duty.subscription.mirror is not None:
            loop = MirrorLoop(duty, self.bridge, wake, threads=self._threads)
        else:
            kind = HandlerLoop if duty.subscription.sink is None else DeliveryLoop
            loop = kind(duty, self.bridge, wake, threads=self._threads)
        if isinstance(loop, HandlerLoop) and loop.work.gate is not None:
            loop.work.gate.on_change = self._breaker_changed
        loop.on_idle = self._settled.set
        self.loops[post] = loop
        if self.stopping:
            loop.stop()
        try:
            async with self._healed(post, loop), self._trimmed(loop.duty):
                await loop.run()
        except Fenced:
            self.engine.signals.tell([sig.LeaseLost(name, duty.epoch)])
            raise
        finally:
            self.loops.pop(post, None)
            leases.leave(duty)
        await self.bridge.run(lambda: leases.release(duty))

    def _breaker_changed(self) -> None:
        """From any thread."""
        for healing in list(self.healing.values()):
            healing.news()

    @asynccontextmanager
    async def _healed(self, post: str, loop: Loop) -> AsyncIterator[None]:
        """Dead letters are replayed by themselves meanwhile, where the program asks for it."""
        duty, name = loop.duty, loop.duty.subscription.name
        if duty.subscription.replay is None or duty.share.partition != 0:
            yield
            return
        wakes = [self.wakes[other] for other, one in self.posts.items() if one.subscription.name == name]
        steps, every = self._heal(duty, duty.subscription.replay), self.engine.settings.poll_max
        async with self._beside(name, Healing(steps, self.bridge, wakes, every)):
            yield

    @asynccontextmanager
    async def _kept_up(self) -> AsyncIterator[None]:
        """What is old is pruned meanwhile, where settings or the program ask for it."""
        if self._upkeep is None:
            yield
            return
        async with self._beside("", Healing(self._upkeep, self.bridge, (), UPKEEP_EVERY)):
            yield

    @asynccontextmanager
    async def _beside(self, name: str, healing: Healing) -> AsyncIterator[None]:
        healing.on_idle = self._settled.set
        self.healing[name] = healing
        always = self._always(healing.run, "replaying or pruning by itself")
        task = asyncio.create_task(always, name=f"redrive healing {name}")
        try:
            yield
        finally:
            del self.healing[name]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _trimmed(self, duty: Duty) -> AsyncIterator[None]:
        """What an outbox has delivered is deleted meanwhile, when it is old."""
        if duty.subscription.keep is None or duty.share.partition != 0:
            yield
            return
        task = asyncio.create_task(Trimming(duty, self.bridge, self._trim).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _halt(self, post: str, reason: str, wait: float) -> None:
        subscription, row, partition = self.posts[post]
        self._wait_for(post, f"{HALTED}{reason}")
        self.engine.signals.tell([sig.Halted(subscription.name, reason, wait)])
        await self._quietly(lambda: leases.halted(self.engine, row, partition, reason))
        await self._unless_stopped(wait)

    async def _unless_stopped(self, seconds: float) -> None:
        """Let so much time pass."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), seconds)

    def _wait_for(self, post: str, why: str) -> None:
        self.waiting[post] = why
        self._settled.set()

    async def _quietly(self, job: object) -> None:
        """Best effort: the store may be the very thing that is down."""
        try:
            await self.bridge.run(job)  # type: ignore[arg-type]
        except (StoreError, Fenced) as error:
            log.debug("could not note it in the store: %s", error)


def _ring_all(wakes: Iterable[Wake]) -> None:
    for wake in wakes:
        wake.ring()
