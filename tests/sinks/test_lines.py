"""The file sink: torn lines, rotation, neighbours on the same file; and standard output."""

from __future__ import annotations

import asyncio
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from redrive import UsageError, cloudevents
from redrive.sinks import file, rotation, stdout
from redrive.testing import make_event
from tests.sinks.conftest import deliver

DAY = 86_400


def events(*numbers: int) -> list[Any]:
    return [make_event("order.placed", {"n": n}, key="a", id=f"id-{n}") for n in numbers]


def ids(path: Path) -> list[str]:
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line)["id"] for line in text.split(b"\n")[:-1]]


def test_a_line_is_what_import_reads(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = file(path, name="archive")
    sink.log = "orders"
    (event,) = events(1)
    deliver(sink, event)
    line = path.read_bytes()
    assert json.loads(line)["source"] == "urn:redrive:log:orders"
    back = cloudevents.decode(line.removesuffix(b"\n"), 0)
    assert (back.id, back.key, back.data_raw) == (event.id, "a", event.raw)


@pytest.mark.parametrize("cut", [1, 5, 30, 100, 150])
def test_a_line_that_a_crash_cut_short_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    deliver(file(path, name="archive"), *events(1, 2))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])
    deliver(file(path, name="archive"), *events(3))
    assert ids(path) == ["id-1", "id-2", "id-3"]


