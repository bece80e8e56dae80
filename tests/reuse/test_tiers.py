"""Host tiers: against models without a tree, and what was measured on servers."""

from __future__ import annotations

import random

import pytest
from brute_force import PooledBruteForce, tokens_of
from brute_force_tiers import TieredBruteForce
from present import present

from hybridcalc.formulas import Strategy
from hybridcalc.reuse.hosts import HiCache, Weight, hicache_size_for, hicache_tier, offload_tier
from hybridcalc.reuse.requests import BlockPool, Request
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Setup, simulate
from hybridcalc.reuse.tiers import TieredCache
from hybridcalc.reuse.vllm import vllm_policy
from hybridcalc.reuse.workloads import parse_workload


def request(chance: random.Random) -> Request:
    """Few names, so that prompts agree often."""
    ids: list[int] = []
    ends: list[int] = []
    for name in chance.choices(range(3), k=chance.randint(1, 5)):
        if name not in ids[-1:]:
            ids.append(name)
            ends.append((ends[-1] if ends else 0) + chance.randint(1, 9))
    return Request(tuple(ids), tuple(ends), chance.randint(1, ends[-1]))


@pytest.mark.parametrize("kind", ["extra", "ends"])
def test_four_small_pools_agree_with_the_brute_force(kind: str) -> None:
    """A thousand random workloads: slots and KV on the GPU and on the host all run out."""
    hits = 0
    for seed in range(500):
        chance = random.Random(seed)
        grid, slots, kv = chance.randint(1, 5), chance.randint(1, 6), chance.randint(46, 120)
        host, host_kv = chance.randint(1, 8), chance.randint(10, 150)
        if kind == "ends":
            policy, grid = sglang_policy(Strategy.NO_BUFFER), 1
        else:
            policy = sglang_policy(chunk=grid, track_interval=grid)
        brute = TieredBruteForce(kind, slots, grid=grid, decode_grid=grid, kv=kv, host=host, host_kv=host_kv)
        cache = TieredCache(policy, slots, kv_tokens=kv, host_slots=host, host_kv_tokens=host_kv)
        for _ in range(chance.randint(1, 40)):
            one = request(chance)
            assert cache.serve(one) == brute.serve(one), seed
            assert (cache.evictions, cache.host_hits) == (brute.evictions, brute.hits), seed
            assert [node.depth for node in cache.states] == [len(path) for path in brute.states], seed
            assert [node.depth for node in cache.host_only] == [len(path) for path in brute.given_up], seed
            nodes = sorted((present(n.parent).depth, n.depth, not n.gone, n.kept, n.host) for n in cache.tree.nodes())
            plain = sorted((s.begin, len(s.path), s.gpu, s.host, s.path in brute.copies) for s in brute.all)
            assert nodes == plain, seed
        hits += cache.host_hits
    assert hits > 500


