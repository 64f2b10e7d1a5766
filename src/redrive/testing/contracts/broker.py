"""The contract of a source that is a broker: what landing relies on. Inherit it and say how to write to the broker.

class TestMyTopic(BrokerContract):
    def make_source(self):
        return MyTopic(self.where, "orders")
    def say(self, data, *, key, id=None):
        ...  # write one message, of type order.placed
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redrive.app import App
from redrive.errors import SourceDown
from redrive.event import NAME_CHARS_MAX, Event
from redrive.sources.port import Message, Plain, Positions, Reader, Source
from redrive.sources.refusal import ID_COLLISION, LOST, SCHEMA, UNDECODABLE
from redrive.testing.contracts.base import expect
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.harness import Harness

GROUP = "contract.orders"
PATIENCE = 60.0  # seconds: a broker may take its time to hand out the first message
WAIT = 0.2
PLACES = ("land.fenced", "land.before_commit", "land.committed")


class BrokerTests:
    """What you write: how to make the source, how to write to the broker, and what it can do to us."""

    can_break = False  # `break_down` and `recover` are written
    can_spoil = True  # `spoil` is written
    can_lose = False  # `lose` is written, and the broker can tell afterwards that something is missing
    can_forget = False  # `forget` is written, and the source can tell

    def make_source(self) -> Source:
        """The source under test; called again, another object for the same place. Each test has an empty one."""
        raise AssertionError("a broker's contract needs make_source(self)")

    def say(self, data: Any, *, key: str, id: str | None = None) -> None:
        """Write one message of type order.placed, as a producer would; without an id if there is none."""
        raise AssertionError("a broker's contract needs say(self, data, *, key, id=None)")

    def spoil(self) -> None:
        """Write a message that is no event."""
        raise AssertionError("a broker's contract needs spoil(self), or can_spoil = False")

    def lose(self) -> None:
        """Of what was written and not read, the broker deletes some."""
        raise AssertionError("can_lose needs lose(self)")

    def forget(self) -> None:
        """The broker does not have any more what it had, as after a restore of an old backup."""
        raise AssertionError("can_forget needs forget(self)")

    def break_down(self) -> None:
        """From now on the broker cannot be reached."""
        raise AssertionError("can_break needs break_down(self)")

    def recover(self) -> None:
        """It can be reached again, and has what it had."""
        raise AssertionError("can_break needs recover(self)")

    def _say(self, *numbers: int) -> None:
        for number in numbers:
            self.say(number, key=f"k{number % 3}")


class ReaderContract(BrokerTests):
    """What a reader gives, when, and how often."""

    def test_it_says_what_it_is(self) -> None:
        one, other = self.make_source(), self.make_source()
        assert one.log == other.log == f"{one.scheme}:{one.name}"
        assert isinstance(one.ordered, bool) and isinstance(one.acknowledges, bool) and one.partitions >= 1
        one.check_order("none")
        if one.ordered:
            one.check_order("key")

    def test_everything_is_read_once_and_in_order(self) -> None:
        self._say(*range(20))
        with self._open() as reader:
            messages = self._read(reader, 20)
            assert sorted(map(_number, messages)) == list(range(20))
            assert not reader.read(_ends(messages), 100, WAIT), "something was given twice"
        if self.make_source().ordered:
            for key in ("k0", "k1", "k2"):
                numbers = [_number(message) for message in messages if message.event.key == key]
                assert numbers == sorted(numbers), "the order of a key was not kept"

    def test_a_message_is_the_event_that_was_written(self) -> None:
        self.say({"cents": 4200}, key="a", id="order-1")
        self.say([1, "zwei", None], key="b")
        with self._open() as reader:
            first, second = sorted(self._read(reader, 2), key=lambda message: not message.has_id)
        assert (first.event.id, first.event.type, first.event.key, first.has_id) == (
            "order-1",
            "order.placed",
            "a",
            True,
        )
        assert (second.event.type, second.event.key, second.has_id) == ("order.placed", "b", False)
        assert first.event.data_raw.replace(b" ", b"") == b'{"cents":4200}'
        assert all(message.event.time_us > 0 and message.event.schema != SCHEMA for message in (first, second))
        assert 0 < len(second.event.id) <= NAME_CHARS_MAX and 0 <= second.partition < self.make_source().partitions

    def test_a_limit_is_kept(self) -> None:
        self._say(*range(10))
        with self._open() as reader:
            first = self._next(reader, {}, 3)
            assert 0 < len(first) <= 3 * self.make_source().partitions

    def test_the_next_reader_goes_on_behind_what_has_landed(self) -> None:
        self._say(*range(10))
        with self._open() as reader:
            first = list(self._next(reader, {}, 4))
            reader.settled(first)
        with self._open() as reader:
            rest = self._read(reader, 10 - len(first), _ends(first))
        assert sorted(map(_number, [*first, *rest])) == list(range(10))

    def test_what_has_not_landed_comes_again_and_is_recognised(self) -> None:
        self._say(*range(5))
        with self._open() as reader:
            before = self._read(reader, 5, settle=False)
        with self._open() as reader:
            again = self._read(reader, 5)
        assert _by_id(before) == _by_id(again), "it came again under another id, or with another content"
        assert {_where(message) for message in before} == {_where(message) for message in again}

    def test_a_word_of_what_has_landed_may_be_repeated_and_may_be_lost(self) -> None:
        self._say(*range(3))
        with self._open() as reader:
            messages = self._read(reader, 3, settle=False)
            for _ in range(2):
                reader.settled(messages)
        with self._open() as reader:
            reader.settled(messages)
            reader.settled([])
            assert not reader.read(_ends(messages), 10, WAIT)
            self._say(3)
            assert [_number(one) for one in self._read(reader, 1, _ends(messages))] == [3]

    def test_nothing_to_read_is_no_error(self) -> None:
        with self._open() as reader:
            assert not reader.read({}, 10, 0.0)
            assert not reader.read({}, 10, 0.01)

    def test_it_can_be_closed_at_any_time_and_opened_again(self) -> None:
        source = self.make_source()
        for number in range(3):
            source.open(GROUP).close()
            reader = source.open(GROUP)
            self._say(number)
            reader.close()
            reader.close()
        with self._open() as reader:
            assert len(self._read(reader, 3)) == 3

    def test_two_groups_do_not_disturb_each_other(self) -> None:
        self._say(*range(4))
        for group in ("contract.a", "contract.b"):
            with self._open(group) as reader:
                assert len(self._read(reader, 4)) == 4

    def test_a_message_that_is_no_event_is_a_refusal_in_its_place(self) -> None:
        if not self.can_spoil:
            return
        self.say(1, key="a")
        self.spoil()
        self.say(2, key="a")
        with self._open() as reader:
            messages = self._read(reader, 3)
        assert sum(message.event.schema == SCHEMA for message in messages) == 1
        assert all(UNDECODABLE.encode() in m.event.data_raw for m in messages if m.event.schema == SCHEMA)

    def test_a_broker_that_cannot_be_reached_is_down_and_nothing_else(self) -> None:
        if not self.can_break:
            return
        self._say(0)
        with self._open() as reader:
            messages = self._read(reader, 1)
            self.break_down()
            try:
                expect(SourceDown, lambda: self._until_it_fails(reader, _ends(messages)))
                expect(SourceDown, self._open_and_read)
            finally:
                self.recover()
        self._say(1)
        with self._open() as reader:
            assert [_number(one) for one in self._read(reader, 1, _ends(messages))] == [1]

    # ------------------------------------------------------------ private

    @contextlib.contextmanager
    def _open(self, group: str = GROUP) -> Iterator[Reader]:
        reader = self.make_source().open(group)
        try:
            yield reader
        finally:
            reader.close()

    def _next(self, reader: Reader, positions: Positions, limit: int) -> Sequence[Message | Plain]:
        """The next that come."""
        deadline = time.monotonic() + PATIENCE
        while not (found := reader.read(positions, limit, WAIT)):
            assert time.monotonic() < deadline, "nothing was given"
        return found

    def _read(
        self, reader: Reader, count: int, positions: Positions | None = None, *, settle: bool = True
    ) -> list[Message | Plain]:
        """So many messages, each of which lands."""
        found: list[Message | Plain] = []
        at = dict(positions or {})
        while len(found) < count:
            some = self._next(reader, at, 7)
            found += some
            at |= _ends(some)
            if settle:
                reader.settled(some)
        assert len(found) == count
        return found

    def _until_it_fails(self, reader: Reader, positions: Positions) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            reader.read(positions, 10, WAIT)

    def _open_and_read(self) -> None:
        with self._open() as reader:
            self._until_it_fails(reader, {})


class LandingContract(BrokerTests):
    """What functions get of it, in an app on a store of the test's own."""

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self.source = self.make_source()
        self.app = App("/nonexistent/contract.db", name="contract")
        order: Any = "key" if self.source.ordered else "none"

        @self.app.projection(self.source, order=order, tables={"given": "id TEXT, key TEXT, data TEXT"})
        def write_down(event: Event[Any], tx: Any) -> None:
            tx.execute(
                "INSERT INTO given VALUES (:id, :key, :data)",
                {"id": event.id, "key": event.key, "data": str(event.data)},
            )

        self.harness = Harness(self.app)

    def teardown_method(self) -> None:
        """Called by pytest after each test: the books must balance."""
        try:
            assert [verdict for verdict in self.app.operate().verify() if not verdict.sound] == []
        finally:
            self.harness.close()

    def test_every_message_is_applied_once_and_each_key_in_order(self) -> None:
        for first in (0, 10, 20):
            self._say(*range(first, first + 10))
            self._run(first + 10)
        self._check(range(30))

    def test_a_death_at_any_step_neither_loses_nor_doubles(self) -> None:
        for first, place in zip(range(0, 100, 10), PLACES, strict=False):
            self._say(*range(first, first + 10))
            with failpoint(place, self.harness.crash):
                expect(Crashed, lambda: self._run(10_000))
        self._run(10 * len(PLACES))
        self._check(range(10 * len(PLACES)))

    def test_a_broker_that_never_hears_what_has_landed_changes_nothing(self) -> None:
        opened = self.source.open

        def deaf(group: str) -> Reader:
            reader = opened(group)
            reader.settled = lambda messages: None  # type: ignore[method-assign]
            return reader

        self.source.open = deaf  # type: ignore[method-assign]
        for first in (0, 5, 10):
            self._say(*range(first, first + 5))
            self._run(first + 5)
            self.harness.restart()
        self._run(15)
        self._check(range(15))

    def test_a_producers_id_is_taken_once(self) -> None:
        for _ in range(2):
            self.say(1, key="a", id="order-1")
            self.say(2, key="a", id="order-2")
            self._run(2)
        self.say(3, key="a", id="order-3")
        self._run(3)
        assert sorted(self._given()) == [("a", "1"), ("a", "2"), ("a", "3")]

    def test_an_id_with_another_content_is_a_letter(self) -> None:
        for number in (1, 2, 1):
            self.say(number, key="a", id="order-1")
        self.say(4, key="b")
        self._run(2, letters=1)
        assert sorted(self._given()) == [("a", "1"), ("b", "4")]
        assert [letter.reason for letter in self.harness.letters()] == [ID_COLLISION]

    def test_what_is_no_event_is_a_letter_in_its_place(self) -> None:
        if not self.can_spoil:
            return
        self.say(1, key="a")
        self.spoil()
        self.say(2, key="c")
        self._run(2, letters=1)
        assert [letter.reason for letter in self.harness.letters()] == [UNDECODABLE]
        landed = [event.schema == SCHEMA for event in self.app.log(self.source.log).read()]
        assert sorted(landed) == [False, False, True]
        if self.source.ordered and self.source.partitions == 1:
            assert landed == [False, True, False]

    def test_what_the_broker_deleted_before_it_was_read_is_told(self) -> None:
        if not self.can_lose:
            return
        self._say(*range(3))
        self._run(3)
        self._say(*range(3, 9))
        self.lose()
        self._run(3, letters=1)
        self.harness.run_until_idle()
        letters = [letter.reason for letter in self.harness.letters()]
        assert letters and set(letters) == {LOST}, "something is missing, and nobody was told"

    def test_a_broker_that_has_forgotten_what_it_gave_halts_or_gives_it_no_second_time(self) -> None:
        if not self.can_forget:
            return
        self._say(*range(6))
        self._run(6)
        self.forget()
        self.harness.run_until_idle()
        assert sorted(data for _, data in self._given()) == sorted(map(str, range(6)))
        if self.source.ordered:
            assert self.source.log in self.harness.halted, "it went on as if nothing had happened"

    def test_a_broker_that_is_down_halts_the_reading_and_costs_no_event_an_attempt(self) -> None:
        if not self.can_break:
            return
        self._say(0)
        self._run(1)
        self.break_down()
        try:
            self._until(lambda: self.source.log in self.harness.halted)
            self.harness.advance("1m")
        finally:
            self.recover()
        self._say(1)
        self._until(lambda: len(self._given()) == 2, "1m")
        assert self.harness.letters() == []

    def test_the_messages_are_events_of_the_log(self) -> None:
        self._say(*range(4))
        self._run(4)
        events = list(self.app.log(self.source.log).read())
        assert sorted(event.data for event in events) == list(range(4))
        assert len({event.id for event in events}) == 4

    # ------------------------------------------------------------ private

    def _given(self) -> list[tuple[str, str]]:
        return [(key, data) for key, data in self.harness.query("SELECT key, data FROM given")]

    def _check(self, numbers: range) -> None:
        given = self._given()
        assert sorted(int(data) for _, data in given) == list(numbers)
        assert self.harness.letters() == []
        if self.source.ordered:
            for name in ("k0", "k1", "k2"):
                of_key = [int(data) for key, data in given if key == name]
                assert of_key == sorted(of_key), "the order of a key was not kept"

    def _run(self, given: int, letters: int = 0) -> None:
        """Until so much was given, and nothing more comes."""
        self._until(lambda: len(self._given()) >= given and len(self.harness.letters()) >= letters)

    def _until(self, reached: Callable[[], bool], step: str = "") -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            self.harness.run_until_idle()
            if reached():
                return
            assert time.monotonic() < deadline, f"{len(self._given())} given, {len(self.harness.letters())} letters"
            if step:
                self.harness.advance(step)


class BrokerContract(ReaderContract, LandingContract):
    """Every test has a place of its own. What your broker cannot do, its class says: see BrokerTests."""


def _number(message: Message | Plain) -> int:
    return int(message.event.data_raw)


def _by_id(messages: Sequence[Message | Plain]) -> dict[str, Any]:
    return {message.event.id: message.event for message in messages}


def _where(message: Message | Plain) -> tuple[int, str, bool]:
    return message.partition, message.position.partition(";")[0], message.has_id


def _ends(messages: Sequence[Message | Plain]) -> dict[int, str]:
    return {message.partition: message.position for message in messages}
