"""When a request is late. All of a pool have the same time, so they get late in the order in which they began.

One timer watches the oldest, whoever that is: to set and cancel one for each request costs as much as all else that
we do about it. Who is late is cancelled, as by `asyncio.timeout`, and is told here that it was us.
"""

from __future__ import annotations

import asyncio
from typing import Any

Task = asyncio.Task[Any]


class Deadlines:
    """Requests under way, by the task that makes them: a task makes one at a time."""

    def __init__(self, seconds: float) -> None:
        self._loop, self._seconds = asyncio.get_running_loop(), seconds
        self._under_way: dict[Task, tuple[float, int]] = {}  # late when, and how often the task was cancelled before
        self._late: set[Task] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Task:
        """A request begins, in the current task."""
        task = asyncio.current_task(self._loop)  # which is then not looked for: that takes a system call
        assert task is not None and task not in self._under_way
        self._under_way[task] = self._loop.time() + self._seconds, task.cancelling()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)
        return task

    def is_late(self, task: Task) -> bool:
        """Was it cancelled here, and by nobody else? Then the cancellation is over with this answer."""
        if task not in self._late:
            return False
        self._late.discard(task)
        return task.uncancel() <= self._under_way[task][1]

    def end(self, task: Task) -> None:
        """The request is over."""
        if self._late and task in self._late:  # the answer was faster than the cancellation
            self._late.discard(task)
            task.uncancel()
        del self._under_way[task]

    def close(self) -> None:
        """Nobody is left to be watched."""
        if self._timer is not None and not self._under_way:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        self._timer = None
        for task, (until, _) in self._under_way.items():
            if until > now:
                self._timer = self._loop.call_at(until, self._look)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()
