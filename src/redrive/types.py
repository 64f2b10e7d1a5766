"""Event types: which class an event's data becomes, and how old data is brought up to date.

A class is marked with `@redrive.event(name, schema=n)`; a registry turns stored bytes of that name into it, after the
upcasts from the schema they were stored with. Names without a class are plain JSON. Type names are looked up in
registries only, never imported: what is stored cannot choose what runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec

from redrive.codec import encode_data, from_json, is_model
from redrive.errors import EventError, UsageError
from redrive.event import check_type
from redrive.options import named_options
from redrive.reader import DATA_ERRORS, Reader, Upcast, cause_of, make_decoder, reason

C = TypeVar("C", bound=type)

MARK = "__redrive_event__"
# Of each type the first event is looked at for values that JSON changes, and of all later ones so many together one: to
# look at each would take as long as to encode it.
LOOK_EVERY = 64
_PLAIN_MAX = 1_000  # type names remembered as plain JSON; they come from outside, so their number must be bounded

_marked: dict[str, list[type]] = {}  # every decorated class of the process, by event type
_marks = 0  # grows with each decoration, so that registries notice
_registries: WeakSet[EventTypes] = WeakSet()


@named_options("event")
def event(name: str, *, schema: int = 1) -> Callable[[C], C]:
    """Give a msgspec Struct, dataclass or pydantic model the event type it stands for.

    >>> import msgspec
    >>> @event("doc.placed", schema=2)
    ... class Placed(msgspec.Struct):
    ...     cents: int
    >>> EventTypes().encode(Placed(4200))
    ('doc.placed', 2, b'{"cents":4200}')
    """
    try:
        check_type(name)
    except EventError as error:
        raise UsageError(f"@event({name!r}): {error}") from None
    _check_schema(schema, f"@event({name!r}, schema={schema!r})")

    def mark(cls: C) -> C:
        global _marks
        if not (isinstance(cls, type) and is_model(cls)):
            raise UsageError(
                f"@event({name!r}) needs a msgspec Struct, a dataclass or a pydantic model, and {cls!r} is none; "
                "with a dataclass, write @event above @dataclass"
            )
        setattr(cls, MARK, (name, schema))
        _marked[name] = [*(other for other in _marked.get(name, ()) if not _same(other, cls)), cls]
        _marks += 1
        for types in list(_registries):
            types.plain.clear()
        return cls

    return mark


class EventTypes:
    """The types one app knows: those given to `register`, and every decorated class of the process."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._upcasts: dict[str, dict[int, Upcast]] = {}
        self._readers: dict[str, Reader] = {}
        self.plain: set[str] = set()  # types that are known to be plain JSON: asked for each event, see Event.data
        self._seen = _marks
        self._looked_at: set[str] = set()  # types of which an event was looked at; see LOOK_EVERY
        self._encoded = 0
        _registries.add(self)

    def register(self, cls: type) -> None:
        """Make `cls` the class of its event type here, whoever else claims the name in this process."""
        name, _ = _mark_of(cls)
        known = self._classes.get(name)
        if known is not None and not _same(known, cls):
            raise UsageError(
                f"event type {name!r} is claimed by {_show(known)} and {_show(cls)}: "
                "keep one class and bring old data up to date with @app.upcast"
            )
        self._classes[name] = cls
        self._readers.pop(name, None)
        self.plain.discard(name)

    def name_of(self, cls: type) -> str:
        """The event type of a decorated class, which is registered by this."""
        self.register(cls)
        return _mark_of(cls)[0]

    def upcast(self, name: str, from_schema: int, fn: Upcast) -> None:
        """`fn` takes data stored with `from_schema` (plain JSON values) and returns that of the next schema."""
        _check_schema(from_schema, f"upcast({name!r}, {from_schema!r})")
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            raise UsageError(f"upcast({name!r}, {from_schema}) needs a plain function of one argument, the data")
        known = self._upcasts.setdefault(name, {}).setdefault(from_schema, fn)
        if known is not fn:
            raise UsageError(f"upcast({name!r}, {from_schema}) is given twice: {_show(known)} and {_show(fn)}")
        self._readers.pop(name, None)
        self.plain.discard(name)

    def schema_of(self, name: str) -> int:
        """The schema new events of this type are stored with."""
        return self._reader(name).schema

    def encode(self, value: Any, name: str | None = None) -> tuple[str | None, int, bytes]:
        """Type, schema and bytes of a value; without a decorated class the type is `name`, as given."""
        cls = type(value)
        if cls is dict and name is not None:  # the ordinary case, quickly
            reader = self._readers.get(name) if self._seen == _marks else None
            reader, raw = reader or self._reader(name), encode_data(value)
            self._encoded += 1
            if name not in self._looked_at or not self._encoded % LOOK_EVERY:
                self._look_for_loss(reader, value)
            return name, reader.schema, raw
        mark = cls.__dict__.get(MARK)
        if mark is None:
            reader, raw = None if name is None else self._reader(name), encode_data(value)
            if reader is not None and cls is not msgspec.Raw:
                self._encoded += 1
                if name not in self._looked_at or not self._encoded % LOOK_EVERY:
                    self._look_for_loss(reader, value)
            return name, 1 if reader is None else reader.schema, raw
        if name is not None and name != mark[0]:
            raise EventError(f"{_show(cls)} is {mark[0]!r} and cannot be appended as {name!r}")
        if self._classes.get(mark[0]) is not cls:
            self._claim(cls)
        raw = encode_data(value)
        reader = self._reader(mark[0])
        try:
            # A Struct or dataclass takes anything; its decoder does not.
            (reader.decode if reader.schema == mark[1] else make_decoder(cls))(raw)
        except DATA_ERRORS as error:
            raise EventError(f"{_show(cls)} has values that its fields do not allow: {reason(error)}") from cause_of(
                error
            )
        return mark[0], mark[1], raw

    def _look_for_loss(self, reader: Reader, value: Any) -> None:
        """Warn of values that come back as others, unless a class or an upcast gives them back."""
        if len(self._looked_at) < _PLAIN_MAX:
            self._looked_at.add(reader.name)
        if reader.plain:
            from redrive.lossy import warn_of_loss  # a program that appends nothing does not need it

            warn_of_loss(reader.name, value)

    def decode(self, name: str, schema: int, raw: bytes) -> Any:
        """The data of a stored event, as its class or as plain JSON values; Undecodable says why not."""
        reader = self._readers.get(name) if self._seen == _marks else None
        if reader is None:
            reader = self._reader(name)
        try:
            if reader.plain:
                return from_json(raw)
            return reader.decode(raw if schema == reader.schema else reader.lift(schema, raw))
        except DATA_ERRORS as error:
            raise reader.undecodable(schema, raw, error) from cause_of(error)

    def check(self) -> None:
        """Build what decoding will need, so that a wrong class or a missing upcast stops the start, not an event."""
        for name in sorted({*self._classes, *self._upcasts}):
            self._reader(name).check_chain()

    def _claim(self, cls: type) -> None:
        """Register the class of an appended event, unless it is an old one: the newest reads, after the upcasts."""
        name, schema = _mark_of(cls)
        rivals = [self._classes[name]] if name in self._classes else _marked[name]
        if all(schema >= _mark_of(rival)[1] for rival in rivals):
            self.register(cls)

    def _reader(self, name: str) -> Reader:
        if self._seen != _marks:
            self._seen = _marks
            self._readers.clear()
            self.plain.clear()
        reader = self._readers.get(name)
        return self._new_reader(name) if reader is None else reader

    def _new_reader(self, name: str) -> Reader:
        cls = self._classes.get(name) or _newest(name)
        upcasts = self._upcasts.get(name, {})
        schema = _mark_of(cls)[1] if cls else max(upcasts, default=0) + 1
        reader = Reader(name, schema, upcasts, make_decoder(cls), plain=cls is None and not upcasts)
        if not reader.plain or len(self._readers) < _PLAIN_MAX:
            self._readers[name] = reader
            if reader.plain:
                self.plain.add(name)
                if self._seen != _marks:  # a class was marked meanwhile, on another thread
                    self.plain.clear()
        return reader


