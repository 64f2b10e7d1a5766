"""How the data of one event type is read: the upcasts from the schema it was stored with, then its class.

Whatever is wrong with the data, or with the user's code that looks only at the data, becomes Undecodable. Anything
else (the disk, the network) passes through to the retry rules. Our own reasons never quote the payload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from redrive.codec import NOT_JSON, adapter, encode_data, from_json, is_pydantic, not_json
from redrive.errors import EventError, Undecodable, UsageError

Upcast = Callable[[Any], Any]

# What an upcast or a validator may raise because of the data it was given.
_FAULTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
DATA_ERRORS = (EventError, *NOT_JSON, RecursionError, *_FAULTS)

_REASONS_MAX = 3  # of a pydantic error with many; the first ones say enough


class Reader(msgspec.Struct, frozen=True):
    """The schema an event type should have, the steps towards it, and what makes the value in the end."""

    name: str
    schema: int
    upcasts: Mapping[int, Upcast]
    decode: Callable[[bytes], Any]
    plain: bool  # no class, no upcast: JSON of any schema is as good as it gets

    def lift(self, schema: int, raw: bytes) -> bytes:
        """Data stored with an older schema, as bytes of the current one."""
        if schema > self.schema:
            raise Undecodable(f"this program knows schema {self.schema} at most: deploy the newer version, then replay")
        data = from_json(raw)
        for step in range(schema, self.schema):
            if step not in self.upcasts:
                raise Undecodable(f"there is no upcast from schema {step}: add @app.upcast({self.name!r}, {step})")
            try:
                data = self.upcasts[step](data)
            except _FAULTS as error:
                raise Undecodable(f"the upcast from schema {step} failed: {reason(error)}") from error
            if data is None:
                raise Undecodable(f"the upcast from schema {step} returned None: return the new data")
        return encode_data(data)

    def undecodable(self, schema: int, raw: bytes, error: Exception) -> Undecodable:
        """The error to raise for what went wrong with an event of that schema."""
        if isinstance(error, UnicodeDecodeError | RecursionError) or type(error) is msgspec.DecodeError:
            why = not_json(error, raw)
        else:
            why = reason(error)
        return Undecodable(f"{self.name} (schema {schema}): {why}")

    def check_chain(self) -> None:
        """Refuse upcasts that lead past the class, or that leave out a step on the way to it."""
        for step in sorted(self.upcasts):
            if step >= self.schema:
                raise UsageError(
                    f"upcast({self.name!r}, {step}) leads past schema {self.schema}: raise schema= of the class"
                )
        for step in range(min(self.upcasts, default=self.schema), self.schema):
            if step not in self.upcasts:
                raise UsageError(
                    f"{self.name!r} has no upcast from schema {step}: add @app.upcast({self.name!r}, {step})"
                )


def make_decoder(cls: type | None) -> Callable[[bytes], Any]:
    """From bytes to an instance of the class; to plain values without one."""
    if cls is None:
        return from_json
    try:
        if is_pydantic(cls):
            return _pydantic_decoder(cls)
        return msgspec.json.Decoder(cls, dec_hook=_custom).decode
    except (TypeError, NameError) as error:
        raise UsageError(f"{cls.__module__}.{cls.__qualname__} cannot be read from JSON: {error}") from error


def _pydantic_decoder(cls: type) -> Callable[[bytes], Any]:
    from pydantic import ValidationError

    validate = adapter(cls).validate_json

    def decode(raw: bytes) -> Any:
        from_json(raw)  # pydantic's own reader lets NaN pass
        try:
            return validate(raw)
        except ValidationError as error:
            # Its own text quotes the input.
            found = error.errors(include_url=False, include_input=False, include_context=False)[:_REASONS_MAX]
            raise Undecodable("; ".join(f"{item['msg']} - at `{_path(item['loc'])}`" for item in found)) from None

    return decode


def _custom(cls: type, value: Any) -> Any:
    """A field of a Struct or dataclass whose type msgspec does not know."""
    if is_pydantic(cls):
        return adapter(cls).validate_python(value)
    raise TypeError(f"a field of type {cls.__qualname__} cannot be read from JSON: use a pydantic model for it")


def _path(loc: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


def cause_of(error: Exception) -> BaseException | None:
    """What to show below our error: where the user's code failed, not where ours noticed."""
    return error.__cause__ if isinstance(error, (EventError, RecursionError, *NOT_JSON)) else error


def reason(error: Exception) -> str:
    """One sentence for an error that the data caused."""
    if isinstance(error, EventError | msgspec.MsgspecError):
        return str(error)
    return f"{type(error).__name__}: {error}"
