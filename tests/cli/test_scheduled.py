"""`redrive scheduled`, and what other commands say of events that are appended later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The doctor warns of a store in memory, and only what else it says is meant here."""
    return on_disk


@pytest.fixture
def store(tmp_path: Path, backend: str | None) -> str:
    """Three events wait for two logs, none of them for long."""
    path = backend or str(tmp_path / "s.db")
    app = App(path)

    @app.on(app.log("orders"), start="first")
    def handle(event: Event[Any], ctx: Ctx) -> None: ...

    app.run(until_idle=True)
    app.log("orders").append("payment.overdue", {}, key="ada", id="one", after="30m")
    app.log("orders").append("reminder.due", {"text": "now"}, key="bob", id="two", after="10m")
    app.log("others").append("reminder.due", {}, id="three", after="1h")
    app.close()
    return path


def ids(answer: Any) -> list[str]:
    return [one["id"] for one in answer.json]


def test_they_are_listed_in_the_order_in_which_they_come(inside: Any, store: str) -> None:
    assert ids(inside("scheduled", "--store", store, "--json")) == ["two", "one", "three"]
    assert ids(inside("scheduled", "orders", "--store", store, "--json")) == ["two", "one"]
    assert ids(inside("scheduled", "--key", "ada", "--store", store, "--json")) == ["one"]
    assert ids(inside("scheduled", "--type", "reminder.due", "--limit", "1", "--store", store, "--json")) == ["two"]
    (first, *_) = inside("scheduled", "--store", store, "--json").json
    assert list(first) == ["log", "id", "type", "key", "due", "scheduled", "bytes"]
    assert (first["log"], first["type"], first["key"], first["bytes"]) == ("orders", "reminder.due", "bob", 14)
    assert first["due"] > first["scheduled"] and first["due"].endswith("Z")


def test_in_words(inside: Any, store: str) -> None:
    lines = inside("scheduled", "--store", store).out.splitlines()
    assert lines[0].split() == ["due", "in", "log", "type", "key", "id"]
    assert lines[1].split()[-4:] == ["orders", "reminder.due", "bob", "two"]
    assert "the next 1; --limit shows more" in inside("scheduled", "--limit", "1", "--store", store).out
    assert inside("scheduled", "others", "--key", "ada", "--store", store).out == "no such event waits\n"


def test_a_log_that_is_not_there_is_named(inside: Any, store: str) -> None:
    for words in (("order",), ("order", "--json"), ("list", "order")):
        said = inside("scheduled", *words, "--store", store)
        assert said.code == 2
        assert "there is no log 'order' in this store; did you mean 'orders'?" in said.err


def test_status_shows_what_waits_and_what_is_overdue(inside: Any, store: str) -> None:
    out = inside("status", "--store", store).out
    assert "orders: 2 events scheduled, the next in 9m59s" in out or "the next in 10m" in out
    assert "others: 1 event scheduled" in out
    assert inside("status", "--store", store, "--json").json[0]["scheduled"] == 2
    app = App(store)
    app.log("orders").append("x", after=0)
    app.close()
    assert "orders: 3 events scheduled, 1 of them overdue" in inside("status", "--store", store).out


def test_one_is_cancelled_with_a_reason_and_the_audit_remembers(inside: Any, store: str) -> None:
    assert inside("scheduled", "cancel", "one", "--store", store).code == 2, "a reason is needed"
    answer = inside("scheduled", "cancel", "one", "--reason", "paid by cheque", "--store", store)
    assert (answer.code, answer.out) == (0, "cancelled one: payment.overdue will not be appended to orders\n")
    assert ids(inside("scheduled", "--store", store, "--json")) == ["two", "three"]
    again = inside("scheduled", "cancel", "one", "--reason", "paid by cheque", "--store", store)
    assert again.code == 2 and "no event 'one' is scheduled" in again.err
    (found,) = [inside("scheduled", "cancel", "two", "--reason", "ticket 7", "--json", "--store", store).json]
    assert found["id"] == "two"
    app = App(store)
    with app.operate().operator.store.reading() as tx:
        audited = [row[3:7] for row in tx.books.audited()]
    app.close()
    assert ("cancel", "", "event one", "paid by cheque") in audited
    assert inside("verify", "--audit", "--store", store).code == 0


def test_an_id_that_two_logs_wait_for_needs_the_log(inside: Any, store: str) -> None:
    app = App(store)
    app.log("others").append("x", id="one", after="1h")
    app.close()
    answer = inside("scheduled", "cancel", "one", "--reason", "r", "--store", store)
    assert answer.code == 2 and "several logs wait for an event 'one': orders, others" in answer.err
    assert inside("scheduled", "cancel", "one", "--log", "others", "--reason", "r", "--store", store).code == 0
    assert ids(inside("scheduled", "--store", store, "--json")) == ["two", "one", "three"]


def test_an_event_that_waits_for_a_log_that_is_gone_is_a_violation(inside: Any, store: str) -> None:
    from tests.cli.test_look import damage

    assert inside("verify", "--store", store).code == 0
    damage(store, "UPDATE redrive_scheduled SET log = 77 WHERE id = 'one'")
    answer = inside("verify", "--store", store)
    assert answer.code == 3 and "it waits for a log that there is not" in answer.out


def test_an_event_is_scheduled_by_hand_and_audited(inside: Any, store: str) -> None:
    line = ("append", "orders", "x", "1", "--id", "four", "--after", "5m", "--store", store)
    assert inside(*line).out.startswith("scheduled four for ")
    assert inside(*line).out.startswith("it is scheduled already: four for ")
    assert inside("append", "orders", "x", "1", "--id", "four", "--store", store).out.startswith("it is scheduled")
    assert inside("append", "orders", "x", "2", "--id", "four", "--store", store).code == 1
    (found,) = [inside(*line, "--json").json]
    assert (found["position"], found["new"]) == (None, False)
    assert ids(inside("scheduled", "--store", store, "--json"))[0] == "four"
    assert inside("append", "orders", "x", "--after", "soon", "--store", store).code == 2


def test_an_export_says_what_it_leaves_out_and_an_import_knows_what_waits(
    inside: Any, store: str, tmp_path: Path
) -> None:
    app = App(store)
    app.log("orders").append("now", id="now")
    app.close()
    answer = inside("export", "orders", "--out", str(tmp_path / "orders.jsonl"), "--store", store)
    assert answer.out.startswith("1 event exported")
    assert answer.err == "not exported: 2 events that the log waits for; see `redrive scheduled orders`\n"
    line = (
        '{"specversion": "1.0", "id": "%s", "source": "x", "type": "payment.overdue", "subject": "ada", "data": {}}\n'
    )
    (tmp_path / "new.jsonl").write_text(line % "one" + line % "new")
    found = inside("import", "orders", str(tmp_path / "new.jsonl"), "--json", "--store", store).json
    assert (found["added"], found["present"]) == (1, 1), "one is on its way"


def test_the_doctor_finds_what_nobody_appends(inside: Any, store: str) -> None:
    from tests.cli.test_look import damage

    assert "scheduled" not in inside("doctor", "--store", store).out
    damage(store, "UPDATE redrive_scheduled SET due_at = due_at - 7200")
    assert "a scheduled event has been due for 1h" in " ".join(inside("doctor", "--store", store).out.split())
