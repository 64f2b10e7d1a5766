"""The Postgres store keeps the contract that we ship, on the newest major and on an older one, which many still have.

`./run.sh test` gets the older one where it can. Where there is none, every run says so in its summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest

from redrive.store.postgres import PostgresStore
from redrive.testing.contracts import StoreContract
from redrive.testing.servers import Databases, Server, find_older

OLDER = find_older()
MISSING = "NOT TESTED: there is none here; apt-get install postgresql-15, or set REDRIVE_TEST_POSTGRES_OLD to its bin"


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


class _OnAnOlder(TestPostgresStore):
    urls: ClassVar[dict[Path, str]] = {}

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        server = Server(binaries=OLDER)
        cls.databases = server.databases
        yield
        server.close()


if OLDER is not None:
    TestOlderPostgresStore = _OnAnOlder


def test_which_older_postgres_the_contract_was_tested_on(record_property: Callable[[str, str], None]) -> None:
    tested = MISSING
    if OLDER is not None:
        server = Server(binaries=OLDER)
        with psycopg.connect(server.url) as connection:
            major = connection.info.server_version // 10000
        server.close()
        assert major < 18, "it is not older than the one in the wheel"
        tested = f"Postgres {major}, in {OLDER}"
    record_property("the store's contract on an older Postgres", tested)
