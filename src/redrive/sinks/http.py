"""What the sinks that speak HTTP have in common: one pooled client, and what an answer means.

Redirects are not followed, answers are read up to a limit, certificates are checked, no proxy is asked, and private
addresses are refused unless allowed. An error names the origin and the status; never a path, a query or a credential.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Coroutine, Mapping
from datetime import UTC
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.clock import SystemClock
from redrive.errors import RetryLater, UsageError
from redrive.observe.tracing import traced
from redrive.policy.retry import seconds_of
from redrive.sinks.addresses import SECRET_CHARS_MIN, Address, check_ip, literal
from redrive.sinks.port import Sink
from redrive.units import duration, show_duration

if TYPE_CHECKING:
    from redrive.sinks.pool import Pool

ANSWER_BYTES_MAX = 65_536  # of an answer's body; receipts are short, and an endless one must not fill the memory
EXCERPT_CHARS_MAX = 200  # of an answer in an error: letters are read by people
CONNECTIONS_MAX = 100  # open at once to one sink; above any sensible concurrency, below the usual limit of descriptors
HEADERS_MAX = 50  # of the user's own; servers commonly take 100 in all
RETRY_AFTER_MAX = "1h"  # a wrong date in an answer must not park events for a year

_NAME = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]{1,100}")
_TEXT = re.compile(r"[\t\x20-\x7e]*")
# Ours to set: the client's, the signature's, and what makes it a CloudEvent.
_RESERVED = re.compile(
    r"ce-.*|webhook-.*|content-.*|transfer-encoding|host|connection|expect|te|trailer|upgrade|idempotency-key|"
    r"traceparent|tracestate|accept-encoding",
    re.IGNORECASE,
)
_clock = SystemClock()
_TRY_LATER = frozenset({429, 503})  # the answers of which Retry-After speaks


class HttpError(Exception):
    """The other side answered, and not with success; `status` says with what."""

    def __init__(self, origin: str, status: int, excerpt: str = "") -> None:
        super().__init__(f"{origin} answered {_phrase(status)}" + (f": {excerpt}" if excerpt else ""))
        self.status = status


class Busy(RetryLater):
    """The other side said when to come back (`Retry-After`)."""

    def __init__(self, origin: str, status: int, after: float) -> None:
        super().__init__(after, f"{origin} answered {_phrase(status)}: come back in {show_duration(after)}")
        self.status = status


class Unreachable(ConnectionError):
    """No answer: the connection was refused, cut, or is not to be trusted. It may have been delivered."""


class NoAnswer(TimeoutError):
    """No answer in time. It may have been delivered."""


class Answer(msgspec.Struct, frozen=True):
    """What came back. `headers` are found in any case; `complete` is False where the body was cut, endless or late."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    complete: bool

    @property
    def ok(self) -> bool:
        """Was it accepted?"""
        return 200 <= self.status <= 299