def _newest(name: str) -> type | None:
    """The decorated class of the highest schema, for registries that were not told which one to use."""
    claims = _marked.get(name, ())
    top = max((_mark_of(claim)[1] for claim in claims), default=0)
    found = [claim for claim in claims if _mark_of(claim)[1] == top]
    if len(found) > 1:
        raise UsageError(
            f"event type {name!r} is claimed by {_show(found[0])} and {_show(found[1])}: "
            "use one of them as the type of a subscription, or rename one"
        )
    return found[0] if found else None


def _mark_of(cls: type) -> tuple[str, int]:
    # Of the class itself: a subclass is another type until it is decorated.
    mark: tuple[str, int] | None = cls.__dict__.get(MARK) if isinstance(cls, type) else None
    if mark is None:
        raise UsageError(f"{cls!r} is no event type: decorate the class with @redrive.event(name)")
    return mark


def _same(one: type, other: type) -> bool:
    """The same class, or the same source text run again: a reloaded module, a script that is imported as well."""
    if one is other:
        return True
    modules = {one.__module__, other.__module__}
    return one.__qualname__ == other.__qualname__ and (len(modules) == 1 or "__main__" in modules)


def _show(thing: Any) -> str:
    return f"{thing.__module__}.{getattr(thing, '__qualname__', thing)}"


def _check_schema(schema: int, what: str) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= 1_000_000:
        raise UsageError(f"{what}: a schema is a whole number from 1 up")
