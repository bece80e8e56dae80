"""Which tensors does SGLang's start-up create on a rank, in which shapes, and what do the formulas say of each?

    conv_state[i]     (layers, K + 1, window)              intermediate_conv[i]  (layers, R + 1, D, window), or
    ssm_state         (layers, K + 1, H, P, N)             (layers, R + 1, widened window) under overlapping views
    intermediate_ssm  (layers, R + 1, D, H, P, N)          replayssm_*           formulas.py
    int8_qdata, int8_scale, int8_conv[i]                   N + 1 checkpoint slots; one scale a column of dv values
    kv[i]             (2, T + page, heads, dim): K and V halves of one allocation, two where their dims differ
    latent[i]         (T + page, 1, row)                   index[i]              pages of 64 pooled keys and scales
    req_to_token      (R + 1, context + extra), int32

Shapes follow the model's geometry; formula_bytes come from `allocation.allocate`, which the planner prints. Mirrors
mem_cache/memory_pool.py and mamba_checkpoint_pool.py (0.5.23). Leaves out: cursors and maps of a few bytes a request,
and the geometry of a draft model's KV, which is one row of bytes here.
"""

from dataclasses import replace
from math import prod

from hybridcalc.architecture import GroupedQueryKV, LatentKV, kv_heads_on_rank
from hybridcalc.crosscheck.tensors import Sizes, Tensor, TensorView, contiguous
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.allocation import Allocation, allocate, index_bytes, table_extra
from hybridcalc.engines.sglang.kv import DSA_PAGE, draft_row_bytes
from hybridcalc.engines.sglang.planner import Prepared, Sizing
from hybridcalc.engines.sglang.sizes import dense_windows, keeps_drafts
from hybridcalc.units import DTYPE_BYTES


def full_sizes(ready: Prepared, sizing: Sizing, pools: Allocation) -> Sizes:
    """Counts of a plan's pools; those of a decode server include what it holds ahead."""
    return Sizes(
        slots=pools.pool_slots,
        rows=pools.request_rows,
        tokens=sizing.tokens if any(cell.layers for cell in ready.cells) else 0,
        window_tokens=sizing.window_tokens or 0,
        checkpoints=pools.int8.slots if pools.int8 is not None else 0,
    )


def stage_tensors(ready: Prepared, stage: int, sizes: Sizes) -> tuple[Tensor, ...]:
    """Every tensor of one rank of pipeline stage ``stage``, in the order the engine creates them."""
    pools = stage_allocation(ready, stage, sizes)
    found = _states(ready, stage, sizes, pools)
    found += [_ring(ring.name, ring.shape, ring.dtype, ring.bytes, ready) for ring in pools.rings]
    found += _drafts(ready, stage, sizes, pools) + _checkpoints(ready, stage, sizes, pools) + _ple(ready, sizes, pools)
    found += _kv(ready, stage, sizes, pools) + _draft_kv(ready, stage, sizes)
    entries = ready.context_length + table_extra(ready.args)
    found.append(
        Tensor(
            "req_to_token",
            "alloc_req_to_token",
            "other",
            (sizes.rows, entries),
            "int32",
            pools.request_table,
            "request",
        )
    )
    return tuple(found)


def stage_allocation(ready: Prepared, stage: int, sizes: Sizes) -> Allocation:
    """The planner's closed forms at these sizes. A decode server's larger pools are in ``sizes`` already."""
    args = ready.args
    if args.disaggregation_mode == "decode":
        args = replace(args, disaggregation_mode="null")
    if args.enable_int8_mamba_checkpoint:
        args = replace(args, int8_mamba_ckpt_size=sizes.checkpoints)
    return allocate(
        ready.model,
        ready.slot,
        ready.stages[stage].state_layers,
        ready.cells[stage],
        args,
        ready.rules,
        slots=sizes.slots,
        tokens=sizes.tokens,
        requests=sizes.rows - 1,
        context_length=ready.context_length,
        replay_active=ready.replay_active,
    )


