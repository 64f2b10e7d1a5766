"""Shops that read streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what the tests of this folder share is imported by its name

from streamshop import Shop

pytest.register_assert_rewrite("redrive.testing.contracts")


@pytest.fixture
def shops(valkey_url: str, server: Any, backend: str | None) -> Iterator[Any]:
    """Make shops on one store; at the end the books must balance."""
    made: list[Shop] = []

    def make(**how: Any) -> Shop:
        made.append(Shop(valkey_url, backend, **how))
        return made[-1]

    yield make
    for shop in made:
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []
        shop.harness.close()
