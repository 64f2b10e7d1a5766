"""Redis and Valkey streams: `Stream`, and a `Codec` to read it by; letters mirrored: `LetterStream`, `LetterIndex`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.redis.stream import Stream
from redrive.sources.codec import Codec

if TYPE_CHECKING:
    from redrive.redis.letters import LetterIndex, LetterStream

__all__ = ["Codec", "LetterIndex", "LetterStream", "Stream"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from redrive.redis import letters  # with the driver behind it

    return getattr(letters, name)


def __dir__() -> list[str]:
    return [*__all__]
