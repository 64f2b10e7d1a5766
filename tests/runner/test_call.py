"""How a failure is described, whatever way the program was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FunctionType

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


def _fail() -> None:
    raise OSError("no")


def test_code_that_says_it_is_from_a_file_with_a_null_in_its_name_is_told_all_the_same() -> None:
    """Python 3.11 and 3.12 refuse to look for its lines: the subscription had halted."""
    odd = _fail.__code__.replace(co_filename="a\0b")
    error = attempt(FunctionType(odd, {}))
    assert error is not None
    failure = describe(error)
    assert (failure.message, "in _fail" in failure.traceback) == ("no", True)
