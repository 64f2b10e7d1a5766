"""Keep or discard: which failed events are worth a dead letter.

Asked only when an event is about to be buried, in this order: a `discard` pattern that matches
drops it; else a `keep` pattern that matches keeps it; else `keep_if` decides; else it is kept.
A rule that raises, or answers something other than True or False, keeps the letter: a broken
rule must never lose an event. Nothing is dropped without the text of the rule that asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any

from msgspec import Struct

from redrive.errors import UsageError
from redrive.options import named_options
from redrive.policy.outcome import Failure
from redrive.policy.patterns import matches, type_pattern
from redrive.policy.regex import Regex, regex

Predicate = Callable[[Any], bool]
Pattern = str | re.Pattern[str] | Regex | Predicate
AnyPattern = Pattern | type  # an event class stands for the name it was given


class Candidate(Struct, frozen=True):
    """The letter-to-be that predicates see; `decide` fills in why it would be buried.

    `event.data` raises for an undecodable event, as it does everywhere: the letter is then kept.
    """

    subscription: str
    event: Any
    attempts: int = 0
    reason: str = ""
    failure: Failure | None = None

    def buried_for(self, reason: str, failure: Failure, attempts: int) -> Candidate:
        """The same candidate, with the reason and the error that would bury it."""
        return Candidate(self.subscription, self.event, attempts, reason, failure)


class Keep(Struct, frozen=True):
    """Write the letter. `broken_rule` says which rule could not answer, and is empty when all did."""

    broken_rule: str = ""


class Drop(Struct, frozen=True):
    """Do not write the letter; count and audit it under the text of this rule."""

    rule: str


class Step(Struct, frozen=True):
    """A rule that was asked, and its answer in words."""

    rule: str
    answer: str


class Judgement(Struct, frozen=True):
    """What comes of it, and every rule that was asked; the last one decided."""

    verdict: Keep | Drop
    steps: tuple[Step, ...]


class Rules(Struct, frozen=True):
    """Made by `rules()`, which checks the patterns."""

    discard: tuple[Pattern, ...] = ()
    keep: tuple[Pattern, ...] = ()
    keep_if: Predicate | None = None

    def __bool__(self) -> bool:
        return bool(self.discard or self.keep or self.keep_if)

    def judge(self, event_type: str, letter: object) -> Keep | Drop:
        """Whether a letter for this event is wanted; the first rule that matches decides."""
        return self.explain(event_type, letter).verdict

    def explain(self, event_type: str, letter: object) -> Judgement:
        """The same, with the rules that were asked on the way."""
        steps: list[Step] = []
        for verb, patterns in (("discard", self.discard), ("keep", self.keep)):
            for pattern in patterns:
                rule = f"{verb} {_name(pattern)}"
                fits = _fits(pattern, event_type, letter)
                steps.append(Step(rule, fits if isinstance(fits, str) else "fits" if fits else "does not fit"))
                if isinstance(fits, str):
                    return Judgement(Keep(f"{rule}: {fits}"), tuple(steps))
                if fits:
                    return Judgement(Drop(rule) if verb == "discard" else KEEP, tuple(steps))
        if self.keep_if is None:
            return Judgement(KEEP, tuple(steps))
        rule, answer = f"keep_if {_name(self.keep_if)}", _ask(self.keep_if, letter)
        steps.append(Step(rule, answer if isinstance(answer, str) else f"answered {answer}"))
        if isinstance(answer, str):
            return Judgement(Keep(f"{rule}: {answer}"), tuple(steps))
        return Judgement(KEEP if answer else Drop(rule), tuple(steps))


KEEP = Keep()


@named_options("rules")
def rules(
    discard: AnyPattern | Iterable[AnyPattern] = (),
    keep: AnyPattern | Iterable[AnyPattern] = (),
    keep_if: Predicate | None = None,
) -> Rules:
    """Which failed events become dead letters; without rules all of them do.

    >>> rules(discard=["health.*", "metrics.*"]).judge("health.ping", None)
    Drop(rule='discard health.*')

    A pattern is an event type, a glob, a compiled regular expression for the whole type, or a function
    that takes the letter and answers True or False. `discard="*"` switches dead letters off.
    """
    if keep_if is not None and not callable(keep_if):
        raise UsageError(f"rules: keep_if takes a function of the letter, not {keep_if!r}")
    _refuse_coroutine("rules: keep_if", keep_if)
    return Rules(_patterns("rules: discard", discard), _patterns("rules: keep", keep), keep_if)


def overruled(
    given: Rules, discard: Iterable[Pattern] | None, keep: Iterable[Pattern] | None, keep_if: Predicate | None
) -> Rules:
    """The rules of the code, where the settings say nothing else."""
    said = Rules(
        given.discard if discard is None else tuple(discard),
        given.keep if keep is None else tuple(keep),
        given.keep_if if keep_if is None else keep_if,
    )
    _refuse_coroutine("rules: keep_if", said.keep_if)
    return said


def _patterns(option: str, given: AnyPattern | Iterable[AnyPattern]) -> tuple[Pattern, ...]:
    if isinstance(given, str | re.Pattern | Regex) or callable(given) or not isinstance(given, Iterable):
        return (_pattern(option, given),)
    return tuple(_pattern(option, one) for one in given)


def _pattern(option: str, given: AnyPattern) -> Pattern:
    if isinstance(given, Regex):
        return given
    if isinstance(given, re.Pattern):
        if not isinstance(given.pattern, str):
            raise UsageError(f"{option} has a pattern of bytes, {given.pattern!r}; event types are text")
        return given
    if callable(given) and not isinstance(given, type):
        _refuse_coroutine(option, given)
        return given
    return type_pattern(option, given)


def written(option: str, texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Patterns as a settings file has them: names, globs, and regular expressions between slashes."""
    return tuple(
        regex(option, text[1:-1]) if len(text) > 1 and text[0] == text[-1] == "/" else type_pattern(option, text)
        for text in texts
    )


def _refuse_coroutine(option: str, predicate: object) -> None:
    # Its answer would be a coroutine, which is neither yes nor no.
    if iscoroutinefunction(predicate):
        raise UsageError(f"{option}: {_name(predicate)} is async; a rule is a plain function, called while settling")


def _fits(pattern: Pattern, event_type: str, letter: object) -> bool | str:
    if isinstance(pattern, str):
        return matches(pattern, event_type)
    if isinstance(pattern, Regex):
        return pattern.fits(event_type)
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(event_type) is not None
    return _ask(pattern, letter)


def _ask(predicate: Predicate, letter: object) -> bool | str:
    """The answer, or in words why there is none."""
    try:
        answer = predicate(letter)
    except Exception as error:  # the user's code, and any failure of it means: keep
        return f"raised {type(error).__name__}"
    # None is what a function without `return` says: taking it for False would discard by accident.
    return answer if isinstance(answer, bool) else f"answered {type(answer).__name__}, not True or False"


def named(rules: object) -> str | list[str]:
    """Patterns, or a function, as they are called in a list of rules."""
    return [_name(one) for one in rules] if isinstance(rules, tuple) else _name(rules)


def _name(pattern: object) -> str:
    match pattern:
        case str():
            return pattern
        case re.Pattern(pattern=text) | Regex(pattern=text):
            return f"/{text}/"
        case _:
            return str(getattr(pattern, "__qualname__", type(pattern).__qualname__))
