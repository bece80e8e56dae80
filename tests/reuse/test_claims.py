"""What write-ups and engine notes say of prefix reuse on state slots, simulated."""

from __future__ import annotations

from typing import Any

import pytest

from hybridcalc.formulas import Strategy, cyclic_hit_rate
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Outcome, Setup, simulate
from hybridcalc.reuse.vllm import vllm_policy
from hybridcalc.reuse.workloads import parse_workload

SGLANG = sglang_policy()


def run(text: str, policy: Policy, slots: int, *, warmup_rounds: int = 0, **setup: Any) -> Outcome:
    return simulate(parse_workload(text), Setup(policy, slots, **setup), warmup_rounds=warmup_rounds)


@pytest.mark.parametrize("prefixes", [128, 384, 640])
@pytest.mark.parametrize("slots", [256, 512])
def test_reuse_collapses_when_distinct_prefixes_exceed_the_pool(prefixes: int, slots: int) -> None:
    """Published figure E4: 256 slots serve 128 prefixes and collapse at 384; 512 serve 384 and collapse at 640."""
    outcome = run(f"cyclic:prefixes={prefixes},tokens=1000,rounds=4", SGLANG, slots, warmup_rounds=1)
    assert outcome.requests == 3 * prefixes
    assert outcome.hit_rate == cyclic_hit_rate(prefixes, slots)
    assert (outcome.evictions > 0) == (prefixes > slots)


def test_the_last_grid_point_below_the_prompts_end_is_reused() -> None:
    """1,000 tokens on a grid of 64: 960 are reused, since the last token is always computed."""
    outcome = run("cyclic:prefixes=8,tokens=1000,rounds=3", SGLANG, 8, warmup_rounds=1)
    assert (outcome.hit_tokens, outcome.recomputed_tokens) == (16 * 960, 16 * 40)


@pytest.mark.parametrize("prefixes", range(250, 522, 45))
def test_an_int8_pool_of_twice_the_slots_moves_the_knee_from_256_to_512(prefixes: int) -> None:
    text = f"cyclic:prefixes={prefixes},tokens=1000,rounds=3"
    plain = Settings("sglang", 256).setup
    int8 = Settings("sglang", 256, int8_slots=512).setup
    workload = parse_workload(text)
    assert simulate(workload, plain, warmup_rounds=1).hit_rate == cyclic_hit_rate(prefixes, 256)
    assert simulate(workload, int8, warmup_rounds=1).hit_rate == cyclic_hit_rate(prefixes, 512)


@pytest.mark.parametrize(("slots", "survives"), [(14, False), (29, True)])
def test_of_twenty_conversations_the_first_is_evicted_with_14_slots_and_survives_with_29(
    slots: int, survives: bool
) -> None:
    """The first conversation comes back after nineteen others have begun: breadth costs a slot each."""
    cache = Setup(SGLANG, slots).cache()
    requests = list(parse_workload("chat:sessions=20,turns=2,user=200,output=40").stream())
    for request in requests[:20]:
        cache.serve(request)
    assert (cache.serve(requests[20]) > 0) == survives
    assert (cache.evictions > 0) != survives


def test_one_conversation_of_14_turns_never_evicts_at_14() -> None:
    """A turn leaves one state, and each later turn reuses the one before: depth is nearly free."""
    outcome = run("chat:sessions=1,turns=14,user=100,output=20", SGLANG, 14)
    assert (outcome.evictions, outcome.hits, outcome.requests) == (0, 13, 14)
    assert run("chat:sessions=1,turns=60,user=100,output=20", SGLANG, 14).hits == 59


ALIGN = vllm_policy(784)


@pytest.mark.parametrize(("shared", "private", "reused"), [(1500, 700, 0), (1600, 600, 1568), (500, 1700, 0)])
def test_align_mode_reuses_nothing_where_the_only_checkpoint_lies_past_the_shared_part(
    shared: int, private: int, reused: int
) -> None:
    """A prompt of 2,200 tokens keeps its state at 1,568, the last block of 784: past 1,500 tokens, within 1,600."""
    outcome = run(f"shared:tokens={shared},private={private},rounds=2,output=1", ALIGN, 64, warmup_rounds=1)
    assert outcome.hit_tokens == reused


def test_a_junction_is_saved_when_the_second_request_meets_it() -> None:
    """The second request stops at 784, where blocks agree and states do not; the third reuses that."""
    outcome = run("shared:tokens=1500,private=700,rounds=3,output=1", ALIGN, 64, warmup_rounds=2)
    assert outcome.hit_tokens == 784


@pytest.mark.parametrize("policy", [ALIGN, vllm_policy(784, retention=None), vllm_policy(784, every_block=True)])
def test_a_prefix_shorter_than_the_block_never_hits(policy: Policy) -> None:
    assert run("shared:tokens=783,private=900,rounds=50", policy, 64).hits == 0
    assert run("shared:tokens=784,private=900,rounds=50", policy, 64).hits > 0