class HttpSink(Sink):
    """A sink at an HTTP address. Its connections are made by the first request and kept until `close`."""

    def __init__(
        self,
        name: str,
        *,
        timeout: str | float,
        connect_timeout: str | float,
        allow_private: bool,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(name)
        if find_spec("aiohttp") is None:
            raise UsageError(f"the sink {name!r} needs aiohttp: pip install 'redrive[http]'")
        self.timeout, self.connect_timeout = positive(timeout, "timeout"), positive(connect_timeout, "connect_timeout")
        self.allow_private, self.tls = allow_private, tls
        self._pool: Pool | None = None

    async def close(self) -> None:
        """End the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def request(
        self, method: str, address: Address, headers: Mapping[str, str], body: bytes = b""
    ) -> Coroutine[Any, Any, Answer]:
        """One request and what came back, whatever its status."""
        headers = traced(headers) or headers
        pool = self._pool
        if pool is not None and pool.is_mine():  # no coroutine of our own around it: every event comes by here
            return pool.request(method, address, headers, body)
        return self._first_request(method, address, headers, body)

    async def _first_request(self, method: str, address: Address, headers: Mapping[str, str], body: bytes) -> Answer:
        await self.close()
        from redrive.sinks.pool import Pool

        pool = self._pool or Pool(self.timeout, self.connect_timeout, self.allow_private, self.tls)
        self._pool = pool
        return await pool.request(method, address, headers, body)

    async def post(
        self, address: Address, headers: Mapping[str, str], body: bytes, hidden: tuple[str, ...] = ()
    ) -> Answer:
        """Deliver; anything but success is raised, without what is to be hidden."""
        answer = await self.request("POST", address, headers, body)
        if not answer.ok:
            raise failure(address, answer, now=_clock.now(), hidden=hidden)
        return answer

    def check_address(self, address: Address) -> Address:
        """Refuse at the start what would be refused at every request: an address that is written as a number."""
        ip = literal(address.host)
        if ip is not None and not self.allow_private:
            check_ip(ip, address.host)
        return address


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of the user's own, lower case; UsageError for those that are ours or cannot be sent."""
    if len(headers) > HEADERS_MAX:
        raise UsageError(f"{len(headers)} headers; the limit is {HEADERS_MAX}")
    for name, text in headers.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or _RESERVED.fullmatch(name):
            raise UsageError(
                f"the header {name!r} cannot be set: it is no header name, or one that redrive sets itself"
            )
        if not (isinstance(text, str) and _TEXT.fullmatch(text)):
            raise UsageError(f"the header {name!r} is not one line of ASCII text")
    return {name.lower(): text for name, text in headers.items()}


def secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """What an answer may quote of a user's headers and we must not repeat: values, and tokens in them."""
    pieces = {piece for text in headers.values() for piece in (text, *text.split())}
    return tuple(sorted(pieces, key=len, reverse=True))


def under(url: str, path: str) -> str:
    """A URL of an API from that of its server; one that is whole already stays as it is.

    >>> under("http://loki:3100/", "/v1/push"), under("http://x/v1/push", "/v1/push")
    ('http://loki:3100/v1/push', 'http://x/v1/push')
    """
    if not isinstance(url, str) or "?" in url or url.endswith(path):
        return url
    return url.rstrip("/") + path


def positive(value: str | float, name: str) -> float:
    """A duration that is not zero, as an option."""
    seconds = seconds_of(name, value)
    if not seconds:
        raise UsageError(f"{name} is zero: nothing could ever be delivered")
    return seconds


def failure(
    address: Address, answer: Answer, *, now: float, hidden: tuple[str, ...] = (), after: float | None = None
) -> HttpError | Busy:
    """The error that an answer is: `Busy` where it says when to come back, `HttpError` otherwise."""
    if after is None and answer.status in _TRY_LATER:
        after = retry_after(answer.headers.get("retry-after", ""), now)
    if after:  # zero is no advice: then the retry rule decides
        return Busy(address.origin, answer.status, min(after, duration(RETRY_AFTER_MAX)))
    return HttpError(address.origin, answer.status, excerpt(answer, (*address.secrets, *hidden)))


def excerpt(answer: Answer, secrets: tuple[str, ...]) -> str:
    """The beginning of an answer as one line, without anything of ours that it quotes and that is secret."""
    if 300 <= answer.status <= 399:
        return "redirects are not followed; give the final URL"
    text = answer.body[: 8 * EXCERPT_CHARS_MAX].decode("utf-8", "replace")
    for secret in secrets:
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, "…")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= EXCERPT_CHARS_MAX else text[:EXCERPT_CHARS_MAX] + "…"


def retry_after(text: str, now: float) -> float | None:
    """Seconds to wait by a `Retry-After`, which is a number of seconds or a date; None if it is neither.

    >>> retry_after("120", now=0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=50), retry_after("soon", now=0)
    (120.0, 10.0, None)
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    from email.utils import parsedate_to_datetime  # a tenth of the time that importing redrive takes

    try:
        when = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now)


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
