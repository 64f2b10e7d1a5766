"""Calling a user's function and saying what came of it. Nothing a function raises escapes from here."""

from __future__ import annotations

import asyncio
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import PurePath
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, TracebackType
from typing import Any, Protocol

from msgspec import UNSET
from msgspec.structs import force_setattr

from redrive.context import Again, Ctx, Effects, Tx
from redrive.errors import (
    BadKey,
    EventError,
    Ignore,
    Reject,
    RetryLater,
    Undecodable,
    UsageError,
    Verdict,
    VersionConflict,
)
from redrive.event import Event
from redrive.masking import mask_text
from redrive.policy import outcome as out
from redrive.policy.fingerprint import fingerprint
from redrive.policy.outcome import Failure, Outcome

TEXT_MAX = 8192  # bytes of an error's text that a letter keeps; an exception may hold 100 MB
ADDRESS_MAX = 4_096  # characters read beyond that, so that an address at the end is masked before it is cut
FRAMES_MAX = 50
TRAILS_MAX = 64  # ways by which errors came that are worth remembering
REMEMBERED_MAX = 200  # characters of a message worth remembering until the next attempt
CAUSES_MAX = 4  # a chain of causes longer than this is a loop

_SPECIAL = (Verdict, EventError, SystemExit, KeyboardInterrupt)  # nearly all errors are none of these

IsTheWorld = Callable[[BaseException], bool]
Begin = Callable[[int], bool]  # before a stride, told how many went well before it; False: there is to be none
Passes = Callable[[Event[Any], BaseException], bool]  # this one failed: may those behind it be called?


def describe(error: BaseException, limit: int = TEXT_MAX) -> Failure:
    """An exception as text, built defensively: `__str__` may raise, lie or be endless."""
    cls, message, places = type(error), _text(error, limit), _places(error.__traceback__)
    is_first = (error.__context__ is None and error.__cause__ is None) or _cause(error) is None
    if is_first and len(message) <= REMEMBERED_MAX:
        return _described(cls.__module__, cls.__qualname__, message, places, limit)
    return _describe(cls.__module__, cls.__qualname__, message, places, limit, _causes(error, limit))


def _describe(module: str, kind: str, message: str, places: Places, limit: int, causes: str = "") -> Failure:
    stack, path = _stack(places)
    message = mask_text(message)
    # Masked before it is cut: what is left of an address may not look like one.
    trace = _storable(mask_text(f"{causes}{stack}{kind}: {message}")[-limit:].rstrip(), limit)
    name, stored_name = _name(module, kind)
    return Failure(stored_name, message, trace, fingerprint(name, path, message))


_described = lru_cache(64)(_describe)  # the next attempt fails like the one before


@lru_cache(256)
def _name(module: str, name: str) -> tuple[str, str]:
    """The full name of an exception, and what of it is stored."""
    full = name if module == "builtins" else f"{_module(module)}.{name}"
    return full, _storable(full, 200)


@lru_cache(256)
def _module(name: str) -> str:
    """A program run as a script and imported by `redrive run` is one program, and its bugs are the same bugs."""
    if name != "__main__":
        return name
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return str(spec.name) if spec is not None else PurePath(file).stem if file else name


def _text(error: BaseException, limit: int) -> str:
    try:
        text = str(error)
        if len(text) <= limit and text.isascii() and "\0" not in text:  # as nearly always
            return text
        return _storable(mask_text(text[: limit + ADDRESS_MAX]), limit)
    except Exception as broken:
        return f"<its __str__ raised {type(broken).__name__}>"


def _storable(text: str, limit: int) -> str:
    """Cut to a number of bytes of valid UTF-8, without NULs."""
    raw = text[:limit].encode("utf-8", "backslashreplace")[:limit]
    return raw.decode("utf-8", "ignore").replace("\0", "\\0")


Places = tuple[tuple[str, str, int, str], ...]
Trail = tuple[int, ...]

_known_trails: dict[Trail, tuple[Places, list[CodeType]]] = {}  # with what its numbers are of, lest they mean another


def _places(tb: TracebackType | None) -> Places:
    """File, function, line and module of the user's frames, innermost last; ours would help nobody.

    The same bug comes along the same way, many times: what tells that is cheaper to ask for than names and lines.
    """
    codes, steps, at = [], [], tb
    while at is not None:
        codes.append(at.tb_frame.f_code)
        steps.append(at.tb_lasti)
        at = at.tb_next
    trail = (*map(id, codes), *steps)
    known = _known_trails.get(trail)
    if known is not None:
        return known[0]
    places = _find_places(tb)
    if len(codes) <= FRAMES_MAX:
        if len(_known_trails) >= TRAILS_MAX:
            _known_trails.clear()
        _known_trails[trail] = places, codes
    return places


