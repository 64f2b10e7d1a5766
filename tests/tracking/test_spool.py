"""The spool file, torn, damaged or full: no wrong event is taken in, and no whole one is left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.event import NewEvent
from redrive.tracking import spool
from redrive.tracking.spool import Broken, Entry, SpoolFolder, Whole, encode, records, salt_of

MANY = 10**9
NAME = "1-1-1.spool"


def entry(number: int, data: bytes = b"", log: str = "orders") -> Entry:
    data = data or b'{"cents":%d,"text":"a\\"b"}' % number
    return Entry(log, NewEvent(f"id-{number}", "order.placed", f"k{number % 2}", 1, number, b'{"a":"b"}', data))


ENTRIES = [entry(0), entry(1, b"{}"), entry(2, b'[1,\n  "\xc3\xa9",\n 2]'), entry(3)._replace(log="bills")]


def found_in(raw: bytes, path: Path) -> tuple[list[Entry], list[bytes]]:
    """What is taken out of a file with these bytes."""
    path.write_bytes(raw)
    handle = os.open(path, os.O_RDONLY)
    try:
        found = list(records(handle, 0, salt_of(NAME)))
    finally:
        os.close(handle)
    return [one.entry for one in found if isinstance(one, Whole)], [one.raw for one in found if isinstance(one, Broken)]


def lines(entries: list[Entry]) -> list[bytes]:
    return [encode(one, salt_of(NAME)) for one in entries]


def same(one: Entry, other: Entry) -> bool:
    return one.log == other.log and one.event[:7] == other.event[:7]


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    whole, broken = found_in(b"".join(lines(ENTRIES)), tmp_path / NAME)
    assert [one.log for one in whole] == [one.log for one in ENTRIES]
    assert all(map(same, whole, ENTRIES))
    assert broken == []
    assert [one.event.may_repeat for one in whole] == [True, True, True, True]


def test_a_file_cut_at_any_byte_gives_all_records_before_the_cut_and_reports_the_rest(tmp_path: Path) -> None:
    made = lines(ENTRIES)
    raw = b"".join(made)
    for cut in range(len(raw)):
        whole, broken = found_in(raw[:cut], tmp_path / NAME)
        complete, end = 0, 0
        for line in made:
            if end + len(line) - 1 > cut:  # the line break may be missing: length and checksum hold
                break
            complete, end = complete + 1, end + len(line)
        assert len(whole) == complete, cut
        assert all(map(same, whole, ENTRIES)), cut
        assert b"".join(broken) == raw[end:cut], cut


@pytest.mark.parametrize("change", [0x01, 0x20, 0x80, 0xFF, None])
def test_a_damaged_byte_anywhere_costs_its_own_record_and_no_other(change: int | None, tmp_path: Path) -> None:
    """`None`: the byte becomes a line break, where a reader would begin anew."""
    made = lines(ENTRIES)
    raw = b"".join(made)
    for at in range(len(raw)):
        byte = 0x0A if change is None else raw[at] ^ change
        if byte == raw[at]:
            continue
        whole, broken = found_in(raw[:at] + bytes([byte]) + raw[at + 1 :], tmp_path / NAME)
        hit = next(n for n in range(len(made)) if at < sum(map(len, made[: n + 1])))
        is_break = raw[at] == 0x0A
        expected = [one for number, one in enumerate(ENTRIES) if number != hit or is_break]
        assert len(whole) == len(expected), at
        assert all(map(same, whole, expected)), at
        assert broken, at


@given(st.binary(max_size=300), st.integers(0, 3))
def test_rubbish_between_records_is_never_an_event(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / NAME
    made = lines(ENTRIES)
    whole, _ = found_in(b"".join(made[:at]) + raw + b"\n" + b"".join(made[at:]), path)
    assert len(whole) == len(ENTRIES)
    assert all(map(same, whole, ENTRIES))


def test_a_payload_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    """Whoever writes payloads does not know the salt; even behind a damaged byte that became a line break."""
    forged = encode(entry(66), 0).rstrip()
    data = b'"\\n' + forged.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    (line,) = lines([entry(7, data)])
    at = line.index(forged[:18])
    whole, broken = found_in(line[: at - 1] + b"\n" + line[at:], tmp_path / NAME)
    assert whole == []
    assert broken


def test_records_larger_than_a_piece_are_read(tmp_path: Path) -> None:
    large = [entry(n, b'"' + b"x" * (spool.PIECE + n) + b'"') for n in range(3)]
    whole, broken = found_in(b"".join(lines(large)), tmp_path / NAME)
    assert all(map(same, whole, large))
    assert (len(whole), broken) == (3, [])


def test_a_length_that_was_damaged_does_not_swallow_what_follows(tmp_path: Path) -> None:
    first, *rest = lines(ENTRIES)
    whole, broken = found_in(b"ffffffff" + first[8:] + b"".join(rest), tmp_path / NAME)
    assert all(map(same, whole, ENTRIES[1:]))
    assert len(broken) == 1


def test_taking_from_the_front_while_writing_at_the_end(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool", MANY)
    mine = folder.create("1-1")
    assert mine.write([entry(0), entry(1)], MANY) == 2
    first = mine.read(1, MANY)
    assert mine.write([entry(2)], MANY) == 1
    mine.advance(first.upto)
    rest = mine.read(10, MANY)
    assert [one.event.id for one in first.entries + rest.entries] == ["id-0", "id-1", "id-2"]
    mine.advance(rest.upto)
    assert (mine.untaken, mine.path.stat().st_size) == (0, 0)
    mine.close()
    assert not mine.path.exists()


def test_a_file_that_is_not_empty_stays_for_whoever_comes_next(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool", MANY)
    mine = folder.create("1-1")
    mine.write([entry(0), entry(1)], MANY)
    assert folder.orphans([]) == []  # its owner lives
    mine.close()
    (orphan,) = folder.orphans([])
    assert folder.orphans([]) == []  # and now it is somebody's again
    chunk = orphan.read(10, MANY)
    assert [one.event.id for one in chunk.entries] == ["id-0", "id-1"]
    orphan.advance(chunk.upto)
    orphan.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_file_that_somebody_has_removed_is_no_longer_there_to_be_taken(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool", MANY)
    mine = folder.create("1-1")
    mine.write([entry(0)], MANY)
    late = os.open(mine.path, os.O_RDWR)
    mine.advance(mine.read(10, MANY).upto)
    mine.close()
    assert not spool._lock(late)
    os.close(late)


def test_entry_is_looked_up_in_the_store_only_if_it_may_be_there(tmp_path: Path) -> None:
    """An id that is stored for certain only once is not looked for; what may have been stored before is."""
    folder = SpoolFolder(tmp_path / "spool", MANY)
    mine = folder.create("1-1")
    one = Entry("orders", entry(0).event._replace(may_repeat=False))
    mine.write([one], MANY)
    assert [found.event.may_repeat for found in mine.read(10, MANY).entries] == [False]
    mine.try_again()
    mine.write([one], MANY)
    first = mine.read(1, MANY)
    mine.advance(first.upto)
    assert [found.event.may_repeat for found in first.entries + mine.read(1, MANY).entries] == [True, False]
    mine.close()
    [left] = folder.orphans([])
    assert [found.event.may_repeat for found in left.read(10, MANY).entries] == [True, True]
    left.close()


def test_entry_is_not_written_if_a_single_byte_is_missing(tmp_path: Path) -> None:
    mine = SpoolFolder(tmp_path / "spool", MANY).create("1-1")
    line = len(encode(entry(0), salt_of(mine.path.name)))
    assert [mine.write([entry(0)], room) for room in (line - 1, line)] == [0, 1]
    mine.close()


def test_no_more_is_written_than_there_is_room_for(tmp_path: Path) -> None:
    line = len(encode(entry(0), 0))
    folder = SpoolFolder(tmp_path / "spool", 3 * line)
    mine = folder.create("1-1")
    assert mine.write([entry(n) for n in range(5)], folder.room()) == 3
    assert mine.write([entry(9)], folder.room()) == 0
    assert len(mine.read(10, MANY).entries) == 3
    mine.close()


class SyncedDisk:
    """What a power cut would leave: files as they were when they were synced, and folders likewise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, bytes] = {}
        self.names: dict[str, set[str]] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._note)

    def _note(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if os.path.isdir(path):
            self.names[path] = {*os.listdir(path)}
        else:
            self.files[path] = Path(path).read_bytes()

    def holds(self, path: Path) -> bytes:
        """The content after a power cut; nothing if the name of the file was not synced."""
        return self.files.get(str(path), b"") if path.name in self.names.get(str(path.parent), ()) else b""


def test_written_entries_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SyncedDisk(monkeypatch)
    mine = SpoolFolder(tmp_path / "spool", MANY).create("1-1")
    for count in (1, 2):
        mine.write([entry(count)], MANY)
        left, _ = found_in(disk.holds(mine.path), tmp_path / mine.path.name)
        assert len(left) == count
    mine.close()


def test_damaged_bytes_survive_a_power_cut_when_they_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = SpoolFolder(tmp_path / "spool", MANY).create("1-1")
    disk = SyncedDisk(monkeypatch)
    mine.set_aside([b"rubbish"])
    assert disk.files[str(mine.path.with_suffix(".damaged"))] == b"rubbish\n"
    mine.close()


def test_files_and_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    mine = SpoolFolder(tmp_path / "spool", MANY).create("1-1")
    mine.write([entry(0)], MANY)
    mine.set_aside([b"rubbish"])
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "spool").iterdir()} == {0o600}
    assert mine.path.with_suffix(".damaged").read_bytes() == b"rubbish\n"
    mine.close()