def _states(ready: Prepared, stage: int, sizes: Sizes, pools: Allocation) -> list[Tensor]:
    slot, layers = ready.slot, ready.stages[stage].state_layers
    outer = (layers, sizes.slots + 1)
    found = [
        Tensor(
            f"conv_state{_index(i, slot.conv_shape)}",
            "conv_state",
            "state",
            outer + shape,
            slot.conv_dtype,
            _share(pools.conv_state, prod(shape), slot.shapes.conv_elements),
            "slot",
        )
        for i, shape in enumerate(slot.conv_shape)
    ]
    state = Tensor(
        "ssm_state", "ssm_state", "state", outer + slot.temporal_shape, slot.ssm_dtype, pools.ssm_state, "slot"
    )
    return [*found, state]


def _ring(name: str, shape: tuple[int, ...], dtype: str, size: int, ready: Prepared) -> Tensor:
    per_slot = not ready.replay_active or bool(ready.rings.per_slot)
    return Tensor(
        f"replayssm_{name}", f"replayssm_{name}", "scratch", shape, dtype, size, "slot" if per_slot else "request"
    )


def _drafts(ready: Prepared, stage: int, sizes: Sizes, pools: Allocation) -> list[Tensor]:
    """Temporal states of every draft token, and convolution windows: whole, or one widened window they overlap in."""
    slot, args, layers = ready.slot, ready.args, ready.stages[stage].state_layers
    drafts = args.most_draft_tokens
    if not drafts or not keeps_drafts(args, ready.rules):
        return []
    outer, found = (layers, sizes.rows), []
    if not ready.replay_active:
        found.append(
            Tensor(
                "intermediate_ssm",
                "intermediate_ssm",
                "scratch",
                (*outer, drafts, *slot.temporal_shape),
                slot.ssm_dtype,
                pools.intermediate_ssm,
                "request",
            )
        )
    dense = dense_windows(ready.model, args, ready.rules)
    widths = [drafts * w.rows * w.width if dense else (drafts + w.rows - 1) * w.width for w in slot.shapes.conv]
    for i, shape in enumerate(slot.conv_shape):
        name = f"intermediate_conv{_index(i, slot.conv_shape)}"
        size = _share(pools.intermediate_conv, widths[i], sum(widths)) if slot.shapes.conv else 0
        own = (*outer, drafts, *shape) if dense else (*outer, *_widened(shape, drafts))
        views = () if dense or not prod(shape) else (_overlapping(name, own, shape, drafts, slot.conv_dtype),)
        found.append(Tensor(name, "intermediate_conv_window", "scratch", own, slot.conv_dtype, size, "request", views))
    return found


def _widened(shape: tuple[int, ...], drafts: int) -> tuple[int, ...]:
    """A (width, rows) window widened to the columns that ``drafts`` windows, each one step on, cover together."""
    return (shape[0], drafts + shape[1] - 1) if prod(shape) else shape


def _overlapping(name: str, own: tuple[int, ...], shape: tuple[int, ...], drafts: int, dtype: str) -> TensorView:
    """The engine's view: window t of a request starts t columns on in the storage all its windows share."""
    stride = contiguous(own)
    view_shape, view_stride = (*own[:2], drafts, *shape), (*stride[:2], stride[-1], *stride[2:])
    return TensorView(f"{name}.windows", view_shape, view_stride, 0, dtype)


def _checkpoints(ready: Prepared, stage: int, sizes: Sizes, pools: Allocation) -> list[Tensor]:
    if pools.int8 is None:
        return []
    slot, outer = ready.slot, (ready.stages[stage].state_layers, sizes.checkpoints + 1)
    heads, dv, dk = slot.temporal_shape
    scales = (heads, 1, dk) if slot.ssm_bytes else (0, 1, dk)
    found = [
        Tensor(
            "int8_qdata", "int8_ckpt", "state", (*outer, heads, dv, dk), "int8", pools.int8.data_bytes, "checkpoint"
        ),
        Tensor(
            "int8_scale", "int8_ckpt", "state", outer + scales, slot.ssm_dtype, pools.int8.scale_bytes, "checkpoint"
        ),
    ]
    found += [
        Tensor(
            f"int8_conv{_index(i, slot.conv_shape)}",
            "int8_ckpt",
            "state",
            outer + shape,
            slot.conv_dtype,
            _share(pools.int8.conv_bytes, prod(shape), slot.shapes.conv_elements),
            "checkpoint",
        )
        for i, shape in enumerate(slot.conv_shape)
    ]
    return found


