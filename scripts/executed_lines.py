"""A pytest plugin: writes down which test executes which lines of some files, and how long each test takes.

    EXECUTED_LINES='["out.json", "src/redrive/policy/retry.py"]' PYTHONPATH=scripts pytest -p executed_lines

For `scripts/mutate.py`. Lines that another process executes are not seen, nor those of tests that fail.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage


class Recorder:
    """A pytest plugin: which test executes which lines."""

    def __init__(self, where: str, *sources: str) -> None:
        self.where, self.seconds, self.failed = where, defaultdict[str, float](float), set[str]()
        self.coverage = coverage.Coverage(data_file=None, include=sources)
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data, lines = self.coverage.get_data(), {}
        for name in data.measured_files():
            found = data.contexts_by_lineno(name).items()
            good = {line: {*tests} - self.failed for line, tests in found}
            lines[name] = {line: [test for test in self.seconds if test in tests] for line, tests in good.items()}
        Path(self.where).write_text(json.dumps([self.seconds, lines]))


def pytest_configure(config: Any) -> None:
    """Record, if this run was started to do so."""
    config.pluginmanager.register(Recorder(*json.loads(os.environ["EXECUTED_LINES"])))
