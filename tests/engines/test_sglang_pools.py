"""SGLang's pool solver: K slots, T tokens and R requests out of the memory that is left."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.pools import (
    Pools,
    Rings,
    capped_tokens,
    kv_tokens,
    request_limit,
    solve_pools,
    solve_state_pool,
    solve_state_pool_early,
)
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.settings import weigh
from hybridcalc.errors import IllegalCombination, Refusal
from hybridcalc.units import GIB, MIB, gib_text

K3_SLOT = 56_171_520
NEWEST, OLDER = rules_for("0.5.23")[0], rules_for("0.5.16")[0]


def test_the_boot_log_of_kimi_k3() -> None:
    """28.55 GiB at the default ratio print K = 257; its 258 slots take 13.50 GiB and leave 15.05 for KV."""
    state = solve_state_pool(28.55, K3_SLOT, 4, ServerArgs(tp_size=8), NEWEST)
    assert (state.slots, state.charged_bytes) == (257, 258 * K3_SLOT)
    assert (gib_text(state.charged_bytes), gib_text(state.kv_bytes)) == ("13.50", "15.05")


@pytest.mark.parametrize(
    ("flags", "rules", "slots", "charged", "drafts"),
    [
        ({"max_mamba_cache_size": 80}, NEWEST, 80, 81, 0),
        ({"max_mamba_cache_size": 80}, OLDER, 80, 80, 0),
        ({"max_mamba_cache_size": 80, "tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, NEWEST, 10, 11, 0),
        ({"disable_radix_cache": True, "max_running_requests": 12}, NEWEST, 12, 13, 0),
        ({"max_mamba_cache_size": 80, "disable_radix_cache": True, "max_running_requests": 12}, NEWEST, 80, 81, 0),
        (
            {"max_mamba_cache_size": 80, "speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4},
            NEWEST,
            80,
            81,
            (16 + 1) * 4,
        ),
        (
            {"max_mamba_cache_size": 500, "speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4},
            NEWEST,
            500,
            501,
            (48 + 1) * 4,
        ),
        (
            {
                "disable_radix_cache": True,
                "max_running_requests": 12,
                "speculative_algorithm": "EAGLE",
                "speculative_num_draft_tokens": 2,
            },
            NEWEST,
            12,
            13,
            (12 + 1) * 2,
        ),
        ({}, OLDER, 29, 29, 0),
        ({}, NEWEST, 28, 29, 0),
    ],
    ids=[
        "explicit",
        "0.5.16 charges no padding slot",
        "explicit per worker",
        "radix off",
        "explicit wins",
        "drafts of K // S requests",
        "drafts of the 48 the engine sets",
        "radix off drafts",
        "ratio in 0.5.16",
        "ratio",
    ],
)
def test_slots_and_their_charge(flags: dict[str, Any], rules: RuleSet, slots: int, charged: int, drafts: int) -> None:
    """_handle_max_mamba_cache by hand: S = 5; explicit flags on 10 TiB, the ratio on 62 slots of 1 GiB."""
    rest = 62.0 if flags == {} else 10_240.0
    state = solve_state_pool(rest, GIB, 5, ServerArgs(**flags), rules)
    assert (state.slots, state.charged_bytes, state.draft_bytes) == (slots, charged * GIB, drafts * GIB)


def test_active_rings_are_charged_and_draft_states_are_not() -> None:
    """ReplaySSM: KDA rings with every slot, GDN rings with every request that may run and one more."""
    args = ServerArgs(
        max_mamba_cache_size=80, max_running_requests=10, speculative_algorithm="EAGLE", speculative_num_draft_tokens=4
    )
    rings = Rings(per_slot=MIB, per_request=3 * MIB)
    state = solve_state_pool(1000.0, GIB, 5, args, NEWEST, replay_active=True, rings=rings)
    assert (state.charged_bytes, state.draft_bytes) == (81 * (GIB + MIB) + 11 * 3 * MIB, 0)


@pytest.mark.parametrize("slots", [0, 1, 2])
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_a_pool_of_one_slot_starts_and_one_of_none_is_refused(slots: int, version: str) -> None:
    """Half of the memory and a little more is that many slots, in early releases too."""
    rules = rules_for(version)[0]
    args = ServerArgs(engine_version=version, mamba_full_memory_ratio=1.0)
    if not slots and rules.empty_pool_refused:
        with pytest.raises(IllegalCombination, match="no room for a state slot"):
            solve_state_pool_early(2 * slots + 0.5, GIB, 3, args, rules)
    else:
        assert solve_state_pool_early(2 * slots + 0.5, GIB, 3, args, rules).slots == slots


@pytest.mark.parametrize(
    ("flags", "rest", "message", "fix"),
    [
        (
            {},
            1.0,
            "no room for a state slot: 1.00 GiB give -1 slots of 1,073,741,824 B",
            "raise --mem-fraction-static or --mamba-full-memory-ratio, or use more GPUs",
        ),
        (
            {"max_mamba_cache_size": 10},
            8.0,
            "10 state slots take 11,811,160,064 B of 8.00 GiB and leave nothing for KV",
            "lower --max-mamba-cache-size or --mamba-full-memory-ratio",
        ),
        (
            {"max_mamba_cache_size": 7, "tp_size": 8, "dp_size": 8, "enable_dp_attention": True},
            8.0,
            "no room for a state slot: 8.00 GiB give 0 slots of 1,073,741,824 B",
            "write --max-mamba-cache-size 48",
        ),
    ],
    ids=["too little memory", "nothing left for KV", "fewer slots than workers"],
)
def test_a_pool_without_room_is_refused(flags: dict[str, Any], rest: float, message: str, fix: str) -> None:
    """Where the engine raises, with both figures."""
    with pytest.raises(IllegalCombination) as refusal:
        solve_pools(rest, GIB, 5, 10, 4096, ServerArgs(**flags), NEWEST)
    assert (refusal.value.message, refusal.value.fix) == (message, fix)


def test_the_flag_that_leaves_no_page_is_the_one_to_raise() -> None:
    cases: tuple[tuple[dict[str, Any], int, str], ...] = (
        ({"max_total_tokens": 63}, 4096, "raise --max-total-tokens, or leave it out"),
        ({"max_total_tokens": 63}, 63, "raise --mem-fraction-static, or lower the share of the state pool"),
        ({}, 0, "raise --mem-fraction-static, or lower the share of the state pool"),
    )
    for flags, tokens, fix in cases:
        with pytest.raises(Refusal) as caught:
            capped_tokens(tokens, ServerArgs(page_size=64, **flags))
        assert caught.value.fix == fix, flags


def test_kv_without_a_page_is_refused() -> None:
    """T = 0 is a boot that fails."""
    with pytest.raises(IllegalCombination) as refusal:
        solve_pools(2.5, GIB, 1, 2**30, 4096, ServerArgs(max_mamba_cache_size=1), NEWEST)
    assert refusal.value.message == "the KV pool holds no page of 1 tokens"


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({}, 999),
        ({"page_size": 64}, 960),
        ({"max_total_tokens": 500}, 500),
        ({"max_total_tokens": 5000}, 999),
        ({"page_size": 64, "max_total_tokens": 500}, 448),
    ],
    ids=["tokens", "whole pages", "user's limit", "limit beyond memory", "limit cut to pages"],
)
def test_tokens_are_whole_pages_below_the_limit(flags: dict[str, Any], tokens: int) -> None:
    """bytes // cell // page * page, the limit re-floored to a page."""
    args = ServerArgs(**flags)
    assert capped_tokens(kv_tokens(9999, 10, args), args) == tokens


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ({}, None),
        ({"max_running_requests": 7}, 7),
        ({"speculative_algorithm": "NGRAM"}, 48),
        ({"speculative_algorithm": "EAGLE", "max_running_requests": 7}, 7),
    ],
    ids=["none", "given", "48 under speculation", "given under speculation"],
)
def test_the_request_limit_is_48_under_speculation(flags: dict[str, Any], limit: int | None) -> None:
    """SGLang speculative_hook.py sets it when none is given, for every algorithm."""
    assert request_limit(ServerArgs(**flags)) == limit