def _ple(ready: Prepared, sizes: Sizes, pools: Allocation) -> list[Tensor]:
    ple = ready.model.ple_conv
    if ple is None:
        return []
    drafts = ready.args.most_draft_tokens if keeps_drafts(ready.args, ready.rules) else 0
    slots, rows = sizes.slots + 1, sizes.rows * drafts
    held, dtype = pools.ple_conv * slots // (slots + rows), ready.slot.conv_dtype
    layers, window, figure = ple.layers, (ple.channels, ple.columns), "ple_short_conv"
    found = [Tensor(figure, figure, "state", (layers, slots, *window), dtype, held, "slot")]
    if drafts:
        shape = (layers, sizes.rows, drafts, *window)
        found.append(Tensor("ple_draft_conv", figure, "scratch", shape, dtype, pools.ple_conv - held, "request"))
    return found


def _kv(ready: Prepared, stage: int, sizes: Sizes, pools: Allocation) -> list[Tensor]:
    """KV tensors of the target, layer by layer; the first rows, a page of them, pad."""
    model, args, cell = ready.model, ready.args, ready.cells[stage]
    if model.attention is None or not cell.layers:
        return []
    rows = sizes.tokens + args.tokens_per_page
    if isinstance(model.attention, GroupedQueryKV) and model.window_attention is not None:
        window_rows = sizes.window_tokens + args.tokens_per_page
        full, windows = ready.stages[stage].kv_layers, ready.stages[stage].window_layers
        found = _grouped(ready, model.attention, "kv", full, rows, cell.dtype, None, "token")
        return found + _grouped(
            ready, model.window_attention, "kv_window", windows, window_rows, cell.dtype, None, "window token"
        )
    if isinstance(model.attention, LatentKV):
        return _latent(ready, model.attention, stage, rows, pools)
    if cell.dtype in ("fp4_mx_block16", "mxfp8"):
        return _block_scaled(ready, model.attention, stage, rows)
    found = _grouped(ready, model.attention, "kv", cell.layers, rows, cell.dtype, pools.kv, "token")
    return [*found, *_compressed(model.attention, args, pools)]


def _compressed(attention: GroupedQueryKV, args: ServerArgs, pools: Allocation) -> list[Tensor]:
    """Compressed keys of a QSA indexer, one buffer with a view a layer; rings of raw keys, and positions of all."""
    held, index = pools.compressed, attention.compressed
    if held is None or index is None:
        return []
    key, dtype = (index.heads, index.head_dim), "fp8_e4m3" if args.qsa_indexer_dtype == "fp8_e4m3" else "bfloat16"
    flat, one = (held.layers, held.rows * prod(key)), (held.rows, *key)
    views = tuple(
        TensorView(f"qsa_compressed[{layer}]", one, contiguous(one), layer * prod(one), dtype)
        for layer in range(held.layers)
    )
    ring = held.pending // held.layers
    return [
        Tensor("qsa_compressed", "alloc_kv", "kv", flat, dtype, held.compressed, "token", views),
        *(
            Tensor(f"qsa_key_state[{layer}]", "alloc_kv", "kv", (held.ring_rows, *key), "bfloat16", ring, "request")
            for layer in range(held.layers)
        ),
        Tensor("qsa_rope_position", "alloc_kv", "kv", (held.ring_rows, 3), "int64", held.positions, "request"),
    ]


