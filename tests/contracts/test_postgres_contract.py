"""The Postgres store keeps the contract that we ship."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from redrive.store.postgres import PostgresStore
from redrive.testing.contracts import StoreContract
from redrive.testing.servers import Databases


class TestPostgresStore(StoreContract):
    inline = False
    databases: ClassVar[Databases]
    urls: ClassVar[dict[Path, str]] = {}  # by the folder of a test, which finds its database again

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, postgres: Databases) -> None:
        cls.databases = postgres

    def make_store(self, folder: Path) -> PostgresStore:
        if folder not in self.urls:
            self.urls[folder] = self.databases.make()
        return PostgresStore(self.urls[folder], inline=self.inline)

    def teardown_method(self) -> None:
        super().teardown_method()
        self.databases.drop(self.urls.pop(self._folder))


class TestInlinePostgresStore(TestPostgresStore):
    """As the harness uses it: every job in the caller's thread."""

    inline = True
