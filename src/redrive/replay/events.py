"""Looking at events: the newest of a log, those that follow a position, one by its id. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive.errors import UsageError
from redrive.store.port import Store, StoreTx
from redrive.store.sql import Row

PAGE_MAX = 10_000  # events per page: a page is read into memory
EVERYWHERE = 2**62  # above all positions and times
PATTERN_CHARS_MAX = 1_000  # a type has 200 at most; SQLite refuses patterns of 50,000
SHOWN_MAX = 5  # of several events or names in one sentence


class EventRow(NamedTuple):
    """An event as a listing knows it; headers and data only if they were asked for."""

    position: int
    log: str
    id: str
    type: str
    key: str | None
    version: int | None
    schema: int
    time_us: int
    size: int
    headers_raw: bytes | None = None
    data_raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are meant: everything that is given must hold. Times are seconds since 1970."""

    log: str | None = None
    key: str | None = None
    type: str | None = None  # a name, or a glob like order.*
    since: float | None = None
    until: float | None = None


def newest(store: Store, wanted: Wanted, limit: int, *, payload: bool = False) -> list[EventRow]:
    """The last events, in order."""
    with store.reading() as tx:
        return _page(tx, wanted, 0, EVERYWHERE, limit, payload, newest=True)


def following(
    store: Store, wanted: Wanted, after: int, limit: int, *, upto: int = EVERYWHERE, payload: bool = False
) -> list[EventRow]:
    """The next events above a position, in order."""
    with store.reading() as tx:
        return _page(tx, wanted, after, upto, limit, payload, newest=False)


def last_position(store: Store, log: str | None = None) -> int:
    """The position of the newest event of a log, or of any; 0 if there is none."""
    with store.reading() as tx:
        if log is not None:
            return tx.logs.last(tx.logs.id_of(log))
        return max((tx.logs.last(number) for number, _ in tx.sql.all("log_all")), default=0)


def find_log(tx: StoreTx, name: str) -> int:
    """The number of a log; an unknown one is an error that names the nearest."""
    found = tx.logs.id_of(name)
    if not found:
        raise UsageError(unknown_log(tx, name))
    return found


def unknown_log(tx: StoreTx, name: str) -> str:
    """What to say about a log that is not there."""
    import difflib  # only ever needed on the way out

    known = [other for _, other in tx.sql.all("log_all")]
    near = difflib.get_close_matches(name, known, n=1)
    shown = ", ".join(known[:SHOWN_MAX]) + (", …" if len(known) > SHOWN_MAX else "")
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {shown or 'none'}"
    return f"there is no log {name!r} in this store; {hint}"


def find_event(tx: StoreTx, text: str, log: str | None = None) -> EventRow:
    """The event with this id, or the only one whose id begins so."""
    logs = [(name, number) for number, name in tx.sql.all("log_all")] if log is None else [(log, find_log(tx, log))]
    whole, begun = [], []
    for name, number in logs:
        for position, event in tx.sql.all("events_by_prefix", {"log": number, "start": text, "limit": SHOWN_MAX + 1}):
            if event == text:
                whole.append((name, number, position, event))
            elif event.startswith(text):
                begun.append((name, number, position, event))
    found = whole or begun
    if len(found) == 1:
        name, number, position, _ = found[0]
        values = _values(Wanted(log=name), position - 1, position, 1, payload=True) | {"log": number}
        return _row(tx.sql.all("events_up", values)[0], {number: name})
    if not found:
        where = "this store" if log is None else f"log {log!r}"
        raise UsageError(f"there is no event {text!r} in {where}; `redrive events` shows those there are")
    if whole:
        raise UsageError(f"there is an event {text!r} in logs {', '.join(one[0] for one in whole)}: add --log")
    several = ", ".join(one[3] for one in begun[:SHOWN_MAX]) + (", …" if len(begun) > SHOWN_MAX else "")
    raise UsageError(f"several events begin with {text!r}: {several}")


def _page(
    tx: StoreTx, wanted: Wanted, after: int, upto: int, limit: int, payload: bool, *, newest: bool
) -> list[EventRow]:
    values = _values(wanted, after, upto, limit, payload=payload)
    names: dict[int, str] = dict(tx.sql.all("log_all"))
    if wanted.key is not None:
        numbers = list(names) if wanted.log is None else [find_log(tx, wanted.log)]
        each = [_of_key(tx, {**values, "log": number}, newest=newest) for number in numbers]
        rows = sorted((row for of_log in each for row in of_log), key=lambda row: row[0], reverse=newest)[:limit]
    else:
        log = None if wanted.log is None else find_log(tx, wanted.log)
        rows = _in_order(tx, {**values, "log": log}, newest=newest)
    return [_row(row, names) for row in (reversed(rows) if newest else rows)]


def _of_key(tx: StoreTx, where: dict[str, Any], *, newest: bool) -> list[Row]:
    """By the index on keys; what a broker gave is not in it, and its log is read until there are enough."""
    if tx.sql.value("log_landed_from", (where["log"],)) is not None:
        return _in_order(tx, where, newest=newest)
    return tx.sql.all("events_of_key_down" if newest else "events_of_key_up", where)


def _in_order(tx: StoreTx, where: dict[str, Any], *, newest: bool) -> list[Row]:
    way = "down" if newest else "up"
    query = f"events_anywhere_{way}" if where["log"] is None else f"events_{way}"
    everything = where["type"] is None and where["since"] == -EVERYWHERE and where["until"] == EVERYWHERE
    after, upto, limit = where["after"], where["upto"], where["limit"]
    rows: list[Row] = []
    for above, until in [(after, upto)] if everything else tx.logs.spans.ranges(where, newest=newest):
        rows += tx.sql.all(query, {**where, "after": above, "upto": until, "limit": limit - len(rows)})
        if len(rows) == limit:
            break
    return rows


def _values(wanted: Wanted, after: int, upto: int, limit: int, *, payload: bool) -> dict[str, Any]:
    if wanted.type is not None and len(wanted.type) > PATTERN_CHARS_MAX:
        raise UsageError(f"a type or glob has at most {PATTERN_CHARS_MAX:,} characters, not {len(wanted.type):,}")
    return {
        "after": after, "upto": upto, "limit": limit, "payload": int(payload), "type": wanted.type, "key": wanted.key,
        "since": -EVERYWHERE if wanted.since is None else round(wanted.since * 1e6),
        "until": EVERYWHERE if wanted.until is None else round(wanted.until * 1e6),
    }  # fmt: skip


def _row(row: tuple[object, ...], names: dict[int, str]) -> EventRow:
    position, log, *rest = row
    assert isinstance(log, int)
    return EventRow(position, names.get(log, f"#{log}"), *rest)  # type: ignore[arg-type]
