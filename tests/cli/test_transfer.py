"""`redrive export` and `redrive import`: CloudEvents out and in, without loss and without doubles."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import App, failpoints
from redrive.replay.events import EventRow, Wanted
from redrive.replay.transfer import BATCH_EVENTS_MAX, Imported, export, load
from redrive.store.address import is_postgres
from redrive.testing import failpoint
from redrive.testing.scratch import ROOM, in_memory

REQUIRED = {"specversion", "id", "source", "type"}


def line(number: int, **more: Any) -> str:
    fields = {"specversion": "1.0", "id": f"e{number}", "source": "/elsewhere", "type": "t", "data": {"n": number}}
    return json.dumps({name: value for name, value in (fields | more).items() if value is not ...})


def own(store: str, sql: str) -> str:
    return sql.replace("redrive_", "redrive.") if is_postgres(store) else sql


def stored(path: str, log: str = "orders") -> list[tuple[Any, ...]]:
    """Everything about the events of a log but their positions."""
    app = App(path)
    found = [(e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.raw) for e in app.log(log).read()]
    app.close()
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def store(tmp_path: Path, backend: str | None) -> str:
    return backend or str(tmp_path / "s.db")


# ------------------------------------------------------------ there and back

printable = st.characters(exclude_categories=("Cc", "Cs"))
names = st.text(printable, min_size=1, max_size=20)
types = names.filter(lambda name: not any(map(str.isspace, name)))
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)  # also control characters: in data they may be
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
header_names = names | st.sampled_from(
    ["traceparent", "source", "subject", "data", "id", "redriveheaders", "time", "a"]
)
events = st.fixed_dictionaries(
    {
        "type": types,
        "data": values,
        "pretty": st.booleans(),
        "key": st.none() | names,
        "headers": st.none() | st.dictionaries(header_names, st.text(printable, max_size=20), max_size=4),
        "time": st.datetimes(timezones=st.just(UTC)),
        "schema": st.integers(1, 1_000_000),
    }
)


def append(app: App, drawn: dict[str, Any], number: int) -> None:
    """The event as a producer could have stored it: pretty or compact JSON, any schema."""
    indent = 2 if drawn["pretty"] else None
    raw = json.dumps(drawn["data"], indent=indent, ensure_ascii=drawn["pretty"]).encode()
    rest = {name: drawn[name] for name in ("key", "headers", "time")}
    app.log("orders").append(drawn["type"], msgspec.Raw(raw), id=f"e{number}", **rest)
    with app.transaction() as tx:
        tx.execute("UPDATE redrive_events SET schema = ? WHERE id = ?", (drawn["schema"], f"e{number}"))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(events, min_size=1, max_size=6))
def test_what_is_exported_comes_back_as_it_was(drawn: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory(ROOM)) as folder:
        path, other = f"{folder}/a.db", f"{folder}/b.db"
        app, copy = App(path), App(other)
        for number, one in enumerate(drawn):
            append(app, one, number)
        lines = [text + b"\n" for _, text in export(app.runtime.store, Wanted("orders"))]
        for text in lines:
            check_cloudevent(text)
        first = load(copy.operate("ada").operator, "orders", lines, create=True)
        again = load(copy.operate("ada").operator, "orders", lines)
        home = load(app.operate("ada").operator, "orders", lines)
        app.close()
        copy.close()
        assert (first.added, first.bad) == (len(drawn), 0)
        assert (again.present, again.added, home.present, home.added) == (len(drawn), 0, len(drawn), 0)
        assert stored(path) == stored(other)


def check_cloudevent(text: bytes) -> None:
    """One line, a JSON object, every attribute simple and named as CloudEvents wants it."""
    assert text.count(b"\n") == 1
    fields = json.loads(text)
    assert fields.keys() >= REQUIRED
    assert ("data" in fields) != ("data_base64" in fields)
    for name, value in fields.items():
        assert re.fullmatch(r"[a-z0-9]{1,20}|data_base64", name)
        assert name == "data" or (isinstance(value, str) and value) or type(value) is int
    datetime.fromisoformat(fields["time"])


def test_a_whole_log_by_the_command_line(inside: Any, store: str, file: Path) -> None:
    app = App(store)
    for number in range(BATCH_EVENTS_MAX + 5):
        app.log("orders").append("t", {"n": number, "s": "\u202e"}, key=f"k{number % 7}", time=at(number))
    app.close()
    answer = inside("export", "orders", "--out", str(file), "--store", store)
    assert answer.code == 0
    assert answer.out.startswith("1,005 events exported to ")
    assert answer.out.endswith("the last at position 1005\n")
    other = str(file.with_name("copy.db"))  # of another kind, perhaps: a log moves by it
    assert inside("import", "orders", str(file), "--store", other).code == 2  # there is no such store
    answer = inside("import", "orders", str(file), "--store", other, "--create")
    assert (answer.code, answer.out) == (0, "1,005 events added to orders\n")
    assert stored(other) == stored(store)
    assert inside("verify", "--store", other).code == 0
    assert [path.name for path in file.parent.glob("*.part")] == []


def at(number: int) -> datetime:
    return datetime(1999, 12, 31, tzinfo=UTC) + timedelta(microseconds=number)


def test_an_export_can_be_narrowed_and_taken_up_again(inside: Any, store: str, file: Path) -> None:
    app = App(store)
    for number in range(6):
        app.log("orders").append(f"t.{number % 2}", number, key=f"k{number % 3}", id=str(number))
    app.close()

    def ids(*options: str) -> list[str]:
        target = file.with_name("out.jsonl")
        assert inside("export", "orders", "--out", str(target), "--yes", "--store", store, *options).code == 0
        return [json.loads(text)["id"] for text in target.read_text().splitlines()]

    assert ids("--after", "4") == ["4", "5"]
    assert ids("--type", "t.1") == ["1", "3", "5"]
    assert ids("--key", "k0") == ["0", "3"]
    assert len(ids("--since", "1h")) == 6
    assert ids("--until", "1h") == []


def test_an_export_to_stdout_is_nothing_but_events(shop: Any) -> None:
    shop.append(1, 2)
    answer = shop.process("export", "orders", "--store", "shop.db")
    assert [json.loads(text)["data"]["cents"] for text in answer.out.splitlines()] == [1, 2]
    assert answer.err == "2 events exported, the last at position 2\n"


def test_a_terminal_sees_no_character_that_could_steer_it(shop: Any) -> None:
    with shop.app() as app:
        app.log("orders").append("t", {"a": "\u202e\x9b31m ü 😀"}, key="k\u202e")
    said = shop.at_terminal("export", "orders", "--store", "shop.db", answer="").out
    (text,) = [one for one in said.splitlines() if one.startswith("{")]
    assert text.isascii()
    fields = json.loads(text)
    assert (fields["data"], fields["partitionkey"]) == ({"a": "\u202e\x9b31m ü 😀"}, "k\u202e")


def test_a_file_is_replaced_only_on_request(inside: Any, store: str, file: Path) -> None:
    app = App(store)
    app.log("orders").append("t", 1)
    app.close()
    file.write_text("precious")
    answer = inside("export", "orders", "--out", str(file), "--store", store)
    assert (answer.code, file.read_text()) == (2, "precious")
    assert inside("export", "nothing", "--out", str(file), "--yes", "--store", store).code == 2
    assert file.read_text() == "precious"
    assert inside("export", "orders", "--out", str(file), "--yes", "--store", store).code == 0
    assert json.loads(file.read_text())["data"] == 1


# ------------------------------------------------------------ from elsewhere


def test_a_cloudevent_from_elsewhere_keeps_what_it_says(inside: Any, store: str, file: Path) -> None:
    lines = [
        line(
            1, subject="s", time="2026-01-31T03:00:00.123456789+01:00", tenant="acme", sequence=7, good=True, none=None
        ),
        line(2, partitionkey="p", subject="s", datacontenttype="text/plain", data="hello"),
        line(3, data=..., data_base64=base64.b64encode(b'{"a": [1]}').decode()),
        line(4, data=..., source="urn:redrive:log:other"),
    ]
    file.write_text("\n\n".join(lines) + "\r\n")
    answer = inside("import", "orders", str(file), "--store", store, "--create", "--json")
    assert answer.json == {"lines": 4, "added": 4, "present": 0, "bad": 0, "complete": True, "errors": []}
    first, second, third, fourth = stored(store)
    assert first[:4] == ("e1", "t", "s", 1)
    assert first[5] == datetime(2026, 1, 31, 2, 0, 0, 123456, UTC).timestamp() * 1e6
    assert first[6] == {"source": "/elsewhere", "tenant": "acme", "sequence": "7", "good": "true"}
    assert (second[2], second[6], second[7]) == ("p", {"source": "/elsewhere", "subject": "s"}, b'"hello"')
    assert third[7] == b'{"a": [1]}'
    assert (fourth[6], fourth[7]) == ({}, b"null")


BAD = {
    "no JSON": "{nonsense",
    "no object": "[1, 2]",
    "no CloudEvent": '{"id": "a"}',
    "other version": line(1, specversion="0.3"),
    "no id": line(1, id=...),
    "an empty id": line(1, id=""),
    "no source": line(1, source=...),
    "a number as type": line(1, type=5),
    "white space in the type": line(1, type="a b"),
    "an object as attribute": line(1, extra={}),
    "a control character in a header": line(1, extra="a\x1b[31m"),
    "a long key": line(1, partitionkey="k" * 1000),
    "a bad time": line(1, time="2026-02-31T00:00:00Z"),
    "a time without zone": line(1, time="2026-02-01T00:00:00"),
    "a bad schema": line(1, redriveschema=0),
    "bad headers": line(1, redriveheaders="{}}"),
    "bad base64": line(1, data=..., data_base64="?"),
    "a picture": line(1, data=..., data_base64="aGk=", datacontenttype="image/png"),
    "both kinds of data": line(1, data_base64="e30="),
    "data with a key twice": line(1).replace('{"n": 1}', '{"n": 1, "n": 2}'),
    "nested too deeply": line(1).replace('{"n": 1}', "[" * 200 + "]" * 200),
    "nested far too deeply": "[" * 100_000,
    "other content under a taken id": line(0, data="other"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_by_its_number_and_why(inside: Any, store: str, file: Path, name: str) -> None:
    file.write_text("\n".join([line(0), BAD[name], line(2)]) + "\n")
    arguments = ("import", "orders", str(file), "--store", store, "--create")
    answer = inside(*arguments)
    assert (answer.code, stored(store)) == (1, [])  # its batch is not imported, and it was the first
    assert answer.err.startswith("  line 2: ")
    assert "stopped there" in answer.out
    answer = inside(*arguments, "--skip-bad", "--json")
    assert (answer.code, [row[0] for row in stored(store)]) == (3, ["e0", "e2"])
    assert (answer.json["lines"], answer.json["added"], answer.json["bad"]) == (3, 2, 1)
    assert [error["line"] for error in answer.json["errors"]] == [2]


def test_a_line_without_end_is_bad_and_no_more(inside: Any, store: str, file: Path) -> None:
    with file.open("w") as target:
        target.write(line(0) + "\n")
        target.write(line(1, data="x" * 9_000_000) + "\n")
        target.write(line(2))
    answer = inside("import", "orders", str(file), "--store", store, "--create", "--skip-bad", "--json")
    assert (answer.code, [row[0] for row in stored(store)]) == (3, ["e0", "e2"])
    assert answer.json["errors"][0]["line"] == 2


def test_a_bad_line_after_whole_batches_is_done_in_part(inside: Any, store: str, file: Path) -> None:
    lines = [line(number) for number in range(BATCH_EVENTS_MAX * 2)]
    lines[BATCH_EVENTS_MAX + 10] = "?"
    file.write_text("\n".join(lines))
    answer = inside("import", "orders", str(file), "--store", store, "--create", "--json")
    assert (answer.code, answer.json["added"], answer.json["complete"]) == (3, BATCH_EVENTS_MAX, False)
    assert len(stored(store)) == BATCH_EVENTS_MAX
    lines[BATCH_EVENTS_MAX + 10] = line(-1)
    file.write_text("\n".join(lines))
    answer = inside("import", "orders", str(file), "--store", store)
    assert (answer.code, answer.out) == (0, "1,000 events added to orders, 1,000 were there already\n")


def test_many_bad_lines_are_counted_and_the_first_shown(inside: Any, store: str, file: Path) -> None:
    file.write_text("\n".join(["?"] * 50 + [line(0)]))
    answer = inside("import", "orders", str(file), "--store", store, "--create", "--skip-bad")
    assert (answer.code, answer.out) == (3, "1 event added to orders, 50 bad lines left out\n")
    assert (answer.err.count("  line "), "… and 30 more" in answer.err) == (20, True)


def test_an_interrupted_import_goes_on_without_doubles(store: str) -> None:
    lines = [line(number, partitionkey=f"k{number % 5}").encode() for number in range(BATCH_EVENTS_MAX * 3)]
    seen: list[Imported] = []

    def interrupt(so_far: Imported) -> None:
        seen.append(so_far)
        if len(seen) == 2:
            raise KeyboardInterrupt

    app = App(store)
    operator = app.operate("ada").operator
    with pytest.raises(KeyboardInterrupt):
        load(operator, "orders", lines, create=True, told=interrupt)
    again = load(operator, "orders", lines)
    with app.reader() as tx:
        audited = [json.loads(row[0])["added"] for row in tx.execute(own(store, "SELECT details FROM redrive_audit"))]
    app.close()
    assert (again.present, again.added) == (BATCH_EVENTS_MAX * 2, BATCH_EVENTS_MAX)
    found = stored(store)
    assert [row[0] for row in found] == [f"e{number}" for number in range(BATCH_EVENTS_MAX * 3)]
    assert [row[3] for row in found if row[2] == "k3"] == list(range(1, 601))
    assert audited == [BATCH_EVENTS_MAX] * 3


def test_a_batch_that_fails_before_its_commit_leaves_nothing(store: str) -> None:
    app = App(store)
    operator = app.operate("ada").operator
    assert "operator.before_commit" in failpoints.NAMES
    with pytest.raises(OSError, match="pulled"), failpoint("operator.before_commit", OSError("pulled")):
        load(operator, "orders", [line(1).encode()], create=True)
    app.close()
    assert stored(store) == []


def test_the_same_line_twice_in_a_file_is_one_event(inside: Any, store: str, file: Path) -> None:
    file.write_text("\n".join([line(1), line(1), line(2)]))
    answer = inside("import", "orders", str(file), "--store", store, "--create", "--json")
    assert (answer.json["added"], answer.json["present"], len(stored(store))) == (2, 1, 2)


def test_an_import_from_stdin(shop: Any) -> None:
    shop.append(1)
    answer = shop.process("import", "orders", "-", "--store", "shop.db", answer=line(1) + "\n")
    assert (answer.code, answer.out) == (0, "1 event added to orders\n")


def test_bytes_that_are_no_json_leave_as_they_are(store: str) -> None:
    app = App(store)
    app.log("orders").append("t", 1)
    with app.transaction() as tx:
        tx.execute(own(store, "UPDATE redrive_events SET data = ?"), (b"\xff\0",))
    ((row, text),) = export(app.runtime.store, Wanted("orders"))
    app.close()
    assert isinstance(row, EventRow)
    assert base64.b64decode(json.loads(text)["data_base64"]) == b"\xff\x00"


@pytest.mark.parametrize("line", [["export", "orders", "--yes"], ["dlq", "export", "--all"]])
def test_a_link_and_a_pipe_stay_what_they_are(shop: Any, line: list[str]) -> None:
    shop.append(1, -2)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    real, link, pipe = shop.folder / "real.jsonl", shop.folder / "link.jsonl", shop.folder / "pipe"
    link.symlink_to(real)
    assert shop.redrive(*line, "--out", "link.jsonl", "--store", "shop.db").code == 0
    assert link.is_symlink() and len(real.read_text().splitlines()) == 2
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:  # as a device, it cannot be replaced
        assert shop.redrive(*line, "--out", "pipe", "--store", "shop.db").code == 0
        assert reader.read() == real.read_text()
    assert pipe.is_fifo()
    assert list(shop.folder.glob("*.part")) == []


def test_a_dash_is_stdout(shop: Any) -> None:
    shop.append(1, 2)
    answer = shop.process("export", "orders", "--out", "-", "--store", "shop.db")
    assert (answer.code, len(answer.out.splitlines())) == (0, 2)
    assert not (shop.folder / "-").exists()
