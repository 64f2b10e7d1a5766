"""Plants random mutants in one module after the other and says which tests kill each.

    python scripts/mutate.py policy/retry.py runner/settle.py --count 30 --seed 1 > mutants.md
    python scripts/mutate.py policy/retry.py --list         only show the draw

Needs `coverage` (in the extra `test`). The checkout is not changed: pytest runs in a copy, which gets one mutant at
a time. First each group of tests runs once, and the lines that each test executes are recorded. Then a mutant meets
the tests that execute its line, the quickest file first, until one fails: first the related ones, in the folder of the
module's name (or `RELATED`), then the other fast tests. Tests on Postgres are left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RELATED = {"kafka": "tests/sources", "redis": "tests/sources"}  # of other folders: the tests of the same name
ELSEWHERE = ["tests", "-m", "not slow"]
COMMON = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-rfE", "--tb=no", "--timeout=60"]
TESTS_SECONDS_MAX = 40.0  # of tests, as recorded, for one mutant and one group: a table should be made in an hour
HANGS_SECONDS = 300.0  # a run of these tests that takes longer hangs: the mutant is killed
SKIPPED = {"hit", "log", "cast", "isinstance", "issubclass"}  # calls whose arguments are not swapped or removed
COMPARED: dict[type, list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn], ast.NotIn: [ast.In],
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of a source text."""

    line: int
    start: int  # in bytes
    end: int
    was: str
    text: str

    @property
    def change(self) -> str:
        """Before and after, in one line of a table."""
        was, text = (" ".join(one.split()).replace("|", "\\|") for one in (self.was, self.text))
        return f"`{was[:70]}` → `{text[:70]}`"


class Record(NamedTuple):
    """What one group of tests did when nothing was mutated."""

    seconds: dict[str, float]  # by test
    lines: dict[str, dict[str, list[str]]]  # by module and line: tests


# ---------------------------------------------------------------- mutants


def draw(source: str, count: int, seed: int) -> list[Mutant]:
    """So many places of a source, each with one change, in the order of their lines."""
    starts = [0]
    for row in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    dice, found, raw = random.Random(seed), [], source.encode()
    for node, texts in places(ast.parse(source)):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutant(node.lineno, start, end, raw[start:end].decode(), dice.choice(texts)))
    return sorted(dice.sample(found, min(count, len(found))))


