"""What a user declares: one named function on one source, with its options checked at import."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from redrive.errors import BadKey, EventError, UsageError
from redrive.event import Event, check_key
from redrive.policy.auto_replay import AutoReplay
from redrive.policy.breaker import Rule
from redrive.policy.classify import blames_a_dependency
from redrive.policy.decide import Policy
from redrive.policy.declaration import Declaration, key_name
from redrive.policy.keys import name_of
from redrive.policy.limiter import Bucket
from redrive.policy.outcome import Blocked, Failed, Outcome, Postponed
from redrive.policy.patterns import matches
from redrive.policy.rules import Rules, overruled, written
from redrive.settings import LetterSettings

if TYPE_CHECKING:
    from redrive.mirrors.port import Mirror
    from redrive.sinks.port import Sink
    from redrive.sources.port import Source
    from redrive.store.states import States

Order = Literal["key", "none", "total"]
KeyBy = str | Callable[[Event[Any]], str | None] | None
REFUSED = "redrive.refused"  # what a broker gave and has no readable type: it concerns whoever reads there
TOTAL_LANE = "*"  # order="total": everything is one lane


@dataclass(frozen=True)
class Subscription:
    """One function on one log. Identity is the name; everything else may change under the rules of `enroll`."""

    name: str
    kind: Literal["projection", "handler", "delivery", "intake", "mirror"]
    function: Callable[..., Any]
    source: str
    types: tuple[str, ...] = ()
    order: Order = "key"
    key_by: KeyBy = None
    start: str | None = None
    policy: Policy = field(default_factory=Policy)
    concurrency: int = 1
    partitions: int = 1
    timeout: float | None = None
    batch: bool = False
    tables: Mapping[str, str | None] = field(default_factory=dict)
    on_error: Callable[[Event[Any], BaseException], Any] | None = None
    arguments: int = 2
    breaker: Rule | None = None
    limit: Bucket | None = None
    sink: Sink | None = None  # of a delivery
    origin: Source | None = None  # of an intake: the broker whose messages land in its log
    group: str = ""  # of an intake: on whose behalf it reads
    state: States | None = None  # where keyed state is kept; None: in the store
    mirror: Mirror | None = None
    only: tuple[str, ...] = ()  # of a mirror: the subscriptions whose letters it follows; none: all
    replay: AutoReplay | None = None  # dead letters that are replayed automatically
    keep: float | None = None  # of an outbox: for how many seconds its log keeps what was delivered
    outboxes: Container[str] | None = field(default=None, repr=False, compare=False)  # all that the program has
    runtime: Any = field(default=None, repr=False, compare=False)  # whose logs it may emit to
    version: str | None = None  # of the function; every worker must declare the one that the store has
    rehearsable: bool = False  # a handler that does not talk to the world may run in a rehearsal; a projection always
    _wanted: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def declaration(self) -> Declaration:
        """The parts that all workers must agree on."""
        return Declaration(
            tuple(sorted(self.types)), self.order, self.partitions, self.tables, key_name(self.key_by), self.version
        )

    @property
    def is_async(self) -> bool:
        """Does the function run on the event loop?"""
        return inspect.iscoroutinefunction(self.function)

    @property
    def breaker_name(self) -> str | None:
        """What the store calls its breaker; NAME/ where each key has one, NAME/KEY."""
        if self.breaker is None:
            return None
        return self.dependency if self.breaker.per is None else name_of(self.dependency, None)

    @property
    def dependency(self) -> str:
        """What its letters call whoever it calls: the breaker's name, or its own."""
        return (self.breaker.name if self.breaker is not None else None) or self.name

    def blamed(self, outcome: Outcome | None) -> str | None:
        """The dependency, if a failure is its fault rather than the event's or the code's."""
        if self.dependency is None:
            return None
        match outcome:
            case Blocked():
                return self.dependency
            case Failed(error=error) | Postponed(error=BaseException() as error):
                counts = blames_a_dependency if self.breaker is None else self.breaker.counts
                return self.dependency if counts(error) else None
        return None

    def wants(self, event_type: str) -> bool:
        """Does the filter ask for this type?"""
        found = self._wanted.get(event_type)
        if found is None:
            found = asks_for(self.types, event_type)
            if len(self._wanted) < 10_000:  # a source with endless type names must not fill the memory
                self._wanted[event_type] = found
        return found

    def key_of(self, event: Event[Any]) -> str | None:
        """The event's key for this subscription; BadKey if `key_by` gives none."""
        if self.key_by is None:
            return event.key
        if not event.schema:  # no event, but what a broker gave instead: whoever is called with it is told why
            return None
        if isinstance(self.key_by, str):
            data = event.data
            try:
                value = data[self.key_by] if isinstance(data, Mapping) else getattr(data, self.key_by)
            except (KeyError, AttributeError):
                raise BadKey(f"key_by={self.key_by!r}: the event's data has no such field") from None
        else:
            value = self.key_by(event)
        if value is None:
            return None
        try:
            return check_key(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)
        except EventError as error:
            raise BadKey(f"key_by: {error}") from None

    def lane_of(self, key: str | None) -> str | None:
        """Events of one lane are applied in order; None is a lane of its own."""
        if self.order == "key":
            return key
        return TOTAL_LANE if self.order == "total" else None


