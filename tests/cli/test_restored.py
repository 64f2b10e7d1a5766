"""Only a part of a store went back in time: it halts, says so wherever one looks, and the ways out work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The doctor warns of a store in memory, and only what else it says is meant here."""
    return on_disk


@pytest.fixture
def torn(shop: Any) -> Any:
    """Ten orders were settled; then an older copy of the table with the events was put in place."""
    shop.write(strict=False)
    shop.append(*range(1, 11))
    assert shop.redrive("run", "shop:app", "--until-idle").code == 0
    shop.query("DELETE FROM redrive_events WHERE position BETWEEN 7 AND 10")
    return shop


def halted(shop: Any) -> dict[str, str]:
    answer = shop.redrive("run", "shop:app", "--until-idle")
    assert (answer.code, "is halted" in answer.err) == (1, True), answer.err
    rows = shop.redrive("status", "--store", "shop.db", "--json").json
    return {row["subscription"]: row["halted"] for row in rows}


def test_whoever_looks_is_told_and_offered_the_choices(torn: Any) -> None:
    told = halted(torn)
    assert set(told) == {"revenue", "charge"}
    for name, reason in told.items():
        assert f"{name}: progress" in reason
        assert "but log 'orders' has " in reason
        assert f"`redrive rebuild {name}` to start over" in reason
    assert "`redrive seek charge now`" in told["charge"]
    assert "seek" not in told["revenue"], "for a projection there is no such way"
    assert "refers to event" in torn.redrive("status", "--store", "shop.db").out
    doctor = torn.redrive("doctor", "--store", "shop.db")
    assert (doctor.code != 0, "refers to event" in doctor.out) == (True, True), doctor.out
    verify = torn.redrive("verify", "--store", "shop.db")
    assert (verify.code, "progress refers to event" in verify.out) == (3, True), verify.out


def test_a_projection_is_rebuilt_and_a_handler_goes_on_behind_the_gap(torn: Any) -> None:
    halted(torn)
    rebuilt = torn.redrive("rebuild", "revenue", "--app", "shop:app", "--reason", "a table was restored", "--yes")
    assert rebuilt.code == 0, rebuilt.err
    sought = torn.redrive("seek", "charge", "now", "--store", "shop.db", "--reason", "a table was restored", "--yes")
    assert sought.code == 0, sought.err
    torn.append(100)
    assert torn.redrive("run", "shop:app", "--until-idle").code == 0
    assert torn.redrive("verify", "--store", "shop.db").code == 0, torn.redrive("verify", "--store", "shop.db").out
    assert dict(torn.query("SELECT key, cents FROM revenue")) == {"k0": 1 + 4 + 100, "k1": 2 + 5, "k2": 3 + 6}
    assert torn.redrive("doctor", "--store", "shop.db").out.count("halted:") == 0
