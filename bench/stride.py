"""How many events share a savepoint? `python -m bench.stride [--rounds 5]`: evidence for runner/strides.py.

A long stride saves savepoints while all goes well; a failure re-runs what its stride had done before it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import redrives
from bench.lab import Figures, Lab

STRIDES = (8, 16, 32, 64)
EVENTS = 50_000


def main(arguments: list[str] | None = None) -> None:
    """Rates per stride, clean and with poison, and their ratio to the first stride in the same round."""
    parser = argparse.ArgumentParser(prog="python -m bench.stride")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=EVENTS)
    given = parser.parse_args(arguments)
    found: dict[tuple[int, bool], list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        lab = Lab(Path(folder))
        template = str(lab.prepared("own", lambda path: redrives.build(path, given.events)))
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
            for stride in STRIDES:
                for poison in (False, True):
                    arguments_of = {"template": template, "n": given.events, "poison": poison, "stride": stride}
                    figures = lab.run("bench.redrives:unordered", **arguments_of)
                    found.setdefault((stride, poison), []).append(figures)
    for poison in (False, True):
        print("1 % poison" if poison else "clean")
        for stride in STRIDES:
            pairs = zip(found[stride, poison], found[STRIDES[0], poison], strict=True)
            relative = median(one["cpu_rate"] / other["cpu_rate"] for one, other in pairs)
            rate = median(figures["rate"] for figures in found[stride, poison])
            print(
                f"  stride {stride:>3}: {rate:>9,.0f} events/s, {relative:.2f} of stride {STRIDES[0]} (processor time)"
            )


if __name__ == "__main__":
    main()