def test_the_only_line_may_be_the_torn_one_and_longer_than_a_look(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    deliver(file(path, name="archive"), make_event("order.placed", "x" * 300_000))
    path.write_bytes(path.read_bytes()[:-10])
    deliver(file(path, name="archive"), *events(1))
    assert ids(path) == ["id-1"]


def test_zeros_that_a_power_cut_left_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    deliver(file(path, name="archive"), *events(1))
    for rest in (b"\0" * 100, b'{"specversion":"1.0","id"\0\0\0'):
        path.write_bytes(path.read_bytes() + rest)
        deliver(file(path, name="archive"), *events(2))
    assert ids(path) == ["id-1", "id-2", "id-2"]


def test_a_whole_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    deliver(file(path, name="archive"), *events(1))
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    deliver(file(path, name="archive"), *events(2))
    assert ids(path) == ["id-1", "id-2"]


def test_what_is_not_ours_is_never_cut(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes\nwithout an end")
    deliver(file(path, name="archive"), *events(1))
    assert path.read_bytes().startswith(b'my notes\nwithout an end\n{"specversion"')


def test_a_neighbour_that_died_in_the_middle_of_a_line_is_noticed_while_the_file_is_open(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        sink = file(path, name="archive")
        await sink.send(events(1))
        with path.open("ab") as other:
            other.write(b'{"specversion":"1.0","id":"to')
        await sink.send(events(2))
        await sink.close()

    asyncio.run(story())
    assert ids(path) == ["id-1", "id-2"]


def test_rotation_by_size_loses_nothing_and_keeps_as_many_as_said(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story(**options: Any) -> None:
        sink = file(path, name="archive", rotate="1KiB", **options)
        for number in range(20):
            await sink.send(events(number))
        await sink.close()

    asyncio.run(story())
    rotated = sorted(tmp_path.glob("events.jsonl.*"))
    assert [one.name for one in rotated] == [f"events.jsonl.{n:06d}" for n in range(1, len(rotated) + 1)]
    assert len(rotated) > 3 and all(one.stat().st_size <= 1024 for one in rotated)
    assert [one for part in [*rotated, path] for one in ids(part)] == [f"id-{n}" for n in range(20)]
    (tmp_path / "events.jsonl.backup").write_text("mine")
    asyncio.run(story(keep=2))
    names = sorted(one.name for one in tmp_path.glob("events.jsonl.*"))
    assert len(names) == 3 and names[-1] == "events.jsonl.backup"
    assert int(names[0].rpartition(".")[2]) > len(rotated), "the oldest go first"


def test_a_batch_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = file(path, name="archive", rotate="1KiB")
    deliver(sink, *events(*range(50)))
    deliver(sink, *events(50))
    assert ids(tmp_path / "events.jsonl.000001") == [f"id-{n}" for n in range(50)]
    assert ids(path) == ["id-50"]


def test_rotation_by_time_begins_a_file_in_each_period(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = file(path, name="archive", rotate="1d")
    deliver(sink, *events(1))
    deliver(sink, *events(2))
    assert ids(path) == ["id-1", "id-2"]
    os.utime(path, (time.time() - DAY, time.time() - DAY))
    deliver(sink, *events(3))
    assert ids(path) == ["id-3"]
    assert ids(tmp_path / "events.jsonl.000001") == ["id-1", "id-2"]
    os.utime(path, (time.time() + DAY, time.time() + DAY))  # a clock that was set back
    deliver(sink, *events(4))
    assert ids(path) == ["id-3", "id-4"]


def test_a_file_that_logrotate_took_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        sink = file(path, name="archive")
        await sink.send(events(1))
        path.rename(tmp_path / "old")
        await sink.send(events(2))
        path.unlink()
        await sink.send(events(3))
        await sink.close()

    asyncio.run(story())
    assert (ids(tmp_path / "old"), ids(path)) == (["id-1"], ["id-3"])


def _write_many(path: Path, first: int) -> None:
    async def story() -> None:
        sink = file(path, name="archive", rotate="8KiB", fsync=False)
        for number in range(first, first + 100):
            await sink.send(events(number, number + 1_000))
        await sink.close()

    asyncio.run(story())


def test_several_processes_may_write_and_rotate_one_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(path, 100 * n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    parts = [*sorted(tmp_path.glob("events.jsonl.*")), path]
    found = [one for part in parts for one in ids(part)]
    assert len(parts) > 5
    assert sorted(found) == sorted(f"id-{n + more}" for n in range(300) for more in (0, 1_000))
    assert all(found[index + 1] == f"id-{int(found[index][3:]) + 1_000}" for index in range(0, 600, 2))


def test_a_fork_opens_the_file_anew(tmp_path: Path) -> None:
    """A lock on an inherited file is the parent's lock too."""
    path = tmp_path / "events.jsonl"
    lines = rotation.LineFile(path, fsync=False)
    lines.write(b"{}\n")
    before = lines._fd
    pid = os.fork()
    if pid == 0:
        lines.write(b"{}\n")
        assert before is not None
        try:
            fcntl.flock(lines._fd or -1, fcntl.LOCK_EX)
            other = os.open(path, os.O_RDWR)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lines.close()
    assert path.read_bytes() == b"{}\n{}\n"


def test_a_lock_that_is_never_given_back_is_an_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "LOCK_WAIT_MAX", 0.05)
    path = tmp_path / "events.jsonl"
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="locked"):
            deliver(file(path, name="archive"), *events(1))
    deliver(file(path, name="archive"), *events(1))
    assert ids(path) == ["id-1"]


@pytest.mark.parametrize(("fsync", "wanted"), [(True, True), (False, False)])
def test_what_is_acknowledged_is_on_the_disk_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool, wanted: bool
) -> None:
    synced: list[int] = []
    real = os.fsync

    def note(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", note)
    path = tmp_path / "events.jsonl"
    deliver(file(path, name="archive", fsync=fsync), *events(1))
    assert (path.stat().st_ino in synced, tmp_path.stat().st_ino in synced) == (wanted, wanted)


def test_a_folder_that_is_not_there_is_an_error_that_passes(tmp_path: Path) -> None:
    path = tmp_path / "mount" / "events.jsonl"
    sink = file(path, name="archive")
    with pytest.raises(FileNotFoundError):
        deliver(sink, *events(1))
    path.parent.mkdir()
    deliver(sink, *events(1))
    assert ids(path) == ["id-1"]


@pytest.mark.parametrize(
    "options",
    [
        {"rotate": "often"}, {"rotate": "0s"}, {"rotate": "1ms"}, {"rotate": "0B"}, {"keep": 3}, {"batch_max": 0},
        {"rotate": "1d", "keep": 0}, {"name": ""}, {"path": "/dev/null"}, {"path": "/"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_refused_at_the_start(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        file(**{"path": tmp_path / "events.jsonl", "name": "archive", **options})


def test_standard_output_carries_lines_between_those_of_the_program() -> None:
    program = (
        "import asyncio\nfrom redrive.sinks import stdout\nfrom redrive.testing import make_event\n"
        "print('before')\nasyncio.run(stdout().send([make_event('a', id='x'), make_event('a', id='y')]))\n"
        "print('after')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    before, *lines, after = done.stdout.splitlines()
    assert (before, [json.loads(line)["id"] for line in lines], after) == ("before", ["x", "y"], "after")


def test_standard_output_may_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(stdout(), *events(1))
    assert json.loads(capsys.readouterr().out)["id"] == "id-1"


@pytest.mark.parametrize("fsync", [True, False])
def test_the_file_takes_events_faster_than_anybody_sends_them(
    tmp_path: Path, fsync: bool, record_property: pytest.RecordProperty
) -> None:
    """Processor time, which a busy machine does not change: 50,000 a second leave 20 µs for each."""
    batch = [
        make_event("order.placed", {"n": n, "cents": 4200, "items": [{"sku": "abc", "n": 2}] * 3}, key=f"k{n % 50}")
        for n in range(500)
    ]

    async def story() -> float:
        sink = file(tmp_path / "events.jsonl", name="archive", fsync=fsync)
        await sink.send(batch)
        began = time.process_time()
        for _ in range(20):
            await sink.send(batch)
        taken = time.process_time() - began
        await sink.close()
        return taken

    each = asyncio.run(story()) / 10_000
    record_property("sinks", f"file sink, fsync={fsync}: {1 / each:,.0f} events per second of processor time")
    assert each < 20e-6