def test_two_pools_of_blocks_agree_with_two_queues() -> None:
    """A thousand random workloads through vLLM's pool and chunks behind it, both small."""
    hits = 0
    for seed in range(1000):
        chance = random.Random(seed)
        block, per_state, per_page = chance.randint(2, 5), chance.randint(1, 3), chance.randint(1, 2)
        policy = vllm_policy(block)
        least = per_state * (policy.own_slots + 1 + 45 // block) + per_page * (46 // block + 1)
        pool = BlockPool(least + chance.randint(0, 20), per_state, per_page)
        behind = BlockPool(least + chance.randint(20, 150), per_state, per_page)
        cache = Setup(policy, 10**6, pool=pool, host_chunks=behind).cache()
        shape = {"per_state": per_state, "per_page": per_page, "block": block, "retention": 0}
        brute = PooledBruteForce(blocks=pool.blocks, own=policy.own_slots, **shape)
        host = PooledBruteForce(blocks=behind.blocks, own=0, **shape)
        for _ in range(chance.randint(1, 30)):
            one = request(chance)
            loaded = host.found(tokens_of(one), one.prompt)[1]
            assert cache.serve(one) == brute.serve(one, loaded=loaded), seed
            host.serve(one)
            assert [n.depth for n in cache.states] == [len(path) for kind, path in brute.queue if kind == "state"]
            there = present(cache.behind).states
            assert [n.depth for n in there] == [len(path) for kind, path in host.queue if kind == "state"]
        hits += cache.host_hits
    assert hits > 200


@pytest.mark.parametrize(("host_slots", "found"), [(565, 0), (734, 8)])
def test_of_200_prompts_the_first_8_are_found_where_the_host_has_slots_for_all_their_states(
    host_slots: int, found: int
) -> None:
    """Measured on SGLang (GLM-5.3-Flash, chunks of 4,096 tokens, a host tier of 2,680,896 tokens of KV): 200 prompts of
    8,448 tokens leave three states each, and of 8 that are sent again none is found with 565 host slots, all with 734,
    8,192 tokens each.
    """
    policy = sglang_policy(prefill_chunk=4096)
    workload = parse_workload("cyclic:prefixes=200,tokens=8448,rounds=2,output=8")
    setup = Setup(policy, 120, kv_tokens=400_000, host_slots=host_slots, host_kv_tokens=2_680_896)
    cache, requests = setup.cache(), list(workload.stream())
    for one in requests[:200]:
        assert cache.serve(one) == 0
    assert isinstance(cache, TieredCache)
    assert cache.host_states == min(host_slots, 600)
    assert cache.host_kv > 0.62 * 2_680_896  # a third of the KV pool stays empty either way
    assert [cache.serve(one) for one in requests[200:208]] == [8192 * (found > 0)] * 8
    assert cache.host_hits == found


def test_a_size_is_shared_as_the_pools_on_the_gpu_weigh() -> None:
    """A recorded start with 96 GB: 2.68 GiB of states and 1.07 of draft states beside 2.74 of KV make 40.41 GB of KV
    and 55.60 of states.
    """
    gib = 2**30
    weight = Weight(round(2.68 * gib / 49), 40.41e9 / 3_035_904)
    held = (round((0.10 + 2.58 + 1.05 + 0.02) * gib), round(2.74 * gib))
    host = hicache_tier(HiCache(size_gb=96), 48, 240_128, weight, held)
    assert present(host.kv_tokens) * weight.token / 1e9 == pytest.approx(40.41, rel=0.005)
    assert host.slots * weight.slot / 1e9 == pytest.approx(55.60, rel=0.005)


def test_a_ratio_is_of_each_pool() -> None:
    weight = Weight(100, 2.0, 64)
    assert hicache_tier(HiCache(), 50, 6400, weight)[:2] == (101, 12_864)
    assert hicache_tier(HiCache(ratio=1.5, state_ratio=4), 50, 6400, weight)[:2] == (201, 9664)
    assert hicache_tier(HiCache(), 50, None, weight)[:2] == (101, None)


def test_the_size_for_so_much_is_the_least_whole_one() -> None:
    weight, held = Weight(50_000_000, 4000.0), (2 * 10**9, 6 * 10**9)
    size = hicache_size_for(700, 5_000_000, weight, held)
    host = hicache_tier(HiCache(size_gb=size), 40, 1_500_000, weight, held)
    assert host.slots >= 700
    assert present(host.kv_tokens) >= 5_000_000
    less = hicache_tier(HiCache(size_gb=size - 1), 40, 1_500_000, weight, held)
    assert less.slots < 700 or present(less.kv_tokens) < 5_000_000


def test_chunks_hold_a_block_of_each_rank() -> None:
    """64 GiB for two ranks, blocks of 5,000,000 B: each chunk is two blocks in whole pages of 4,096 B."""
    host = offload_tier(64, 5_000_000, 2, BlockPool(0, 3, 1))
    assert host.chunks == BlockPool(64 * 2**30 // 10_002_432, 3, 1)
    assert host.bytes == present(host.chunks).blocks * 10_002_432 // 2


def test_kv_that_the_host_lacks_room_for_is_lost_with_its_states() -> None:
    """Slots for all, KV for half: what was sent again last is found, the rest is not."""
    workload = parse_workload("cyclic:prefixes=40,tokens=1000,rounds=2")
    few = Setup(sglang_policy(), 8, host_slots=1000, host_kv_tokens=20_000)
    outcome = simulate(workload, few, warmup_rounds=1)
    assert outcome.hits == 0
    outcome = simulate(workload, few._replace(host_kv_tokens=40_000), warmup_rounds=1)
    assert (outcome.hits, outcome.host_hits) == (40, 40)
    assert (outcome.loaded_states, outcome.loaded_tokens) == (40, 40 * 960)


def test_copies_are_counted_once_and_loads_each_time() -> None:
    workload = parse_workload("cyclic:prefixes=10,tokens=1000,rounds=3")
    outcome = simulate(workload, Setup(sglang_policy(), 2, host_slots=50))
    assert (outcome.stored_states, outcome.stored_tokens) == (10, 9600)
    assert (outcome.loaded_states, outcome.loaded_tokens) == (20, 2 * 9600)
