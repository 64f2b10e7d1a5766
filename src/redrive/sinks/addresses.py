"""Where a request goes: a URL taken apart so that its secrets stay out of sight, and which addresses are refused.

A name is judged by what it resolves to, at the moment of connecting; see `pool`. Here is only what is allowed.
What is shown of an address, anywhere, is its origin: paths and queries of webhooks are often secrets themselves.
"""

from __future__ import annotations

import base64
import re
import socket
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from redrive.errors import UsageError

URL_CHARS_MAX = 4_096  # beyond it servers refuse; and a URL may be made of an event
SECRET_CHARS_MIN = 4  # shorter pieces of a URL are not worth hiding: "/" would hide half of every answer

_ALLOWED = re.compile(r"[!-~]+")  # what a URL is made of on the wire; the rest has to be escaped by who writes it
# Tables of our own: what `ipaddress` calls private changes with the version of Python.
_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",  # where Azure answers its machines; the metadata of the others is link-local or private
        ),
    )
)  # fmt: skip
_PUBLIC_V6 = IPv6Network("2000::/3")  # all that is given out, but for documentation and for wrappings of IPv4
_NOT_PUBLIC_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")  # IPv4 behind a translator: the address inside counts

Ip = IPv4Address | IPv6Address


class AddressRefused(UsageError):
    """It leads into a private network, and nobody said `allow_private=True`."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to send: the URL without credentials, what may be shown of it, and what must not be."""

    url: str = field(repr=False)
    origin: str
    host: str
    path: str = field(repr=False)
    authorization: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def at(self, path: str) -> Address:
        """The same place, another path."""
        return Address(self.origin + path, self.origin, self.host, path, self.authorization, self.secrets)


@lru_cache(1_024)  # a tenant's URL comes again with the next event
def parse(url: str) -> Address:
    """The address of a URL; UsageError says what is wrong with it, without showing it.

    >>> parse("https://ada:s3cret@example.com/hooks/T0P")
    Address(origin='https://example.com', host='example.com')
    """
    if not isinstance(url, str):
        raise UsageError(f"a URL is text like https://example.com/hook, not {type(url).__name__}")
    if len(url) > URL_CHARS_MAX or not _ALLOWED.fullmatch(url) or "\\" in url:
        raise UsageError(
            f"the URL has {len(url):,} characters (the limit is {URL_CHARS_MAX:,}) or some that must be escaped: "
            "white space, backslashes, control characters, letters beyond ASCII"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"the URL cannot be read: {type(error).__name__}") from None  # its text quotes the URL
    if parts.scheme not in ("http", "https") or not host or parts.fragment:
        raise UsageError("a URL begins with http:// or https://, names a host, and has no #fragment")
    shown = f"[{host}]" if ":" in host else host
    origin = f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(origin + path, origin, host, path, _basic(parts), _secrets(parts))


def _basic(parts: SplitResult) -> str | None:
    if parts.username is None and parts.password is None:
        return None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _secrets(parts: SplitResult) -> tuple[str, ...]:
    """What an answer may quote and we must not repeat, longest first."""
    basic = _basic(parts)
    pieces = [parts.username, parts.password, basic and basic.split(" ")[1], *parts.path.split("/")]
    pieces += [piece for pair in parts.query.split("&") for piece in (pair.partition("=")[2], pair)]
    found = {form for piece in pieces if piece for form in (piece, unquote(piece))}
    return tuple(sorted((one for one in found if len(one) >= SECRET_CHARS_MIN), key=len, reverse=True))


@lru_cache(1_024)  # every request asks, and always about the same few
def literal(host: str) -> Ip | None:
    """The IP address that a host is written as, None if it is a name. Odd spellings (octal, decimal) are refused."""
    bare = host.strip("[]").partition("%")[0]
    try:
        return ip_address(bare)
    except ValueError:
        pass
    try:
        spelled = IPv4Address(socket.inet_aton(bare))
    except OSError:
        return None
    raise AddressRefused(f"the host is an odd spelling of {spelled}: write the address as usual")


def check_ip(ip: Ip, shown: str) -> None:
    """Refuse what is not an address of the public internet."""
    if not is_public(ip):
        where = shown if shown == str(ip) else f"{shown} ({ip})"
        raise AddressRefused(f"{where} is not a public address; if it is meant to be reached, say allow_private=True")


def is_public(ip: Ip) -> bool:
    """Whether anybody on the internet could reach it; metadata services are not counted as anybody."""
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(ip.ipv4_mapped)
        if ip in _NAT64:
            return is_public(IPv4Address(ip.packed[-4:]))
        return ip in _PUBLIC_V6 and not any(ip in network for network in _NOT_PUBLIC_V6)
    return not any(ip in network for network in _NOT_PUBLIC_V4)
