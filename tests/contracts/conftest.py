"""The contracts are shipped modules: their asserts are to be explained like those of tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("redrive.testing.contracts")
