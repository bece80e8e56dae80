"""SGLang in this room: its servers to verify, what its plans state and its tensors show, its installed package."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import rule_for
from hybridcalc.crosscheck.plan_figures import Figures as Figured
from hybridcalc.crosscheck.plan_figures import PlanFigures, held_of, paired, slope, stated_memory
from hybridcalc.crosscheck.sglang_tensors import full_sizes, stage_tensors
from hybridcalc.crosscheck.subject import ASSUMED_REQUESTS, ASSUMED_TOKENS, ENDLESS_GIB, Rank, Subject
from hybridcalc.crosscheck.tensors import Sizes
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import DSA_PAGE
from hybridcalc.engines.sglang.planner import Prepared, allocation, prepare, size
from hybridcalc.engines.sglang.pools import limit_is_slots, per_worker_limit
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.engines.sglang.sizes import state_ranks
from hybridcalc.errors import NotModelled

if TYPE_CHECKING:  # a plan is read, and refused, without torch
    from hybridcalc.crosscheck.engine_package import EngineRow
    from hybridcalc.crosscheck.verification import Row, Shard

COUNTS = ("max_mamba_cache_size", "max_total_num_tokens", "max_running_requests")
SMALL = Sizes(slots=2, rows=2, tokens=1, window_tokens=1, checkpoints=1)
"""Two slots and one request with its padding row: what a tensor of the engine has beyond that is its padding."""


def subject(
    model: Architecture,
    args: ServerArgs,
    rest: Rest | None,
    *,
    plan: PlanFigures | None = None,
    counts: tuple[int, ...] | None = None,
    notes: tuple[str, ...] = (),
) -> Subject:
    """An SGLang server: with ``rest`` as its start-up sizes it, with ``counts`` (K, T, R) as a plan says, else as the
    flags do. Raises Refusal for what the engine does not start with.
    """
    if model.state is None:
        raise NotModelled(f"{model.name} has no recurrent layer: there is no state to verify")
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
    if ready.unified:
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


def stated(document: Mapping[str, Any], ready: Prepared, where: str) -> PlanFigures:
    """The figures of an SGLang plan. Raises InputError for one that is absent or of another kind, and Refusal where
    nothing starts on the memory it states.
    """
    rest = exact_rest(stated_memory(document, where))
    sizing = size(ready, rest.likely_gib)
    plan = Plan(ready, sizing, sizing, sizing, allocation(ready, sizing), rest, Workload())
    found = held_of(plan, "state_requests", "kv_requests") | {"budget": [line.to_dict() for line in plan.budget]}
    return paired(document, found, where)


def shown(rules: Figured, shards: Mapping[int, Shard]) -> dict[str, Any]:
    """What the tensors of an SGLang server show: pools of stage 0; slots and layers over all stages."""
    first, rows = shards[0], [row for shard in shards.values() for row in shard.rows]
    own = {name: first.figure(name) for name in ("conv_state", "ssm_state", "intermediate_ssm")}
    own["intermediate_conv_window"] = first.figure("intermediate_conv_window")
    rings = {row.tensor.figure: row.full_bytes for row in first.rows if row.tensor.figure.startswith("replayssm_")}
    checkpoints = first.figure("int8_ckpt")
    found: dict[str, Any] = {f"alloc_mamba.{name}": size for name, size in own.items()}
    found |= {f"alloc_mamba.ring.{name}": size for name, size in rings.items()}
    found |= {
        "alloc_mamba.total": sum(own.values()) + sum(rings.values()),
        "alloc_mamba.pool_size": first.full.slots,
        "alloc_mamba.ple_short_conv": first.figure("ple_short_conv"),
        "alloc_mamba.int8_ckpt.bytes": checkpoints,
        "alloc_mamba.int8_ckpt.slots": first.full.checkpoints,
        "alloc_mamba.int8_ckpt.per_slot": slope(first.rows, "int8_ckpt"),
        "alloc_req_to_token": first.figure("alloc_req_to_token"),
        "budget.state pool.allocated_bytes": own["conv_state"] + own["ssm_state"],
        "budget.draft states.allocated_bytes": own["intermediate_ssm"] + own["intermediate_conv_window"],
        "budget.ReplaySSM rings.allocated_bytes": sum(rings.values()),
        "budget.int8 checkpoints.allocated_bytes": checkpoints,
        "budget.PLE convolutions.allocated_bytes": first.figure("ple_short_conv"),
        "budget.draft KV.allocated_bytes": first.figure("draft_kv"),
        "budget.request table.allocated_bytes": first.figure("alloc_req_to_token"),
    }
    if "alloc_kv" in rules:
        keys, values = (sum(_half(row, part) for row in first.rows) for part in "kv")
        total = first.figure("alloc_kv")
        found["alloc_kv"] = [keys, values] if isinstance(rules["alloc_kv"], list) else total
        found["budget.KV pool.allocated_bytes"] = total
    conv, ssm = slope(rows, "conv_state"), slope(rows, "ssm_state")
    states = [row.tensor for row in rows if row.tensor.figure == "ssm_state"]
    windows = [row.tensor for row in first.rows if row.tensor.figure == "conv_state"]
    layers = sum(state.shape[0] for state in states)
    heaviest = max(state.shape[0] for state in states)
    found |= {
        "bytes_per_slot": conv + ssm,
        "conv_bytes_per_slot": conv,
        "ssm_bytes_per_slot": ssm,
        "stage_bytes_per_slot": conv + ssm if len(shards) == 1 else int((conv + ssm) * (heaviest / layers)),
        "conv_shape": [list(window.shape[2:]) for window in windows],
        "temporal_shape": list(states[0].shape[2:]),
        "ssm_dtype": states[0].dtype,
        "linear_layers": layers,
        "full_attn_layers": sum(_attention_layers(shard) for shard in shards.values()),
    }
    if windows:
        found["conv_dtype"] = windows[0].dtype
    return found


def _half(row: Row, part: str) -> int:
    """Bytes of keys ("k") or of values ("v") in a tensor of the KV pool at full scale."""
    if row.tensor.figure != "alloc_kv":
        return 0
    if row.tensor.views:
        return row.full_bytes // len(row.tensor.views)
    return row.full_bytes if row.tensor.name.endswith(f".{part}") else 0


def _attention_layers(shard: Shard) -> int:
    """Layers with KV of any kind in a stage."""
    names = (re.match(r"(kv|kv_window|latent)\[\d+\]", row.tensor.name) for row in shard.rows)
    return len({match[0] for match in names if match})


def more_flags(model: Architecture, words: Sequence[str]) -> list[str]:
    """The page size that the index of a sparse-attention model needs, where no other is given."""
    indexer = getattr(model.attention, "indexer", None)
    if indexer is None or any(word.partition("=")[0] == "--page-size" for word in words):
        return []
    page = DSA_PAGE * indexer.kpool
    return ["--page-size", str(page), "--mamba-track-interval", str(max(page, ServerArgs().mamba_track_interval))]


def package_rows(subject: Subject, what: str) -> Iterator[EngineRow]:
    """The state shapes of the installed engine at this rank count, and the tensors of its pool of two slots."""
    from hybridcalc.crosscheck.backend import torch
    from hybridcalc.crosscheck.engine_package import EngineRow, engine_module

    shapes = engine_module("sglang.srt.configs.mamba_utils", what)
    model, args = subject.model, subject.args
    ranks = state_ranks(model, args)
    made = rule_for(model.family, SHAPES, "the comparison with SGLang")(shapes, model.state, ranks)
    if made is None:
        return
    params, shape = made
    tensors = {tensor.name: tensor for tensor in subject.stages[0](SMALL)}
    conv, state = [tensors[name] for name in tensors if name.startswith("conv_state")], tensors["ssm_state"]
    yield EngineRow("conv shape", str([tuple(c) for c in shape.conv]), str([c.shape[2:] for c in conv]))
    yield EngineRow("temporal shape", str(tuple(shape.temporal)), str(state.shape[2:]))
    dtypes = shapes.Mamba2StateDType(conv=getattr(torch, conv[0].dtype), temporal=getattr(torch, state.dtype))
    layers = list(range(state.shape[0]))
    made_params = params(shape=shape, layers=layers, dtype=dtypes)
    slot = sum(tensor.shape_bytes for tensor in (*conv, state)) // (SMALL.slots + 1)
    yield EngineRow("bytes a slot", f"{made_params.mamba_cache_per_req:,}", f"{slot:,}")
    pool = engine_module("sglang.srt.mem_cache.memory_pool", what).MambaPool(
        size=SMALL.slots,
        spec_state_size=SMALL.rows - 1,
        cache_params=made_params,
        mamba_layer_ids=layers,
        device="meta",
        speculative_num_draft_tokens=args.most_draft_tokens or None,
        speculative_eagle_topk=args.speculative_eagle_topk,
        enable_linear_replayssm=args.enable_linear_replayssm,
        linear_replayssm_cache_len=args.linear_replayssm_cache_len,
        enable_linear_replayssm_spec=args.enable_linear_replayssm_spec,
    )
    yield from _pool_rows(pool.mamba_cache, tensors)


def _pool_rows(cache: Any, tensors: dict[str, Any]) -> Iterator[EngineRow]:
    """Storages of the engine's pool under this package's names."""
    from hybridcalc.crosscheck.engine_package import EngineRow

    made: dict[str, Any] = {"ssm_state": cache.temporal, "intermediate_ssm": getattr(cache, "intermediate_ssm", None)}
    for name, several in (
        ("conv_state", cache.conv),
        ("intermediate_conv", getattr(cache, "intermediate_conv_window", [])),
    ):
        many = len(several) > 1
        made |= {f"{name}[{i}]" if many else name: tensor for i, tensor in enumerate(several)}
    made |= {
        f"replayssm_{ring}": getattr(cache, f"replayssm_{ring}", None)
        for ring in ("d", "k", "g", "rawv", "rawk", "beta")
    }
    for name, tensor in made.items():
        ours = tensors.get(name)
        if tensor is not None or ours is not None:
            engine = "none" if tensor is None else f"{tensor.untyped_storage().nbytes():,} B"
            yield EngineRow(name, engine, "none" if ours is None else f"{ours.shape_bytes:,} B")


def _mamba2_shape(shapes: Any, ranks: int, *sizes: int) -> tuple[Any, Any]:
    names = ("intermediate_size", "n_groups", "num_heads", "head_dim", "state_size", "conv_kernel")
    made = shapes.Mamba2StateShape.create(tp_world_size=ranks, **dict(zip(names, sizes, strict=True)))
    return shapes.Mamba2CacheParams, made


SHAPES: dict[str, Callable[[Any, Any, int], tuple[Any, Any] | None]] = {
    "gdn": lambda shapes, state, ranks: _mamba2_shape(
        shapes,
        ranks,
        state.num_v_heads * state.v_head_dim,
        state.num_k_heads,
        state.num_v_heads,
        state.v_head_dim,
        state.k_head_dim,
        state.conv_kernel,
    ),
    "kda": lambda shapes, state, ranks: (
        shapes.KimiLinearCacheParams,
        shapes.KimiLinearStateShape.create(
            tp_world_size=ranks, num_heads=state.num_heads, head_dim=state.head_dim, conv_kernel_size=state.conv_kernel
        ),
    ),
    "mamba2": lambda shapes, state, ranks: _mamba2_shape(
        shapes,
        ranks,
        state.inner_size,
        state.n_groups,
        state.num_heads,
        state.head_dim,
        state.state_size,
        state.conv_kernel,
    ),
    "mamba1": lambda shapes, state, ranks: (
        shapes.Mamba2CacheParams,
        shapes.Mamba2StateShape.create_full_rank(
            tp_world_size=ranks,
            intermediate_size=state.inner_size,
            state_size=state.state_size,
            conv_kernel=state.conv_kernel,
        ),
    ),
    "lightning": lambda shapes, state, ranks: _mamba2_shape(
        shapes, ranks, 0, 0, state.num_heads, state.head_dim, state.head_dim, 1
    ),
    "shortconv": lambda shapes, state, ranks: None,
    "attention": lambda shapes, state, ranks: None,
}
"""Family -> the engine's parameter class and shape for (module, sizes, ranks); None where a model class makes them."""


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
        tokens = max(tokens, int((2 * (ready.model.window or 0) + 4 * page) / args.window_ratio))
    return slots, max(1, -(-tokens // page)) * page


def _ranks(args: ServerArgs) -> tuple[Rank, ...]:
    return tuple(
        Rank(stage * args.tp_size + tp, stage, tp, tp // args.attn_tp_size)
        for stage in range(args.pp_size)
        for tp in range(args.tp_size)
    )
