"""Somebody writes: the kernel says so, where there is one that does (Linux), to who would else ask seldom.

Only a hint. It comes with the first page that is written, before there is anything to be seen, and for what we write
ourselves; where it does not come (no such kernel, a folder of another machine, nothing left of what the kernel gives
each user), whoever waits looks all the same, only later.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

IN_MODIFY = 0x2
NOTICES_BYTES = 65_536  # more than are kept: notices of one kind in a row are one


class Stir:
    """A descriptor that is readable when a file was written to since `clear`. It takes a moment to make and to end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_possible = sys.platform == "linux"

    @property
    def is_open(self) -> bool:
        """Is there a descriptor?"""
        return self._descriptor is not None

    def listens(self) -> bool:
        """Is there somebody who tells? From the first time on that it is asked, if there can be."""
        if self._is_possible and self._descriptor is None:
            self._descriptor = _watching(self._path)
            self._is_possible = self._descriptor is not None
        return self._is_possible

    def fileno(self) -> int:
        """For who waits, if somebody tells."""
        assert self._descriptor is not None
        return self._descriptor

    def clear(self) -> None:
        """What was written up to now is known."""
        if self._descriptor is not None:
            with suppress(BlockingIOError):
                os.read(self._descriptor, NOTICES_BYTES)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._is_possible = None, False


def _watching(path: str) -> int | None:
    """A descriptor of the kernel's that says when this file is written to; None if there is none to be had."""
    try:
        import ctypes  # only in a process that runs subscriptions, and is idle

        libc = ctypes.CDLL(None)
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return None
        if libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) < 0:
            os.close(descriptor)
            return None
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, a C library without it
        return None
    return descriptor
