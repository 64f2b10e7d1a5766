"""The hold desk: keep the events of a key back, and release them.

A hold is a row. The owner of a subscription reads it as soon as the row is committed: the key's next event becomes a
letter, uncalled, and what follows waits behind it as behind any other letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.errors import EventError, UsageError
from redrive.event import check_key
from redrive.failpoints import hit
from redrive.policy.holds import ALL, FOREVER, Hold, Holds
from redrive.policy.letters import OPEN
from redrive.replay.deed import WITHOUT_KEYS, Operator, find, need_function, need_reason
from redrive.store.holds import (
    HeldLetter,
    all_holds,
    drop_ended,
    drop_hold,
    find_hold,
    held_letters,
    holds_of,
    set_due,
    set_hold,
)
from redrive.store.port import LetterRow, StoreTx, Subscribed
from redrive.units import duration

HOLDS_MAX = 1_000  # of a subscription, and as many of all: its owner reads them at each change of a letter
LETTERS_MAX = 200  # held letters changed in one transaction: bounds how long it holds the write lock

Until = str | float | timedelta | datetime


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """One hold at one moment. Times are seconds since 1970."""

    subscription: str | None  # None: every subscription
    key: str  # as an operator writes it: with a star at the end it is a prefix
    is_prefix: bool
    until: float | None  # None: until it is released
    since: float
    who: str
    reason: str
    letters: int  # that wait at the head of a key because of it


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is to become of a hold: another one, or none."""

    rows: Sequence[Subscribed]  # the subscriptions that it concerns
    subscription: int
    pattern: str
    is_prefix: bool
    hold: Hold | None

    def is_about(self, hold: Hold) -> bool:
        """Is this the hold that is changed?"""
        return (hold.subscription, hold.pattern, hold.is_prefix) == (self.subscription, self.pattern, self.is_prefix)

    @property
    def shown(self) -> str:
        """The key as an operator writes it."""
        return f"{self.pattern}*" if self.is_prefix else self.pattern


