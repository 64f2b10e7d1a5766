"""Letters mirrored to files: everything that happened to a letter, in order, and found again after any damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redrive import mirrors
from tests.mirrors.conftest import told


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
