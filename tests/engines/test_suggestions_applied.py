"""A suggestion gives what it says where the memory follows from the GPU: what a flag costs of it is counted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.deployment import Memory, Workload
from hybridcalc.engines import ENGINES
from hybridcalc.errors import HybridcalcError
from hybridcalc.hardware import find_gpu

MODELS = ("lfm2.5-1.2b", "ling-3.0-tiny", "nemotron-h-8b", "qwen3.5-9b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b")
FLAGS = {
    "sglang": (
        "", "--tp-size 2", "--tp-size 4 --max-running-requests 16", "--tp-size 2 --disable-radix-cache",
        "--tp-size 8 --dp-size 4 --enable-dp-attention", "--mem-fraction-static 0.8",
        "--tp-size 2 --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-num-draft-tokens 4",
    ),
    "vllm": (
        "", "-tp 4", "-tp 2 --max-num-seqs 4", "-tp 2 -pp 2", "--gpu-memory-utilization 0.8", "-tp 2 -dp 2",
        "--no-enable-prefix-caching", "-tp 2 --block-size 1024",
    ),
}  # fmt: skip
RELEASES = {"sglang": (None, "0.5.20", "0.5.12"), "vllm": (None, "0.22.1", "0.28.0")}


def planned(name: str, model: str, args: Any, gpu: str, work: Workload) -> Any:
    """A plan on a GPU, whose weights follow from the model."""
    engine, found = ENGINES[name], load_model(model)
    args = engine.with_options(args, {"gpu": find_gpu(gpu)})
    return engine.plan(found, args, engine.memory(found, args, Memory(gpu=find_gpu(gpu))), work)


def broken(name: str, model: str, plan: Any, gpu: str) -> list[tuple[str, int, int]]:
    """Suggestions of more requests whose flags give another number: the flags, what they say, and what they give."""
    found = [one for one in plan.suggestions if one.after > one.before]
    given = [planned(name, model, ENGINES[name].changed(plan.args, one.flags), gpu, plan.workload) for one in found]
    pairs = zip(found, given, strict=True)
    return [(one.flags, one.after, again.requests) for one, again in pairs if one.after != again.requests]


@pytest.mark.parametrize(
    ("name", "model", "gpu", "flags", "length", "wanted"),
    [("vllm", "lfm2.5-1.2b", "h200", "-tp 4", 8192, 8), ("sglang", "ling-3.0-tiny", "l40s", "--tp-size 2", 32768, 64)],
)
def test_flags_that_cost_memory_are_counted_in_it(
    name: str, model: str, gpu: str, flags: str, length: int, wanted: int
) -> None:
    """The sampler's logits grow with max_num_seqs, SGLang's default fraction falls with context parallelism."""
    engine = ENGINES[name]
    release = "0.5.20" if name == "sglang" else None
    args = engine.with_options(engine.read(flags.split(), {})[1], {"engine_version": release})
    plan = planned(name, model, args, gpu, Workload.at(length, concurrency=wanted))
    assert len(plan.suggestions) > 2
    assert broken(name, model, plan, gpu) == []


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_suggestion_on_a_gpu_gives_what_it_says(data: Any) -> None:
    """Any model, GPU, release and flags: planned again with the suggested flags, as many requests run."""
    name = data.draw(st.sampled_from(sorted(FLAGS)))
    model, gpu = data.draw(st.sampled_from(MODELS)), data.draw(st.sampled_from(("l40s", "h200", "b200", "rtx-5090")))
    engine, work = ENGINES[name], Workload.at(data.draw(st.sampled_from((900, 8192, 32768))), concurrency=64)
    words = data.draw(st.sampled_from(FLAGS[name])).split()
    try:
        release = data.draw(st.sampled_from(RELEASES[name]))
        args = engine.with_options(engine.read(words, {})[1], {"engine_version": release})
        plan = planned(name, model, args, gpu, work)
    except HybridcalcError:
        return
    assert broken(name, model, plan, gpu) == []
