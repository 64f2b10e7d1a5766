"""What every deed of an operator leaves behind: a receipt, and the rules it keeps while it is done.

A deed is one transaction: the subscription's row first, then the letter, then the audit. No deed runs a
user's function, and none waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any

from redrive.clock import Clock, Env
from redrive.errors import CommitUnknown, NotBegun, StoreBusy, StoreError, UsageError, is_conflict
from redrive.failpoints import hit
from redrive.observe.signals import Operated, Signals
from redrive.policy.lanes import ONCE
from redrive.store.port import LetterRow, Store, StoreTx, Subscribed

Told = Callable[[int, int], None]  # how much is done, of how much
WITHOUT_KEYS = ("mirror", "intake")  # kinds of subscription that call no function
TRY_AGAIN_SECONDS = 0.02  # between two tries for a lock that others hold
GIVE_WAY_SECONDS = 0.002  # between two transactions of one command: the store looks for the lock every millisecond
WHO_MAX = 200  # characters of a name: it stands in every listing of the audit


def untold(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A letter that was left as it is, and why."""

    letter: int
    why: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What came of a deed: every letter that was named is in exactly one of the two."""

    action: str
    done: tuple[int, ...]
    refused: tuple[Refusal, ...] = ()


class Ticket:
    """What a deed is part of. By itself it is part of nothing, and nothing is recorded."""

    operation: int | None = None
    automatic = False  # did nobody ask for it? Then it is counted
    pace = ONCE  # of a replay: is its rate given, so that the retry budget does not bound it?

    def why_not(self, letter: LetterRow, now: float) -> str:
        """Why this letter is no part of it after all, or nothing; asked in the transaction of the deed."""
        return ""

    def left(self, tx: StoreTx, letters: Collection[int]) -> Collection[int]:
        """Which of these are still to be done, from the transaction of the deed: it may have been cancelled since."""
        return letters

    def due_at(self, now: float) -> float:
        """When the turn of the next letter comes."""
        return now

    def record(self, tx: StoreTx, action: str, done: Sequence[int], refused: Sequence[Refusal]) -> None:
        """Write down what came of some letters, in the transaction that did it."""


NO_TICKET = Ticket()


class Tries:
    """How long a command of an operator goes on trying while others are in its way."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock, self._patience = clock, patience
        self._since = clock.monotonic()

    def may_go_on(self, error: StoreError) -> bool:
        """Wait a moment before the next try; False if another try is no use, or the time is over."""
        if not (isinstance(error, StoreBusy | NotBegun | CommitUnknown) or is_conflict(error)):
            return False
        if self._clock.monotonic() - self._since >= self._patience:
            return False
        sleep(TRY_AGAIN_SECONDS)
        return True

    def went_well(self) -> None:
        """A step is done: the time counts from here on again."""
        self._since = self._clock.monotonic()


class Nothing(Exception):
    """Everything was refused: roll back, so that a refused deed leaves no trace."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who changes things, by name, on one store."""

    store: Store
    env: Env
    signals: Signals | None = None
    who: str = "operator"
    patience: float = 0.0  # seconds for which a command goes on trying while others hold the write lock

    def tries(self) -> Tries:
        """For a command that consists of several transactions."""
        return Tries(self.env.clock, self.patience)

    def give_way(self) -> None:
        """Between two transactions of one command: whoever waits for the write lock looks every millisecond."""
        if self.patience:
            sleep(GIVE_WAY_SECONDS)

    @contextmanager
    def transaction(self, *subscriptions: int) -> Iterator[StoreTx]:
        """Begin for writing, and lock these subscriptions; goes on trying while others are in the way."""
        tries = self.tries()
        while True:
            is_begun = False
            try:
                with self.store.transaction() as tx:
                    for subscription in subscriptions:
                        tx.progress.lock(subscription)
                    is_begun = True
                    yield tx
                return
            except StoreError as error:  # nothing is begun again that the caller has seen
                if is_begun or isinstance(error, CommitUnknown) or not tries.may_go_on(error):
                    raise

    def now(self) -> float:
        """The time that goes into the books."""
        return self.env.clock.now()

    @contextmanager
    def acting(self, subscription: int) -> Iterator[StoreTx]:
        """The transaction of a deed; it begins with the subscription's row, which tells the owner to look again."""
        try:
            with self.transaction(subscription) as tx:
                yield tx
                hit("operator.before_commit")
        except Nothing:
            return
        hit("operator.committed")

    def audit(
        self, tx: StoreTx, action: str, subscription: str, target: str, reason: str, details: dict[str, Any]
    ) -> int:
        """Write down who did what and why, in the transaction that does it."""
        return tx.books.audit(self.now(), self.who, action, subscription, target, reason, details)

    def tell(self, action: str, subscription: str, *targets: str) -> None:
        """It is committed: listeners may hear of it."""
        if self.signals is not None:
            self.signals.tell([Operated(action, subscription, target, self.who) for target in targets])


def find(tx: StoreTx, name: str) -> Subscribed:
    """The subscription of this name; an unknown one is an error that names those there are."""
    row = tx.progress.find(name)
    if row is None:
        known = [other.name for other in tx.progress.all()]
        raise UsageError(f"there is no subscription {name!r} in this store; {hint(name, known)}")
    return row


def hint(name: str, known: Sequence[str]) -> str:
    """What somebody may have meant: the nearest of the names that are known, or which there are."""
    import difflib  # only ever needed on the way out

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"


def need_function(row: Subscribed) -> Subscribed:
    """Refuse to move the reading of a broker: what it has landed is in the log, and would not land again."""
    if row.kind == "mirror":
        raise UsageError(
            f"{row.name!r} is a mirror of letters, which can be paused and resumed, and nothing else; "
            "one with another name begins at the beginning"
        )
    if row.kind == "intake":
        raise UsageError(
            f"{row.name!r} is the reading of a broker, which can be paused and resumed, and nothing else; "
            f"rebuild or seek the subscriptions that read log {row.source!r}"
        )
    return row


def need_reason(action: str, reason: str) -> None:
    """What cannot be taken back easily is not done without saying why."""
    if not reason.strip():
        raise UsageError(f"{action} needs a reason; it goes into the audit")


def whoami() -> str:
    """The user this process runs as, for the audit."""
    import getpass
    import os

    try:
        return getpass.getuser().encode("utf-8", "backslashreplace").decode()[:WHO_MAX]  # an environment holds bytes
    except (KeyError, OSError):  # a container often runs as a number without a name
        return f"uid {os.getuid()}"
