"""The password of a database is in no row of it, in no line of the log and in no answer of a command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from redrive import App, no_retry
from redrive.cli import main
from redrive.settings import Settings

SECRET = "Xq7fZk9w"


@pytest.fixture(params=["postgres:{}@", "postgres:{}%25%40@", "?pass%77ord={}"])
def url(postgres_url: str, request: pytest.FixtureRequest) -> str:
    """The server trusts everybody who may connect, so any password will do."""
    how = request.param.format(SECRET)
    if how.startswith("?"):
        return f"{postgres_url}{'&' if '?' in postgres_url else '?'}{how[1:]}"
    assert "postgres@" in postgres_url
    return postgres_url.replace("postgres@", how)


def rows(url: str) -> Iterator[str]:
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'redrive'").fetchall()
        assert len(tables) > 10
        for (table,) in tables:
            for (row,) in connection.execute(f'SELECT t::text FROM redrive."{table}" t').fetchall():
                yield row


def test_no_row_line_or_answer_holds_the_password(
    url: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(url, settings=Settings(http="off"))
    orders = app.log("orders")

    @app.on(orders, start="first", retry=no_retry)
    def charge(event: Any, ctx: Any) -> None:
        broken = url.replace("127.0.0.1", "127.0.0.1:x")
        try:
            psycopg.connect(broken)
        except psycopg.Error as error:
            raise OSError(f"cannot reach {broken!r}") from error

    orders.append("order.placed", {}, key="a")
    with caplog.at_level(logging.DEBUG):
        app.run(until_idle=True)
        (letter,) = app.operate("ada").letters.list("dead")
        app.operate("ada").letters.replay(letter, "try again")
        app.run(until_idle=True)
        app.operate("ada").letters.discard(app.operate("ada").letters.list("dead"), "seen")
        app.close()
    said = caplog.text
    monkeypatch.setenv("REDRIVE_STORE", url)
    for words in (
        ("status",), ("workers",), ("doctor",), ("config", "show"), ("verify",), ("ops",), ("dlq",), ("migrate",),
        ("dlq", "show", str(letter.id), "--payload"), ("explain", "orders", "1"),
    ):  # fmt: skip
        for more in ((), ("--json",)):
            with pytest.raises(SystemExit):
                main([*words, *more])
            out, err = capsys.readouterr()
            said += out + err
    assert "***" in said
    for text in (said, *rows(url)):
        assert SECRET not in text, text
