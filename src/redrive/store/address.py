"""What a store is called: which backend an address belongs to, and how it is shown without its password."""

from __future__ import annotations

import re
from os.path import realpath

POSTGRES = ("postgresql", "postgres")

_CREDENTIALS = re.compile(r"(?P<user>://[^:/?#@]*):.*@")  # to the last @: a password may hold what it should not
_PARAMETER = re.compile(r"(?P<name>\b(?:ssl)?password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s&]*)", re.IGNORECASE)


def is_postgres(url: str) -> bool:
    """Is this the address of a Postgres database?"""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in POSTGRES


def is_same(one: str, other: str) -> bool:
    """May two addresses be one store? A file has one path; a database has more names than anybody knows."""
    if one == other or is_postgres(one) != is_postgres(other):
        return one == other
    return is_postgres(one) or realpath(one) == realpath(other)


def shown(url: str) -> str:
    """The address as it may be printed, logged and stored.

    >>> shown("postgresql://ada:secret@db.example/shop?sslmode=require")
    'postgresql://ada:***@db.example/shop?sslmode=require'
    """
    return _PARAMETER.sub(r"\g<name>***", _CREDENTIALS.sub(r"\g<user>:***@", url))