def asks_for(types: Sequence[str], event_type: str) -> bool:
    """Do these names and globs ask for this type? None at all means everything; nobody may not ask for REFUSED."""
    return not types or event_type == REFUSED or any(matches(pattern, event_type) for pattern in types)


def check_breaker(mine: Subscription, others: Iterable[Subscription]) -> None:
    """Can each key have a breaker of its own, if that is asked for? And is no name two breakers'?"""
    if mine.breaker is None or mine.breaker_name is None:
        return
    if mine.breaker.per == "key":
        _check_per_key(mine, mine.breaker)
    elif mine.breaker_name.endswith("/"):
        raise UsageError(f"{mine.name}: the name of a breaker does not end with a slash: breaker(name)")
    for other in others:
        theirs = other.breaker_name
        if theirs == mine.breaker_name and (rule := other.breaker) and rule.pace != mine.breaker.pace:
            raise UsageError(
                f"{mine.name} and {other.name} share the breaker {mine.dependency!r}, and say otherwise when it opens: "
                "give both the same failures=, cooldown= and probes=, or one of them another name"
            )
        for one, two in ((mine.breaker_name, theirs), (theirs, mine.breaker_name)):
            if one and two and one != two and one.endswith("/") and two.startswith(one):
                raise UsageError(
                    f"{mine.name} and {other.name}: the breakers {one + 'KEY'!r} and {two.rstrip('/')!r} could be the "
                    "same one; give one of them another name: breaker(name)"
                )


def _check_per_key(mine: Subscription, rule: Rule) -> None:
    what, attempts = f'{mine.name}: breaker(per="key")', max(rule.attempts for rule in mine.policy.retry)
    if mine.order != "key":
        raise UsageError(f'{what} with order="{mine.order}": it holds back the events of a key, in their order="key"')
    if mine.sink is not None and mine.sink.can_probe():
        raise UsageError(f"{what}: the probe of {mine.sink!r} asks one place for all of them; leave the probe out")
    if attempts < rule.failures:
        raise UsageError(
            f"{what} opens after {rule.failures} failures, but an event has no more than {attempts} attempts, and its "
            f"key makes no others: failures={attempts} or less, or more attempts"
        )


def check_state(mine: Subscription) -> None:
    """Can state that is kept beside the store be kept as promised?"""
    if mine.state is None:
        return
    what = f"{mine.name}: state={mine.state!r}"
    if mine.order == "none":
        raise UsageError(f'{what} with order="none": two events of a key could change it at once; order="key" it needs')
    if mine.partitions > 1:
        raise UsageError(
            f"{what} with partitions={mine.partitions}: a partition may move to another machine, and the folder does "
            "not; leave one of them out"
        )
    if mine.rehearsable:
        raise UsageError(f"{what} with rehearsable=True: a rehearsal cannot look into it; leave one of them out")


def count_arguments(function: Callable[..., Any], shape: str) -> int:
    """How many of the (event, …) arguments the function takes; a wrong signature is an error at import."""
    name = getattr(function, "__name__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{name} has a `yield` in it, so that calling it does nothing; write def {name}{shape}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(f"{name} has no readable signature; write def {name}{shape}") from None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    extra = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if extra or len(required) > 2 or not positional or (len(required) < 2 and len(positional) > 2):
        raise UsageError(f"{name} takes {len(required) or len(positional)} arguments; write def {name}{shape}")
    return 2 if len(positional) >= 2 else 1


def overruled_letters(rules: Rules, said: LetterSettings, where: str) -> Rules:
    """Which failed events become dead letters: as the settings say, and else as the code does."""
    return overruled(
        rules,
        None if said.discard is None else written(f"{where}.discard`", said.discard),
        None if said.keep is None else written(f"{where}.keep`", said.keep),
        None if said.keep_if is None else _function(f"{where}.keep_if`", said.keep_if),
    )


def _function(option: str, reference: str) -> Callable[[Any], bool]:
    """MODULE:FUNCTION; whoever writes the settings file chooses what runs, as whoever writes the program does."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{option}: there is no {reference}: {error}") from error
    if not callable(found):
        raise UsageError(f"{option}: {reference} is no function: it takes the letter and answers True or False")
    return found  # type: ignore[no-any-return]
