"""The simulator against a model that compares every prompt with every checkpoint, on random small workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from brute_force import BruteForce, PooledBruteForce, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from hybridcalc.formulas import Strategy
from hybridcalc.reuse import tree
from hybridcalc.reuse.cache import PrefixCache
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.requests import BlockPool, Request
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Setup
from hybridcalc.reuse.vllm import vllm_policy
from hybridcalc.reuse.workloads import parse_workload


@st.composite
def requests(draw: st.DrawFn, *, longest: int = 9) -> Request:
    """Few names, so that prompts agree often; one name may be of unequal lengths, and agrees as far as the shorter."""
    runs = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, longest)), min_size=1, max_size=5))
    ids: list[int] = []
    ends: list[int] = []
    for name, length in runs:
        if ids and name == ids[-1]:
            continue
        ids.append(name)
        ends.append((ends[-1] if ends else 0) + length)
    prompt = draw(st.integers(1, ends[-1]))
    return Request(tuple(ids), tuple(ends), prompt)


WORKLOADS = st.lists(requests(), min_size=1, max_size=25)


def agree(policy: Policy, brute: BruteForce, workload: list[Request], slots: int, kv: int | None = None) -> None:
    """Both say the same of every request, and hold the same states and the same KV after it."""
    cache = PrefixCache(policy, slots, kv_tokens=kv)
    cache.most_bare = brute.most_bare
    for request in workload:
        assert cache.serve(request) == brute.serve(request)
        assert cache.evictions == brute.evictions
        assert [node.depth for node in cache.states] == [len(path) for path in brute.states]
        stretches = sorted((present(node.parent).depth, present(node).depth) for node in cache.tree.nodes())
        assert stretches == sorted((begin, len(path)) for path, begin in brute.stretches)


@settings(max_examples=200)
@given(WORKLOADS, st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.sampled_from((3, 8, 10**6)))
def test_extra_buffers_agree_with_the_brute_force(
    workload: list[Request], slots: int, grid: int, track: int, chunk: int
) -> None:
    policy = sglang_policy(chunk=grid, track_interval=track * grid, prefill_chunk=chunk)
    agree(policy, BruteForce("extra", slots, grid=grid, chunk=chunk, decode_grid=track * grid), workload, slots)


@settings(max_examples=150)
@given(WORKLOADS, st.integers(1, 6), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4)), st.integers(1, 3))
def test_pages_agree_with_the_brute_force(
    workload: list[Request], slots: int, page: int, chunk: int, track: int
) -> None:
    """KV agrees in whole pages, and the grid is the larger of page and chunk."""
    grid = max(page, chunk)
    policy = sglang_policy(page=page, chunk=chunk, track_interval=track * grid)
    agree(policy, BruteForce("extra", slots, page=page, grid=grid, decode_grid=track * grid), workload, slots)


@settings(max_examples=150)
@given(WORKLOADS, st.integers(1, 6), st.sampled_from((3, 8, 10**6)), st.sampled_from((-1, 1, 2, 3)))
def test_no_buffer_and_path_caps_agree_with_the_brute_force(
    workload: list[Request], slots: int, chunk: int, cap: int
) -> None:
    policy = sglang_policy(Strategy.NO_BUFFER, prefill_chunk=chunk, path_cap=cap)
    agree(policy, BruteForce("ends", slots, chunk=chunk, cap=cap), workload, slots)


@settings(max_examples=200)
@given(
    WORKLOADS,
    st.integers(1, 6),
    st.sampled_from(((4, 4), (4, 2), (4, 1), (6, 3), (8, 2))),
    st.sampled_from((0, None, 2)),
)
def test_align_mode_agrees_with_the_brute_force(
    workload: list[Request], slots: int, blocks: tuple[int, int], retention: int | None
) -> None:
    block, unit = blocks
    kept = retention * block if retention else retention
    policy = vllm_policy(block, unit=unit, retention=kept)
    grid = block if kept is None else kept
    brute = BruteForce("align", slots, page=unit, grid=block, decode_grid=grid, retention=kept)
    agree(policy, brute, workload, slots)


@settings(max_examples=250)
@given(WORKLOADS, st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 4), st.booleans())
def test_nodes_of_long_requests_keep_their_own_runs_alone(
    workload: list[Request], slots: int, grid: int, paged: bool, shared: int, bounded: bool
) -> None:
    """Whatever number of runs is long: nodes that share them and nodes that do not are of one tree."""
    page, kv = grid if paged else 1, 60 if bounded else None
    policy = sglang_policy(page=page, chunk=grid, track_interval=grid)
    brute = BruteForce("extra", slots, page=page, grid=grid, decode_grid=grid, kv=kv or 10**9)
    with patch.object(tree, "SHARED_RUNS", shared):
        agree(policy, brute, workload, slots, kv)


def test_a_state_above_where_a_request_leaves_the_tree_is_gone_on_from_there() -> None:
    """The fourth forks at 5, saves a state at 3; the bound drops the fork's KV before the answer's state is saved."""
    prompts = (((1, 0, 2), (5, 8, 14), 10), ((0, 2), (7, 9), 7), ((0, 2, 0, 1), (3, 5, 8, 12), 4))
    last = (((1, 2, 0, 1), (5, 6, 13, 16), 13), ((1, 0, 2), (5, 8, 14), 1))
    policy, brute = sglang_policy(chunk=3, track_interval=3), BruteForce("extra", 4, grid=3, decode_grid=3, most_bare=0)
    agree(policy, brute, [Request(*each) for each in (*prompts, *last)], 4)


@settings(max_examples=100)
@given(WORKLOADS, st.integers(1, 6), st.sampled_from((2, 3, 5)))
def test_all_mode_agrees_with_the_brute_force(workload: list[Request], slots: int, block: int) -> None:
    policy = vllm_policy(block, every_block=True)
    agree(policy, BruteForce("all", slots, page=block, grid=block, decode_grid=block), workload, slots)


@settings(max_examples=400)
@given(
    WORKLOADS,
    st.integers(1, 6),
    st.sampled_from(("extra", "paged", "ends", "align", "all")),
    st.integers(2, 4),
    st.sampled_from((4, 10**6)),
    st.sampled_from((-1, 1)),
    st.integers(0, 3),
)
def test_kv_beyond_the_bound_goes_as_in_the_brute_force(
    workload: list[Request], slots: int, kind: str, grid: int, chunk: int, cap: int, most_bare: int
) -> None:
    """The bound is so low that leaves without a state go all the time, up their paths too."""
    if kind == "ends":
        policy = sglang_policy(Strategy.NO_BUFFER, prefill_chunk=chunk, path_cap=cap)
        brute = BruteForce("ends", slots, chunk=chunk, cap=cap, most_bare=most_bare)
    elif kind in ("align", "all"):
        policy = vllm_policy(grid, every_block=kind == "all")
        track = grid if kind == "all" else 0
        brute = BruteForce(kind, slots, page=grid, grid=grid, decode_grid=track, most_bare=most_bare)
    else:
        page = grid if kind == "paged" else 1
        policy = sglang_policy(page=page, chunk=grid, track_interval=grid, prefill_chunk=chunk, path_cap=cap)
        chunk = max(chunk // page * page, page)
        brute = BruteForce(
            "extra", slots, page=page, grid=grid, chunk=chunk, decode_grid=grid, cap=cap, most_bare=most_bare
        )
    agree(policy, brute, workload, slots)


@pytest.mark.parametrize("flags", [{"page_size": 256}, {"page_size": 64, "slots": 40}, {"slots": 3}])
def test_a_long_workload_stays_within_the_bound_on_kv_without_states(flags: dict[str, Any]) -> None:
    """Pages far larger than the turns leave branching points everywhere: more than the bound holds."""
    now = Settings("sglang", **{"slots": 200, **flags})
    cache = now.setup.cache()
    for request in parse_workload("chat:sessions=2000,turns=5,think=5").stream():
        cache.serve(request)
    nodes = list(cache.tree.nodes())
    assert {node for node in nodes if node.state} == set(cache.states)
    assert {node for node in nodes if not (node.state or node.children)} == set(cache.bare)
    assert len(cache.bare) <= cache.most_bare


@given(WORKLOADS, st.integers(1, 6), st.integers(1, 4))
def test_a_hit_is_a_prefix_of_something_served_before(workload: list[Request], slots: int, grid: int) -> None:
    """Whatever is held: a request never reuses more tokens than it shares with an earlier one, nor its last one."""
    cache = PrefixCache(sglang_policy(chunk=grid, track_interval=grid), slots)
    seen: list[tuple[Any, ...]] = []
    for request in workload:
        tokens = tokens_of(request)
        shared = max((len([*_leading(tokens, other)]) for other in seen), default=0)
        assert cache.serve(request) <= min(shared, request.prompt - 1)
        seen.append(tokens)


def _leading(one: tuple[Any, ...], other: tuple[Any, ...]) -> Iterator[Any]:
    for a, b in zip(one, other, strict=False):
        if a != b:
            return
        yield a


@settings(max_examples=400)
@given(
    WORKLOADS,
    st.integers(1, 6),
    st.integers(46, 120),
    st.sampled_from(("extra", "paged", "ends", "align", "all")),
    st.integers(1, 4),
    st.sampled_from((4, 10**6)),
    st.sampled_from((-1, 1)),
)
def test_two_small_pools_agree_with_the_brute_force(
    workload: list[Request], slots: int, kv: int, kind: str, grid: int, chunk: int, cap: int
) -> None:
    """States and KV both run out; each has a list of its own, and the end of a path goes whole."""
    if kind == "ends":
        policy = sglang_policy(Strategy.NO_BUFFER, prefill_chunk=chunk, path_cap=cap)
        brute = BruteForce("ends", slots, chunk=chunk, cap=cap, kv=kv)
    elif kind in ("align", "all"):
        policy = vllm_policy(grid, every_block=kind == "all")
        brute = BruteForce(kind, slots, page=grid, grid=grid, decode_grid=grid if kind == "all" else 0, kv=kv)
    else:
        page = grid if kind == "paged" else 1
        policy = sglang_policy(page=page, chunk=grid, track_interval=grid, prefill_chunk=chunk, path_cap=cap)
        chunk = max(chunk // page * page, page)
        brute = BruteForce("extra", slots, page=page, grid=grid, chunk=chunk, decode_grid=grid, cap=cap, kv=kv)
    agree(policy, brute, workload, slots, kv)


@settings(max_examples=300)
@given(
    WORKLOADS,
    st.integers(0, 30),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(2, 5),
    st.sampled_from((0, None, 2)),
)
def test_one_pool_of_blocks_agrees_with_a_queue_of_them(
    workload: list[Request], more: int, per_state: int, per_page: int, block: int, retention: int | None
) -> None:
    """vLLM: whatever a block holds, the one unused for longest goes; a page of KV at a time."""
    kept = retention * block if retention else retention
    policy = vllm_policy(block, retention=kept)
    blocks = per_state * (policy.own_slots + 1 + 45 // block) + per_page * (46 // block + 1) + more
    pool = BlockPool(blocks, per_state, per_page)
    cache = Setup(policy, 10**6, pool=pool).cache()
    brute = PooledBruteForce(
        blocks=blocks, per_state=per_state, per_page=per_page, own=policy.own_slots, block=block, retention=kept
    )
    for request in workload:
        assert cache.serve(request) == brute.serve(request)
        assert [node.depth for node in cache.states] == [len(path) for kind, path in brute.queue if kind == "state"]
        assert cache.tree.tokens == block * sum(kind == "kv" for kind, _ in brute.queue)
