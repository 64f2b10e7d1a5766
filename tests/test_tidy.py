"""The rules of the house, checked by reading the source: layers, sizes, purity, and what must not occur.

Each exception is data with a reason. To change a rule, change the table and say why beside it.
"""

from __future__ import annotations

import ast
import doctest
import gc
import importlib
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import redrive

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "redrive"

MODULE_LINES_MAX, MODULE_LINES_GOOD = 500, 250
FUNCTION_LINES_MAX = 60
PUBLIC_METHODS_MAX = 12
DOCSTRING_LINES_MAX = 10

# What each part of the package may import of the package, besides itself.
SHARED = {"version",
    "clock", "cloudevents", "codec", "context", "draft", "errors", "event", "failpoints", "files", "lossy", "masking",
    "observe", "options", "reader", "settings", "subscription", "types", "units",
}  # fmt: skip
PORTS = {"store", "sources", "sinks", "mirrors"}
LAYERS: dict[str, set[str]] = {
    "policy": {"errors", "options", "units"},
    **{name: SHARED | {"policy"} for name in SHARED},
    "store": SHARED | {"policy"},
    "tracking": SHARED | {"policy", "store"},  # what comes before the store: a queue, and a file for bad times
    "sources": SHARED | {"policy", "store", "tracking"},
    "sinks": SHARED | {"policy"},
    "rocksdb": SHARED | {"policy", "store"},
    "mirrors": SHARED | {"policy", "store", "sinks"},  # lines that survive a crash are those of a sink
    "redis": SHARED | {"policy", "sources", "sinks", "mirrors"},
    "kafka": SHARED | {"policy", "sources", "sinks"},
    "runner": SHARED | PORTS | {"policy"},
    "replay": SHARED | PORTS | {"policy", "runner", "tracking"},
    "runtime": SHARED | PORTS | {"tracking"},
    "watch": SHARED | {"replay"},
    "declare": SHARED | PORTS | {"policy", "runtime", "tracking"},
    "app": SHARED | PORTS | {"policy", "runner", "replay", "runtime", "declare", "tracking", "watch"},
    "admin": SHARED | PORTS | {"policy", "replay", "app"},
    "__main__": {"cli"},
    "cli": SHARED | PORTS | {"policy", "runner", "replay", "runtime", "app", "admin", "demo"},
    "integrations": {"tracking"},  # what other libraries call: they see a switch, and never the engine
    "demo": SHARED | {"replay", "app", "__init__"},  # a program of the kind that users write, and who watches it
    "testing": SHARED | PORTS | {"policy", "redis", "runner", "replay", "runtime", "app"},
    "__init__": SHARED | PORTS | {"policy", "runner", "replay", "app", "tracking", "watch"},
}
LAYER_EXCEPTIONS = {
    ("failpoints", "testing"): "only in a child process whose environment a crash test has armed",
}
# Upwards for type checkers only: what a part was made by, or is handed, and never imports when it runs.
TYPES_ONLY = {
    ("sources", "runtime"): "a Log belongs to the runtime of the App that made it",
    ("runner", "app"): "a process runs the App it is handed",
    ("runner", "runtime"): "what is supervised belongs to the runtime it is handed",
    ("watch", "app"): "health and metrics are of the App they are handed",
    ("subscription", "sinks"): "a delivery holds the sink it is handed",
    ("subscription", "mirrors"): "a mirror of letters is held as it is handed",
    ("subscription", "sources"): "an intake holds the broker it is handed",
    ("subscription", "store"): "a handler holds the place for its state that it is handed",
    ("sources", "sinks"): "a broker that events come from may take some, too",
    ("replay", "app"): "a rehearsal runs the functions of the App it is handed",
}
BACKENDS = {"store.sqlite", "store.postgres", "store.memory", "redis", "kafka", "rocksdb"}
MAY_NAME_A_BACKEND = {"store", "runtime", "testing"}  # everybody else sees the ports
# What is imported only by the function that opens such a store or such connections may import its driver at the start.
# An integration is imported by a program that has that library already.
DRIVERS = {
    "store/postgres/": {"psycopg", "psycopg_pool"},
    "redis/reading.py": {"redis"},
    "redis/ordered.py": {"redis"},
    "redis/group.py": {"redis"},
    "rocksdb/folder.py": {"rocksdict"},
    "testing/sim/streams.py": {"redis"},
    "redis/sending.py": {"redis"},
    "redis/health.py": {"redis"},
    "kafka/health.py": {"confluent_kafka"},
    "kafka/reading.py": {"confluent_kafka"},
    "kafka/sending.py": {"confluent_kafka"},
    "kafka/trouble.py": {"confluent_kafka"},
    "redis/letters.py": {"redis"},
    "sinks/pool.py": {"aiohttp", "multidict", "yarl"},
    "integrations/celery.py": {"celery"},
    "integrations/rq.py": {"rq"},
    "integrations/dramatiq.py": {"dramatiq"},
}

