"""Errors are objects: what a room needs to know of one is a field, and no text of a message is taken apart."""

from __future__ import annotations

import ast
import traceback
from pathlib import Path

import pytest

from hybridcalc.architecture.presets import load_model
from hybridcalc.engines import ENGINES
from hybridcalc.errors import (
    AmbiguousFlag,
    HybridcalcError,
    InputError,
    MisspeltFlag,
    NotModelled,
    Refusal,
    Write,
    fix_with,
    flags_of,
)
from hybridcalc.findings import Finding

HOUSE = Path(__file__).resolve().parent.parent.parent / "hybridcalc"
TEXTS = frozenset({"message", "fix", "reason", "args"})
SEARCHES = frozenset({
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index",
    "search", "match", "fullmatch", "findall", "finditer",
})  # fmt: skip
GRAMMAR = {"checks/words.py"}
"""A fix of one value, `write 21` or `write --tp-size 8`, is the text that an edit puts in the file."""


def text_of(node: ast.AST) -> bool:
    """Whether an expression is the text of an error or finding: ``x.message``, ``str(error)``."""
    if isinstance(node, ast.Attribute):
        return node.attr in TEXTS and isinstance(node.value, ast.Name | ast.Attribute)
    name = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args else None
    return isinstance(name, ast.Name) and name.id in ("error", "failure", "refusal")


def taken_apart(tree: ast.AST) -> list[int]:
    """The lines where a text is searched: ``"..." in x.message``, ``x.fix.startswith(...)``, ``search(..., x.fix)``."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            found = text_of(node.comparators[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            found = text_of(node.func.value) or any(map(text_of, node.args))
        else:
            continue
        lines += [node.lineno] if found else []
    return lines


def test_no_message_is_taken_apart() -> None:
    found = {
        str(path.relative_to(HOUSE)): lines
        for path in HOUSE.rglob("*.py")
        if (lines := taken_apart(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert set(found) <= GRAMMAR, found


@pytest.mark.parametrize(
    "text",
    [
        '" could be " in error.message',
        "finding.fix.startswith('write')",
        "re.search('x', str(error))",
        "e.message.partition(':')",
    ],
)
def test_the_look_finds_what_it_looks_for(text: str) -> None:
    assert taken_apart(ast.parse(text)) == [1]


def refused(engine: str, model: str, line: str) -> HybridcalcError:
    """What a launch is refused for, at its words or before memory counts."""
    try:
        _, args = ENGINES[engine].read(line.split(), {})
        ENGINES[engine].prepare(load_model(model), args)
    except HybridcalcError as error:
        return error
    pytest.fail(f"{line} is taken")


@pytest.mark.parametrize(
    ("engine", "line", "kind", "flag"),
    [
        ("sglang", "--max-mamba-cach-size 4", "misspelt flag", "--max-mamba-cach-size"),
        ("sglang", "--mamba 4", "ambiguous flag", "--mamba"),
        ("sglang", "--tp 8 stray=1", "input", "stray=1"),
        ("sglang", "--page-size=many", "input", "--page-size"),
        ("sglang", "--dp-size 2 --attn-dp-size 4", "input", "--dp-size"),
        ("vllm", "--tensor_parallel_size eight", "input", "--tensor_parallel_size"),
        ("vllm", "--speculative-config.num_speculative_tokens x", "input", "--speculative-config"),
        ("vllm", "--gpu-memory-utilisation 0.9", "misspelt flag", "--gpu-memory-utilisation"),
        ("vllm", "--attention-backend XFORMERS", "not modelled", "--attention-backend"),
        ("vllm", "--max-model-len 999999999", "refusal", ""),
    ],
)
def test_an_error_says_its_kind_and_its_flag(engine: str, line: str, kind: str, flag: str) -> None:
    error = refused(engine, "qwen3-next-80b-a3b", line)
    assert (error.kind, error.flag) == (kind, flag)


def test_a_misspelt_flag_knows_the_flag_that_is_meant() -> None:
    error = refused("sglang", "kimi-k3", "--max-mamba-cach-size 4")
    assert isinstance(error, MisspeltFlag)
    assert (error.instead, error.fix) == ("--max-mamba-cache-size", "write --max-mamba-cache-size")
    assert isinstance(refused("sglang", "kimi-k3", "--mamba 4"), AmbiguousFlag)


def test_a_refusal_that_another_release_would_not_make_names_it() -> None:
    error = refused("vllm", "bamba-9b", "")
    assert isinstance(error, Refusal)
    assert (error.rule, error.release) == ("HC043", "0.23.0")
    assert error.fix.endswith(f"use --engine-version {error.release}")


def test_what_is_not_modelled_says_what_rules_are_lacking_for() -> None:
    error = refused("vllm", "kimi-k3", "--attention-backend XFORMERS")
    assert isinstance(error, NotModelled)
    assert error.lacking == "--attention-backend XFORMERS"
    assert NotModelled("x keeps no state").lacking == "this model: x keeps no state"


def test_a_fix_that_is_one_value_says_so_as_data() -> None:
    """Its text is as ever; what is pickled and compared is plain."""
    fix = Write("--max-num-seqs", 12)
    assert fix == "write --max-num-seqs 12" and Write("", 21, ", or 17 lazily") == "write 21, or 17 lazily"
    found = Finding.of(Refusal("no", stage="solve", rule="HC044", fix=fix))
    assert (type(found.fix), found.mend) == (str, ("--max-num-seqs", "12"))
    several = Write.flags("X=1 --a 2 --b", ", or not")
    assert several == "write X=1 --a 2 --b, or not" and flags_of(several) == "X=1 --a 2 --b"
    assert fix_with(several, ": 9 requests") == "write X=1 --a 2 --b: 9 requests, or not"
    assert fix_with(Write("--a", 2, ", or 3"), ": 9") == "write --a 2: 9, or 3"
    assert (flags_of("write it"), flags_of(Write("", 21)), fix_with("use more", ": 9")) == ("", "", "use more: 9")
    assert Finding.made("HC002", "error", "no", several).mend is None
    assert Finding.made("HC002", "error", "no", Write.flags("--a 1")).mend == ("--a", "1")


def test_a_finding_carries_what_its_error_knew() -> None:
    refusal = Refusal("no", stage="solve", rule="HC001", fix="yes", flag="--tp-size", release="1.2")
    assert Finding.of(refusal) == ("HC001", "error", "no", "yes", "--tp-size", "1.2", None, "")
    assert Finding.of(InputError("no"), rule="HC071", severity="warning") == (
        "HC071",
        "warning",
        "no",
        "",
        "",
        "",
        None,
        "",
    )


def test_a_traceback_shows_what_to_write_instead() -> None:
    """Where nobody catches the error, as at a prompt of Python; a fix that is found later is the one that is shown."""
    error = InputError("no model 'x'", fix="write another")
    shown = traceback.format_exception(error)
    assert shown[-2:] == ["hybridcalc.errors.InputError: no model 'x'\n", "fix: write another\n"]
    error.fix = ""
    assert traceback.format_exception(error)[-1] == "hybridcalc.errors.InputError: no model 'x'\n"
