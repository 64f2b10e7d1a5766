"""Settings: redrive.toml and the environment beat the code; what is unknown is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError, retry
from redrive.settings import RetrySettings, Settings, SubscriptionSettings
from redrive.testing import Harness

QUIET = {"lease": 1e6, "poll_min": 1e6, "poll_max": 1e6}


def test_a_subscriptions_retry_numbers_are_overridden_and_what_it_is_about_stays(app: App, start: Any) -> None:
    numbers = RetrySettings(attempts=2, wait=10.0, jitter=0.0, factor=1.0, wait_max=10.0)
    harness: Harness = start(
        app, settings=Settings(subscriptions={"charge": SubscriptionSettings(retry=numbers)}, **QUIET)
    )
    times = []

    @app.on(app.log("orders"), start="first", retry=retry(attempts=9, wait="1s", on=OSError))
    def charge(event, ctx):
        times.append(harness.clock.monotonic())
        raise OSError if event.key == "a" else KeyError

    harness.append("orders", "fine", key="a")
    harness.append("orders", "fine", key="b")
    harness.advance("1m")
    assert times == [0, 0, 10]
    assert {letter.key: letter.reason for letter in harness.letters()} == {"a": "attempts_exhausted", "b": "permanent"}


def test_concurrency_and_timeout_are_overridden(app: App, start: Any) -> None:
    import asyncio

    mine = SubscriptionSettings(concurrency=2, timeout=5.0)
    harness: Harness = start(app, settings=Settings(subscriptions={"charge": mine}, **QUIET))
    running, most = [0], [0]

    @app.on(app.log("orders"), start="first", retry=retry(attempts=1))
    async def charge(event, ctx):
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            await asyncio.sleep(60 if event.key == "a" else 1)
        finally:
            running[0] -= 1

    for key in "abcd":
        harness.append("orders", "fine", key=key)
    harness.run_until_idle()
    assert most == [2]
    assert [(letter.key, letter.error_type) for letter in harness.letters()] == [("a", "TimeoutError")]


def test_an_override_for_a_subscription_that_does_not_exist_is_refused(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(subscriptions={"charg": SubscriptionSettings(concurrency=2)}, **QUIET))
    app.on(app.log("orders"), start="first", name="charge")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="did you mean `charge`"):
        harness.run_until_idle()


def test_an_app_reads_redrive_toml_of_the_working_folder_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redrive.toml").write_text(
        'store = "from-file.db"\nlease = "7s"\n[subscriptions.charge.retry]\nattempts = 2\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_LEASE", "8s")
    app = App("from-code.db")
    calls = []

    @app.on(app.log("orders"), start="first", retry=retry(attempts=5, wait="1ms", wait_max="1ms"))
    def charge(event, ctx):
        calls.append(ctx.attempt)
        raise OSError

    app.log("orders").append("fine")
    app.run(until_idle=True)
    assert (app.runtime.settings.lease, (tmp_path / "from-file.db").exists()) == (8.0, True)
    assert not (tmp_path / "from-code.db").exists()
    assert app._selected(None, ())[0].policy.retry[0].attempts == 2
    app.close()


def test_order_cannot_be_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redrive.toml").write_text('[subscriptions.charge]\norder = "none"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="code-only"):
        App("shop.db").log("orders").append("fine")


def test_a_timeout_override_of_a_projection_is_refused(app: App, start: Any) -> None:
    """An option that does nothing must not exist."""
    harness = start(app, settings=Settings(subscriptions={"p": SubscriptionSettings(timeout=5.0)}, **QUIET))
    app.projection(app.log("orders"), name="p")(lambda event, tx: None)
    with pytest.raises(UsageError, match="projection"):
        harness.run_until_idle()


def test_a_concurrency_override_of_total_order_is_refused(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(subscriptions={"p": SubscriptionSettings(concurrency=5)}, **QUIET))
    app.on(app.log("orders"), name="p", order="total", start="first")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="total"):
        harness.run_until_idle()
