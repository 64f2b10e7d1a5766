"""The desk: works by lane. A lane is busy from the moment its work may run until that work is settled.

Only the coordinator of a handler touches it, between two hops; workers take from `ready` and put
into `outbox`. It decides nothing about an event but its turn.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from redrive.policy.outcome import Outcome
from redrive.runner.duty import Duty, Work
from redrive.runner.holds import HELD
from redrive.subscription import TOTAL_LANE


class Desk:
    """Works by lane: which may run now, which wait for their lane, which are done and unsettled."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.ready: deque[Work] = deque()
        self.outbox: deque[Work] = deque()
        self.running: dict[Work, Any] = {}  # with the task that runs it, if one does
        self.alone: deque[Work] = deque()  # after a crash: one at a time, before anything else
        self.aside: deque[Work] = deque()  # would run, but the gate of its key has to be asked
        # What is busy, with what queues behind it: lanes by name, and letters without a lane by their id.
        # Lists, though they are taken from in front: a queue is short, and ten deques have the size of a hundred lists.
        self._waiting: dict[str | int, list[Work] | None] = {}
        self._queued = 0
        self._has_loose = False  # was anything here that is in no lane?
        self._following: Counter[str] = Counter()
        self._looks, self._holds = duty.looks, duty.holds.now
        self._keyed, self._total = duty.subscription.order == "key", duty.subscription.order == "total"

    def __len__(self) -> int:
        held = len(self.outbox) + len(self.running) + len(self.alone) + len(self.aside)
        return len(self.ready) + held + self._queued

    @property
    def is_all_ready(self) -> bool:
        """Is nothing under way: has everything to wait for its permit, or queues behind what has?"""
        return len(self) == len(self.ready) + len(self.alone) + self._queued

    @property
    def ready_letters(self) -> int:
        """How many letters may run now. Workers take from the queue meanwhile, so that a copy is counted."""
        return sum(work.head is not None for work in list(self.ready))

    def busy(self, lane: str | None, letter: int) -> bool:
        """Has the lane of this letter work that is not settled?"""
        if lane is not None:
            return lane in self._waiting
        held = [*self.running, *self.ready, *self.outbox, *self.alone, *self.aside]
        return any(work.head is not None and work.head.letter == letter for work in held)

    def queued(self, lane: str | None) -> int:
        """How many works wait for the lane, or are about to be written down as waiting."""
        if lane is None:
            return 0
        return len(self._waiting.get(lane) or ()) + self._following.get(lane, 0)

    def add(self, work: Work) -> None:
        """A new event, or a letter that is due: it runs when its lane is free."""
        lane, waiting = self._place(work), self._waiting
        if lane is not None:
            if lane in waiting:
                self._queue(lane, work)
                return
            waiting[lane] = None
        else:
            self._has_loose = True
        self._start(work)

    def add_fresh(self, works: list[Work]) -> None:
        """New events while nothing is parked: the ordinary case, quickly."""
        waiting, ready, queued = self._waiting, self.ready, 0
        for work in works:
            lane = work.lane
            if lane is None:
                self._has_loose = True
                ready.append(work)
            elif lane not in waiting:
                waiting[lane] = None
                ready.append(work)
            else:
                queued += 1
                queue = waiting[lane]
                if queue is None:
                    waiting[lane] = [work]
                else:
                    queue.append(work)
        self._queued += queued

    def _queue(self, lane: str | int, work: Work) -> None:
        queue = self._waiting[lane]
        if queue is None:
            queue = self._waiting[lane] = []
        self._queued += 1
        if work.head is None:
            queue.append(work)
        else:  # a head precedes everything that queued up behind it
            queue.insert(0, work)

    def _start(self, work: Work) -> None:
        """The lane is this work's now; look again whether it may run."""
        lanes = self.duty.lanes
        if work.outcome is not None:  # no key: its fate is known
            self.outbox.append(work)
        elif work.head is not None:
            if lanes.head(work.lane, work.head.letter) == work.head:
                if not (self.duty.holds and self._is_held(work)):
                    self.run(work)
            else:  # an operator changed the letter since: the new head comes by itself
                self.free(work)
        elif work.lane in lanes.names:
            self.follow(work)
        elif not (self.duty.holds and self._is_held(work)):
            self.run(work)

    def _is_held(self, work: Work) -> bool:
        """Does an operator hold its key? Then a new event becomes a letter, and a letter waits as it is."""
        until = self.duty.holds.until(work.key)
        if until is None:
            return False
        if work.head is None:
            work.outcome = HELD
            self.outbox.append(work)
        else:
            self.duty.lanes.hold(work.lane, work.head, until)
            self.free(work)
        return True

    def follow(self, work: Work) -> None:
        """It queues behind the head of its lane, in the store."""
        assert work.lane is not None
        work.follow = True
        self._following[work.lane] += 1
        self.outbox.append(work)

    def take_followers(self, first: Work, room: int) -> list[Work]:
        """What queues behind a work, to be called together with it; the last of them frees the lane."""
        queue = self._waiting.get(first.lane) if first.lane is not None else None
        taken: list[Work] = []
        last = first
        while queue and len(taken) < room and queue[0].head is None and queue[0].outcome is None:
            last.chained, last = True, queue.pop(0)
            self._queued -= 1
            taken.append(last)
        return taken

    def run(self, work: Work) -> None:
        """It may be called now."""
        careful = self.duty.horizon or self.duty.suspects
        (self.alone if careful and self.duty.needs_care(work) else self.ready).append(work)

    def again(self, work: Work) -> None:
        """A conflict's pause is over. What is in no lane runs one at a time now, by key: side by side they met it."""
        if work.lane is None and work.head is None and work.reruns == 1:
            self.add(work)
        elif not (self.duty.holds and self._is_held(work)):
            self.ready.append(work)

    def block(self, outcome: Outcome) -> None:
        """What is ready is not to be called: this is what comes of it."""
        while self.ready:
            work = self.ready.popleft()
            work.outcome, work.attempt = outcome, work.attempt - 1
            self.outbox.append(work)

    def look_again(self) -> list[Work]:
        """The letters were read anew: what waits with an old revision is given up, the new head comes by itself."""
        lanes, stale = self.duty.lanes, list[Work]()
        held = self._keep_back()
        if self.duty.looks == self._looks:
            return held
        self._looks = self.duty.looks
        for queue in (self.ready, self.alone):
            waiting = list(queue)
            old = [w for w in waiting if w.head is not None and lanes.head(w.lane, w.head.letter) != w.head]
            for work in old:
                try:
                    queue.remove(work)
                except ValueError:  # a worker was faster
                    continue
                stale.append(work)
        for work in stale:
            if work.alone and work.head is not None:  # marked, and not called: whoever comes in its place runs alone
                self.duty.suspects.add(work.head.letter)
            self.free(work)
        return [*held, *stale]

    def _keep_back(self) -> list[Work]:
        """If the holds have changed, works of a key that is held now are not called. Those that run go on."""
        held: list[Work] = []
        if self.duty.holds.now is self._holds:
            return held
        self._holds = self.duty.holds.now
        for queue in (self.ready, self.alone, self.aside) if self.duty.holds else ():
            for work in [work for work in list(queue) if self.duty.holds.until(work.key) is not None]:
                try:
                    queue.remove(work)
                except ValueError:  # a worker was faster
                    continue
                if work.alone and work.head is not None:  # marked, and not called
                    self.duty.suspects.add(work.head.letter)
                self._is_held(work)
                held.append(work)
        return held

    def free_all(self, works: list[Work], *, ordinary: bool = False) -> None:
        """Settled: the next of each lane may start. `ordinary`: each is a new event, and the last one of its lane."""
        waiting, ready, started = self._waiting, self.ready, 0
        odd = self.duty.lanes or self.duty.horizon or self.duty.suspects or self.duty.holds
        if ordinary and len(works) == len(waiting) and not (odd or self._has_loose):
            self._free_every_lane()
            return
        for work in works:
            lane = work.lane
            if odd or lane is None or work.follow or work.chained:
                if lane is not None or work.head is not None or work.reruns:  # nobody waits for what is in no lane
                    self.free(work)
            elif queue := waiting[lane]:  # the ordinary case, quickly
                started += 1
                follower = queue.pop(0)
                if follower.head is None and follower.outcome is None:
                    ready.append(follower)
                else:
                    self._start(follower)
            else:
                del waiting[lane]
        self._queued -= started

    def _free_every_lane(self) -> None:
        """What was settled is what held all the lanes that are busy: nobody need be asked for its own."""
        before, self._waiting = self._waiting, {}
        waiting, ready = self._waiting, self.ready
        for lane, queue in before.items():
            if queue:
                waiting[lane] = queue
                self._queued -= 1
                follower = queue.pop(0)
                if follower.head is None and follower.outcome is None:
                    ready.append(follower)
                else:
                    self._start(follower)

    def free(self, work: Work) -> None:
        """Settled (or given up): the next of the lane may start."""
        lane = self._place(work)
        if work.follow and work.lane is not None:
            self._following[work.lane] -= 1
            if not self._following[work.lane]:
                del self._following[work.lane]
        if lane is None or work.chained:
            return
        queue = self._waiting[lane]
        if not queue:
            del self._waiting[lane]
        elif lane in self.duty.lanes.names and queue[0].head is None:
            for follower in queue:  # all of them queue behind the head; the last one frees the lane
                follower.chained = follower is not queue[-1]
                self.follow(follower)
            self._queued -= len(queue)
            queue.clear()
        else:
            self._queued -= 1
            self._start(queue.pop(0))

    def _place(self, work: Work) -> str | int | None:
        """Where a work is alone: its lane. A letter without one has at least itself, since letters may be read anew."""
        if work.lane is not None:
            return work.lane
        if work.head is not None:  # one that got a usable key since shares state with the lane of that key
            if self._total:
                return TOTAL_LANE
            return work.key if self._keyed and work.key is not None else work.head.letter
        return f"\0{work.key}" if work.reruns and work.key is not None else None  # no lane has such a name
