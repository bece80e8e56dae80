"""Do the tests notice when the code is wrong? A seeded sample of small faults, each tried on tests that run its line.

    python tools/mutate.py --map            which tests run which line: the whole suite once, under coverage
    python tools/mutate.py --map FILE ...   the same for these test files alone, the rest of the map as it is
    python tools/mutate.py --sample 300     the sample; exit 1 when fewer than 90 % of it are noticed
    python tools/mutate.py --only hybridcalc/formulas.py:31 --sample 0

The sample stays what it is when other code changes: a seed puts all faults in an order by what is written there. A run
that is ended early has tried the beginning of it, which is a sample too.

A fault is one change of one place: a comparison's bound moved, `and` for `or`, an operator or a whole number off by
one, a condition turned round, an entry missing from a table. It counts as noticed when a test fails or does not end.
Faults that no test should notice, since they change nothing or nothing that a rule speaks of, stand in
tools/mutants.txt with the reason.

Each fault gets a process of its own that has pytest and the heavy packages loaded already (a fork of this one), puts
the changed source in place of its module as it is imported, and stops at the first test that fails. Before the sample,
the unchanged source of some of its modules is tried in the same way: a test that fails there proves nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("formulas.py", "architecture", "engines", "diagnosis", "checks")
EQUIVALENT = ROOT / "tools" / "mutants.txt"
MAP = ROOT / ".mutation" / "lines.json"
LEAST_NOTICED = 0.9
MOST_TESTS = 80
"""Tests tried on one fault, and as many of each of the files nearest to it; three times as many where no line runs."""
OF_TABLES = (
    "tests/engines/test_releases.py::",
    "tests/engines/test_flag_bounds.py::",
    "tests/architecture/test_gguf.py::",
)
"""Tests that read the tables of modules without running a line of theirs."""
FIRST, NEAREST = 12, 3
"""Of these so many are tried first, in each of so many test files whose names are most like the module's: they notice
most faults, and the other files need not be loaded.
"""
CONTROLS = 3
"""Modules of the sample that are first tried as they are."""
LOADED = ("hypothesis", "pytest", "rich.console", "typer", "yaml", "pydantic", "jsonschema", "torch")
"""What tests import that is not ours."""
SECONDS, TIMES = 120, 10
"""A fault whose tests take longer than this, and than ten times what they took when mapped, has made them hang: it is
noticed."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


class Fault(NamedTuple):
    """One change: of which file, at which line, the how-manyth of its places, what was and is written there, the whole
    line, the function it is in, and how many faults of that function are written alike before it.
    """

    path: str
    line: int
    number: int
    before: str
    after: str
    text: str
    function: str
    alike: int

    @property
    def name(self) -> str:
        """How the fault is named in tools/mutants.txt."""
        return f"{self.path}: {self.before} -> {self.after} in `{self.text}`"

    def turn(self, seed: int) -> bytes:
        """Where it stands in the sample of a seed: the same whatever is written elsewhere."""
        return hashlib.sha256(f"{seed} {self.name} {self.function} {self.alike}".encode()).digest()


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """The faults of one node of a syntax tree, each a changed copy of it."""
    changed: Any
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        changed = copy.deepcopy(node)
        changed.ops[0] = COMPARISONS[type(node.ops[0])]()
        yield changed
    elif isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            return
        changed = copy.deepcopy(node)
        changed.op = OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield ast.copy_location(ast.Constant(value), node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.IfExp | ast.If):
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return  # what it loads is of no account when the program runs
        changed = copy.copy(node)
        changed.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        yield changed
    elif (
        isinstance(node, ast.Tuple | ast.List | ast.Set)
        and len(node.elts) > 1
        and isinstance(node.elts[-1], ast.Constant)
    ):
        changed = copy.copy(node)
        changed.elts = node.elts[:-1]
        yield changed


