"""Every sink of ours keeps the contract that we ship; and the contract catches a sink that does not."""

from __future__ import annotations

import io
import json
import re
import resource
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from redrive import Sink, sinks, webhook
from redrive.sinks import SomeFailed
from redrive.testing.contracts import SinkContract
from redrive.testing.web import Hang, HttpServer, Reply, Request


class OverHttp(SinkContract):
    """A server, and what it took: the answers 2xx are what counts as arrived."""

    can_hang = True
    patience = "20s"  # an answer may be late on a busy machine

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        self.refused: set[str] = set()
        with HttpServer() as self.server:
            self.server.behave = self.answer
            yield

    def answer(self, request: Request) -> Reply:
        is_refused = request.method == "POST" and self.refused & set(self.ids(request))
        return Reply(422 if is_refused else 200)

    def ids(self, request: Request) -> list[str]:
        raise AssertionError

    def delivered(self) -> list[str]:
        taken = [request for request in self.server.requests if request.method == "POST"]
        return [one for request in taken if self.answer(request).status < 300 for one in self.ids(request)]

    def break_down(self) -> None:
        self.server.stop()

    def hang(self) -> None:
        self.patience = "500ms"  # of the sink that is made now: no answer will come
        self.server.behave = Hang()

    def recover(self) -> None:
        if not self.server.is_running:
            self.server.start()
        self.server.behave = self.answer


class TestBinaryWebhook(OverHttp):
    can_refuse = True

    def make_sink(self) -> Sink:
        url = self.server.url.replace("//", "//ada:hunter2@") + "/T0P-S3CRET"
        return webhook(
            url, name="crm", allow_private=True, timeout=self.patience, secret="a secret that both sides know"
        )

    def ids(self, request: Request) -> list[str]:
        return [unquote(request.headers["ce-id"])]

    def refuse(self, event_id: str) -> None:
        self.refused.add(event_id)

    def secrets(self) -> list[str]:
        return ["hunter2", "T0P-S3CRET", "both sides know"]


class TestStructuredWebhook(TestBinaryWebhook):
    def make_sink(self) -> Sink:
        return webhook(
            self.server.url,
            name="crm",
            allow_private=True,
            timeout=self.patience,
            mode="structured",
            probe_method="HEAD",
        )

    def ids(self, request: Request) -> list[str]:
        return [json.loads(request.body)["id"]]


class TestLoki(OverHttp):
    can_refuse = True

    def make_sink(self) -> Sink:
        return sinks.loki(self.server.url.replace("//", "//ada:hunter2@"), name="logs", timeout=self.patience)

    def ids(self, request: Request) -> list[str]:
        streams = json.loads(request.body)["streams"]
        return [json.loads(value[1])["id"] for stream in streams for value in stream["values"]]

    def refuse(self, event_id: str) -> None:
        self.refused.add(event_id)

    def secrets(self) -> list[str]:
        return ["hunter2"]


class TestOtlp(TestLoki):
    def make_sink(self) -> Sink:
        return sinks.otlp(self.server.url.replace("//", "//ada:hunter2@"), name="telemetry", timeout=self.patience)

    def ids(self, request: Request) -> list[str]:
        records = json.loads(request.body)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        return [
            one["value"]["stringValue"]
            for record in records
            for one in record["attributes"]
            if one["key"] == "cloudevents.event_id"
        ]


class TestSentry(TestLoki):
    def make_sink(self) -> Sink:
        dsn = self.server.url.replace("//", "//hunter2@") + "/42"
        return sinks.sentry(dsn, name="sentry", timeout=self.patience, allow_private=True)

    def ids(self, request: Request) -> list[str]:
        return [json.loads(request.body.split(b"\n")[2])["extra"]["event"]["id"]]


