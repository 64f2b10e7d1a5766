"""Settings come from where they should, and a mistake in them is told its name and its fix."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from redrive.errors import UsageError
from redrive.settings import (
    LetterSettings,
    ReplaySettings,
    RetrySettings,
    Settings,
    SubscriptionSettings,
    check_subscriptions,
    load_settings,
    settings_path,
)

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guide" / "settings.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "redrive.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_settings(write(folder, text), environ or {})
    return str(caught.value)


def test_without_file_and_environment_everything_is_built_in() -> None:
    settings, origins = load_settings(None, {"HOME": "/root", "PATH": "/bin"})
    assert settings == Settings()
    assert set(origins) == set(Settings.__struct_fields__) - {"subscriptions"}
    assert set(origins.values()) == {"built-in"}


def test_the_environment_wins_over_the_profile_and_the_profile_over_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        profile = "production"
        lease = "1s"
        batch_max = 100
        window_max = 1600
        [profiles.production]
        lease = "2s"
        batch_max = 200
        [profiles.staging]
        lease = "9s"
        """,
    )
    settings, origins = load_settings(path, {"REDRIVE_LEASE": "3s"})
    assert (settings.lease, settings.batch_max, settings.window_max) == (3.0, 200, 1600)
    assert origins["lease"] == "REDRIVE_LEASE"
    assert origins["batch_max"] == f"{path} [profiles.production]"
    assert origins["window_max"] == str(path)
    assert origins["poll_max"] == "built-in"


def test_the_environment_may_choose_the_profile(tmp_path: Path) -> None:
    path = write(tmp_path, 'profile = "production"\n[profiles.staging]\nlease = "9s"\n')
    settings, _ = load_settings(path, {"REDRIVE_PROFILE": "staging"})
    assert (settings.profile, settings.lease) == ("staging", 9.0)


