"""What a handler may not do in a rehearsal: write to the store past its `ctx`, because that would stay."""

from __future__ import annotations

from contextvars import ContextVar

from redrive.errors import UsageError

ON_STAGE: ContextVar[bool] = ContextVar("redrive_on_stage", default=False)


class OffScript(UsageError):
    """A rehearsed function wrote to the store at once."""


def check_off_stage() -> None:
    """Refuse to write for a function that is only being rehearsed; one that starts threads of its own is on its own."""
    if ON_STAGE.get():
        raise OffScript(
            "it writes to the store by itself, and a rehearsal could not take that back: use ctx.emit and ctx.execute"
        )
