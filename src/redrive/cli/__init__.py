"""The command line. One small file per group of commands; nothing heavy is imported before it is needed.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done in part or a violation found. What goes wrong is one sentence on
stderr; `--debug`, anywhere on the line, shows the traceback instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from redrive.cli.render import plain
from redrive.errors import RedriveError, UsageError

DONE, FAILED, USAGE, PARTLY = 0, 1, 2, 3

# In the order of `redrive --help`: run, look, repair. A command's module is imported when it is asked for.
COMMANDS = {
    "run": "run:run",
    "status": "look:status",
    "dlq": "dlq:dlq",
    "verify": "look:verify",
    "rebuild": "repair:rebuild",
    "reset": "repair:reset",
    "rename": "repair:rename",
    "accept-from-now": "repair:accept_from_now",
    "rekey": "repair:rekey",
    "demo": "demo:demo",
}


class Commands(click.Group):
    """The commands by name; one that is mistyped gets the nearest named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found: click.Command = getattr(importlib.import_module(f"redrive.cli.{module}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a line, or say which one was probably meant."""
        from difflib import get_close_matches

        if args and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else "`redrive --help` lists them"
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
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
    sys.exit(_run([word for word in given if word != "--debug"], debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        code = cli.main(arguments, prog_name="redrive", standalone_mode=False)
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
    except BrokenPipeError:  # the reader went away; Python must not complain about it again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except RedriveError as error:
        return _explain(str(error), FAILED, debug)
    except Exception as error:
        return _explain(f"{type(error).__name__}: {error}\n(--debug shows where)", FAILED, debug)


def _explain(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    for number, line in enumerate(message.splitlines() or [""]):
        click.echo(f"redrive: {plain(line)}" if number == 0 else f"  {plain(line)}", err=True)
    return code
