"""Time, chance and identity: the only door through which the engine sees the machine.

Tests and the simulator hand in their own `Env`; nothing else imports `time` or `random`.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_numbers = itertools.count(1)


class Clock(Protocol):
    """Wall time for due times and leases, monotonic time for durations."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks; where the store has one of its own, wall time is what that one says."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.time

    def follow(self, now: float) -> None:
        """The store says that it is `now`: count on from there, whatever happens to the wall clock of this machine."""
        ahead = now - time.monotonic()
        self.now = lambda: time.monotonic() + ahead


def boot_id() -> str:
    """Changes when the machine restarts; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _host() -> str:
    """The name of this machine. To load sockets for it would take a twentieth of our import."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket

    return socket.gethostname()


def _namespace() -> str:
    """Pids mean nothing across containers: the pid namespace is part of who we are."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return _host()


def _started(pid: int) -> str:
    """When a process started, in ticks since boot: tells a reused pid from the process we knew."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a corpse that nobody has reaped runs nothing any more
    except (OSError, IndexError):
        return ""


def process_name() -> str:
    """This process, as no other of this machine is called since it booted."""
    pid = os.getpid()
    return f"{pid}-{_started(pid) or 0}"


def owner_id() -> str:
    """Who holds a lease: host, boot, namespace, pid, start, and a number: two apps of one process are two."""
    pid = os.getpid()
    return "|".join((_host(), boot_id(), _namespace(), str(pid), _started(pid), str(next(_numbers))))


def short_name(owner: str) -> str:
    """An owner as people call it: host:pid."""
    parts = owner.split("|")
    return f"{parts[0]}:{parts[3]}" if len(parts) > 3 else owner


def is_dead(owner: str) -> bool:
    """Is this owner a process of this machine that no longer exists? False when nobody can tell."""
    try:
        host, boot, namespace, pid, started, _ = owner.split("|")
        if (host, boot, namespace) != (_host(), boot_id(), _namespace()) or not boot:
            return False
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError, OverflowError):
        return False
    return started != _started(int(pid))


@dataclass(slots=True)
class Env:
    """What an engine is given: clocks, dice, and who it is."""

    clock: Clock = field(default_factory=SystemClock)
    dice: random.Random = field(default_factory=random.Random)
    owner: str = field(default_factory=owner_id)
    boot: str = field(default_factory=boot_id)

    def owner_is_dead(self, owner: str) -> bool:
        """May a lease be taken before it lapses?"""
        return is_dead(owner)
