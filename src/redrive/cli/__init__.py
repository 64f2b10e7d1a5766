"""The command line. One small file per group of commands; nothing heavy is imported before it is needed.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done in part or a violation found, 4 `--check` found something that needs
an operator. What goes wrong is one sentence on
stderr; `--debug`, anywhere on the line, shows the traceback instead.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from redrive.cli.lazy import Commands
from redrive.cli.render import line_width, plain, shortened, wrapped
from redrive.errors import RedriveError, UsageError
from redrive.masking import mask_text

DONE, FAILED, USAGE, PARTLY = 0, 1, 2, 3
MESSAGE_LINES_MAX, MESSAGE_LINE_MAX = 20, 1000  # of an error: a value of a megabyte is named in it, not shown

# In the order of `redrive --help`. A command's module is imported when it is asked for.
COMMANDS = {
    "run": ("run:run", "Run an app's subscriptions until SIGTERM or Ctrl-C."),
    "status": ("look:status", "Position, lag, letters and owner of every subscription."),
    "workers": ("workers:workers", "Who owns what, since when, with which version."),
    "verify": ("look:verify", "Account for every event: applied, open, discarded, ignored or pending, once each."),
    "doctor": ("doctor:doctor", "Look for what will hurt: machine, file, clock, settings, subscriptions, letters."),
    "demo": ("demo:demo", "A small shop meets a flaky carrier, poison orders and a kill -9."),
    "dlq": ("dlq:dlq", "Dead letters by cause: what broke, how often, and who waits behind it."),
    "ops": ("ops:ops", "Bulk operations, the newest first; `redrive ops N` shows one."),
    "lanes": (
        "explain:lanes",
        "Keys that are held back: by which letter, since when, and how many events wait behind it; worst first.",
    ),
    "events": ("logs:events", "The newest events of a log, or of all logs, in order."),
    "scheduled": ("scheduled:scheduled", "Events that are appended later; without a command they are listed."),
    "explain": ("explain:explain", "One event's fate in every subscription, and why."),
    "state": ("explain:state", "The keyed state that a handler keeps for a key: who wrote it last, and its size."),
    "append": ("logs:append", "Append one event, durably."),
    "export": ("transfer:export_log", "Write a log's events as CloudEvents 1.0, one JSON object to a line, in order."),
    "import": (
        "transfer:import_log",
        "Append the CloudEvents of a file to a log; ids, times, types, keys, schemas and headers are kept.",
    ),
    "admit": ("admit:admit", "Let in the events that were over the intake limit of LOG, oldest first."),
    "pause": ("subscriptions:pause", "Take nothing in and retry nothing until `redrive resume`; survives restarts."),
    "resume": ("subscriptions:resume", "Let a paused subscription go on where it was."),
    "hold": ("hold:hold", "Keep the events of one key back; without --key, list what is held."),
    "release": ("hold:release", "End a hold: the letters that wait because of it run now, in order."),
    "breaker": ("breaker:breaker", "How the dependencies are; open or close a breaker by hand."),
    "seek": (
        "subscriptions:seek",
        "Go on elsewhere: TO is a position, first, now, or a time such as 2026-01-31T00:00Z.",
    ),
    "rebuild": ("repair:rebuild", "Clear what a subscription built and build it again from the log."),
    "reset": ("repair:reset", "Clear what a subscription built; the next worker builds it again."),
    "rename": ("repair:rename", "Tell the store that a function has another name now."),
    "accept-from-now": ("repair:accept_from_now", "Let a subscription that asks for more types begin with new events."),
    "rekey": ("repair:rekey", "Move a subscription's open letters to the lanes of its new key function."),
    "forget": ("repair:forget", "Delete a subscription whose function was removed from the program."),
    "copy": ("copy:copy", "Copy everything that redrive keeps from one store to another, in either direction."),
    "prune": ("prune:prune", "Delete what is settled and old."),
    "migrate": ("migrate:migrate", "Bring a Postgres database to the storage format of this version."),
    "rules": ("rules:rules", "Keep and discard rules for letters."),
    "config": ("config:config", "The settings that hold, and where each came from."),
    "alerts": ("alerts:alerts", "Print alert rules for Prometheus."),
    "dashboard": ("alerts:dashboard", "Print a dashboard for Grafana."),
}
# The titles of the list in `redrive --help`, each before the command that its section begins with.
TITLES = {
    "run": "Run and check", "dlq": "Failed events", "events": "Events", "pause": "Subscriptions", "copy": "Store",
    "rules": "Settings and monitoring",
}  # fmt: skip


@click.group(
    cls=Commands,
    table=COMMANDS,
    titles=TITLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="redrive", message="redrive %(version)s")
@click.option("--store", metavar="FILE", help="The store; beats REDRIVE_STORE and redrive.toml.")
@click.pass_context
def cli(context: click.Context, store: str | None) -> None:
    """Every event applied exactly once and in key order, or kept and shown to you.

    The store is what --store or --app says, else REDRIVE_STORE, else redrive.toml. Add --debug for tracebacks.
    """
    context.obj = store


def main(arguments: Sequence[str] | None = None) -> None:
    """The `redrive` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if sys.stdin is None:  # it is closed: nothing comes from there
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a character gets its number
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(_run([word for word in given if word != "--debug"], debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        for word in arguments:
            if not _is_text(word):
                raise UsageError(f"{word!r} is not text in UTF-8, as names, keys and files are")
        code = cli.main(arguments, prog_name="redrive", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except (click.UsageError, UsageError) as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group alone: its message is the help
            click.echo(str(error), err=True)
            return USAGE
        message = error.format_message() if isinstance(error, click.UsageError) else str(error)
        where = getattr(getattr(error, "ctx", None), "command_path", "redrive")
        return _explain(f"{message}\n(see {where} --help)" if where != "redrive" else message, USAGE, debug)
    except click.ClickException as error:
        return _explain(error.format_message(), FAILED, debug)
    except click.Abort:
        return _explain("stopped; nothing more was done", FAILED, debug)
    except BrokenPipeError:
        _let_go_of_stdout()
        return FAILED
    except RedriveError as error:
        return _explain(str(error), FAILED, debug)
    except OverflowError:
        return _explain("a number on this line is larger than any number in a store", USAGE, debug)
    except OSError as error:
        _let_go_of_stdout()
        where = f" (file {os.fspath(error.filename)!r})" if isinstance(error.filename, str) else ""
        return _explain(f"the system says: {error.strerror or error}{where}", FAILED, debug)
    except Exception as error:
        return _explain(f"{type(error).__name__}: {error}\n(--debug shows where)", FAILED, debug)


def _is_text(word: str) -> bool:
    """Bytes that are no text arrive as halves of characters, which no store, file or terminal takes."""
    try:
        return b"\0" not in word.encode()
    except UnicodeEncodeError:
        return False


def _let_go_of_stdout() -> None:
    """Its reader went away, or its disk is full: Python must not complain about it again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(message: str, code: int, debug: bool) -> int:
    """One message on stderr; on a terminal it is broken between words, in a file a line stays a line."""
    if debug:
        import traceback

        click.echo(mask_text(traceback.format_exc()), err=True, nl=False)
    width = line_width() - 2 if sys.stderr is not None and sys.stderr.isatty() else MESSAGE_LINE_MAX + 10
    lines = mask_text(message).splitlines()[:MESSAGE_LINES_MAX] or [""]
    lines[0] = f"redrive: {lines[0]}"
    shown = [piece for line in lines for piece in wrapped(shortened(plain(line), MESSAGE_LINE_MAX), width)]
    for number, line in enumerate(shown):
        click.echo(line if number == 0 else f"  {line}", err=True)
    return code
