"""The SQLite store and its log keep the contracts that we ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.store.sqlite import SqliteStore
from redrive.testing.contracts import SourceContract, StoreContract


class TestSqliteStore(StoreContract):
    def make_store(self, folder: Path) -> SqliteStore:
        return SqliteStore(str(folder / "contract.db"))


class TestInlineSqliteStore(StoreContract):
    """As the harness uses it: every job in the caller's thread."""

    def make_store(self, folder: Path) -> SqliteStore:
        return SqliteStore(str(folder / "contract.db"), inline=True)


class TestLog(SourceContract):
    def make_source(self, app: App) -> Any:
        return app.log("orders")


def test_a_contract_says_what_is_missing() -> None:
    with pytest.raises(AssertionError, match="make_store"):
        StoreContract().setup_method()
    with pytest.raises(AssertionError, match="make_source"):
        SourceContract().setup_method()