@pytest.mark.parametrize(
    ("flags", "context", "requests"),
    [
        ({"max_mamba_cache_size": 60}, 4096, 12),
        ({"max_mamba_cache_size": 60, "max_running_requests": 9}, 4096, 9),
        ({"max_mamba_cache_size": 60, "max_total_tokens": 10}, 4096, 5),
        ({"max_mamba_cache_size": 90_000}, 4096, 4096),
        ({"max_mamba_cache_size": 90_000}, 2**24, 2048),
    ],
    ids=["slots", "limit", "two tokens a request", "estimate at its top", "estimate at its bottom"],
)
def test_running_requests_are_the_least_of_the_limits(flags: dict[str, Any], context: int, requests: int) -> None:
    """R = min(limit, T // 2, K // S); the limit is an estimate from T and the context when none is given."""
    pools = solve_pools(90.0, 2**16, 5, 2**16, context, ServerArgs(**flags), NEWEST)
    assert pools.running_requests == requests


budgets, ratios = st.floats(0.5, 200), st.floats(0.01, 20)
slot_sizes, cells = st.integers(2**16, 2**30), st.integers(2**8, 2**18)


def solved(rest: float, slot: int, cell: int, **flags: Any) -> Pools:
    """Both pools, or a discarded example where the engine would not start."""
    try:
        return solve_pools(rest, slot, 5, cell, 4096, ServerArgs(**flags), NEWEST)
    except IllegalCombination:
        assume(False)