@pytest.mark.parametrize("cleans_up", [True, False])
def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_the_file_readable(
    cleans_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = SpoolFolder(tmp_path / "spool", MANY).create("1-1")
    mine.write([entry(0)], MANY)

    def half(handle: int, raw: bytes, offset: int) -> int:
        real(handle, raw[: len(raw) // 2], offset)
        raise OSError(errno.ENOSPC, "no space left")

    real, cut = os.pwrite, os.ftruncate
    monkeypatch.setattr(os, "pwrite", half)
    if not cleans_up:
        monkeypatch.setattr(os, "ftruncate", lambda *_: half(mine._handle, b"", 0))
    with pytest.raises(OSError, match="no space"):
        mine.write([entry(1)], MANY)
    monkeypatch.setattr(os, "pwrite", real)
    monkeypatch.setattr(os, "ftruncate", cut)
    assert mine.write([entry(2)], MANY) == 1
    assert [one.event.id for one in mine.read(10, MANY).entries] == ["id-0", "id-2"]
    mine.close()


def test_entries_of_a_refused_write_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of three breaks off in the third, and the file cannot be cut back. What is written next is shorter."""
    mine = SpoolFolder(tmp_path / "spool", MANY).create("1-1")

    def nearly_all(handle: int, raw: bytes, offset: int) -> int:
        real(handle, raw[:-5], offset)
        raise OSError(errno.ENOSPC, "no space left")

    def no_cut(handle: int, size: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    for shorter in (1, 2):
        real, cut = os.pwrite, os.ftruncate
        monkeypatch.setattr(os, "pwrite", nearly_all)
        monkeypatch.setattr(os, "ftruncate", no_cut)
        with pytest.raises(OSError, match="no space"):
            mine.write([entry(1, b'{"text":"long"}'), entry(2), entry(3)], MANY)
        assert mine.read(10, MANY).entries == []
        monkeypatch.setattr(os, "pwrite", real)
        monkeypatch.setattr(os, "ftruncate", cut)
        assert mine.write([entry(4, b'{"text":"' + b"long"[shorter:] + b'"}')], MANY) == 1
        chunk = mine.read(10, MANY)
        assert [one.event.id for one in chunk.entries] == ["id-4"]
        left, broken = found_in(mine.path.read_bytes(), tmp_path / mine.path.name)  # as the next process would
        assert ([one.event.id for one in left], broken) == (["id-4"], [])
        mine.advance(chunk.upto)
    mine.close()
