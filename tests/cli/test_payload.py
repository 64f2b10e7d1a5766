"""Payloads: what must not be seen is not, and what is shown is harmless."""

from __future__ import annotations

import json

import pytest

from redrive.cli.payload import SHOWN_MAX, redacted, show_payload
from redrive.settings import Settings, load_settings

DEFAULTS = Settings().redact


@pytest.mark.parametrize(
    ("rules", "value", "expected"),
    [
        (["password"], {"password": "x", "a": 1}, {"password": "[redacted]", "a": 1}),
        (["password"], {"a": {"b": [{"PassWord": {"deep": 1}}]}}, {"a": {"b": [{"PassWord": "[redacted]"}]}}),
        (["password"], {"passwords": 1, "my_password": 2}, {"passwords": 1, "my_password": 2}),
        (["card.*"], {"card": {"n": 1, "c": {"d": 2}}}, {"card": {"n": "[redacted]", "c": "[redacted]"}}),
        (["card.*"], {"o": [{"card": {"n": 1}}], "discard": {"n": 1}},
         {"o": [{"card": {"n": "[redacted]"}}], "discard": {"n": 1}}),
        (["*.iban"], {"iban": 1, "x": {"iban": 2, "ibans": 3}},
         {"iban": "[redacted]", "x": {"iban": "[redacted]", "ibans": 3}}),
        (["a.b"], {"b": 1, "a": {"b": 2}, "a.b": 3}, {"b": 1, "a": {"b": "[redacted]"}, "a.b": "[redacted]"}),
        (["*"], {"a": 1}, {"a": "[redacted]"}),
        (["[", "a+"], {"[": 1, "a+": 2, "aa": 3}, {"[": "[redacted]", "a+": "[redacted]", "aa": 3}),
        ([], {"password": "x"}, {"password": "x"}),
        (["password"], ["password"], ["password"]),
    ],
)  # fmt: skip
def test_what_a_rule_names_is_left_out_at_any_depth(rules: list[str], value: object, expected: object) -> None:
    before = json.dumps(value)
    assert redacted(value, rules) == expected
    assert json.dumps(value) == before
    assert json.loads(show_payload(before.encode(), rules)) == expected


@pytest.mark.parametrize("name", ["password", "Secret", "access_token", "Authorization", "client-secret", "PASSWORD2"])
def test_without_any_setting_the_usual_secrets_are_left_out(name: str) -> None:
    assert "hunter2" not in show_payload(json.dumps({"a": [{name: "hunter2"}]}).encode(), DEFAULTS)


def test_rules_come_from_the_settings() -> None:
    settings, origins = load_settings(None, {"REDRIVE_REDACT": "card.*, pin"})
    assert settings.redact == ("card.*", "pin")
    assert origins["redact"] == "REDRIVE_REDACT"


def test_nothing_that_is_shown_can_steer_a_terminal() -> None:
    shown = show_payload('{"a\u202e": "\\u001b[31m\u2066 é 😀 \\ud800"}'.encode(), [])
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "é 😀" in shown


def test_bytes_that_are_no_json_are_dumped() -> None:
    shown = show_payload(b"\x1b[31m\xff{not json" + bytes(1000), ["x"]).split("\n")
    assert shown[0] == "no JSON: 1,015 bytes, the first 256"
    assert shown[1].endswith("|.[31m.{not json.|")
    assert len(shown) == 1 + 16
    assert max(map(len, shown)) <= 80
    assert show_payload(b"", []) == "no JSON: 0 bytes"


@pytest.mark.parametrize("raw", [b"[" * 100_000 + b"]" * 100_000, b"\xed\xa0\x80", b'{"a":', b"nan"])
def test_what_cannot_be_read_is_no_error(raw: bytes) -> None:
    assert show_payload(raw, DEFAULTS).startswith("no JSON: ")


def test_a_number_that_python_refuses_is_shown_all_the_same() -> None:
    assert "9" * 5000 in show_payload(b'{"n": ' + b"9" * 5000 + b"}", DEFAULTS)


def test_a_huge_payload_is_cut_with_a_word_about_it() -> None:
    raw = json.dumps(["x" * 100] * 10_000).encode()
    shown = show_payload(raw, [])
    whole = len(json.dumps(json.loads(raw), indent=2))
    assert shown.endswith(f"\n… and {whole - SHOWN_MAX:,} more characters")
    assert len(shown) < SHOWN_MAX + 100