def _grouped(
    ready: Prepared,
    attention: GroupedQueryKV,
    name: str,
    layers: int,
    rows: int,
    dtype: str,
    figure: tuple[int, ...] | None,
    grows_with: str,
) -> list[Tensor]:
    """K and V of each layer. ``figure`` is (K, V) over all layers; None where the planner states none."""
    heads = kv_heads_on_rank(attention.kv_heads, ready.args.attn_tp_size // ready.args.dcp_size)
    dims = (attention.head_dim, attention.v_head_dim)
    one = [size // layers for size in figure] if figure else [rows * heads * dim * DTYPE_BYTES[dtype] for dim in dims]
    found = []
    for layer in range(layers):
        if dims[0] == dims[1]:
            half = (rows, heads, dims[0])
            views = tuple(
                TensorView(f"{name}[{layer}].{part}", half, contiguous(half), i * prod(half), dtype)
                for i, part in enumerate("kv")
            )
            found.append(Tensor(f"{name}[{layer}]", "alloc_kv", "kv", (2, *half), dtype, sum(one), grows_with, views))
            continue
        found += [
            Tensor(f"{name}[{layer}].{part}", "alloc_kv", "kv", (rows, heads, dim), dtype, size, grows_with)
            for part, dim, size in zip("kv", dims, one, strict=True)
        ]
    return found


def _block_scaled(ready: Prepared, attention: GroupedQueryKV, stage: int, rows: int) -> list[Tensor]:
    """fp4 (two values a byte, a scale for 16) and mxfp8 (a scale for 32): data and scales of K and of V."""
    cell = ready.cells[stage]
    heads = kv_heads_on_rank(attention.kv_heads, ready.args.attn_tp_size // ready.args.dcp_size)
    row = cell.target_bytes // cell.layers
    found = []
    for layer in range(cell.layers):
        for part, dim in (("k", attention.head_dim), ("v", attention.v_head_dim)):
            data, scales = (dim // 2, heads * dim // 16) if cell.dtype == "fp4_mx_block16" else (dim, heads * dim // 32)
            share = rows * row * dim // (attention.head_dim + attention.v_head_dim)
            name = f"kv[{layer}].{part}"
            found += [
                Tensor(name, "alloc_kv", "kv", (rows, heads, data), "uint8", share - rows * scales, "token"),
                Tensor(f"{name}_scale", "alloc_kv", "kv", (rows, scales), "uint8", rows * scales, "token"),
            ]
    return found


def _latent(ready: Prepared, attention: LatentKV, stage: int, rows: int, pools: Allocation) -> list[Tensor]:
    """MLA rows, and the index keys of a sparse-attention layer in physical pages of 64 pooled tokens."""
    cell, args = ready.cells[stage], ready.args
    width = attention.kv_lora_rank + attention.qk_rope_head_dim
    layer_bytes, index = pools.kv[0] // cell.layers, index_bytes(attention, rows, args, ready.rules)
    row_bytes = (layer_bytes - index) // rows
    size = DTYPE_BYTES.get(cell.dtype, 1)
    packed = row_bytes != width * size
    shape = (rows, 1, row_bytes if packed else width)
    dtype = "uint8" if packed or cell.dtype not in DTYPE_BYTES else cell.dtype
    found = []
    for layer in range(cell.layers):
        found.append(Tensor(f"latent[{layer}]", "alloc_kv", "kv", shape, dtype, layer_bytes - index, "token"))
        if attention.indexer is not None:
            d = attention.indexer.head_dim
            keys = (rows * args.dcp_size // (DSA_PAGE * attention.indexer.kpool), DSA_PAGE * (d + d // 128 * 4))
            found.append(Tensor(f"index[{layer}]", "alloc_kv", "kv", keys, "uint8", index, "token"))
    return found


def _draft_kv(ready: Prepared, stage: int, sizes: Sizes) -> list[Tensor]:
    cell, args = ready.cells[stage], ready.args
    if not cell.draft_bytes:
        return []
    rows, row = (sizes.tokens + args.tokens_per_page) * args.dcp_size, draft_row_bytes(cell, args)
    return [Tensor("draft_kv", "draft_kv", "kv", (rows, row), "uint8", rows * row, "token")]


def _share(total: int, part: int, whole: int) -> int:
    """Bytes of one window of a figure that covers several; 0 where there is nothing to share."""
    return total * part // whole if whole else 0


def _index(number: int, shapes: tuple[tuple[int, ...], ...]) -> str:
    return f"[{number}]" if len(shapes) > 1 else ""
