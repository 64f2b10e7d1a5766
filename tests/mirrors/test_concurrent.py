"""On a server letters change in several transactions at a time, and the numbers of the changes commit in any order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from redrive import mirrors
from redrive.testing.servers import empty
from tests.mirrors.conftest import Shop, told


@pytest.fixture
def store(postgres_store: str) -> Iterator[str]:
    yield postgres_store
    empty(postgres_store)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_change_that_is_committed_late_is_not_passed_over(store: str, tmp_path: Path, ends: str) -> None:
    shop = Shop(store, mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1}
    shop.order(1)
    shop.run()
    with psycopg.connect(store) as slow:
        slow.execute("UPDATE redrive.letters SET state = 'discarded', rev = rev + 1, resolved_by = 'x' WHERE id = 1")
        shop.order(2, key="bob", kind="order.audited")
        shop.run()
        assert [letter.subscription for letter in shop.harness.letters("dead")] == ["charge", "audit"]
        assert told(tmp_path) == [(1, "dead")], "a number below is missing, and its transaction is under way"
        assert shop.lag("dead-files") == 1
        getattr(slow, ends)()
    shop.harness.advance("5s")
    assert told(tmp_path) == [(1, "dead"), *([(1, "discarded")] if ends == "commit" else []), (2, "dead")]
    shop.harness.close()
