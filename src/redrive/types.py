"""Event types: which class an event's data becomes, and how old data is brought up to date.

A class is marked with `@redrive.event(name, schema=n)`; a registry turns stored bytes of that name into it, after the
upcasts from the schema they were stored with. Names without a class are plain JSON. Type names are looked up in
registries only, never imported: what is stored cannot choose what runs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from redrive.codec import check_bounds, decode_json, encode_data, is_model, is_pydantic, not_json
from redrive.errors import EventError, Undecodable, UsageError
from redrive.event import check_type

C = TypeVar("C", bound=type)
Upcast = Callable[[Any], Any]

MARK = "__redrive_event__"
# What a function of the user's may raise because of the data it was given. Anything else (the disk, the network)
# is not the data's fault and is left to the retry rules.
_DATA_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)

_marked: dict[str, list[type]] = {}  # every decorated class of the process, by event type


def event(name: str, *, schema: int = 1) -> Callable[[C], C]:
    """Give a msgspec Struct, dataclass or pydantic model the event type it stands for.

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
        if not (isinstance(cls, type) and is_model(cls)):
            raise UsageError(
                f"@event({name!r}) needs a msgspec Struct, a dataclass or a pydantic model, and {cls!r} is none; "
                "with a dataclass, write @event above @dataclass"
            )
        setattr(cls, MARK, (name, schema))
        others = [other for other in _marked.get(name, ()) if not _same(other, cls)]
        _marked[name] = [*others, cls]
        return cls

    return mark