def sites(tree: ast.Module) -> list[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every place of a module that can be changed: the parent, its field, the place in it, and the changed node."""
    found = []
    for parent in ast.walk(tree):
        if isinstance(parent, ast.JoinedStr | ast.arguments | ast.Subscript | ast.FormattedValue):
            continue  # widths of texts, defaults that every caller gives, and types
        if isinstance(parent, ast.keyword) and parent.arg in ("strict", "frozen", "slots"):
            continue  # what they forbid is never done
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for place, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    found += [(parent, field, place, changed) for changed in changes(child)]
    return found


def put(site: tuple[ast.AST, str, int | None, ast.AST]) -> ast.AST:
    """Make the change in the tree, and return what stood there."""
    parent, field, place, changed = site
    if place is None:
        before: ast.AST = getattr(parent, field)
        setattr(parent, field, changed)
    else:
        before = getattr(parent, field)[place]
        getattr(parent, field)[place] = changed
    return before


def shown(node: ast.AST) -> str:
    """A place as it is written, on one line."""
    text = ast.unparse(node.test if isinstance(node, ast.If | ast.IfExp) else node)
    return " ".join(text.split())[:100]


def faults(path: Path) -> list[Fault]:
    """Every fault of a file."""
    code = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(code), code.splitlines()
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found, met = [], Counter[Fault]()
    for number, (parent, field, place, changed) in enumerate(sites(tree)):
        value = getattr(parent, field)
        before = value if place is None else value[place]
        line = getattr(before, "lineno", getattr(parent, "lineno", 1))
        own = str(path.relative_to(ROOT))
        function = ".".join(scope.name for scope in scopes if scope.lineno <= line <= (scope.end_lineno or line))
        fault = Fault(own, line, number, shown(before), shown(changed), lines[line - 1].strip(), function, 0)
        written = fault._replace(line=0, number=0)
        found.append(fault._replace(alike=met[written]))
        met[written] += 1
    return found


def source(fault: Fault) -> str:
    """The whole module with the fault in it."""
    tree = ast.parse((ROOT / fault.path).read_text(encoding="utf-8"))
    put(sites(tree)[fault.number])
    return ast.unparse(ast.fix_missing_locations(tree))


class Loader(importlib.abc.SourceLoader):
    """Loads the changed source in place of its module."""

    def __init__(self, fault: Fault, *, changed: bool) -> None:
        self.path = str(ROOT / fault.path)
        self.text = source(fault).encode() if changed else Path(self.path).read_bytes()

    def get_data(self, path: Any) -> bytes:
        """The changed source."""
        return self.text

    def get_filename(self, fullname: str) -> str:
        """Where the module is from."""
        return self.path


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module that is changed, and no other."""

    def __init__(self, fault: Fault, *, changed: bool) -> None:
        self.module = fault.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.loader = Loader(fault, changed=changed)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """The changed module's place."""
        if name != self.module:
            return None
        path = self.loader.path
        places = [str(Path(path).parent)] if path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(name, path, loader=self.loader, submodule_search_locations=places)


def begun(fault: Fault, tests: list[str], *, changed: bool = True) -> int:
    """The process that runs the tests with the fault in place (or with the module as it is): it ends in 1 when one of
    them fails.
    """
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os.setpgid(0, 0)
        try:
            import pytest

            sys.meta_path.insert(0, Finder(fault, changed=changed))
            options = "-x -q -n 0 -p no:cacheprovider --no-header -W ignore::pytest.PytestAssertRewriteWarning"
            code = int(pytest.main([*options.split(), *tests]))
        except BaseException:  # whatever a fault breaks, it is noticed
            code = 1
        os._exit(0 if code == 0 else 1)
    return child


class Trial(NamedTuple):
    """A fault whose tests are running, those to run when none of these fails, and when these count as hanging."""

    fault: Fault
    later: list[str]
    ends: float


def results(
    trials: Iterable[tuple[Fault, tuple[list[str], list[str]]]],
    known: dict[str, Any],
    jobs: int,
    *,
    changed: bool = True,
) -> Iterator[tuple[Fault, bool]]:
    """Every fault and whether a test of its parts fails or does not end, ``jobs`` of them at once."""
    waiting, running = ((fault, *parts) for fault, parts in trials), dict[int, Trial]()
    second = list[tuple[Fault, list[str], list[str]]]()
    while True:
        while len(running) < jobs and (trial := second.pop() if second else next(waiting, None)) is not None:
            fault, tests, later = trial
            if not tests:
                yield fault, False
                continue
            usual = sum(float(known["seconds"].get(name, 1.0)) for name in tests)
            ends = time.monotonic() + max(SECONDS, TIMES * usual)
            running[begun(fault, tests, changed=changed)] = Trial(fault, later, ends)
        if not running:
            return
        time.sleep(0.02)
        for child, (fault, later, ends) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if not done and time.monotonic() > ends:
                os.killpg(child, signal.SIGKILL)
                done, status = os.waitpid(child, 0)
            if done:
                del running[child]
                if status == 0 and later:
                    second.append((fault, later, []))
                else:
                    yield fault, status != 0


def make_map(tests: list[str]) -> None:
    """Run the suite, or some of its files, under coverage and keep for every line the tests that run it."""
    MAP.parent.mkdir(exist_ok=True)
    data = MAP.parent / "coverage"
    data.unlink(missing_ok=True)
    included = ",".join(
        f"*/hybridcalc/{name}" if name.endswith(".py") else f"*/hybridcalc/{name}/*" for name in PACKAGES
    )
    settings = MAP.parent / "coveragerc"
    settings.write_text(f"[run]\ninclude = {included}\ndata_file = {data}\n")
    report = MAP.parent / "times.xml"
    options = "-m pytest -n 2 -p no:cacheprovider --cov --cov-context=test --cov-report="
    command = [sys.executable, *options.split(), f"--cov-config={settings}", f"--junitxml={report}", *tests]
    subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "COVERAGE_FILE": str(data)})
    from coverage import CoverageData

    passed = durations(report)
    covered = CoverageData(str(data))
    covered.read()
    before = json.loads(MAP.read_text()) if tests else {"seconds": {}, "lines": {}}
    lines: dict[str, dict[str, list[str]]] = {
        file: {line: [name for name in names if name.partition("::")[0] not in tests] for line, names in found.items()}
        for file, found in before["lines"].items()
    }
    for file in covered.measured_files():
        known = lines.setdefault(str(Path(file).relative_to(ROOT)), {})
        for line, contexts in covered.contexts_by_lineno(file).items():
            names = {name.partition("|")[0] for name in contexts}.intersection(passed)
            if names:
                known[str(line)] = sorted(names.union(known.get(str(line), ())))
    MAP.write_text(json.dumps({"seconds": before["seconds"] | passed, "lines": lines}))


