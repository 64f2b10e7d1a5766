"""State in a RocksDB folder, together with a checkpoint that says which transaction of the store it belongs to.

Each write is one synced batch: the new states, the mark of the transaction that is about to be committed, the mark of
the one before, and what the states were until then. Whoever opens the folder next compares the marks with the
store's: the same, and all of it counts; the one before, and the last batch is taken back; any other, and they are of
different moments: it halts.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from redrive.errors import Fenced, Halted, StoreError
from redrive.files import PRIVATE, create_folders, mode_of
from redrive.store.port import StoreTx
from redrive.store.states import Keeper, Owner, State, mark_of, remember_token, set_mark, token_of

VERSION_BYTES = 8
NOTHING: State = (0, b"")

_folders: dict[str, Folder] = {}  # by path: RocksDB allows one opening
_mutex = threading.Lock()


class Checkpoint(msgspec.Struct, frozen=True):
    """What a folder knows of the store, for one subscription."""

    token: str
    mark: str | None
    before: str | None  # the mark that the store has if the transaction of `mark` was not committed
    undo: dict[str, bytes | None]  # then, what the last batch has replaced; by key, None: there was nothing


class Folder:
    """An open RocksDB, shared by the keepers of this process."""

    def __init__(self, path: Path) -> None:
        self.path, self.keepers = path, dict[int, RocksKeeper]()
        create_folders(path, mode_of(PRIVATE))  # RocksDB's own files are for everybody who may enter
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._synced = WriteOptions()
        self._synced.sync = True
        try:
            self._rows = Rdict(str(path), options)
        except Exception as error:
            if "lock" in str(error).lower():
                raise Halted(f"the state in {path} is in use by another process; it is tried again") from error
            raise Halted(f"the state in {path} cannot be opened: {error}") from error

    def get(self, place: bytes) -> bytes | None:
        """One row."""
        try:
            found: bytes | None = self._rows.get(place)
        except Exception as error:
            raise StoreError(f"{self.path}: {error}") from error
        return found

    def write(self, rows: Mapping[bytes, bytes | None], without: bytes = b"") -> None:
        """All of them, or none, for good; None deletes. What begins with `without` is deleted first."""
        batch = WriteBatch(raw_mode=True)
        if without:
            batch.delete_range(without, _after(without))
        for place, row in rows.items():
            if row is None:
                batch.delete(place)
            else:
                batch.put(place, row)
        try:
            self._rows.write(batch, self._synced)
        except Exception as error:
            raise StoreError(f"{self.path}: {error}") from error

    def leave(self, keeper: RocksKeeper) -> None:
        """Who was the last to leave closes it, so that another process may open it."""
        with _mutex:
            if self.keepers.get(keeper.owner.id) is keeper:
                del self.keepers[keeper.owner.id]
            if not self.keepers and _folders.get(str(self.path)) is self:
                del _folders[str(self.path)]
                self._rows.close()


class RocksKeeper(Keeper):
    """The state of one subscription."""

    def __init__(self, folder: Folder, owner: Owner) -> None:
        self.owner = owner
        self._folder: Folder | None = folder
        number = owner.id.to_bytes(8, "big")
        self._checkpoint, self._states = b"c" + number, b"s" + number
        self._token = ""
        self._mark: str | None = None  # of the last batch that counts
        self._batches = 0
        self._undo: dict[str, bytes | None] = {}  # what the last write has replaced, until that is committed
        self._next: str | None = None  # the mark of that write

    def begin(self, tx: StoreTx) -> None:
        """Compare the two stores, and make them agree if they are of one moment."""
        token, mark = token_of(tx, self.owner.id), mark_of(tx, self.owner.id)
        raw = self._rows.get(self._checkpoint)
        found = None if raw is None else msgspec.msgpack.decode(raw, type=Checkpoint)
        if found is None and mark is not None:
            raise Halted(self._explained(f"the folder is new, and the store knows of state in it ({mark})"))
        if found is not None and found.token != token:
            raise Halted(
                f"{self.owner.name}: the state in {self._rows.path} belongs to another store. Give RocksDB(…) a folder "
                "of its own, or delete this one if nobody needs it"
            )
        self._token, self._mark = token or secrets.token_hex(8), mark
        if token is None:
            remember_token(tx, self.owner.id, self._token)
        if found is None:
            return
        if mark is None:  # the first batch was not committed, or there was a reset
            self._rows.write(self._said(None, {}), without=self._states)
        elif mark == found.before and mark != found.mark:
            self._rows.write({**self._placed(found.undo), **self._said(mark, {})})
        elif mark != found.mark:
            raise Halted(self._explained(f"the store says {mark}, the folder {found.mark} after {found.before}"))

    def load(self, key: str) -> State:
        """As it was last committed: what a failed transaction has written is not."""
        raw = self._undo[key] if key in self._undo else self._rows.get(self._place(key))
        return NOTHING if raw is None else (int.from_bytes(raw[:VERSION_BYTES], "big"), raw[VERSION_BYTES:])

    def write(self, tx: StoreTx, states: Sequence[tuple[str, State]]) -> None:
        """One batch: what a failed transaction wrote is taken back in it."""
        if not (states or self._undo):
            return
        new = {key: _row(state) for key, state in states}
        undo = {key: self._undo[key] if key in self._undo else self._rows.get(self._place(key)) for key in new}
        mark = self._mark
        if new:
            self._batches += 1
            mark = f"epoch {self.owner.epoch}, batch {self._batches}, {secrets.token_hex(4)}"
            set_mark(tx, self.owner.id, mark)
        self._rows.write({**self._placed({**self._undo, **new}), **self._said(mark, undo)})
        self._undo, self._next = undo, mark

    def committed(self) -> None:
        """What the last write has replaced is not needed any more."""
        if self._undo:
            self._mark, self._undo = self._next, {}

    def close(self) -> None:
        """Others may open it; whoever still writes here is too late."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.leave(self)

    @property
    def _rows(self) -> Folder:
        if self._folder is None:
            raise Fenced(f"{self.owner.name}: its state is kept by another owner now")
        return self._folder

    def _said(self, mark: str | None, undo: dict[str, bytes | None]) -> dict[bytes, bytes]:
        """The checkpoint that goes with a batch."""
        said = Checkpoint(self._token, mark, self._mark, undo)
        return {self._checkpoint: msgspec.msgpack.encode(said)}

    def _placed(self, rows: Mapping[str, bytes | None]) -> dict[bytes, bytes | None]:
        return {self._place(key): row for key, row in rows.items()}

    def _place(self, key: str) -> bytes:
        return self._states + key.encode("utf-8", "surrogatepass")

    def _explained(self, what: str) -> str:
        name = self.owner.name
        return (
            f"{name}: its state in {self._rows.path} and its progress are of different moments: {what}. Was one of "
            "them restored or deleted, or is this another machine? Bring back both as they were at one moment, or run "
            f"`redrive rebuild {name}` to build the state anew"
        )


def open_keeper(tx: StoreTx, owner: Owner, path: Path) -> RocksKeeper:
    """The keeper for a new owner; one that was before it in this process can write nothing more."""
    path = path.absolute()
    with _mutex:
        folder = _folders.get(str(path))
        if folder is None:
            folder = _folders[str(path)] = Folder(path)
        former = folder.keepers.get(owner.id)
        keeper = folder.keepers[owner.id] = RocksKeeper(folder, owner)
    if former is not None:
        former.close()
    try:
        keeper.begin(tx)
    except BaseException:
        keeper.close()
        raise
    return keeper


def _row(state: State) -> bytes | None:
    version, data = state
    return version.to_bytes(VERSION_BYTES, "big") + data if data else None


def _after(prefix: bytes) -> bytes:
    """The first place that does not begin so: subscriptions are numbered, and never so high."""
    return prefix[:-8] + (int.from_bytes(prefix[-8:], "big") + 1).to_bytes(8, "big")
