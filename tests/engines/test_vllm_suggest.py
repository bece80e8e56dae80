"""What a vLLM plan suggests: every effect is what the engine's own start-up makes of the flags suggested."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model, vllm
from hybridcalc.architecture.presets import model_names
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.better import MOST
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES
from hybridcalc.engines.vllm.flags import from_words
from hybridcalc.engines.vllm.server_plan import Plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion, safest_first
from hybridcalc.units import GIB

NEMOTRON = "nemotron-h-8b"
REQUESTS = re.compile(r"([0-9,]+) -> ([0-9,]+) requests? of .*")
REUSED = re.compile(r"([0-9,]+) -> ([0-9,]+) of [0-9,]+ tokens? reused")


def planned(
    model: str = NEMOTRON,
    *,
    gib: float = 40.0,
    rest: Rest | None = None,
    work: Workload | None = None,
    args: EngineArgs | None = None,
    **flags: Any,
) -> Plan:
    args = args or EngineArgs(**{"max_model_len": 8192, **flags})
    available = None if rest is not None else int(gib * GIB)
    return vllm.plan(load_model(model), args, available_bytes=available, rest=rest, workload=work or Workload.at(4200))


def changed(args: EngineArgs, flags: str) -> EngineArgs:
    """``args`` with suggested flags behind them, read as the command line reads them: there is nothing else in them."""
    unknown: list[str] = []
    model, read = from_words(flags.split(), {}, unknown=unknown)
    assert not unknown and not model
    return args.changed(**read.given())


def effect(suggestion: Suggestion) -> tuple[int, int, bool]:
    """From and to of a suggestion, and whether it is about requests."""
    match = REQUESTS.fullmatch(suggestion.effect)
    found = match or REUSED.fullmatch(suggestion.effect)
    before, after = (int(figure.replace(",", "")) for figure in present(found).groups())
    return before, after, bool(match)


def check(plan: Plan, model: str, gib: float, work: Workload) -> None:
    """Every promise of a plan's suggestions, by planning again."""
    for suggestion in plan.suggestions:
        before, after, requests = effect(suggestion)
        again = planned(model, gib=gib, work=work, args=changed(plan.args, suggestion.flags))
        if requests:
            assert before == plan.concurrency < after == again.concurrency, suggestion
            assert (suggestion.before, suggestion.after) == (before, after)
        else:
            assert before == present(plan.prefix).reused < after == present(again.prefix).reused, suggestion
            assert suggestion.before == suggestion.after


NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
ALL = {"engine_version": "0.22.1", "enable_prefix_caching": True}
CASES = {
    "blocks bind": ({}, {"--mamba-ssm-cache-dtype bfloat16", "--kv-cache-dtype fp8", "--no-enable-prefix-caching"}),
    "limit binds": ({"max_num_seqs": 50}, {"--max-num-seqs 109"}),
    "drafts": (NGRAM, {"--no-enable-prefix-caching", "--mamba-ssm-cache-dtype bfloat16"}),
    "block size": ({"block_size": 1024}, {"--block-size 16"}),
    "mode all": (ALL, {"--mamba-cache-mode align"}),
    "no prefixes": ({"enable_prefix_caching": False}, {"--mamba-ssm-cache-dtype bfloat16"}),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "expected"), CASES.values(), ids=CASES)
def test_every_effect_is_what_planning_its_flags_gives(flags: dict[str, Any], expected: set[str]) -> None:
    """From: the plan as it is. To: the suggested flags behind those there are, parsed and planned again."""
    plan = planned(**flags)
    names = {suggestion.flags for suggestion in plan.suggestions}
    for flag in expected:
        assert any(name == flag or name.startswith(f"{flag} --max-num-seqs") for name in names), (flag, names)
    check(plan, NEMOTRON, 40.0, Workload.at(4200))


PRESETS = [name for name in model_names() if load_model(name).architecture in CLASSES or not load_model(name).state]