def durations(report: Path) -> dict[str, float]:
    """Seconds of every test that passed, from the report of the suite."""
    import xml.etree.ElementTree as ElementTree

    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            continue
        path = case.get("classname", "").replace(".", "/") + ".py"
        found[f"{path}::{case.get('name', '')}"] = float(case.get("time", 0))
    return found


def tests_of(fault: Fault, known: dict[str, Any]) -> list[str]:
    """The tests that run the line of a fault: those of the test files nearest to its module, and of each other file in
    turn the quickest.

    A line of a module's own level runs when it is imported, in no test: then those of its file, or of its folder, and
    those that read its tables.
    """
    lines = known["lines"].get(fault.path, {})
    names, most, tables = set(lines.get(str(fault.line), ())), MOST_TESTS, set[str]()
    if not names:
        folder = fault.path.rpartition("/")[0]
        near = [lines] if lines else [found for path, found in known["lines"].items() if path.startswith(folder)]
        names, most = {name for found in near for tests in found.values() for name in tests}, 3 * MOST_TESTS
        tables = {name for name in known["seconds"] if name.startswith(OF_TABLES)}
    seconds = {name: float(known["seconds"].get(name, 1.0)) for name in names | tables}
    files: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (seconds[name], name)):
        files.setdefault(name.partition("::")[0], []).append(name)
    in_turn = [name for turn in zip_longest(*files.values()) for name in turn if name is not None]
    own = [name for file in nearest(fault, files) for name in files[file][:most]]
    return sorted(tables.union(in_turn[:most], own), key=lambda name: (seconds[name], name))


