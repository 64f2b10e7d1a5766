"""Letters mirrored to files: everything that happened to a letter, in order, and found again after any damage."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError, mirrors
from redrive.mirrors.folders import LetterFiles, paths
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from tests.mirrors.conftest import told

NOW = datetime(2026, 11, 16, 13, 0, tzinfo=UTC).timestamp()
DAY = 86_400.0


def entries(*numbers: int) -> list[mirrors.Entry]:
    at = datetime(2026, 11, 16, tzinfo=UTC)
    return [
        mirrors.Entry(
            seq=n, letter=n, rev=0, state="dead", at=at + timedelta(seconds=n), subscription="charge", source="orders",
            position=n, reason="rejected",
        )
        for n in numbers
    ]  # fmt: skip


def go_on(folder: Path, upto: int, position: int) -> None:
    """What an owner does after it has taken over: look how far the mirror is, and write the rest."""
    mirror = mirrors.files(folder, name="dead-files", fsync=False)
    known = mirror.resume()
    begin = position if known is None else min(position, known)
    if rest := entries(*range(begin + 1, upto + 1)):
        mirror.write(rest, NOW)
    mirror.close()


def written(folder: Path, count: int) -> Path:
    mirror = mirrors.files(folder, name="dead-files", fsync=False)
    mirror.write(entries(*range(1, count + 1)), NOW)
    mirror.close()
    (path,) = paths(folder)
    return path


def test_a_file_follows_the_letters(shops: Any, tmp_path: Path) -> None:
    shop = shops(mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1}
    for n in (1, 2):
        shop.order(n)
    shop.run()
    assert told(tmp_path) == [(1, "dead"), (2, "retrying")]
    assert shop.lag("dead-files") == 0
    shop.desk.edit(1, {"n": 3}, "it was 3")
    shop.harness.replay([1])
    assert told(tmp_path) == [
        (1, "dead"), (2, "retrying"), (1, "dead"), (1, "retrying"), (1, "applied"), (2, "applied"),
    ]  # fmt: skip


def test_a_line_is_json_and_says_what_is_known_of_the_letter(shops: Any, tmp_path: Path) -> None:
    shop = shops(mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1}
    event = shop.order(1)
    shop.run()
    (path,) = paths(tmp_path)
    assert path.relative_to(tmp_path).as_posix() == "2026/01/01/letters.jsonl"
    (line,) = path.read_bytes().splitlines()
    said = json.loads(line)
    body = said["letter"]
    assert said["bytes"] == len(json.dumps(body, separators=(",", ":")))
    assert (body["letter"], body["state"], body["subscription"], body["reason"]) == (1, "dead", "charge", "rejected")
    assert (body["error_type"], body["error_message"]) == ("redrive.errors.Reject", "no charge for 1")
    assert (body["event"]["id"], body["event"]["data"]) == (event.id, {"n": 1})
    shop.desk.edit(1, {"n": 3}, "it was 3")
    shop.run()
    body = json.loads(path.read_bytes().splitlines()[1])["letter"]
    assert (body["event"]["data"], body["edited"]["data"], body["rev"]) == ({"n": 1}, {"n": 3}, 1)


def test_a_mirror_may_follow_some_subscriptions_only(shops: Any, tmp_path: Path) -> None:
    shop = shops(mirrors.files(tmp_path, name="dead-files"), only=("audit",))
    shop.bad = {1}
    shop.order(1, kind="order.audited")
    shop.run()
    assert [letter.subscription for letter in shop.harness.letters()] == ["charge", "audit"]
    assert [one.subscription for one in mirrors.read(tmp_path)] == ["audit"]
    assert shop.lag("dead-files") == 0


def test_a_mirror_to_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="to= is empty"):
        App(str(tmp_path / "shop.db")).mirror(to=[])


def test_two_mirrors_do_not_share_a_folder(tmp_path: Path) -> None:
    app, folder = App(str(tmp_path / "shop.db")), tmp_path / "dead"
    app.mirror(to=mirrors.files(folder, name="dead-files"))
    with pytest.raises(UsageError, match="'dead-files' and 'others' write to the same place"):
        app.mirror(to=mirrors.files(tmp_path / "x" / ".." / "dead", name="others"))
    app.mirror(to=mirrors.files(tmp_path / "others", name="others"))
    assert set(app.subscriptions) == {"dead-files", "others"}


def test_who_is_named_by_only_must_be_there(shops: Any, tmp_path: Path) -> None:
    shop = shops(mirrors.files(tmp_path, name="dead-files"), only=("chrage",))
    with pytest.raises(UsageError, match="'chrage'"):
        shop.run()


def test_a_sick_mirror_delays_only_itself_and_spends_no_letters(shops: Any, tmp_path: Path) -> None:
    sick, well = tmp_path / "sick", tmp_path / "well"
    shop = shops(mirrors.files(sick, name="sick"), mirrors.files(well, name="well"))
    sick.write_text("not a folder")
    shop.bad = {1, 2}
    shop.order(1, key="ada")
    shop.order(2, key="bob")
    shop.order(3, key="eve")
    shop.run()
    assert told(well) == [(1, "dead"), (2, "dead")]
    assert (shop.lag("well"), shop.lag("sick")) == (0, 2)
    assert "sick" in shop.harness.halted["sick"]
    assert {one.subscription: one.halted is None for one in shop.app.operate().status()}["sick"] is False
    assert [letter.subscription for letter in shop.harness.letters()] == ["charge", "charge"]
    sick.unlink()
    shop.harness.advance("10m")
    assert (told(sick), shop.lag("sick")) == (told(well), 0)


@pytest.mark.parametrize("where", ["mirror.block", "mirror.written", "mirror.before_commit"])
def test_after_a_crash_nothing_is_missing_and_nothing_counts_twice(shops: Any, tmp_path: Path, where: str) -> None:
    shop = shops(mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1, 2}
    shop.order(1, key="ada")
    with failpoint(where, action=shop.harness.crash), pytest.raises(Crashed):
        shop.run()
    shop.order(2, key="bob")
    shop.run()
    assert told(tmp_path) == [(1, "dead"), (2, "dead")]
    assert len(list(mirrors.read(tmp_path))) == 3


def test_truncated_anywhere_the_rest_is_read_and_what_is_gone_is_written_again(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", 3).read_bytes()
    starts = [0, *[at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]]
    for length in range(len(whole)):
        folder = tmp_path / str(length)
        (folder / "2026/11/16").mkdir(parents=True)
        (folder / "2026/11/16/letters.jsonl").write_bytes(whole[:length])
        found = list(mirrors.read(folder))
        held = [one.letter for one in found if isinstance(one, mirrors.Entry)]
        assert held in ([1, 2, 3][: sum(start <= length for start in starts[1:])], [1, 2, 3][: len(held)])
        assert len(found) > len(held) or length in starts, "a torn line is told"
        go_on(folder, 4, position=3)
        assert told(folder) == [(n, "dead") for n in (1, 2, 3, 4)], length


def test_any_flipped_byte_is_noticed_costs_its_line_at_most_and_is_written_again(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for at in range(len(whole)):
        for bit in {0x01, 0x80, whole[at] ^ ord("\n")} - {0}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            found = list(mirrors.read(path))
            hit = next(n for n in (1, 2, 3) if at < sum(map(len, lines[:n])))
            held = [one.letter for one in found if isinstance(one, mirrors.Entry)]
            assert len(found) > len(held), f"byte {at} is another, and nobody says so"
            assert held in ([1, 2, 3], [n for n in (1, 2, 3) if n != hit])
        go_on(tmp_path, 4, position=3)
        seen = {one.letter for one in mirrors.read(tmp_path) if isinstance(one, mirrors.Entry)}
        assert seen == {1, 2, 3, 4}, at
        for other in paths(tmp_path):
            other.unlink()


def test_what_is_damaged_is_written_again_once(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes().replace(b"rejected", b"rejectet", 1))
    go_on(tmp_path, 4, position=3)
    found = list(mirrors.read(tmp_path))
    go_on(tmp_path, 4, position=4)
    go_on(tmp_path, 5, position=4)
    assert len(list(mirrors.read(tmp_path))) == len(found) + 1


def test_zeros_at_the_end_are_a_torn_line(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    go_on(tmp_path, 3, position=2)
    assert told(tmp_path) == [(1, "dead"), (2, "dead"), (3, "dead")]


def test_each_day_has_a_folder_and_no_file_is_too_large(tmp_path: Path) -> None:
    mirror = LetterFiles(tmp_path, "dead-files", rotate="500B", keep="2d")
    for n in range(1, 9):
        mirror.write(entries(n), NOW + (n > 6) * DAY)
    assert told(tmp_path) == [(n, "dead") for n in range(1, 9)]
    assert {path.parent.relative_to(tmp_path).as_posix() for path in paths(tmp_path)} == {"2026/11/16", "2026/11/17"}
    assert all(path.stat().st_size <= 500 for path in paths(tmp_path))
    mirror.write(entries(9, 10, 11), NOW + 4 * DAY)
    assert told(tmp_path) == [(9, "dead"), (10, "dead"), (11, "dead")]
    assert all(path.stat().st_size <= 500 for path in paths(tmp_path)), "also of several at a time"
    mirror.close()
    assert LetterFiles(tmp_path, "dead-files").resume() == 11


def test_a_folder_that_was_emptied_is_not_filled_again(shops: Any, tmp_path: Path) -> None:
    """Whoever carries the files away wants to keep them, not to have them twice."""
    shop = shops(mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1, 2}
    shop.order(1, key="ada")
    shop.run()
    for path in paths(tmp_path):
        path.unlink()
    shop.harness.restart()
    shop.order(2, key="bob")
    shop.run()
    assert told(tmp_path) == [(2, "dead")]


def test_a_new_mirror_begins_with_what_happened_so_far(shops: Any, tmp_path: Path) -> None:
    shop = shops()
    shop.bad = {1}
    shop.order(1)
    shop.run()
    shop.app.mirror(to=mirrors.files(tmp_path, name="dead-files"))
    shop.run()
    assert told(tmp_path) == [(1, "dead")]


def test_what_is_not_mirrored_yet_is_not_pruned(shops: Any, tmp_path: Path) -> None:
    from redrive.replay.prune import What, plan_prune, prune

    shop = shops(mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1}
    shop.order(1)
    shop.run()
    operations = shop.app.operate("ada")
    operations.subscriptions.pause("dead-files", "the disk is moved")
    shop.bad = set()
    shop.harness.replay()
    what, store = What(older_than=0.0), shop.app.runtime.store
    later = shop.app.runtime.env.clock.now() + 1

    def pruned() -> int:
        return prune(operations.operator, what, plan_prune(store, later, what)).applied

    assert (shop.lag("dead-files"), pruned()) == (2, 0)
    assert plan_prune(store, later, what).unmirrored == 1
    assert plan_prune(store, later, What(0.0, no_mirror=("dead-files",))).applied == 1
    with pytest.raises(UsageError, match="no such mirror"):
        plan_prune(store, later, What(0.0, no_mirror=("charge",)))
    shop.order(5)
    shop.order(6)
    shop.run()
    of_log = What(0.0, logs=("orders",))
    assert "dead-files has not mirrored" in plan_prune(store, later, of_log).events[0].held_by
    operations.subscriptions.resume("dead-files", "it is back")
    shop.run()
    assert told(tmp_path)[-1] == (1, "applied")
    assert pruned() == 1
    shop.bad = {2}
    shop.order(2)
    shop.run()
    assert told(tmp_path)[-1] == (2, "dead"), "numbers that were pruned are not given again"
