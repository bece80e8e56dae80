"""Each rule of SGLang against what the engine's own classes computed: shapes, strategy, KV, pools (0.5.23, 0.5.16).

The cases and what their fields mean: tests/data/vectors. Pools are checked here without pipeline stages,
disaggregation and sliding-window pools; test_sglang_planner_vectors.py replays whole start-ups.
"""

from typing import Any

import pytest
from sglang_cases import CASES, arguments_of, model_of, refused_at

from hybridcalc.engines.sglang.kv import kv_cell
from hybridcalc.engines.sglang.pools import StatePool, charged_rings, replayssm_rings, solve_pools, solve_state_pool
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.sizes import replayssm_active, state_slot
from hybridcalc.engines.sglang.strategy import resolve_strategy
from hybridcalc.errors import HybridcalcError, IllegalCombination, ShardingError

NEWEST, OLDER = rules_for("0.5.23")[0], rules_for("0.5.16")[0]

SHAPED = [case_id for case_id, case in CASES.items() if "conv_shape" in case["outputs"]]
UNSHARDED = [case_id for case_id in CASES if refused_at(case_id) == "shapes"]
SINGLE = [
    case_id for case_id, case in CASES.items() if case["inputs"]["pp"] == 1 and case["inputs"]["disagg"] == "null"
]
RESOLVED = [case_id for case_id in SINGLE if "S" in CASES[case_id]["outputs"]]
REFUSED = [case_id for case_id in SINGLE if refused_at(case_id) in ("strategy", "ratio")]
POOLED = [case_id for case_id in RESOLVED if CASES[case_id]["model"] != "inkling"]
SOLVED = [case_id for case_id in POOLED if "priced_state_bytes" in CASES[case_id]["outputs"]]
SERVED = [
    case_id
    for case_id in SOLVED
    if "max_running_requests" in CASES[case_id]["outputs"] and CASES[case_id]["outputs"]["cell_size"]
]
SOLVED_BY_0_5_16 = [case_id for case_id in POOLED if "priced_state_bytes" in CASES[case_id].get("outputs_0516", {})]


@pytest.mark.parametrize("case_id", SHAPED)
def test_shapes_dtypes_and_bytes_of_a_slot(case_id: str) -> None:
    """configs/mamba_utils.py: every class, rank count and dtype that was recorded."""
    slot, outputs = state_slot(model_of(case_id), arguments_of(case_id)), CASES[case_id]["outputs"]
    assert [list(shape) for shape in slot.conv_shape] == outputs["conv_shape"]
    assert list(slot.temporal_shape) == outputs["temporal_shape"]
    assert (slot.conv_dtype, slot.ssm_dtype) == (outputs["conv_dtype"], outputs["ssm_dtype"])
    assert (slot.conv_bytes, slot.ssm_bytes) == (outputs["conv_bytes_per_slot"], outputs["ssm_bytes_per_slot"])
    assert (slot.bytes, slot.layers) == (outputs["bytes_per_slot"], outputs["linear_layers"])


@pytest.mark.parametrize("case_id", SHAPED)
def test_layers_with_kv(case_id: str) -> None:
    """full_attn_layers counts every layer with KV, windows included."""
    model = model_of(case_id)
    assert model.attention_layers + model.window_layers == CASES[case_id]["outputs"]["full_attn_layers"]


@pytest.mark.parametrize("case_id", SHAPED)
def test_ring_bytes_of_a_request(case_id: str) -> None:
    """Reported for every class, whether ReplaySSM runs or not; null for Inkling."""
    model, args = model_of(case_id), arguments_of(case_id)
    rings = replayssm_rings(model, state_slot(model, args), args, slots=1)
    size = None if rings is None else sum(ring.bytes for ring in rings)
    assert size == CASES[case_id]["outputs"]["ring_bytes_per_req"]


@pytest.mark.parametrize("case_id", UNSHARDED)
def test_ranks_that_do_not_divide_are_refused_with_the_engine_s_own_number(case_id: str) -> None:
    """The engine asserts "X is not divisible by Y"; the refusal carries X and Y."""
    with pytest.raises(ShardingError) as refusal:
        state_slot(model_of(case_id), arguments_of(case_id))
    expected = CASES[case_id]["outputs"]["raises"]["message"]
    assert f"{refusal.value.total} is not divisible by {refusal.value.parts}" == expected


@pytest.mark.parametrize("case_id", RESOLVED)
def test_strategy_scheduler_and_slots(case_id: str) -> None:
    """arg_groups/overrides.py and _calculate_mamba_ratio."""
    resolved = resolve_strategy(model_of(case_id), arguments_of(case_id), NEWEST)
    outputs = CASES[case_id]["outputs"]
    assert (resolved.strategy, resolved.overlap) == (outputs["strategy"], outputs["overlap"])
    assert resolved.slots.count == outputs["S"]


