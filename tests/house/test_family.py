"""A family is one module: a seventh is added, and every command runs it or refuses it by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

import hybridcalc
from hybridcalc.architecture import presets
from hybridcalc.architecture.families import FAMILIES, NO_FAMILY, family_class
from hybridcalc.architecture.preset_schema import read_preset
from hybridcalc.cli import models  # noqa: F401  (its help lists the families, and is to be made before there is a seventh)
from hybridcalc.engines.sglang import sizes as sglang
from hybridcalc.engines.vllm import families as vllm
from hybridcalc.engines.vllm.families import Layer
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import InputError

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from command_line import run

PRESET = """
id: toy-7b
name: Toy-7B
architecture: {architecture}
family: toy
layers: sssasssa
state: {{num_heads: 32, width: 64}}
attention: {{kind: gqa, kv_heads: 8, head_dim: 128}}
num_attention_heads: 32
hidden_size: 4096
max_context: 32768
source: these tests
confidence: second-hand
evidence: none
"""
STATE_BYTES = 6 * (32 * 64 * 64 * 4 + 3 * 32 * 64 * 2)
"""Six layers of 32 matrices of 64 x 64 in fp32 and three columns of 2,048 channels in bf16."""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Register the family and, with the class that is asked for, its preset."""
    monkeypatch.setitem(FAMILIES, "toy", "toy_family:Toy")

    def preset(architecture: str) -> None:
        read = read_preset(PRESET.format(architecture=architecture), "toy.yaml")
        monkeypatch.setitem(presets.shipped_presets(), "toy-7b", read)
        presets._ids_by_alias.cache_clear()
        presets._ids_by_stem.cache_clear()

    yield preset
    presets._ids_by_alias.cache_clear()
    presets._ids_by_stem.cache_clear()


SGLANG_COMMANDS = {
    "ratio": "ratio toy-7b -L 8k",
    "plan": "plan toy-7b --rest 40GiB -L 8k",
    "plan of a line": "plan --rest 40GiB -L 8k -- sglang serve --model-path toy-7b",
    "crossover": "crossover toy-7b",
    "crossover with a baseline": "crossover toy-7b --baseline llama-3-8b",
    "crossover as the baseline": "crossover kimi-k3 --baseline toy-7b",
    "replayssm": "replayssm toy-7b",
    "verify": "verify toy-7b --device meta",
}
VLLM_COMMANDS = {
    "plan": "plan toy-7b --engine vllm --available 40GiB -L 8k",
    "plan of a line": "plan --available 40GiB -L 8k -- vllm serve toy-7b",
    "crossover": "crossover toy-7b --engine vllm",
    "verify": "verify toy-7b --engine vllm --device meta",
}


