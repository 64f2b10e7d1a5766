"""What a store is called, with and without its password."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize(
    ("broken", "advice"),
    [
        ("os.environ['PSYCOPG_IMPL'] = 'c'; sys.modules['psycopg_c'] = None", "pip install 'psycopg[binary]'"),
        ("sys.modules['psycopg_pool'] = None", "pip install 'redrive[postgres]'"),
    ],
    ids=["no libpq", "no pool"],
)
def test_missing_driver_is_an_error_that_names_the_package(broken: str, advice: str) -> None:
    """A raw ImportError of psycopg's had a traceback of forty lines."""
    program = (
        f"import os, sys; {broken}; from redrive.cli import main; main(['status', '--store', 'postgresql://db/x'])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert advice in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    as_program = f"import os, sys; {broken}; import redrive; redrive.App('postgresql://db/x').log('a').append('b')"
    ran = subprocess.run([sys.executable, "-c", as_program], capture_output=True, text=True, check=False)
    assert advice in ran.stderr.splitlines()[-1]
    assert ran.stderr.count("Traceback") == 1
