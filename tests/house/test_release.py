"""A release is one row: appended to an engine's releases.py, it is planned by name, listed, and the newest.

Each test starts Python with the engine's own source and one line more in it, and looks at what a user sees.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROW = 'Change("{release}", {rule}, {value}, "a toy"),'
START = """
import sys
from importlib.abc import Loader
from importlib.util import module_from_spec, spec_from_loader

class Source(Loader):
    def exec_module(self, module):
        exec(compile(sys.stdin.read(), "releases.py", "exec"), module.__dict__)

name = sys.argv[1]
spec = spec_from_loader(name, Source())
sys.modules[name] = module = module_from_spec(spec)
spec.loader.exec_module(module)
from hybridcalc.cli.app import main
sys.argv = ["hybridcalc", *sys.argv[2:]]
main()
"""
PLAN = {
    "sglang": ("plan", "qwen3-next-80b-a3b", "--tp", "4", "--rest", "20GiB", "-L", "9216"),
    "vllm": ("plan", "qwen3-next-80b-a3b", "--engine", "vllm", "--tensor-parallel-size", "4", "--available", "20GiB",
             "-L", "9216", "--max-num-seqs", "64"),
    "llamacpp": ("plan", "qwen3-next-80b-a3b", "--engine", "llama.cpp", "--ctx-size", "9216", "-L", "9216"),
}  # fmt: skip
NEWEST = {"sglang": ("0.5.23", "SGLang"), "vllm": ("0.33.0", "vLLM"), "llamacpp": ("b11549", "llama.cpp")}
NEXT = {"llamacpp": "b99999"}
"""Versions that come next; 9.9.9 where none is here."""


def row(engine: str, *, rule: str = "RECORDED", value: object = True) -> str:
    """A change that the release after the newest brings."""
    return ROW.format(release=NEXT.get(engine, "9.9.9"), rule=rule, value=value)


def hybridcalc(engine: str, last: str, *words: str) -> str:
    """What a command prints where the engine's releases end with the row ``last``."""
    name = f"hybridcalc.engines.{engine}.releases"
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    end = source.index("\n)", source.index("\nCHANGES")) + 1
    done = subprocess.run(
        [sys.executable, "-c", START, name, *words],
        input=f"{source[:end]}    {last}\n{source[end:]}",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", PLAN)
def test_a_release_that_changed_nothing_is_one_row(engine: str) -> None:
    """Planned by its name with the rules of the one before, and meant where no release is named."""
    last, newest = row(engine), NEWEST[engine][0]
    following = NEXT.get(engine, "9.9.9")
    named = json.loads(hybridcalc(engine, last, *PLAN[engine], "--engine-version", following, "--json"))
    before = json.loads(hybridcalc(engine, last, *PLAN[engine], "--engine-version", newest, "--json"))
    meant = json.loads(hybridcalc(engine, last, *PLAN[engine], "--json"))
    versions = tuple(figures["engine_version"] for figures in (named, meant, before))
    assert versions == (following, following, newest)
    for figures in (named, before, meant):
        del figures["engine_version"], figures["arguments"], figures["steps"]
    assert named == before == meant  # advice as well: nothing vanishes with the next release


@pytest.mark.parametrize("engine", PLAN)
def test_a_release_is_listed(engine: str) -> None:
    """By --version, and by what a release that is not known is told."""
    title = NEWEST[engine][1]
    assert f"{title} {NEXT.get(engine, '9.9.9')}" in hybridcalc(engine, row(engine), "--version")


@pytest.mark.parametrize(
    ("engine", "rule", "symbol", "before", "after"),
    [
        ("sglang", "padding_slot_charged", "state charge", "(K + 1) x P + rings = 526 x 19,316,736",
         "K x P = 526 x 19,316,736"),
        ("vllm", "null_block_reserved", "blocks",
         "available // block bytes = 21,474,836,480 // 3,932,160; the check counts 5,460",
         "available // block bytes = 21,474,836,480 // 3,932,160"),
    ],
)  # fmt: skip
def test_a_change_is_one_row(engine: str, rule: str, symbol: str, before: str, after: str) -> None:
    """What the row says holds from its release on, and not before; a note says that no results were recorded of it."""

    def planned(version: str) -> tuple[str, list[str]]:
        words = (*PLAN[engine], "--json", "--engine-version", version)
        document = json.loads(hybridcalc(engine, row(engine, rule=f'"{rule}"', value=False), *words))
        step = next(step for step in document["steps"] if step["symbol"] == symbol)
        return f"{step['formula']} = {step['with_numbers']}", document["notes"]

    newest, title = NEWEST[engine]
    note = f"{title} 9.9.9: rules read in its source, not checked by its results"
    assert planned(newest)[0] == before
    assert note not in planned(newest)[1]
    assert planned("9.9.9")[0] == after
    assert note in planned("9.9.9")[1]