IMPURE = {
    "asyncio", "concurrent", "io", "logging", "os", "pathlib", "random", "secrets", "socket", "sqlite3", "subprocess",
    "threading", "time", "uuid",
}  # fmt: skip
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}

# Where an `except Exception` that does not raise again is right.
BROAD_EXCEPT = {
    "runner/call.py": "the user's function; whatever it raises becomes an outcome",
    "runner/supervise.py": "a subscription that fails must not take the others with it",
    "store/sqlite/careful.py": "the user's function, that ended the transaction: it becomes an outcome later",
    "store/sqlite/own_lock.py": "looks at objects of the user, of any library; a failure means: not that one",
    "observe/": "a listener that raises never harms processing",
    "cli/__init__.py": "the last stop before the user, who gets a sentence and an exit code",
    "cli/completion.py": "a line that is being typed is no place for an error: nothing is offered",
    "runner/wake.py": "a timer has nobody above it: the error goes to the task that waits",
    "runner/deliver.py": "a sink; whatever it raises becomes an outcome of what it was given",
    "runner/probe.py": "a sink; whatever it raises when it is asked means that it is not well",
    "policy/rules.py": "the user's keep_if; any failure of it means: keep",
    "sinks/batching.py": "the user's function of one event: its failure is that event's, not the batch's",
    "tracking/track.py": "inside quiet() nothing is raised, whatever it is: that is what it promises",
    "tracking/flight.py": "a store is opened beside us; whatever is wrong with it is told to whoever waits",
    "store/groups.py": "hands the error to each caller whose append was in the group, or who asked for the job",
}


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Relative to the package for our source, to the repository for the rest."""
        return str(self.path.relative_to(PACKAGE if PACKAGE in self.path.parents else ROOT))

    @property
    def dotted(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def part(self) -> str:
        return self.dotted.split(".")[0]

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


@cache
def modules(folder: Path) -> tuple[Module, ...]:
    texts = ((path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py")))
    gc.disable()  # a million nodes that stay: looking through them for garbage takes longer than to parse
    try:
        return tuple(Module(path, text, ast.parse(text, str(path))) for path, text in texts)
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All of them, in the order of `ast.walk`: most rules look at each."""
    return tuple(ast.walk(tree))


def source() -> tuple[Module, ...]:
    return modules(PACKAGE)


def suite() -> tuple[Module, ...]:
    return modules(ROOT / "tests")


def everything() -> tuple[Module, ...]:
    return source() + suite() + modules(ROOT / "examples") + modules(ROOT / "bench")


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Each imported dotted name; `from a import b` gives `a.b`, which may be a module or a name in one."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def imports_at_start(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """The imports that run when the module is imported: not those in functions or for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(ast.Module(body=[node], type_ignores=[]))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_at_start(ast.Module(body=node.orelse, type_ignores=[]))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from imports_at_start(node)


