"""`redrive config show`: each value, and who said so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from redrive.masking import mask
from redrive.settings import Settings, load_settings

PROGRAM = """
from redrive import App, retry
from redrive.settings import Settings
app = App("shop.db"{})
orders = app.log("orders")
@app.on(orders, start="now", concurrency=4, retry=retry(attempts=9, wait="1m30s"))
async def charge(event, ctx): ...
@app.projection(orders)
def revenue(event, tx): ...
@app.on(orders, start="now", retry=[retry(types="a"), retry(types="b", attempts=2)])
async def mail(event, ctx): ...
"""


@pytest.fixture
def folder(inside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told.py").write_text(PROGRAM.format(""))
    monkeypatch.delitem(sys.modules, "told", raising=False)
    return tmp_path


def table(answer: Any) -> dict[str, tuple[Any, str, str | None]]:
    assert answer.code == 0, answer.err
    return {one["name"]: (one["value"], one["source"], one["where"]) for one in answer.json}


def test_without_anything_said_all_is_default(inside: Any, folder: Path) -> None:
    found = table(inside("config", "show", "--json"))
    assert list(found) == [name for name in Settings.__struct_fields__ if name != "subscriptions"]
    assert {source for _, source, _ in found.values()} == {"default"}
    assert found["store"] == (None, "default", None)
    assert list(folder.iterdir()) == [folder / "told.py"]  # no store was made


def test_the_values_read_as_they_are_written(inside: Any, folder: Path) -> None:
    found = table(inside("config", "show", "--json"))
    written = {name: value for name, (value, _, _) in found.items() if value is not None}
    (folder / "redrive.toml").write_text("\n".join(f"{name} = {value!r}" for name, value in written.items()))
    assert load_settings(folder / "redrive.toml", {})[0] == Settings()


def test_every_source_is_named(inside: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "redrive.toml").write_text(
        'profile = "production"\nlease = "1h0.5s"\n[subscriptions.charge]\nretry = { wait = "7s" }\n'
        '[profiles.production]\nlog_format = "json"\n'
    )
    monkeypatch.setenv("REDRIVE_BATCH_MAX", "7")
    monkeypatch.setenv("REDRIVE_SUBSCRIPTIONS__CHARGE__CONCURRENCY", "8")
    found = table(inside("config", "show", "--json", "--app", "told:app"))
    file = "redrive.toml"
    assert found["store"] == ("shop.db", "program", None)
    assert found["lease"] == ("3600.5s", "file", str(folder / file))
    assert found["log_format"] == ("json", "profile", f"{folder / file} [profiles.production]")
    assert found["batch_max"] == (7, "environment", "REDRIVE_BATCH_MAX")
    assert found["halt_wait_max"] == ("30s", "default", None)
    assert (found["track_memory_max"][0], found["error_text_max"][0]) == ("64MiB", "8KiB")
    mine = {name.removeprefix("subscriptions."): one for name, one in found.items() if name.startswith("subscriptions")}
    assert mine["charge.concurrency"] == (8, "environment", "REDRIVE_SUBSCRIPTIONS__CHARGE__CONCURRENCY")
    assert mine["charge.retry.attempts"] == (9, "program", None)
    assert mine["charge.retry.wait"] == ("7s", "file", str(folder / file))
    assert mine["charge.timeout"] == (None, "default", None)
    assert mine["revenue.retry.attempts"] == (5, "default", None)
    assert mine["mail.retry.attempts"] == ("2 rules", "program", None)


def test_automatic_replay_is_shown_where_there_is_some(
    inside: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAM.replace("@app.projection(orders)", '@app.projection(orders, replay=auto_replay("0 3 * * *"))')
    (folder / "told.py").write_text(program.format("").replace("import App,", "import App, auto_replay,"))
    (folder / "redrive.toml").write_text('[subscriptions.revenue.replay]\nmax_age = "2d"\nrate = "5/s"\n')
    monkeypatch.setenv("REDRIVE_SUBSCRIPTIONS__MAIL__REPLAY__ENABLED", "false")
    found = table(inside("config", "show", "--json", "--app", "told:app"))
    mine = {name.removeprefix("subscriptions."): one[:2] for name, one in found.items() if ".replay." in name}
    assert mine == {
        "revenue.replay.cron": ("0 3 * * *", "program"),
        "revenue.replay.on_recovery": (False, "program"),
        "revenue.replay.times": (3, "default"),
        "revenue.replay.max_age": ("2d", "file"),
        "revenue.replay.batch": (100, "default"),
        "revenue.replay.rate": ("5/s", "file"),
        "mail.replay.enabled": (False, "environment"),
    }


def test_a_flag_beats_the_program_and_is_named(inside: Any, folder: Path) -> None:
    found = table(inside("config", "show", "--json", "--app", "told:app", "--store", "other.db"))
    assert found["store"] == ("other.db", "flag", "--store")


def test_settings_that_the_program_made_are_the_programs(inside: Any, folder: Path) -> None:
    (folder / "told.py").write_text(PROGRAM.format(", settings=Settings(lease=30.0)"))
    found = table(inside("config", "show", "--json", "--app", "told:app"))
    assert found["lease"] == ("30s", "program", None)
    assert found["batch_max"] == (2000, "default", None)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("shop.db", "shop.db"),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("postgresql://ada:pa:ss@db:5432/shop", "postgresql://ada:***@db:5432/shop"),
        ("postgresql://ada:p@ss@db/shop", "postgresql://ada:***@db/shop"),
        ("postgresql://:x@db", "postgresql://:***@db"),
        ("postgresql://db/shop?user=a&password=b&sslmode=c", "postgresql://db/shop?user=a&password=***&sslmode=c"),
    ],
)
def test_a_password_in_a_store_is_masked(inside: Any, folder: Path, url: str, shown: str) -> None:
    assert mask(url) == shown
    for extra in ((), ("--json",), ("store",)):
        answer = inside("config", "show", *extra, "--store", url)
        assert answer.code == 0
        if shown != url:
            assert "ss@" not in answer.out
            assert "***" in answer.out


def test_one_option_is_shown_whole(inside: Any, folder: Path) -> None:
    answer = inside("config", "show", "redact")
    assert "*password*, *secret*, *token*, *authorization*" in answer.out
    assert max(map(len, inside("config", "show").out.splitlines())) <= 80


def test_mistakes_are_wrong_usage(inside: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = inside("config", "show", "lese")
    assert (answer.code, "did you mean lease?" in answer.err) == (2, True)
    answer = inside("config", "shwo")
    assert answer.code == 2
    monkeypatch.setenv("REDRIVE_LESE", "1s")
    answer = inside("config", "show")
    assert (answer.code, "did you mean `lease`?" in answer.err) == (2, True)
