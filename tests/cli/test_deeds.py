"""What the `dlq` verbs do, what they say before, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from redrive.cli import cli
from redrive.cli.reference import commands


@pytest.fixture
def failed(shop: Any) -> Any:
    """Key k1: one dead letter per subscription with two events behind it; k2: one dead letter each."""
    shop.append(1, -2, -4, 8, 16, 32, 64, 128, 256)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def states(shop: Any, subscription: str = "revenue") -> list[str]:
    rows = shop.query(
        "SELECT state FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription "
        f"WHERE s.name = '{subscription}' ORDER BY l.position"
    )
    return [state for (state,) in rows]


def test_causes_in_words_and_as_json(failed: Any) -> None:
    answer = failed.redrive("dlq", "--store", "shop.db")
    assert answer.code == 0
    assert "2 letters  revenue" in answer.out
    assert "Reject: negative amount" in answer.out
    assert "2 lanes held back, 4 events waiting" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    found = failed.redrive("dlq", "-s", "charge", "--store", "shop.db", "--json").json
    assert list(found[0]) == [
        "fingerprint", "subscription", "dead", "lanes", "waiting", "error_type", "error_message",
        "reasons", "types", "first_seen", "last_seen", "standing", "notes",
    ]  # fmt: skip
    assert [(one["subscription"], one["dead"], one["waiting"]) for one in found] == [("charge", 2, 4)]


def test_the_list_takes_every_filter(failed: Any) -> None:
    def ids(*filters: str) -> list[int]:
        return [one["id"] for one in failed.redrive("dlq", "list", *filters, "--store", "shop.db", "--json").json]

    whole = ids()
    assert len(whole) == 4
    fingerprint = failed.redrive("dlq", "list", "-s", "charge", "--store", "shop.db", "--json").json[0]["fingerprint"]
    charge = ids("-s", "charge")
    assert ids("--fingerprint", fingerprint[:5]) == charge
    assert ids("--error", "cannot CHARGE") == charge
    assert ids("--dlq-reason", "rejected") == [one for one in whole if one not in charge]
    assert ids("--key", "k1", "--type", "order.*") == [one for one in whole if one in ids("--key", "k1")]
    assert len(ids("--key", "k1")) == 2
    assert ids("--since", "1h") == whole
    assert ids("--until", "2020-01-01T00:00Z") == ids("--type", "other") == []
    parked = failed.redrive("dlq", "list", "--parked", "-s", "revenue", "--store", "shop.db", "--json").json
    assert [(one["state"], one["reason"], one["waiting"]) for one in parked] == [
        ("waiting", "behind_head", 1), ("waiting", "behind_head", 1),
        ("waiting", "behind_head", 0), ("waiting", "behind_head", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [["--since", "yesterday"], ["--until", "2026-01-01T00:00"], ["-s", "revenues"], ["--limit", "0"]]
)
def test_a_filter_that_means_nothing_is_refused(failed: Any, wrong: list[str]) -> None:
    answer = failed.redrive("dlq", "list", *wrong, "--store", "shop.db")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("redrive: ")


def test_a_discard_says_what_it_releases_and_releases_it(failed: Any) -> None:
    asked = failed.redrive("dlq", "discard", "-s", "revenue", "--key", "k1", "--reason", "test", "--store", "shop.db")
    assert asked.code == 2
    assert "Discard 1 letter; 2 events that wait behind will run?" in asked.err
    assert states(failed) == ["dead", "dead", "retrying", "retrying", "retrying", "retrying"]
    line = ["dlq", "discard", "-s", "revenue", "--key", "k1", "--reason", "test data", "--yes", "--store", "shop.db"]
    assert failed.redrive(*line).out == "operation 1: 1 selected = 1 applied\n2 events that wait behind will run\n"
    shown = failed.redrive("dlq", "show", "1", "--json", "--store", "shop.db").json
    assert (shown["state"], shown["waiting"], shown["followers"]) == ("discarded", 0, [])  # nobody waits for it now
    failed.write(strict=False)
    failed.redrive("run", "shop:app", "--until-idle")
    assert dict(failed.query("SELECT key, cents FROM revenue"))["k1"] == 16 + 128
    assert failed.query("SELECT action, reason FROM redrive_audit") == [("discard", "test data")]
    assert failed.redrive("verify", "--app", "shop:app").code == 0


@pytest.mark.parametrize("verb", ["discard", "resolve"])
def test_a_whole_lane_is_closed_and_nothing_of_it_runs(failed: Any, verb: str) -> None:
    line = ["dlq", verb, "-s", "revenue", "--key", "k1", "--lane", "--reason", "gone", "--store", "shop.db"]
    assert "3 letters; 2 events that wait behind among them" in failed.redrive(*line).err
    assert failed.redrive(*line, "--yes").out == "operation 1: 3 selected = 3 applied\n"
    failed.redrive("run", "shop:app", "--until-idle")
    assert "k1" not in dict(failed.query("SELECT key, cents FROM revenue"))
    ways = failed.query("SELECT DISTINCT substr(resolved_by, 1, 7) FROM redrive_letters WHERE state = 'discarded'")
    assert ways == [(verb[:7],)]
    assert failed.redrive("verify", "--app", "shop:app").code == 0


def test_an_edit_shows_the_difference_and_keeps_every_revision(failed: Any) -> None:
    letter = failed.redrive("dlq", "list", "-s", "revenue", "--store", "shop.db", "--json").json[0]["id"]
    line = [
        "dlq",
        "edit",
        str(letter),
        "--patch",
        '{"cents": 2, "user": null}',
        "--reason",
        "sign",
        "--app",
        "shop:app",
    ]
    answer = failed.redrive(*line)
    assert answer.code == 2  # nobody said yes
    assert [text.strip() for text in answer.out.splitlines() if text.strip()[:1] in ("-", "+")] == [
        '-  "cents": -2,', '-  "user": "u1"', '+  "cents": 2',
    ]  # fmt: skip
    assert failed.redrive(*line, "--yes").code == 0
    again = failed.redrive(*line, "--yes")
    assert again.code == 1
    assert "this changes nothing" in again.out
    shown = failed.redrive("dlq", "show", str(letter), "--payload", "--json", "--store", "shop.db").json
    assert shown["data"] == {"cents": 2}
    assert shown["revisions"] == [{"rev": 1, "bytes": 11, "data": {"cents": 2}}]
    assert shown["original"] == {"cents": -2, "user": "u1"}
    assert shown["audit"][0]["details"]["edit"] == 1
    text = failed.redrive("dlq", "show", str(letter), "--payload", "--store", "shop.db").out
    assert "\noriginal\n" in text and '"cents": -2' in text and "\nedit 1: 11 bytes\n" in text
    without = failed.redrive("dlq", "show", str(letter), "--json", "--store", "shop.db").json
    assert without["revisions"] == [{"rev": 1, "bytes": 11}] and "original" not in without
    assert failed.redrive("dlq", "replay", str(letter), "--app", "shop:app").code == 0
    assert dict(failed.query("SELECT key, cents FROM revenue"))["k1"] == 2 + 16 + 128


@pytest.mark.parametrize(
    "wrong",
    [[], ["--patch", "{}", "--data", "-"], ["--patch", "nonsense"], ["--patch", "[1]"], ["--data", "no such file"]],
)
def test_an_edit_needs_one_way_to_say_what(failed: Any, wrong: list[str]) -> None:
    assert failed.redrive("dlq", "edit", "1", *wrong, "--reason", "x", "--yes", "--store", "shop.db").code == 2
    assert failed.query("SELECT count(*) FROM redrive_edits") == [(0,)]


def test_what_is_exported_and_repaired_comes_back_as_edits(failed: Any) -> None:
    lines = failed.redrive("dlq", "export", "-s", "revenue", "--store", "shop.db").out.splitlines()
    letters = [json.loads(line) for line in lines]
    assert [one["data"]["cents"] for one in letters] == [-2, -4]
    for one in letters:
        one["data"]["cents"] *= -1
    (failed.folder / "letters.jsonl").write_text("".join(json.dumps(one) + "\n" for one in letters[:2]))
    answer = failed.redrive("dlq", "import", "letters.jsonl", "--reason", "signs", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "operation 1: 2 selected = 2 applied\n")
    answer = failed.redrive("dlq", "import", "letters.jsonl", "--reason", "signs", "--yes", "--store", "shop.db")
    assert answer.code == 1
    assert "this changes nothing" in answer.out
    letters[1]["data"]["cents"] = 5
    (failed.folder / "letters.jsonl").write_text(json.dumps(letters[1]))
    answer = failed.redrive("dlq", "import", "letters.jsonl", "--reason", "signs", "--yes", "--store", "shop.db")
    assert "changed since you looked" in answer.out  # it was exported before the edit
    assert failed.redrive("dlq", "replay", "-s", "revenue", "--yes", "--app", "shop:app").code == 0
    assert dict(failed.query("SELECT key, cents FROM revenue")) == {"k0": 73, "k1": 2 + 16 + 128, "k2": 4 + 32 + 256}


def test_an_export_that_fails_leaves_the_file_that_was_there(failed: Any) -> None:
    kept = failed.folder / "letters.jsonl"
    kept.write_text("repaired by hand\n")
    for wrong in ("99", "-s revenues"):
        answer = failed.redrive("dlq", "export", *wrong.split(), "--out", "letters.jsonl", "--store", "shop.db")
        assert answer.code == 2
        assert kept.read_text() == "repaired by hand\n"
    answer = failed.redrive("dlq", "export", "--out", "letters.jsonl", "--store", "shop.db")
    assert (answer.code, answer.err) == (0, "4 letters exported\n")
    assert len(kept.read_text().splitlines()) == 4
    assert [path.name for path in failed.folder.glob("*.part")] == []
    if failed.url is None:  # the store is a file, too
        assert failed.redrive("dlq", "export", "--out", "shop.db", "--store", "shop.db").code == 2
    assert failed.redrive("dlq", "list", "--store", "shop.db").code == 0


def test_an_export_of_another_store_is_not_taken_for_letters_of_this_one(failed: Any) -> None:
    letters = [json.loads(line) for line in failed.redrive("dlq", "export", "--store", "shop.db").out.splitlines()]
    letters[1] |= {"event_id": "elsewhere", "data": {"cents": 5}}  # the same number, another event
    (failed.folder / "letters.jsonl").write_text("".join(json.dumps(one) + "\n" for one in letters))
    answer = failed.redrive("dlq", "import", "letters.jsonl", "--reason", "x", "--yes", "--store", "shop.db")
    assert answer.code == 2
    assert "line 2" in answer.err and "elsewhere" in answer.err and "nothing was imported" in answer.err
    assert failed.query("SELECT count(*) FROM redrive_edits") == [(0,)]


def test_a_letter_that_is_in_a_file_twice_is_not_guessed_at(failed: Any) -> None:
    line = failed.redrive("dlq", "export", "1", "--store", "shop.db").out
    (failed.folder / "letters.jsonl").write_text(line + line)
    answer = failed.redrive("dlq", "import", "letters.jsonl", "--reason", "x", "--yes", "--store", "shop.db")
    assert answer.code == 2
    assert "letter 1 is in line 1 and in line 2" in answer.err and "nothing was imported" in answer.err


@pytest.mark.parametrize("verb", ["list", "export", "replay", "discard"])
def test_letters_are_named_by_number_or_by_what_they_share_and_never_by_both(failed: Any, verb: str) -> None:
    reason = ["--reason", "x", "--yes"] if verb == "discard" else []
    for more in (["-s", "charge"], ["--all"], ["--key", "k1"]):
        answer = failed.redrive("dlq", verb, "1", *more, *reason, "--store", "shop.db")
        assert (answer.code, answer.out) == (2, "")
        assert "not by both" in answer.err
    assert failed.query("SELECT count(*) FROM redrive_operations") == [(0,)]


def test_who_selects_nothing_by_a_name_that_nobody_has_is_told_the_nearest(failed: Any) -> None:
    for line, near in (
        (["list", "--type", "order.plced"], "--type order.placed"),
        (["list", "--dlq-reason", "rejekted"], "--dlq-reason rejected"),
        (["replay", "--dlq-reason", "rejekted"], "--dlq-reason rejected"),
        (["discard", "--type", "order.plced", "--reason", "x"], "--type order.placed"),
    ):
        answer = failed.redrive("dlq", *line, "--store", "shop.db")
        assert (answer.code, answer.out) == (0, f"no dead letters; did you mean {near}?\n")
    assert failed.redrive("dlq", "list", "--type", "o*x", "--store", "shop.db").out == "no dead letters\n"
    told = failed.redrive("dlq", "list", "--dlq-reason", "nonsense", "--store", "shop.db").out
    assert " ".join(told.split()).startswith(
        "no dead letters; there is no reason nonsense, there are: failing, rejected,"
    )
    assert failed.redrive("dlq", "list", "--type", "order.plced", "--json", "--store", "shop.db").out == "[]\n"


def test_who_selects_nothing_at_all_is_told_the_words_of_this_command(failed: Any) -> None:
    assert "--dlq-reason" in failed.redrive("dlq", "discard", "--reason", "x", "--store", "shop.db").err


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "{}",
        '{"id": "1", "rev": 0}',
        '{"id": 999, "rev": 0, "data": 1}',
        "[]",
        '{"id": 1, "rev": 0}',
        '{"id": 1, "rev": 9223372036854775808, "data": 1}',
    ],
)
def test_a_file_that_is_no_export_changes_nothing(failed: Any, line: str) -> None:
    (failed.folder / "letters.jsonl").write_text(line + "\n")
    answer = failed.redrive("dlq", "import", "letters.jsonl", "--reason", "x", "--yes", "--store", "shop.db")
    assert answer.code == 2
    assert "nothing was imported" in answer.err
    assert failed.query("SELECT count(*) FROM redrive_operations") == [(0,)]


def test_operations_are_listed_shown_and_cancelled(failed: Any) -> None:
    assert failed.redrive("dlq", "replay", "-s", "revenue", "--rate", "1/h", "--yes", "--store", "shop.db").code == 0
    (operation,) = failed.redrive("ops", "--store", "shop.db", "--json").json
    assert {name: operation[name] for name in ("id", "action", "state", "selected", "waiting")} == {
        "id": 1, "action": "replay", "state": "running", "selected": 2, "waiting": 2,
    }  # fmt: skip
    assert "replay  running  " in failed.redrive("ops", "--store", "shop.db").out
    asked = failed.redrive("ops", "cancel", "1", "--store", "shop.db")
    assert (asked.code, "take back 2 letters of 2" in asked.err) == (2, True)
    answer = failed.redrive("ops", "cancel", "1", "--yes", "--store", "shop.db")
    assert answer.out == "operation 1: 2 selected = 2 skipped\n"
    assert failed.redrive("ops", "1", "--store", "shop.db").code == 1
    assert states(failed)[:2] == ["dead", "dead"]
    assert failed.redrive("ops", "resume", "1", "--store", "shop.db").code == 2
    assert failed.redrive("ops", "7", "--store", "shop.db").code == 2


def test_a_rehearsal_needs_the_program(failed: Any) -> None:
    answer = failed.redrive("dlq", "replay", "--all", "--rehearse", "--store", "shop.db")
    assert (answer.code, "add --app" in answer.err) == (2, True)
    assert failed.redrive("dlq", "replay", "--all", "--lane", "--yes", "--store", "shop.db").code == 2


def test_a_note_stays_with_its_cause(failed: Any) -> None:
    cause = failed.redrive("dlq", "-s", "revenue", "--store", "shop.db", "--json").json[0]["fingerprint"]
    assert failed.redrive("dlq", "note", cause[:6], "ticket 17", "--store", "shop.db").code == 0
    assert "ticket 17" in failed.redrive("dlq", "--store", "shop.db").out
    failed.redrive("dlq", "note", cause, "fixed in 1.2", "--resolved", "--store", "shop.db")
    assert "[resolved]" in failed.redrive("dlq", "--store", "shop.db").out
    failed.append(0, -1)
    failed.redrive("run", "shop:app", "--until-idle")
    failed.redrive("dlq", "replay", "-s", "revenue", "--key", "k1", "--yes", "--app", "shop:app")  # fails again, later
    assert "[regressed]" in failed.redrive("dlq", "-s", "revenue", "--store", "shop.db").out
    assert failed.redrive("dlq", "note", "zzz", "x", "--store", "shop.db").code == 2


def test_the_words_of_others_work_too(failed: Any) -> None:
    answer = failed.redrive("dlq", "replay-all", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out.splitlines()[0]) == (0, "operation 1: 4 selected = 4 waiting")
    failed.redrive("ops", "cancel", "1", "--yes", "--store", "shop.db")
    answer = failed.redrive("dlq", "replay-all", "-s", "revenue", "--rate", "50/s", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out.splitlines()[0]) == (0, "operation 2: 2 selected = 2 waiting")
    failed.redrive("ops", "cancel", "2", "--yes", "--store", "shop.db")
    chosen = failed.redrive("dlq", "list", "--limit", "1", "--store", "shop.db", "--json").json[0]["id"]
    answer = failed.redrive("dlq", "purge", str(chosen), "--reason", "old", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out.splitlines()[0]) == (0, "operation 3: 1 selected = 1 applied")
    assert failed.redrive("dlq", "purge", "--reason", "old", "--store", "shop.db").code == 2
    assert failed.redrive("dlq", "purge", "--reason", "old", "--yes", "--store", "shop.db").code == 0
    assert "dead" not in states(failed)
    assert "purge" not in failed.redrive("dlq", "--help").out


def test_a_rate_that_is_none_is_refused_before_anything_is_asked(failed: Any) -> None:
    answer = failed.redrive("dlq", "replay", "--all", "--rate", "fast", "--store", "shop.db")
    assert (answer.code, "'fast' is not a rate" in answer.err) == (2, True)
    assert "Nobody is here" not in answer.err


def test_who_selects_by_cause_and_all_is_told_the_name_that_the_option_has(failed: Any) -> None:
    answer = failed.redrive("dlq", "replay", "--all", "--dlq-reason", "rejected", "--store", "shop.db")
    assert (answer.code, "select by --dlq-reason" in answer.err) == (2, True)


@pytest.mark.parametrize("path", [path for path in commands(cli) if path.startswith("redrive dlq")])
def test_reason_is_audit_text_and_dlq_reason_filters(failed: Any, path: str) -> None:
    """Walk every `dlq` verb: the letters' reason has one name, and a verb that only reads refuses `--reason`."""
    options = [one for one in commands(cli)[path].params if isinstance(one, click.Option) and not one.hidden]
    names = {name for option in options for name in option.opts}
    writing = ("replay", "edit", "discard", "resolve", "import", "now", "postpone")
    writes = path.removeprefix("redrive dlq").strip() in writing
    assert ("--reason" in names) == writes and "--because" not in names
    assert ("--dlq-reason" in names) == ("--fingerprint" in names)
    if "--dlq-reason" not in names:
        return
    for old in ("--because",) if writes else ("--because", "--reason"):
        answer = failed.redrive(*path.split()[1:], old, "rejected", "--store", "shop.db")
        assert (answer.code, answer.out) == (2, "")
        assert "write --dlq-reason rejected" in answer.err and old in answer.err


