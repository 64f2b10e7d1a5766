"""What `verify` and `doctor` say of triggers, functions and views that can write to redrive's own tables."""

from __future__ import annotations

from typing import Any

import pytest

SQLITE = ["CREATE TRIGGER mine AFTER INSERT ON redrive_audit BEGIN DELETE FROM redrive_letters; END"]
POSTGRES = [
    "CREATE FUNCTION public.tidy() RETURNS void LANGUAGE sql AS 'DELETE FROM redrive.letters'",
    "CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER mine AFTER INSERT ON redrive.audit FOR EACH ROW EXECUTE FUNCTION public.look()",
    "CREATE VIEW public.open_letters AS SELECT * FROM redrive.letters",
    "CREATE VIEW public.letters_of AS SELECT subscription, count(*) FROM redrive.letters GROUP BY 1",  # read-only
]


@pytest.fixture
def sound(shop: Any) -> Any:
    shop.append(1, 2)
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    return shop


def test_verify_and_doctor_name_no_writers_of_a_plain_store(sound: Any) -> None:
    assert "not checked" not in sound.redrive("verify", "--store", "shop.db").out
    found = sound.redrive("doctor", "--json", "--store", "shop.db").json
    assert "own tables" not in str(found)


def test_verify_and_doctor_name_writers_that_no_check_sees(sound: Any) -> None:
    for statement in SQLITE if sound.url is None else POSTGRES:
        sound.query(statement)
    expected = (
        "trigger mine on redrive_audit"
        if sound.url is None
        else "function tidy, trigger mine on redrive.audit, view open_letters"
    )
    answer = sound.redrive("verify", "--store", "shop.db")
    said = " ".join(answer.out.split())
    assert f"not checked: {expected} can write to redrive's own tables, which no check sees" in said
    assert answer.code == 0
    found = sound.redrive("doctor", "--json", "--store", "shop.db")
    assert f"{expected} can write to redrive's own tables" in found.out
