"""The letter desk: replay, now, postpone, discard, resolve, edit, reopen.

Every deed works with no worker running, and from another process. A letter is changed by its id and
revision only; an attempt that was under way loses, drops its effects and leaves its outcome in the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redrive.clock import Env
from redrive.codec import encode_data
from redrive.event import Event, from_row
from redrive.observe.signals import Signals
from redrive.policy.action import BAD_KEY
from redrive.policy.letters import OPEN, State
from redrive.replay.deed import NO_TICKET, Nothing, Operator, Receipt, Refusal, Ticket, need_reason
from redrive.replay.holds import Until, hold_on, moment_to, release_hint, told
from redrive.replay.shelf import LetterShelf
from redrive.runner.call import find_key
from redrive.sources.refusal import REASONS
from redrive.store.holds import set_due
from redrive.store.port import LetterRow, Store, StoreTx
from redrive.types import EventTypes

CHUNK_MAX = 200  # letters per transaction at most
CHUNK_TIME_MAX = 0.1  # seconds after which a transaction takes no more letters: others wait for the write lock

KeyOf = Callable[[Event[Any]], str | None]
Target = int | LetterRow  # a row that was looked at says which revision is meant
Targets = Target | Iterable[Target]
Change = Callable[[StoreTx, LetterRow, float], str]  # does it and returns "", or says why not

UNKEYED = (BAD_KEY, *REASONS)  # in a lane of its own: nobody could tell which key it has


class LetterDesk(LetterShelf):
    """Everything an operator can do to letters.

    >>> desk = app.operate("ada").letters
    >>> desk.list()
    []
    """

    def __init__(
        self,
        store: Store,
        env: Env,
        signals: Signals | None = None,
        who: str = "operator",
        *,
        keys: Mapping[str, KeyOf] | None = None,
        types: EventTypes | None = None,
        patience: float = 0.0,
    ) -> None:
        super().__init__(store, types)
        self._operator = Operator(store, env, signals, who, patience)
        self._keys = keys or {}

    # ------------------------------------------------------------ deeds

    def replay(self, targets: Targets, reason: str = "", *, within: Ticket = NO_TICKET) -> Receipt:
        """Send dead letters round once more: one attempt, then dead again. Only the head of a lane may go."""

        def change(tx: StoreTx, letter: LetterRow, now: float) -> str:
            why = _not_replayable(tx, letter) or within.why_not(letter, now)
            values = {
                "now": now,
                "operation": within.operation,
                "automatic": int(within.automatic),
                "pace": within.pace,
            }
            values["due_at"] = now if why else within.due_at(now)
            return why or _lost(tx.sql.run("letter_replay", {"id": letter.id, "rev": letter.rev, **values}))

        return self._do("replay", targets, reason, change, within)

    def now(self, targets: Targets, reason: str = "") -> Receipt:
        """Make retrying letters due at once; the attempts that they have made stay counted."""

        def change(tx: StoreTx, letter: LetterRow, now: float) -> str:
            why = _not_waiting(tx, letter, now) or ("" if letter.due_at > now else "it is due already")
            return why or _lost(set_due(tx.sql, letter.id, letter.rev, now, now))

        return self._do("now", targets, reason, change)

    def postpone(self, targets: Targets, until: Until, reason: str = "") -> Receipt:
        """Make retrying letters due then: a duration ("2h"), a time, or seconds since 1970. No attempt is spent."""
        due_at = moment_to(until, self._operator.now())

        def change(tx: StoreTx, letter: LetterRow, now: float) -> str:
            why = _not_waiting(tx, letter, now) or _lost(set_due(tx.sql, letter.id, letter.rev, due_at, now))
            if not why:
                self._note(tx, "postpone", letter, reason, {"until": due_at})
            return why

        return self._do("postpone", targets, reason, change, audited=True)

    def discard(self, targets: Targets, reason: str, *, within: Ticket = NO_TICKET) -> Receipt:
        """Give open letters up for good; what waits behind them runs."""
        need_reason("discard", reason)
        return self._do("discard", targets, reason, self._closing("discard"), within)

    def resolve(self, targets: Targets, reason: str, *, within: Ticket = NO_TICKET) -> Receipt:
        """What these events ask for was done elsewhere: settled like a discard, and `resolved_by` tells which."""
        need_reason("resolve", reason)
        return self._do("resolve", targets, reason, self._closing("resolve"), within)

    def edit(self, target: Target, data: Any, reason: str, *, within: Ticket = NO_TICKET) -> Receipt:
        """Give an open letter other data. Id and key stay; the log keeps the original, and every edit is kept."""
        return self.edit_all(target, lambda letter: data, reason, within=within)

    def edit_all(
        self, targets: Targets, data: Callable[[int], Any], reason: str, *, within: Ticket = NO_TICKET
    ) -> Receipt:
        """Give open letters other data, each its own: `data` is called with a letter's number before it is locked."""
        need_reason("edit", reason)
        several = _several(targets)
        raws = {number: encode_data(data(number)) for number in _wanted(several)}

        def change(tx: StoreTx, letter: LetterRow, now: float) -> str:
            raw = raws[letter.id]
            why = _not_open(letter) or self._other_key(tx, letter, raw)
            if why:
                return why
            where = {"subscription": letter.subscription_id, "position": letter.position}
            rev = 1 + max((row[0] for row in tx.sql.all("edits_of", where)), default=0)
            if not tx.sql.run("letter_edit", {"id": letter.id, "rev": letter.rev, "edits": rev, "now": now}):
                return _lost(0)
            audit = self._note(tx, "edit", letter, reason, {"edit": rev, "bytes": len(raw)})
            tx.sql.run("edit_add", {**where, "rev": rev, "data": raw, "audit": audit})
            return ""

        return self._do("edit", several, reason, change, within, audited=True)

    def reopen(self, target: Target, reason: str) -> Receipt:
        """Ask the owner to take a discard back; it does so when the lane is idle and nothing later was applied."""
        need_reason("reopen", reason)
        operator = self._operator

        def change(tx: StoreTx, letter: LetterRow, now: float) -> str:
            if letter.state != State.DISCARDED:
                return f"it is {letter.state}; only a discarded letter can be reopened"
            tx.books.ask(letter.subscription_id, "reopen", letter.id, letter.rev, operator.who, reason, now)
            return ""

        return self._do("reopen", target, reason, change)

    # ------------------------------------------------------------ how

    def _do(
        self, action: str, targets: Targets, reason: str, change: Change, within: Ticket = NO_TICKET, *,
        audited: bool = False,
    ) -> Receipt:  # fmt: skip
        """Lock, look again, change, audit: a transaction per chunk of one subscription's letters, lanes in order."""
        wanted = _wanted(targets)
        refused: list[Refusal] = []
        by_subscription: dict[int, list[LetterRow]] = {}
        with self._store.reading() as tx:
            for number in wanted:
                found = tx.letters.get(number)
                if found is None:
                    refused.append(Refusal(number, "there is no such letter"))
                else:
                    by_subscription.setdefault(found.subscription_id, []).append(found)
        done: list[int] = []
        for subscription in sorted(by_subscription):
            letters = sorted(by_subscription[subscription], key=lambda letter: letter.position)
            while letters:
                if done or refused:
                    self._operator.give_way()
                chunk = letters[:CHUNK_MAX]
                count, changed, left = self._chunk(action, subscription, chunk, wanted, reason, change, within, audited)
                letters = letters[count:]
                done += changed
                refused += left
        return Receipt(action, tuple(done), tuple(refused))

    def _chunk(
        self, action: str, subscription: int, chunk: list[LetterRow], wanted: dict[int, int | None], reason: str,
        change: Change, within: Ticket, audited: bool,
    ) -> tuple[int, list[int], list[Refusal]]:  # fmt: skip
        """How many of the chunk were looked at, which were changed, and which were refused."""
        done: list[int] = []
        refused: list[Refusal] = []
        missed: list[Refusal] = []  # answered for by somebody else: nothing is recorded
        name, count, monotonic = chunk[0].subscription, 0, self._operator.env.clock.monotonic
        with self._operator.acting(subscription) as tx:
            now, until = self._operator.now(), monotonic() + CHUNK_TIME_MAX
            left = within.left(tx, [letter.id for letter in chunk])
            for seen in chunk:
                if count and monotonic() >= until:
                    break
                count += 1
                if seen.id not in left:
                    missed.append(Refusal(seen.id, "the operation was cancelled, or asked for it already"))
                    continue
                letter = tx.letters.get(seen.id)
                assert letter is not None, "letters are never deleted while they can be named"
                rev = wanted[letter.id]
                why = _moved(letter) if rev not in (None, letter.rev) else change(tx, letter, now)
                if why:
                    refused.append(Refusal(letter.id, why))
                    continue
                done.append(letter.id)
                if not audited:
                    self._note(tx, action, letter, reason, {})
            tx.letters.changes.add(subscription, [(letter.id, letter.lane) for letter in chunk if letter.id in done])
            within.record(tx, action, done, refused)
            if not done and within.operation is None:
                raise Nothing
        self._operator.tell(action, name, *(f"letter {number}" for number in done))
        return count, done, [*refused, *missed]

    def _note(self, tx: StoreTx, action: str, letter: LetterRow, reason: str, more: dict[str, Any]) -> int:
        facts = {"event": letter.event_id, "position": letter.position, "rev": letter.rev, "was": letter.state}
        return self._operator.audit(tx, action, letter.subscription, f"letter {letter.id}", reason, facts | more)

    def _closing(self, how: str) -> Change:
        resolved_by = f"{how}: {self._operator.who}"

        def change(tx: StoreTx, letter: LetterRow, now: float) -> str:
            why = _not_open(letter)
            if why:
                return why
            values = {"id": letter.id, "rev": letter.rev, "now": now, "resolved_by": resolved_by}
            return _lost(tx.sql.run("letter_discard", values))

        return change

    def _other_key(self, tx: StoreTx, letter: LetterRow, raw: bytes) -> str:
        """Would the new data put the event into another lane? A letter without a usable key may get one."""
        key_of, row = self._keys.get(letter.subscription), tx.letters.event(letter.id)
        if key_of is None or row is None or (letter.lane is None and letter.reason in UNKEYED):
            return ""
        key, problem = find_key(key_of, from_row(row, self._types).with_data(raw))
        if problem is not None:
            return f"with this data it has no key any more: {problem.failure.message}"
        if key != letter.key:
            return f"this data changes its key from {letter.key!r} to {key!r}, which an edit cannot do: append it anew"
        return ""


