"""Signatures of webhooks, by the rules of Standard Webhooks: who sent it, when, and that these were the bytes.

Signed is `id.timestamp.body` with HMAC-SHA256. Several secrets sign side by side while one replaces the other.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from urllib.parse import unquote

from redrive.clock import SystemClock
from redrive.cloudevents import header_text
from redrive.errors import RedriveError, UsageError
from redrive.units import duration

SECRET_BYTES_MIN = 16  # 128 bit: shorter ones are guessed offline by anybody who has seen one message
SECRETS_MAX = 5  # at once; each is a signature in a header
TOLERANCE = "5m"  # between the clocks of sender and receiver; how long a message that was listened to can be replayed

_PREFIX = "whsec_"
_clock = SystemClock()

Secret = str | bytes


class BadSignature(RedriveError):
    """Not signed with a secret of ours, changed on the way, or too old."""


def keys(secret: Secret | Sequence[Secret]) -> tuple[bytes, ...]:
    """The keys of one secret or of several. `whsec_…` is base64; other text is taken as it is, in UTF-8."""
    secrets = [secret] if isinstance(secret, str | bytes) else list(secret)
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise UsageError(f"{len(secrets)} secrets; give one, or up to {SECRETS_MAX} while one replaces the other")
    return tuple(_key(one) for one in secrets)


def _key(secret: Secret) -> bytes:
    if isinstance(secret, str) and secret.startswith(_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"a secret that begins with {_PREFIX} goes on in base64") from None
    elif isinstance(secret, str):
        key = secret.encode()
    elif isinstance(secret, bytes):
        key = secret
    else:
        raise UsageError(f"a secret is text or bytes, not {type(secret).__name__}")
    if len(key) < SECRET_BYTES_MIN:
        raise UsageError(f"a secret has at least {SECRET_BYTES_MIN} bytes; this one has {len(key)}")
    return key


def sign(event_id: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The three headers."""
    # The parts of what is signed are divided by dots: one inside the id would let them be divided otherwise.
    message_id = header_text(event_id).replace(".", "%2E")
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(_signature(key, signed) for key in secrets),
    }


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()


def verify_signature(
    body: bytes,
    headers: Mapping[str, str],
    secret: Secret | Sequence[Secret],
    *,
    tolerance: str | float = TOLERANCE,
    now: float | None = None,
) -> str:
    """For receivers: the id of the message if it is signed, whole and recent; BadSignature otherwise.

    Give the bytes as they came, before any parsing; take the id to recognise what came twice.

    >>> body, secret = b'{"cents":4200}', "a secret that both sides know"
    >>> verify_signature(body, sign("order-1", 1_767_225_600, body, keys(secret)), secret, now=1_767_225_700)
    'order-1'
    """
    accepted = keys(secret)
    lower = {name.lower(): text for name, text in headers.items()}
    try:
        message_id, timestamp, given = (lower[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as error:
        raise BadSignature(f"the header {error.args[0]} is missing") from None
    if "." in message_id:
        raise BadSignature("webhook-id holds a dot, so what is signed may be divided otherwise; redrive writes it %2E")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise BadSignature("webhook-timestamp is not a number of seconds")
    apart = abs((_clock.now() if now is None else now) - int(timestamp))
    if apart > duration(tolerance):
        raise BadSignature("webhook-timestamp is too old or from the future: replayed, or a clock is wrong")
    signed = f"{message_id}.{timestamp}.".encode("utf-8", "surrogateescape") + body
    expected = [_signature(key, signed).encode() for key in accepted]
    found = [one.encode("utf-8", "surrogateescape") for one in given.split(" ")[: 2 * SECRETS_MAX]]
    matches = [hmac.compare_digest(one, ours) for one in found for ours in expected]  # all of them: no early end
    if not any(matches):
        raise BadSignature("no signature fits: another secret, or the body was changed")
    return unquote(message_id)
