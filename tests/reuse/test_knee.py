"""How many slots a workload wants: the stack distances against plain simulation, and the search."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.formulas import Strategy
from hybridcalc.reuse.knee import SHARE, StackOrder, find_knee, is_stack, least_cached
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Setup, simulate
from hybridcalc.reuse.vllm import vllm_policy
from hybridcalc.reuse.workloads import parse_workload

SGLANG = sglang_policy()
WORKLOADS = ["cyclic:prefixes=60,rounds=3", "cyclic:prefixes=60,rounds=6,zipf=1", "chat:sessions=30,turns=4",
             "chat:sessions=30,turns=4,system=900,growth=64,think=20", "fanout:parents=4,agents=3,rounds=2",
             "rag:documents=40", "shared:rounds=30"]  # fmt: skip


@pytest.mark.parametrize("text", WORKLOADS)
@pytest.mark.parametrize(
    "setup",
    [
        Setup(SGLANG, 16),
        Setup(SGLANG, 64, running=4),
        Setup(vllm_policy(256), 16),
        Setup(SGLANG, 16, checkpoint_slots=32),
        Setup(sglang_policy(path_cap=2), 16),
        Setup(SGLANG, 16, kv_tokens=200_000),
    ],
    ids=["alone", "running", "vllm", "int8", "capped", "kv"],
)
def test_at_the_knee_reuse_reaches_95_percent_of_its_limit_and_one_slot_fewer_does_not(text: str, setup: Setup) -> None:
    workload = parse_workload(text, seed=1)
    knee = find_knee(workload, setup, warmup_rounds=1)
    assert knee.cached_slots is not None

    def enough(slots: int) -> bool:
        outcome = simulate(workload, setup.with_cached(slots), warmup_rounds=1)
        return outcome.hits >= SHARE * knee.limit.hits and outcome.hit_tokens >= SHARE * knee.limit.hit_tokens

    assert enough(knee.cached_slots)
    assert knee.cached_slots == least_cached(setup) or not enough(knee.cached_slots - 1)
    assert knee.limit == simulate(workload, setup.with_cached(10**6), warmup_rounds=1)
    if not is_stack(setup):
        assert knee.method == "search"


@pytest.mark.parametrize("prefixes", [1, 2, 128, 384])
def test_the_knee_of_distinct_prefixes_is_their_number_found_in_one_pass(prefixes: int) -> None:
    knee = find_knee(parse_workload(f"cyclic:prefixes={prefixes},rounds=3"), Setup(SGLANG, 7), warmup_rounds=1)
    assert (knee.slots, knee.method) == (prefixes, "stack distance")


def test_running_requests_come_on_top_of_the_states() -> None:
    knee = find_knee(parse_workload("cyclic:prefixes=100"), Setup(SGLANG, 64, running=4), warmup_rounds=1)
    assert (knee.slots, knee.cached_slots) == (112, 100)


@pytest.mark.parametrize("policy", [SGLANG, vllm_policy(784), sglang_policy(Strategy.NO_BUFFER, overlap=False)])
@pytest.mark.parametrize("running", [1, 2, 4])
@pytest.mark.parametrize("text", ["shared:tokens=1600,rounds=40", "chat:sessions=4,turns=6,user=900"])
def test_no_pool_that_running_requests_fit_in_is_passed_over(policy: Policy, running: int, text: str) -> None:
    """What ended leaves its slots to the states, so that a pool for the running requests alone may be enough."""
    least, workload = running * policy.slots_per_request, parse_workload(text)
    knee = find_knee(workload, Setup(policy, least, running=running))
    pools = [Setup(policy, slots, running=running) for slots in range(least, least + 30)]
    enough = [pool.slots for pool in pools if knee.reached_by(simulate(workload, pool))]
    assert knee.slots == (enough[0] if knee.limit.hits else None)
    assert least_cached(pools[0]) == pools[0].cached_slots
    if policy == vllm_policy(784) and running == 4 and text.startswith("shared"):
        assert (knee.slots, knee.cached_slots) == (8, 0)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "setup",
    [
        Setup(vllm_policy(64, retention=None), 9),
        Setup(SGLANG, 16, running=2),
        Setup(sglang_policy(path_cap=1), 9),
        Setup(SGLANG, 9, host_slots=4),
        Setup(SGLANG, 24, kv_tokens=9000),
    ],
)
def test_slots_that_reach_what_is_asked_are_never_fewer_than_the_knee(setup: Setup, seed: int) -> None:
    """The answer never says that N slots suffice where fewer that were given do, even if reuse is not monotone."""
    workload = parse_workload("chat:sessions=6,turns=4,user=90,output=70,think=9,system=100", seed=seed)
    for more in range(8):
        now = setup.with_cached(setup.cached_slots + more)
        given = simulate(workload, now)
        knee = find_knee(workload, now, given=given)
        if knee.slots is not None:
            assert not knee.reached_by(given) or knee.slots <= now.slots
            assert knee.limit.hit_tokens >= given.hit_tokens or is_stack(now)


def test_a_workload_that_reuses_nothing_has_no_knee() -> None:
    knee = find_knee(parse_workload("cyclic:prefixes=5,tokens=60"), Setup(SGLANG, 7))
    assert (knee.slots, knee.limit.hits) == (None, 0)


@given(st.lists(st.tuples(st.sampled_from(["use", "drop"]), st.integers(0, 12)), max_size=400), st.integers(2, 9))
def test_stack_distances_are_places_in_the_order_of_use(steps: list[tuple[str, int]], size: int) -> None:
    """Against a list; the stamps run out every few steps."""
    order: Any = StackOrder()
    plain: list[int] = []
    order.counts = [0] * (size + 1)
    for step, node in steps:
        if step == "drop":
            if node in plain:
                plain.remove(node)
                del order[node]
        elif node in plain:
            order.used = 0
            order.move_to_end(node)
            assert order.used == len(plain) - plain.index(node)
            plain.remove(node)
            plain.append(node)
        else:
            order[node] = None
            plain.append(node)
        assert list(order) == plain
    assert isinstance(order, OrderedDict)
