"""What an event may be, and still is when it has been to a broker and back."""

from __future__ import annotations

from typing import Any

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ODD: list[dict[str, Any]] = [
    {"data": None, "key": "k"},
    {"data": {"specversion": "1.0", "id": "another"}, "key": "k"},
    {"data": "line\nend \u2028 \x00 ✓"},
    {"data": 1, "key": "Köln 50%", "headers": {"traceparent": TRACE, "id": "x", "ce_id": "y", "X O": "ö", "e": ""}},
    {"data": 2, "id": 'an odd.id, 50% "Köln" ✓', "headers": {"source": "elsewhere", "subject": "s", "data": "d"}},
]  # fmt: skip
