"""No command prints a password, whatever it is asked and however the address is spelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App

SERVER = "127.0.0.1:1"  # where nothing listens
URLS = (
    f"postgresql://ada:{{}}@{SERVER}/shop",
    "postgresql://ada:{}",
    f"postgresql://ada@{SERVER}/shop?pass%77ord={{}}",
    f"postgresql://ada@{SERVER}/shop?sslpassword={{}}",
    f"postgresql:/ada:{{}}@{SERVER}/shop",
    "host=127.0.0.1 port=1 user=ada password={}",
    f"redis://:{{}}@{SERVER}",
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_unseen(text: str) -> None:
    assert "Xq7f" not in text, text
    assert "Zk9w" not in text, text


@pytest.mark.parametrize(
    "command", [("status",), ("workers",), ("doctor",), ("dlq",), ("verify",), ("status", "--json")]
)
@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:Xq7f#?Zk9w@127.0.0.1:1/shop",
        "postgresql://ada:Xq7f%Zk9w@127.0.0.1:1/shop",
        "postgresql://ada:Xq7fZk9w",
        "host=127.0.0.1 port=1 password=Xq7fZk9w",
    ],
)
def test_no_command_prints_the_password(inside: Any, command: tuple[str, ...], address: str) -> None:
    for debug in ((), ("--debug",)):
        answer = inside(*command, "--store", address, *debug)
        assert answer.code != 0
        check_unseen(answer.out + answer.err)


def test_refused_conninfo_shows_the_url_to_write(inside: Any, elsewhere: Path) -> None:
    answer = inside("status", "--store", "host=db user=ada password=Xq7fZk9w dbname=shop")
    assert answer.code == 2
    assert "write postgresql://ada:PASSWORD@db/shop, with the password" in answer.err
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("address", [url.format(f"Xq7f{middle}Zk9w") for url in URLS for middle in ("", "#", "?")])
def test_config_show_prints_no_password(inside: Any, address: str) -> None:
    for more in ((), ("--json",), ("store",)):
        answer = inside("config", "show", *more, "--store", address)
        check_unseen(answer.out + answer.err)


@pytest.mark.parametrize(
    "address",
    ["redis://:Xq7f/Zk9w@127.0.0.1:1/0/dead", "redis://:Xq7fZk9w@127.0.0.1:1", "redis://:Xq7f#Zk9w@127.0.0.1:1/0/dead"],
)
def test_import_from_redis_prints_no_password(inside: Any, elsewhere: Path, address: str) -> None:
    App("shop.db").log("orders").append("order.placed", {})
    answer = inside("dlq", "import", address, "--reason", "back", "--yes", "--store", "shop.db")
    assert answer.code != 0
    check_unseen(answer.out + answer.err)


def test_word_that_is_no_command_is_shown_without_its_password(inside: Any) -> None:
    answer = inside("postgresql://ada:Xq7fZk9w@db/shop")
    assert answer.code == 2
    check_unseen(answer.out + answer.err)
