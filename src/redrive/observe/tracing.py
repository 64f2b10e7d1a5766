"""Traces: where an event comes from travels with it, as W3C `traceparent` in its headers.

OpenTelemetry is never imported by us: a program that uses it has done so, and one that does not pays for a look
into a dict. Spans are made only where a tracer provider is configured when the subscriptions start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from redrive.errors import Ignore, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.event import Event
    from redrive.subscription import Subscription

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
TRACING = "opentelemetry.trace"  # is it loaded?
_MARK = f'"{TRACEPARENT}"'.encode()


def traced(headers: Mapping[str, str] | None, cause: Event[Any] | None = None) -> Mapping[str, str] | None:
    """Headers of a new event: with the current span as its parent, else what its cause was caused by.

    A traceparent that the caller gives stays as it is.
    """
    if headers is not None and TRACEPARENT in headers:
        return headers
    found = _current() if TRACING in sys.modules else None
    if found is None and cause is not None and cause.headers_raw is not None and _MARK in cause.headers_raw:
        found = _carried(cause)
    return headers if not found else {**(headers or {}), **found}


def _current() -> dict[str, str] | None:
    """The span that the program is in, if it is in one."""
    context = sys.modules[TRACING].get_current_span().get_span_context()
    if not context.is_valid:
        return None
    found = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"}
    if context.trace_state:
        found[TRACESTATE] = context.trace_state.to_header()
    return found


def _carried(event: Event[Any]) -> dict[str, str]:
    try:
        headers = event.headers
    except Undecodable:  # they say nothing, then
        return {}
    return {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}


# ------------------------------------------------------------ spans


def is_tracing() -> bool:
    """Has the program configured where spans go?"""
    api = sys.modules.get(TRACING)
    if api is None:
        return False
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider | api.NoOpTracerProvider)


def with_spans(subscription: Subscription) -> Subscription:
    """The same subscription; each call of its function, or of its sink, is a span that continues the event's trace."""
    api = sys.modules[TRACING]
    tracer = api.get_tracer("redrive")
    function: Callable[..., Any] = subscription.function

    def span(events: Any, more: tuple[Any, ...]) -> AbstractContextManager[None]:
        return _span(api, tracer, subscription, events, more)

    if subscription.is_async:

        @wraps(function)
        async def call_async(event: Any, *more: Any) -> Any:
            with span(event, more):
                return await function(event, *more)

        return replace(subscription, function=call_async)

    @wraps(function)
    def call(event: Any, *more: Any) -> Any:
        with span(event, more):
            return function(event, *more)

    return replace(subscription, function=call)


@contextmanager
def _span(api: Any, tracer: Any, subscription: Subscription, given: Any, more: tuple[Any, ...]) -> Iterator[None]:
    """By the conventions of OpenTelemetry for messaging. A verdict to ignore is no error."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    events = given if isinstance(given, list) else [given]
    is_delivery = subscription.sink is not None
    attributes: dict[str, Any] = {
        "messaging.system": "redrive",
        "messaging.operation.type": "send" if is_delivery else "process",
        "messaging.destination.name": subscription.source,
        "messaging.consumer.group.name": subscription.name,
    }
    if isinstance(given, list):
        attributes["messaging.batch.message_count"] = len(events)
    else:
        attributes["redrive.attempt"] = getattr(more[0], "attempt", 1) if more else 1
    if len(events) == 1:
        attributes |= {"messaging.message.id": events[0].id, "redrive.event.type": events[0].type}
    carried = _carried(events[0]) if events and events[0].headers_raw is not None else {}
    parent = TraceContextTextMapPropagator().extract(carried) if carried else None
    with tracer.start_as_current_span(
        f"{'deliver' if is_delivery else 'process'} {subscription.name}", context=parent, attributes=attributes,
        kind=api.SpanKind.CLIENT if is_delivery else api.SpanKind.CONSUMER, record_exception=False,
        set_status_on_exception=False,
    ) as span:  # fmt: skip
        try:
            yield
        except Ignore:
            raise
        except BaseException as error:
            # Its type alone: a message may quote the payload, and is kept with the letter.
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(api.StatusCode.ERROR)
            raise
