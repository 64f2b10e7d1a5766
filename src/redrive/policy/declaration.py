"""What a program declares about a subscription, how that differs from the store, and who may work on it meanwhile.

A worker takes a lease only if nothing differs and no other process has reserved the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

# How long a reservation holds without a renewal. A program may need that long from its reset until it owns a lease:
# its lifespan opens connections and loads models. A dead process on the same machine is noticed at once.
RESERVATION_SECONDS = 60.0


class Declaration(Struct, frozen=True):
    """The parts of a subscription that every worker must agree on."""

    types: tuple[str, ...]  # sorted; empty: all types
    order: str
    partitions: int
    tables: Mapping[str, str | None]  # with the definition, if redrive creates the table
    key: str  # the name of what gives the key, see `key_name`
    version: str | None = None


class Stored(Struct, frozen=True):
    """The declaration as the store has it. A store of an older format does not have all of it."""

    types: tuple[str, ...]
    order: str
    partitions: int
    definitions: Mapping[str, str | None]  # of every table that the subscription owns
    tables: tuple[str, ...] | None  # the names that were declared last; None: unknown
    key: str | None  # None: unknown
    version: str | None  # None: no version was declared
    by_operator: bool = False  # a rebuild, a reset or another command declared it, not a program that started


class Reservation(Struct, frozen=True):
    """The process that rebuilds a subscription, and until when that holds."""

    owner: str | None
    until: float

    def holds(self, *, me: str, now: float, owner_is_dead: bool) -> bool:
        """Whether another process may not work on the subscription now.

        A reservation that reaches further ahead than any can was made before a clock was set back: it has ended.
        """
        if self.owner is None or self.owner == me or owner_is_dead:
            return False
        return now < self.until <= now + RESERVATION_SECONDS


def differences(mine: Declaration, stored: Stored) -> list[str]:
    """What the store says otherwise, each as a phrase; empty if a worker may take the lease.

    >>> stored = Stored(("a",), "key", 1, {}, (), "", "2")
    >>> differences(Declaration(("a",), "key", 1, {}, "", "1"), stored)
    ["version '2' (here '1')"]
    """
    found = []
    if mine.types != stored.types:
        found.append(f"types {_listed(stored.types)} (here {_listed(mine.types)})")
    if mine.order != stored.order:
        found.append(f"order {stored.order!r} (here {mine.order!r})")
    if mine.partitions != stored.partitions:
        found.append(f"{stored.partitions} partitions (here {mine.partitions})")
    if stored.tables is not None and set(mine.tables) != set(stored.tables):
        found.append(f"tables {_listed(sorted(stored.tables), 'none')} (here {_listed(sorted(mine.tables), 'none')})")
    found += [f"another definition of table {name!r}" for name in sorted(_redefined(mine, stored))]
    if stored.key is not None and mine.key != stored.key:
        found.append(f"key_by {stored.key or 'none'} (here {mine.key or 'none'})")
    if stored.version is not None and mine.version != stored.version:
        found.append(f"version {stored.version!r} (here {_quoted(mine.version)})")
    return found


def is_other_code(mine: Declaration, stored: Stored) -> bool:
    """Whether more differs than the number of partitions, which says nothing about the function."""
    return bool(differences(replace(mine, partitions=stored.partitions), stored))


def explained(name: str, found: Sequence[str]) -> str:
    """Why a worker with these differences stands by, and what ends it."""
    last = found[-1]
    listed = f"{', '.join(found[:-1])} and {last}" if len(found) > 1 else last
    return f"{name}: another version of this program declares it with {listed}; restart this one with that version"


def key_name(key_by: str | Callable[..., object] | None) -> str:
    """How the store calls what gives the key: the name of a field, or of a function; empty for the event's own key.

    Without the module: a program has another name when it is run as a script.

    >>> key_name("user"), key_name(len), key_name(None)
    ("data['user']", 'len()', '')
    """
    if key_by is None:
        return ""
    if isinstance(key_by, str):
        return f"data[{key_by!r}]"
    function = getattr(key_by, "func", key_by)  # a functools.partial has no name of its own
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{name}()"


def _redefined(mine: Declaration, stored: Stored) -> list[str]:
    return [
        name
        for name, columns in mine.tables.items()
        if columns is not None and name in stored.definitions and stored.definitions[name] != columns
    ]


def _listed(names: Sequence[str], nothing: str = "(all)") -> str:
    return ", ".join(names) or nothing


def _quoted(version: str | None) -> str:
    return "none" if version is None else repr(version)
