"""Signatures: what they hold against, and that others can check them."""

from __future__ import annotations

import base64
import hmac
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from redrive import UsageError, verify_signature
from redrive.sinks import BadSignature
from redrive.sinks.signing import keys, sign

NOW = 1_767_225_600
SECRET = "whsec_" + base64.b64encode(bytes(range(24))).decode()
BODY = b'{"cents":4200}'
HEADERS = sign("order-1", NOW, BODY, keys(SECRET))


def check(body: bytes = BODY, now: float = NOW, secret: object = SECRET, **changed: str) -> str:
    headers = HEADERS | {name.replace("_", "-"): text for name, text in changed.items()}
    return verify_signature(body, headers, secret, now=now)  # type: ignore[arg-type]


def test_the_signature_is_that_of_standard_webhooks() -> None:
    digest = hmac.digest(bytes(range(24)), b"order-1.1767225600." + BODY, "sha256")
    assert {
        "webhook-id": "order-1",
        "webhook-timestamp": "1767225600",
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    } == HEADERS


def test_what_was_signed_is_accepted_by_headers_in_any_case_for_five_minutes() -> None:
    assert check() == check(now=NOW + 299) == check(now=NOW - 299) == "order-1"
    assert verify_signature(BODY, {name.title(): text for name, text in HEADERS.items()}, SECRET, now=NOW) == "order-1"


def test_any_change_is_found() -> None:
    other = base64.b64encode(bytes(24)).decode()
    changes: list[dict[str, object]] = [
        {"body": BODY + b" "},
        {"secret": f"whsec_{other}"},
        {"webhook_id": "order-2"},
        {"webhook_timestamp": str(NOW + 1)},
        {"webhook_timestamp": "soon"},
        {"webhook_timestamp": "٣"},
        {"webhook_signature": ""},
        {"webhook_signature": "v1," + other},
        {"webhook_signature": HEADERS["webhook-signature"].replace("v1,", "v1a,")},
        {"webhook_signature": "v1,\udcff é"},
        {"now": NOW + 301},
        {"now": NOW - 301},
    ]
    for change in changes:
        with pytest.raises(BadSignature):
            check(**change)  # type: ignore[arg-type]


def test_a_missing_header_is_named() -> None:
    for name in HEADERS:
        rest = {other: text for other, text in HEADERS.items() if other != name}
        with pytest.raises(BadSignature, match=name):
            verify_signature(BODY, rest, SECRET, now=NOW)


def test_while_a_secret_is_replaced_both_sides_may_be_first() -> None:
    old, new = "the secret of last year", "the secret of this year"
    both = sign("x", NOW, BODY, keys([new, old]))
    assert verify_signature(BODY, both, old, now=NOW) == verify_signature(BODY, both, [new], now=NOW) == "x"
    with_old = sign("x", NOW, BODY, keys(old))
    assert verify_signature(BODY, with_old, [new, old], now=NOW) == "x"


def test_an_id_with_a_dot_is_refused() -> None:
    """Its signature fits another id, another time and another body just as well."""
    signed = f"order.1.{NOW}.body".encode()
    headers = {
        "webhook-id": "order.1",
        "webhook-timestamp": str(NOW),
        "webhook-signature": "v1," + base64.b64encode(hmac.digest(bytes(range(24)), signed, "sha256")).decode(),
    }
    with pytest.raises(BadSignature, match="%2E"):
        verify_signature(b"body", headers, SECRET, now=NOW)


ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(ids, st.text(max_size=40))
def test_standardwebhooks_signs_what_we_verify(event_id: str, body: str) -> None:
    headers = sign(event_id, NOW, body.encode(), keys(SECRET))
    assert "." not in headers["webhook-id"]
    at = datetime.fromtimestamp(NOW, UTC)
    theirs = headers | {"webhook-signature": Webhook(SECRET).sign(headers["webhook-id"], at, body)}
    assert theirs == headers
    assert verify_signature(body.encode(), theirs, SECRET, now=NOW) == event_id


def test_standardwebhooks_verifies_what_we_sign() -> None:
    now = int(datetime.now(UTC).timestamp())  # their clock cannot be set; five minutes of difference are allowed
    headers = sign("order.1 é", now, BODY, keys([SECRET, "another secret of ours"]))
    assert Webhook(SECRET).verify(BODY, headers) == {"cents": 4200}


def test_the_parts_of_what_is_signed_cannot_be_divided_otherwise() -> None:
    headers = sign("x.1", NOW, b"body", keys(SECRET))
    moved = headers | {"webhook-id": "x", "webhook-timestamp": "1"}
    with pytest.raises(BadSignature):
        verify_signature(f"{NOW}.body".encode(), moved, SECRET, now=1)
    assert verify_signature(b"body", headers, SECRET, now=NOW) == "x.1"


def test_a_secret_that_is_none_is_the_fault_of_the_program() -> None:
    for secret in ("", "short", b"", "whsec_", "whsec_!!", [], [SECRET] * 6, [1]):
        with pytest.raises(UsageError):
            check(secret=secret)