def imports_for_types(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(ast.Module(body=node.body, type_ignores=[]))


def our_imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    for node, name in imports(module.tree):
        if name.startswith("redrive."):
            inner = name.removeprefix("redrive.")
            first = inner.split(".")[0]
            is_module = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
            yield node, inner if is_module else "__init__"


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def check_none(found: list[str], advice: str = "") -> None:
    """All of them, one per line: pytest would shorten the list."""
    assert not found, "\n".join(["", *dict.fromkeys(found), advice])


def test_every_module_of_the_package_has_its_place_in_the_layers() -> None:
    homeless = sorted({module.part for module in source()} - set(LAYERS))
    check_none(homeless, "add it to LAYERS, as low as it will go")


def test_imports_only_go_down_the_layers() -> None:
    wrong = []
    for module in source():
        allowed = LAYERS.get(module.part, set()) | {module.part}
        for_types = [node for node, _ in imports_for_types(module.tree)]
        for node, name in our_imports(module):
            target = name.split(".")[0]
            step = (module.part, target)
            excused = step in LAYER_EXCEPTIONS or (step in TYPES_ONLY and node in for_types)
            if target not in allowed and not excused:
                wrong.append(f"{module.at(node)}: {module.part} must not import {target}")
    check_none(wrong)


def test_backends_never_import_each_other_and_others_see_only_the_ports() -> None:
    wrong = []
    for module in source():
        home = next((backend for backend in BACKENDS if f"{module.dotted}.".startswith(f"{backend}.")), None)
        for node, name in our_imports(module):
            target = next((backend for backend in BACKENDS if f"{name}.".startswith(f"{backend}.")), None)
            if target is not None and target != home and (home is not None or module.part not in MAY_NAME_A_BACKEND):
                wrong.append(f"{module.at(node)}: {module.dotted} must not import {target}")
    check_none(wrong)


def test_the_policy_is_pure() -> None:
    wrong = [
        f"{module.at(node)}: {name}"
        for module in source()
        if module.part == "policy"
        for node, name in imports(module.tree)
        if name.split(".")[0] in IMPURE
    ]
    check_none(wrong, "now, dice and the rest of the world are arguments")


def drivers(module: Module) -> set[str]:
    return {name for folder, names in DRIVERS.items() if module.name.startswith(folder) for name in names}


def test_a_driver_is_loaded_by_who_opens_such_a_store() -> None:
    code = "import sys, redrive, redrive.runtime, redrive.cli; redrive.App('postgresql://x'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    names = {name for found in DRIVERS.values() for name in found}
    assert not names & set(loaded)


def test_a_store_and_a_tracker_are_loaded_by_who_uses_them() -> None:
    code = "import sys, redrive; redrive.App('shop.db').log('orders'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    dear = ("redrive.store.sqlite", "redrive.store.append", "redrive.tracking.tracker", "redrive.policy.healing")
    assert not set(dear) & set(loaded), "an import of redrive takes as long as what it loads"


def test_the_core_needs_nothing_but_its_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]} | {"redrive", "__future__"}
    allowed |= sys.stdlib_module_names
    wrong = [
        f"{module.at(node)}: {name}"
        for module in source()
        for node, name in imports_at_start(module.tree)
        if name.split(".")[0] not in allowed and name.split(".")[0] not in drivers(module)
    ]
    check_none(wrong, "import what is optional inside the function that needs it")


def test_no_module_is_too_long() -> None:
    wrong = [module.name for module in source() if len(module.text.splitlines()) > MODULE_LINES_MAX]
    check_none(wrong)


@pytest.mark.filterwarnings("always")
def test_a_module_over_the_soft_limit_is_mentioned() -> None:
    sizes = {module.name: len(module.text.splitlines()) for module in source()}
    large = {name: count for name, count in sizes.items() if count > MODULE_LINES_GOOD}
    if large:
        warnings.warn(f"over {MODULE_LINES_GOOD} lines: {large}", stacklevel=1)
    assert len(large) < len(sizes) / 4, f"the soft limit has become the habit: {large}"


def test_no_function_is_too_long() -> None:
    wrong = [
        f"{module.at(node)}: {node.name} has {count} lines"
        for module in source()
        for node in functions(module.tree)
        if (count := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    check_none(wrong)


def public_methods(node: ast.ClassDef) -> set[str]:
    """Properties are not counted: they are how an immutable value shows its parts."""
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        method.name
        for method in methods
        if not method.name.startswith("_") and not any("property" in ast.unparse(d) for d in method.decorator_list)
    }


def test_no_class_has_too_many_public_methods() -> None:
    wrong = [
        f"{module.at(node)}: {node.name} has {sorted(public)}"
        for module in source()
        for node in nodes(module.tree)
        if isinstance(node, ast.ClassDef) and len(public := public_methods(node)) > PUBLIC_METHODS_MAX
    ]
    check_none(wrong)


def test_every_module_says_what_it_is_for_in_a_few_lines() -> None:
    wrong = []
    for module in everything():
        text = ast.get_docstring(module.tree)
        if not text or len(text.splitlines()) > DOCSTRING_LINES_MAX:
            wrong.append(f"{module.name}: {'no docstring' if not text else 'docstring too long'}")
    check_none(wrong)


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in kinds)


def test_no_failure_is_swallowed_by_a_broad_except() -> None:
    wrong = [
        module.at(node)
        for module in source()
        for node in nodes(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and is_broad(node)
        and not isinstance(node.body[-1], ast.Raise)
        and not module.name.startswith(tuple(BROAD_EXCEPT))
    ]
    check_none(wrong, "catch what you mean, raise it again, or add the module to BROAD_EXCEPT with a reason")


def test_nothing_is_loaded_that_could_run_code() -> None:
    wrong = []
    for module in everything():
        for node, name in imports(module.tree):
            if name.split(".")[0] in FORBIDDEN_IMPORTS and module not in modules(ROOT / "bench"):
                wrong.append(f"{module.at(node)}: import {name}")
        called = [node.func for node in nodes(module.tree) if isinstance(node, ast.Call)]
        wrong += [module.at(name) for name in called if isinstance(name, ast.Name) and name.id in FORBIDDEN_CALLS]
    check_none(wrong)


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
    unfinished = "NotImplemented" + "Error"
    pages = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in (ROOT / "docs").rglob("*.md")]
    wrong = []
    for name, text in [*((module.name, module.text) for module in everything()), *pages]:
        for number, line in enumerate(text.splitlines(), 1):
            if words.search(line) or unfinished in line:
                wrong.append(f"{name}:{number}: {line.strip()}")
    check_none(wrong)


