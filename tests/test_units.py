"""Units are read as people write them, and a wrong spelling is told what would be right."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.units import duration, rate, show_duration, size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("7d", 604_800.0),
        ("2w", 1_209_600.0),
        ("1h30m", 5400.0),
        ("1m500ms", 60.5),
        ("1.5s", 1.5),
        ("0s", 0.0),
        ("  5s ", 5.0),
    ],
)
def test_a_duration_is_read_as_written(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_a_duration_may_be_a_number_of_seconds_or_a_timedelta() -> None:
    assert duration(3) == 3.0
    assert duration(0.5) == 0.5
    assert duration(timedelta(minutes=2)) == 120.0


@pytest.mark.parametrize(
    "text", ["", "30", "s", "5 m", "-5s", "1m1h", "1s1s", "5S", "5min", "1e3s", "٣s", "1h,30m", "5s\n5s"]
)
def test_a_duration_that_is_not_one_is_told_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match='"1h30m"') as caught:
        duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), 10**400, timedelta(seconds=-1), "99999w"])
def test_a_duration_is_never_negative_nor_endless(value: object) -> None:
    with pytest.raises(ValueError, match="negative, not finite or over a century"):
        duration(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, True, b"5s", ["5s"]])
def test_a_duration_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "per_second"), [("100/s", 100.0), ("30/m", 0.5), ("7200/h", 2.0), ("0.5/s", 0.5)])
def test_a_rate_is_per_second(text: str, per_second: float) -> None:
    assert rate(text) == per_second


@pytest.mark.parametrize("value", ["100", "/s", "100/", "100/ms", "100 per s", "-1/s", 100, None])
def test_a_rate_that_is_not_one_is_told_what_is_allowed(value: object) -> None:
    with pytest.raises(ValueError, match='"100/s"'):
        rate(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0/s", "0.0/d", "9" * 400 + "/s"])
def test_a_rate_of_nothing_or_without_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lets nothing through or has no limit"):
        rate(text)


@pytest.mark.parametrize(
    ("value", "count"),
    [("1MiB", 1_048_576), ("512B", 512), ("2GB", 2_000_000_000), ("1.5 KiB", 1536), ("0B", 0), (77, 77)],
)
def test_a_size_is_a_number_of_bytes(value: str | int, count: int) -> None:
    assert size(value) == count


@pytest.mark.parametrize("value", ["1", "MiB", "1mib", "-1B", "1 TiBB", "1.5B", -1, True, None, 1.5])
def test_a_size_that_is_not_one_is_told_what_is_allowed(value: object) -> None:
    with pytest.raises(ValueError, match='"1MiB"'):
        size(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.000_01, "0.1ms"),
        (0.000_4, "0.4ms"),
        (0.002, "2ms"),
        (0.25, "250ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (12, "12s"),
        (59.7, "1m"),
        (180, "3m"),
        (90, "1m30s"),
        (7200, "2h"),
        (7199, "1h59m"),
        (4 * 86_400, "4d"),
        (4 * 86_400 + 7 * 3600 + 59, "4d7h"),
        (-3, "-3s"),
        (float("inf"), "forever"),
    ],
)
def test_a_duration_is_shown_short(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@given(st.floats(min_value=0.000_1, max_value=1e9))
def test_a_shown_duration_reads_back_as_nearly_the_same(seconds: float) -> None:
    shown = duration(show_duration(seconds))
    assert abs(shown - seconds) <= max(seconds * 0.05, 0.000_06)


@given(st.text())
def test_a_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert duration(text) >= 0.0
    except ValueError as refused:
        assert "is not a duration" in str(refused) or "over a century" in str(refused)
