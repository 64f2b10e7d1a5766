"""The operator of a simulated world: replays, discards, edits, holds, pauses and resets while all else goes on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.errors import StoreError, UsageError
from redrive.replay.bulk import BulkDesk
from redrive.replay.deed import Operator
from redrive.replay.holds import HoldDesk
from redrive.replay.letters import LetterDesk
from redrive.replay.rebuild import reset, reset_to_rebuild
from redrive.replay.subscriptions import SubscriptionDesk
from redrive.runner.bridge import Bridge
from redrive.store.port import LetterRow
from redrive.testing.sim.seen import NAME

if TYPE_CHECKING:
    from redrive.testing.sim.process import Process
    from redrive.testing.sim.workload import Workload
    from redrive.testing.sim.world import World

DEEDS = ("replay", "replay", "replay", "discard", "edit", "pause", "resume", "reset", "reopen", "resolve",
         "seek")  # fmt: skip
HOLD_DEEDS = ("hold", "hold", "hold", "release", "release", "now", "postpone")  # beside the others, in some schedules


class Operating:
    """Does something now and then, each time as a process of its own that may fail or die on the way."""

    def __init__(self, world: World, workload: Workload) -> None:
        self.world, self.workload = world, workload
        self.dice = random.Random(f"operator {world.seed}")
        self._bulk_dice = random.Random(f"bulk {world.seed}")  # its own: older seeds go on as they did
        self._hold_dice = random.Random(f"holds {world.seed}")
        self.touched: Counter[str] = Counter()  # events whose letter was changed, or perhaps changed
        self.discards: set[str] = set()
        self.skips = 0  # seeks, of which some lead forward

    async def run(self) -> None:
        """While there is trouble."""
        while self.world.clock.monotonic() < self.world.options.phase:
            await asyncio.sleep(self.dice.expovariate(1.0) * self.world.options.operate_every)
            deed = self.dice.choice(DEEDS)
            if deed in ("reset", "seek") and self.dice.random() < 0.7:
                continue
            await self._do(deed)
            if self.world.options.holds and self._hold_dice.random() < 0.6:
                await self._do(self._hold_dice.choice(HOLD_DEEDS))

    async def upgrade(self) -> None:
        """Now and then install a newer program and rebuild with it, while workers run the former one."""
        dice = random.Random(f"upgrades {self.world.seed}")  # its own: older seeds go on as they did
        while self.world.clock.monotonic() < self.world.options.phase:
            await asyncio.sleep(dice.uniform(0.3, 0.7) * self.world.options.phase)
            self.workload.install()
            begin = reset_to_rebuild if dice.random() < 0.5 else reset
            done = False
            while not self.world.violation and not done:
                done = await self._rebuild(begin, dice.choice([0.0, 0.5]))

    async def _rebuild(self, begin: Callable[..., object], stays: float) -> bool:
        """Rebuild with the program that is installed. As long as this process lives, its reservation holds."""
        process = self.world.process("operator")
        declared = self.workload.declared(process)
        job = partial(begin, Operator(process.store, process.env), NAME, "simulated", declared)
        done = True
        try:
            await asyncio.wait_for(Bridge(process.store).run(job), 5.0)
        except (StoreError, UsageError, TimeoutError) as error:
            self.world.note(process.owner, "rebuild", "failed", str(error))
            done, stays = False, 0.2
        else:
            self.world.note(process.owner, "rebuild", declared.version)
        await asyncio.sleep(stays)
        process.die("done")
        return done

    async def repair(self, *, replays: bool) -> None:
        """The bug is fixed: resume if it is paused, send dead heads round again. All else must happen by itself."""
        rows = self.world.disk.rows
        if rows("SELECT 1 FROM redrive_progress WHERE paused"):
            await self._do("resume")
        if self.world.options.holds and rows("SELECT 1 FROM redrive_holds"):
            await self._do("release all")
        if replays and rows("SELECT 1 FROM redrive_letters WHERE state = 'dead'"):
            await self._do("replay all")

    async def _do(self, deed: str) -> None:
        process = self.world.process("operator")
        desk = LetterDesk(process.store, process.env)
        try:
            await asyncio.wait_for(Bridge(process.store).run(self._job(deed, process, desk)), 5.0)
        except (StoreError, UsageError, TimeoutError) as error:
            self.world.note(process.owner, deed, "failed", str(error))
        else:
            self.world.note(process.owner, deed)
        process.die("done")

    def _job(self, deed: str, process: Process, desk: LetterDesk) -> Callable[[], Any]:
        match deed:
            case "pause":
                return lambda: SubscriptionDesk(Operator(process.store, process.env)).pause(NAME)
            case "resume":
                return lambda: SubscriptionDesk(Operator(process.store, process.env)).resume(NAME)
            case "reset":
                return lambda: reset(Operator(process.store, process.env), NAME, "simulated")
            case "seek":
                return lambda: self._seek(process)
            case "hold" | "release" | "release all":
                return lambda: self._hold(deed, HoldDesk(Operator(process.store, process.env)))
            case "now" | "postpone":
                return lambda: self._set_due(deed, desk)
            case "replay" if self._bulk_dice.random() < 0.4:
                return lambda: self._bulk(BulkDesk(Operator(process.store, process.env), desk), desk)
            case _:
                return lambda: self._letter(deed, desk)

    def _bulk(self, bulk: BulkDesk, desk: LetterDesk) -> None:
        """Replay all that is dead, perhaps slowly; or take back what an earlier one has not come to."""
        operations = bulk.recent(limit=1)
        if operations and operations[0].waiting and self._bulk_dice.random() < 0.5:
            bulk.cancel(operations[0].id)
            return
        dead = desk.list("dead", NAME)
        for letter in dead:
            self.touched[letter.event_id] += 2
        number = bulk.begin("replay", dead, "simulated", self._bulk_dice.choice([None, 2.0]))
        bulk.ask(number, lambda rows, ticket: desk.replay(rows, "simulated", within=ticket))

    def _hold(self, deed: str, desk: HoldDesk) -> None:
        """Hold a key, or keys that begin alike, for a while or until they are released; or release what is held."""
        dice = self._hold_dice
        if deed == "hold":
            key = dice.choice([planned.key for planned in self.workload.events if planned.key] or ["k"])
            name, until = dice.choice([NAME, NAME, None]), dice.choice([None, None, timedelta(seconds=1.0)])
            if dice.random() < 0.3:
                desk.hold(name, "simulated", prefix=key[:1], until=until)
            else:
                desk.hold(name, "simulated", key=key, until=until)
            return
        held = self.world.disk.rows("SELECT subscription, pattern, is_prefix FROM redrive_holds ORDER BY id")
        for subscription, pattern, is_prefix in held if deed == "release all" else dice.sample(held, min(1, len(held))):
            name = NAME if subscription else None
            desk.release(name, prefix=pattern) if is_prefix else desk.release(name, key=pattern)

    def _set_due(self, deed: str, desk: LetterDesk) -> None:
        """Have a letter tried at once, or later."""
        retrying = desk.list("retrying", NAME)
        if retrying:
            letter = self._hold_dice.choice(retrying)
            self.touched[letter.event_id] += 1  # an attempt that is under way loses
            desk.now(letter) if deed == "now" else desk.postpone(letter, timedelta(seconds=0.5))

    def _letter(self, deed: str, desk: LetterDesk) -> None:
        dead, retrying = desk.list("dead", NAME), desk.list("retrying", NAME)
        if deed == "replay all":
            for letter, _ in desk.heads():
                self.touched[letter.event_id] += 1  # the second subscription has letters only for crashes
                if letter.reason == "bad_key" and self.workload.options.key_by == "field":
                    self._edit(desk, letter, fixed=True)
            desk.replay([letter for letter, _ in desk.heads()])
            return
        closed = desk.list("discarded", NAME)
        candidates = {"replay": dead, "reopen": closed}.get(deed, dead + retrying)
        if not candidates:
            return
        letter = self.dice.choice(candidates)
        self.touched[letter.event_id] += 1
        match deed:
            case "replay":
                desk.replay(letter)
            case "discard" | "resolve":
                self.discards.add(letter.event_id)
                (desk.discard if deed == "discard" else desk.resolve)(letter, "simulated")
            case "edit":
                self._edit(desk, letter, fixed=self.dice.random() < 0.7)
            case "reopen":
                desk.reopen(letter, "simulated")
        self.touched[letter.event_id] += 1

    def _edit(self, desk: LetterDesk, letter: LetterRow, *, fixed: bool) -> None:
        edits = 1 + max((revision.rev for revision in desk.edits(letter)), default=0)
        key = self.workload.by_id[letter.event_id].key
        desk.edit(letter, {"fixed": fixed, "edits": edits, "k": key}, "simulated")

    def _seek(self, process: Process) -> None:
        """A little forward, or back to anywhere: refused where that would apply something twice."""
        position = self.workload.checker.seen.position
        target = position + self.dice.randint(1, 3) if self.dice.random() < 0.5 else self.dice.randint(0, position)
        self.skips += 1  # by the time it is done, it may lead forward
        SubscriptionDesk(Operator(process.store, process.env)).seek(NAME, target, "simulated")
