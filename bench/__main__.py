"""`python -m bench [topics] [--rounds 5] [--quick]`: measure, print the table, write docs/ after a full run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.contest import QUICK, TOPICS, Sizes, chosen, rounds
from bench.lab import ROOT, Lab
from bench.picture import draw
from bench.report import rate_table, table, write
from bench.rows import results

ROUNDS = 5


def main(arguments: list[str] | None = None) -> int:
    """0: everything that must be reached was reached; 1: something was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure redrive beside its neighbours.")
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"some of: {', '.join(TOPICS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=None, help=f"default {ROUNDS}, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--write", action="store_true", help="write docs/ also after a partial run")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.topics) - set(TOPICS)):
        parser.error(f"no topic {unknown[0]!r}; there are {', '.join(TOPICS)}")

    topics, sizes = set(given.topics or TOPICS), QUICK if given.quick else Sizes()
    count = given.rounds or (1 if given.quick else ROUNDS)
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        who = chosen(sizes, topics)
        with Lab(Path(folder)) as lab:
            done = list(rounds(lab, who, count, lambda text: print(text, file=sys.stderr)))
    found = results(done, topics)
    print(table(found), "", rate_table(done), sep="\n")
    if given.quick:
        print("\nThese were tiny sizes, to see that everything runs: the figures mean nothing.")
    if given.write or (not given.quick and not given.topics and count >= ROUNDS):
        draw(ROOT / "docs" / "performance.svg", *write(ROOT / "docs", done, found, sizes))
    return int(any(result.verdict == "missed" for result in found))


if __name__ == "__main__":
    sys.exit(main())