class HoldDesk:
    """All holds of one store.

    >>> app.operate("ada").holds.list()
    []
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def list(self, subscription: str | None = None) -> Sequence[HoldStatus]:
        """Every hold that has not ended, or those that concern one subscription; the oldest first."""
        now = self._operator.now()
        with self._operator.store.reading() as tx:
            rows = tx.progress.all()
            names = {row.id: row.name for row in rows}
            wanted = [find(tx, subscription)] if subscription is not None else rows
            held = {
                row.id: [letter.key for page in _pages(tx, row.id) for letter in page if letter.key] for row in wanted
            }
            holds = all_holds(tx.sql) if subscription is None else holds_of(tx.sql, wanted[0].id)
        found = []
        for hold in holds:
            if hold.ends_at(now) > now:
                concerned = held if hold.subscription == ALL else {0: held.get(hold.subscription, [])}
                count = sum(1 for keys in concerned.values() for key in keys if hold.covers(key))
                found.append(_status(hold, names.get(hold.subscription), count, now))
        return found

    def hold(
        self, subscription: str | None, reason: str, *, key: str | None = None, prefix: str | None = None,
        until: Until | None = None,
    ) -> HoldStatus:  # fmt: skip
        """Keep the events of a key back, or of every key that begins with `prefix`, until then or until `release`.

        Args:
            subscription: Its name; None holds the key in every subscription, also in those that are declared later.
            reason: Goes into the audit, and is shown with everything that waits.
            key: The key as the subscription sees it, so what `key_by` gives where there is one.
            prefix: The beginning of keys, in place of a key.
            until: A duration ("2h"), a time, or seconds since 1970. Without it: until it is released.

        A key that is held already gets this reason and end. A call that is under way ends, and counts.
        """
        need_reason("hold", reason)
        pattern, is_prefix = _pattern(key, prefix)
        now = self._operator.now()
        end = None if until is None else moment_to(until, now)
        chosen = self._chosen(subscription)
        number = ALL if subscription is None else chosen[0].id
        hold = Hold(0, number, pattern, is_prefix, end, now, self._operator.who, reason)
        wish = _Wish(chosen, number, pattern, is_prefix, hold)
        self._change(wish, "hold", subscription, reason, {"until": end})
        return _status(hold, subscription, 0, now)

    def release(
        self, subscription: str | None, reason: str = "", *, key: str | None = None, prefix: str | None = None
    ) -> bool:
        """End a hold: letters that wait because of it are due now. False if there is no such hold.

        The hold is named as it was made: one by prefix is released by this prefix, one of every subscription by None.
        """
        pattern, is_prefix = _pattern(key, prefix)
        chosen = self._chosen(subscription)
        number = ALL if subscription is None else chosen[0].id
        return self._change(_Wish(chosen, number, pattern, is_prefix, None), "release", subscription, reason, {})

    def why(self, letter: LetterRow) -> str | None:
        """By whom the key of an open letter is held, since when, until when and why; None: it is not held."""
        now = self._operator.now()
        with self._operator.store.reading() as tx:
            hold = hold_on(tx, letter.subscription_id, letter.key, now) if letter.state in OPEN else None
        return None if hold is None else told(hold, now)

    def keeping(self, letters: Sequence[LetterRow]) -> dict[int, str]:
        """Of these letters, by number, those whose key is held: by whom, why, and the command that releases it."""
        now, found = self._operator.now(), {}
        with self._operator.store.reading() as tx:
            holds = {number: holds_of(tx.sql, number) for number in {letter.subscription_id for letter in letters}}
        for letter in letters:
            if (hold := _longest(holds[letter.subscription_id], letter.key, now)) is not None:
                found[letter.id] = f"{told(hold, now)}; {release_hint(hold, letter.subscription)}"
        return found

    # ------------------------------------------------------------ how

    def _chosen(self, subscription: str | None) -> Sequence[Subscribed]:
        """The subscriptions that are meant; of all, those that call a function."""
        with self._operator.store.reading() as tx:
            if subscription is not None:
                return [need_function(find(tx, subscription))]
            return sorted((row for row in tx.progress.all() if row.kind not in WITHOUT_KEYS), key=lambda row: row.id)

    def _change(
        self, wish: _Wish, action: str, subscription: str | None, reason: str, details: dict[str, object]
    ) -> bool:
        """Set the held letters' due times some at a time, and with the last of them the hold itself.

        Until then the owner keeps them back as before: whoever is killed in between can do the same again.
        """
        after = {row.id: 0 for row in wish.rows}
        is_done = False
        while not is_done:
            with self._operator.transaction(*(row.id for row in wish.rows)) as tx:
                now = self._operator.now()
                if not self._is_possible(tx, wish, now):
                    return False
                is_done = self._set_due(tx, wish, after, now)
                if is_done:
                    self._write(tx, wish, action, subscription or "", reason, details)
                hit("operator.before_commit")
            hit("operator.committed")
        self._operator.tell(action, subscription or "", f"key {wish.shown}")
        return True

    def _is_possible(self, tx: StoreTx, wish: _Wish, now: float) -> bool:
        found = find_hold(tx.sql, wish.subscription, wish.pattern, is_prefix=wish.is_prefix)
        if wish.hold is None:
            return found is not None  # by another clock it may not have ended
        drop_ended(tx.sql, now)
        if found is None and len(mine := _mine(tx, wish.subscription)) >= HOLDS_MAX:
            raise UsageError(
                f"{len(mine):,} keys are held there already, which is the limit: hold a prefix (--key 'tenant-7/*'), "
                "or pause the subscription"
            )
        return True

    def _set_due(self, tx: StoreTx, wish: _Wish, after: dict[int, int], now: float) -> bool:
        """Make the next held letters due as they will be; were they the last ones?"""
        room = LETTERS_MAX
        for row in wish.rows:
            letters = held_letters(tx.sql, row.id, after[row.id], room)
            if letters:
                left = [hold for hold in holds_of(tx.sql, row.id) if not wish.is_about(hold)]
                holds = Holds([*left, wish.hold] if wish.hold else left, now=now)
                changed = Hold(0, 0, wish.pattern, wish.is_prefix, None, 0.0, "", "")
                for letter in letters:
                    if letter.key is None or letter.due_at <= now or not changed.covers(letter.key):
                        continue  # one that is due may run at this moment: a change would take its attempt back
                    if letter.due_at != (due_at := holds.until(letter.key, now) or now):
                        set_due(tx.sql, letter.id, letter.rev, due_at, now)
                        tx.letters.changes.add(row.id, [(letter.id, letter.lane)])
                after[row.id] = letters[-1].id
            room -= len(letters)
            if room <= 0:
                return False
        return True

    def _write(
        self, tx: StoreTx, wish: _Wish, action: str, subscription: str, reason: str, details: dict[str, object]
    ) -> None:
        found = find_hold(tx.sql, wish.subscription, wish.pattern, is_prefix=wish.is_prefix)
        if wish.hold is not None:
            set_hold(tx.sql, wish.hold)
        elif found is not None:
            drop_hold(tx.sql, found.id)
            details = {"since": found.set_at, "by": found.who, "because": found.reason}
        self._operator.audit(tx, action, subscription, f"key {wish.shown}", reason, details)


def moment_to(until: Until, now: float) -> float:
    """The time that is meant, in seconds since 1970; one that is over is an error.

    >>> moment_to("2h", 100.0)
    7300.0
    """
    found = _moment(until, now)
    if not now < found <= FOREVER:
        raise UsageError(f"until: {until!r} is over or after the year 9999; give a duration like 2h or a time to come")
    return found


def _moment(until: Until, now: float) -> float:
    match until:
        case timedelta():
            return now + until.total_seconds()
        case datetime():
            time = until
        case str():
            try:
                return now + duration(until)
            except ValueError:
                pass
            try:
                time = datetime.fromisoformat(until)
            except ValueError:
                raise UsageError(
                    f"until: {until!r} is neither a duration like 2h nor a time like 2026-01-31T03:00Z"
                ) from None
        case int() | float():
            return float(until)
        case _:
            raise UsageError(f"until: {until!r} is no time; give a duration like 2h or a datetime with a time zone")
    if time.tzinfo is None:
        raise UsageError(f"until: {str(until)!r} has no time zone; append Z or +01:00")
    return time.timestamp()


def hold_on(tx: StoreTx, subscription: int, key: str | None, now: float) -> Hold | None:
    """The hold that keeps this key back longest; None: it is not held."""
    return None if key is None else _longest(holds_of(tx.sql, subscription), key, now)


def _longest(holds: Iterable[Hold], key: str | None, now: float) -> Hold | None:
    found = [hold for hold in holds if key is not None and hold.covers(key) and hold.ends_at(now) > now]
    return max(found, key=lambda hold: hold.ends_at(now), default=None)


def told(hold: Hold, now: float) -> str:
    """In words: who holds the key since when, until when, and why."""
    since = _time(hold.set_at)
    until = "until it is released" if hold.until is None else f"until {_time(hold.ends_at(now))}"
    return f"held by {hold.who} since {since}, {until}: {hold.reason}"


def release_hint(hold: Hold, name: str) -> str:
    """The command that releases it."""
    import shlex  # only ever needed on the way out

    where = "--all" if hold.subscription == ALL else shlex.quote(name)
    return f"redrive release {where} --key {shlex.quote(hold.shown)}"


def _time(at: float) -> str:
    from datetime import UTC

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _pattern(key: str | None, prefix: str | None) -> tuple[str, bool]:
    """(pattern, is it a prefix?) of what an operator names."""
    if (key is None) == (prefix is None):
        raise UsageError("name a key or a prefix of keys, one of the two")
    if prefix == "":
        raise UsageError("a prefix of nothing holds every key: use `redrive pause` for a whole subscription")
    pattern = key if key is not None else prefix
    assert pattern is not None
    try:
        return check_key(pattern), prefix is not None
    except EventError as error:
        raise UsageError(str(error)) from None


def _mine(tx: StoreTx, subscription: int) -> Sequence[Hold]:
    return [hold for hold in all_holds(tx.sql) if hold.subscription == subscription]


def _pages(tx: StoreTx, subscription: int) -> Iterator[Sequence[HeldLetter]]:
    after = 0
    while page := held_letters(tx.sql, subscription, after, LETTERS_MAX):
        yield page
        after = page[-1].id


def _status(hold: Hold, name: str | None, letters: int, now: float) -> HoldStatus:
    until = None if hold.until is None else hold.ends_at(now)
    return HoldStatus(name, hold.shown, hold.is_prefix, until, hold.set_at, hold.who, hold.reason, letters)
