"""What the targets that are brokers have in common: how their errors are told, and what an event looks like there.

An event is a CloudEvent in binary mode, on every broker: its attributes are fields (or headers) that begin with `ce_`,
its data is the body, byte for byte. Read back, it is the event it was: id, type, key, time, schema and headers.
"""

from __future__ import annotations

from typing import Any

from redrive import cloudevents
from redrive.errors import Reject
from redrive.event import Event

ATTRIBUTE = "ce_"


class BrokerDown(ConnectionError):
    """The broker cannot be reached, or takes nothing now. What was sent may have arrived."""


class TooLarge(Reject):
    """The broker will never take this event, whatever is tried."""


def attributes(event: Event[Any], source: str) -> dict[str, str]:
    """Everything but the data."""
    fields = cloudevents.attributes(event, source)
    del fields["datacontenttype"]
    fields.pop("subject", None)  # the key is there as `partitionkey`; once is enough
    return {ATTRIBUTE + name: str(value) for name, value in fields.items()}
