"""`redrive breaker`, also where each key has one: names may hold whatever a key may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, breaker, retry

KEYS = ["acme", "a b'c\"d", "-x", "$(rm -rf ~)", "漢/字", "%s[bold]", "--json", "a/", "é" * 40, "\u202ekey"]


@pytest.fixture
def store(tmp_path: Path, backend: str | None) -> str:
    """Every tenant but one is down."""
    path = backend or str(tmp_path / "s.db")
    app = App(path)
    rule = breaker("tenants", per="key", failures=1, cooldown="1d")

    @app.on(app.log("orders"), start="first", breaker=rule, retry=retry(attempts=2))
    def call(event: Event[Any], ctx: Ctx) -> None:
        if event.data:
            raise ConnectionError

    @app.on(app.log("orders"), start="first", breaker=breaker())
    def other(event: Event[Any], ctx: Ctx) -> None: ...

    for key in KEYS:
        app.log("orders").append("order.placed", True, key=key)
    app.log("orders").append("order.placed", False, key="well")
    app.run(until_idle=True)
    app.close()
    return path


def states(answer: Any) -> dict[str, str]:
    return {one["name"]: one["state"] for one in answer.json}


def test_keys_in_trouble_are_listed_and_others_are_not(inside: Any, store: str) -> None:
    answer = inside("breaker", "list", "--store", store, "--json")
    assert states(answer) == {"other": "closed", "tenants/": "closed", **{f"tenants/{key}": "open" for key in KEYS}}
    shown = inside("breaker", "list", "--store", store)
    assert (shown.code, len(shown.out.splitlines())) == (0, 3 + len(KEYS))
    assert all(line.isprintable() for line in shown.out.splitlines())
    assert "tenants/acme" in shown.out


@pytest.mark.parametrize("key", KEYS)
def test_the_breaker_of_one_key_is_closed_and_opened_whatever_it_is_called(inside: Any, store: str, key: str) -> None:
    name = f"tenants/{key}"
    for action, state, changed in (("close", None, True), ("close", None, False), ("open", "open", True)):
        answer = inside("breaker", action, name, "--reason", "a test", "--store", store, "--json")
        assert answer.json == {"breaker": name, "state": "closed" if state is None else state, "changed": changed}
        listed = states(inside("breaker", "list", "--store", store, "--json"))
        assert listed.get(name) == state, "a closed one has nothing to tell"
        assert len(listed) == 2 + len(KEYS) - (state is None)
    said = inside("breaker", "open", name, "--reason", "a test", "--store", store)
    assert (said.code, all(line.isprintable() for line in said.out.splitlines())) == (0, True)


@pytest.mark.parametrize("name", ["tenants", "nobody/acme", "other/acme", "tenants/a\nb", "tenants/" + "k" * 2000])
def test_what_no_key_can_be_called_is_refused(inside: Any, store: str, name: str) -> None:
    said = inside("breaker", "open", name, "--reason", "a test", "--store", store)
    assert said.code == 2
    assert "there is no breaker" in said.err
    assert all(line.isprintable() for line in said.err.splitlines())
