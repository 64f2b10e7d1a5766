"""`redrive rules test`: which rule decides about an event, and why; nothing is changed, and no store is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
from redrive import App, rules
app = App("shop.db")

def dear(letter):
    return letter.event.data["cents"] > 100 and letter.failure.error_type != "TimeoutError"

@app.on(app.log("orders"), "order.*", start="first", letters=rules(discard="order.noise", keep_if=dear))
def charge(event, ctx): ...

@app.on(app.log("orders"), start="first")
def mail(event, ctx): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ruled", raising=False)
    (tmp_path / "ruled.py").write_text(PROGRAM)
    (tmp_path / "redrive.toml").write_text(
        "[subscriptions.charge.letters]\ndiscard = ['health.*', '/order\\.(noise|void)/']\n"
    )
    return tmp_path


def write(folder: Path, **event: Any) -> str:
    (folder / "event.json").write_text(json.dumps(event))
    return "event.json"


def test_each_subscription_says_which_rule_decides_and_why(inside: Any, folder: Path) -> None:
    file = write(folder, type="order.void", data={"cents": 500})
    charge, mail = inside("rules", "test", file, "--app", "ruled:app", "--json").json
    assert charge == {
        "subscription": "charge",
        "asks": True,
        "verdict": "discarded",
        "rule": r"discard /order\.(noise|void)/",
        "why": r"discard /order\.(noise|void)/ fits",
        "steps": [
            {"rule": "discard health.*", "answer": "does not fit"},
            {"rule": r"discard /order\.(noise|void)/", "answer": "fits"},
        ],
    }
    assert (mail["verdict"], mail["rule"], mail["why"], mail["steps"]) == ("kept", None, "it has no rules", [])
    assert not (folder / "shop.db").exists()


def test_functions_see_the_event_and_the_trouble_it_is_imagined_to_be_in(inside: Any, folder: Path) -> None:
    file = write(folder, type="order.placed", data={"cents": 500}, key="ada")

    def said(*more: str) -> tuple[str, str, str]:
        (one,) = inside("rules", "test", file, "--app", "ruled:app", "-s", "charge", "--json", *more).json
        return one["verdict"], one["rule"], one["why"]

    assert said() == ("kept", "keep_if dear", "keep_if dear answered True")
    timeout = said("--error", "TimeoutError: no answer")
    assert timeout == ("discarded", "keep_if dear", "keep_if dear answered False")
    write(folder, type="order.placed", data={})
    verdict, rule, why = said()
    assert (verdict, rule) == ("kept", "keep_if dear") and "raised KeyError" in why


def test_in_words_and_for_a_type_that_never_comes(inside: Any, folder: Path) -> None:
    file = write(folder, type="health.ping", data=None)
    out = inside("rules", "test", file, "--app", "ruled:app").out
    assert out.splitlines() == [
        "charge: discarded: discard health.* fits (but it never asks for this type)",
        "  discard health.*: fits",
        "mail: kept: it has no rules",
    ]


def test_without_a_program_the_rules_of_the_settings_are_asked(inside: Any, folder: Path) -> None:
    (one,) = inside("rules", "test", write(folder, type="health.ping"), "--json").json
    assert (one["subscription"], one["verdict"]) == ("charge", "discarded")
    (folder / "redrive.toml").write_text("")
    assert inside("rules", "test", "event.json").out.startswith("no rules: every letter is kept")


def test_a_cloud_event_will_do(inside: Any, folder: Path) -> None:
    file = write(folder, specversion="1.0", id="1", source="x", type="order.noise", data={"cents": 1})
    (one,) = inside("rules", "test", file, "--app", "ruled:app", "-s", "charge", "--json").json
    assert one["verdict"] == "discarded"


@pytest.mark.parametrize(
    ("text", "options", "code", "why"),
    [
        ("[]", (), 1, "not a JSON object"),
        ("{", (), 1, "not a JSON object"),
        ("{}", (), 1, "has no type"),
        ('{"type": "a", "tpye": 1}', (), 1, "unknown field 'tpye'"),
        ('{"type": "a"}', ("-s", "chrage"), 2, "there is no subscription 'chrage'"),
        ('{"type": "a"}', ("--dlq-reason", "bad luck"), 2, "no letter is dead for the reason"),
    ],
)
def test_mistakes_are_one_sentence(inside: Any, folder: Path, text: str, options: Any, code: int, why: str) -> None:
    (folder / "event.json").write_text(text)
    answer = inside("rules", "test", "event.json", "--app", "ruled:app", *options)
    assert (answer.code, why in answer.err) == (code, True), answer.err
    assert inside("rules", "test", "nothing.json").code == 2


def test_the_settings_that_hold_name_the_rules(inside: Any, folder: Path) -> None:
    found = {one["name"]: one for one in inside("config", "show", "--json", "--app", "ruled:app").json}
    discard = found["subscriptions.charge.letters.discard"]
    assert (discard["value"], discard["source"]) == (["health.*", r"/order\.(noise|void)/"], "file")
    keep_if = found["subscriptions.charge.letters.keep_if"]
    assert (keep_if["value"], keep_if["source"]) == ("dear", "program")
