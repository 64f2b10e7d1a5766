"""Where tests keep their files: on a memory disk, if there is one with room. What they prove needs no fsync."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 16 << 20  # bytes, for the database of a test


def in_memory(room: int, *, programs: bool = False) -> Path | None:
    """The memory disk, if it has so many bytes to give and, if asked, lets programs run; a container's has 64 MB."""
    try:
        disk = os.statvfs(MEMORY)
    except OSError:  # there is none on this system
        return None
    has_room = disk.f_bavail * disk.f_frsize >= room and os.access(MEMORY, os.W_OK | os.X_OK)
    return MEMORY if has_room and not (programs and disk.f_flag & os.ST_NOEXEC) else None
