"""The pooled client, on aiohttp. Imported when the first request is made; nothing else may import it earlier.

Its resolver is ours, so what is checked is what is connected to: a name cannot lead to one address when it is looked
at and to another when it is used.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

import aiohttp
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict
from yarl import URL

from redrive.sinks.addresses import Address, check_ip, literal
from redrive.sinks.deadlines import Deadlines
from redrive.sinks.http import ANSWER_BYTES_MAX, CONNECTIONS_MAX, Answer, NoAnswer, Unreachable
from redrive.units import show_duration
from redrive.version import VERSION

# Many servers end an idle connection after 5 s; a request that meets that end is an error that nobody needs.
_KEEP_ALIVE_S = 4.0
_READ_BYTES_MAX = 16_384  # at once; most answers are shorter, and the rest is read next
_FIXED = CIMultiDict({"user-agent": f"redrive/{VERSION}", "accept-encoding": "identity"})


def was_read(release: str) -> bool:
    """Do we know what a session of this release of aiohttp does about a POST? What lies below it may change.

    A fifth of a request's time goes there: redirects, cookies, proxies, traces, all of which are off here.
    """
    return release.startswith(("3.12.", "3.13.", "3.14."))


goes_by_itself = was_read(aiohttp.__version__)


class PublicResolver(AbstractResolver):
    """Looks names up and refuses those that lead to an address that is not public."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of the host, if all of them are public: one that is not makes the name suspect."""
        found = await self._resolver.resolve(host, port, family)
        for one in found:
            check_ip(ip_address(one["host"].partition("%")[0]), host)
        return found

    async def close(self) -> None:
        """End the lookups."""
        await self._resolver.close()


class AnswerSocket(socket.socket):
    """Reads little at once. For the 256 KiB that asyncio asks for, memory comes from the kernel and goes back to it.

    That is three system calls and a page fault for every answer, and while another thread works all cores hear of it.
    """

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """What has come, up to our limit."""
        return _recv(self, min(_READ_BYTES_MAX, size), flags)


_recv = socket.socket.recv


def _socket(info: AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = info
    return AnswerSocket(family, kind, protocol)


class Pool:
    """Connections that are kept, with the rules of the house. Belongs to the event loop it was made in."""

    def __init__(
        self, timeout: float, connect_timeout: float, allow_private: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout, self._allow_private = timeout, allow_private
        lookup: AbstractResolver = aiohttp.ThreadedResolver()
        connector = aiohttp.TCPConnector(
            limit=CONNECTIONS_MAX, keepalive_timeout=_KEEP_ALIVE_S, ssl=tls if tls is not None else True,
            resolver=lookup if allow_private else PublicResolver(lookup), socket_factory=_socket,
        )  # fmt: skip
        self._session = aiohttp.ClientSession(
            connector=connector, headers=_FIXED, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=connect_timeout), trust_env=False,
        )  # fmt: skip
        # How long all of it takes is watched here: aiohttp would set a timer for each.
        self._deadlines = Deadlines(timeout)
        self._unwatched = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)

    def is_mine(self) -> bool:
        """Is this the loop that the connections live in?"""
        return self._loop is asyncio.get_running_loop()

    async def close(self) -> None:
        """End all connections."""
        self._deadlines.close()
        await self._session.close()

    async def request(self, method: str, address: Address, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request, one answer; no redirect is followed and no POST is tried again."""
        url = _url(address.url)
        if not self._allow_private:
            ip = literal(url.host or "")  # aiohttp asks no resolver about these
            if ip is not None:
                check_ip(ip, address.host)
        if address.authorization is not None:
            headers = {"authorization": address.authorization, **headers}
        deadlines, response, parts = self._deadlines, None, list[bytes]()
        task = deadlines.begin()
        try:
            if method == "POST" and goes_by_itself:
                response = await self._post(url, headers, body)
            else:
                response = await self._session.request(
                    method, url, headers=headers, data=body or None, allow_redirects=False, timeout=self._unwatched
                )
            if response.content.at_eof():  # most receipts are empty, and have given their connection back by now
                return Answer(response.status, response.headers, b"", True)
            async with response:
                complete = await _read(response, parts)
            return Answer(response.status, response.headers, b"".join(parts)[:ANSWER_BYTES_MAX], complete)
        except TimeoutError:
            raise self._no_answer(address) from None
        except asyncio.CancelledError:
            if not deadlines.is_late(task):
                raise
            if response is None:
                raise self._no_answer(address) from None
            return Answer(response.status, response.headers, b"".join(parts)[:ANSWER_BYTES_MAX], False)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{address.origin}: {_why(error)}") from None  # theirs may quote the URL
        finally:
            deadlines.end(task)

    async def _post(self, url: URL, headers: Mapping[str, str], body: bytes) -> aiohttp.ClientResponse:
        """What a session would do; see `was_read`."""
        session, merged = self._session, _FIXED.copy()
        merged.update(headers)
        request = aiohttp.ClientRequest(
            "POST", url, headers=merged, data=body or None, loop=self._loop, session=session
        )  # fmt: skip
        assert session.connector is not None, "the pool is closed"
        connection = await session.connector.connect(request, traces=[], timeout=self._unwatched)
        try:
            assert connection.protocol is not None
            connection.protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            response = await request.send(connection)
            try:
                return await response.start(connection)
            except BaseException:
                response.close()
                raise
        except BaseException:
            connection.close()
            raise

    def _no_answer(self, address: Address) -> NoAnswer:
        return NoAnswer(f"{address.origin} did not answer within {show_duration(self._timeout)}")


_url = lru_cache(1_024)(URL)


async def _read(response: aiohttp.ClientResponse, parts: list[bytes]) -> bool:
    """The body up to the limit. The status has come: what is wrong with the rest does not change it."""
    size = 0
    try:
        while size <= ANSWER_BYTES_MAX and (part := await response.content.readany()):
            parts.append(part)
            size += len(part)
    except (aiohttp.ClientError, TimeoutError, OSError):
        response.close()
        return False
    if size > ANSWER_BYTES_MAX:
        response.close()  # the rest is not worth the connection
        return False
    return True


def _why(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            reason = getattr(getattr(error, "os_error", error), "verify_message", "") or "the handshake failed"
            return f"its certificate or its TLS is not accepted: {reason}"
        case aiohttp.ClientConnectorError():
            return "the name cannot be looked up" if _is_lookup(error) else _errno(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before an answer came"
        case OSError():
            return _errno(error)
        case _:
            return f"the answer is not HTTP that can be read ({type(error).__name__})"


def _is_lookup(error: aiohttp.ClientConnectorError) -> bool:
    """Newer releases have a class for it; in older ones its cause tells."""
    return isinstance(error.os_error, socket.gaierror) or type(error).__name__ == "ClientConnectorDNSError"


def _errno(error: OSError) -> str:
    number = error.errno or 0  # negative, or none, where it is not the system that speaks
    return os.strerror(number) if number > 0 else type(error).__name__