def _find_places(tb: TracebackType | None) -> Places:
    places = []
    while tb is not None:
        frame = tb.tb_frame
        module, code = frame.f_globals.get("__name__", "?"), frame.f_code
        if not (isinstance(module, str) and module.startswith("redrive.")):
            places.append((code.co_filename, code.co_name, tb.tb_lineno, str(module)))
        tb = tb.tb_next
    return tuple(places[-FRAMES_MAX:])


@lru_cache(256)
def _stack(places: Places) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text of a stack, and its (module, function) path. The same bug comes from the same place, many times.

    By hand: the stdlib's traceback costs ten times as much and calls the error's `__str__`.
    """
    lines = [
        f'  File "{file}", line {line}, in {function}\n    {_line(file, line)}\n' for file, function, line, _ in places
    ]
    return "".join(lines), tuple((_module(module), function) for _, function, _, module in places)


def _line(file: str, number: int) -> str:
    try:
        return linecache.getline(file, number).strip()
    except ValueError:  # up to Python 3.12: code may say that it is from anywhere, with a null in its name
        return ""


def _causes(error: BaseException, limit: int) -> str:
    """The tracebacks of what led to an error, first cause first; nothing if nothing did."""
    chain: list[BaseException] = [error]
    while len(chain) < CAUSES_MAX and (cause := _cause(chain[-1])) and not any(cause is link for link in chain):
        chain.append(cause)
    return "".join(
        f"{_stack(_places(link.__traceback__))[0]}{type(link).__qualname__}: {_text(link, limit)}\nwhich led to\n"
        for link in reversed(chain[1:])
    )


def _cause(error: BaseException) -> BaseException | None:
    """What led to it; `from None` means that its author wants that left out, often because it quotes the payload."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    handled = sys.exception()  # by whoever called us, long before: it led to nothing here
    return None if error.__context__ is handled else error.__context__


def is_plain(error: BaseException) -> bool:
    """Is it a failure of its event and nothing else: no verdict, no conflict, no request to stop?"""
    return not isinstance(error, _SPECIAL)


def outcome_of(error: BaseException, is_the_world: IsTheWorld, *, reruns: int = 0, limit: int = TEXT_MAX) -> Outcome:
    """What an exception means for the event that raised it."""
    if is_plain(error):  # CancelledError raised by the function itself is its failure; ours never gets here
        return out.StoreDown(error) if is_the_world(error) else out.Failed(error, describe(error, limit))
    match error:
        case Ignore(reason=reason):
            return out.Ignored(reason)
        case Reject():
            return out.Rejected(describe(error, limit))
        case RetryLater(after=after):
            return out.Postponed(describe(error, limit), after, error)
        case Undecodable():
            return out.Unreadable(describe(error, limit), error.reason)
        case BadKey():
            return out.Unkeyed(describe(error, limit))
        case VersionConflict():
            return out.Conflicted(error, describe(error, limit), reruns)
        case SystemExit() | KeyboardInterrupt():
            return out.STOPPED
        case _ if is_the_world(error):
            return out.StoreDown(error)
        case _:
            return out.Failed(error, describe(error, limit))


def overran(seconds: float) -> Outcome:
    """The function did not return within its timeout."""
    error = TimeoutError(f"the function did not return within {seconds:g} s")
    return out.Failed(error, describe(error))


def check_done(result: Any) -> None:
    """A function that returned has done its work, unless it returned what would do it and what nobody runs."""
    if isinstance(result, GeneratorType | AsyncGeneratorType) or hasattr(type(result), "__await__"):
        if isinstance(result, CoroutineType | GeneratorType):
            result.close()  # or Python would warn, in the wrong place
        raise UsageError(
            f"the function returned a {type(result).__name__} that nobody runs: is there an `await` missing, "
            "or a decorator that does not know of coroutines?"
        )