def test_a_profile_may_override_one_option_of_one_subscription(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        profile = "production"
        [subscriptions.charge]
        timeout = "30s"
        retry = { attempts = 3, wait = "1s" }
        [profiles.production.subscriptions.charge.retry]
        attempts = 8
        """,
    )
    settings, origins = load_settings(path, {})
    charge = SubscriptionSettings(timeout=30.0, retry=RetrySettings(attempts=8, wait=1.0))
    assert settings.subscriptions == {"charge": charge}
    assert charge.retry.given() == {"attempts": 8, "wait": 1.0}
    assert origins["subscriptions.charge.retry.wait"] == str(path)
    assert origins["subscriptions.charge.retry.attempts"].endswith("[profiles.production]")


def test_every_kind_of_option_can_be_set_from_the_environment() -> None:
    settings, origins = load_settings(
        None,
        {
            "REDRIVE_STORE": "shop.db",
            "REDRIVE_BATCH_MAX": "250",
            "REDRIVE_ERROR_TEXT_MAX": "64KiB",
            "REDRIVE_LOG_FORMAT": "json",
            "REDRIVE_POLL_MAX": "",
            "REDRIVE_SUBSCRIPTIONS__CHARGE__CONCURRENCY": "8",
            "REDRIVE_SUBSCRIPTIONS__CHARGE__RETRY__JITTER": "0.5",
        },
    )
    charge = SubscriptionSettings(concurrency=8, retry=RetrySettings(jitter=0.5))
    assert settings == Settings(
        store="shop.db", batch_max=250, error_text_max=65_536, log_format="json", subscriptions={"charge": charge}
    )
    assert origins["subscriptions.charge.concurrency"] == "REDRIVE_SUBSCRIPTIONS__CHARGE__CONCURRENCY"
    assert origins["poll_max"] == "built-in"


def test_a_size_may_be_a_plain_number_of_bytes(tmp_path: Path) -> None:
    in_file, _ = load_settings(write(tmp_path, "error_text_max = 1024"), {})
    in_environment, _ = load_settings(None, {"REDRIVE_ERROR_TEXT_MAX": "1024"})
    assert in_file.error_text_max == in_environment.error_text_max == 1024


def test_variables_that_are_not_options_are_left_alone() -> None:
    others = ("REDRIVE_CONFIG", "REDRIVE_TEST_POSTGRES", "REDRIVE_SERVICE_HOST", "REDRIVE_PORT_80_TCP", "REDRIVEN")
    settings, _ = load_settings(None, dict.fromkeys(others, "tcp://10.0.0.1:80"))
    assert settings == Settings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lese = '1s'", "unknown option `lese`; did you mean `lease`?"),
        ("frobnicate = 1", "unknown option `frobnicate`; known are: store, profile, lease"),
        ("timeout = '1s'", "unknown option `timeout`; it belongs in a table [subscriptions.NAME]"),
        ("[retry]\nattempts = 3", "unknown option `retry`; it belongs in a table [subscriptions.NAME]"),
        ("[subscriptions.a]\nattempts = 3", "it belongs in a table [subscriptions.NAME.retry]"),
        (
            "[subscriptions.a]\nconcurency = 3",
            "unknown option `subscriptions.a.concurency`; did you mean `concurrency`?",
        ),
        ("[subscriptions.a]\nlease = '1s'", "unknown option `subscriptions.a.lease`; known are: concurrency, timeout"),
        (
            "[profiles.prod]\nlease = '1s'",
            "unknown option `profiles.prod`; known are: development, staging, production",
        ),
        ("[profiles.staging]\nlese = '1s'", "[profiles.staging]: unknown option `lese`; did you mean `lease`?"),
        ("[profiles.staging]\nprofile = 'staging'", "a profile cannot choose a profile"),
    ],
)
def test_an_unknown_option_is_told_the_nearest_known_one(tmp_path: Path, text: str, told: str) -> None:
    message = refusal(tmp_path, text)
    assert told in message
    assert message.startswith(str(tmp_path / "redrive.toml"))


@pytest.mark.parametrize("key", ["order", "key_by", "types", "start", "partitions"])
def test_what_a_subscription_promises_is_code_only(tmp_path: Path, key: str) -> None:
    message = refusal(tmp_path, f"[subscriptions.charge]\n{key} = 'x'")
    assert f"`subscriptions.charge.{key}` is code-only" in message
    assert f"give `{key}=` where the function is registered" in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lease = 10", "`lease`: 10 has no unit"),
        ("lease = 'soon'", "`lease`: 'soon' is not a duration"),
        ("lease = '50ms'", "`lease`: Expected `float` >= 0.1"),
        ("poll_min = '0s'", "`poll_min`: Expected `float` > 0"),
        ("batch_max = 0", "`batch_max`: Expected `int` >= 1"),
        ("batch_max = '500'", "`batch_max`: Expected `int`, got `str`"),
        ("batch_max = true", "`batch_max`: Expected `int`, got `bool`"),
        ("error_text_max = '1B'", "`error_text_max`: Expected `int` >= 256"),
        ("log_format = 'xml'", "`log_format`: expected one of text, json (found 'xml')"),
        ("profile = 'prod'", "`profile`: expected one of development, staging, production"),
        ("subscriptions = 3", "`subscriptions` is a table of options, not the value 3"),
        ("subscriptions.charge = 3", "`subscriptions.charge` is a table of options, not the value 3"),
        ("subscriptions.charge.retry = 5", "`subscriptions.charge.retry` is a table of options, not the value 5"),
        ("profiles = 3", "`profiles` is a table of options, not the value 3"),
        ("subscriptions.charge.retry.jitter = 2.0", "`subscriptions.charge.retry.jitter`: Expected `float` <= 1"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, text: str, told: str) -> None:
    message = refusal(tmp_path, text)
    assert told in message
    assert message.startswith(str(tmp_path / "redrive.toml"))


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("REDRIVE_LEES", "1s", "REDRIVE_LEES: unknown option `lees`; did you mean `lease`?"),
        ("REDRIVE_LEASE", "1", "REDRIVE_LEASE: `lease`: '1' is not a duration"),
        ("REDRIVE_BATCH_MAX", "many", "REDRIVE_BATCH_MAX: `batch_max`: Expected `int`, got `str` (found 'many')"),
        (
            "REDRIVE_SUBSCRIPTIONS__A__ORDER",
            "none",
            "REDRIVE_SUBSCRIPTIONS__A__ORDER: `subscriptions.a.order` is code-only",
        ),
        ("REDRIVE_SUBSCRIPTIONS__A", "3", "REDRIVE_SUBSCRIPTIONS__A: `subscriptions.a` is a table of options"),
    ],
)
def test_a_mistake_in_the_environment_names_its_variable(variable: str, value: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(None, {variable: value})
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("poll_min = '1s'", "`poll_min` (1s, {file}) is more than `poll_max` (50ms, built-in)"),
        ("halt_wait = '5m'", "`halt_wait` (5m, {file}) is more than `halt_wait_max` (30s, built-in)"),
        ("lease = '1s'\nbatch_time_max = '2s'", "`batch_time_max` (2s, {file}) is more than `lease` (1s, {file})"),
        ("settle_max = 3000", "`settle_max` (3000, {file}) is more than `window_max` (1200, built-in)"),
        ("lane_max = 10", "`window_max` (1200, built-in) is more than `lane_max` (10, {file})"),
        (
            "[subscriptions.a.retry]\nwait = '1m'\nwait_max = '1s'",
            "`subscriptions.a.retry.wait` (1m, {file}) is more than `subscriptions.a.retry.wait_max` (1s, {file})",
        ),
    ],
)
def test_values_that_cannot_hold_together_are_refused_with_both_origins(tmp_path: Path, text: str, told: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(told.format(file=tmp_path / "redrive.toml"))
    assert message.endswith("lower the first or raise the second")


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the settings file .*nowhere\.toml: No such file"):
        load_settings(tmp_path / "nowhere.toml", {})
    with pytest.raises(UsageError, match="cannot read the settings file"):
        load_settings(tmp_path, {})


def test_a_file_that_is_not_toml_is_told_the_line(tmp_path: Path) -> None:
    assert "is not valid TOML" in refusal(tmp_path, "lease = ")
    assert "line 2" in refusal(tmp_path, "lease = '1s'\nlease = '2s'\n")
    broken = tmp_path / "latin1.toml"
    broken.write_bytes(b'store = "caf\xe9.db"')
    with pytest.raises(UsageError, match="is not valid TOML"):
        load_settings(broken, {})


def test_the_file_is_the_named_one_or_the_one_in_the_folder(tmp_path: Path) -> None:
    assert settings_path(tmp_path, {}) is None
    beside = write(tmp_path, "")
    assert settings_path(tmp_path, {}) == beside
    assert settings_path(tmp_path, {"REDRIVE_CONFIG": "/etc/shop.toml"}) == Path("/etc/shop.toml")


def test_overrides_for_a_subscription_that_does_not_exist_are_refused() -> None:
    settings, _ = load_settings(None, {"REDRIVE_SUBSCRIPTIONS__CHARGE__CONCURRENCY": "8"})
    with pytest.raises(UsageError, match=r"`subscriptions\.charge`; did you mean `charges`"):
        check_subscriptions(settings, ["revenue", "charges"])
    assert check_subscriptions(settings, ["charge"]) is None  # type: ignore[func-returns-value]


def rows(heading: str) -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line] for line in lines]


def test_the_tables_on_the_page_are_written_from_the_code() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_settings.py"))
    assert script["page"]() == PAGE.read_text(encoding="utf-8"), "run scripts/write_settings.py"
    assert {name.strip("`") for name, _, _ in rows("Options")} == set(Settings.__struct_fields__) - {"subscriptions"}
    assert "`retry.wait`" in {name for name, _ in rows("Options of one subscription")}


def test_the_defaults_on_the_page_are_the_defaults(tmp_path: Path) -> None:
    written = {name.strip("`"): default.strip("`") for name, default, _ in rows("Options") if default != "not set"}
    path = write(tmp_path, "\n".join(f"{name} = {default}" for name, default in written.items()))
    settings, origins = load_settings(path, {})
    assert settings == Settings()
    assert {name for name, origin in origins.items() if origin == "built-in"} == {"store", "spool", "prune_cron"}


@pytest.mark.parametrize(
    ("profile", "budget", "over", "jitter"),
    [("development", 1000.0, "bury", 0.5), ("staging", 100.0, "wait", 1.0), ("production", 50.0, "wait", 1.5)],
)
def test_a_profile_has_a_retry_budget_of_its_own(profile: str, budget: float, over: str, jitter: float) -> None:
    settings, origins = load_settings(None, {"REDRIVE_PROFILE": profile})
    assert (settings.retry_budget, settings.retry_budget_over, settings.retry_budget_jitter) == (budget, over, jitter)
    assert origins["retry_budget"] == f"built-in [profiles.{profile}]"
    page = PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^  \| `retry_budget` (.*)$", page, re.MULTILINE)
    assert f'`"{budget:g}/s"`' in line
    unnamed, origins = load_settings(None, {})
    assert (unnamed.retry_budget, unnamed.retry_budget_over, origins["retry_budget"]) == (100.0, "wait", "built-in")


def test_what_the_file_says_wins_over_the_defaults_of_a_profile(tmp_path: Path) -> None:
    path = write(
        tmp_path, 'profile = "production"\nretry_budget = "7/s"\n[profiles.production]\nretry_budget_over = "bury"\n'
    )
    settings, origins = load_settings(path, {"REDRIVE_RETRY_BUDGET_JITTER": "0.1"})
    assert (settings.retry_budget, settings.retry_budget_over, settings.retry_budget_jitter) == (7.0, "bury", 0.1)
    assert origins["retry_budget"] == str(path)
    assert "'fast' is not a rate" in refusal(tmp_path, 'retry_budget = "fast"')
    assert "is not a rate" in refusal(tmp_path, "retry_budget = 50")


def test_the_example_on_the_page_is_valid(tmp_path: Path) -> None:
    example = PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    settings, _ = load_settings(write(tmp_path, example), {"REDRIVE_PROFILE": "production"})
    assert settings.log_format == "json"
    assert settings.subscriptions["charge"].retry == RetrySettings(attempts=8, wait=2.0, wait_max=600.0)


def test_rules_for_letters_are_read_from_the_file_and_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path, """
        [subscriptions.charge]
        letters = {discard = ["health.*", '/debug\\..*/'], keep_if = "shop.rules:dear"}
    """)  # fmt: skip
    variable = "REDRIVE_SUBSCRIPTIONS__CHARGE__LETTERS__KEEP"
    settings, origins = load_settings(path, {variable: "order.*, audit.*"})
    assert settings.subscriptions["charge"].letters == LetterSettings(
        discard=("health.*", r"/debug\..*/"), keep=("order.*", "audit.*"), keep_if="shop.rules:dear"
    )
    assert origins["subscriptions.charge.letters.keep"] == variable
    assert origins["subscriptions.charge.letters.discard"] == str(path)


@pytest.mark.parametrize("text", ["discard = 'health.*'", "discard = ['']", "keep_if = 'dear'", "keep_iff = 'a:b'"])
def test_rules_for_letters_of_the_wrong_kind_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"subscriptions\.charge\.letters"):
        load_settings(write(tmp_path, f"[subscriptions.charge.letters]\n{text}"), {})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Settings(retry_budget="10/s"), "Settings: retry_budget='10/s' .* here write retry_budget=10.0"),  # type: ignore[arg-type]
        (lambda: Settings(lease="1m30s"), "here write lease=90.0"),  # type: ignore[arg-type]
        (lambda: Settings(spool_max="1MiB"), "here write spool_max=1048576"),  # type: ignore[arg-type]
        (lambda: Settings(lease="soon"), "Settings: lease='soon': Expected `float`, got `str`"),  # type: ignore[arg-type]
        (lambda: Settings(lease=0.0), "lease=0.0: Expected `float` >= 0.1"),
        (lambda: Settings(batch_max=0), "batch_max=0: Expected `int` >= 1"),
        (lambda: Settings(redact="*pin*"), "redact='\\*pin\\*': Expected `array`, got `str`"),  # type: ignore[arg-type]
        (lambda: Settings(http="nowhere"), "http='nowhere': 'nowhere' is not an address"),
        (lambda: Settings(profile="live"), "profile='live'"),  # type: ignore[arg-type]
        (lambda: Settings(subscriptions={"a": {"timeout": "5s"}}), r"got `str` - at `\$\[...\].timeout`"),  # type: ignore[dict-item]
        (lambda: SubscriptionSettings(timeout="5s"), "SubscriptionSettings: timeout='5s' .* here write timeout=5.0"),  # type: ignore[arg-type]
        (lambda: RetrySettings(wait="1s"), "here write wait=1.0"),  # type: ignore[arg-type]
        (lambda: LetterSettings(discard="a.*"), "LetterSettings: discard='a"),  # type: ignore[arg-type]
        (lambda: msgspec.structs.replace(Settings(), lease="5s"), "here write lease=5.0"),
    ],
)
def test_settings_that_are_made_in_code_are_checked_there(make: Callable[[], object], told: str) -> None:
    """They had been taken as they were, and a worker halted over them as over a bug of ours."""
    with pytest.raises(UsageError, match=told):
        make()


def test_settings_that_are_made_in_code_are_what_the_annotations_say() -> None:
    assert isinstance(Settings(lease=5).lease, float)
    assert Settings(redact=["*pin*"]).redact == ("*pin*",)  # type: ignore[arg-type]
    table: Any = {"charge": {"concurrency": 2}}
    assert Settings(subscriptions=table).subscriptions == {"charge": SubscriptionSettings(concurrency=2)}


@pytest.mark.parametrize("shape", [Settings, SubscriptionSettings, RetrySettings, LetterSettings, ReplaySettings])
def test_what_is_built_in_is_what_its_own_type_allows(shape: type[msgspec.Struct]) -> None:
    """A start does not look at it, so this does."""
    built_in, hints = shape(), get_type_hints(shape, include_extras=True)
    for name in shape.__struct_fields__:
        value = getattr(built_in, name)
        assert msgspec.convert(msgspec.to_builtins(value), hints[name]) == value, name


def test_a_folder_in_the_place_of_the_file_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").mkdir()
    with pytest.raises(UsageError, match=r"cannot read the settings file .*redrive\.toml"):
        load_settings(settings_path(tmp_path, {}), {})