def _not_waiting(tx: StoreTx, letter: LetterRow, now: float) -> str:
    """Why its due time is not to be changed, or nothing."""
    if letter.state != State.RETRYING:
        known = {State.DEAD: "dead: replay it", State.APPLIED: "applied already"}
        return f"it is {known.get(State(letter.state), letter.state)}; only a retrying letter has a due time"
    if (hold := hold_on(tx, letter.subscription_id, letter.key, now)) is not None:
        return f"its key is {told(hold, now)}; {release_hint(hold, letter.subscription)}"
    return _behind(tx, letter)


def _behind(tx: StoreTx, letter: LetterRow) -> str:
    if letter.state in OPEN and letter.lane is not None:
        head = tx.letters.head(letter.subscription_id, letter.lane)
        if head is not None and head.letter != letter.id:
            return (
                f"it waits behind letter {head.letter} (position {head.position}), the head of lane {letter.lane!r}: "
                "replay or discard that one first"
            )
    return ""


def _not_replayable(tx: StoreTx, letter: LetterRow) -> str:
    if why := _behind(tx, letter):
        return why
    if letter.state != State.DEAD:
        known = {State.RETRYING: "retrying: it runs by itself", State.APPLIED: "applied already"}
        return f"it is {known.get(State(letter.state), letter.state)}; only a dead letter can be replayed"
    return ""


def _several(targets: Targets) -> list[Target]:
    return [targets] if isinstance(targets, int | LetterRow) else list(targets)


def _wanted(targets: Targets) -> dict[int, int | None]:
    """Which letters are meant, each with the revision that was looked at, if the caller looked."""
    return {one.id if isinstance(one, LetterRow) else int(one): getattr(one, "rev", None) for one in _several(targets)}


def _not_open(letter: LetterRow) -> str:
    return "" if letter.state in OPEN else f"it is {letter.state} already"


def _moved(letter: LetterRow) -> str:
    return f"it changed since you looked: it is {letter.state} now (revision {letter.rev}); look again"


def _lost(changed: int) -> str:
    assert changed in (0, 1)
    return "" if changed else "it changed at this very moment; look again"
