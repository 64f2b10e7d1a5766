"""Regular expressions of settings files mean what Python's do, and none of them can hang."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.policy.regex import PATTERN_CHARS_MAX, TEXT_CHARS_MAX, regex

atoms = st.sampled_from(
    ["a", "b", ".", r"\.", "[ab]", "[^a]", "[a-c.]", r"\d", r"\w", r"\W", "[]a]", r"[\d_]", "-", "é"]
)
counts = st.sampled_from(["", "", "", "*", "+", "?", "{0}", "{2}", "{1,}", "{0,2}", "{2,3}"])


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(st.tuples(parts, counts).map("".join), max_size=4).map("".join)
    return st.lists(sequences, min_size=1, max_size=3).map("|".join)


patterns = st.recursive(atoms, lambda inner: joined(atoms | inner.map("({})".format)), max_leaves=12)
texts = st.text("abc._1é-", max_size=8)


@given(patterns.filter(lambda text: 0 < len(text) <= PATTERN_CHARS_MAX), st.lists(texts, min_size=1, max_size=10))
def test_a_pattern_means_what_it_means_to_python(pattern: str, given: list[str]) -> None:
    theirs = re.compile(pattern)
    ours = regex("discard", pattern)
    assert [ours.fits(text) for text in given] == [theirs.fullmatch(text) is not None for text in given]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*b", "(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){12}b", "(((a*)*)*)*b", ".*.*.*.*.*.*.*.*b", "(a?){60}a{60}b",
        "(a|b|ab)*c", "([a-z]+)*x", r"(\w+\.?)+!",
    ],
)  # fmt: skip
def test_a_catastrophic_pattern_takes_no_longer_than_a_harmless_one(pattern: str) -> None:
    made = regex("discard", pattern)
    began = time.process_time()
    assert not made.fits("a" * TEXT_CHARS_MAX)
    assert time.process_time() - began < 5.0, "Python's own would take longer than the universe has lasted"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "is empty"),
        ("a" * 201, "has 201 characters; 200 are allowed"),
        ("(", "opens a group that is not closed"),
        ("a)", "closes a group that was not opened"),
        ("*a", "repeats nothing with '*'"),
        ("a**", "two signs of repetition in a row"),
        ("a*?", "two signs of repetition in a row"),
        ("[a", "has [ that is not closed"),
        ("[c-a]", "has the range c-a"),
        ("a{", "has { that is not like {2}"),
        ("a{3,2}", "cannot repeat {3,2}"),
        ("((a{40}){40}){40}", "repeats too much"),
        ("(" * 30 + "a" + ")" * 30, "nests groups more than 20 deep"),
        ("a^b", "has '^' inside"),
        ("(?=a)b", "has (?…), which is not known here"),
        ("(?P<n>a)", "has (?…), which is not known here"),
        (r"(a)\1", r"has \1, which is not known here"),
        ("a\\", "ends with \\"),
    ],
)
def test_a_pattern_that_cannot_be_kept_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(UsageError, match="discard: ") as refused:
        regex("discard", pattern)
    assert why in str(refused.value)


@pytest.mark.parametrize("pattern", ["a|b", "(a|b)c", "a||b", "(|a)b", "a{0}b", "a{0,2}", "(a|)*b", "a.", ".*c", "."])
def test_branches_and_counts_mean_what_they_mean_to_python(pattern: str) -> None:
    made, python = regex("x", pattern), re.compile(pattern)
    for text in ("", "a", "b", "ab", "ac", "bc", "c", "aab", "aa", "aaa", "abc", "|", "a|b"):
        assert made.fits(text) is (python.fullmatch(text) is not None), text


def test_anchors_at_the_ends_say_nothing_new_and_a_long_text_fits_nothing() -> None:
    made = regex("discard", "^a+$")
    assert made.fits("aaa") and not made.fits("aab")
    assert regex("discard", r"a\$").fits("a$")
    assert not made.fits("a" * (TEXT_CHARS_MAX + 1))
