"""A misspelt option is refused at import, with the nearest that exists; type checkers know every option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mypy.api
import pytest

import redrive
from redrive import App, UsageError, mirrors, sinks
from redrive.kafka import Topic
from redrive.redis import LetterIndex, LetterStream, Stream
from redrive.testing import Harness

app = App("/nonexistent/folder/shop.db")
orders = app.log("orders")
MISSPELT: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "app.on": (lambda **given: app.on(orders, **given), {"retrys": 1}, "did you mean 'retry'?"),
    "app.projection": (lambda **given: app.projection(orders, **given), {"table": ()}, "did you mean 'tables'?"),
    "app.deliver": (lambda **given: app.deliver(orders, **given), {"too": 1}, "did you mean 'to'?"),
    "app.log": (lambda **given: app.log("orders", **given), {"retension": "1d"}, "did you mean 'retention'?"),
    "app.outbox": (lambda **given: app.outbox(orders, **given), {"keeep": "1d"}, "did you mean 'keep'?"),
    "app.mirror": (app.mirror, {"onli": 1}, "did you mean 'only'?"),
    "app.upcast": (app.upcast, {"shema": 1}, "did you mean 'schema'?"),
    "App": (App, {"lifespam": 1}, "did you mean 'lifespan'?"),
    "Harness": (Harness, {"dep": 1}, "did you mean 'deps'?"),
    "retry": (redrive.retry, {"attemps": 1}, "did you mean 'attempts'?"),
    "conflicts": (redrive.conflicts, {"time": 1}, "did you mean 'times'?"),
    "breaker": (redrive.breaker, {"failure": 1}, "did you mean 'failures'?"),
    "rules": (redrive.rules, {"discards": 1}, "did you mean 'discard'?"),
    "auto_replay": (redrive.auto_replay, {"on_recover": 1}, "did you mean 'on_recovery'?"),
    "event": (redrive.event, {"shema": 1}, "did you mean 'schema'?"),
    "webhook": (redrive.webhook, {"secrets": 1}, "did you mean 'secret'?"),
    "file": (sinks.file, {"namee": 1}, "did you mean 'name'?"),
    "stdout": (sinks.stdout, {"batchmax": 1}, "did you mean 'batch_max'?"),
    "loki": (sinks.loki, {"label": 1}, "did you mean 'labels'?"),
    "otlp": (sinks.otlp, {"header": 1}, "did you mean 'headers'?"),
    "sentry": (sinks.sentry, {"dns": 1}, "did you mean 'dsn'?"),
    "files": (mirrors.files, {"nam": 1}, "did you mean 'name'?"),
    "Stream": (Stream, {"partition": 1}, "did you mean 'partitions'?"),
    "LetterStream": (LetterStream, {"strem": 1}, "did you mean 'stream'?"),
    "LetterIndex": (LetterIndex, {"prefixx": 1}, "did you mean 'prefix'?"),
    "Topic": (Topic, {"option": 1}, "did you mean 'options'?"),
}


@pytest.mark.parametrize(("shown", "case"), MISSPELT.items(), ids=MISSPELT)
def test_misspelt_option_is_refused_with_the_nearest(shown: str, case: Any) -> None:
    function, given, advice = case
    [name] = given
    with pytest.raises(UsageError) as raised:
        function(**given)
    assert str(raised.value) == f"{shown} has no option {name!r}; {advice}"


def test_option_that_resembles_none_is_refused_with_all() -> None:
    with pytest.raises(UsageError, match=r"conflicts has no option 'zzz'; its options are: times, wait, wait_max$"):
        redrive.conflicts(zzz=1)  # type: ignore[call-arg]


def test_functions_with_options_keep_their_signature_and_docstring() -> None:
    assert "retry" in inspect.signature(app.on).parameters
    assert list(inspect.signature(redrive.conflicts).parameters) == ["times", "wait", "wait_max"]
    assert (redrive.conflicts.__name__, redrive.conflicts.__module__) == ("conflicts", "redrive.policy.retry")
    assert (redrive.conflicts.__doc__ or "").strip()


@pytest.mark.slow
def test_type_checker_refuses_a_misspelt_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from redrive import App, retry\n"
        'app = App("shop.db", nam="shop")\n'
        '@app.on(app.log("orders"), retrys=retry(attemps=3))\n'
        "def charge(event: object, ctx: object) -> None: ...\n"
    )
    shown, problems, _ = mypy.api.run(["--strict", "--no-error-summary", str(program)])
    assert problems == ""
    assert [line.split("; did", 1)[0].split(" for ", 1)[0] for line in shown.splitlines() if ": error:" in line] == [
        f'{program}:2: error: Unexpected keyword argument "nam"',
        f'{program}:3: error: Unexpected keyword argument "retrys"',
        f'{program}:3: error: Unexpected keyword argument "attemps"',
    ]