class Done:
    """A function whose result is looked at when it is called: those who prepare it for a store have no use for it."""

    __slots__ = ("bare",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.bare = function

    def __call__(self, *arguments: Any) -> None:
        result = self.bare(*arguments)
        if result is not None:
            check_done(result)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """For who calls it for thousands and looks at the results itself: one call less for each."""
    return function.bare if type(function) is Done else function


def attempt(function: Callable[..., Any], *arguments: Any) -> BaseException | None:
    """Call a user's function; what it raised, or None."""
    try:
        result = function(*arguments)
        if result is not None:
            check_done(result)
    except Again:  # ours: the transaction must begin again
        raise
    except BaseException as error:
        return error
    return None


def attempt_effects(ctx: Ctx) -> tuple[Effects | None, BaseException | None]:
    """What a function asked for; a state that cannot be stored is its failure."""
    try:
        return ctx.effects(), None
    except BaseException as error:
        return None, error


def attempt_each(
    function: Callable[..., Any],
    events: Sequence[Event[Any]],
    which: range,
    tx: Tx,
    late: Callable[[], bool],
    stride: int,
    begin: Begin,
    passes: Passes | None = None,
) -> tuple[int, BaseException | None]:
    """Call a projection for one event after the other, until it raises or it is late: how many, and what it raised.

    `begin` is called before each stride, and may end it; `passes` hears what was raised, and may have it go on. Each
    event forgets its data when it was called for: one that runs again must not see its own changes, and what the data
    takes is free for the next one. And before: a key function, or who has kept it, may have changed it meanwhile.
    """
    function, forget, event = bare(function), force_setattr, None
    for part in _strides(which, stride):
        if not begin(part.start - which.start):
            return part.start - which.start, None
        rest, at = iter(part), part.start
        while True:
            try:
                for at in rest:
                    tx.event = event = events[at]
                    if event._data is not UNSET:
                        event.forget()
                    if (result := function(event, tx)) is not None:
                        check_done(result)
                    forget(event, "_data", UNSET)  # event.forget(), without the call
                    if at & 15 == 15 and late():
                        return at + 1 - which.start, None
                break
            except Again:
                events[at].forget()
                raise
            except BaseException as error:
                events[at].forget()
                if passes is None or not passes(events[at], error):
                    return at - which.start, error
                if late():
                    return at + 1 - which.start, None
    return len(which), None


def _strides(which: range, stride: int) -> Iterator[range]:
    """Numbers, not slices: where one of a thousand has failed, the rest would be copied for each that fails."""
    return (which[at : at + stride] for at in range(0, len(which), stride))


class Attempted(Protocol):
    """A work, as far as calling it is concerned."""

    event: Any
    ctx: Any
    error: BaseException | None  # what the call raised
    timed_out: bool


async def attempt_works(function: Callable[..., Any], works: Iterable[Attempted | None]) -> None:
    """Await a user's function for one work after the other; None among them asks for a pause.

    A cancellation is the work's failure, whoever asked for it. If we did, nobody is left who would settle it.
    """
    for work in works:
        if work is None:
            await asyncio.sleep(0)
            continue
        try:
            result = await function(work.event, work.ctx)
            if result is not None:
                check_done(result)
        except BaseException as error:
            work.error = error


def attempt_all(function: Callable[..., Any], works: Iterable[Attempted | None]) -> None:
    """Call a user's function for one work after the other."""
    for work in works:
        if work is not None:
            work.error = attempt(function, work.event, work.ctx)


def find_key(
    key_of: Callable[[Event[Any]], str | None], event: Event[Any]
) -> tuple[str | None, out.Unreadable | out.Unkeyed | None]:
    """The event's key, or what the lack of one means: of the event as it is stored, whoever has changed its data."""
    changed = event._data
    if changed is UNSET:
        return _find_key(key_of, event)
    event.forget()
    try:
        return _find_key(key_of, event)
    finally:
        force_setattr(event, "_data", changed)  # we may be inside of the call that does so


def _find_key(
    key_of: Callable[[Event[Any]], str | None], event: Event[Any]
) -> tuple[str | None, out.Unreadable | out.Unkeyed | None]:
    """`key_by` is the user's and may raise anything."""
    try:
        return key_of(event), None
    except Undecodable as error:
        return None, out.Unreadable(describe(error), error.reason)
    except BadKey as error:
        return None, out.Unkeyed(describe(error))
    except KeyboardInterrupt:  # of whoever sits at the keyboard
        raise
    except BaseException as error:
        bad = BadKey(f"key_by raised {type(error).__name__}: {_text(error, 200)}")
        return None, out.Unkeyed(describe(bad.with_traceback(error.__traceback__)))
