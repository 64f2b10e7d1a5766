"""Which addresses a sink may reach, judged where the connection is made."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Any

import pytest

from redrive import webhook
from redrive.policy.classify import is_permanent
from redrive.sinks import pool
from redrive.sinks.addresses import AddressRefused, check_ip, is_public, literal, parse
from redrive.testing import make_event
from redrive.testing.web import HttpServer, Reply
from tests.sinks.conftest import deliver

ORDER = make_event("order.placed")

REFUSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1", "169.254.169.254",
    "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::10.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::",
    "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "4000::1",
]  # fmt: skip
ALLOWED = [
    "8.8.8.8", "1.1.1.1", "100.128.0.1", "172.32.0.1", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
    "2606:4700:4700::1111", "2a00:1450::1",
]  # fmt: skip
ODD = ["127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "012.0.0.1", "127.0.1", "0", "0x0", "1.2.3"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_on_the_public_internet_is_refused(text: str) -> None:
    with pytest.raises(AddressRefused):
        check_ip(ip_address(text), text)
    host = f"[{text}]" if ":" in text else text
    with pytest.raises(AddressRefused):
        webhook(f"http://{host}/", name="crm")


@pytest.mark.parametrize("text", ALLOWED)
def test_what_is_on_the_public_internet_is_allowed(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("host", ODD)
def test_odd_spellings_of_an_address_are_refused_wherever_they_come_from(host: str) -> None:
    with pytest.raises(AddressRefused, match="odd spelling"):
        literal(host)
    with pytest.raises(AddressRefused):
        webhook(f"http://{host}/", name="crm")
    with pytest.raises(AddressRefused):
        deliver(webhook(lambda event: f"http://{host}/", name="crm"), ORDER)


def test_a_name_is_judged_by_what_it_resolves_to(server: HttpServer) -> None:
    port = parse(server.url).origin.rpartition(":")[2]
    with pytest.raises(AddressRefused, match="localhost") as caught:
        deliver(webhook(f"http://localhost:{port}/", name="crm"), ORDER)
    assert is_permanent(caught.value)
    deliver(webhook(f"http://localhost:{port}/", name="crm", allow_private=True), ORDER)
    assert len(server.requests) == 1


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """The machine's lookup gives these, one after the other; what was asked."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_one_private_address_among_several_makes_a_name_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(AddressRefused, match=r"hook\.example \(10\.0\.0\.1\)"):
        deliver(webhook("http://hook.example/", name="crm"), ORDER)


def test_what_was_checked_is_what_is_connected_to(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that answers otherwise the second time gets no second time."""
    port = int(parse(server.url).origin.rpartition(":")[2])
    checked: list[str] = []
    monkeypatch.setattr(pool, "check_ip", lambda ip, shown: checked.append(str(ip)))  # the server is on 127.0.0.1
    asked = resolving(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])
    deliver(webhook(f"http://hook.example:{port}/", name="crm"), ORDER)
    assert (asked, checked, len(server.requests)) == (["hook.example"], ["127.0.0.1"], 1)


def test_a_redirect_does_not_lead_into_the_house(server: HttpServer) -> None:
    server.behave = Reply(302, {"location": "http://169.254.169.254/latest/meta-data/"})
    with pytest.raises(Exception, match="redirects are not followed"):
        deliver(webhook(server.url, name="crm", allow_private=True), ORDER)
    assert len(server.requests) == 1


def test_the_pool_judges_by_itself_what_got_past_the_sink() -> None:
    async def ask(url: str) -> None:
        mine = pool.Pool(1.0, 1.0, allow_private=False)
        try:
            await mine.request("GET", parse(url), {}, b"")
        finally:
            await mine.close()

    for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", *ODD):
        with pytest.raises(AddressRefused):
            asyncio.run(ask(f"http://{host}/"))


def test_what_is_shown_of_an_address_is_its_origin() -> None:
    address = parse("https://ada:s3cret@example.com:8443/hooks/T0P?key=K1234")
    assert repr(address) == "Address(origin='https://example.com:8443', host='example.com')"
    assert address.url == "https://example.com:8443/hooks/T0P?key=K1234"
    assert parse("http://[2606:4700::1]:80/x").origin == "http://[2606:4700::1]:80"