@given(budgets, slot_sizes, cells, ratios)
def test_both_pools_fit_into_what_is_left(rest: float, slot: int, cell: int, ratio: float) -> None:
    """Slots, the padding slot and tokens together never exceed the budget."""
    pools = solved(rest, slot, cell, mamba_full_memory_ratio=ratio)
    assert (pools.state.slots + 1) * slot + pools.tokens * cell <= rest * GIB
    assert pools.running_requests * 5 <= pools.state.slots


@given(budgets, slot_sizes, cells, ratios, st.floats(1.01, 4))
def test_a_larger_ratio_moves_memory_from_kv_to_the_states(
    rest: float, slot: int, cell: int, ratio: float, factor: float
) -> None:
    """K never falls and T never grows with the ratio."""
    less = solved(rest, slot, cell, mamba_full_memory_ratio=ratio)
    more = solved(rest, slot, cell, mamba_full_memory_ratio=ratio * factor)
    assert more.state.slots >= less.state.slots
    assert more.tokens <= less.tokens


@pytest.mark.parametrize(
    ("slots", "tokens", "flags", "binding", "requests", "idle"),
    [
        (257, 1_169_204, {}, "state", 64, 49.55),
        (500, 460_800, {}, "kv", 50, 60.0),
        (400, 921_600, {}, "state", 100, 0.0),
        (400, 921_600, {"max_running_requests": 8}, "limit", 100, 92.0),
        (3, 921_600, {}, "state", 0, 100.0),
        (400, 10, {}, "kv", 0, 100.0),
    ],
    ids=["state binds", "kv binds", "even", "limit binds", "no request by state", "no request by kv"],
)
def test_the_pool_that_runs_out_first_binds_and_the_other_idles(
    slots: int, tokens: int, flags: dict[str, Any], binding: str, requests: int, idle: float
) -> None:
    """At 9,216 tokens and 4 slots a request; both pools are read at the concurrency of the smaller."""
    setting = weigh("today", "", slots, tokens, 4, Fraction(9216), ServerArgs(**flags))
    assert (setting.binding, setting.requests, round(setting.idle_percent, 2)) == (binding, requests, idle)
