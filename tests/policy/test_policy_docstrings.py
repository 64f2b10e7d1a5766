"""The examples in the docstrings of `policy/` run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import redrive.policy

MODULES = [module.name for module in pkgutil.iter_modules(redrive.policy.__path__, "redrive.policy.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
