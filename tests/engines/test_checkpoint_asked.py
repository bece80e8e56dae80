"""The checkpoint that is asked for: in the launch line of a plan, beside --quantization, and by its name alone."""

import shlex

import pytest

import hybridcalc
from hybridcalc.architecture.presets import load_model, model_names, shipped_checkpoints
from hybridcalc.architecture.quantization_names import check_quantization
from hybridcalc.engines import ENGINES
from hybridcalc.engines.checkpoints import quantized_by_name
from hybridcalc.errors import HybridcalcError, InputError, ShardingError
from hybridcalc.units import GIB

CHECKPOINTS = sorted({each["id"] for name in model_names() for each in shipped_checkpoints(name)})


@pytest.mark.parametrize("engine", list(ENGINES)[:2])
def test_the_launch_of_a_plan_plans_the_same(engine: str) -> None:
    """Every checkpoint of a preset: the line that a document shows names it, and is planned to the same figures."""
    planned = 0
    for checkpoint in CHECKPOINTS:
        try:
            found = hybridcalc.plan(checkpoint, engine=engine, gpu="8xb300", length="8k").to_dict()
        except HybridcalcError:
            continue
        words = found["launch"]["argv"]
        assert checkpoint in words
        again = hybridcalc.plan(shlex.join(words), gpu="8xb300", length="8k").to_dict()
        assert {key: again[key] for key in again if key != "notes"} == {
            key: found[key] for key in found if key != "notes"
        }
        planned += 1
    assert planned > 20


def test_a_preset_is_launched_by_the_name_of_its_checkpoint() -> None:
    """Names of presets are this tool's own: no engine loads them."""
    found = hybridcalc.plan("qwen3.5-397b-a17b", tp_size=8, rest="40GiB").to_dict()
    assert "Qwen/Qwen3.5-397B-A17B" in found["launch"]["argv"]


@pytest.mark.parametrize("engine", list(ENGINES)[:2])
@pytest.mark.parametrize(("model", "ranks"), [("ibm-granite/granite-4.0-h-small-FP8", 4)])
def test_no_refusal_rests_on_a_layout_guessed_from_a_name(engine: str, model: str, ranks: int) -> None:
    """Blocks of 128 are one layout that FP8 may mean; a checkpoint with a scale a tensor starts."""
    found = ENGINES[engine].weights(load_model(model), _args(engine, tp_size=ranks))
    assert 5 * GIB < found.low < found.high
    assert [each.rule for each in found.findings] == ["HC090"]
    assert "stored in blocks it would not start: --tp 4 cuts" in found.findings[0].message
    plan = hybridcalc.plan(model, engine=engine, gpu=f"{ranks}xh200", length="64k")
    assert "HC090" in [each.rule for each in plan.findings]


def test_the_way_out_of_a_cut_block_is_one_that_helps() -> None:
    """Whole experts where nothing else is cut inside a block; else the ranks that do, alone."""
    for engine, flag in (("sglang", "--ep 8"), ("vllm", "--enable-expert-parallel")):
        with pytest.raises(ShardingError) as caught:
            ENGINES[engine].weights(load_model("Qwen/Qwen3-235B-A22B-FP8"), _args(engine, tp_size=8))
        assert caught.value.fix == f"write {ENGINES[engine].tp_flag} 1, 2 or 4; or {flag}"
        small = load_model("ibm-granite/granite-4.0-h-small")
        with pytest.raises(ShardingError) as caught:
            ENGINES[engine].weights(small, _args(engine, tp_size=8, quantization="fp8_per_block"))
        assert caught.value.fix == f"write {ENGINES[engine].tp_flag} 1"


@pytest.mark.parametrize(
    ("asked", "rules"), [("fp8", []), ("awq", ["HC091"]), ("modelopt_fp4", ["HC091"]), ("none", ["HC091"])]
)
def test_quantization_beside_a_quantised_checkpoint(asked: str, rules: list[str]) -> None:
    """What is stored counts; another kind of number is a finding, of weights and of a plan."""
    model = load_model("Qwen/Qwen3.5-397B-A17B-FP8")
    found = ENGINES["sglang"].weights(model, _args("sglang", tp_size=8, quantization=asked))
    assert [each.rule for each in found.findings] == rules
    assert found.low == ENGINES["sglang"].weights(model, _args("sglang", tp_size=8)).low
    plan = hybridcalc.plan(model, gpu="8xh200", quantization=asked)
    assert [each.rule for each in plan.findings if each.rule == "HC091"] == rules


def test_a_quantisation_that_no_engine_has_is_refused() -> None:
    """Whether or not the checkpoint is quantised already."""
    for model in ("Qwen/Qwen3.5-397B-A17B-FP8", "Qwen/Qwen3.5-397B-A17B"):
        with pytest.raises(InputError, match="'foo' is not known"):
            hybridcalc.weights(model, quantization="foo")
    check_quantization("gguf")


def _args(engine: str, **given: object) -> object:
    return ENGINES[engine].with_options(ENGINES[engine].arguments(), given)


@pytest.mark.parametrize("name", model_names())
def test_a_model_whose_own_id_says_how_it_is_quantised_is_never_sized_in_16_bits(name: str) -> None:
    """A preset of a release in NVFP4 or MXFP8 lists its layout, or is an interval that says so."""
    model = load_model(name)
    if not quantized_by_name(model.hf_id or ""):
        return
    found = hybridcalc.weights(name, engine="vllm")
    assert found.quantization != "none"
    assert found.exact or found.findings[0].rule == "HC090"
