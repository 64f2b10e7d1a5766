"""A parent that has imported everything and forks a worker per request: a start costs milliseconds.

Reads one JSON request per line on stdin and answers with one line. Single-threaded, opens no store:
SQLite must only ever be opened after the fork. Ends with its stdin, and its children with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

import misbehaving
import neighbours
import operating
import powered
import topics
import tracking
import worker_app

from redrive import failpoints
from redrive.testing.failpoints import arm_from_environment

PROGRAMS = {
    module.__name__: module for module in (worker_app, operating, misbehaving, powered, neighbours, topics, tracking)
}
# What redrive imports where it is needed, each worker would import again: half of what a process costs here.
LATER = (
    "confluent_kafka.admin", "difflib", "encodings.idna", "prometheus_client", "redis.asyncio", "secrets",
    "redrive.kafka.reading", "redrive.observe.http", "redrive.observe.logs", "redrive.observe.prometheus",
    "redrive.redis.group", "redrive.redis.health", "redrive.redis.letters", "redrive.redis.ordered",
    "redrive.redis.reading", "redrive.replay.gauges", "redrive.replay.operations", "redrive.replay.rebuild",
    "redrive.replay.seek", "redrive.replay.status", "redrive.replay.workers", "redrive.rocksdb.folder",
    "redrive.runner.embed", "redrive.runner.process", "redrive.sources.quick", "redrive.store.postgres",
)  # fmt: skip


def main() -> None:
    """Fork and reap until stdin ends."""
    for name in LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the children's collectors leave the shared pages alone
    children: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            pid = request["reap"]
            _, status = os.waitpid(pid, 0)
            children.discard(pid)
            answer(os.waitstatus_to_exitcode(status))
        else:
            assert threading.active_count() == 1
            pid = os.fork()
            if pid == 0:
                child(request)
            children.add(pid)
            answer(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def answer(value: int) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def child(request: dict[str, Any]) -> None:
    """Become the program; never return into the zygote's loop."""
    code = 70
    try:
        os.setsid()
        errors = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDWR)
        for source, target in ((nothing, 0), (nothing, 1), (errors, 2)):
            os.dup2(source, target)
        os.environ.update(request["env"])
        arm_from_environment(failpoints.arm)
        module, _, function = request["program"].partition(":")
        code = 71  # which is an error at once for the test that waits, see processes.wait_until
        program = getattr(PROGRAMS.get(module) or importlib.import_module(module), function)
        code = 70
        program(**request["arguments"])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