@pytest.mark.parametrize("case_id", REFUSED)
def test_flags_the_engine_refuses_are_refused(case_id: str) -> None:
    """mamba_hook.py, model_hook.py, attention_hook.py; the words are ours."""
    with pytest.raises(IllegalCombination):
        resolve_strategy(model_of(case_id), arguments_of(case_id), NEWEST)


@pytest.mark.parametrize("case_id", [case_id for case_id in POOLED if "cell_size" in CASES[case_id]["outputs"]])
def test_kv_bytes_of_a_token(case_id: str) -> None:
    """pool_configurator.py: GQA, MLA, DSA, fp8, fp4 and draft layers."""
    cell = kv_cell(model_of(case_id), arguments_of(case_id), NEWEST)
    assert cell.bytes == CASES[case_id]["outputs"]["cell_size"]


def state_pool(case_id: str, rules: RuleSet, outputs: dict[str, Any]) -> StatePool:
    """The state pool of a case, with the rings it is charged."""
    model, args = model_of(case_id), arguments_of(case_id)
    return solve_state_pool(
        CASES[case_id]["inputs"]["budget_gib"],
        state_slot(model, args).bytes,
        outputs["S"],
        args,
        rules,
        replay_active=replayssm_active(model, args, rules),
        rings=charged_rings(model, state_slot(model, args), args, rules),
    )


@pytest.mark.parametrize("case_id", SOLVED)
def test_the_state_pool(case_id: str) -> None:
    """_handle_max_mamba_cache (0.5.23): K, both charges, and what is left to the last bit."""
    outputs = CASES[case_id]["outputs"]
    state = state_pool(case_id, NEWEST, outputs)
    assert state.slots == outputs["max_mamba_cache_size"]
    assert (state.charged_bytes, state.draft_bytes) == (
        outputs["priced_state_bytes"],
        outputs["priced_intermediate_bytes"],
    )
    assert state.rest_after_gib == outputs["rest_after_gib"]
    assert state.kv_bytes == outputs.get("kv_available_bytes", state.kv_bytes)


@pytest.mark.parametrize("case_id", SOLVED_BY_0_5_16)
def test_the_state_pool_of_0_5_16(case_id: str) -> None:
    """No padding slot, no ring, no row that pads the draft states; its own draft cell."""
    outputs = CASES[case_id]["outputs_0516"]
    state = state_pool(case_id, OLDER, outputs)
    assert state.slots == outputs["max_mamba_cache_size"]
    assert (state.charged_bytes, state.draft_bytes, state.kv_bytes) == (
        outputs["priced_state_bytes"],
        outputs["priced_intermediate_bytes"],
        outputs["kv_available_bytes"],
    )
    assert kv_cell(model_of(case_id), arguments_of(case_id), OLDER).bytes == outputs["cell_size"]


@pytest.mark.parametrize("case_id", SERVED)
def test_tokens_and_running_requests(case_id: str) -> None:
    """T and R under every limit that was recorded."""
    model, args, outputs = model_of(case_id), arguments_of(case_id), CASES[case_id]["outputs"]
    pools = solve_pools(
        CASES[case_id]["inputs"]["budget_gib"],
        state_slot(model, args).bytes,
        outputs["S"],
        outputs["cell_size"],
        outputs["context_len"],
        args,
        NEWEST,
        replay_active=replayssm_active(model, args, NEWEST),
        rings=charged_rings(model, state_slot(model, args), args, NEWEST),
    )
    assert (pools.tokens, pools.running_requests) == (outputs["max_total_num_tokens"], outputs["max_running_requests"])


@pytest.mark.parametrize("case_id", [case_id for case_id in POOLED if refused_at(case_id) == "solve"])
def test_a_budget_the_engine_cannot_split_is_refused(case_id: str) -> None:
    """K <= 0, or nothing left for KV."""
    model, args, outputs = model_of(case_id), arguments_of(case_id), CASES[case_id]["outputs"]
    with pytest.raises(HybridcalcError):
        solve_pools(
            CASES[case_id]["inputs"]["budget_gib"], state_slot(model, args).bytes, outputs["S"], 1, 1, args, NEWEST
        )


def test_the_selections_above_cover_what_was_recorded() -> None:
    """A case that no list selects would be skipped in silence."""
    assert (len(CASES), len(SHAPED), len(UNSHARDED), len(REFUSED)) == (178, 158, 4, 16)
    selected = (RESOLVED, POOLED, SOLVED, SERVED, SOLVED_BY_0_5_16)
    assert tuple(map(len, selected)) == (148, 146, 144, 137, 72)
