"""Keep and discard rules: nothing is dropped but what a rule describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.policy.rules import Candidate, Drop, Keep, Rules, rules, written

TYPES = ["health.ping", "health", "order.placed", "order.paid", "audit.login", "metrics.cpu"]
PATTERNS = ["health.*", "health", "order.*", "order.p?id", "*.login", "none.such"]

types = st.sampled_from(TYPES)
globs = st.lists(st.sampled_from(PATTERNS), max_size=3)
answers = st.sampled_from([True, False, None])


def fits(pattern: str, name: str) -> bool:
    """What a glob means, said a second time and otherwise: the tests must not ask the code they test."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def answering(answer: bool) -> Callable[[Any], bool]:
    return lambda letter: answer


def raising(letter: Any) -> bool:
    raise KeyError(letter)


def described(made: Rules, name: str, keep_if: bool | None) -> bool:
    """Whether anything in the rules asks to drop events of this name."""
    if any(fits(str(pattern), name) for pattern in made.discard):
        return True
    return keep_if is False and not any(fits(str(pattern), name) for pattern in made.keep)


@given(globs, globs, answers, types)
def test_exactly_what_the_rules_describe_is_dropped(
    discard: list[str], keep: list[str], keep_if: bool | None, name: str
) -> None:
    made = rules(discard, keep, None if keep_if is None else answering(keep_if))
    assert isinstance(made.judge(name, None), Drop) == described(made, name, keep_if)


@given(globs, globs, types)
def test_a_discard_names_the_first_pattern_that_matched(discard: list[str], keep: list[str], name: str) -> None:
    match rules(discard, keep).judge(name, None):
        case Drop(rule):
            first = next(pattern for pattern in discard if fits(pattern, name))
            assert rule == f"discard {first}"
        case Keep(broken_rule):
            assert broken_rule == ""


@pytest.mark.parametrize("option", ["discard", "keep", "keep_if"])
def test_rules_with_a_single_option_are_rules(option: str) -> None:
    assert rules(**{option: (lambda letter: True) if option == "keep_if" else "*"})  # type: ignore[arg-type]
    assert not Rules()


def test_regular_expression_of_a_settings_file_describes_the_whole_type() -> None:
    said = Rules(discard=written("rules.discard", ["/order[.](placed|paid)/", "mail.*", "/", "x/"]))
    found = [
        isinstance(said.judge(kind, None), Drop)
        for kind in ("order.paid", "order.paid.late", "mail.sent", "/", "x/", "")
    ]
    assert found == [True, False, True, True, True, False]


@given(types)
def test_without_rules_every_letter_is_kept(name: str) -> None:
    assert Rules().judge(name, None) == Keep()
    assert rules().judge(name, None) == Keep()


def test_discard_comes_before_keep_and_keep_before_keep_if() -> None:
    made = rules(discard="order.*", keep=["order.*", "audit.*"], keep_if=answering(False))
    assert made.judge("order.placed", None) == Drop("discard order.*")
    assert made.judge("audit.login", None) == Keep()
    assert isinstance(made.judge("metrics.cpu", None), Drop)


@given(globs, types)
def test_a_keep_if_that_raises_keeps_and_says_so(keep: list[str], name: str) -> None:
    verdict = rules(keep=keep, keep_if=raising).judge(name, None)
    kept_by_pattern = any(fits(pattern, name) for pattern in keep)
    assert verdict == (Keep() if kept_by_pattern else Keep("keep_if raising: raised KeyError"))


@pytest.mark.parametrize("option", ["discard", "keep"])
def test_a_pattern_that_raises_keeps_and_says_so(option: str) -> None:
    made = rules(**{option: raising, "keep_if": answering(False)})
    assert made.judge("order.placed", None) == Keep(f"{option} raising: raised KeyError")


@pytest.mark.parametrize("answer", [None, 0, 1, "", "yes", []])
def test_an_answer_that_is_neither_true_nor_false_keeps_and_says_so(answer: Any) -> None:
    for made in (rules(keep_if=lambda letter: answer), rules(discard=lambda letter: answer)):
        match made.judge("order.placed", None):
            case Keep(broken_rule):
                assert "not True or False" in broken_rule
            case Drop():
                pytest.fail("dropped by accident")


def test_predicates_see_the_letter() -> None:
    letter = Candidate("charge", SimpleNamespace(data={"cents": 5}), attempts=3)
    cheap = rules(discard=lambda letter: letter.event.data["cents"] < 100 and letter.attempts == 3)
    assert isinstance(cheap.judge("payment.due", letter), Drop)
    assert cheap.judge("payment.due", Candidate("charge", SimpleNamespace(data={"cents": 500}), attempts=3)) == Keep()


def test_a_regular_expression_speaks_about_the_whole_type() -> None:
    made = rules(discard=re.compile(r"health|metrics\..*"))
    assert made.judge("metrics.cpu", None) == Drop(r"discard /health|metrics\..*/")
    assert made.judge("health", None) == Drop(r"discard /health|metrics\..*/")
    assert made.judge("health.ping", None) == Keep()


def test_a_star_switches_dead_letters_off() -> None:
    assert all(rules(discard="*").judge(name, None) == Drop("discard *") for name in TYPES)


def test_the_class_of_an_event_may_stand_for_its_type() -> None:
    class OrderPlaced:
        __redrive_event__ = ("order.placed", 1)

    assert rules(discard=[OrderPlaced]).judge("order.placed", None) == Drop("discard order.placed")
    assert rules(discard=OrderPlaced).judge("order.placed", None) == Drop("discard order.placed")


async def _async_rule(letter: object) -> bool:
    return True


@pytest.mark.parametrize(
    "wrong",
    [
        {"discard": ""},
        {"discard": [3]},
        {"discard": 3},
        {"keep": [None]},
        {"keep": re.compile(b"bytes")},
        {"keep_if": "order.*"},
        {"keep_if": _async_rule},
        {"discard": _async_rule},
        {"discard": [int]},
    ],
)
def test_a_rule_that_cannot_answer_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="rules: "):
        rules(**wrong)
