"""Does a statement write to redrive's own tables, or change them? Read from its text, once for each text. Pure.

The text does not tell everything: a write through a view, inside a function of the database, in SQL that is put
together at run time, or by a search path that was set elsewhere, is not seen. `redrive verify` looks at the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

SCHEMA = "redrive"

_CHANGES = {
    "ALTER", "CLUSTER", "COMMENT", "CREATE", "DROP", "GRANT", "LOCK", "REFRESH", "REINDEX", "REVOKE", "TRUNCATE",
    "VACUUM",
}  # fmt: skip
_READS = {"FROM", "JOIN", "REFERENCES", "LIKE", "USING"}  # before a table that CREATE or ALTER only reads
_WRITES = {"INTO", "UPDATE", "TRUNCATE"}  # before a table that is written, wherever it stands in a statement
_CHANGED_TABLES = {"ALTER", "DROP", "TRUNCATE", "LOCK"}  # before TABLE

_BODY = re.compile(r"'.*'|\$[^$]*\$.*\$[^$]*\$", re.DOTALL)  # a string, or what is between dollar quotes

Tokens = Callable[[str], Iterable[tuple[str, str, str]]]


def touched(sql: str, tokens: Tokens) -> str:
    """Return the name of the first of redrive's tables that a statement writes to or changes; "" if there is none."""
    if SCHEMA not in sql.lower():  # nearly always
        return ""
    return next((name for words in _statements(sql, tokens) if (name := _touched(words, tokens))), "")


def _statements(sql: str, tokens: Tokens) -> Iterator[list[str]]:
    """Each statement as words: keywords in capitals, names quoted, everything else as it is."""
    words: list[str] = []
    for kind, part, _ in tokens(sql):
        if kind == "end":
            yield words
            words = []
        elif kind == "word":
            words.append(part.upper())
        elif kind != "space":
            words.append(part)
    yield words


def _touched(words: list[str], tokens: Tokens) -> str:
    verb = words[0] if words else ""
    if verb in ("DO", "CREATE"):
        for part in words:
            if _BODY.fullmatch(part) and (name := _written_in_body(part, tokens)):
                return name
    if verb == "SET" and "SEARCH_PATH" in words and any(SCHEMA in word.lower() for word in words):
        return SCHEMA
    for at, word in enumerate(words):
        if not _is_schema(word):
            continue
        if verb in _CHANGES and "SCHEMA" in words and words[at + 1 : at + 2] != ["."]:
            return SCHEMA
        if words[at + 1 : at + 2] == ["."] and len(words) > at + 2 and _is_target(words, at, verb):
            return f"{SCHEMA}.{words[at + 2].strip(chr(34)).lower()}"
    return ""


def _is_target(words: list[str], at: int, verb: str) -> bool:
    """Is the table that is named here written to or changed, rather than read?"""
    before = words[:at]
    if before[-1:] == ["."]:  # the database before the schema
        before = before[:-2]
    if before[-1:] == ["ONLY"]:
        before = before[:-1]
    last, former = before[-1] if before else "", before[-2] if len(before) > 1 else ""
    if verb in _CHANGES:
        return not (verb in ("CREATE", "ALTER") and (last in _READS or (verb == "CREATE" and last == ",")))
    if last == "COPY":
        return "FROM" in words[at:]
    return last in _WRITES or (last == "FROM" and former == "DELETE") or (last == "TABLE" and former in _CHANGED_TABLES)


def _written_in_body(text: str, tokens: Tokens) -> str:
    """The same inside of `DO $$ … $$` or the body of a function."""
    body = text[1:-1].replace("''", "'") if text[0] == "'" else text[text.index("$", 1) + 1 : -(text.index("$", 1) + 1)]
    for words in _statements(body, tokens):
        for at, word in enumerate(words):
            is_table = words[at + 1 : at + 2] == ["."] and len(words) > at + 2
            if _is_schema(word) and is_table and _is_target(words, at, ""):
                return f"{SCHEMA}.{words[at + 2].strip(chr(34)).lower()}"
    return ""


def _is_schema(word: str) -> bool:
    return word in (SCHEMA.upper(), f'"{SCHEMA}"')
