"""The promises, checked after every commit against the producer's own list."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from redrive.replay.ledger import verify
from redrive.testing.sim.holding import HoldChecker
from redrive.testing.sim.seen import NAME, NOTHING, OPEN, Planned, Seen, Sight

if TYPE_CHECKING:
    from redrive.testing.sim.process import Process
    from redrive.testing.sim.workload import Workload
    from redrive.testing.sim.world import World

MAY_DIE = {"reject": "rejected", "badkey": "bad_key"}  # why else than for want of attempts
WRAP = 3  # events of a key after which its state may be deleted
VERIFY_EVERY = 10  # commits
CHARGES = 3  # deaths of workers before an event may be blamed for them


class Checker:
    """Looks at every committed state."""

    def __init__(self, world: World, workload: Workload) -> None:
        self.world, self.workload, self.options = world, workload, workload.options
        self.wanted = [planned for planned in workload.events if planned.fate != "unwanted"]
        self.seen, self._sight = NOTHING, Sight(world.disk)
        self.renewed_at: dict[int, float] = {}
        self.overtaken = 0  # leases taken from owners that stood still: as good as dead to whoever takes them
        self.tail: list[str] = []
        self.announced: dict[int, int] = {}  # letters that were said to be dead, with the attempt
        self._found_right: dict[str, tuple[Any, ...]] = {}  # by the name of a check, what it looked at
        self._oldest = (0, 0)  # of the effects after this one none is of an older version than this
        self._holds = HoldChecker(self)
        self.rebuilt = False  # an operator took the subscription back: what was applied may be applied again

    # ------------------------------------------------------------ after a commit

    def check(self, process: Process) -> None:
        """Everything that must hold at any time."""
        before, now = self.seen, self._sight.look()
        self.seen = now
        worker = process.name.startswith("w")
        if now.epoch < before.epoch:
            self._fail(f"fence: the epoch went back from {before.epoch} to {now.epoch}")
        if worker:
            self._check_lease(before, now, process)
            self._check_replays(before, now)
            self._check_fence(before, now, process)
        rewound = not worker and now.epoch > before.epoch and now.position <= before.position
        if rewound:
            self.rebuilt = True
            self._look_at_version()
            now = self.seen = self._forget(now.position)
        grown = not rewound and now.effects[: len(before.effects)] == before.effects
        self._check_effects(now, before.effects if grown else ())
        if self.options.versions and worker:
            self._check_versions()
        self._check_ledger(now)
        self._check_letters(now)
        self._check_derived(now)
        if self.options.holds:
            self._holds.check(process, before, now)
        if self.world.commits % VERIFY_EVERY == 0:
            self.verify()

    def _look_at_version(self) -> None:
        """An operator may have declared a newer version: nothing is applied by an older one from here on."""
        version = self.world.disk.rows("SELECT version FROM redrive_subscriptions WHERE name = ?", NAME)[0][0]
        last = self.world.disk.rows("SELECT coalesce(max(seq), 0) FROM effects")[0][0]
        if int(version or 0) > self._oldest[1]:
            self._oldest = (last, int(version))

    def _check_versions(self) -> None:
        old = self.world.disk.rows("SELECT event, version FROM effects WHERE seq > ? AND version < ?", *self._oldest)
        if old:
            self._fail(f"version: {old[0][0]} is applied by version {old[0][1]}, declared is {self._oldest[1]}")

    def _forget(self, position: int) -> Seen:
        """Events above this position come round again: what a handler did for them does not count any more."""
        if self.options.handler:
            above = {e.id for e in self.workload.events if e.position is None or e.position > position}
            effects = self.world.disk.rows("SELECT seq, event FROM effects")
            self._sight.forget(seq for seq, event in effects if event in above)
        return self._sight.look()

    def verify(self) -> None:
        """What `redrive verify` says, which knows nothing of the producer's list."""
        plain = {NAME} if self.options.order == "key" and not self.options.key_by else set()
        for verdict in verify(self.world.disk.store, plain):
            if not verdict.sound:
                self._fail(f"verify: {verdict.violations[0].message} {verdict.violations[0].positions}")

    def _check_fence(self, before: Seen, now: Seen, process: Process) -> None:
        """Only who owns a partition moves it; only who owns any settles anything. A new number of them starts over."""
        if len(now.members) != len(before.members):
            return
        for partition, (was, member) in enumerate(zip(before.members, now.members, strict=True)):
            if was.fates() != member.fates() and member.owner != process.owner:
                self._fail(
                    f"fence: {process.owner} settled something, but {member.owner or 'nobody'} owns "
                    f"epoch {member.epoch} of partition {partition}"
                )
        if now.fates() != before.fates() and process.owner not in now.owners:
            self._fail(f"fence: {process.owner} settled something, but {now.owners} own epoch {now.epoch}")

    def _check_lease(self, before: Seen, now: Seen, process: Process) -> None:
        """A lease that is kept by a living owner is not taken away, except by another number of partitions."""
        if len(now.members) != len(before.members):
            self.renewed_at = dict.fromkeys(range(len(now.members)), self.world.clock.monotonic())
            self.overtaken += sum(member.owner is not None for member in before.members)
            return
        for partition, (was, member) in enumerate(zip(before.members, now.members, strict=True)):
            taken = member.epoch > was.epoch and was.owner not in (None, member.owner)
            renewed_at = self.renewed_at.get(partition, 0.0)
            unchanged = self.world.clock.monotonic() + process.clock.drift - renewed_at  # by the taker's own watch
            lapsed = process.clock.now() >= was.until or unchanged >= self.options.lease
            if taken and not lapsed and not self.world.is_dead(str(was.owner)) and member.owner is not None:
                self._fail(
                    f"lease: {member.owner} took it from {was.owner}, who had {was.until - process.clock.now()} s"
                )
            self.overtaken += taken
            if (member.epoch, member.until) != (was.epoch, was.until):
                self.renewed_at[partition] = self.world.clock.monotonic()

    def _check_replays(self, before: Seen, now: Seen) -> None:
        """A replay is one attempt: then applied, dead again, or given up by a verdict."""
        for event, was in before.letters.items():
            letter = now.letters.get(event)
            moved = letter is not None and letter.rev > was.rev and letter.state == "retrying"
            if was.state == "retrying" and was.replaying and moved:
                self._fail(f"replay: {event} goes on after its one attempt")

    def start_over(self) -> None:
        """The database went back by a power cut: what is there now was checked when it was new.

        A dead letter that somebody was told of is still there.
        """
        kept = dict(self.world.disk.rows("SELECT id, attempts FROM redrive_letters"))
        for letter, attempt in self.announced.items():
            if kept.get(letter, 0) < attempt:
                self._fail(f"durability: letter {letter} was announced as dead, attempt {attempt}, and is gone")
        self._sight.start_over()
        self.seen = self._sight.look()
        self._check_ledger(self.seen)
        self._check_derived(self.seen)

    def _fail(self, why: str) -> None:
        self.world.fail(why)

    def _is_as_before(self, check: str, *looked_at: Any) -> bool:
        """Has this check found the same to be right? It would again. Most commits change little of all there is."""
        former, self._found_right[check] = self._found_right.get(check), looked_at
        return former == looked_at

    def _check_effects(self, now: Seen, known: tuple[Any, ...]) -> None:
        """No effect twice, none before its predecessor is applied or given up, each with the latest edit."""
        seen = {event for event, _, _ in known}
        for event, _, edits in now.effects[len(known) :]:
            if event in seen:
                self._fail(f"twice: {event} is applied twice")
            planned = self.workload.by_id[event]
            for other in self.wanted[: self._rank(planned)]:
                if not self._precedes(other, planned):
                    continue
                if other.id not in seen and not now.has_given_up(other):
                    self._fail(f"order: {event} is applied before {other.id}")
            letter = now.letters.get(event)
            if letter is not None and letter.edits != edits and not self.rebuilt:
                self._fail(f"edit: {event} is applied with edit {edits}, the letter has edit {letter.edits}")
            seen.add(event)

    def _precedes(self, other: Planned, planned: Planned) -> bool:
        """Must the other one, which was sent before, be settled first?"""
        if self.options.order == "total":
            return "badkey" not in (other.fate, planned.fate)
        return self.options.order == "key" and planned.lane is not None and other.lane == planned.lane

    def _rank(self, planned: Planned) -> int:
        return next((rank for rank, other in enumerate(self.wanted) if other.index >= planned.index), len(self.wanted))

    def _check_ledger(self, now: Seen) -> None:
        """Each event at or below progress is exactly one of applied, open, discarded, ignored; above it none."""
        sent = [planned.position for planned in self.workload.events]
        books = now.position, now.start, now.applied, now.ignored, now.done, now.skipped, now.letters, now.effects
        if self._is_as_before("ledger", sent, self.workload.operating.skips, *books):
            return
        applied = {event for event, _, _ in now.effects}
        for planned in self.wanted:
            state = now.state_of(planned)
            fates = [planned.id in applied, state in OPEN, state == "discarded" or (not state and now.skips(planned))]
            passed = now.has_passed(planned)
            if passed and planned.fate == "ignore" and not any(fates):
                continue
            if sum(fates) != passed and planned.position is not None:
                where = "is settled" if passed else "is not settled"
                self._fail(f"ledger: {planned.id} {where} (position {planned.position}, progress {now.position}), "
                           f"but applied, open, discarded = {fates}")  # fmt: skip
            if state == "applied" and not fates[0]:
                self._fail(f"ledger: the letter of {planned.id} says applied, but there is no effect")
        for planned in self.workload.events:
            if planned.fate == "unwanted" and (planned.id in applied or planned.id in now.letters):
                self._fail(f"filter: {planned.id} was not asked for")
        if now.skipped and not self.workload.operating.skips:
            self._fail(f"skipped without being asked: {now.skipped}")
        if not self.world.violation:
            self._check_counters(now)

    def _check_counters(self, now: Seen) -> None:
        """What the engine counts is what there is."""
        counted = [planned for planned in self.wanted if planned.position is None or planned.position > now.start]
        ids = {planned.id for planned in counted}
        effects = sum(event in ids for event, _, _ in now.effects)
        books = now.applied + sum(now.state_of(planned) == "applied" for planned in counted)
        if books != effects:
            self._fail(f"counters: {books} applied by the books, {effects} effects")
        quiet = [planned for planned in counted if planned.fate == "ignore" and not now.state_of(planned)]
        ignored = sum(now.has_passed(planned) and not now.skips(planned) for planned in quiet)
        if not ignored <= now.ignored <= ignored + sum(planned.position is None for planned in quiet):
            self._fail(f"counters: {now.ignored} ignored by the books, {ignored} by the plan")

    def _check_letters(self, now: Seen) -> None:
        """Nobody is buried or discarded without cause."""
        for letter in now.letters.values():
            planned = self.workload.by_id[letter.event]
            causes = {"attempts_exhausted", MAY_DIE.get(planned.fate)}
            if self.world.deaths + self.overtaken >= CHARGES:
                causes.add("crashed_worker")
            if self.options.dependency is not None:
                causes |= self.options.dependency.causes
            if letter.state == "dead" and letter.reason not in causes:
                self._fail(f"buried without cause: {letter.event} ({planned.fate}) is dead: {letter.reason}")
            asked = planned.fate in ("junk", "ignore") or letter.event in self.workload.operating.discards
            if letter.state == "discarded" and not asked:
                self._fail(f"discarded without being asked: {letter.event}")
            failures, attempts = self.workload.failures[letter.event], self.options.attempts
            excused = self.workload.operating.touched[letter.event] or planned.fate == "versioned"
            excused = excused or self.workload.came_round(letter.event)  # a replay is one attempt
            exhausted = letter.state == "dead" and letter.reason == "attempts_exhausted"
            if exhausted and failures < attempts and not excused:
                self._fail(f"attempts: {letter.event} is dead after {failures} failures of {attempts}")

    def _check_derived(self, now: Seen) -> None:
        """Keyed state counts the applied events of its key; each applied event echoed exactly once, in order."""
        rows = self.world.disk.rows("SELECT event FROM tail ORDER BY seq") if self.options.tail else []
        if self._is_as_before("derived", now.effects, now.states, now.echoes, now.waiting, rows, self.rebuilt):
            return
        self.tail = [event for (event,) in rows]
        if self.options.state:
            stored = {key: json.loads(data) for key, data in now.states}
            expected = self._states(now)
            if stored != expected:
                self._fail(f"state: {stored} is stored, it should be {expected}")
        if self.options.emit:
            echoes = [json.loads(data)["of"] for _, data in (*now.echoes, *now.waiting)]
            twice = [event for event, count in Counter(echoes).items() if count > 1]
            if twice:
                self._fail(f"emission: {twice[0]} was emitted twice")
            missing = {event for event, _, _ in now.effects} - set(echoes)
            if missing:
                self._fail(f"emission: {min(missing)} is applied and nothing was emitted")
            # Due times go by the clocks of the processes, which differ here.
            if not self.rebuilt and self.options.order != "none" and not self.options.later:
                self._check_echoes(now, echoes)
            if self.options.tail:
                self._check_tail(echoes)

    def _states(self, now: Seen) -> dict[str, Any]:
        """What the function has made of the state of each key, if it saw every change before."""
        lanes: dict[str, list[str]] = {}
        for event, key, _ in now.effects:
            if key is not None:
                lanes.setdefault(key, []).append(event)
        wrap = WRAP if self.options.wraps else len(self.wanted) + 1
        since = {key: events[len(events) - len(events) % wrap :] for key, events in lanes.items()}
        return {key: {"n": len(events), "first": events[0]} for key, events in since.items() if events}

    def _check_echoes(self, now: Seen, echoes: list[str]) -> None:
        """What a lane emits comes in the order of the lane."""
        by_id = self.workload.by_id
        for key in {planned.lane for planned in self.wanted} - {None}:
            lane = [event for event, _, _ in now.effects if by_id[event].lane == key]
            emitted = [event for event in echoes if by_id[event].lane == key]
            if lane != emitted:
                self._fail(f"emission: key {key} emitted {emitted}, applied {lane}")

    def _check_tail(self, echoes: list[str]) -> None:
        """What the first subscription emits the second applies: once, by key in the order of the log."""
        keys = {planned.key for planned in self.wanted} - {None}
        lanes = [[event for event in self.tail if self.workload.by_id[event].key == key] for key in keys]
        for lane in lanes:
            if lane != sorted(lane, key=echoes.index):
                self._fail(f"tail: applied {lane}, emitted {echoes}")
        if len(set(self.tail)) != len(self.tail):
            self._fail(f"tail: something is applied twice: {self.tail}")

    # ------------------------------------------------------------ when a handler is called

    def check_start(self, planned: Planned, epoch: int, attempt: int, failures: int) -> None:
        """The owner calls nobody before the predecessors in the lane are settled, and charges nobody for nothing."""
        now = self.seen
        if epoch == now.member_of(planned).epoch:
            self._holds.check_start(planned, now)
            applied = {event for event, _, _ in now.effects}
            for other in self.wanted[: self._rank(planned)]:
                if not self._precedes(other, planned):
                    continue
                if other.id not in applied and not now.has_given_up(other):
                    self._fail(f"call: {planned.id} starts before {other.id} is settled")
        excused = self.workload.operating.touched[planned.id] or planned.fate == "versioned"
        if attempt > 1 + failures and not excused:
            self._fail(f"attempts: attempt {attempt} of {planned.id} after {failures} failures")

    # ------------------------------------------------------------ the end

    def settled(self) -> bool:
        """Has everything come to its end?"""
        now = self.seen
        if any(letter.state in OPEN for letter in now.letters.values()) or now.done:
            return False
        last = max((planned.position or 0 for planned in self.workload.events), default=0)
        behind = self.options.tail and len(self.tail) < len(now.echoes)
        return now.position >= last and not behind and not now.waiting

    def unsettled(self) -> str:
        """What is left, for the message."""
        now = self.seen
        left = sorted(letter for letter in now.letters.values() if letter.state in OPEN)
        row = self.world.disk.rows("SELECT paused, halted, owner, lease_until FROM redrive_progress")
        told = f"progress {now.position}, done {sorted(now.done)}, open {left}, scheduled {len(now.waiting)}"
        return f"{told}, (paused, halted, owner, until) {row}"

    def check_final(self) -> None:
        """Nothing is missing: applied, discarded on demand, or ignored by plan."""
        applied = {event for event, _, _ in self.seen.effects}
        for planned in self.wanted:
            if (planned.id in applied) == self.seen.has_given_up(planned):
                self._fail(f"lost: {planned.id} ({planned.fate}) has come to no end")
        self._check_receipts()
        self._check_suspects()
        self.verify()

    def _check_suspects(self) -> None:
        """Who has come to an end is not suspected of having killed a worker; one that an operator ended may be."""
        rows = self.world.disk.rows("SELECT position, charges FROM redrive_inflight")
        ended = {planned.position: planned.id for planned in self.workload.events}
        left = [row for row in rows if row[0] in ended and not self.workload.operating.touched[ended[row[0]]]]
        if left and not self.rebuilt:
            self._fail(f"suspicion: (position, charges) {left} have come to an end")

    def _check_receipts(self) -> None:
        """What a bulk operation asked for has come to an end, too; only one that died may have left some unasked."""
        rows = self.world.disk.rows
        waiting = rows("SELECT operation, letter FROM redrive_operation_letters WHERE asked AND result IS NULL")
        if waiting:
            self._fail(f"receipt: (operation, letter) {waiting} were asked for and are not answered")
        wrong = rows("SELECT id FROM redrive_operations o WHERE selected <> "
                     "(SELECT count(*) FROM redrive_operation_letters WHERE operation = o.id)")  # fmt: skip
        if wrong:
            self._fail(f"receipt: operations {wrong} do not add up")
