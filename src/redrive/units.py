"""Durations, rates, sizes and addresses as people write them: "30s", "100/s", "1MiB", "127.0.0.1:9464".

Pure functions that either give a value or raise ValueError with the spellings that are allowed.
They import nothing of redrive, because everything else may import them. A text without a unit is
refused: nobody reading "wait = '30'" knows of what.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from itertools import pairwise

_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES = {
    "B": 1,
    "kB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "KiB": 1_024,
    "MiB": 1_048_576,
    "GiB": 1_073_741_824,
}

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[wdhms])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")
_ADDRESS = re.compile(r"off|([^\s:\[\]]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")

_DURATION_MAX_S = 100 * 365 * 86_400.0  # a century: longer is a typing error, and due times stay far from overflow

_DURATION_HELP = 'write it like "250ms", "30s", "5m", "1h30m" or "7d" (units from large to small, each once)'
_RATE_HELP = 'write it like "100/s", "30/m", "5000/h" or "10/d"'
_SIZE_HELP = 'write it like "512B", "64KiB", "1MiB" or "2GB"'
_ADDRESS_HELP = 'write it like "127.0.0.1:9464", "0.0.0.0:9464", "[::1]:9464" or "off"'


def duration(value: str | float | timedelta) -> float:
    """Seconds from a text with units, a number of seconds or a timedelta.

    >>> duration("1h30m")
    5400.0
    """
    if isinstance(value, str):
        seconds = _parse_duration(value)
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= _DURATION_MAX_S else math.inf  # float() of a huge int overflows
    else:
        raise ValueError(f"{value!r} is not a duration; {_DURATION_HELP}")
    if not 0.0 <= seconds <= _DURATION_MAX_S:
        raise ValueError(f"the duration {value!r} is negative, not finite or over a century; {_DURATION_HELP}")
    return seconds


def rate(value: str) -> float:
    """Events per second from a text such as "100/s" or "30/m".

    >>> rate("30/m")
    0.5
    """
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a rate; {_RATE_HELP}")
    per_second = float(match[1]) / _SECONDS[match[2]]
    if not 0.0 < per_second < math.inf:
        raise ValueError(f"the rate {value!r} lets nothing through or has no limit; {_RATE_HELP}")
    return per_second


def size(value: str | int) -> int:
    """Bytes from a text such as "1MiB" (1024-based) or "1MB" (1000-based), or a number of bytes.

    >>> size("64KiB")
    65536
    """
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or match[2] not in _BYTES:
            raise ValueError(f"{value!r} is not a size; {_SIZE_HELP}")
        exact = float(match[1]) * _BYTES[match[2]]
        if not exact.is_integer():
            raise ValueError(f"the size {value!r} is not a whole number of bytes; {_SIZE_HELP}")
        count = int(match[1]) * _BYTES[match[2]] if match[1].isdigit() else int(exact)
    if count < 0:
        raise ValueError(f"the size {value!r} is negative; {_SIZE_HELP}")
    return count


def show_size(count: int) -> str:
    """A number of bytes as somebody would write it, exactly.

    >>> show_size(65536), show_size(2_000_000), show_size(77)
    ('64KiB', '2MB', '77B')
    """
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if count and count % _BYTES[unit] == 0:
            return f"{count // _BYTES[unit]}{unit}"
    return f"{count}B"


def address(value: str) -> str:
    """A place to listen at, "HOST:PORT" or "[IPV6]:PORT", or "off"; port 0 is any that is free.

    >>> address("127.0.0.1:9464")
    '127.0.0.1:9464'
    """
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[2] or 0) > 65_535:
        raise ValueError(f"{value!r} is not an address; {_ADDRESS_HELP}")
    return match[0]


def show_duration(seconds: float) -> str:
    """A duration for people: at most two units, the rest cut off.

    >>> show_duration(0.25), show_duration(12), show_duration(5400)
    ('250ms', '12s', '1h30m')
    """
    if seconds < 0:
        return "-" + show_duration(-seconds)
    if not math.isfinite(seconds):
        return "forever"
    if seconds < 0.9995:
        return _show_milliseconds(seconds * 1000)
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for large, small in (("d", "h"), ("h", "m"), ("m", "s")):
        if whole >= _SECONDS[large]:
            count, rest = divmod(whole, int(_SECONDS[large]))
            small_count = rest // int(_SECONDS[small])
            return f"{count}{large}{small_count}{small}" if small_count else f"{count}{large}"
    return f"{whole}s"


def _parse_duration(text: str) -> float:
    stripped = text.strip()
    if _DURATION.fullmatch(stripped) is None:
        raise ValueError(f"{text!r} is not a duration; {_DURATION_HELP}")
    parts = _PART.findall(stripped)
    scales = [_SECONDS[unit] for _, unit in parts]
    if any(later >= earlier for earlier, later in pairwise(scales)):
        raise ValueError(f"{text!r} is not a duration; {_DURATION_HELP}")
    # 250 / 1000 is exact where 250 * 0.001 is not, and people compare these with literals.
    return sum(float(n) / 1000 if unit == "ms" else float(n) * _SECONDS[unit] for n, unit in parts)


def _show_milliseconds(milliseconds: float) -> str:
    if milliseconds == 0:
        return "0s"
    if milliseconds < 0.05:
        return "0.1ms"  # rounding to zero would say that nothing happened
    if milliseconds < 9.95:
        return f"{milliseconds:.1f}".removesuffix(".0") + "ms"
    return f"{round(milliseconds)}ms"
