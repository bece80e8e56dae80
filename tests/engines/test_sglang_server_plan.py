"""What `hybridcalc plan` answers for SGLang: pools, budget to the byte, intervals, capacity, log lines."""

import json
import re
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model, sglang
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.document import refusal_document
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.errors import HybridcalcError, InputError, Refusal
from hybridcalc.units import GIB, gib_text

K3_FLAGS: dict[str, Any] = {"tp_size": 8, "mamba_ssm_dtype": "float32", "kv_cache_dtype": "fp8_e4m3"}
NO_BUFFER: dict[str, Any] = {"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True}
EAGLE: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "draft_layers": 1}
NEXT = "qwen3-next-80b-a3b"
SLOT, ROW = 56_171_520, 13_824
CAPPED = (
    "max_running_requests is capped to 51 by the mamba state cache (max_mamba_cache_size=257, 5 state slots per "
    "request). To raise it: increase --mamba-full-memory-ratio or --max-mamba-cache-size, or halve the state size "
    "with --mamba-ssm-dtype bfloat16."
)


def planned(model: str = "kimi-k3", rest: float | Rest = 28.55, length: int | None = 9216, **flags: Any) -> Plan:
    """A plan of Kimi-K3 on 8 ranks with fp8 KV, or of a model under nothing but ``flags``."""
    args = ServerArgs(**(K3_FLAGS | flags if model == "kimi-k3" else flags))
    workload = Workload.at(length) if length else Workload()
    if isinstance(rest, Rest):
        return sglang.plan(load_model(model), args, rest=rest, workload=workload)
    return sglang.plan(load_model(model), args, rest_gib=rest, workload=workload)


def line(plan: Plan, name: str) -> tuple[int, int]:
    """(charged, allocated) of one budget line; (0, 0) where there is none."""
    return next(((b.charged_bytes, b.allocated_bytes) for b in plan.budget if b.name == name), (0, 0))


def test_the_published_boot_of_kimi_k3() -> None:
    """28.55 GiB at 0.9: K 257, R 51 at S = 5, and the pools the boot printed."""
    plan = planned()
    assert (plan.max_mamba_cache_size, plan.max_running_requests, plan.slots_per_request) == (257, 51, 5)
    assert (plan.bytes_per_slot, plan.kv_bytes_per_token) == (SLOT, ROW)
    assert plan.log_lines == [
        CAPPED,
        "Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB ",
        "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1169204, KV size: 15.05 GB",
    ]
    assert (plan.concurrency, plan.binding) == (51, "state")


@pytest.mark.parametrize(("ratio", "slots", "requests"), [(5.97, 451, 90), (9, 474, 94)])
def test_two_published_ratios_under_context_parallelism(ratio: float, slots: int, requests: int) -> None:
    """dcp 8 and 27.62 GiB: the boots said 451 slots for 90 requests, 474 for 94; sequences hold eight times T."""
    plan = planned(rest=27.62, mamba_full_memory_ratio=ratio, dcp_size=8)
    assert (plan.max_mamba_cache_size, plan.max_running_requests) == (slots, requests)
    assert plan.logical_token_capacity == 8 * plan.max_total_num_tokens
    assert plan.marginal_bytes_per_token == ROW / 8
    assert plan.capacity.kv_requests == plan.logical_token_capacity // 9216