@pytest.mark.parametrize("line", SGLANG_COMMANDS.values(), ids=SGLANG_COMMANDS)
@pytest.mark.parametrize("architecture", ["ToyForCausalLM", "Qwen3NextForCausalLM"])
def test_an_engine_without_a_rule_refuses_the_family_by_name(
    toy: Callable[..., Any], architecture: str, line: str
) -> None:
    toy(architecture)
    ran = run(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == "error: SGLang has no rule for family toy"


@pytest.mark.parametrize("line", VLLM_COMMANDS.values(), ids=VLLM_COMMANDS)
def test_so_does_the_other_engine_and_an_unknown_class_comes_first(toy: Callable[..., Any], line: str) -> None:
    toy("Qwen3NextForCausalLM")
    ran = run(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == "error: vLLM has no rule for family toy"
    toy("ToyForCausalLM")
    ran = run(*line.split())
    assert ran.code == 1 and "vLLM 0.33.0 has no hybrid class ToyForCausalLM" in ran.out + ran.err


@pytest.mark.parametrize("line", SGLANG_COMMANDS.values(), ids=SGLANG_COMMANDS)
@pytest.mark.parametrize("architecture", ["ToyForCausalLM", "Qwen3NextForCausalLM"])
def test_with_a_row_the_engine_runs_it(
    toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, architecture: str, line: str
) -> None:
    """One line in the engine's table is all that any command needs."""
    toy(architecture)
    monkeypatch.setitem(sglang.FAMILY_RULES, "toy", sglang.FamilyRule())
    command, *words = line.split()
    ran = run(command, "--json", *words)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("line", VLLM_COMMANDS.values(), ids=VLLM_COMMANDS)
def test_with_a_row_the_other_engine_runs_it(
    toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    toy("Qwen3NextForCausalLM")

    def layer(state: Any, tp: int, drafts: int, rules: RuleSet) -> Layer:
        return vllm.Layer(((state.rows + drafts, 2048 // tp),), (state.num_heads // tp, state.width, state.width))

    monkeypatch.setitem(vllm.FAMILY_RULES, "toy", vllm.FamilyRule("TOY_ATTN", layer))
    command, *words = line.split()
    ran = run(command, "--json", *words)
    assert (ran.code, ran.err) == (0, "")


def test_its_sizes_are_those_of_its_module(toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the preset through the schema, the shapes and the engine's dtypes to the bytes that are printed."""
    toy("ToyForCausalLM")
    monkeypatch.setitem(sglang.FAMILY_RULES, "toy", sglang.FamilyRule())
    (shown,) = run("models", "show", "toy-7b", "--json").document["models"]
    assert (shown["family"], shown["state_bytes_per_slot"]) == ("toy", STATE_BYTES)
    (shared,) = run("models", "show", "toy-7b", "--tp", "4", "--json").document["models"]
    assert 4 * shared["state_bytes_per_slot"] == STATE_BYTES
    refused = run("models", "show", "toy-7b", "--tp", "5")
    assert refused.err.split("\n")[:2] == [
        "error: --tp 5 does not divide 32 toy heads",
        "       write --tp 1, 2, 4, 8, 16 or 32",
    ]


def test_presets_list_it_though_no_engine_runs_it(toy: Callable[..., Any]) -> None:
    """A listing of all models does not fall over one; what its state weighs there is unknown, not 0."""
    toy("ToyForCausalLM")
    listed = {entry["name"]: entry for entry in run("models", "--json").document["models"]}
    assert len(listed) > 50 and listed["toy-7b"]["state_bytes_per_slot"] is None
    assert run("models", "--family", "toy").out.splitlines()[1].startswith("toy-7b *  toy")
    assert "6 Toy + 2 GQA" in run("models", "show", "toy-7b").out
    assert run("slots", "toy-7b").code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("width: 64", "width: 0", "state of family toy: width: Input should be greater than or equal to 1"),
        ("width: 64", "rows: 0", "state of family toy: width: Field required"),
        ("width: 64", "width: 64, depth: 1", "state of family toy: depth: Extra inputs are not permitted"),
        (
            "family: toy",
            "family: toys",
            "family: write one of gdn, kda, mamba2, mamba1, lightning, shortconv, toy, att",
        ),
    ],
)
def test_its_fields_are_the_schema_of_its_presets(toy: Callable[..., Any], old: str, new: str, said: str) -> None:
    text = PRESET.format(architecture="ToyForCausalLM").replace(old, new)
    with pytest.raises(InputError, match=said):
        read_preset(text, "toy.yaml")


def test_every_family_says_who_it_is() -> None:
    """The registry's names are the classes' own, labels differ, and engines have rows for nothing else."""
    classes = {name: family_class(name) for name in FAMILIES}
    assert {name: state.family for name, state in classes.items()} == {name: name for name in FAMILIES}
    assert len({state.label for state in classes.values()}) == len(FAMILIES)
    for rules in (sglang.FAMILY_RULES, vllm.FAMILY_RULES):
        assert set(rules) - {NO_FAMILY} == set(FAMILIES)
    with pytest.raises(InputError, match="'mamba3' is no family of recurrent layers"):
        family_class("mamba3")


def test_the_documentation_has_every_family_and_its_sizes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "presets.md").read_text(encoding="utf-8")
    for name in FAMILIES:
        assert f"{name}: `{', '.join(size.name for size in fields(cast(Any, family_class(name))))}`" in text


def test_a_model_loads_the_module_of_its_family_alone() -> None:
    script = "import sys; from hybridcalc import load_model; load_model('kimi-k3'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    modules = {place.partition(":")[0] for place in FAMILIES.values()}
    assert modules & set(loaded) == {"hybridcalc.architecture.families.kda"}


HOLDERS = {
    "architecture/families": "the families",
    "architecture/config_json": "which family a model class is of, and its model_type",
    "engines/sglang/sizes.py": "SGLang's rows",
    "engines/vllm/families.py": "vLLM's rows, and prefill kernels by the names it has for them",
    "engines/vllm/releases.py": "from which release on its prefill kernels export states",
    "engines/vllm/pages.py": "prefill kernels by the names vLLM has for them",
    "architecture/gguf_model.py": "keys of GGUF headers, a reader a family",
    "crosscheck/sglang.py": "SGLang's own functions, which are named after families",
    "crosscheck/vllm.py": "vLLM's own functions, which are named after families",
}


def test_nothing_else_branches_on_a_family() -> None:
    """No module beside these names a family or imports its class: a branch on one is a silent default for others."""
    package = Path(hybridcalc.__file__).parent
    classes = {family_class(name).__name__ for name in FAMILIES}
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if any(where.startswith(holder) for holder in HOLDERS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Constant) and node.value in set(FAMILIES)
            imported = isinstance(node, ast.ImportFrom) and {name.name for name in node.names} & classes
            if isinstance(node, ast.expr | ast.stmt) and (named or imported):
                found.append(f"{where}:{node.lineno}")
    assert not found
