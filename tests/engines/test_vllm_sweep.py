"""Sweeps of vLLM: every point is the plan of its combination alone."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hybridcalc import load_model, vllm
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.vllm import memory
from hybridcalc.engines.vllm.command import TABLE, from_words
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.sweep import CHEAP_FIELDS, SweepSolver
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.hardware import find_gpu
from hybridcalc.sweep import count_points, mark_front, parse_axis, sweep

NEMOTRON = ["nemotron-h-8b", "--max-model-len", "8192"]


def swept(words, specs, *, rest=None, length=Fraction(4200)):
    """Axes and every point of a sweep, on 40 GiB unless ``rest`` makes them of the arguments."""
    axes = [parse_axis(spec) for spec in specs]
    found = sweep(
        axes, lambda more: from_words([*words, *more], {})[1], SweepSolver(load_model(words[0])), TABLE,
        memory_name="available", cheap_fields=CHEAP_FIELDS, memory=rest or (lambda _: exact_rest(40.0)), length=length,
    )  # fmt: skip
    return axes, list(found)


def alone(words, more, gib, length):
    """What a plan of the flags themselves comes to, in the form of a point's figures."""
    work = Workload(((int(length), 1),)) if length is not None else Workload()
    try:
        plan = vllm.plan(
            load_model(words[0]), from_words([*words, *more], {})[1], rest=exact_rest(gib), workload=work
        )  # fmt: skip
    except HybridcalcError as refusal:
        return 0, 0, 0, "", refusal.message
    return plan.num_blocks, plan.kv_cache_size_tokens, plan.concurrency, plan.binding, ""


SWEEPS = {
    "limits": (NEMOTRON, ["max-num-seqs=1,109,300,5000", "num-gpu-blocks-override=20,27,500"]),
    "lengths": (NEMOTRON[:1], ["max-model-len=1k,8k,131072,-1", "max-num-seqs=1,64"]),
    "dtypes": (NEMOTRON, ["kv-cache-dtype=auto,fp8", "mamba-ssm-cache-dtype=auto,bfloat16"]),
    "blocks": (NEMOTRON, ["block-size=16,24,512,1024", "prefix-match-unit=16,1040"]),
    "ranks": (NEMOTRON, ["tensor-parallel-size=1,2,3,8,16", "max-num-seqs=64,9999"]),
    "modes": (NEMOTRON, ["mamba-cache-mode=align,none", "max-num-batched-tokens=2048,8192"]),
    "attention alone": (["llama-3-8b"], ["block-size=16,32", "max-num-seqs=8,9999"]),
}  # fmt: skip


@pytest.mark.parametrize("length", [Fraction(4200), None], ids=["4200", "no length"])
@pytest.mark.parametrize(("words", "specs"), SWEEPS.values(), ids=SWEEPS)
def test_every_point_is_the_plan_of_its_combination_alone(words, specs, length):
    """Blocks, tokens, requests, what binds, and the reason where the engine would not start."""
    axes, found = swept(words, specs, length=length)
    assert len(found) == count_points(axes, TABLE)
    for point in found:
        more = [word for axis, value in zip(axes, point.values, strict=True) for word in (f"--{axis.name}", value)]
        assert point[1:6] == alone(words, more, 40.0, length), more


def test_the_sweeps_above_hold_points_of_every_kind():
    """Blocks and the limit bind somewhere, and the engine refuses early and late."""
    found = [point for words, specs in SWEEPS.values() for point in swept(words, specs)[1]]
    assert {point.binding for point in found} == {"blocks", "limit", ""}
    reasons = " ".join(point.refusal for point in found)
    for words in ("does not divide the 32", "takes no block of 24", "exceeds the", "one request of", "does not fit"):
        assert words in reasons or words == "does not fit"


def test_memory_and_length_are_swept_too():
    """In GiB and tokens; what is swept wins over what is given."""
    _, found = swept(NEMOTRON, ["available=20,40GiB", "length=4k,4200"])
    for point in found:
        gib, length = point.values
        assert point[1:6] == alone(NEMOTRON, [], float(gib.removesuffix("GiB")), 4096 if length == "4k" else 4200)


def test_memory_follows_the_arguments_of_a_point():
    """A larger share leaves more: each point is planned with its own."""
    gpu = find_gpu("h200")

    def left(args: EngineArgs):
        return memory.rest_from_gpu(gpu, 16.0, args)

    _, found = swept([*NEMOTRON, "--max-num-seqs", "1024"], ["gpu-memory-utilization=0.5,0.7,0.9"], rest=left)
    for point in found:
        more = ["--max-num-seqs", "1024", "--gpu-memory-utilization", point.values[0]]
        gib = left(from_words([*NEMOTRON, *more], {})[1]).likely_gib
        assert point[1:6] == alone(NEMOTRON, more, gib, 4200)
    assert found[0].units < found[1].units < found[2].units
    assert [point.best for point in mark_front(found)] == [False, False, True]


def test_weights_that_do_not_fit_are_points_that_do_not_start():
    gpu = find_gpu("h100")
    _, found = swept(NEMOTRON, ["gpu-memory-utilization=0.1,0.9"],
                     rest=lambda args: memory.rest_from_gpu(gpu, 16.0, args))  # fmt: skip
    assert found[0].refusal.startswith("weights of 16.00 GiB do not fit 7.96 GiB")
    assert found[1].requests > 0 and not found[1].refusal


@pytest.mark.parametrize("spec", ["nonsense=3", "model=kimi-k3", "port=1", "enforce=1"])
def test_a_name_that_changes_no_plan_is_refused(spec):
    """A switch takes no value, and flags nobody needs change nothing."""
    with pytest.raises(InputError) as caught:
        swept(NEMOTRON, [spec])
    assert "no flag that changes a plan" in caught.value.message or "takes no value" in caught.value.message or (
        "belongs to no flag" in caught.value.message
    )  # fmt: skip
