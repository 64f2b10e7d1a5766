"""Where the spool of a store is: beside a file, or in a folder that is named after the database."""

from __future__ import annotations

from pathlib import Path

from redrive.store.address import is_postgres, shown

FOLDER = "redrive-spool"  # in the working directory, for a database that has no place on this machine


def spool_of(folder: str | None, address: str) -> Path | None:
    """The folder of this store's spool files; None for a store in memory, which is gone with its process anyway."""
    if address == ":memory:":
        return None
    if folder is None and not is_postgres(address):
        return Path(f"{address}-spool").absolute()
    named = shown(address) if is_postgres(address) else str(Path(address).absolute())  # a password may change
    from hashlib import sha256  # only who tracks needs it

    return Path(folder or FOLDER).absolute() / sha256(named.encode()).hexdigest()[:16]
