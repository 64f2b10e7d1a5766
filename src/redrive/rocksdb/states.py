"""RocksDB as a place for `ctx.state`: named by a program, opened by whoever owns the subscription."""

from __future__ import annotations

import os
from pathlib import Path

from redrive.errors import UsageError
from redrive.store.port import StoreTx
from redrive.store.states import Keeper, Owner, States


class RocksDB(States):
    """The folder `path` on this machine; several subscriptions may share it.

    >>> RocksDB("state.rocks").path.name
    'state.rocks'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise UsageError("RocksDB(path) takes the folder where state is kept")
        self.path = Path(path)

    def open(self, tx: StoreTx, owner: Owner) -> Keeper:
        """Take what the store says counts, and take back what does not."""
        try:
            from redrive.rocksdb.folder import open_keeper
        except ImportError as error:
            raise UsageError("state in RocksDB needs another package: pip install 'redrive[rocksdb]'") from error
        return open_keeper(tx, owner, self.path)

    def __repr__(self) -> str:
        return f"RocksDB({str(self.path)!r})"