def test_a_fine_match_unit_finds_a_prefix_shorter_than_the_block() -> None:
    """With a unit of 16 tokens states lie where prompts end, to 16 tokens: a prompt sent again is reused."""
    outcome = run("cyclic:prefixes=4,tokens=700,rounds=2", vllm_policy(784, unit=16), 64, warmup_rounds=1)
    assert outcome.hit_tokens == 4 * (699 // 16 * 16)
    assert run("cyclic:prefixes=4,tokens=700,rounds=2", ALIGN, 64, warmup_rounds=1).hit_tokens == 0


@pytest.mark.parametrize(("shared", "private", "reused"), [(1500, 700, 1280), (1600, 600, 1536), (500, 1700, 256)])
def test_sglangs_grid_of_256_finds_them(shared: int, private: int, reused: int) -> None:
    """A kernel chunk of 256 tokens: the branching point is saved by the second request and found by the third."""
    policy = sglang_policy(chunk=256)
    outcome = run(f"shared:tokens={shared},private={private},rounds=3,output=1", policy, 64, warmup_rounds=2)
    assert outcome.hit_tokens == reused


@pytest.mark.parametrize(("shared", "private", "reused"), [(4000, 200, 3840), (900, 200, 0)])
def test_all_mode_reuses_whole_blocks(shared: int, private: int, reused: int) -> None:
    """Published figure C7: 3,840 of 4,000 shared tokens in blocks of 1,280, nothing of 900."""
    policy = vllm_policy(1280, every_block=True)
    outcome = run(f"shared:tokens={shared},private={private},rounds=2,output=1", policy, 64, warmup_rounds=1)
    assert (outcome.hit_tokens, outcome.recomputed_tokens) == (reused, shared + private - reused)


def test_decode_keeps_only_the_last_state_of_its_interval() -> None:
    """600 tokens answered after 100: states at 256 and 512 are made, the latter is kept, and the next turn finds it."""
    cache = Setup(SGLANG, 8).cache()
    first, second = parse_workload("chat:sessions=1,turns=2,user=100,output=600").stream()
    assert cache.serve(first) == 0
    assert sorted(node.depth for node in cache.states) == [64, 512]
    assert cache.serve(second) == 512


def test_each_prefill_chunk_leaves_a_state() -> None:
    cache = Setup(sglang_policy(prefill_chunk=2048), 8).cache()
    (request,) = parse_workload("shared:tokens=4000,private=1000,rounds=1,output=1").stream()
    cache.serve(request)
    assert sorted(node.depth for node in cache.states) == [2048, 4096, 4992]


def test_a_path_cap_gives_up_interior_states_and_keeps_forks_and_the_tail() -> None:
    policy = sglang_policy(path_cap=2)
    cache = Setup(policy, 100).cache()
    for request in parse_workload("chat:sessions=1,turns=6,user=128,output=64").stream():
        cache.serve(request)
    assert len(cache.states) == 2
    assert cache.capped > 0
    assert max(cache.states, key=lambda node: node.depth).children == []


def test_lazy_buffers_and_no_buffer_hold_fewer_slots_beside_the_states() -> None:
    own = {
        strategy: sglang_policy(strategy, overlap=strategy is not Strategy.NO_BUFFER).own_slots for strategy in Strategy
    }
    assert own == {Strategy.NO_BUFFER: 1, Strategy.EXTRA_BUFFER: 3, Strategy.EXTRA_BUFFER_LAZY: 2}
    for strategy, each in own.items():
        setup = Settings("sglang", 100, running=8, strategy=strategy).setup
        assert setup.cached_slots == 100 - 8 * each


def test_a_host_tier_serves_what_the_gpu_gave_up() -> None:
    text = "cyclic:prefixes=40,tokens=1000,rounds=4"
    assert run(text, SGLANG, 16, warmup_rounds=1).hits == 0
    with_host = run(text, SGLANG, 16, warmup_rounds=1, host_slots=64)
    assert with_host.hit_rate == 1
    assert with_host.host_hits == with_host.hits == 120


def test_a_preempted_request_replays_what_lies_past_its_deepest_state() -> None:
    """1,000 tokens and 300 answered: the state at 960 is there, 340 tokens are computed again."""
    workload = parse_workload("shared:tokens=500,private=500,rounds=1,output=600")
    (request,) = workload.stream()
    workload = workload._replace(stream=lambda: iter([request._replace(preempted=300)]), preempts=True)
    outcome = simulate(workload, Setup(SGLANG, 8))
    assert (outcome.requests, outcome.preemptions, outcome.replayed_tokens) == (1, 1, 340)
    assert outcome.recomputed_tokens == 1000 + 340


def test_kv_pressure_preempts_the_youngest_and_everything_is_still_served() -> None:
    workload = parse_workload("shared:tokens=600,private=400,rounds=40,output=400")
    setup = Setup(SGLANG, 64, running=4, kv_tokens=2500)
    outcome = simulate(workload, setup)
    assert outcome.requests == 40
    assert outcome.preemptions > 0
    assert outcome.kv_evictions > 0


@pytest.mark.parametrize(
    "text", ["chat:sessions=8,turns=4,think=10", "fanout", "rag:rounds=2", "cyclic:zipf=1.2", "shared:preempt=0.3"]
)
def test_one_request_at_a_time_is_the_same_step_by_step(text: str) -> None:
    """`serve` is start, prefill and finish in one: the fast way and the general way agree."""
    fast = Setup(SGLANG, 24).cache()
    slow = Setup(SGLANG, 24, kv_tokens=10**9).cache()
    for request in parse_workload(text, seed=3).stream():
        assert fast.serve(request) == slow.serve(request)
    assert fast.evictions == slow.evictions
    assert [node.depth for node in fast.states] == [node.depth for node in slow.states]


@pytest.mark.parametrize(
    "policy", [SGLANG, ALIGN, sglang_policy(Strategy.NO_BUFFER)], ids=["sglang", "vllm", "no_buffer"]
)
def test_memory_is_bounded_by_the_cache_and_not_by_the_trace(policy: Policy) -> None:
    """Ten times the requests leave no more nodes; KV without a state is dropped, oldest first."""

    def nodes(rounds: int) -> int:
        cache = Setup(policy, 40).cache()
        cache.most_bare = 60
        for request in parse_workload(f"chat:sessions=30,turns=3,user=900,rounds={rounds}").stream():
            cache.serve(request)
            assert len(cache.bare) <= 60
        return sum(1 for _ in cache.tree.nodes())

    assert nodes(60) <= nodes(6) * 1.2
