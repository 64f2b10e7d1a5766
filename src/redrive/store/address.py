"""The address of a store: which backend an address belongs to, and whether it can be read without guessing.

A Postgres address is checked here before libpq reads it: libpq's own complaints quote parts of it, password included.
"""

from __future__ import annotations

import re
from functools import lru_cache
from os.path import realpath
from urllib.parse import quote, unquote_to_bytes

from redrive.errors import UsageError
from redrive.masking import PLAIN_WORDS, POSTGRES, is_scheme
from redrive.masking import mask as shown

__all__ = ["POSTGRES", "check_name", "check_postgres", "is_postgres", "is_same", "is_scheme", "shown"]

_WORDS = "|".join(sorted((*PLAIN_WORDS, "password", "passfile", "sslpassword", "sslkey"), key=len, reverse=True))
_CONNINFO = re.compile(rf"\s*(?:{_WORDS})\s*=|.*(?:^|\s)(?:ssl)?password\s*=", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(r"\s*(?P<word>\w+)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<bare>[^\s'\\]*))(?=\s|$)")
_NO_SLASHES = re.compile(rf"(?:{'|'.join(POSTGRES)}):(?!//)", re.IGNORECASE)
_NO_SCHEME = re.compile(r"[^/\s:@]+:.*@", re.DOTALL)
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_FORM = "postgresql://USER:PASSWORD@HOST:5432/DBNAME"


def is_postgres(url: str) -> bool:
    """Is this the address of a Postgres database?"""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in POSTGRES


def is_same(one: str, other: str) -> bool:
    """May two addresses be one store? A file has one path; a database has more names than anybody knows."""
    if one == other or is_postgres(one) != is_postgres(other):
        return one == other
    return is_postgres(one) or realpath(one) == realpath(other)


def check_name(name: str) -> None:
    """Refuse the name of a file that is meant as the address of a database: no file of that name is made.

    >>> check_name("shop.db")
    """
    if _CONNINFO.match(name):
        raise UsageError(
            f"the store is given in libpq's words (host=… password=…): write {_as_url(name)}, with the password in "
            "the place of PASSWORD. A file of such a name is written sqlite:///NAME"
        )
    if _NO_SLASHES.match(name) or _NO_SCHEME.match(name):
        raise UsageError(
            f"the store {shown(name)} looks like a database whose address lacks postgresql:// at its start: "
            f"write {_FORM}. A file of such a name is written sqlite:///NAME"
        )


@lru_cache(64)
def check_postgres(url: str) -> None:
    """Refuse an address that libpq would read otherwise than it is meant, or not at all; the password is not shown.

    >>> check_postgres("postgresql://ada:100%25@db/shop")
    """
    wrong = _wrong(url)
    if wrong:
        raise UsageError(
            f"store {shown(url)}: {wrong}. The form is {_FORM}; in a user or password write % as %25, a space as %20, "
            "@ as %40, / as %2F, : as %3A, ? as %3F, # as %23, & as %26"
        )


def _wrong(url: str) -> str:
    rest = url.partition("://")[2]
    if any(char.isspace() or not char.isprintable() for char in rest):
        return "it holds a space or another character that must be escaped"
    if _PERCENT.search(rest):
        return "it holds a % without the two hexadecimal digits of a character"
    try:
        unquote_to_bytes(rest).decode()
    except UnicodeError:
        return "it holds escaped bytes that are not UTF-8"
    place, _, query = _divided(rest)
    hosts = place.partition("/")[0]
    if "@" in place:
        return "it holds an @ that does not end the user and the password"
    if not all(map(_is_host, hosts.split(","))):
        return "the host is missing, or a port is not a number up to 65535"
    if any("=" not in piece for piece in query.split("&")) and query:
        return "a parameter behind the ? has no value"
    return ""


def _divided(rest: str) -> tuple[str, str, str]:
    """Place and query, as libpq divides them: user and password end at the first @, if no slash comes before it."""
    at, slash = rest.find("@"), rest.find("/")
    if at >= 0 and (slash < 0 or at < slash):
        rest = rest[at + 1 :]
    return rest.partition("?")


def _is_host(host: str) -> bool:
    if host.startswith("["):
        _, bracket, rest = host.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return False
        port = rest[1:]
    else:
        port = host.partition(":")[2]
    return not port or (port.isascii() and port.isdecimal() and int(port) <= 65_535)


def _as_url(conninfo: str) -> str:
    """The address that a string of libpq's words means, without its password."""
    parts: dict[str, str] = {}
    at = 0
    while found := _PAIR.match(conninfo, at):
        parts[found["word"].lower()] = re.sub(r"\\(.)", r"\1", found["quoted"] or found["bare"] or "")
        at = found.end()
    if conninfo[at:].strip():  # it cannot be read to its end: a part of the password may look like another word
        return _FORM
    user = quote(parts.get("user", ""), safe="") + (":PASSWORD" if "password" in parts else "")
    port = f":{parts['port']}" if parts.get("port", "").isdecimal() else ""
    host = quote(parts.get("host") or parts.get("hostaddr", ""), safe="")
    return f"postgresql://{user}{'@' if user else ''}{host}{port}/{quote(parts.get('dbname', ''), safe='')}"
