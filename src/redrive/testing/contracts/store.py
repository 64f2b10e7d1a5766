"""The contract of a store: inherit it, say how to open yours, and let pytest run it.

class TestMyStore(StoreContract):
    def make_store(self, folder):
        return MyStore(folder / "my.db")
"""

from __future__ import annotations

from redrive.testing.contracts.guards import GuardContract
from redrive.testing.contracts.letters import BookContract, LetterContract
from redrive.testing.contracts.logs import LogContract, ReadingContract
from redrive.testing.contracts.progress import KeyedContract, ProgressContract
from redrive.testing.contracts.transactions import TransactionContract


class StoreContract(
    TransactionContract, LogContract, ReadingContract, ProgressContract, KeyedContract, LetterContract, BookContract,
    GuardContract,
):  # fmt: skip
    """Everything the engine asks of a store."""