def test_audit_text_excludes_no_letter_from_all_and_the_question_says_so(failed: Any) -> None:
    line = ("dlq", "discard", "--all", "--reason", "rejected", "--store", "shop.db")
    asked = failed.redrive(*line)
    assert asked.code == 2
    assert "Discard all 4 dead letters" in asked.err and "--dlq-reason rejected would choose 2 of them" in asked.err
    assert failed.query("SELECT count(*) FROM redrive_letters WHERE state = 'dead'") == [(4,)]
    one = failed.redrive("dlq", "discard", "--all", "-s", "charge", "--reason", "test data", "--store", "shop.db")
    assert "Discard all 2 dead letters of charge; " in one.err
    chosen = failed.redrive("dlq", "discard", "--dlq-reason", "rejected", "--reason", "x", "--store", "shop.db")
    assert "Discard 2 letters; " in chosen.err


@pytest.mark.parametrize("verb", ["replay", "edit", "discard", "resolve", "import"])
def test_empty_selection_leaves_no_operation(failed: Any, verb: str) -> None:
    (failed.folder / "none.jsonl").write_text("")
    line = {"import": ["none.jsonl"], "edit": ["--key", "nobody", "--patch", "{}"]}.get(verb, ["--key", "nobody"])
    answer = failed.redrive("dlq", verb, *line, "--reason", "x", "--yes", "--store", "shop.db", "--json")
    assert (answer.code, answer.json["id"], answer.json["selected"], answer.json["state"]) == (0, None, 0, "done")
    assert failed.redrive("dlq", verb, *line, "--reason", "x", "--yes", "--store", "shop.db").out != ""
    assert failed.query("SELECT count(*) FROM redrive_operations") == [(0,)]


