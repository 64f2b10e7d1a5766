"""A server of streams in memory, with the commands that readers use, and with what real ones do on bad days.

It answers as Redis 7 does, through the client's own functions: what reads from it is the code that reads from a server.
Nothing in it depends on time or chance; who plays with it rolls the dice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import redis
from redis.client import Pipeline

from redrive.redis import Stream

Id = tuple[int, int]
NEVER = (0, 0)
Trouble = Callable[[str], Literal["", "before", "after"]]  # by command: is the way there cut, or the way back?


@dataclass
class Group:
    """What a group has handed out."""

    last: Id
    read: int | None
    pending: dict[Id, str] = field(default_factory=dict)  # to whom
    seen: set[str] = field(default_factory=set)  # who has ever asked


@dataclass
class Line:
    """One stream."""

    entries: dict[Id, dict[bytes, bytes]] = field(default_factory=dict)  # by id, rising
    newest: Id = NEVER
    deleted: Id = NEVER
    added: int = 0
    groups: dict[str, Group] = field(default_factory=dict)

    def after(self, last: Id, count: int) -> list[Id]:
        """The next of them."""
        return [id for id in self.entries if id > last][:count]


class Streams:
    """The server."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.now = 1_000  # milliseconds; whoever takes over has the same clock
        self.trouble: Trouble = lambda command: ""
        self.idle: Callable[[Id], bool] = lambda id: True  # for long enough to be claimed
        self._kept: dict[str, Line] = {}

    # ------------------------------------------------------------ what happens to it

    def add(self, name: str, fields: Mapping[str, str]) -> Id:
        """An entry, as a producer writes it."""
        line, self.now = self.lines.setdefault(name, Line()), self.now + 1
        line.newest, line.added = (self.now, 0), line.added + 1
        line.entries[line.newest] = {key.encode(): value.encode() for key, value in fields.items()}
        return line.newest

    def trim(self, name: str, length: int) -> list[Id]:
        """Only so many are kept; those that are gone."""
        line = self.lines[name]
        gone = list(line.entries)[: max(0, len(line.entries) - length)]
        for id in gone:
            del line.entries[id]
        return gone

    def keep(self) -> None:
        """What a replica has at this moment."""
        self._kept = copy.deepcopy(self.lines)

    def fail_over(self) -> list[Id]:
        """The replica takes over: entries, acknowledgements and groups since are forgotten. The entries."""
        before = {id for line in self.lines.values() for id in line.entries}
        self.lines = copy.deepcopy(self._kept)
        return sorted(before - {id for line in self.lines.values() for id in line.entries})

    def claim(self, name: str, group: str, consumer: str) -> None:
        """Somebody takes what others are working on."""
        if (found := self._group(name, group)) is not None:
            found.pending = dict.fromkeys(found.pending, consumer)

    def drop_consumer(self, name: str, group: str, consumer: str) -> None:
        """Somebody tidies up too much: what the consumer has not finished is nobody's any more."""
        if (found := self._group(name, group)) is not None:
            found.seen.discard(consumer)
            found.pending = {id: who for id, who in found.pending.items() if who != consumer}

    def drop_group(self, name: str, group: str) -> None:
        """Somebody tidies up."""
        if name in self.lines:
            self.lines[name].groups.pop(group, None)

    def handed_out(self, name: str, group: str) -> dict[Id, str]:
        """What has not been acknowledged, and who has it."""
        found = self._group(name, group)
        return dict(found.pending) if found else {}

    def client(self) -> redis.Redis:
        """A connection."""
        return Client(self)

    # ------------------------------------------------------------ commands

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers; an error is one of them."""
        trouble = self.trouble(str(commands[0][0]))
        if trouble == "before":
            raise redis.ConnectionError("the connection is cut")
        answers = [self._answer([_text(word) for word in command]) for command in commands]
        if trouble == "after":
            raise redis.ConnectionError("the answer is lost")
        return answers

    def _answer(self, words: list[str]) -> Any:
        verb, *rest = [*words[0].split(), *words[1:]]
        deed = getattr(self, f"_{verb.lower()}", None)
        if deed is None:
            return redis.ResponseError(f"unknown command '{verb}'")
        try:
            return deed(rest)
        except redis.ResponseError as error:
            return error

    def _ping(self, words: list[str]) -> Any:
        return b"PONG"

    def _group(self, name: str, group: str) -> Group | None:
        line = self.lines.get(name)
        return line.groups.get(group) if line else None

    def _found(self, name: str, group: str) -> tuple[Line, Group]:
        found = self._group(name, group)
        if found is None:
            raise redis.ResponseError(f"NOGROUP No such key '{name}' or consumer group '{group}'")
        return self.lines[name], found

    def _xinfo(self, words: list[str]) -> Any:
        line = self.lines.get(words[1])
        if line is None:
            raise redis.ResponseError("no such key")
        if words[0] == "GROUPS":
            return [
                [b"name", name.encode(), b"last-delivered-id", _id(group.last), b"entries-read", group.read]
                for name, group in line.groups.items()
            ]
        if words[0] == "CONSUMERS":
            names = sorted(set(self._found(words[1], words[2])[1].seen))
            return [[b"name", name.encode(), b"pending", 0, b"idle", 0] for name in names]
        first = next(iter(line.entries), None)
        entry = None if first is None else _entry(line, first)
        return [
            b"length", len(line.entries), b"last-generated-id", _id(line.newest), b"max-deleted-entry-id",
            _id(line.deleted), b"entries-added", line.added, b"first-entry", entry, b"last-entry", None,
        ]  # fmt: skip

    def _xrange(self, words: list[str]) -> Any:
        line, (first, last, *rest) = self.lines.get(words[0], Line()), words[1:]
        after = _read_id(first[1:]) if first.startswith("(") else (_read_id(first)[0], _read_id(first)[1] - 1)
        ids = [id for id in line.after(after, len(line.entries)) if last == "+" or id <= _read_id(last)]
        return [_entry(line, id) for id in ids[: int(rest[1]) if rest else None]]

    def _xread(self, words: list[str]) -> Any:
        count, at = int(words[words.index("COUNT") + 1]), words.index("STREAMS") + 1
        names = words[at : at + (len(words) - at) // 2]
        found = []
        for name, last in zip(names, words[at + len(names) :], strict=True):
            line = self.lines.get(name, Line())
            if ids := line.after(_read_id(last), count):
                found.append([name.encode(), [_entry(line, id) for id in ids]])
        return found or None

    def _xreadgroup(self, words: list[str]) -> Any:
        _, name, consumer = words[:3]
        count, (stream, start) = int(words[words.index("COUNT") + 1]), words[-2:]
        line, group = self._found(stream, name)
        group.seen.add(consumer)
        if start != ">":
            mine = [id for id in sorted(group.pending) if group.pending[id] == consumer and id > _read_id(start)]
            return [[stream.encode(), [_entry(line, id) for id in mine[:count]]]]
        ids = line.after(group.last, count)
        for id in ids:
            group.pending[id] = consumer
            group.last, group.read = id, line.added - len(line.after(id, len(line.entries)))
        return [[stream.encode(), [_entry(line, id) for id in ids]]] if ids else None

    def _xgroup(self, words: list[str]) -> Any:
        deed, name, group, start = words[:4]
        assert deed == "CREATE"
        line = self.lines.setdefault(name, Line())
        if group in line.groups:
            raise redis.ResponseError("BUSYGROUP Consumer Group name already exists")
        last = line.newest if start == "$" else _read_id(start)
        count = line.added - len(line.after(last, len(line.entries)))
        if "ENTRIESREAD" in words:
            count = int(words[words.index("ENTRIESREAD") + 1])
        line.groups[group] = Group(last, count)
        return b"OK"

    def _xack(self, words: list[str]) -> int:
        found = self._group(words[0], words[1])
        return sum(found.pending.pop(_read_id(id), None) is not None for id in words[2:]) if found else 0

    def _xpending(self, words: list[str]) -> Any:
        _, group = self._found(words[0], words[1])
        if not group.pending:
            return [0, None, None, None]
        ids = sorted(group.pending)
        return [len(ids), _id(ids[0]), _id(ids[-1]), [[b"somebody", str(len(ids)).encode()]]]

    def _xautoclaim(self, words: list[str]) -> Any:
        line, group = self._found(words[0], words[1])
        old = [id for id in sorted(group.pending) if self.idle(id)]
        there, gone = [id for id in old if id in line.entries], [id for id in old if id not in line.entries]
        for id in gone:
            del group.pending[id]
        group.pending |= dict.fromkeys(there, words[2])
        return [b"0-0", [_entry(line, id) for id in there], [_id(id) for id in gone]]


class SimulatedStream(Stream):
    """A stream of such a server."""

    def __init__(self, server: Streams, name: str, **how: Any) -> None:
        super().__init__("redis://simulated", name, **how)
        self._server = server

    def connect(self) -> redis.Redis:
        """A connection of its own."""
        return self._server.client()


class Client(redis.Redis):
    """The client's own functions, with another way to the server."""

    def __init__(self, server: Streams) -> None:
        super().__init__(connection_pool=_Lines(server))
        self._streams = server

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """One command."""
        (answer,) = self._streams.ask([args])
        return _parsed(self, answer, args, options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        """Several at once."""
        return _Pipe(self)


class _Lines(redis.ConnectionPool):
    """For who asks for a connection and talks to it."""

    def __init__(self, server: Streams) -> None:
        super().__init__(protocol=2)
        self._streams = server

    def get_connection(self, *_: Any, **__: Any) -> Any:
        return _Line(self._streams)

    def release(self, connection: Any) -> None:
        """There is nothing to keep."""


class _Line:
    def __init__(self, server: Streams) -> None:
        self._streams, self._asked = server, list[tuple[Any, ...]]()

    def send_command(self, *words: Any) -> None:
        self._asked.append(words)

    def read_response(self) -> Any:
        (answer,) = self._streams.ask([self._asked.pop(0)])
        if isinstance(answer, redis.ResponseError):
            raise answer
        return answer


class _Pipe(Pipeline):
    def __init__(self, client: Client) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, True, None)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack, self.command_stack = list(self.command_stack), []
        answers = self._client._streams.ask([args for args, _ in stack])
        return list(self._parse(stack, answers, raise_on_error))

    def _parse(self, stack: list[Any], answers: list[Any], raise_on_error: bool) -> Iterator[Any]:
        for (args, options), answer in zip(stack, answers, strict=True):
            if isinstance(answer, redis.ResponseError) and not raise_on_error:
                yield answer
            else:
                yield _parsed(self._client, answer, args, options)


def _parsed(client: Client, answer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if isinstance(answer, redis.ResponseError):
        raise answer
    callbacks: Any = client.response_callbacks
    parse = callbacks.get(args[0])
    return parse(answer, **options) if parse else answer


def _entry(line: Line, id: Id) -> list[Any]:
    fields = line.entries.get(id)
    return [_id(id), None if fields is None else [text for pair in fields.items() for text in pair]]


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _id(id: Id) -> bytes:
    return b"%d-%d" % id


def _read_id(text: str) -> Id:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number or 0)