@given(
    st.sampled_from(PRESETS),
    st.floats(0.5, 140),
    st.integers(1, 100_000),
    st.sampled_from([(0, 0), (900, 200), (4000, 200)]),
    st.fixed_dictionaries(
        {
            "tensor_parallel_size": st.sampled_from([1, 2, 8]),
            "max_model_len": st.just(131_072),
            "env": st.just({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
            "max_num_seqs": st.sampled_from([1, 16, 256]),
            "block_size": st.sampled_from([None, None, 64, 512]),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
            "enable_prefix_caching": st.sampled_from([None, True, False]),
            "enforce_eager": st.booleans(),
            "speculative_config": st.sampled_from([None, NGRAM["speculative_config"], {"method": "mtp"}]),
            "engine_version": st.sampled_from(["0.33.0", "0.22.1"]),
        }
    ),
)
@settings(max_examples=100)
def test_suggestions_are_few_sorted_distinct_and_keep_their_promise(
    model: str, gib: float, length: int, prefix: tuple[int, int], flags: dict[str, Any]
) -> None:
    """Whatever the model, the memory and the length: none is refused, none is worse."""
    work = Workload(((length, 1),), None, None, *prefix)
    try:
        plan = planned(model, gib=gib, work=work, **flags)
    except HybridcalcError:
        return
    found = plan.suggestions
    assert len(found) <= MOST + 1
    assert found == safest_first(found)
    assert len({s.flags for s in found}) == len(found)
    check(plan, model, gib, work)


def test_changes_that_help_are_tried_together() -> None:
    """Both states and KV halved: more than either alone."""
    flags = {suggestion.flags: suggestion for suggestion in planned(max_num_seqs=1000).suggestions}
    joint = max(flags.values(), key=lambda suggestion: suggestion.after)
    assert "--mamba-ssm-cache-dtype bfloat16" in joint.flags and "--kv-cache-dtype fp8" in joint.flags
    assert joint.after > max(s.after for name, s in flags.items() if name != joint.flags)


def test_prefix_caching_is_kept_where_a_prefix_is_shared() -> None:
    """And a unit that lets hits land between blocks is named."""
    work = Workload(((4200, 1),), None, None, 4000, 200)
    flags = [suggestion.flags for suggestion in planned(work=work).suggestions]
    assert not any("--no-enable-prefix-caching" in line for line in flags)
    assert flags[0] == "--prefix-match-unit 80"
    assert any("--no-enable-prefix-caching" in s.flags for s in planned().suggestions)


def test_a_larger_share_is_planned_with_the_memory_it_brings() -> None:
    """Two per cent of the card, and no more than 0.96; only where the card is known."""
    rest, args = Rest(40.0, 40.0, 40.0, "", 80.0), EngineArgs(max_model_len=8192, gpu_memory_utilization=0.9)
    plan = planned(rest=rest, args=args)
    (larger,) = [s for s in plan.suggestions if s.flags.startswith("--gpu-memory-utilization")]
    assert larger.flags == "--gpu-memory-utilization 0.92"
    again = planned(gib=41.6, args=changed(args, larger.flags))
    assert effect(larger) == (plan.concurrency, again.concurrency, True)
    for share, known in ((0.95, 80.0), (0.9, None)):
        other = planned(rest=rest._replace(before_gib=known), args=replace(args, gpu_memory_utilization=share))
        assert not [s for s in other.suggestions if "--gpu-memory-utilization" in s.flags]


def test_without_a_length_there_is_nothing_to_serve_better() -> None:
    """Requests of unknown length cannot be weighed."""
    assert planned(work=Workload()).suggestions == ()


def test_kimi_linear_is_not_told_a_dtype_that_its_layers_ignore() -> None:
    """It would be refused: the class obeys, the layer does not."""
    flags = [suggestion.flags for suggestion in planned("kimi-linear-48b-a3b").suggestions]
    assert flags and not any("--mamba-ssm-cache-dtype" in line for line in flags)