class TestFile(SinkContract):
    options: dict[str, Any] = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.jsonl"

    def make_sink(self) -> Sink:
        return sinks.file(self.path, name="archive", **self.options)

    def delivered(self) -> list[str]:
        files = [*sorted(self.path.parent.glob("events.jsonl.*")), self.path]
        lines = [line for file in files if file.exists() for line in file.read_bytes().split(b"\n")[:-1]]
        return [json.loads(line)["id"] for line in lines]

    def break_down(self) -> None:
        """The disk is full in the middle of the next line."""
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = self.path.stat().st_size if self.path.exists() else 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, self._limits[1]))

    def recover(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


class TestFileThatRotates(TestFile):
    options = {"rotate": "1KiB", "fsync": False}  # noqa: RUF012


class TestStdout(SinkContract):
    @pytest.fixture(autouse=True)
    def _stdout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raw, self.monkeypatch = Pipe(), monkeypatch

    def make_sink(self) -> Sink:
        out = io.TextIOWrapper(io.BufferedWriter(self.raw), encoding="utf-8")
        self.monkeypatch.setattr(sys, "stdout", out)  # here, because pytest puts its own there before the test
        return sinks.stdout()

    def delivered(self) -> list[str]:
        return [json.loads(line)["id"] for line in self.raw.taken.split(b"\n")[:-1]]

    def break_down(self) -> None:
        self.raw.broken = True

    def recover(self) -> None:
        self.raw.broken = False


class Pipe(io.RawIOBase):
    """What is on the other side of standard output."""

    def __init__(self) -> None:
        self.taken, self.broken = b"", False

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        if self.broken:
            raise BrokenPipeError
        self.taken += bytes(part)
        return len(part)


# ------------------------------------------------------------ the contract itself


class Shelf(Sink):
    """A sink that keeps every rule, in memory."""

    batch_max = 5
    items: list[str]
    broken = False
    refused: str | None = None

    async def send(self, events: Any) -> None:
        if self.broken:
            raise ConnectionError
        bad = {index: ValueError() for index, event in enumerate(events) if event.id == self.refused}
        self.items += [event.id for index, event in enumerate(events) if index not in bad]
        if bad:
            raise SomeFailed(bad)

    async def probe(self) -> None:
        if self.broken:
            raise ConnectionError


class TestShelf(SinkContract):
    can_refuse = True
    kind = Shelf

    def setup_method(self) -> None:
        self.items: list[str] = []
        self.broken, self.refused = False, ""

    def make_sink(self) -> Sink:
        class Mine(self.kind):  # type: ignore[name-defined, misc]
            items = self.items
            broken = property(lambda _: self.broken)
            refused = property(lambda _: self.refused)

        return Mine("shelf")

    def delivered(self) -> list[str]:
        return list(self.items)

    def break_down(self) -> None:
        self.broken = True

    def recover(self) -> None:
        self.broken = False

    def refuse(self, event_id: str) -> None:
        self.refused = event_id


class Optimist(Shelf):
    """Says yes and does nothing while the place is down."""

    async def send(self, events: Any) -> None:
        if not self.broken:
            await super().send(events)


class Backwards(Shelf):
    async def send(self, events: Any) -> None:
        await super().send(events[::-1])


class Vague(Shelf):
    """Does not say which one was refused."""

    async def send(self, events: Any) -> None:
        try:
            await super().send(events)
        except SomeFailed as error:
            raise ValueError("some") from error


class Sunny(Shelf):
    async def probe(self) -> None:
        """Always well."""


class Forgetful(Shelf):
    """Leaves the last one of a batch for later."""

    async def send(self, events: Any) -> None:
        await super().send(events[:-1] or events)


class Strict(Shelf):
    """Delivers exactly once, it thinks."""

    async def send(self, events: Any) -> None:
        if any(event.id in self.items for event in events):
            raise ValueError("seen before")
        await super().send(events)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Optimist, "a_place_that_takes_nothing_is_an_error_and_never_a_receipt"),
        (Optimist, "it_goes_on_when_the_place_is_back"),
        (Backwards, "a_full_batch_arrives_whole_and_in_order"),
        (Vague, "an_event_that_is_refused_is_named_and_the_others_arrive"),
        (Sunny, "a_probe_tells_well_from_unwell"),
        (Forgetful, "a_full_batch_arrives_whole_and_in_order"),
        (Strict, "an_event_that_comes_again_is_taken_again"),
    ],
)
def test_the_contract_catches_a_sink_that_breaks_it(kind: type[Sink], test: str) -> None:
    suite = TestShelf()
    suite.kind = kind  # type: ignore[assignment]
    suite.setup_method()
    with pytest.raises((AssertionError, ValueError)):
        getattr(suite, f"test_{test}")()


def test_the_contract_says_what_is_missing() -> None:
    with pytest.raises(AssertionError, match="make_sink"):
        SinkContract().make_sink()
    with pytest.raises(AssertionError, match="delivered"):
        SinkContract().delivered()


def test_the_sink_of_the_guide_keeps_the_contract(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/guide/delivery.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_shelf.py").write_text("\n\n".join(block for block in blocks if "Shelf" in block))
    suite = runpy.run_path(str(tmp_path / "test_shelf.py"))["TestShelf"]
    rules = [name for name in dir(suite) if name.startswith("test_")]
    for rule in rules:
        story = suite()
        story.setup_method()
        getattr(story, rule)()
    assert len(rules) > 10