def test_no_test_sleeps_skips_or_expects_to_fail() -> None:
    wrong = []
    for module in suite():
        wrong += [module.at(node) for node, name in imports(module.tree) if name == "time.sleep"]
        for node in nodes(module.tree):
            if isinstance(node, ast.Attribute):
                dotted = ast.unparse(node)
                if dotted == "time.sleep" or re.fullmatch(r"pytest\.(mark\.)?(skip|skipif|xfail|importorskip)", dotted):
                    wrong.append(f"{module.at(node)}: {dotted}")
    check_none(wrong)


def proves_something(function: ast.AST, helpers: dict[str, ast.AST], seen: frozenset[str] = frozenset()) -> bool:
    """Whether it asserts, expects an exception, or calls a helper that does; `check_…` is taken at its word."""
    for node in nodes(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            last = called.split(".")[-1]
            if called in ("pytest.raises", "pytest.warns") or last.startswith(("check_", "assert_")):
                return True
            helper = helpers.get(last)
            if helper is not None and last not in seen and proves_something(helper, helpers, seen | {last}):
                return True
    return False


def test_every_test_proves_something() -> None:
    wrong = []
    for module in suite():
        helpers: dict[str, ast.AST] = {node.name: node for node in functions(module.tree)}
        named = [node for node in functions(module.tree) if node.name.startswith("test_")]
        wrong += [f"{module.at(node)}: {node.name}" for node in named if not proves_something(node, helpers)]
    check_none(wrong)


def test_the_examples_in_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example may use an `app` and the logs that the documentation always uses."""
    monkeypatch.chdir(tmp_path)
    wrong, attempted = [], 0
    for number, module in enumerate(module for module in source() if ">>> " in module.text):
        app = redrive.App(f"{number}.db")
        logs = {name: app.log(name) for name in ("orders", "payments", "logins", "alerts")}
        name = f"redrive.{module.dotted}".removesuffix(".__init__")
        result = doctest.testmod(importlib.import_module(name), extraglobs={"app": app, **logs})
        app.close()
        attempted += result.attempted
        wrong += [f"{module.name}: {result.failed} failed"] if result.failed else []
    check_none(wrong)
    assert attempted > 0


def test_every_exception_to_the_rules_is_still_needed() -> None:
    names = [module.name for module in source()]
    used = {(module.part, name.split(".")[0]) for module in source() for _, name in our_imports(module)}
    assert (set(LAYER_EXCEPTIONS) | set(TYPES_ONLY)) - used == set(), "remove it from LAYER_EXCEPTIONS or TYPES_ONLY"
    planned = {"runner/call.py", "runner/supervise.py", "observe/", "cli/__init__.py"}
    stale = [prefix for prefix in set(BROAD_EXCEPT) - planned if not any(name.startswith(prefix) for name in names)]
    check_none(stale, "remove it from BROAD_EXCEPT")


def test_the_helpers_of_this_file_see_what_they_should() -> None:
    tree = ast.parse(
        """
import a
from b import c
if TYPE_CHECKING:
    import d
else:
    import e
try:
    import f
except ImportError:
    import g
class K:
    import h
    def open(self): import i
    def _hidden(self): ...
    @property
    def shown(self): ...
try: ...
except (OSError, Exception): raise
def helper(): assert True
def test_one(): helper()
def test_two(): helper
"""
    )
    functions_by_name: dict[str, ast.AST] = {node.name: node for node in functions(tree)}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    assert [name for _, name in imports_at_start(tree)] == ["a", "b.c", "e", "f", "g", "h"]
    assert [name for _, name in imports_for_types(tree)] == ["d"]
    assert {name for _, name in imports(tree)} == {"a", "b.c", "d", "e", "f", "g", "h", "i"}
    assert [public_methods(node) for node in classes] == [{"open"}]
    assert [is_broad(handler) for handler in handlers] == [False, True]
    assert proves_something(functions_by_name["test_one"], functions_by_name)
    assert not proves_something(functions_by_name["test_two"], functions_by_name)
