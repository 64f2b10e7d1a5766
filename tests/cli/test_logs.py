"""`redrive events` and `redrive append`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.store.address import is_postgres

FIELDS = ["position", "log", "id", "type", "key", "version", "schema", "time", "bytes"]


@pytest.fixture
def store(tmp_path: Path, backend: str | None) -> str:
    """Two logs: twelve orders of three keys, and two receipts between them."""
    path = backend or str(tmp_path / "s.db")
    app = App(path)
    for number in range(12):
        data = {"cents": number, "password": "hunter2"}
        app.log("orders").append(
            "order.placed", data, key=f"k{number % 3}", id=f"o{number}", headers={"n": str(number)}
        )
        if number in (3, 8):
            app.log("receipts").append("charged", {}, id=f"r{number}")
    app.close()
    return path


def own(store: str, sql: str) -> str:
    return sql.replace("redrive_", "redrive.") if is_postgres(store) else sql


def rows(answer: Any) -> list[list[str]]:
    return [line.split() for line in answer.out.splitlines()[1:] if line and line[0] in " 0123456789"]


def test_the_newest_events_come_in_order(inside: Any, store: str) -> None:
    answer = inside("events", "orders", "--limit", "3", "--store", store)
    assert [row[-1] for row in rows(answer)] == ["o9", "o10", "o11"]
    assert "from the first: --after 0" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert [row["id"] for row in inside("events", "--store", store, "--json").json][-3:] == ["o9", "o10", "o11"]
    assert {row["log"] for row in inside("events", "--store", store, "--json").json} == {"orders", "receipts"}


def test_pages_go_on_from_a_position(inside: Any, store: str) -> None:
    seen: list[str] = []
    after = "0"
    while page := inside("events", "orders", "--limit", "5", "--after", after, "--json", "--store", store).json:
        seen += [row["id"] for row in page]
        after = str(page[-1]["position"])
    assert seen == [f"o{number}" for number in range(12)]
    answer = inside("events", "orders", "--limit", "5", "--after", "0", "--store", store)
    assert "next page: --after 6" in answer.out  # a receipt lies between
    assert inside("events", "orders", "--after", "99", "--store", store).out == "no more events\n"


def test_key_type_and_time_choose(inside: Any, store: str) -> None:
    def ids(*options: str) -> list[str]:
        return [row["id"] for row in inside("events", *options, "--json", "--store", store).json]

    assert ids("--key", "k1") == ["o1", "o4", "o7", "o10"]
    assert ids("orders", "--key", "k1", "--limit", "2") == ["o7", "o10"]
    assert ids("--type", "char*") == ["r3", "r8"]
    assert len(ids("--since", "1h")) == 14
    assert ids("--until", "1h") == []
    assert ids("--since", "2999-01-01T00:00Z") == []
    for wrong in ("yesterday", "2026-01-01T00:00"):
        assert inside("events", "--since", wrong, "--store", store).code == 2


def test_a_payload_is_shown_only_when_asked_for_and_without_what_is_redacted(inside: Any, store: str) -> None:
    (plain,) = inside("events", "orders", "--limit", "1", "--json", "--store", store).json
    assert list(plain) == FIELDS
    (full,) = inside("events", "orders", "--limit", "1", "--json", "--payload", "--store", store).json
    assert list(full) == [*FIELDS, "data", "headers"]
    assert (full["data"], full["headers"]) == ({"cents": 11, "password": "[redacted]"}, {"n": "11"})
    shown = inside("events", "orders", "--limit", "1", "--payload", "--store", store).out
    assert '"cents": 11' in shown
    assert "hunter2" not in shown


def test_an_unknown_log_names_the_nearest(inside: Any, store: str) -> None:
    for command in (
        ["events", "ordres"],
        ["append", "ordres", "t"],
        ["export", "ordres"],
        ["import", "ordres", __file__],
    ):
        answer = inside(*command, "--store", store)
        assert (answer.code, "did you mean 'orders'" in answer.err) == (2, True)


def test_following_shows_what_comes_and_ends_with_ctrl_c(shop: Any) -> None:
    shop.append(1)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    command = [sys.executable, "-m", "redrive.cli", "events", "orders", "--follow", "--json", "--store", shop.store]
    with subprocess.Popen(command, cwd=shop.folder, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["position"] == 1
        for cents in (2, 3):
            shop.append(cents)
            event = json.loads(process.stdout.readline())
            assert (event["type"], event["position"]) == ("order.placed", cents)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stdout.read() == ""


# ------------------------------------------------------------ append


def test_an_event_is_appended_by_hand_and_audited(inside: Any, store: str) -> None:
    answer = inside(
        "append", "orders", "order.paid", '{"cents": 5}', "--key", "k1", "--header", "via=phone", "--header", "eq=a=b",
        "--expected-version", "4", "--reason", "called in", "--store", store, "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    app = App(store)
    event = app.log("orders").read_key("k1")[-1]
    assert (event.type, event.data, event.headers, event.version) == (
        "order.paid", {"cents": 5}, {"via": "phone", "eq": "a=b"}, 5,
    )  # fmt: skip
    assert (answer.json["id"], answer.json["position"], answer.json["new"]) == (event.id, event.position, True)
    with app.reader() as tx:
        found = tx.execute(own(store, "SELECT action, target, reason FROM redrive_audit")).fetchall()
    app.close()
    assert found == [("append", f"event {event.id}", "called in")]


def test_data_comes_from_a_file_or_from_stdin(shop: Any) -> None:
    shop.append(1)
    (shop.folder / "order.json").write_text('{\n  "cents": 7\n}\n')
    assert shop.process("append", "orders", "t", "@order.json", "--store", "shop.db").code == 0
    assert shop.process("append", "orders", "t", "-", "--store", "shop.db", answer='{"cents": 8}').code == 0
    assert shop.process("append", "orders", "t", "--store", "shop.db").code == 0
    with shop.app() as app:
        assert [event.data for event in app.log("orders").read()][1:] == [{"cents": 7}, {"cents": 8}, None]


def test_the_same_event_twice_is_stored_once(inside: Any, store: str) -> None:
    line = ("append", "orders", "t", "1", "--id", "mine", "--store", store)
    assert inside(*line).out.startswith("appended mine at position 15")
    assert inside(*line).out.startswith("it was there already: mine at position 15")
    answer = inside("append", "orders", "t", "2", "--id", "mine", "--store", store)
    assert (answer.code, "other content" in answer.err) == (1, True)
    assert len(inside("events", "orders", "--type", "t", "--json", "--store", store).json) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["t", "{bad"], 1), (["t", '{"a": 1, "a": 2}'], 1), (["t", "NaN"], 1), (["a b", "1"], 1), (["t", "@none"], 2),
        (["t", "1", "--header", "x"], 2), (["t", "1", "--header", "x=1", "--header", "x=2"], 2),
        (["t", "1", "--key", ""], 1), (["t", "1", "--key", "k0", "--expected-version", "9"], 1),
        (["t", "1", "--expected-version", "1"], 2),
    ],
)  # fmt: skip
def test_what_cannot_be_appended_is_refused_and_changes_nothing(
    inside: Any, store: str, arguments: list[str], code: int
) -> None:
    answer = inside("append", "orders", *arguments, "--store", store)
    assert (answer.code, answer.err.startswith("redrive: ")) == (code, True)
    assert len(inside("events", "orders", "--json", "--store", store).json) == 12


def test_a_new_log_and_a_new_store_are_made_only_on_request(inside: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "new.db")
    assert inside("append", "orders", "t", "--store", path).code == 2
    assert list(tmp_path.iterdir()) == []
    assert inside("append", "orders", "t", "--store", path, "--create").code == 0
    assert [row["log"] for row in inside("events", "--json", "--store", path).json] == ["orders"]


def test_with_the_program_data_must_fit_its_class(shop: Any) -> None:
    text = (shop.folder / "shop.py").read_text()
    typed = '\nimport msgspec, redrive\n@redrive.event("typed.here", schema=3)\nclass T(msgspec.Struct):\n    n: int\n'
    (shop.folder / "shop.py").write_text(text + typed)
    shop.append(1)
    refused = shop.process("append", "orders", "typed.here", '{"n": "x"}', "--app", "shop:app")
    assert (refused.code, "typed.here" in refused.err) == (1, True)
    taken = shop.process("append", "orders", "typed.here", '{"n": 1}', "--app", "shop:app")
    assert taken.code == 0, taken.err
    assert shop.redrive("events", "orders", "--json", "--store", "shop.db").json[-1]["schema"] == 3
