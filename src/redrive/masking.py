"""Leave passwords out of addresses and texts: the one module that decides what may be shown.

`mask` takes a whole text for one address and hides too much rather than too little. `mask_text` looks for addresses
and assignments of passwords inside other text, such as an error or a traceback. Both need linear time.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
PLACEHOLDER = "PASSWORD"  # in an address that an error tells you to write

POSTGRES = ("postgresql", "postgres")
# The words of libpq whose values may be shown. A word that is not in this list is hidden: it may be part of a password.
PLAIN_WORDS = frozenset({
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
    "fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "host", "hostaddr", "keepalives",
    "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts",
    "max_protocol_version", "min_protocol_version", "options", "port", "replication", "require_auth", "requirepeer",
    "service", "ssl", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode",
    "sslcompression", "sslcrl", "sslcrldir", "sslmode", "sslnegotiation", "sslrootcert", "sslsni",
    "target_session_attrs", "tcp_user_timeout", "user",
})  # fmt: skip
_SECRET_WORDS = ("pass", "pwd", "secret", "token", "key", "credential", "signature", "authorization", "jaas", "oauth")
_PARSED = ("http", "https", "ws", "wss")  # their user and password cannot hold a slash, so the host ends at the first

_COLON = re.compile(r":|%3a", re.IGNORECASE)
_BARE = re.compile(r"[^/\s:@]+:.*@", re.DOTALL)  # `ada:secret@db/shop`, its scheme forgotten
_CONNINFO_SECRET = re.compile(r"(?:^|(?<=[\s&]))\s*(?:\w*passw\w*|passfile|sslkey)\s*=", re.IGNORECASE)
_PORT = re.compile(r"[0-9]{0,5}")
_TEMPLATE = re.compile(r"[0-9]{0,5}|%[a-z]|\$?\{[^{}]*\}|<\w*>|PORT|…")  # a port in a text may be a placeholder
_SCHEME_CHARS_MAX = 24
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_END = re.compile(r"[\s'\"`<>]")
_QUOTES = "'\"`"
_TRAILING = ".,;:!?)]}>"
# The quoted value ends at its quote or with its line: it is always found, so no text is read twice.
_ASSIGNED = re.compile(
    r"""(passw(?:or)?d|passphrase)
        (?:(\s{0,2}=\s{0,2}|['"]\s{0,2}[:,=]\s{0,2}(?=['"]))
           (?:'(?:[^'\\\n]|\\.)*+'?|"(?:[^"\\\n]|\\.)*+"?|(?!…)[^\s,;&'")\]}]+))""",
    re.IGNORECASE | re.VERBOSE,
)


def mask(address: str) -> str:
    """The address as it may be printed, logged and stored.

    >>> mask("postgresql://ada:secret@db.example/shop?sslmode=require")
    'postgresql://ada:***@db.example/shop?sslmode=require'
    >>> mask("host=db user=ada password=secret")
    'host=db user=ada password=***'
    """
    scheme, separator, rest = address.partition("://")
    if not separator or not is_scheme(scheme):
        return _without_scheme(address)
    return f"{scheme}://{_place(scheme.lower(), rest, _PORT)}"


def mask_text(text: str) -> str:
    """A text without the passwords of the addresses in it, and without values that are assigned to a password.

    >>> mask_text("cannot reach redis://:secret@cache:6379/0, password='secret'")
    'cannot reach redis://:***@cache:6379/0, password=***'
    """
    if "://" in text:
        text = _mask_addresses(text)
    if "pass" in text or "PASS" in text or "Pass" in text:
        text = _ASSIGNED.sub(rf"\1\2{HIDDEN}", text)
    return text


def is_scheme(text: str) -> bool:
    """Is it the first word of a URL, rather than text that holds `://` somewhere?"""
    return _SCHEME.match(text) is not None


def _without_scheme(address: str) -> str:
    if found := _CONNINFO_SECRET.search(address):
        return address[: found.end()] + HIDDEN
    if _BARE.match(address):
        return f"{address.partition(':')[0]}:{HIDDEN}@{address.rpartition('@')[2]}"
    return address


def _place(scheme: str, rest: str, port: re.Pattern[str]) -> str:
    """Mask the text behind `://`: user, hosts, path and query."""
    end = len(rest)
    host_ends = min((at for at in map(rest.find, "/?#") if at >= 0), default=end)
    colon, at = _COLON.search(rest), rest.rfind("@")
    if scheme in _PARSED and "@" not in rest[:host_ends] and _are_ports(rest[:host_ends], port):
        at = -1  # an @ further on belongs to the path or the query
    query = _query_starts(rest)
    if at > query and "=" in rest[query:at]:  # the @ is part of a parameter's value, or of a password with a ?
        if colon is not None and colon.start() < query and not _are_known(scheme, rest[query + 1 :]):
            return f"{rest[: colon.start()]}:{HIDDEN}"
        at = rest.rfind("@", 0, query)
    if at >= 0 and colon is not None and colon.start() < min(at, query) and rest[colon.end() : at] != PLACEHOLDER:
        return f"{rest[: colon.start()]}:{HIDDEN}@{_query(scheme, rest[at + 1 :])}"
    if 0 <= at < host_ends and scheme not in POSTGRES:
        return f"{HIDDEN}@{_query(scheme, rest[at + 1 :])}"  # a token in the place of the user
    if at < 0 and colon is not None and not _are_ports(rest[:host_ends], port):
        return f"{rest[: colon.start()]}:{HIDDEN}"  # `ada:secret` without any host
    return _query(scheme, rest)


def _query_starts(rest: str) -> int:
    at = rest.find("?")
    return len(rest) if at < 0 else at


def _are_ports(hosts: str, port: re.Pattern[str]) -> bool:
    """Is the text behind the colon of each host a port number, or empty?"""
    for host in hosts.split(","):
        after = host.rpartition("]")[2] if host.startswith("[") else host
        number = _COLON.split(after, maxsplit=1)[-1] if _COLON.search(after) else ""
        if not port.fullmatch(number) or (number.isdecimal() and int(number) > 65_535):
            return False
    return True


def _query(scheme: str, rest: str) -> str:
    """Hide the values of a query that are secret, by the decoded name; in a libpq address all but the known ones."""
    place, mark, query = rest.partition("?")
    if not mark:
        return rest
    pieces = query.split("&")
    return f"{place}?{'&'.join(_piece(scheme, piece) for piece in pieces)}"


def _are_known(scheme: str, query: str) -> bool:
    """Is each parameter one of libpq's? In a query of HTTP each must have a name."""
    words = [unquote(piece.partition("=")[0]).lower() for piece in query.split("&")]
    if scheme in POSTGRES:
        return all(word in PLAIN_WORDS or word in ("password", "passfile", "sslpassword", "sslkey") for word in words)
    return scheme in _PARSED and all(words)


def _piece(scheme: str, piece: str) -> str:
    name, equals, value = piece.partition("=")
    word = unquote(name).lower()
    if scheme in POSTGRES:
        plain = unquote(value).lower()
        if not equals or (word not in PLAIN_WORDS and not any(secret in word for secret in _SECRET_WORDS)):
            return HIDDEN if piece else ""
        if word in PLAIN_WORDS and "://" not in plain and "pass" not in plain:
            return piece
        return f"{name}={HIDDEN}"
    if equals and any(secret in word for secret in _SECRET_WORDS):
        return f"{name}={HIDDEN}"
    return piece


def _mask_addresses(text: str) -> str:
    pieces, done, at = [], 0, text.find("://")
    last_at, line_end = -1, -1  # of the line that was looked at last
    while at >= 0:
        scheme = _SCHEME.search(text, max(done, at - _SCHEME_CHARS_MAX), at)
        if scheme is None:
            at = text.find("://", at + 3)
            continue
        start = scheme.start()
        if at + 3 > line_end:
            line_end = text.find("\n", at)
            line_end = len(text) if line_end < 0 else line_end
            last_at = text.rfind("@", at, line_end)
        end = _token_end(text, start, at + 3, line_end)
        address, kind = text[start:end], scheme[0].lower()
        rest = address[len(kind) + 3 :]
        if "@" not in rest and end < last_at and _COLON.search(rest):
            hosts = re.split(r"[/?#]", rest, maxsplit=1)[0]
            if not _are_ports(hosts, _TEMPLATE):  # the password holds a space or a quote
                end = last_at + 1
                rest = text[at + 3 : end]
        pieces += [text[done:at], "://", _place(kind, rest, _TEMPLATE)]
        done = end
        at = text.find("://", end)
    pieces.append(text[done:])
    return "".join(pieces)


def _token_end(text: str, start: int, after: int, line_end: int) -> int:
    """An address ends at its quote, else before a space and without the marks that end a sentence."""
    if start and text[start - 1] in _QUOTES:
        quote = text.find(text[start - 1], after, line_end)
        if quote >= 0:
            return quote
    found = _END.search(text, after, line_end)
    end = line_end if found is None else found.start()
    while end > after and text[end - 1] in _TRAILING:
        end -= 1
    return end
