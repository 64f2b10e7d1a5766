"""Settings: redrive.toml and the environment beat the code; what is unknown is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError, no_retry, retry, rules
from redrive.settings import LetterSettings, RetrySettings, Settings, SubscriptionSettings
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


def dear(letter: Any) -> bool:
    """For the settings of a test: worth a letter?"""
    return bool(letter.event.data["cents"] > 100)


async def too_late(letter: Any) -> bool:
    return True


def ruled(app: App, start: Any, letters: LetterSettings) -> Harness:
    harness: Harness = start(
        app, settings=Settings(subscriptions={"charge": SubscriptionSettings(letters=letters)}, **QUIET)
    )

    @app.on(app.log("orders"), start="first", retry=no_retry, letters=rules(discard="code.*", keep="audit.*"))
    def charge(event, ctx):
        raise OSError

    return harness


def fates(harness: Harness) -> dict[str, tuple[str, str | None]]:
    return {letter.type: (letter.state, letter.resolved_by) for letter in harness.letters()}


def test_rules_of_the_settings_replace_those_of_the_code_one_by_one(app: App, start: Any) -> None:
    keep_if = f"{__name__}:dear"
    harness = ruled(app, start, LetterSettings(discard=("health.*", r"/debug\.(trace|dump)/"), keep_if=keep_if))
    for kind, cents in (
        ("health.ping", 500), ("debug.trace", 500), ("debug.other", 500), ("code.x", 500), ("cheap", 5), ("audit.x", 5),
    ):  # fmt: skip
        harness.append("orders", kind, {"cents": cents}, key=kind)
    harness.run_until_idle()
    assert fates(harness) == {
        "health.ping": ("discarded", "rule: discard health.*"),
        "debug.trace": ("discarded", r"rule: discard /debug\.(trace|dump)/"),
        "debug.other": ("dead", None),
        "code.x": ("dead", None),  # what the code discards is replaced
        "cheap": ("discarded", "rule: keep_if dear"),
        "audit.x": ("dead", None),  # what the code keeps is not
    }


def test_an_empty_list_takes_the_rules_of_the_code_away(app: App, start: Any) -> None:
    harness = ruled(app, start, LetterSettings(discard=()))
    harness.append("orders", "code.x")
    harness.run_until_idle()
    assert fates(harness) == {"code.x": ("dead", None)}


@pytest.mark.parametrize(
    ("letters", "why"),
    [
        (LetterSettings(discard=("/(a*/",)), r"`subscriptions\.charge\.letters\.discard`: /\(a\*/ opens a group"),
        (LetterSettings(keep=("/(?=a)b/",)), r"letters\.keep`: .* is not known here"),
        (LetterSettings(keep_if="no.such.module:f"), r"letters\.keep_if`: there is no no\.such\.module:f"),
        (LetterSettings(keep_if="os:nothing"), r"letters\.keep_if`: there is no os:nothing"),
        (LetterSettings(keep_if="os:name"), "is no function"),
        (LetterSettings(keep_if=f"{__name__}:too_late"), "is async"),
    ],
)
def test_rules_that_cannot_answer_stop_the_start(app: App, start: Any, letters: LetterSettings, why: str) -> None:
    harness = ruled(app, start, letters)
    with pytest.raises(UsageError, match=why):
        harness.run_until_idle()
