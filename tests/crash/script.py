"""What the producer says, and what must come of it: computed from its own list, never from the store.

Event number n of a seed is always the same, so a producer that died may say it again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache

KEYS = 12
DOOMED = ("k0", "k1", "k2")  # keys in which poison occurs
FOR_EVER = ("reject",)  # kinds that no new version of the code repairs


@dataclass(frozen=True, slots=True)
class Said:
    """One event of the producer."""

    n: int
    id: str
    type: str
    key: str | None
    key_seq: int
    cents: int
    kind: str

    @property
    def data(self) -> dict[str, object]:
        return {"n": self.n, "key_seq": self.key_seq, "cents": self.cents, "kind": self.kind}


@cache
def script(seed: int, count: int) -> tuple[Said, ...]:
    """The first `count` events of a seed."""
    dice, seqs = random.Random(seed), defaultdict[str | None, int](int)
    said = []
    for n in range(count):
        key = None if dice.random() < 0.05 else f"k{dice.randrange(KEYS)}"
        seqs[key] += 1
        kind = dice.choices(("good", "flaky", "ignore"), (85, 10, 5))[0]
        if key in (*DOOMED, None) and dice.random() < 0.4:
            kind = dice.choice(("bug", "reject")) if key in (DOOMED[0], None) else "bug"
        if n % 9 == 4:
            key, kind = f"k{KEYS - 1}", "flaky"  # a retry in every stretch of the script
            seqs[key] += 1
        noise = kind == "good" and dice.random() < 0.1
        said.append(Said(n, f"{seed}-{n}", "noise" if noise else "paid", key, seqs[key], dice.randrange(1, 1000), kind))
    return tuple(said)


@dataclass(slots=True)
class Fates:
    """What must have become of the events for one subscription."""

    applied: list[Said] = field(default_factory=list)
    ignored: list[Said] = field(default_factory=list)
    dead: list[Said] = field(default_factory=list)
    waiting: list[Said] = field(default_factory=list)


def fates(said: tuple[Said, ...], *, fixed: bool, ordered: bool = True) -> Fates:
    """Each event's fate: poison is dead, and in a key's order everything behind it waits."""
    found, parked = Fates(), set[str]()
    for event in said:
        if event.type == "noise":
            continue
        poison = event.kind in FOR_EVER or (event.kind == "bug" and not fixed)
        if ordered and event.key in parked:
            found.waiting.append(event)
        elif poison:
            found.dead.append(event)
            if event.key is not None:
                parked.add(event.key)
        elif event.kind == "ignore":
            found.ignored.append(event)
        else:
            found.applied.append(event)
    return found
