"""Webhooks: one event, one request, as a CloudEvent; signed if there is a secret."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from redrive import cloudevents
from redrive.clock import SystemClock
from redrive.errors import Reject, UsageError
from redrive.event import Event
from redrive.observe.tracing import traced
from redrive.options import named_options
from redrive.sinks.addresses import Address, AddressRefused, parse
from redrive.sinks.http import HttpSink, check_headers, failure, secrets_in
from redrive.sinks.signing import Secret, keys, sign

Url = str | Callable[[Event[Any]], str]
Secrets = Secret | Sequence[Secret]
Headers = Mapping[str, str]
Method = Literal["GET", "HEAD", "OPTIONS"]

_NOT_WELL = frozenset({408, 425, 429})
_clock = SystemClock()


class Webhook(HttpSink):
    """See `webhook`."""

    def __init__(
        self,
        url: Url,
        name: str,
        *,
        secret: Secrets | Callable[[Event[Any]], Secrets] | None,
        mode: str,
        headers: Headers | Callable[[Event[Any]], Headers] | None,
        source: str | None,
        **connection: Any,
    ) -> None:
        super().__init__(name, **connection)
        if mode not in ("binary", "structured"):
            raise UsageError(f'mode={mode!r}: write mode="binary" or mode="structured"')
        self._url = url if callable(url) else self.check_address(parse(url))
        self._secret = secret if secret is None or callable(secret) else keys(secret)
        self._headers = headers if callable(headers) else check_headers(headers or {})
        self._hidden = () if callable(self._headers) else secrets_in(self._headers)
        self._is_binary, self._source = mode == "binary", source

    def __repr__(self) -> str:
        where = self._url.origin if isinstance(self._url, Address) else "a function of the event"
        return f"webhook({where}, name={self.name!r})"

    @property
    def source(self) -> str:
        """Where the events say they come from: as given, or the log that is delivered."""
        return self._source if self._source is not None else cloudevents.source_of(self.log)

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """One request for each; the first that fails ends it."""
        for event in events:
            address = self._address(event)
            mine, hidden = self._mine(event)
            headers, body = self._message(event, mine)
            answer = await self.request("POST", address, headers, body)  # `post`, without the call: each event comes by
            if not answer.ok:
                raise failure(address, answer, now=_clock.now(), hidden=hidden)

    def _address(self, event: Event[Any]) -> Address:
        if isinstance(self._url, Address):
            return self._url
        try:
            return self.check_address(parse(self._url(event)))
        except AddressRefused:
            raise
        except UsageError as error:  # of this event alone: the others may have good ones
            raise Reject(f"the URL for event {event.id}: {error}") from None

    def _mine(self, event: Event[Any]) -> tuple[Headers, tuple[str, ...]]:
        """The user's own headers for an event, and what of them no error may quote."""
        if not callable(self._headers):
            return self._headers, self._hidden
        mine = check_headers(self._headers(event))
        return mine, secrets_in(mine)

    def _message(self, event: Event[Any], mine: Headers) -> tuple[dict[str, str], bytes]:
        if self._is_binary:
            headers, body = cloudevents.http_headers(event, self.source), event.data_raw
        else:
            headers = {"content-type": "application/cloudevents+json; charset=utf-8"}
            body = cloudevents.encode(event, self.source)
        key = headers.get("ce-id") or cloudevents.header_text(event.id)
        headers["idempotency-key"] = f"{key}:{event.edits}" if event.edits else key  # another request than the first
        if traces := traced(None, event):
            headers |= {name: cloudevents.header_text(text) for name, text in traces.items()}
        if mine:
            headers |= mine
        secret = self._secret
        if secret is not None:
            found = keys(secret(event)) if callable(secret) else secret
            headers |= sign(event.id, int(_clock.now()), body, found)
        return headers, body


class ProbedWebhook(Webhook):
    """A webhook that can be asked whether it is well without being sent an event."""

    def __init__(self, *arguments: Any, probe_url: str | None, probe_method: Method | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if probe_method not in (None, "GET", "HEAD", "OPTIONS"):
            raise UsageError(f"probe_method={probe_method!r}: GET, HEAD or OPTIONS")
        if probe_url is None and not isinstance(self._url, Address):
            raise UsageError("the URL is a function of the event: a probe needs a probe_url")
        self._probe_url = None if probe_url is None else self.check_address(parse(probe_url))
        self._probe_method = probe_method or "GET"

    async def probe(self) -> None:
        """Ask. A page made for it has to answer with success; of the URL itself any answer but "later" is well."""
        own = self._url if isinstance(self._url, Address) else None
        address = self._probe_url or own
        assert address is not None
        mine = {} if callable(self._headers) else self._headers
        answer = await self.request(self._probe_method, address, mine)
        well = answer.status < 500 and answer.status not in _NOT_WELL if self._probe_url is None else answer.ok
        if not well:
            raise failure(address, answer, now=_clock.now(), hidden=self._hidden)


@named_options("webhook")
def webhook(
    url: Url,
    *,
    name: str,
    secret: Secrets | Callable[[Event[Any]], Secrets] | None = None,
    mode: Literal["binary", "structured"] = "binary",
    headers: Headers | Callable[[Event[Any]], Headers] | None = None,
    timeout: str | float = "10s",
    connect_timeout: str | float = "5s",
    allow_private: bool = False,
    source: str | None = None,
    probe_url: str | None = None,
    probe_method: Method | None = None,
    tls: ssl.SSLContext | None = None,
) -> Webhook:
    """A sink that posts each event to a URL, or to the URL that a function of the event gives.

    >>> webhook("https://example.com/hooks/T0P", name="crm", secret="a secret that both sides know")
    webhook(https://example.com, name='crm')
    """
    options: dict[str, Any] = {
        "secret": secret, "mode": mode, "headers": headers, "source": source, "timeout": timeout,
        "connect_timeout": connect_timeout, "allow_private": allow_private, "tls": tls,
    }  # fmt: skip
    if probe_url is None and probe_method is None:
        return Webhook(url, name, **options)
    return ProbedWebhook(url, name, probe_url=probe_url, probe_method=probe_method, **options)