CASES = {
    "plain": {},
    "pages": {"page_size": 64},
    "dcp": {"dcp_size": 8, "mamba_full_memory_ratio": 9.0},
    "K given": {"max_mamba_cache_size": 200},
    "radix off": {"disable_radix_cache": True, "max_running_requests": 40},
    "two workers": {"tp_size": 16, "dp_size": 2, "enable_dp_attention": True},
    "GQA": {"model": NEXT, "tp_size": 2},
    "speculation": EAGLE,
    "speculation under dcp": EAGLE | {"dcp_size": 8},
    "overlapping windows": {"model": NEXT, "tp_size": 2, **EAGLE},
    "adaptive drafts": EAGLE | {"max_draft_tokens": 16},
    "KDA rings": EAGLE | {"enable_linear_replayssm_spec": True},
    "GDN rings": {"model": NEXT, "tp_size": 2, **EAGLE, "enable_linear_replayssm_spec": True},
    "decode rings": {"enable_linear_replayssm": True} | NO_BUFFER,
    "int8": {"enable_int8_mamba_checkpoint": True},
    "fp4 on MLA": {"kv_cache_dtype": "fp4_mx_block16"},
    "windows": {"model": "inkling", "tp_size": 8},
    "no attention": {"model": "codestral-mamba-7b", "length": 512},
}


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rest", [28.55, 60.0])
def test_the_charges_and_what_is_left_are_the_memory(flags: dict[str, Any], rest: float) -> None:
    """Rest = states, drafts and rings + KV memory to the byte; of KV memory less than a page is left over."""
    plan = planned(rest=rest, **flags)
    charged = sum(b.charged_bytes for b in plan.budget)
    kv = line(plan, "KV pool")[0] + line(plan, "draft KV")[0]
    assert abs(int(rest * GIB) - (charged - kv + plan.sizing.state.kv_bytes)) <= 1  # the engine's floats
    price, page = plan.ready.cells[0].price, plan.args.tokens_per_page
    if price:
        assert 0 <= plan.sizing.state.kv_bytes - kv < price * page + 1
    assert plan.uncharged_bytes == sum(max(0, b.allocated_bytes - b.charged_bytes) for b in plan.budget)


@pytest.mark.parametrize("flags", [*CASES.values(), {"pp_size": 2}], ids=[*CASES, "stages"])
def test_the_log_lines_print_what_the_budget_allocates(flags: dict[str, Any]) -> None:
    """Every size of a pool in the lines adds up, to two decimals each, to the line of the budget."""
    plan = planned(rest=60.0, **flags)
    pools, printed = plan.pools, "\n".join(plan.log_lines)
    sizes = dict(re.findall(r"(conv_state|ssm_state|intermediate_[a-z_]+) size: ([0-9.]+)GB", printed))
    assert (sizes["conv_state"], sizes["ssm_state"]) == (gib_text(pools.conv_state), gib_text(pools.ssm_state))
    assert float(sizes["conv_state"]) + float(sizes["ssm_state"]) == pytest.approx(
        line(plan, "state pool")[1] / GIB, abs=0.011
    )
    drafts = [float(size) for name, size in sizes.items() if name.startswith("intermediate")]
    assert sum(drafts) == pytest.approx(line(plan, "draft states")[1] / GIB, abs=0.011)
    rings = [float(size) for size in re.findall(r"[a-z]+=([0-9.]+)GB", printed)]
    assert sum(rings) == pytest.approx(line(plan, "ReplaySSM rings")[1] / GIB, abs=0.0006 * 6)
    kv = [float(size) for size in re.findall(r"[KV]+ size: ([0-9.]+) GB", printed)]
    if kv:
        assert sum(kv) == pytest.approx(line(plan, "KV pool")[1] / GIB, abs=0.011)
    int8 = re.findall(r"checkpoint pool: [0-9]+ slots, ([0-9.]+)GB", printed)
    assert int8 == ([gib_text(line(plan, "int8 checkpoints")[1])] if pools.int8 else [])


def test_what_kimi_k3_is_not_charged_for() -> None:
    """A page of KV and the request table: (R + 1) x (context + 4) int32."""
    plan = planned()
    assert line(plan, "state pool") == (258 * SLOT, 258 * SLOT)
    assert line(plan, "KV pool") == (1_169_204 * ROW, 1_169_205 * ROW)
    assert line(plan, "request table") == (0, 52 * (1_048_576 + 4) * 4)
    assert plan.uncharged_bytes == ROW + 52 * 1_048_580 * 4


def test_draft_states_are_kept_for_every_request_that_may_run() -> None:
    """48 + 1 requests x 4 states beside the pool, and a fixed share of a request; a draft layer is 576 B a token."""
    plan = planned(rest=60.0, **EAGLE)
    assert line(plan, "draft states") == (49 * 4 * SLOT, 49 * 4 * SLOT)
    assert plan.fixed_bytes_per_request == (5 + 4) * SLOT
    assert (plan.kv_bytes_per_token, plan.marginal_bytes_per_token) == (ROW + 576, Fraction(ROW + 576))
    assert line(plan, "draft KV") == (plan.max_total_num_tokens * 576, (plan.max_total_num_tokens + 1) * 576)
    assert (plan.max_running_requests, plan.binding, plan.concurrency) == (48, "limit", 48)