def places(tree: ast.AST) -> Iterator[tuple[Any, list[str]]]:
    """Nodes inside functions, each with the texts that may replace it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from _places_in(statement)


def _places_in(node: ast.AST) -> Iterator[tuple[Any, list[str]]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assert | ast.JoinedStr):
        return  # `places` finds inner functions by itself
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _is_skipped(node.value)):
        return
    if texts := list(_texts(node)):
        yield node, texts
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, ["True", "False"]
    if isinstance(node, ast.Raise):
        return  # its message
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name != "annotation":
                yield from _places_in(child)


def _is_skipped(node: ast.AST) -> bool:
    while isinstance(node, ast.Call | ast.Attribute | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in SKIPPED


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(left, [operator], [right]):
            for other in COMPARED[type(operator)]:
                yield f"({ast.unparse(ast.Compare(left, [other()], [right]))})"
        case ast.BoolOp(operator, values):
            yield f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))})"
            for forgotten in values:
                rest = [value for value in values if value is not forgotten]
                yield f"({ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"bool({ast.unparse(operand)})"
        case ast.Constant(bool(value)):
            yield str(not value)
        case ast.Constant(int(value)):
            yield from (f"({value + 1})", f"({value - 1})")
        case ast.BinOp(left, ast.Add() | ast.Sub() as operator, right):
            yield f"({ast.unparse(ast.BinOp(left, ast.Sub() if isinstance(operator, ast.Add) else ast.Add(), right))})"
        case ast.Expr(ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()):
            yield "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Continue() | ast.Break() | ast.Raise() | ast.Return(None):
            yield "pass"
        case ast.Return(ast.Constant(None)):
            return
        case ast.Return():
            yield "return None"
        case ast.Call(ast.Name("min" | "max" as name), arguments, keywords):
            yield ast.unparse(ast.Call(ast.Name("max" if name == "min" else "min"), arguments, keywords))
        case ast.Call(function, [ast.Name() | ast.Attribute() as one, ast.Name() | ast.Attribute() as two], keywords):
            if not _is_skipped(node):
                yield ast.unparse(ast.Call(function, [two, one], keywords))


# ---------------------------------------------------------------- runs


class Scratch:
    """A copy of the checkout in which tests run."""

    def __init__(self, folder: Path, modules: list[str]) -> None:
        self.folder, self.modules = folder, modules
        listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, text=True)
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def source(self, module: str) -> Path:
        """Where the copy of a module lies."""
        return self.folder / "src" / "redrive" / module

    def pytest(self, arguments: list[str], seconds: float | None, **env: str) -> tuple[int, str]:
        """Exit code and output; -1 if it hangs."""
        paths = os.pathsep.join(str(self.folder / name) for name in ("src", "scripts"))
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *COMMON, *arguments], cwd=self.folder, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **env},
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return -1, process.communicate()[0]
        return process.returncode, output

    def record(self, arguments: list[str]) -> Record:
        """Run a group of tests, and see which lines of the modules each executes."""
        where = self.folder / "record.json"
        wanted = json.dumps([str(where), *(str(self.source(module)) for module in self.modules)])
        found = self.pytest([*arguments, "-k", "not postgres", "-p", "executed_lines"], None, EXECUTED_LINES=wanted)
        if found[0] not in (0, 1):  # 1: some fail without any mutant, and are left out
            raise SystemExit(f"the tests do not run: {found[1][-1000:]}")
        return Record(*json.loads(where.read_text()))

    def kill(self, mutant: Mutant, module: str, record: Record) -> tuple[str, int]:
        """The test that kills it, or nothing, and the number of tests that tried."""
        by_file, chosen, left = defaultdict(list), [], TESTS_SECONDS_MAX
        for test in record.lines.get(str(self.source(module)), {}).get(str(mutant.line), []):
            by_file[test.split("::")[0]].append(test)
        for tests in sorted(by_file.values(), key=lambda tests: sum(record.seconds[test] for test in tests)):
            chosen += [test for test in tests if (left := left - record.seconds[test]) >= 0]
        names = self.folder / "tests.txt"
        names.write_text("\n".join(chosen))
        code, output = self.pytest(["-x", f"@{names}"], HANGS_SECONDS) if chosen else (0, "")
        if code == 0:
            return "", len(chosen)
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        return found[1] if found else f"(hangs or ends with {code})", len(chosen)


def main() -> None:
    """Plant, run and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="below src/redrive, as runner/settle.py")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if len({module.split("/")[0] for module in asked.modules}) > 1:
        parser.error("one folder at a time: its tests are recorded once for all its modules")
    draws = {one: draw((ROOT / "src/redrive" / one).read_text(), asked.count, asked.seed) for one in asked.modules}
    if asked.list:
        for module, drawn in draws.items():
            print(*(f"{module}:{one.line} #{n} {one.change}" for n, one in enumerate(drawn)), sep="\n")
        return
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        run(Scratch(Path(name).resolve(), asked.modules), draws, asked)


def run(scratch: Scratch, draws: dict[str, list[Mutant]], asked: argparse.Namespace) -> None:
    """All mutants, one after the other."""
    folder = asked.modules[0].split("/")[0]
    groups = [scratch.record([RELATED.get(folder, f"tests/{folder}")]), scratch.record(ELSEWHERE)]
    for module, drawn in draws.items():
        path = scratch.source(module)
        source, counts = path.read_bytes(), [0, 0, 0]
        print(f"### {module}\n\n| # | line | change | | by, or tests tried |\n|---|---|---|---|---|")
        for number, mutant in enumerate(drawn):
            path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
            tried, killer, where = 0, "", 2
            for group, record in enumerate(groups):
                if not killer:
                    killer, more = scratch.kill(mutant, module, record)
                    tried, where = tried + more, group if killer else 2
            path.write_bytes(source)
            counts[where] += 1
            told = ("killed", "killed elsewhere", "SURVIVED")[where]
            print(f"| {number} | {mutant.line} | {mutant.change} | {told} | {killer or tried} |", flush=True)
        print(f"\n{module}: {sum(counts)} planted, {counts[0]} killed, {counts[1]} elsewhere, {counts[2]} survived\n")


if __name__ == "__main__":
    main()
