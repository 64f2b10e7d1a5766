"""What a store is called, with and without its password."""

from __future__ import annotations

import pytest

from redrive.store.address import is_postgres, shown


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:hunter2@db/shop",
        "postgres://ada:hun:ter%40hunter2@db:5432/shop?sslmode=require",
        "postgresql://ada:hunter2/@?hunter2@db/shop",
        "postgresql://db/shop?user=ada&password=hunter2&sslpassword=hunter2",
        "host=db password=hunter2 user=ada",
        r"host=db password='hunter2 \' hunter2' user=ada",
    ],
)
def test_no_password_is_shown(address: str) -> None:
    assert "hunter2" not in shown(address)
    assert "***" in shown(address)
    assert "db" in shown(address)


@pytest.mark.parametrize("address", ["shop.db", "sqlite:///shop.db", "postgresql://ada@db/shop", "postgresql:///shop"])
def test_what_holds_no_password_is_shown_as_it_is(address: str) -> None:
    assert shown(address) == address


def test_which_addresses_are_postgres() -> None:
    assert [is_postgres(url) for url in ("postgres://x", "postgresql://x", "shop.db", "sqlite:///x", "postgresql")] == [
        True, True, False, False, False,
    ]  # fmt: skip
