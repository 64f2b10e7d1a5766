"""The fault proxy: each fault happens at its place, and everything before it arrives."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from redrive import UsageError
from redrive.testing import FaultProxy

SECONDS_MAX = 60.0


class Echo:
    """A server that answers each line with `<line>!`, and keeps what it was sent."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.heard: list[bytes] = []
        self.news = threading.Condition()
        self.ends: list[str] = []  # how connections ended
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        end = "closed"
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    with self.news:
                        self.heard.append(line.rstrip())
                        self.news.notify_all()
                    connection.sendall(line.rstrip() + b"!\n")
            except OSError:
                end = "reset"
        with self.news:
            self.ends.append(end)
            self.news.notify_all()

    def wait(self, condition: Any) -> None:
        with self.news:
            assert self.news.wait_for(condition, SECONDS_MAX)

    def close(self) -> None:
        if self._listening.fileno() >= 0:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()


class Caller:
    """A program with one connection."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.connection = socket.create_connection(("127.0.0.1", proxy.port), SECONDS_MAX)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def say(self, text: str) -> None:
        self.connection.sendall(text.encode())

    def hear(self) -> str:
        """One line, or what came of it; "" if the connection was ended in an orderly way."""
        got = bytearray()
        while not got.endswith(b"\n") and (more := self.connection.recv(65_536)):
            got += more
        return got.decode().rstrip()

    def ask(self, text: str) -> str:
        self.say(f"{text}\n")
        return self.hear()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.address) as proxy:
        yield proxy


@pytest.fixture
def call(proxy: FaultProxy) -> Iterator[Callable[[], Caller]]:
    """Make connections; they are closed at the end."""
    with ExitStack() as made:
        yield lambda: made.enter_context(Caller(proxy))


@pytest.fixture
def caller(call: Callable[[], Caller]) -> Caller:
    return call()


def test_without_a_fault_everything_passes(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    assert [caller.ask(text) for text in ("a", "b")] == ["a!", "b!"]
    long = "x" * 1_000_000
    assert caller.ask(long) == f"{long}!"
    assert (proxy.accepted, proxy.open_connections) == (1, 1)
    caller.connection.close()
    echo.wait(lambda: echo.ends == ["closed"])


def test_a_cut_now_ends_what_is_open_and_nothing_else(
    call: Callable[[], Caller], caller: Caller, echo: Echo, proxy: FaultProxy
) -> None:
    caller.ask("a")
    assert proxy.cut().fired
    with pytest.raises(ConnectionResetError):
        caller.ask("b")
    echo.wait(lambda: echo.ends == ["reset"])
    assert call().ask("c") == "c!"
    assert echo.heard == [b"a", b"c"]


def test_an_orderly_cut_is_the_end_of_the_file(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    caller.ask("a")
    proxy.cut(reset=False)
    assert caller.hear() == ""
    echo.wait(lambda: echo.ends == ["closed"])


@pytest.mark.parametrize("reset", [True, False])
def test_so_many_bytes_pass_and_no_more(caller: Caller, echo: Echo, proxy: FaultProxy, reset: bool) -> None:
    cut = proxy.cut(on="replies", after_bytes=5, reset=reset)
    assert caller.ask("a") == "a!"
    caller.say("bcd\n")
    cut.wait()
    assert caller.connection.recv(2) == b"bc"
    if reset:
        with pytest.raises(ConnectionResetError):
            caller.hear()
    else:
        assert caller.hear() == ""
    assert echo.heard == [b"a", b"bcd"], "the request had arrived"


def test_a_request_that_is_cut_in_the_middle_arrives_in_part(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    cut = proxy.cut(after_bytes=2, reset=False)
    caller.say("abcd\n")
    cut.wait()
    echo.wait(lambda: echo.ends == ["closed"])
    assert echo.heard == [b"ab"]


def test_the_nth_request_does_not_arrive(
    call: Callable[[], Caller], caller: Caller, echo: Echo, proxy: FaultProxy
) -> None:
    cut = proxy.cut(nth=3)
    assert [caller.ask(text) for text in ("a", "b")] == ["a!", "b!"]
    assert not cut.fired
    with pytest.raises(ConnectionResetError):
        caller.ask("c")
    assert cut.fired
    echo.wait(lambda: echo.ends != [])
    assert echo.heard == [b"a", b"b"]
    assert call().ask("d") == "d!", "once"


def test_bytes_are_found_wherever_they_are_split(call: Callable[[], Caller], echo: Echo, proxy: FaultProxy) -> None:
    for split in range(1, len("COMMIT")):
        caller, before = call(), len(echo.ends)
        cut = proxy.cut(holding=b"COMMIT", nth=2)
        assert caller.ask("COMMIT") == "COMMIT!"
        caller.say(f"xCOMM\nIT{'COMMIT'[:split]}")
        assert caller.hear() == "xCOMM!"
        assert not cut.fired
        caller.say("COMMIT"[split:])
        cut.wait()
        echo.wait(lambda: len(echo.ends) > before)  # noqa: B023
    assert b"COMMITCOMMIT" not in b"".join(echo.heard)


def test_what_comes_before_the_bytes_passes(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    proxy.cut(holding=b"stop", reset=False)
    caller.say("a\nb\nstop\nc\n")
    echo.wait(lambda: echo.ends != [])
    assert echo.heard == [b"a", b"b"]


def test_a_lost_reply_is_one_whose_request_has_arrived(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    lost = proxy.lose_reply(holding=b"b")
    assert caller.ask("a") == "a!"
    with pytest.raises(ConnectionResetError):
        caller.ask("b")
    assert lost.fired
    assert echo.heard == [b"a", b"b"]


def test_an_answer_that_a_cut_forestalls_is_lost_as_well(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    lost, seen = proxy.lose_reply(holding=b"half"), proxy.stall(holding=b"line")
    caller.say("half a line")
    seen.wait()
    assert not lost.fired
    proxy.cut()
    lost.wait()


def test_a_reply_that_is_lost_in_silence_never_comes_and_its_connection_does_not_come_back(
    caller: Caller, echo: Echo, proxy: FaultProxy
) -> None:
    lost = proxy.lose_reply(nth=2, silent=True)
    assert caller.ask("a") == "a!"
    caller.say("b\nc\n")
    lost.wait()
    echo.wait(lambda: echo.heard == [b"a", b"b", b"c"])
    caller.connection.settimeout(0.05)
    with pytest.raises(TimeoutError):
        caller.hear()
    proxy.heal()
    caller.connection.settimeout(SECONDS_MAX)
    with pytest.raises(ConnectionResetError):
        caller.hear()


@pytest.mark.parametrize("at", ["all", "a place"])
def test_a_stall_holds_what_comes_and_lets_it_arrive_late(
    call: Callable[[], Caller], proxy: FaultProxy, echo: Echo, at: str
) -> None:
    stall = proxy.stall() if at == "all" else proxy.stall(holding=b"b")
    caller = call()  # is let in, all the same
    caller.say("a\nb\n")
    stall.wait()
    if at == "a place":
        assert caller.hear() == "a!"
    caller.connection.settimeout(0.05)
    with pytest.raises(TimeoutError):
        caller.hear()
    assert echo.heard == ([] if at == "all" else [b"a"])
    caller.connection.close()  # who has waited long enough goes; what it has said is under way
    proxy.heal()
    echo.wait(lambda: echo.heard == [b"a", b"b"])


def test_replies_are_held_while_requests_arrive(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    proxy.stall(on="replies")
    caller.say("a\n")
    echo.wait(lambda: echo.heard == [b"a"])
    proxy.heal()
    assert caller.hear() == "a!"


def test_a_cut_while_it_stalls_takes_what_is_held_with_it(caller: Caller, echo: Echo, proxy: FaultProxy) -> None:
    stall = proxy.stall(holding=b"b")
    caller.say("a\nb\n")
    stall.wait()
    assert caller.hear() == "a!"
    proxy.cut(reset=False)
    echo.wait(lambda: echo.ends == ["closed"])
    proxy.heal()
    assert echo.heard == [b"a"]


def test_every_packet_is_late(caller: Caller, proxy: FaultProxy) -> None:
    caller.ask("a")
    proxy.delay(0.02)
    began = time.monotonic()
    assert [caller.ask(text) for text in "bc"] == ["b!", "c!"]
    assert time.monotonic() - began >= 4 * 0.02
    proxy.heal()
    proxy.delay(0.02, on="replies")
    began = time.monotonic()
    assert caller.ask("d") == "d!"
    assert time.monotonic() - began >= 0.02


def test_new_connections_are_refused_and_the_port_stays_ours(
    call: Callable[[], Caller], caller: Caller, proxy: FaultProxy
) -> None:
    caller.ask("a")
    for _ in range(3):
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            call()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", proxy.port))
        assert caller.ask("b") == "b!"
        proxy.heal()
        assert call().ask("c") == "c!"


def test_a_server_that_is_gone_resets_who_comes(
    call: Callable[[], Caller], caller: Caller, echo: Echo, proxy: FaultProxy
) -> None:
    assert caller.ask("a") == "a!"
    echo.close()
    with pytest.raises(ConnectionResetError):
        call().ask("b")


def test_healing_disarms(caller: Caller, proxy: FaultProxy) -> None:
    cut, lost = proxy.cut(holding=b"a"), proxy.lose_reply(holding=b"a")
    proxy.heal()
    assert caller.ask("a") == "a!"
    assert not (cut.fired or lost.fired)
    with pytest.raises(TimeoutError, match="nothing came by its place"):
        cut.wait(0.001)


def test_addresses_keep_everything_but_the_place(proxy: FaultProxy) -> None:
    port = proxy.port
    assert proxy.at("redis://localhost:6379/3?socket_timeout=1") == f"redis://127.0.0.1:{port}/3?socket_timeout=1"
    assert proxy.at("postgresql://me:secret@db:5432/shop") == f"postgresql://me:secret@127.0.0.1:{port}/shop"
    assert proxy.at("http://localhost/hook") == f"http://127.0.0.1:{port}/hook"


@pytest.mark.parametrize("target", ["localhost", "redis://localhost/0", ""])
def test_a_target_without_a_port_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match="names no server"):
        FaultProxy(target)


@pytest.mark.parametrize("place", [{"nth": 0}, {"after_bytes": 0}, {"holding": b""}, {"after_bytes": 3, "nth": 2}])
def test_a_place_that_is_none_is_refused(proxy: FaultProxy, place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a fault happens"):
        proxy.cut(**place)