def test_edit_takes_a_limit_and_edits_the_oldest(failed: Any) -> None:
    line = ("dlq", "edit", "-s", "revenue", "--patch", '{"cents": 5}', "--limit", "1", "--reason", "x", "--yes")
    answer = failed.redrive(*line, "--store", "shop.db", "--json")
    assert (answer.code, answer.json["selected"], answer.json["applied"]) == (0, 1, 1)
    edited = failed.query("SELECT min(id) FROM redrive_letters WHERE edits > 0")
    assert edited == failed.query("SELECT min(id) FROM redrive_letters WHERE state = 'dead'")
    assert failed.query("SELECT count(*) FROM redrive_letters WHERE edits > 0") == [(1,)]


def words(text: str) -> str:
    """Without the line breaks of a narrow terminal."""
    return " ".join(text.split())


def test_dlq_names_the_operation_whose_letters_wait(failed: Any) -> None:
    assert failed.redrive("dlq", "replay", "--all", "--yes", "--store", "shop.db").code == 0
    assert words(failed.redrive("dlq", "--store", "shop.db").out) == (
        "no dead letters; operation 1 has 4 letters that wait for their turn: "
        "4 selected, 0 applied, 0 failed (redrive ops 1)"
    )
    failed.redrive("ops", "cancel", "1", "--yes", "--store", "shop.db")
    assert words(failed.redrive("dlq", "--type", "nothing", "--store", "shop.db").out) == "no dead letters"


def test_replay_says_what_bounds_its_rate(failed: Any) -> None:
    budget = "retry budget, 100 a second (setting retry_budget)"
    assert budget in words(failed.redrive("dlq", "replay", "-s", "charge", "--yes", "--store", "shop.db").out)
    assert budget in words(failed.redrive("ops", "1", "--store", "shop.db").out)
    assert "at most 100 a second on one dependency" in words(failed.redrive("status", "--store", "shop.db").out)
    failed.redrive("ops", "cancel", "1", "--yes", "--store", "shop.db")
    answer = failed.redrive("dlq", "replay", "-s", "charge", "--rate", "500/s", "--yes", "--store", "shop.db")
    assert "500 a second at most, as --rate says; the retry budget does not bound them" in words(answer.out)
    assert "in place of the retry budget" in words(failed.redrive("dlq", "replay", "--help").out)
