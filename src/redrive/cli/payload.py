"""Payloads as they may be shown: what the setting `redact` names is left out, nothing steers the terminal.

Only commands with `--payload` come here. What is no JSON has no field names to go by: its first bytes are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache
from typing import Any

from redrive.cli.render import plain

REDACTED = "[redacted]"
SHOWN_MAX = 64 * 1024  # characters; more than anybody reads, and a terminal is not kept busy for minutes
BYTES_MAX = 256  # of what is no JSON
DIGITS_MAX = 1000  # Python refuses numbers of more than 4300 digits


def show_payload(raw: bytes, rules: Iterable[str]) -> str:
    """Indented JSON without what the rules name, or a hex dump of the first bytes.

    >>> print(show_payload(b'{"user": "ada", "password": "x"}', ["password"]))
    {
      "user": "ada",
      "password": "[redacted]"
    }
    """
    try:
        value = read(raw)
    except ValueError:
        return _dump(raw)
    text = json.dumps(redacted(value, rules), indent=2, ensure_ascii=False)
    cut = text[:SHOWN_MAX]
    lines = [plain(line) for line in cut.split("\n")]
    if len(text) > len(cut):
        lines.append(f"… and {len(text) - len(cut):,} more characters")
    return "\n".join(lines)


def read(raw: bytes) -> Any:
    """The JSON in a payload; ValueError if there is none. What cannot be a number here stays as it is written."""
    try:
        return json.loads(raw, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def redacted(value: Any, rules: Iterable[str]) -> Any:
    """A copy of a JSON value in which every field that a rule names, at any depth, is replaced.

    >>> redacted({"order": {"card": {"number": 4111}, "cents": 5}}, ["card.*"])
    {'order': {'card': {'number': '[redacted]'}, 'cents': 5}}
    """
    pattern = _pattern(tuple(rules))
    return value if pattern is None else _copy(value, "", pattern)


def _copy(value: Any, path: str, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, list):
        return [_copy(one, path, pattern) for one in value]
    if not isinstance(value, dict):
        return value
    places = {name: f"{path}.{name}" for name in value}
    return {
        name: REDACTED if pattern.search(places[name]) else _copy(one, places[name], pattern)
        for name, one in value.items()
    }


@lru_cache(maxsize=8)
def _pattern(rules: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for all rules: each is tried on the end of a field's path, from any dot on, in either case."""
    globs = [translate(rule.removeprefix("*.")) for rule in rules if rule]
    return re.compile(rf"\.(?:{'|'.join(globs)})", re.IGNORECASE) if globs else None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= DIGITS_MAX else digits


def _dump(raw: bytes) -> str:
    """The first bytes, sixteen on a line, with what is readable of them beside."""
    lines = [f"no JSON: {len(raw):,} bytes" + (f", the first {BYTES_MAX}" if len(raw) > BYTES_MAX else "")]
    for start in range(0, min(len(raw), BYTES_MAX), 16):
        part = raw[start : min(start + 16, BYTES_MAX)]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  |{text}|")
    return "\n".join(lines)
