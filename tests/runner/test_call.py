"""How a failure is described, whatever way the program was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from redrive.runner.call import attempt, describe

PROGRAM = """
from redrive.runner.call import describe

class Declined(Exception): ...

def charge():
    raise Declined("card 4711 was declined")

def tell():
    try:
        charge()
    except Declined as error:
        print(describe(error).error_type, describe(error).fingerprint)

if __name__ == "__main__":
    tell()
"""


def test_a_bug_has_one_fingerprint_however_the_program_is_started(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    ways = (["shop.py"], ["-m", "shop"], ["-c", "import shop; shop.tell()"])
    told = [subprocess.check_output([sys.executable, *way], cwd=tmp_path, text=True) for way in ways]
    assert set(told) == {told[0]}
    assert told[0].startswith("shop.Declined ")


def test_two_places_of_one_function_are_told_apart() -> None:
    """The way of an error is remembered; another line of the same function is another way."""

    def fail(early: bool) -> None:
        if early:
            raise ValueError("early")
        raise ValueError("late")

    for early in (True, False, True):
        error = attempt(fail, early)
        assert error is not None
        word = "early" if early else "late"
        assert f'raise ValueError("{word}")' in describe(error).traceback