class EventTypes:
    """The types one app knows: those given to `register`, and every decorated class of the process."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._upcasts: dict[str, dict[int, Upcast]] = {}
        self._readers: dict[str, _Reader] = {}

    def register(self, cls: type) -> None:
        """Make `cls` the class of its event type here, whoever else claims the name in this process."""
        name, _ = _mark_of(cls)
        known = self._classes.get(name)
        if known is not None and not _same(known, cls):
            raise UsageError(
                f"event type {name!r} is claimed by {_show(known)} and {_show(cls)}: "
                "keep one class and bring old data up to date with @app.upcast"
            )
        if known is not cls:
            self._classes[name] = cls
            self._readers.pop(name, None)

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

    def schema_of(self, name: str) -> int:
        """The schema new events of this type are stored with."""
        cls = self._class_of(name)
        if cls is not None:
            return _mark_of(cls)[1]
        return max(self._upcasts.get(name, ()), default=0) + 1

    def encode(self, value: Any, name: str | None = None) -> tuple[str | None, int, bytes]:
        """Type, schema and bytes of a value; without a decorated class the type is `name`, as given."""
        mark = type(value).__dict__.get(MARK)
        if mark is None:
            return name, 1 if name is None else self.schema_of(name), encode_data(value)
        if name is not None and name != mark[0]:
            raise EventError(f"{_show(type(value))} is {mark[0]!r} and cannot be appended as {name!r}")
        self.register(type(value))
        return mark[0], mark[1], encode_data(value)

    def decode(self, name: str, schema: int, raw: bytes) -> Any:
        """The data of a stored event, as its class or as plain JSON values; Undecodable says why not."""
        reader = self._readers.get(name)
        if reader is None:
            if name not in _marked and name not in self._upcasts:
                try:
                    return decode_json(raw)
                except Undecodable as error:
                    raise Undecodable(f"{name}: {error}") from None
            reader = self._readers[name] = self._reader(name)
        return reader.read(schema, raw)

    def check(self) -> None:
        """Build what decoding will need, so that a wrong class or a missing upcast stops the start, not an event."""
        for name in {*self._classes, *self._upcasts}:
            reader = self._readers[name] = self._reader(name)
            late = sorted(n for n in reader.upcasts if n >= reader.schema)
            if late:
                raise UsageError(
                    f"upcast({name!r}, {late[0]}) leads past schema {reader.schema}: raise schema= of the class"
                )
            first = min(reader.upcasts, default=reader.schema)
            gaps = [n for n in range(first, reader.schema) if n not in reader.upcasts]
            if gaps:
                raise UsageError(
                    f"event type {name!r} has no upcast from schema {gaps[0]}: add @app.upcast({name!r}, {gaps[0]})"
                )

    def _class_of(self, name: str) -> type | None:
        cls = self._classes.get(name)
        if cls is not None:
            return cls
        claims = _marked.get(name, ())
        newest = max((_mark_of(claim)[1] for claim in claims), default=0)
        found = [claim for claim in claims if _mark_of(claim)[1] == newest]
        if len(found) > 1:
            raise UsageError(
                f"event type {name!r} is claimed by {_show(found[0])} and {_show(found[1])}: register one of them"
            )
        return found[0] if found else None

    def _reader(self, name: str) -> _Reader:
        cls = self._class_of(name)
        return _Reader(name, self.schema_of(name), self._upcasts.get(name, {}), _decoder(cls))


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """How one event type is read: the schema it should have, the steps towards it, and the class at the end."""

    name: str
    schema: int
    upcasts: dict[int, Upcast]
    decode: Callable[[bytes], Any]

    def read(self, schema: int, raw: bytes) -> Any:
        try:
            if schema != self.schema:
                raw = self._lift(schema, raw)
            else:
                check_bounds(raw, Undecodable)
            return self.decode(raw)
        except Undecodable as error:
            raise Undecodable(f"{self.name} (schema {schema}): {error}") from error.__cause__
        except UnicodeDecodeError as error:
            raise Undecodable(f"{self.name} (schema {schema}): {not_json(error)}") from None
        except _DATA_ERRORS as error:
            raise Undecodable(f"{self.name} (schema {schema}): {_reason(error)}") from None

    def _lift(self, schema: int, raw: bytes) -> bytes:
        if schema > self.schema:
            raise Undecodable(
                f"this program knows it up to schema {self.schema} only: deploy the newer version, then replay"
            )
        data = decode_json(raw)
        for step in range(schema, self.schema):
            if step not in self.upcasts:
                raise Undecodable(f"there is no upcast from schema {step}: add @app.upcast({self.name!r}, {step})")
            try:
                data = self.upcasts[step](data)
            except _DATA_ERRORS as error:
                raise Undecodable(f"the upcast from schema {step} failed: {_reason(error)}") from error
            if data is None:
                raise Undecodable(f"the upcast from schema {step} returned None: return the new data")
        try:
            return encode_data(data)
        except EventError as error:
            raise Undecodable(f"after the upcasts: {error}") from None


def _decoder(cls: type | None) -> Callable[[bytes], Any]:
    if cls is None:
        return decode_json
    try:
        if is_pydantic(cls):
            return _pydantic_decoder(cls)
        return msgspec.json.Decoder(cls, dec_hook=_custom).decode
    except (TypeError, NameError) as error:
        raise UsageError(f"{_show(cls)} cannot be read from JSON: {error}") from error


def _pydantic_decoder(cls: type) -> Callable[[bytes], Any]:
    from pydantic import TypeAdapter, ValidationError

    validate: Callable[[bytes], Any] = TypeAdapter(cls).validate_json

    def decode(raw: bytes) -> Any:
        decode_json(raw)  # pydantic's own reader lets NaN pass
        try:
            return validate(raw)
        except ValidationError as error:
            # Its own text quotes the input; the reason of a letter must not.
            first = error.errors(include_url=False, include_input=False, include_context=False)[:3]
            raise Undecodable("; ".join(f"{_path(item['loc'])}: {item['msg']}" for item in first)) from None

    return decode


def _custom(cls: type, value: Any) -> Any:
    """A field of a Struct or dataclass that msgspec does not know."""
    if is_pydantic(cls):
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(value)
    raise TypeError(f"a field of type {cls.__qualname__} cannot be read from JSON: use a pydantic model for it")


def _path(loc: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


def _reason(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    if isinstance(error, msgspec.DecodeError):
        return not_json(error)
    return f"{type(error).__name__}: {error}"


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
    return f"{thing.__module__}.{thing.__qualname__}"


def _check_schema(schema: int, what: str) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise UsageError(f"{what}: a schema is a whole number from 1 up")
