"""The guide about testing: its examples are a test file that passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "testing.md"


def test_the_examples_of_the_guide_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    shop = [block for block in blocks if block.startswith("# shop.py")]
    tests = [block for block in blocks if block not in shop and "MyStore" not in block]
    (tmp_path / "shop.py").write_text(shop[0], encoding="utf-8")
    (tmp_path / "test_shop.py").write_text("\n\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    wanted = sum(block.count("def test_") for block in tests)
    assert f"{wanted} passed" in done.stdout, done.stdout + done.stderr
    assert wanted == 7
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize("name", ["redrive", "redrive.testing", "redrive.sinks", "redrive.mirrors", "redrive.redis"])
def test_dir_of_a_lazy_module_lists_its_public_names(name: str) -> None:
    """In a process of its own: names that were asked for before are there anyway."""
    program = (
        f"import {name} as module; found = dir(module); print(*found);"
        "assert found == sorted({*module.__all__} | ({'__version__'} & {*found})), found;"
        "assert all(getattr(module, one) is not None for one in found)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert name != "redrive.testing" or "Harness" in done.stdout.split()
