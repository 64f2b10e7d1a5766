"""How much of the write-ahead log has been synced: what a power cut cannot take back.

SQLite calls the operating system through tables of functions. In a process of its own a test puts a function
of ours before `xSync` of WAL files, which notes the size of the file and passes the call on.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
from typing import Any

OPEN_WAL = 0x00080000
OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class Vfs(ctypes.Structure):
    """The beginning of `struct sqlite3_vfs`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("path_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    )


class Methods(ctypes.Structure):
    """`struct sqlite3_io_methods`: the fifth function is xSync."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("before", ctypes.c_void_p * 4),
        ("sync", ctypes.c_void_p),
        ("after", ctypes.c_void_p * 13),
    )


class Syncs:
    """Watches the WAL files that this process opens from now on. `synced` is the size that certainly survives."""

    def __init__(self, path: str) -> None:
        self.wal, self.synced = f"{path}-wal", 0
        self._tables: dict[int, Methods] = {}
        library = ctypes.CDLL(_sqlite3.__file__)  # and with it the SQLite that the interpreter uses
        library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
        self._open = OPEN(vfs.open)
        self._opened, self._watched = OPEN(self._on_open), SYNC(self._on_sync)
        vfs.open = ctypes.cast(self._opened, ctypes.c_void_p).value

    def _on_open(self, vfs: int, name: int, file: int, flags: int, out: Any) -> int:
        code: int = self._open(vfs, name, file, flags, out)
        if code == 0 and flags & OPEN_WAL:
            pointer = ctypes.c_void_p.from_address(file)
            assert pointer.value is not None
            pointer.value = ctypes.addressof(self._table(pointer.value))
        return code

    def _table(self, original: int) -> Methods:
        if original not in self._tables:
            table = Methods.from_buffer_copy(Methods.from_address(original))
            self._sync = SYNC(table.sync)
            table.sync = ctypes.cast(self._watched, ctypes.c_void_p).value
            self._tables[original] = table
        return self._tables[original]

    def _on_sync(self, file: int, flags: int) -> int:
        size = os.path.getsize(self.wal)
        code: int = self._sync(file, flags)
        if code == 0:
            self.synced = max(self.synced, size)
        return code
