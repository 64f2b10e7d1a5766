"""No password of any spelling is shown: in addresses, errors, logs, tracebacks, letters and the output of commands."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, UsageError, no_retry
from redrive.errors import RedriveError
from redrive.kafka import Topic
from redrive.masking import mask, mask_text
from redrive.observe.logs import JsonFormatter, TextFormatter
from redrive.runtime import store_address
from redrive.settings import Settings, load_settings
from redrive.store.postgres.connection import open_connection
from redrive.testing import Harness

FIRST, LAST = "Xq7f", "Zk9w"  # of every password: neither end of one may be seen
AWKWARD = "#?%@:/ &=';\\\"+~é\N{SNOWMAN}[]{},.$!<>*()"
SERVER = "127.0.0.1:1"  # where nothing listens

raw = st.text(alphabet=AWKWARD + "abcXYZ012", max_size=12).map(lambda middle: f"{FIRST}{middle}{LAST}")
escaped = raw.map(lambda password: quote(password, safe=""))
passwords = st.one_of(raw, escaped)

# Every place of an address where a password is written, by design or by mistake.
URLS = (
    "postgresql://ada:{}@" + SERVER + "/shop?sslmode=disable",
    "postgres://ada:{}@" + SERVER + ",127.0.0.2:1/shop",
    "postgresql://ada%3A{}@" + SERVER + "/shop",
    "postgresql://:{}@" + SERVER,
    "postgresql://ada:{}",
    "postgresql://ada:{}@/shop?host=127.0.0.1&port=1",
    "postgresql://" + SERVER + "/shop?user=ada&password={}",
    "postgresql://ada@" + SERVER + "/shop?pass%77ord={}",
    "postgresql://ada@" + SERVER + "/shop?%70%61ssword={}&connect_timeout=2",
    "postgresql://ada@" + SERVER + "/shop?sslpassword={}",
    "postgresql://ada@" + SERVER + "/shop?PassWord={}",
    "postgresql:/ada:{}@" + SERVER + "/shop",
    "ada:{}@" + SERVER + "/shop",
    "host=127.0.0.1 port=1 user=ada password={}",
    "password='{}' host=127.0.0.1",
    "dbname=shop Password = {}",
    "mysql://ada:{}@db/shop",
    "redis://:{}@" + SERVER,
    "rediss://ada:{}@" + SERVER + "/0",
    "https://ada:{}@example.com/hook",
)


def written(url: str, password: str) -> str:
    """Without any other @, what follows that of the password is the host: no program can tell them apart."""
    return url.format(password if "@" in url else password.replace("@", "%40"))


addresses = st.builds(written, st.sampled_from(URLS), passwords)


def check_unseen(text: str) -> None:
    assert FIRST not in text, text
    assert LAST not in text, text


@given(addresses)
def test_mask_hides_every_spelling_of_a_password(address: str) -> None:
    check_unseen(mask(address))


@given(addresses)
def test_no_error_of_a_store_holds_its_password(address: str) -> None:
    """The whole chain of the error is looked at: a traceback prints the causes, too."""
    try:
        found = store_address(address)
        assert found.startswith("postgres"), "a file of this name would be made"
        open_connection(found)
    except RedriveError as error:
        check_unseen("".join(traceback.format_exception(error)).partition("Traceback")[2].replace(address, ""))
        check_unseen(str(error))
    else:
        pytest.fail("nothing listens there")


@given(st.sampled_from([url for url in URLS if "://" in url and "?" not in url]), passwords)
def test_mask_text_hides_quoted_addresses(url: str, password: str) -> None:
    address = written(url, password)
    quotes = [mark for mark in "'\"" if mark not in password and "\\" not in password]
    for mark in quotes:
        check_unseen(mask_text(f"cannot connect({mark}{address}{mark}, timeout=5)\nnext line"))


@given(st.sampled_from([url for url in URLS if "://" in url]), escaped)
def test_mask_text_hides_well_formed_addresses(url: str, password: str) -> None:
    check_unseen(mask_text(f"it failed: {url.format(password)}; try again. Ask ops@example.com"))


@pytest.mark.parametrize(
    "text",
    [
        "password='Xq7f Zk9w', host=db",
        'connect(sslpassword="Xq7f\\" Zk9w")',
        "{'sasl.password': 'Xq7fZk9w', 'acks': 1}",
        '{"password": "Xq7f Zk9w"}',
        "PGPASSWORD=Xq7fZk9w psql",
        "password = 'Xq7f has no end Zk9w",
    ],
)
def test_mask_text_hides_assigned_passwords(text: str) -> None:
    check_unseen(mask_text(text))
    assert "***" in mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "GET http://localhost:8080/orders?page=2 failed",
        "see http://localhost:8080.",
        "redis://cache:6379/0 is away, ask ops@example.com",
        "postgresql://db.example:5432/shop?sslmode=require&application_name=x",
        "the password is too short: 3 of 12 characters",
        "write postgresql://ada:PASSWORD@db/shop, not host=… password=…",
        "http://host:%d/ and http://{host}:{port}/",
        "a://",
        "://",
    ],
)
def test_mask_text_keeps_text_without_secrets(text: str) -> None:
    assert mask_text(text) == text


@given(st.text(alphabet="a:/@?#&=' \n", max_size=200))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = mask_text(text)
    assert mask_text(once) == once


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://ada:Xq7f%Zk9w@db/shop", "hexadecimal"),
        ("postgresql://ada:Xq7f Zk9w@db/shop", "space"),
        ("postgresql://ada:Xq7f@Zk9w@db/shop", "@"),
        ("postgresql://ada:Xq7f/Zk9w@db/shop", "%2F"),
        ("postgresql://ada:Xq7fZk9w", "host is missing"),
        ("postgresql://ada:Xq7fZk9w@db:port/shop", "port"),
        ("postgresql://db/shop?password=Xq7f&Zk9w", "no value"),
        ("postgresql://ada:Xq7f%FFZk9w@db/shop", "UTF-8"),
        ("postgresql:ada:Xq7fZk9w@db/shop", "lacks postgresql://"),
    ],
)
def test_malformed_address_is_refused_without_its_password(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        store_address(address)
    check_unseen(str(refused.value))
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("conninfo", "url"),
    [
        ("host=db user=ada password=Xq7fZk9w dbname=shop", "postgresql://ada:PASSWORD@db/shop"),
        (r"host=db port=5433 user='ada b' password='Xq7f \' Zk9w'", "postgresql://ada%20b:PASSWORD@db:5433/"),
        ("dbname=shop", "postgresql:///shop"),
        ("password=Xq7f Zk9w host=db", "postgresql://USER:PASSWORD@HOST:5432/DBNAME"),
    ],
)
def test_conninfo_is_refused_with_the_url_to_write(
    conninfo: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App(conninfo)
    with pytest.raises(UsageError) as refused:
        app.log("orders").append("order.placed", {})
    assert f" {url}, " in str(refused.value)
    check_unseen(str(refused.value))
    assert list(tmp_path.iterdir()) == []


def test_letter_keeps_no_password_of_an_address(tmp_path: Path) -> None:
    """Neither in its message, nor in the line of source that its traceback quotes, nor in that of its cause."""
    app = App(tmp_path / "shop.db")
    orders = app.log("orders")

    @app.projection(orders, retry=no_retry)
    def failing(event: Any, tx: Any) -> None:
        try:
            raise OSError("redis://:Xq7fZk9w@cache:6379")
        except OSError as error:
            raise ValueError("cannot reach postgresql://ada:Xq7f Zk9w@db/shop") from error

    with Harness(app) as harness:
        harness.append(orders, "order.placed", {})
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        check_unseen(letter.error_message)
        assert "postgresql://ada:***@db/shop" in letter.error_message
        (attempt,) = app.operate().letters.history(letter.id)
        check_unseen(attempt.traceback)
        assert "redis://:***@cache:6379" in attempt.traceback


@pytest.mark.parametrize("formatter", [TextFormatter("%(message)s"), JsonFormatter()])
def test_log_line_holds_no_password(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("postgresql://ada:Xq7fZk9w@db/shop")
    except ValueError as error:
        record = logging.LogRecord(
            "redrive", logging.ERROR, __file__, 1, "broken: %s", ("redis://:Xq7fZk9w@h",),
            (type(error), error, error.__traceback__),
        )  # fmt: skip
    check_unseen(formatter.format(record))


def test_brokers_with_a_password_are_refused_without_it() -> None:
    with pytest.raises(UsageError, match=r"sasl\.password") as refused:
        Topic("ada:Xq7fZk9w@broker:9092", "orders")
    check_unseen(str(refused.value))


def test_setting_of_the_wrong_kind_is_refused_without_its_password(tmp_path: Path) -> None:
    address = "postgresql://ada:Xq7fZk9w@db/shop"
    file = tmp_path / "redrive.toml"
    for table in (f"store = ['{address}']", f"store = {{ url = '{address}' }}", f"http = '{address}'"):
        file.write_text(table)
        with pytest.raises(UsageError) as refused:
            load_settings(file, {})
        check_unseen("".join(traceback.format_exception(refused.value)))
    with pytest.raises(UsageError) as refused:
        Settings(store=[address])  # type: ignore[arg-type]
    check_unseen(str(refused.value))
