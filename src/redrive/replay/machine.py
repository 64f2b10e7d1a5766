"""What the doctor asks of what is under the store: the file and its disk and SQLite, or the Postgres server."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from redrive.errors import StoreBusy, StoreError
from redrive.store.address import is_postgres
from redrive.store.port import Store, StoreTx

Found = tuple[str, str, str, str]  # check, state, message, advice

PAGE_BYTES = 4096
WAL_LONG = 8  # times the size at which it should have been copied back
FREE_LOW, FREE_LOW_SHARE = 1_000_000_000, 0.05  # bytes left, or share of the disk, that are worth a word
FREE_OUT = 100_000_000
PAGES_READ_MAX = 1_000_000_000  # bytes of a file whose pages are all read: about two seconds, from memory

REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "fuse.sshfs", "fuse.s3fs", "ceph", "glusterfs",
          "fuse.glusterfs", "lustre", "beegfs", "virtiofs"}  # fmt: skip
FLEETING = {"tmpfs", "ramfs"}

SAFE_SQLITE = (3, 51, 3)  # the first version whose checkpoints may race a writer
POSTGRES_MIN = 15  # the oldest major version that we say we work with


def examine_file(store: Store, checkpoint_pages: int) -> Iterator[Found]:
    """The folder of the file, the file, and the library."""
    yield from examine_machine(store.url, checkpoint_pages)
    yield from _durability(store)
    with store.reading() as tx:
        yield _sqlite(tx)
        yield _pages(tx, store.url)


def examine_server(store: Store) -> Iterator[Found]:
    """Its version, whether it takes writes, and what it does before it says that something is committed."""
    with store.reading() as tx:
        version = str(tx.sql.value("doctor_version"))
        fsync, waits = str(tx.sql.value("doctor_journal_mode")), str(tx.sql.value("doctor_synchronous"))
    if int(version.partition(".")[0]) < POSTGRES_MIN:
        yield "postgres", "problem", f"Postgres {version} is older than {POSTGRES_MIN}", "upgrade the server"
    else:
        yield "postgres", "ok", f"Postgres {version}", ""
    yield _takes_writes(store)
    if fsync != "on" or waits in ("off", "0"):
        yield (
            "durability", "problem", f"fsync is {fsync}, synchronous_commit is {waits}: a crash of the server's "
            "machine may lose what was acknowledged, and damage the database", "set both to on",
        )  # fmt: skip
    else:
        yield "durability", "ok", f"fsync on, synchronous_commit {waits}: what is acknowledged survives", ""


def _takes_writes(store: Store) -> Found:
    try:
        with store.transaction() as tx:
            tx.sql.run("done_drop", (0, 0))  # nobody has the number 0: nothing is deleted, but it is a write
    except StoreError as error:
        return "writing", "problem", str(error), "point the address at the server that takes writes"
    return "writing", "ok", "the server takes writes", ""


def _durability(store: Store) -> Iterator[Found]:
    """Asked of a connection that writes, so it takes the write lock for a moment."""
    try:
        with store.transaction() as tx:
            mode, sync = tx.sql.value("doctor_journal_mode"), tx.sql.value("doctor_synchronous")
            tx.sql.run("doctor_touch")
            tx.sql.run("meta_drop", {"name": "doctor"})
    except StoreBusy:
        yield (
            "write lock", "problem", "another process has held the write lock for longer than busy_timeout",
            "find the program that has a transaction open on the file (lsof, fuser) and end it",
        )  # fmt: skip
        return
    except StoreError as error:
        yield (
            "writing", "problem", f"the store takes no writes: {error}",
            "make room, or give the user of the workers the right to write; nothing is lost, they go on by themselves",
        )  # fmt: skip
        return
    yield "write lock", "ok", "it was free", ""
    if mode not in ("wal", "memory") or int(sync) < 2:
        yield (
            "durability", "problem", f"journal_mode is {mode}, synchronous is {sync}: a power cut may lose what was "
            "acknowledged", "let no other program change these pragmas",
        )  # fmt: skip
    else:
        yield "durability", "ok", f"journal_mode {mode}, synchronous FULL: what is acknowledged survives", ""


def _sqlite(tx: StoreTx) -> Found:
    version = str(tx.sql.value("doctor_version"))
    if tuple(int(part) for part in version.split(".")[:3]) >= SAFE_SQLITE:
        return "sqlite", "ok", f"SQLite {version}", ""
    return (
        "sqlite", "ok", f"SQLite {version} may lose commits when a checkpoint meets a writer; redrive checkpoints only "
        "under the write lock, so its own connections are safe",
        "a program that writes to this file by itself needs PRAGMA wal_autocheckpoint = 0",
    )  # fmt: skip


def _pages(tx: StoreTx, path: str) -> Found:
    """Damage shows where a page is read, which may be years later: for old events, say."""
    look = f"""run sqlite3 {shlex.quote(path)} 'PRAGMA quick_check' when the disk has time"""
    if (length := _bytes(path)) > PAGES_READ_MAX:
        return "pages", "ok", f"not looked at: the store takes {size(length)}", look
    found = str(tx.sql.value("doctor_pages"))
    if found == "ok":
        return "pages", "ok", "each was read, and makes sense", ""
    return (
        "pages", "problem", f"the file is damaged: {' '.join(found.split())}",
        "stop the workers, keep the file with its -wal and -shm as they are, and restore a backup",
    )  # fmt: skip


def examine_machine(path: str, checkpoint_pages: int, mounts: str | None = None) -> Iterator[Found]:
    """Look at the folder of the store; `mounts` is what /proc/self/mountinfo would say."""
    if path == ":memory:":
        yield "file", "warning", "the store is in memory: it ends with the process", "give it a file"
        return
    yield _file_system(path, _mounts() if mounts is None else mounts)
    yield _room(path)
    yield _wal(path, checkpoint_pages)


def _file_system(path: str, mounts: str) -> Found:
    kind = kind_of(str(Path(path).resolve()), mounts)
    if kind is None:
        return "file system", "ok", "this system does not tell its kind; it has to be a local disk", ""
    if kind in REMOTE:
        return (
            "file system", "problem", f"{kind} is a network file system: locks do not hold there, and SQLite files "
            "are damaged sooner or later", "move the store to a local disk of the machine that runs the workers",
        )  # fmt: skip
    if kind in FLEETING:
        return "file system", "problem", f"{kind} is memory: everything is gone after a restart", "use a disk"
    if kind == "overlay":
        return (
            "file system", "warning", "overlay is a container's own layer: the store is gone when the container is "
            "removed", "mount a volume for the store's folder",
        )  # fmt: skip
    return "file system", "ok", f"{kind}, local", ""


def kind_of(path: str, mounts: str) -> str | None:
    """The file system of the longest mount point that the path lies in."""
    best, kind = "", None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ").rstrip("/")
        if (path == point or path.startswith(f"{point}/")) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def room_of(url: str) -> shutil._ntuple_diskusage | None:
    """The disk under a store, as `shutil.disk_usage` sees it; None if the store is a server or in memory."""
    if is_postgres(url) or url == ":memory:":
        return None
    try:
        return shutil.disk_usage(Path(url).resolve().parent)
    except OSError:
        return None


def _room(path: str) -> Found:
    usage = shutil.disk_usage(Path(path).resolve().parent)
    shown = f"{size(usage.free)} of {size(usage.total)} are free; the store takes {size(_bytes(path))}"
    if usage.free < FREE_OUT:
        return "free space", "problem", shown, "make room now: a full disk halts every subscription (nothing is lost)"
    if usage.free < min(FREE_LOW, usage.total * FREE_LOW_SHARE):
        return "free space", "warning", shown, "make room; `redrive prune` deletes what is settled and old"
    return "free space", "ok", shown, ""


def _wal(path: str, checkpoint_pages: int) -> Found:
    length = _bytes(f"{path}-wal")
    if length > checkpoint_pages * PAGE_BYTES * WAL_LONG:
        return (
            "write-ahead log", "warning", f"it is {size(length)} long: somebody reads in one transaction for a long "
            "time, or nobody checkpoints", "end the long read transaction; a running worker then copies it back",
        )  # fmt: skip
    return "write-ahead log", "ok", f"{size(length)}; it is copied back every {checkpoint_pages:,} pages", ""


def _bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def size(count: float) -> str:
    """Bytes for people: `3.1 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
