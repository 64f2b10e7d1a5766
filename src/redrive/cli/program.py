"""Finding the program (`MODULE:APP`) and its store, with an error that names the fix if it is not there."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from redrive.files import create, mode_of, mode_to_keep

if TYPE_CHECKING:
    from redrive.app import App

F = TypeVar("F", bound=Callable[..., Any])

store_option = click.option("--store", metavar="FILE", help="The store, e.g. shop.db.")
app_option = click.option("--app", "program", metavar="MODULE:APP", help="The program, e.g. shop:app.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; its fields are documented and stable.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@contextmanager
def complete_file(out: str | None, file_mode: str) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete, whatever had it before; without a name, stdout.

    A new file has this mode, one that is replaced hands on its own.
    """
    check_target(out)
    if out is None:
        if sys.stdout is None:
            raise click.UsageError("there is no stdout to write to: add --out FILE")
        sys.stdout.flush()
        stream = sys.stdout.buffer
        yield stream
        stream.flush()
        return
    if os.path.exists(out) and not os.path.isfile(out):  # a pipe or a device is written to, never replaced
        with open(out, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(out))  # what a link leads to is replaced, and the link stays
    part = target.with_name(f"{target.name}.part")
    mode = mode_to_keep(target, mode_of(file_mode))
    try:
        part.unlink(missing_ok=True)  # of an export that was killed, perhaps with another mode
        create(part, mode)
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check_target(out: str | None) -> None:
    """Nothing is ever exported over a store or what belongs to one."""
    if out is not None and (is_database(out) or (out.endswith(("-wal", "-shm")) and is_database(out[:-4]))):
        raise click.UsageError(f"{out!r} is a database and would be replaced; name another file")


def is_database(name: str) -> bool:
    """Is this file a store, or another database? Nothing is ever exported over one."""
    try:
        if not os.path.isfile(name):  # who reads from a pipe waits for its writer
            return False
        with open(name, "rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except (OSError, ValueError):
        return False


def reads(command: F) -> F:
    """The options of every command that looks at a store."""
    return store_option(app_option(json_option(command)))


def load(program: str) -> App:
    """Import MODULE and find APP in it; the current directory is importable."""
    from redrive.app import App

    module_name, _, attribute = program.partition(":")
    if not module_name or program.endswith(".py") or module_name.endswith(".py") or os.sep in module_name:
        raise click.UsageError(f"{program!r} is not MODULE:APP; for app = App(…) in shop.py write shop:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise click.ClickException(f"importing {module_name} failed: {error}") from error
        raise click.UsageError(
            f"there is no module {error.name!r} in {os.getcwd()} or on the path; "
            "write MODULE:APP as in `import MODULE`, from the directory where that works"
        ) from None
    except (Exception, SystemExit) as error:  # a script that ends itself would end this command with its own code
        raise click.ClickException(f"importing {module_name} failed: {type(error).__name__}: {error}") from error
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    found: Any = module
    for part in (attribute or (apps[0] if len(apps) == 1 else "app")).split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        hint = f"it has: {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else "it has no App at all"
        raise click.UsageError(f"{attribute or 'app'!r} in module {module_name!r} is not an App; {hint}")
    return found


@contextmanager
def opened(store: str | None, program: str | None, *, create: bool = False) -> Iterator[App]:
    """The app (an empty one without a program) on its store; closed at the end."""
    context = click.get_current_context(silent=True)
    if store is None and context:
        store = context.find_object(str)
    if store == "":  # a variable that is not set: what REDRIVE_STORE or redrive.toml names is not what is meant
        raise click.UsageError("--store is empty: name a store, or leave it out")
    if store is not None:
        os.environ["REDRIVE_STORE"] = store  # a flag beats everything, also what the program says
    if program is not None:
        app = load(program)
    else:
        from redrive.app import App

        app = App()
    try:
        if not create:
            app.runtime.check_exists()
        yield app
    finally:
        app.close()


def confirm(question: str, yes: bool) -> None:
    """Ask, unless told not to; without anybody to ask, refuse."""
    if yes:
        return
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is here to answer: add --yes")
    click.confirm(question, abort=True)
