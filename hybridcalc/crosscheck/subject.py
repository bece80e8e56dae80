"""What is to be verified: the tensors of each rank of a server, at counts that a plan, a memory or the flags give.

A `Subject` is the same for both engines: a builder of tensors for each pipeline stage, the counts at full scale, and
the ranks that share each stage. Ranks of a stage are alike: attention and state are cut evenly, or refused.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.crosscheck.plan_figures import PlanFigures
from hybridcalc.crosscheck.sglang_tensors import full_sizes, stage_tensors
from hybridcalc.crosscheck.tensors import Builder, Sizes
from hybridcalc.crosscheck.vllm_tensors import block_tensors
from hybridcalc.crosscheck.vllm_tensors import full_sizes as full_blocks
from hybridcalc.deployment import Rest
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.planner import Prepared, allocation, prepare, size
from hybridcalc.engines.sglang.pools import limit_is_slots, per_worker_limit
from hybridcalc.engines.sglang.unified import is_unified
from hybridcalc.engines.vllm import planner as vllm
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.units import GIB

ASSUMED_REQUESTS, ASSUMED_TOKENS = 64, 4096
"""Requests, and tokens of each, where neither a memory nor the flags say how large the pools are."""
ENDLESS_GIB = 2.0**30
"""A memory that never limits what is stated."""


class Rank(NamedTuple):
    """One process of the server: its number, pipeline stage, and place in the stage."""

    rank: int
    stage: int
    tp_rank: int
    dp_rank: int


class Skipped(NamedTuple):
    """A preset that is passed over, and why: ``kind`` is "no state", "refused" or "memory"."""

    model: str
    reason: str
    kind: str


class Subject(NamedTuple):
    """A server to verify. ``plan`` has the figures that a saved plan states, to be held against it."""

    engine: str
    engine_version: str
    model: Architecture
    args: Any
    stages: tuple[Builder, ...]
    full: Sizes
    page: int
    ranks: tuple[Rank, ...]
    plan: PlanFigures | None
    notes: tuple[str, ...]


def sglang_subject(
    model: Architecture,
    args: ServerArgs,
    rest: Rest | None,
    *,
    plan: PlanFigures | None = None,
    counts: tuple[int, int, int] | None = None,
    notes: tuple[str, ...] = (),
) -> Subject:
    """An SGLang server: with ``rest`` as its start-up sizes it, with ``counts`` (K, T, R) as a plan says, else as the
    flags do. Raises Refusal for what the engine does not start with.
    """
    ready = prepare(model, args)
    if counts is not None:
        slots, tokens, requests = counts
        sizing = _stated(ready, slots, tokens)._replace(requests=requests)
    elif rest is not None:
        sizing = size(ready, rest.likely_gib)
    else:
        slots, tokens = _assumed(ready)
        sizing = _stated(ready, slots, tokens)
        notes += (f"no memory is given: sized for {slots:,} slots and {tokens:,} tokens; --rest sizes as a boot does",)
    pools = allocation(ready, sizing)
    if is_unified(ready):
        notes += ("unified memory: slots and KV share one pool; verified are the tensors of pools apart",)
    if len(ready.stages) > 1:
        notes += ("each pipeline stage is verified; the ranks of a stage are alike",)
    return Subject(
        engine="sglang",
        engine_version=ready.rules.version,
        model=model,
        args=args,
        stages=tuple(partial(stage_tensors, ready, stage) for stage in range(len(ready.stages))),
        full=full_sizes(ready, sizing, pools),
        page=args.tokens_per_page,
        ranks=_ranks(args),
        plan=plan,
        notes=notes,
    )


def vllm_subject(
    model: Architecture,
    args: EngineArgs,
    rest: Rest | None,
    *,
    plan: PlanFigures | None = None,
    blocks: int | None = None,
    notes: tuple[str, ...] = (),
) -> Subject:
    """A vLLM server: with ``rest`` as its start-up sizes it, with ``blocks`` as a plan says, else for 64 requests.
    Raises Refusal for what the engine does not start with.
    """
    ready = vllm.prepare(model, args)
    if blocks is not None:
        sizing = vllm.size(ready, blocks * ready.bytes_per_block)._replace(blocks=blocks)
    elif rest is not None:
        sizing = vllm.size(ready, int(rest.likely_gib * GIB))
    else:
        needed = max(ready.blocks_at(ready.length), ASSUMED_REQUESTS * ready.blocks_at(ASSUMED_TOKENS))
        sizing = vllm.size(ready, max(needed + 1, args.seqs) * ready.bytes_per_block)
        notes += (f"no memory is given: sized for {sizing.blocks:,} blocks; --available sizes as a boot does",)
    if args.pipeline_parallel_size > 1:
        notes += ("pipeline stages are not told apart: the buffers are those of all layers",)
    return Subject(
        engine="vllm",
        engine_version=ready.rules.version,
        model=model,
        args=args,
        stages=(partial(block_tensors, ready),),
        full=full_blocks(sizing),
        page=1,
        ranks=tuple(Rank(rank, 0, rank, 0) for rank in range(args.tensor_parallel_size)),
        plan=plan,
        notes=notes,
    )


def _stated(ready: Prepared, slots: int, tokens: int) -> Any:
    """The start-up's own sizing with K and T pinned: windows and requests follow by its rules."""
    args = replace(ready.args, max_mamba_cache_size=slots * ready.args.attn_dp_size, max_total_tokens=max(tokens, 1))
    return size(ready._replace(args=args), ENDLESS_GIB)


def _assumed(ready: Prepared) -> tuple[int, int]:
    """K and T from the flags, and where they do not say from 64 requests of 4,096 tokens, in whole pages."""
    args, each = ready.args, ready.slots.count
    limit = per_worker_limit(args, ready.rules)
    if args.max_mamba_cache_size is not None:
        slots = args.max_mamba_cache_size // args.attn_dp_size
    elif limit_is_slots(args) and limit is not None:
        slots = limit
    else:
        slots = (limit or ASSUMED_REQUESTS) * each
    page = args.tokens_per_page
    tokens = args.max_total_tokens or max(1, min(limit or slots, slots // each)) * ASSUMED_TOKENS
    if args.max_total_tokens is None and ready.model.window_attention is not None:
        tokens = max(tokens, int((2 * (ready.model.window or 0) + 4 * page) / args.swa_full_tokens_ratio))
    return slots, max(1, -(-tokens // page)) * page


def _ranks(args: ServerArgs) -> tuple[Rank, ...]:
    return tuple(
        Rank(stage * args.tp_size + tp, stage, tp, tp // args.attn_tp_size)
        for stage in range(args.pp_size)
        for tp in range(args.tp_size)
    )
