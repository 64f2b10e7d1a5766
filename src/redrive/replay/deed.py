"""What every deed of an operator leaves behind: a receipt, and the rules it keeps while it is done.

A deed is one transaction: the subscription's row first, then the letter, then the audit. No deed runs a
user's function, and none waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redrive.clock import Env
from redrive.errors import UsageError
from redrive.failpoints import hit
from redrive.observe.signals import Operated, Signals
from redrive.store.port import LetterRow, Store, StoreTx, Subscribed

Told = Callable[[int, int], None]  # how much is done, of how much
WITHOUT_KEYS = ("mirror", "intake")  # kinds of subscription that call no function
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

    def why_not(self, letter: LetterRow, now: float) -> str:
        """Why this letter is no part of it after all, or nothing; asked in the transaction of the deed."""
        return ""

    def left(self, tx: StoreTx, letters: Collection[int]) -> Collection[int]:
        """Which of these are still to be done, from the transaction of the deed: it may have been cancelled since."""
        return letters

    def delay(self, letter: int) -> float:
        """How many seconds from now this letter's turn comes."""
        return 0.0

    def record(self, tx: StoreTx, action: str, done: Sequence[int], refused: Sequence[Refusal]) -> None:
        """Write down what came of some letters, in the transaction that did it."""


NO_TICKET = Ticket()


class Nothing(Exception):
    """Everything was refused: roll back, so that a refused deed leaves no trace."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who changes things, by name, on one store."""

    store: Store
    env: Env
    signals: Signals | None = None
    who: str = "operator"

    def now(self) -> float:
        """The time that goes into the books."""
        return self.env.clock.now()

    @contextmanager
    def acting(self, subscription: int) -> Iterator[StoreTx]:
        """The transaction of a deed; it begins with the subscription's row, which tells the owner to look again."""
        try:
            with self.store.transaction() as tx:
                tx.progress.lock(subscription)
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
