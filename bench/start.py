"""What a program pays before it does anything: the import, and the command line's help."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.lab import ROOT, Figures, environment

TIMES = 5
IMPORT = "import time; start = time.perf_counter(); import redrive; print(time.perf_counter() - start)"


def start(folder: Path) -> Figures:
    """Medians of a few fresh interpreters, after one that fills the caches."""
    imports = [float(_run([sys.executable, "-c", IMPORT])) for _ in range(TIMES + 1)][1:]
    script = Path(sys.executable).with_name("redrive")
    helps = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        _run([str(script), "--help"])
        helps.append(time.perf_counter() - began)
    return {"import_ms": median(imports) * 1e3, "help_ms": median(helps[1:]) * 1e3}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr[-500:]}")
    return done.stdout
