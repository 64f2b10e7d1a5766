"""Starting, signalling and reaping real processes; waiting on conditions instead of on time."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HERE = Path(__file__).parent
NOT_IMPORTED = 71  # the exit code of a program that could not be imported; see zygote.py
PATIENCE = 90.0  # seconds until a condition counts as never; a busy machine may need many


def wait_until(condition: Callable[[], T], timeout: float = PATIENCE, what: str = "", every: float = 0.002) -> T:
    """Look again and again until the condition holds, and return what it said.

    Rests twice as long as the look took: those who are waited for need the machine more. A program that could not be
    imported is an error at once. The error says how each process ended, and what it said.
    """
    pause, deadline = threading.Event(), time.monotonic() + timeout
    while True:
        began = time.monotonic()
        found = condition()
        if found:
            return found
        now = time.monotonic()
        if now > deadline or any(child.ended and child.wait() == NOT_IMPORTED for child in CHILDREN):
            waited = f"not within {timeout:g} s" if now > deadline else "a program was not imported"
            raise AssertionError("\n".join([f"{waited}: {what or condition}", *(_end_of(one) for one in CHILDREN)]))
        pause.wait(max(every, 2 * (now - began)))


def _end_of(child: Child) -> str:
    if not child.ended:
        return f"process {child.pid} runs"
    return f"process {child.pid} ended with exit code {child.wait()}; it and its siblings said:\n{child.said}"


def wait_for_ever() -> None:
    """A program that does nothing."""
    threading.Event().wait()


class Child:
    """A process that the zygote forked for us."""

    def __init__(self, zygote: Zygote, pid: int, stderr: Path) -> None:
        self.pid, self.stderr = pid, stderr
        self._zygote = zygote
        self._handle = os.pidfd_open(pid)
        self.code: int | None = None

    @property
    def ended(self) -> bool:
        """Has it ended (reaped or not)?"""
        return self.code is not None or bool(select.select([self._handle], [], [], 0)[0])

    def signal(self, number: int) -> None:
        """Send a signal; the handle knows the process even if its number was reused."""
        if self.code is None:
            signal.pidfd_send_signal(self._handle, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Until it ends: its exit code, negative for a signal."""
        if self.code is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                self.kill()
                raise AssertionError(f"process {self.pid} did not end within {timeout:g} s; it said:\n{self.said}")
            os.close(self._handle)
            self.code = self._zygote.reap(self)
        return self.code

    def kill(self) -> int:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        return self.wait()

    @property
    def said(self) -> str:
        """The end of what it and its siblings wrote to stderr."""
        return self.stderr.read_text("utf-8", "replace")[-2000:] if self.stderr.exists() else ""


CHILDREN: list[Child] = []  # of the test that runs


class Zygote:
    """Forks programs of this folder on request."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._children: set[Child] = set()
        self._lock = threading.Lock()

    def start(self, program: str, stderr: Path, *, env: dict[str, str] | None = None, **arguments: Any) -> Child:
        """Run `module:function(**arguments)` in a process of its own."""
        request = {"program": program, "arguments": arguments, "env": env or {}, "stderr": str(stderr)}
        child = Child(self, self._ask(request), stderr)
        self._children.add(child)
        CHILDREN.append(child)
        return child

    def run(self, program: str, stderr: Path, *, env: dict[str, str] | None = None, **arguments: Any) -> None:
        """Run to a good end."""
        child = self.start(program, stderr, env=env, **arguments)
        assert child.wait() == 0, child.said

    def reap(self, child: Child) -> int:
        """Forget a process that ended."""
        self._children.discard(child)
        return self._ask({"reap": child.pid})

    def reap_all(self) -> None:
        """Kill and reap whatever a test left behind."""
        for child in list(self._children):
            child.kill()
        CHILDREN.clear()

    def close(self) -> None:
        """End the zygote."""
        self.reap_all()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
