"""What a running worker answers over HTTP, what it refuses, and that none of it can stop the work."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from redrive import App
from redrive.observe import http as ours
from redrive.observe.http import REQUESTS_MAX, Answer, answering
from redrive.settings import Settings
from redrive.watch import Pages, serving


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    app = App(str(tmp_path / "shop.db"), settings=Settings(http="127.0.0.1:0"))
    app.on(app.log("orders"), start="first", name="charge")(lambda event, ctx: None)
    app.log("orders").append("order.placed")
    yield app
    app.close()


@contextmanager
def page(answer: Any) -> Iterator[int]:
    with answering("127.0.0.1", 0, {"/page": answer}) as (_, port):
        yield port


def test_a_worker_answers_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from redrive import App, Reject\n"
        "app = App('shop.db')\n"
        "@app.on(app.log('orders'), start='first')\n"
        "def charge(event, ctx):\n"
        "    raise Reject('no')\n"
        "app.log('orders').append('order.placed')\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    worker = subprocess.Popen(
        [sys.executable, "-m", "redrive.cli", "run", "shop:app"], cwd=tmp_path, text=True, stderr=subprocess.PIPE,
        env=environ | {"REDRIVE_HTTP": "127.0.0.1:0"},
    )  # fmt: skip
    assert worker.stderr is not None
    said = ""
    for line in worker.stderr:
        said += line
        if "buried" in line:
            break
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
    assert found is not None, said
    port = int(found[1])
    try:
        status, text = get(port, "/metrics")
        assert status == 200
        assert 'redrive_buried_total{reason="rejected",subscription="charge"} 1.0' in text
        assert 'redrive_owned{subscription="charge"} 1.0' in text
        assert get(port, "/livez")[0] == 200
        status, text = get(port, "/readyz")
        assert (status, json.loads(text)["ready"]) == (200, "ready")
        status, text = get(port, "/healthz?verify=1")
        assert (status, json.loads(text)["healthy"]) == (200, True)
        assert [check["check"] for check in json.loads(text)["checks"]][-1] == "ledger"
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    assert worker.returncode == 0


def test_what_is_wrong_is_not_green(shop: App) -> None:
    pages = Pages(shop)
    assert pages.healthz({}).status == 200
    assert pages.readyz({}).status == 503  # nothing runs here
    shop.runtime.signals.dropped = 1
    answer = pages.healthz({})
    assert answer.status == 503
    assert [check["check"] for check in json.loads(answer.body)["checks"] if not check["ok"]] == ["signals"]
    assert pages.livez({}).status == 200  # a restart would not help


def test_a_violation_stays_in_sight_and_is_looked_for_at_most_once_a_minute(
    shop: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(until_idle=True)
    pages = Pages(shop)
    assert pages.healthz({"verify": ["1"]}).status == 200
    with shop.runtime.store.transaction() as tx:
        tx.execute("UPDATE redrive_progress SET applied = 7")
    assert pages.healthz({"verify": ["1"]}).status == 200  # the last look is too young
    monkeypatch.setattr("redrive.watch.VERIFY_SECONDS_MIN", 0.0)
    assert pages.healthz({"verify": ["1"]}).status == 503
    assert pages.healthz({}).status == 503
    with shop.runtime.store.transaction() as tx:
        tx.execute("UPDATE redrive_progress SET applied = 1")
    assert pages.healthz({"verify": [""]}).status == 200


def test_without_the_library_the_page_says_what_to_install(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = Pages(shop).metrics({})
    assert (answer.status, answer.body) == (501, b"metrics need prometheus-client: pip install 'redrive[metrics]'\n")


def test_a_port_that_is_taken_stops_nothing_and_says_what_to_do(shop: App, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        shop.runtime.use(Settings(http=address))
        with serving(shop) as where:
            assert where is None
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert address in record.message and "REDRIVE_HTTP=" in record.message and 'http = "off"' in record.message


def test_it_can_be_switched_off(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "answering", None)
    shop.runtime.use(Settings(http="off"))
    with serving(shop) as where:
        assert where is None


def test_it_can_answer_on_ipv6(shop: App) -> None:
    shop.runtime.use(Settings(http="[::1]:0"))
    with serving(shop) as where:
        assert where is not None
        connection = http.client.HTTPConnection("::1", where[1], timeout=20)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()


def test_an_unknown_page_names_those_that_exist(shop: App) -> None:
    with serving(shop) as where:
        assert where is not None
        assert get(where[1], "/etc/passwd") == (
            404, "there is no such page; there are /metrics /livez /readyz /healthz\n"
        )  # fmt: skip


def test_only_get_and_head_are_answered() -> None:
    with page(lambda query: Answer(200, "text/plain", b"yes")) as port:
        assert get(port, "/page") == (200, "yes")
        assert get(port, "/page", "HEAD") == (200, "")
        assert get(port, "/page", "POST")[0] == 501
        assert get(port, "/page", "DELETE")[0] == 501


def test_requests_that_are_too_large_are_refused() -> None:
    with page(lambda query: Answer(200, "text/plain", b"yes")) as port:
        assert get(port, "/page?" + "x" * 70_000)[0] == 414
        assert get(port, "/page", more="x" * 70_000)[0] == 431


def test_a_page_that_fails_is_logged_and_the_next_request_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def fail(query: Any) -> Answer:
        raise RuntimeError("secret")

    with page(fail) as port:
        for _ in range(2):
            assert get(port, "/page") == (500, "it failed; the log says why\n")
    assert "secret" in caplog.text


def test_clients_that_dawdle_are_bounded_and_hold_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = [], Event()

    def slow(query: Any) -> Answer:
        entered.append(1)
        leave.wait(20)
        return Answer(200, "text/plain", b"yes")

    statuses: list[int] = []
    with page(slow) as port:
        clients = [Thread(target=lambda: statuses.append(get(port, "/page")[0])) for _ in range(REQUESTS_MAX)]
        for client in clients:
            client.start()
        while len(entered) < REQUESTS_MAX:
            assert not leave.wait(0.001)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            get(port, "/page")
        leave.set()
        for client in clients:
            client.join()
        assert statuses == [200] * REQUESTS_MAX
        assert get(port, "/page") == (200, "yes")
        silent = socket.create_connection(("127.0.0.1", port))  # says nothing; the block ends all the same
    silent.close()


def test_idle_connections_do_not_keep_probes_from_being_answered() -> None:
    """Eight of them made /livez fail, and Kubernetes restart the process."""
    said = {path: lambda query: Answer(200, "text/plain", b"yes") for path in ("/livez", "/readyz", "/metrics")}
    with ExitStack() as clients, answering("127.0.0.1", 0, said) as (_, port):
        for _ in range(3 * ours.CONNECTIONS_PER_ADDRESS_MAX):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        for path in said:
            assert get(port, path) == (200, "yes")


def test_probes_are_answered_while_all_other_requests_are_stuck() -> None:
    entered, leave = [], Event()

    def stuck(query: Any) -> Answer:
        entered.append(1)
        leave.wait(20)
        return Answer(200, "text/plain", b"late")

    def prompt(query: Any) -> Answer:
        return Answer(200, "text/plain", b"yes")

    with answering("127.0.0.1", 0, {"/livez": prompt, "/readyz": stuck, "/metrics": stuck}) as (_, port):
        paths = ["/metrics"] * REQUESTS_MAX + ["/readyz"] * ours.PROBES_MAX
        clients = [Thread(target=get, args=(port, path)) for path in paths]
        for client in clients:
            client.start()
        while len(entered) < len(paths):
            assert not leave.wait(0.001)
        for path in ("/metrics", "/readyz"):
            with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
                get(port, path)
        assert get(port, "/livez") == (200, "yes")
        leave.set()
        for client in clients:
            client.join()


def test_one_address_does_not_close_the_connections_of_another() -> None:
    pages = {"/page": lambda query: Answer(200, "text/plain", b"yes")}
    with answering("127.0.0.1", 0, pages, monotonic=lambda: 0.0) as (_, port):
        other = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0), timeout=20)
        mine = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(ours.CONNECTIONS_MAX)]
        assert mine[0].recv(1) == b""  # the oldest of the address with too many was closed
        other.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.0 200")
        for one in (other, *mine):
            one.close()


def test_client_that_sends_its_request_slowly_is_cut_after_two_seconds() -> None:
    """One byte now and then resets the timeout of a socket, so the whole request has a time."""
    now = [100.0]
    pages = {"/page": lambda query: Answer(200, "text/plain", b"yes")}
    with answering("127.0.0.1", 0, pages, monotonic=lambda: now[0]) as (_, port):
        slow = socket.create_connection(("127.0.0.1", port), timeout=20)
        slow.sendall(b"GET /page HT")
        assert get(port, "/page")[0] == 200  # so the connection before it was accepted
        now[0] += ours.REQUEST_SECONDS_MAX - 0.5
        assert get(port, "/page")[0] == 200
        slow.sendall(b"TP/1.0\r\n")
        now[0] += 0.5
        assert get(port, "/page")[0] == 200
        assert slow.recv(100) == b""
        slow.close()


def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours._Handler, "timeout", 0.05)
    with (
        page(lambda query: Answer(200, "text/plain", b"yes")) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as silent,
    ):
        assert silent.recv(100) == b""
