"""Commands that change a subscription as a whole."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def built(shop: Any) -> Any:
    """Everything applied but one negative amount on k1."""
    shop.append(1, -2, 4)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def test_a_rebuild_here_ends_where_it_was(built: Any) -> None:
    built.write(strict=False)
    answer = built.process("rebuild", "revenue", "--app", "shop:app", "--yes", "--json")
    assert answer.code == 0, answer.err
    assert answer.json == {"subscription": "revenue", "position": 3, "target": 3, "done": True}
    assert sorted(built.query("SELECT * FROM revenue")) == [("k0", 1), ("k1", -2), ("k2", 4)]
    assert built.query("SELECT action, reason FROM redrive_audit") == [("reset", "rebuild")]
    assert built.redrive("verify", "--app", "shop:app").code == 0


def test_a_rebuild_by_a_running_worker_is_waited_for(built: Any) -> None:
    built.work()
    answer = built.redrive("rebuild", "revenue", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "revenue is rebuilt, up to position 3\n"), answer.err


def test_a_reset_can_be_finished_later(built: Any) -> None:
    answer = built.redrive("reset", "revenue", "--reason", "wrong sums", "--yes", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "revenue starts over from position 0; it was at 3\n"), answer.err
    assert built.query("SELECT * FROM revenue") == []
    assert "rebuilt up to position 3" in built.redrive("status", "--store", "shop.db").out
    assert "is at position 0 of 3" in built.redrive("rebuild", "revenue", "--resume", "--store", "shop.db").out
    answer = built.redrive("rebuild", "revenue", "--resume", "--app", "shop:app")
    assert answer.out == "revenue is rebuilt, up to position 3\n", answer.err
    assert built.query("SELECT count(*) FROM redrive_audit") == [(1,)]


def test_what_clears_something_says_what_and_asks(built: Any) -> None:
    for command in (["rebuild", "revenue"], ["reset", "revenue", "--reason", "hm"]):
        answer = built.redrive(*command, "--store", "shop.db")
        assert answer.code == 2
        assert "clear revenue, go back from position 3 to 0, supersede 1 open letter?" in answer.err
    assert len(built.query("SELECT * FROM revenue")) == 2


def test_a_reset_needs_a_reason(built: Any) -> None:
    assert built.redrive("reset", "revenue", "--yes", "--store", "shop.db").code == 2


@pytest.mark.parametrize("command", ["rebuild", "reset"])
def test_an_unknown_subscription_suggests_the_nearest(built: Any, command: str) -> None:
    answer = built.redrive(command, "revenu", "--reason", "hm", "--yes", "--store", "shop.db")
    assert answer.code == 2
    assert "did you mean 'revenue'?" in answer.err


def test_a_projection_that_was_renamed_is_told_how_to_say_so(built: Any) -> None:
    program = built.folder / "shop.py"
    program.write_text(program.read_text().replace("def revenue(", "def takings("))
    before = built.query("SELECT * FROM revenue ORDER BY key")
    answer = built.redrive("run", "shop:app", "--until-idle")
    assert (answer.code, "redrive rename revenue takings" in answer.err) == (2, True)
    assert built.redrive("rename", "revenue", "takings", "--store", "shop.db").code == 0
    assert built.redrive("run", "shop:app", "--until-idle").code == 0
    assert built.query("SELECT * FROM revenue ORDER BY key") == before


def test_a_function_is_renamed(built: Any) -> None:
    answer = built.redrive("rename", "charge", "charge_card", "--store", "shop.db")
    assert (answer.code, answer.out) == (0, "charge is called charge_card now\n")
    assert built.redrive("rename", "charge", "x", "--store", "shop.db").code == 2
    answer = built.redrive("rename", "charge_card", "", "--store", "shop.db")
    assert (answer.code, "the subscription's name has 0 characters" in answer.err) == (2, True)
    text = (built.folder / "shop.py").read_text().replace("def charge(", "def charge_card(")
    (built.folder / "shop.py").write_text(text.replace('start="first", ', ""))
    assert built.redrive("run", "shop:app", "--until-idle").code == 0


def test_a_wider_filter_is_accepted_from_now(shop: Any) -> None:
    shop.write(types="order.placed")
    shop.append(1)
    shop.append(2, kind="order.changed")
    shop.redrive("run", "shop:app", "--until-idle")
    shop.write(types="order.*")
    answer = shop.redrive("run", "shop:app", "--until-idle")
    assert answer.code == 1
    assert "revenue is halted" in answer.err and "redrive accept-from-now" in answer.err
    answer = shop.redrive("run", "shop:app", "--until-idle", "--strict")
    assert (answer.code, "redrive accept-from-now revenue" in answer.err) == (2, True)
    assert shop.redrive("accept-from-now", "revenue", "--app", "shop:app").code == 2  # no reason
    for name in ("revenue", "charge"):
        answer = shop.redrive("accept-from-now", name, "--app", "shop:app", "--reason", "new ones only")
        assert answer.code == 0, answer.err
    shop.append(4, kind="order.changed")
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    assert shop.query("SELECT cents FROM revenue") == [(5,)]
    assert shop.redrive("verify", "--app", "shop:app").code == 0


def test_letters_are_moved_to_other_lanes(built: Any) -> None:
    built.write(key_by='key_by="user"')
    answer = built.redrive("run", "shop:app", "--until-idle")
    assert answer.code == 1
    assert "redrive rekey charge" in answer.err
    answer = built.redrive("rekey", "charge", "--app", "shop:app", "--reason", "by user")
    assert (answer.code, answer.out) == (0, "1 letter moved to other lanes\n"), answer.err
    assert built.redrive("run", "shop:app", "--until-idle").code == 0


def test_somebody_at_a_terminal_is_asked_and_sees_the_progress(built: Any) -> None:
    built.write(strict=False)
    asked = built.at_terminal("rebuild", "revenue", "--app", "shop:app", answer="y\n")
    assert asked.code == 0, asked.out
    assert "supersede 1 open letter? [y/N]" in asked.out
    assert "100%" in asked.out
    assert "revenue is rebuilt, up to position 3" in asked.out
    refused = built.at_terminal("reset", "revenue", "--reason", "hm", "--store", "shop.db", answer="n\n")
    assert refused.code == 1
    assert "nothing more was done" in refused.out
    assert len(built.query("SELECT * FROM revenue")) == 3


def test_forget_lists_rows_asks_and_deletes(built: Any) -> None:
    (built.folder / "empty.py").write_text("from redrive import App\napp = App('shop.db')\n")
    base = ["forget", "revenue", "--reason", "removed", "--store", "shop.db"]
    answer = built.redrive(*base)
    assert answer.code == 2 and "Nobody is here to answer: add --yes" in answer.err
    assert "letters" in answer.out and "1 open letter and keep revenue?" in " ".join(answer.err.split())
    answer = built.redrive(*base, "--app", "shop:app", "--yes")
    assert answer.code == 2 and "is declared by this program" in answer.err
    answer = built.redrive(*base, "--yes", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["subscription"] == "revenue" and answer.json["rows"]["letters"] == 1
    assert (answer.json["open_letters"], answer.json["dropped"], answer.json["kept"]) == (1, [], ["revenue"])
    assert len(built.query("SELECT * FROM revenue")) == 2
    assert built.query("SELECT action, reason FROM redrive_audit") == [("forget", "removed")]
    assert built.redrive("forget", "revenue", "--reason", "again", "--yes", "--store", "shop.db").code == 2
    [status] = built.redrive("status", "--json", "--store", "shop.db").json
    assert status["subscription"] == "charge"
    assert built.redrive("verify", "--store", "shop.db").code == 0


def test_forget_is_refused_while_a_worker_runs(built: Any) -> None:
    built.work()
    answer = built.redrive("forget", "revenue", "--reason", "removed", "--yes", "--store", "shop.db")
    assert answer.code == 2 and "stop that worker first" in answer.err


def test_rebuild_says_that_readers_see_a_partial_table(built: Any) -> None:
    answer = built.redrive("rebuild", "revenue", "--store", "shop.db")
    assert answer.code == 2
    assert "Readers see revenue empty, then partly filled, until it is done." in " ".join(answer.err.split())
    answer = built.redrive("rebuild", "charge", "--store", "shop.db")
    assert "Readers" not in answer.err
