"""What every test gets. Kept small: a test should show what it needs."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from redrive.testing.scratch import in_memory
from redrive.testing.servers import Databases, databases, empty

# A deadline measures the machine, not the code; runs on a busy machine must not fail by chance.
settings.register_profile("redrive", deadline=None, print_blob=True)
settings.load_profile("redrive")
# `./run.sh check` tries a few of each, within its minute; `./run.sh test` as many as there ought to be.
settings.register_profile("redrive, in short", settings.get_profile("redrive"), max_examples=20)

# What `./run.sh check` leaves to `./run.sh test`: whole files and folders here, single tests by the marker `slow`.
# A file whose tests take a tenth of a second each belongs here: a fifth of the tests took more than half of the time.
HERE = Path(__file__).parent
SLOW = [
    "bench", "crash", "docs", "integrations", "postgres", "simulation", "cli/test_breakers.py", "cli/test_copy.py",
    "cli/test_deeds.py", "cli/test_demo.py", "cli/test_dlq.py", "cli/test_explain.py", "cli/test_holds.py",
    "cli/test_hostile_strings.py",
    "cli/test_logs.py", "cli/test_prune.py", "cli/test_random_lines.py", "cli/test_render.py", "cli/test_repair.py",
    "cli/test_run.py", "cli/test_subscriptions.py", "cli/test_three_in_the_morning.py", "cli/test_transfer.py",
    "contracts/test_kafka_contract.py", "contracts/test_redis_contract.py", "mirrors/test_files.py",
    "mirrors/test_import.py", "mirrors/test_redis.py", "observe/test_e11y.py", "observe/test_tracing.py",
    "replay/test_bulk.py", "replay/test_copy.py", "replay/test_explain.py", "replay/test_holds.py",
    "replay/test_ledger.py",
    "replay/test_prune.py", "replay/test_rehearse.py", "replay/test_select.py", "replay/test_sieve.py",
    "replay/test_spans.py", "replay/test_upkeep.py", "runner/test_busy.py", "runner/test_crash_counting.py",
    "runner/test_embedding.py", "runner/test_forking.py", "runner/test_giving_up.py", "runner/test_healing.py",
    "runner/test_mixtures.py", "runner/test_outage.py", "runner/test_outbox.py", "runner/test_partitioning.py",
    "runner/test_rocksdb.py", "runner/test_tenants.py", "sinks/test_network.py", "sources/test_backfill.py",
    "sources/test_incidents.py", "sources/test_kafka_network.py", "sources/test_kafka_target.py",
    "sources/test_landed.py", "sources/test_redis.py", "sources/test_redis_changes.py", "sources/test_redis_network.py",
    "testing/test_exactly_once.py", "testing/test_servers.py", "testing/test_testing_guide.py",
    "tracking/test_intake.py", "test_examples.py",
]  # fmt: skip
assert all((HERE / name).exists() for name in SLOW), "a file was moved: SLOW has its former name"
FIRST = ["simulation", "crash"]  # minutes in a few tests: at the end the other processes would wait for them
FAST = "not slow"
ROOM = 4 << 30  # bytes: what passed is removed at once, see pyproject.toml


def pytest_configure(config: pytest.Config) -> None:
    """Files of tests are in memory where it has the room: most of the time was spent waiting for a disk.

    A shell has what it runs in the background ignore Ctrl-C, and so would all processes that the tests start.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.basetemp is None and (memory := in_memory(ROOM)):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    if config.option.markexpr == FAST:
        settings.load_profile("redrive, in short")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is not going to run is not even imported."""
    if config.option.markexpr == FAST and str(collection_path.relative_to(HERE)) in SLOW:
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0]
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    for item in items:
        place = item.path.relative_to(HERE)
        if not {str(place), place.parts[0]}.isdisjoint(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Tests rewrite programs within a second, and bytecode tells files apart by seconds: from here on none is kept."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    gc.collect()
    gc.freeze()  # 300,000 objects of seven thousand tests, looked through again at every collection: 0.2 s each


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What earlier tests have left in memory is not looked through at every collection: it took two seconds each."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory, for tests that look at where a store lies."""
    with tempfile.TemporaryDirectory(prefix="redrive-disk-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A real server for this test process. None to be had: a failure, not a skip."""
    with databases() as found:
        yield found


@pytest.fixture(scope="session")
def postgres_store(postgres: Databases) -> Iterator[str]:
    """A database with redrive's tables; who uses it empties it, which takes a tenth of the time of making another."""
    from redrive.store.postgres import PostgresStore

    url = postgres.make()
    PostgresStore(url, inline=True).close()
    yield url
    postgres.drop(url)


@pytest.fixture
def postgres_url(postgres: Databases) -> Iterator[str]:
    """An empty database of this test's own."""
    url = postgres.make()
    yield url
    postgres.drop(url)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("sqlite")
        metafunc.parametrize("backend", ["sqlite"] if only else ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The address of an empty store, None for a file of the test's own: both, unless a test says `sqlite` and why."""
    if request.param == "sqlite":
        yield None
        return
    url: str = request.getfixturevalue("postgres_store")
    yield url
    empty(url)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests have recorded by `record_property`, so that every run shows them."""
    figures: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            figures.setdefault(name, []).append(str(value))
    for name, lines in sorted(figures.items()):
        terminalreporter.section(name)
        for line in sorted(lines):
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _no_setting_is_left_behind() -> Iterator[None]:
    """A command that ran in this process names its store in the environment: the next test would find it there."""
    before = {name: value for name, value in os.environ.items() if name.startswith("REDRIVE_")}
    yield
    after = {name: value for name, value in os.environ.items() if name.startswith("REDRIVE_")}
    for name in after.keys() - before.keys():
        del os.environ[name]
    assert after == before


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A real Valkey for this test process."""
    from redrive.testing.brokers import valkey

    with valkey() as url:
        yield url


@pytest.fixture
def server(valkey_url: str) -> Iterator[Any]:
    """A client of it, with nothing on the server. Tests of other servers have one of their own."""
    import redis

    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        yield client