def test_adaptive_drafts_are_allocated_for_the_most_and_charged_for_a_few() -> None:
    """16 draft tokens at most, 4 charged: four times as many states."""
    charged, allocated = line(planned(rest=60.0, **EAGLE, max_draft_tokens=16), "draft states")
    assert allocated == 4 * charged == 49 * 16 * SLOT


def test_rings_of_decoding_are_charged_nowhere() -> None:
    """K = 542: 11,049,467,904 B beside the pools, as the engine's own class allocated them."""
    assert line(planned(rest=60.0, enable_linear_replayssm=True, **NO_BUFFER), "ReplaySSM rings") == (0, 11_049_467_904)


def test_int8_checkpoints_come_out_of_the_headroom() -> None:
    """2 x K + 1 slots of 15,897,600 B, none of it charged."""
    plan = planned(rest=60.0, enable_int8_mamba_checkpoint=True)
    assert line(plan, "int8 checkpoints") == (0, (2 * 542 + 1) * 15_897_600)
    assert plan.max_mamba_cache_size == planned(rest=60.0).max_mamba_cache_size == 542


def test_fp4_on_mla_is_priced_at_half_and_kept_whole() -> None:
    """7,776 B a token charged, 13,824 B allocated."""
    plan = planned(kv_cache_dtype="fp4_mx_block16")
    tokens = plan.max_total_num_tokens
    assert line(plan, "KV pool") == (tokens * 7776, (tokens + 1) * ROW)


def test_a_worker_of_two_plans_for_itself() -> None:
    """16 ranks as two workers of 8: each is the server of 8 ranks; a K given is shared out."""
    workers: dict[str, Any] = {"tp_size": 16, "dp_size": 2, "enable_dp_attention": True}
    one, two = planned(), planned(**workers)
    assert two.sizing == one.sizing
    assert two.concurrency == one.concurrency == 51
    assert planned(**workers, max_mamba_cache_size=201).max_mamba_cache_size == 100
    assert any("one of 2 attention workers" in note for note in two.notes)


def test_pipeline_stages_share_one_price_and_the_fewest_tokens() -> None:
    """K3 on two stages: S = 4, a slot priced at 35 of 69 layers, T of the stage with 13 of 24 attention layers."""
    plan = planned(rest=60.0, pp_size=2)
    assert (plan.max_mamba_cache_size, plan.slots_per_request) == (1070, 4)
    assert plan.ready.stage_slot_bytes == int(SLOT * (35 / 69)) == line(plan, "state pool")[0] // 1071
    assert plan.kv_bytes_by_stage == [11 * 576, 13 * 576] and plan.kv_bytes_per_token == 13 * 576
    assert plan.max_total_num_tokens == plan.sizing.state.kv_bytes // (13 * 576) == min(plan.sizing.stage_tokens)
    assert plan.marginal_bytes_per_token == 13 * 576
    for drawn, said in ((plan, "whole pages, smallest stage"), (planned(), "whole pages")):
        assert [step.formula for step in drawn.steps if step.symbol == "T"] == [f"KV memory // cell, {said}"]


def test_the_end_of_an_interval_that_does_not_start_holds_nothing() -> None:
    intervals = planned(rest=Rest(28.55, 0.1, 29.0, "a log")).to_dict()["intervals"]
    assert [least for name, (least, _) in intervals.items() if name != "rest_gib"] == [0, 0, 0]


def test_sliding_windows_have_a_pool_of_their_own() -> None:
    """Inkling: a tenth of the tokens, priced in part; ratio 0.1 by the engine's own default."""
    plan = planned("inkling", rest=60.0, tp_size=8)
    assert plan.ready.args.memory_ratio == 0.1
    assert plan.sizing.window_tokens == int(plan.max_total_num_tokens * 0.1)
    assert plan.log_lines[0] == (
        f"Use sliding window memory pool. full_layer_tokens={plan.max_total_num_tokens}, "
        f"swa_layer_tokens={plan.sizing.window_tokens}"
    )
    assert {"swa_max_total_num_tokens", "full_max_total_num_tokens"} <= plan.engine_figures.keys()


