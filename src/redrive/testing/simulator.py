"""The simulator: the real engine in a world where everything fails, one seed at a time.

Two workers, a producer and an operator share one database in virtual time; after every commit the promises
are checked, and when the faults stop everything must come to its end. `python -m redrive.testing.simulator SEED`
runs one schedule again, with its trace.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from redrive.testing.sim.options import Options
from redrive.testing.sim.workload import Workload
from redrive.testing.sim.world import World

TAIL = 60  # steps of the trace that a failure shows


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one schedule."""

    options: Options
    violation: str  # empty: every promise was kept
    hash: str  # of all steps: the same seed gives the same hash
    commits: int
    deaths: int
    seconds: float  # of virtual time
    trace: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        verdict = f"VIOLATION {self.violation}" if self.violation else "kept every promise"
        figures = f"{self.commits} commits, {self.deaths} deaths, {self.seconds:.1f} s"
        return (
            f"seed {self.options.seed}: {verdict} ({figures})\n"
            f"options: {self.options}\n"
            f"again: python -m redrive.testing.simulator {self.options.seed}"
        )

    def tail(self) -> str:
        """The last steps."""
        return "\n".join(" ".join(map(str, step)) for step in self.trace[-TAIL:])


def simulate(seed: int, **options: Any) -> Result:
    """Run one schedule.

    >>> simulate(1).violation
    ''
    """
    chosen = Options.of(seed, **options)
    world = World(Workload(chosen), chosen)
    world.run()
    return Result(
        chosen, world.violation, world.hash(), world.commits, world.deaths, world.clock.monotonic(), tuple(world.trace)
    )


def main(arguments: list[str]) -> int:
    """Run the seeds that are named; show the trace of the first that fails."""
    for seed in map(int, arguments):
        result = simulate(seed)
        sys.stdout.write(f"{result}\n")
        if result.violation or len(arguments) == 1:
            sys.stdout.write("\n".join(" ".join(map(str, step)) for step in result.trace) + "\n")
        if result.violation:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
