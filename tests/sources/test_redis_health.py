"""What a server says of itself that will hurt is told when a worker starts, and by the doctor."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from streamshop import Shop, say

from redrive.cli import main
from redrive.redis import Stream
from redrive.testing.brokers import Valkey

pytestmark = pytest.mark.sqlite("the broker is asked, not the store")


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The doctor warns of a store in memory, and only what else it says is meant here."""
    return on_disk


@pytest.fixture(scope="module")
def careless() -> Iterator[Valkey]:
    """It evicts, and keeps nothing on disk."""
    server = Valkey(settings=("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"))
    yield server
    server.close()


@pytest.fixture
def client(careless: Valkey) -> Iterator[Any]:
    with redis.Redis.from_url(careless.url) as client:
        client.flushall()
        yield client


def test_a_worker_says_once_what_will_hurt(careless: Valkey, client: Any, caplog: pytest.LogCaptureFixture) -> None:
    say(client, 5)
    client.xtrim("orders", maxlen=2, approximate=False)
    shop = Shop(careless.url, None, partitions=1)
    with caplog.at_level(logging.WARNING, "redrive"):
        for _ in range(2):
            shop.harness.run_until_idle()
            shop.harness.restart()
    shop.harness.close()
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == ["redis"] * 3
    for text, words in zip(told, ("maxmemory-policy allkeys-lru", "appendonly no", "3 entries are gone"), strict=True):
        assert words in text


def test_a_careful_server_is_warned_of_nothing() -> None:
    server = Valkey(durable=True)
    assert Stream(server.url, "orders", partitions=2).warnings() == []
    server.close()


def test_a_server_that_says_nothing_of_itself_is_read_all_the_same(careless: Valkey, client: Any) -> None:
    """Hosted ones refuse CONFIG, some refuse INFO and scripts as well."""
    client.execute_command(
        "ACL", "SETUSER", "guest", "on", ">secret", "~*", "+@all", "-config", "-info", "-eval", "-xinfo|consumers"
    )
    url = careless.url.replace("redis://", "redis://guest:secret@")
    ids = say(client, 3)
    shop = Shop(url, None, min_idle=0.0)
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]
    assert shop.stream.warnings() == []
    shop.harness.close()


def test_the_doctor_asks_the_brokers_of_a_program(
    careless: Valkey,
    client: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    program = tmp_path / "shop_with_a_stream.py"
    program.write_text(
        "from redrive import App\nfrom redrive.redis import Stream\n"
        f"app = App({str(tmp_path / 's.db')!r})\n"
        f"@app.on(Stream({careless.url!r}, 'orders', partitions=1))\ndef take(event, ctx): pass\n"
        "@app.on(Stream('redis://127.0.0.1:1/0', 'gone', partitions=1))\ndef miss(event, ctx): pass\n"
        "app.log('x').append('x.y')\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--app", f"{program.stem}:app"])
    told = " ".join(capsys.readouterr().out.split())
    assert "redis:orders: the server has maxmemory-policy allkeys-lru" in told
    assert "redis:gone: ConnectionError" in told
    assert ended.value.code == 3