def test_a_model_without_attention_holds_its_context() -> None:
    """KV of no bytes: T is the context length, and the budget has no KV pool."""
    plan = planned("codestral-mamba-7b", length=512)
    assert plan.max_total_num_tokens == plan.ready.context_length == 2048
    assert line(plan, "KV pool") == (0, 0) and plan.kv_bytes_per_token == 0


OWN_FIGURES = {
    "strategy", "S", "max_mamba_cache_size", "max_total_num_tokens", "logical_token_capacity", "max_running_requests",
    "bytes_per_slot", "conv_bytes_per_slot", "ssm_bytes_per_slot", "conv_shape", "temporal_shape", "conv_dtype",
    "ssm_dtype", "arch", "is_kda", "is_gdn", "kda_config", "mla", "linear_layers", "full_attn_layers", "context_len",
    "overlap", "resolved_inputs", "cell_size", "solver_branch", "stage_bytes_per_slot", "priced_state_bytes",
    "priced_intermediate_bytes", "rest_after_gib", "kv_available_bytes", "ring_bytes_per_req", "ring_bytes_per_slot",
    "ring_fixed_bytes", "alloc_mamba", "alloc_kv", "alloc_req_to_token", "uncharged_bytes", "state_requests",
    "kv_requests",
}  # fmt: skip


@pytest.mark.parametrize("flags", [{}, {"length": None}, EAGLE, {"pp_size": 2}], ids=["", "no length", "drafts", "pp"])
def test_the_document_has_every_key_that_is_documented(flags: dict[str, Any]) -> None:
    """docs/json.md, plan: plain data, the same after a round through JSON; intervals only where memory is uncertain."""
    document = planned(**flags).to_dict()
    assert document["engine_figures"].keys() >= OWN_FIGURES and document["intervals"] == {}
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["starts"], document["refusal"], document["engine"]) == (True, None, "sglang")
    assert all({"name", "charged_bytes", "allocated_bytes", "why"} <= set(entry) for entry in document["budget"])
    told = {"flags", "env", "requests_before", "requests_after", "risk", "effect", "why"}
    assert all(set(entry) == told for entry in document["suggestions"])
    assert all(set(entry) == {"rule", "severity", "message", "fix"} for entry in document["findings"])


def test_the_document_of_a_workload_says_what_runs() -> None:
    """Requests that run, of which length, and which pool binds."""
    document = planned().to_dict()
    assert (document["workload"]["length_tokens"], document["requests"], document["binding"]) == (9216, 51, "state")
    assert planned(length=None).to_dict()["workload"]["length_tokens"] is None


def test_a_refusal_has_a_document_of_its_own() -> None:
    """starts is false; what the stages before it settled is there, in plain data."""
    args = ServerArgs(**K3_FLAGS, max_mamba_cache_size=4)
    with pytest.raises(Refusal) as refusal:
        sglang.plan(load_model("kimi-k3"), args, rest_gib=28.55)
    document = refusal_document(ENGINES["sglang"], load_model("kimi-k3"), args, refusal.value)
    assert document["starts"] is False and document["engine_figures"]["max_mamba_cache_size"] == 4
    assert document["refusal"] == {
        "stage": "max_running_requests",
        "rule": "HC002",
        "reason": refusal.value.reason,
        "fix": refusal.value.fix,
    }
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_memory_must_be_said() -> None:
    """A plan without memory is no question."""
    with pytest.raises(InputError, match="memory left for the pools"):
        sglang.plan(load_model("kimi-k3"), ServerArgs(**K3_FLAGS))


FLAGS = st.sampled_from([
    {}, {"page_size": 64}, {"dcp_size": 8}, {"pp_size": 2}, EAGLE, {"disable_radix_cache": True},
    EAGLE | {"enable_linear_replayssm_spec": True}, {"max_mamba_cache_size": 60}, {"max_running_requests": 20},
])  # fmt: skip