def nearest(fault: Fault, files: Iterable[str]) -> list[str]:
    """The test files whose names are most like the module's."""
    words = set(re.split(r"\W|_", fault.path))
    return sorted(sorted(files), key=lambda file: -len(words.intersection(re.split(r"\W|_", file))))[:NEAREST]


def in_parts(fault: Fault, tests: list[str]) -> tuple[list[str], list[str]]:
    """The tests to begin with, and the others."""
    files = nearest(fault, {name.partition("::")[0] for name in tests})
    near = [[name for name in tests if name.startswith(f"{file}::")][:FIRST] for file in files]
    begin = [name for names in near for name in names]
    return begin, [name for name in tests if name not in begin]


def equivalent() -> set[str]:
    """The faults that no test should notice: lines of tools/mutants.txt, each above its reason, which is indented."""
    if not EQUIVALENT.exists():
        return set()
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith(("#", " "))}


def main() -> int:
    """Try the sample, and say what was not noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--map", nargs="*", metavar="FILE", help="run the suite, or some files of it, under coverage first"
    )
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="faults to try (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (default 1)")
    parser.add_argument("--only", action="append", default=[], metavar="FILE[:LINE]", help="every fault there")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="faults tried at once (default 2)")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="a part of the code alone")
    asked = parser.parse_args()
    os.chdir(ROOT)
    if asked.map is not None or not MAP.exists():
        make_map(asked.map if asked.map and MAP.exists() else [])
    known = json.loads(MAP.read_text())
    places = [ROOT / "hybridcalc" / name for name in asked.package or PACKAGES]
    modules = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    every = [fault for path in modules for fault in faults(path)]
    harmless = equivalent()
    if not asked.package and (stale := harmless.difference(fault.name for fault in every)):
        print("\n".join(f"tools/mutants.txt names no fault: {name}" for name in sorted(stale)))
        return 2
    chosen = sorted(every, key=lambda fault: fault.turn(asked.seed))[: asked.sample]
    for place in asked.only:
        file, _, line = place.partition(":")
        chosen += [fault for fault in every if fault.path == file and (not line or fault.line == int(line))]
    for name in LOADED:  # before the forks, which then start at once
        with suppress(ImportError):
            importlib.import_module(name)
    parts = {fault: in_parts(fault, tests_of(fault, known)) for fault in chosen if fault.name not in harmless}
    gc.freeze()  # else each fork walks the whole map
    controls = [(fault, (first, list[str]())) for fault, (first, _) in parts.items() if first][:CONTROLS]
    for fault, failed in results(controls, known, asked.jobs, changed=False):
        if failed:
            print(f"{fault.path}: its tests fail on the code as it is: {', '.join(parts[fault][0][:3])} ...")
            return 2
    tried = missed = 0
    for fault, seen in results(parts.items(), known, asked.jobs):
        tried += 1
        if not seen:
            missed += 1
            many = sum(map(len, parts[fault]))
            print(f"{fault.path}:{fault.line}: {fault.before} -> {fault.after}  ({many} tests)", flush=True)
        if tried % 20 == 0:
            print(f"{tried} tried, {tried - missed} noticed", file=sys.stderr, flush=True)
    share = 1 - missed / max(tried, 1)
    print(f"{tried - missed} of {tried} faults noticed ({100 * share:.0f} %), of {len(every):,} possible")
    return 0 if share >= LEAST_NOTICED else 1


if __name__ == "__main__":
    sys.exit(main())
