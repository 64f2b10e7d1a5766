"""What operators do, as processes that can be killed."""

from __future__ import annotations

from worker_app import build


def replay(path: str, flakes: str) -> None:
    """Send everything that a bug buried round again, a letter at a time."""
    app = build(path, flakes)
    desk = app.operate("crash test").letters
    for letter in desk.list("dead", limit=500):
        if letter.reason == "attempts_exhausted":
            desk.replay(letter.id, "the bug is fixed")
    app.close()


def reset(path: str, flakes: str, name: str) -> None:
    """Take a projection back to its start."""
    app = build(path, flakes)
    app.operate("crash test").reset(name, "crash test")
    app.close()