@given(st.floats(6, 200), st.floats(0.001, 2), st.floats(0, 1), FLAGS)
def test_an_interval_holds_every_memory_in_it(low: float, width: float, at: float, flags: dict[str, Any]) -> None:
    """K, T and R of the likely memory, and of any other between the ends, lie within the intervals."""
    inside = low + width * at
    document = planned(rest=Rest(low + width / 2, low, low + width, "a log"), length=None, **flags).to_dict()
    assert document["intervals"]["rest_gib"] == [low, low + width]
    elsewhere = planned(rest=inside, **flags)
    for figure in ("max_mamba_cache_size", "max_total_num_tokens", "max_running_requests"):
        least, most = document["intervals"][figure]
        assert least <= document[figure] <= most and least <= getattr(elsewhere, figure) <= most


@given(st.lists(st.floats(0.5, 500), min_size=2, max_size=8), FLAGS)
def test_more_memory_is_never_fewer_slots(rests: list[float], flags: dict[str, Any]) -> None:
    """Slots never fall; T falls by no more than a slot more takes (with its ring and, drafting, its D states)."""
    plans = []
    for rest in sorted(rests):
        try:
            plans.append(planned(rest=rest, **flags))
        except HybridcalcError:
            assert not plans, "what starts on less memory starts on more"
    for less, more in pairwise(plans):
        assert more.max_mamba_cache_size >= less.max_mamba_cache_size
        step = less.ready.stage_slot_bytes * (1 + less.args.draft_tokens) + less.ready.rings.per_slot
        lost = ceil(step / min(cell.bytes for cell in less.ready.cells)) + less.args.tokens_per_page
        assert more.max_total_num_tokens >= less.max_total_num_tokens - lost


@given(st.lists(st.floats(12, 500), min_size=2, max_size=8))
def test_more_memory_is_never_fewer_tokens_at_a_pinned_size(rests: list[float]) -> None:
    """K held, all further memory is KV."""
    plans = [planned(rest=rest, max_mamba_cache_size=200) for rest in sorted(rests)]
    tokens = [plan.max_total_num_tokens for plan in plans]
    assert tokens == sorted(tokens) and {plan.max_mamba_cache_size for plan in plans} == {200}


@pytest.mark.parametrize(
    ("flags", "binding", "requests", "idle"),
    [
        ({}, "state", 51, 59.8),
        ({"mamba_full_memory_ratio": 9.0}, "kv", 24, 75.6),
        ({"max_running_requests": 20}, "limit", 20, 84.2),
        ({"max_mamba_cache_size": 371}, "state", 74, 3.4),
        ({"disable_radix_cache": True, "max_running_requests": 40}, "limit", 40, 82.0),
        ({"model": "lfm2-350m", "rest": 60.0, "length": 256}, "limit", 4096, 98.4),
    ],
    ids=["state", "kv", "limit", "balanced", "the limit is K", "the engine's own limit"],
)
def test_what_binds_and_what_idles(flags: dict[str, Any], binding: str, requests: int, idle: float) -> None:
    """The pool that runs out first and what the other never uses; where the limit binds, the larger share of both."""
    plan = planned(**flags)
    assert (plan.binding, plan.concurrency) == (binding, requests)
    assert plan.capacity.idle_percent == pytest.approx(idle, abs=0.5)
    assert plan.concurrency <= plan.max_running_requests


@given(st.integers(1, 3_000_000), FLAGS, st.floats(8, 300))
def test_what_runs_fits_both_pools(length: int, flags: dict[str, Any], rest: float) -> None:
    """Requests x S never exceed K, requests x length never the KV, and one more breaks the one that binds."""
    plan = planned(rest=rest, length=length, **flags)
    running = plan.concurrency
    assert running * plan.slots_per_request <= plan.max_mamba_cache_size
    assert running * length <= plan.logical_token_capacity
    assert running <= plan.max_running_requests
    if plan.binding == "state":
        assert (running + 1) * plan.slots_per_request > plan.max_mamba_cache_size
    if plan.binding == "kv":
        assert (running + 1) * length > plan.logical_token_capacity
