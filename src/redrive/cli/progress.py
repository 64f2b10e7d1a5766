"""How far a long command is: a bar on a terminal, a line a minute elsewhere, and nothing where none is wanted.

It is written to stderr; stdout has only the answer.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import click

from redrive.cli.render import plain

if TYPE_CHECKING:
    from redrive.replay.bulk import Deed
    from redrive.replay.deed import Receipt, Ticket
    from redrive.store.port import LetterRow

LINE_EVERY = 60.0  # seconds between two lines, if stderr is not a terminal
quiet_option = click.option("--quiet", is_flag=True, help="Do not show how far it is.")


class Show(Protocol):
    """What a command calls whenever it is further."""

    def __call__(self, done: float, total: float | None = None, count: float | None = None) -> None:
        """`done` of `total`; `count` are the things that the rate is about, if `done` measures something else."""


class Meter:
    """Share, rate and time left, from what was done and when."""

    def __init__(self, what: str, noun: str, total: float | None, clock: Callable[[], float]) -> None:
        self.what, self.noun, self.total, self._clock = plain(what), noun, total, clock
        self.done = self.count = 0.0
        self._first: tuple[float, float, float] | None = None  # when, done and count: a resumed command begins above 0
        self.now = clock()

    def move(self, done: float, total: float | None, count: float | None) -> None:
        """Take the newest numbers."""
        self.now = self._clock()
        self.done, self.count = done, done if count is None else count
        self.total = self.total if total is None else total
        if self._first is None:
            self._first = (self.now, self.done, self.count)

    @property
    def rate(self) -> str:
        """`1,200/s`; empty as long as nothing is known."""
        since, _, count = self._first or (self.now, 0.0, 0.0)
        seconds = self.now - since
        per_second = (self.count - count) / seconds if seconds > 0 else 0.0
        if per_second <= 0:
            return ""
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"

    @property
    def left(self) -> str:
        """`3m40s left`; empty as long as nothing is known."""
        from redrive.units import show_duration

        since, done, _ = self._first or (self.now, 0.0, 0.0)
        gained = self.done - done
        if self.total is None or gained <= 0 or self.now <= since:
            return ""
        return f"{show_duration(max(1.0, round((self.total - self.done) * (self.now - since) / gained)))} left"

    @property
    def share(self) -> float:
        """Of the whole, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def line(self) -> str:
        """All of it in a line, for a log."""
        counted = f"{self.count:,.0f} {self.noun}"
        if self.total is not None and self.count == self.done:
            counted = f"{self.count:,.0f} of {self.total:,.0f} {self.noun}"
        share = [] if self.total is None else [f"{self.share:.0%}"]
        return f"{self.what}: {', '.join([*share, counted, *filter(None, (self.rate, self.left))])}"


@contextlib.contextmanager
def progress(
    what: str,
    noun: str,
    total: float | None = None,
    *,
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Show]:
    """Show how far a command is, until the block ends.

    Args:
        what: The name of the work, e.g. `import`.
        noun: What is counted, in the plural, e.g. `events`.
        total: How much there is to do; None if that is not known.
        quiet: Show nothing.
        clock: Seconds that only grow.
    """
    if quiet or sys.stderr is None:
        yield lambda done, total=None, count=None: None
        return
    meter = Meter(what, noun, total, clock)
    with _bar(meter) if sys.stderr.isatty() else _lines(meter, clock) as draw:

        def show(done: float, total: float | None = None, count: float | None = None) -> None:
            meter.move(done, total, count)
            draw()

        yield show


def counting(deed: Deed, show: Show) -> Deed:
    """The same deed, which shows how many letters it has come to."""
    done = 0

    def counted(rows: Sequence[LetterRow], ticket: Ticket) -> Receipt:
        nonlocal done
        receipt = deed(rows, ticket)
        done += len(rows)
        show(done)
        return receipt

    return counted


@contextlib.contextmanager
def _lines(meter: Meter, clock: Callable[[], float]) -> Iterator[Callable[[], None]]:
    due = clock() + LINE_EVERY

    def draw() -> None:
        nonlocal due
        if meter.now >= due:
            due = meter.now + LINE_EVERY
            click.echo(meter.line(), err=True)

    yield draw


@contextlib.contextmanager
def _bar(meter: Meter) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    names = TextColumn("{task.description}", markup=False)
    figures = TextColumn("{task.fields[figures]}", markup=False)
    with Progress(names, BarColumn(), figures, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(meter.what, total=meter.total, figures="")

        def draw() -> None:
            share = [] if meter.total is None else [f"{meter.share:>4.0%}"]
            figures = "  ".join([*share, *filter(None, (meter.rate, meter.left))])
            bar.update(task, completed=meter.done, total=meter.total, figures=figures)

        yield draw
