"""`redrive demo`: a small shop in a fresh folder, what happened to it as a picture, and what to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redrive.cli.render import plain

if TYPE_CHECKING:
    from redrive.demo.story import Group, Story

BAR = 40  # cells
FIX = """sed -i.bak 's/"USD": 0.92}/"USD": 0.92, "GBP": 1.17}/' shop.py"""
PATCH = '{"country": "GB"}'


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
def demo(folder: Path | None) -> int:
    """A small shop meets a flaky carrier, poison orders and a kill -9.

    Makes FOLDER (without one, a new folder among the temporary files) with a program and its store, runs it for a few
    seconds, shows what happened, and says what to type next.
    """
    from redrive.demo.story import CUSTOMERS, Story, settle_in

    folder = _fresh(folder)
    settle_in(folder)
    story = Story(folder)
    click.secho(f"A shop in {plain(folder)}", bold=True)
    click.echo("  shop.py       the program: a projection (revenue) and a handler (ship)")
    click.echo("  redrive.toml  its settings; worker.log is what the workers say\n")
    click.echo(f"{story.place_orders():,} orders of {CUSTOMERS} customers are appended to the log.")
    with _progress(story) as show:
        click.echo("A worker takes them. The Post does not always answer.")
        with story.worker(signal.SIGKILL) as check:
            story.watch(check, story.is_half_done, show)
        click.echo("kill -9, in the middle. Another worker goes on where it was.")
        with story.worker(signal.SIGTERM) as check:
            story.watch(check, story.is_done, show)
    right = story.is_right()
    _picture(story, right)
    if right:
        _next(folder, story.groups())
    story.app.close()
    return 0 if right else 1


def _fresh(folder: Path | None) -> Path:
    """An absolute path to an empty folder."""
    import tempfile

    if folder is None:
        return Path(tempfile.mkdtemp(prefix="redrive-demo-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(f"{plain(folder)} is there already and not an empty folder; name another, or none")
    return folder.absolute()


@contextmanager
def _progress(story: Story) -> Iterator[Callable[[], None]]:
    """Bars where somebody is looking; elsewhere a line at each quarter."""
    from redrive.demo.story import ORDERS, SUBSCRIPTIONS

    if not sys.stdout.isatty():
        told: set[tuple[str, int]] = set()

        def tell() -> None:
            for name in SUBSCRIPTIONS:
                quarter = 25 * (4 * story.settled(name) // ORDERS)
                if quarter and (name, quarter) not in told:
                    told.add((name, quarter))
                    click.echo(f"  {name:<8} {quarter:>3} %")

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("  {task.description:<8}"), BarColumn(BAR), MofNCompleteColumn())
    with Progress(*columns, transient=True, redirect_stdout=True) as bars:
        tasks = {name: bars.add_task(name, total=ORDERS) for name in SUBSCRIPTIONS}

        def draw() -> None:
            for name, task in tasks.items():
                bars.update(task, completed=story.settled(name))

        yield draw


def _picture(story: Story, right: bool) -> None:
    """What became of the orders, one bar for each fate."""
    click.secho("\nWhat happened", bold=True)
    for one in story.tallies():
        click.echo(f"\n  {one.subscription} ({one.kind}): {one.flowing} lanes flow, {one.dead} are parked")
        for fate, count, colour in (
            ("applied", one.applied, "green"), ("· after retry", one.retried, "cyan"),
            ("dead letters", one.dead, "red"), ("· wait behind", one.waiting, "yellow"),
        ):  # fmt: skip
            cells = 0 if not count else max(1, round(BAR * count / one.total))
            bar = click.style("█" * cells, fg=colour)
            click.echo(f"    {fate:<14}{bar}{' ' * (BAR - cells)} {count:>6,}")
    if right:
        click.echo("\n  Compared with the list of orders: each was applied once and in its turn,")
        click.echo("  or is kept. Nothing was lost to the kill.")
    else:
        click.secho("\n  A sum is wrong. Please report this, with worker.log.", fg="red", bold=True)


def _next(folder: Path, groups: list[Group]) -> None:
    """The commands of a repair, in order; a test types them."""
    click.secho("\nYour turn. Type, or paste:", bold=True)
    for comment, command in commands(folder, groups):
        if comment:
            click.secho(f"\n  # {comment}", dim=True)
        click.echo(f"  {plain(command)}")


def commands(folder: Path, groups: list[Group]) -> Iterator[tuple[str, str]]:
    """Each with what it is for."""
    by_name = {group.subscription: group for group in groups}
    rate, till = by_name["revenue"], by_name["ship"]
    yield "", f"cd {shlex.quote(str(folder))}"
    beside = Path(sys.executable).parent
    if shutil.which("redrive") != str(beside / "redrive"):
        yield "", f"export PATH={shlex.quote(str(beside))}:$PATH"
    for name in sorted(name for name in os.environ if name.startswith("REDRIVE_")):
        yield "", f"unset {name}"
    yield "What broke? Two causes, and what waits behind each:", "redrive dlq"
    yield "One of the letters, with its data:", f"redrive dlq show {rate.first} --payload"
    rehearse = f"redrive dlq replay --fingerprint {rate.fingerprint} --rehearse --app shop:app"
    yield "Would a replay help? It is tried and rolled back:", rehearse
    yield "No: the program does not know pounds. The fix is one line:", FIX
    yield "And now?", rehearse
    replay = "redrive dlq replay --fingerprint {} --app shop:app --yes"
    yield "Replay. What waits behind them follows, in order:", replay.format(rate.fingerprint)
    edit = f"redrive dlq edit --fingerprint {till.fingerprint} --patch '{PATCH}'"
    yield "The other cause is in the data: an old till writes UK. Correct it:", f"{edit} \\"
    yield "", '  --reason "the till means GB" --yes'
    yield "", replay.format(till.fingerprint)
    yield "What still waits behind them is for a worker:", "redrive run shop:app --until-idle"
    yield "Is every order accounted for, once?", "redrive verify --app shop:app"
    yield "", "redrive status"
