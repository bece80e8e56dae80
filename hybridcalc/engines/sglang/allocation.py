"""What do SGLang's pools really take, once K, T and R are settled? Every tensor of one rank of the first stage,
and the lines that the engine logs of them.

    states          (K + 1) slots of conv and temporal state; a decode server of a disaggregated pair raises K to
                    (R + extra) * (1 + tracking)
    draft states    (R + 1) * D temporal states, and convolution windows of D * (k-1) columns, or D + k - 2 where they
                    overlap; D is the adaptive maximum where there is one
    rings           ReplaySSM: per request for GDN, per slot for KDA and for decoding
    int8 pool       N + 1 checkpoint slots, N = 2 * K unless --int8-mamba-ckpt-size says otherwise
    KV              (T + page) rows a layer: a page pads
    QSA index       a key for ratio tokens in each layer, and a ring of raw keys a request; not in the log line
    request table   (R + 1) rows of context + extra entries, int32

The solver (pools.py) charges some of this differently or not at all; the difference is what a plan's budget shows.
Mirrors mem_cache/memory_pool.py, disaggregation/decode.py, mamba_checkpoint_pool.py (0.5.23).
"""

from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV, kv_elements_per_token
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import (
    DSA_PAGE,
    KvCell,
    compressed_price,
    index_page,
    index_price,
    index_row_bytes,
    window_kv,
)
from hybridcalc.engines.sglang.pools import decode_rings, rings_per_slot, verification_rings
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.engines.sglang.sizes import StateSlot, dense_windows, keeps_drafts
from hybridcalc.formulas import Ring
from hybridcalc.units import DTYPE_BYTES, GIB, gib_text

DRAFT_TABLE_EXTRA = 4


class Int8Pool(NamedTuple):
    """The int8 checkpoint pool: slots N (tensors hold N + 1), bytes in all, of a slot, and of its three parts."""

    slots: int
    bytes: int
    per_slot: int
    data_bytes: int
    scale_bytes: int
    conv_bytes: int


class CompressedCache(NamedTuple):
    """Keys of a QSA indexer: rows of compressed ones in each of ``layers``, and a ring of raw ones for every request
    row with three positions each, which all layers share. Bytes of each in all.
    """

    layers: int
    rows: int
    compressed: int
    ring_rows: int
    pending: int
    positions: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.compressed + self.pending + self.positions


class Allocation(NamedTuple):
    """Bytes of each pool of one rank of the first stage. ``kv`` is (K, V), (one tensor,), or empty where unknown."""

    pool_slots: int
    raised_from: int | None
    request_rows: int
    conv_state: int
    ssm_state: int
    intermediate_ssm: int
    intermediate_conv: int
    rings: tuple[Ring, ...]
    int8: Int8Pool | None
    ple_conv: int
    kv: tuple[int, ...]
    request_table: int
    compressed: "CompressedCache | None" = None

    @property
    def ring_bytes(self) -> int:
        """All rings."""
        return sum(ring.bytes for ring in self.rings)

    @property
    def state_total(self) -> int:
        """States, draft states and rings: what the engine's own total counts."""
        return self.conv_state + self.ssm_state + self.intermediate_ssm + self.intermediate_conv + self.ring_bytes

    def to_dict(self) -> dict[str, Any]:
        """The figures under the names of engine results."""
        document: dict[str, Any] = {
            "pool_size": self.pool_slots,
            "conv_state": self.conv_state,
            "ssm_state": self.ssm_state,
            "intermediate_ssm": self.intermediate_ssm,
            "intermediate_conv_window": self.intermediate_conv,
            "ring": {f"replayssm_{ring.name}": ring.bytes for ring in self.rings},
            "total": self.state_total,
        }
        if self.int8 is not None:
            document["int8_ckpt"] = {"slots": self.int8.slots, "bytes": self.int8.bytes, "per_slot": self.int8.per_slot}
        if self.ple_conv:
            document["ple_short_conv"] = self.ple_conv
        return document

    def outputs(self, *, kv: bool = True) -> dict[str, Any]:
        """What the stage "alloc" settles."""
        found: dict[str, Any] = {"alloc_mamba": self.to_dict(), "alloc_req_to_token": self.request_table}
        if kv and self.kv:
            more = 0 if self.compressed is None else self.compressed.bytes
            found["alloc_kv"] = self.kv[0] if len(self.kv) == 1 else [self.kv[0] + more, *self.kv[1:]]
        return found


def allocate(
    model: Architecture,
    slot: StateSlot,
    stage_layers: int,
    cell: KvCell,
    args: ServerArgs,
    rules: RuleSet,
    *,
    slots: int,
    tokens: int,
    requests: int,
    context_length: int,
    replay_active: bool,
) -> Allocation:
    """What the pools take on one rank of the first stage, where they are not `unbuildable`."""
    pool_slots, rows = slots, requests + 1
    raised_from = None
    if args.disaggregation_mode == "decode":
        wanted = requests + _extra_requests(args)
        needed = wanted * (1 + _tracking(args))
        rows = wanted + 1
        if needed > slots:
            pool_slots, raised_from = needed, slots
    drafted = keeps_drafts(args, rules)
    intermediate_ssm, intermediate_conv = _draft_states(model, slot, stage_layers, rows, args, rules, replay_active)
    return Allocation(
        pool_slots=pool_slots,
        raised_from=raised_from,
        request_rows=rows,
        conv_state=(pool_slots + 1) * stage_layers * slot.conv_bytes_per_layer,
        ssm_state=(pool_slots + 1) * stage_layers * slot.ssm_bytes_per_layer,
        intermediate_ssm=intermediate_ssm,
        intermediate_conv=intermediate_conv,
        rings=_rings(model, slot, stage_layers, pool_slots, rows, args, rules, replay_active),
        int8=int8_pool(slot, stage_layers, pool_slots, args),
        ple_conv=_ple_conv(model, slot, pool_slots + 1 + (rows * args.most_draft_tokens if drafted else 0)),
        kv=kv_tensors(model, cell, tokens, args, rules),
        request_table=rows * (context_length + table_extra(args)) * 4,
        compressed=compressed_cache(model, cell, tokens + args.tokens_per_page, rows, args),
    )


def kv_tensors(model: Architecture, cell: KvCell, tokens: int, args: ServerArgs, rules: RuleSet) -> tuple[int, ...]:
    """Bytes of the target's KV tensors: (K, V) for GQA, one for MLA; (0, 0) without attention; () where not known.

    fp4 on MLA is priced at half a byte and stored in a plain pool of one byte an element. Index keys of a
    sparse-attention layer are priced in whole bytes a token, and stored as pooled keys that several tokens share.
    """
    rows = tokens + args.tokens_per_page
    if model.attention is None or not cell.layers:
        return (0, 0)
    if window_kv(model) is not None:
        return ()
    if isinstance(model.attention, GroupedQueryKV):
        if cell.dtype in ("fp4_mx_block16", "mxfp8"):
            return ()
        index = model.attention.compressed
        keys = 0 if index is None else cell.layers * compressed_price(index, args)
        total = rows * (cell.target_bytes - keys)
        k_share = model.attention.head_dim
        k = total * k_share // (k_share + model.attention.v_head_dim)
        return (k, total - k)
    if cell.dtype == "fp4_mx_block16":
        row = kv_elements_per_token(model.attention, 1) * cell.layers
    else:
        row = cell.target_bytes - cell.layers * index_price(model.attention, args, rules)
    return (rows * row + cell.layers * index_bytes(model.attention, rows, args, rules),)


def compressed_cache(
    model: Architecture, cell: KvCell, rows: int, request_rows: int, args: ServerArgs
) -> CompressedCache | None:
    """What a QSA indexer keeps for ``rows`` of KV and so many requests; None without one, or without attention."""
    index = getattr(model.attention, "compressed", None)
    if index is None or not cell.layers:
        return None
    key, groups, ring = index.heads * index.head_dim, -(-rows // index.ratio), request_rows * index.ratio
    compressed = cell.layers * groups * key * (1 if args.qsa_indexer_dtype == "fp8_e4m3" else 2)
    return CompressedCache(cell.layers, groups, compressed, ring, cell.layers * ring * key * 2, ring * 3 * 8)


def index_bytes(attention: LatentKV, rows: int, args: ServerArgs, rules: RuleSet) -> int:
    """Bytes of one layer's index keys and scales for ``rows`` rows of KV: whole pages of pooled keys, priced or not."""
    if attention.indexer is None:
        return 0
    pages = rows * args.dcp_size // index_page(attention.indexer, rules)
    return pages * DSA_PAGE * index_row_bytes(attention.indexer)


def table_extra(args: ServerArgs) -> int:
    """Entries of the request table beyond the context length."""
    drafts = args.most_draft_tokens
    extra = DRAFT_TABLE_EXTRA + drafts
    page = args.tokens_per_page * args.dcp_size
    if not args.speculative or page == 1:
        return extra
    return max(extra, 2 * decode_tokens(args) + page - 1)


def decode_tokens(args: ServerArgs) -> int:
    """Tokens that a step with drafts may allocate: every branch of a tree whole pages."""
    drafts, page = args.most_draft_tokens, args.tokens_per_page * args.dcp_size
    steps = args.speculative_num_steps or max(drafts - 1, 1)
    topk = args.speculative_eagle_topk or 1
    if topk > 1 and page > 1 and args.speculative_algorithm not in ("NGRAM", "DSPARK", "DFLASH"):
        return max(page * -(-(page - 1 + steps) // page) * topk, drafts)
    return max(steps * topk, drafts)


def _draft_states(
    model: Architecture, slot: StateSlot, layers: int, rows: int, args: ServerArgs, rules: RuleSet, replay_active: bool
) -> tuple[int, int]:
    drafts = args.most_draft_tokens
    if not drafts or not keeps_drafts(args, rules):
        return 0, 0
    ssm = 0 if replay_active else layers * rows * drafts * slot.ssm_bytes_per_layer
    dense = dense_windows(model, args, rules)
    columns = sum((drafts * w.rows if dense else drafts + w.rows - 1) * w.width for w in slot.shapes.conv)
    return ssm, layers * rows * columns * DTYPE_BYTES[slot.conv_dtype]


def _rings(
    model: Architecture,
    slot: StateSlot,
    layers: int,
    pool_slots: int,
    rows: int,
    args: ServerArgs,
    rules: RuleSet,
    replay_active: bool,
) -> tuple[Ring, ...]:
    if replay_active:
        slots = pool_slots + 1 if rings_per_slot(model, rules) else rows
        return verification_rings(model, slot._replace(layers=layers), args, rules, slots=slots) or ()
    if args.enable_linear_replayssm:  # the pool asks for no family here, as it does for verification
        return decode_rings(model, slot._replace(layers=layers), args, slots=pool_slots + 1)
    return ()


def int8_pool(slot: StateSlot, layers: int, pool_slots: int, args: ServerArgs) -> Int8Pool | None:
    """The int8 checkpoint pool beside ``pool_slots`` active slots, on one rank; None where it is not asked for."""
    if not args.enable_int8_mamba_checkpoint:
        return None
    from hybridcalc.formulas import int8_slot_bytes

    slots = args.int8_mamba_ckpt_size or 2 * pool_slots
    temporal = slot.temporal_shape if slot.ssm_bytes else ()
    per_slot = int8_slot_bytes(
        layers=layers, temporal=temporal, conv_bytes=slot.conv_bytes_per_layer, scale_dtype=slot.ssm_dtype
    )
    conv = layers * slot.conv_bytes_per_layer
    data = layers * slot.shapes.temporal_elements
    held = slots + 1
    return Int8Pool(slots, held * per_slot, per_slot, held * data, held * (per_slot - conv - data), held * conv)


def _ple_conv(model: Architecture, slot: StateSlot, states: int) -> int:
    """Per-layer-embedding convolutions of every slot, and of every draft token."""
    if model.ple_conv is None:
        return 0
    ple = model.ple_conv
    return ple.layers * ple.channels * ple.columns * DTYPE_BYTES[slot.conv_dtype] * states


def _extra_requests(args: ServerArgs) -> int:
    """Requests a decode server holds states for ahead of running them."""
    if args.disaggregation_decode_extra_slots is not None:
        return args.disaggregation_decode_extra_slots
    share = (args.max_running_requests or 0) // args.attn_dp_size
    return 2 * share if 0 < share <= 32 else 0


def _tracking(args: ServerArgs) -> int:
    """Slots beside the live state on a decode server: those of extra buffers, when prefixes are cached there."""
    if not args.radix_cache or not args.mamba_radix_cache_strategy.startswith("extra_buffer"):
        return 0
    return 2 if args.mamba_radix_cache_strategy == "extra_buffer" and args.overlap else 1


TORCH_DTYPES = {
    "bfloat16": "torch.bfloat16", "float16": "torch.float16", "float32": "torch.float32",
    "fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2", "fp4_mx_block16": "torch.float4_e2m1fn_x2",
    "mxfp8": "torch.float8_e4m3fn",
}  # fmt: skip


class Settled(NamedTuple):
    """The figures the lines print: K, S, T, R of a worker, what was asked for, and the windows' tokens."""

    slots: int
    slots_per_request: int
    tokens: int
    requests: int
    asked: int
    asked_by_user: bool
    kv_dtype: str
    window_tokens: int | None = None


def limit_lines(settled: Settled, rules: RuleSet) -> list[str]:
    """Why fewer requests run than were asked for; printed before the pools."""
    capped = settled.slots // settled.slots_per_request if settled.slots_per_request else settled.asked
    by_states = capped < min(settled.asked, settled.tokens // 2)
    if by_states and rules.cap_line:
        return [
            f"max_running_requests is capped to {capped} by the mamba state cache (max_mamba_cache_size="
            f"{settled.slots}, {settled.slots_per_request} state slots per request). To raise it: increase "
            "--mamba-full-memory-ratio or --max-mamba-cache-size, "
            "or halve the state size with --mamba-ssm-dtype bfloat16."
        ]
    if rules.requests_line:
        return [
            "Max concurrent requests (per dp worker) from the finalized token capacity: "
            f"max_num_reqs={settled.requests}."
        ]
    if rules.reduced_line and settled.asked_by_user and settled.requests < settled.asked:
        return [
            f"max_running_requests was reduced from the requested {settled.asked} to {settled.requests} "
            "(per dp worker) due to the available KV cache capacity."
        ]
    return []


def window_lines(settled: Settled) -> list[str]:
    """The two pools of a model with sliding windows."""
    if settled.window_tokens is None:
        return []
    return [
        f"Use sliding window memory pool. full_layer_tokens={settled.tokens}, swa_layer_tokens={settled.window_tokens}"
    ]


def state_lines(
    model: Architecture, pools: Allocation, settled: Settled, args: ServerArgs, rules: RuleSet
) -> list[str]:
    """The state pool, its rings and the int8 pool."""
    lines = []
    if pools.raised_from is not None:
        held = pools.request_rows - 1
        per_request = pools.pool_slots // held if held else 0
        lines.append(
            f"mamba_size ({pools.raised_from}) is less than decode side's max_slots_needed ({pools.pool_slots} = "
            f"{held} reqs * {per_request} slots/req), raising effective_mamba_size to {pools.pool_slots}"
        )
    line = (
        f"Mamba Cache is allocated. max_mamba_cache_size: {pools.pool_slots}, conv_state size: "
        f"{gib_text(pools.conv_state)}GB, ssm_state size: {gib_text(pools.ssm_state)}GB "
    )
    if args.most_draft_tokens and keeps_drafts(args, rules):
        line += (
            f"intermediate_ssm_state_cache size: {gib_text(pools.intermediate_ssm)}GB "
            f"intermediate_conv_window_cache size: {gib_text(pools.intermediate_conv)}GB "
        )
    lines.append(line)
    lines += _ring_lines(pools, args)
    if pools.int8 is not None and rules.int8_lines:
        int8, size = pools.int8, f"{gib_text(pools.int8.bytes)}GB"
        lines.append(
            f"int8 mamba checkpoint pool: {int8.slots} slots, {size} (qdata {gib_text(int8.data_bytes)} + scale "
            f"{gib_text(int8.scale_bytes)} + conv {gib_text(int8.conv_bytes)}); active mamba pool {pools.pool_slots} "
            "slots"
        )
        lines.append(
            f"int8 mamba checkpoint pool ({size}) is allocated from --mem-fraction-static headroom and is not "
            "reflected in max_total_num_tokens; ensure headroom covers it."
        )
    return lines


def kv_lines(pools: Allocation, settled: Settled) -> list[str]:
    """The KV pool."""
    if not pools.kv:
        return []
    start = f"KV Cache is allocated. dtype: {TORCH_DTYPES[settled.kv_dtype]}, #tokens: {settled.tokens}, "
    if len(pools.kv) == 1:
        return [f"{start}KV size: {gib_text(pools.kv[0])} GB"]
    return [f"{start}K size: {gib_text(pools.kv[0])} GB, V size: {gib_text(pools.kv[1])} GB"]


def _ring_lines(pools: Allocation, args: ServerArgs) -> list[str]:
    if not pools.rings:
        return []
    sizes = {"d": "0.000GB", "k": "0.000GB"} | {ring.name: f"{ring.bytes / GIB:.3f}GB" for ring in pools.rings}
    fold = "beta" in sizes and (args.speculative or pools.rings[0].name == "g")
    line = (
        f"GDN ReplaySSM ring buffers allocated (record_len={pools.rings[0].shape[3]}, fold={fold}): "
        f"d={sizes['d']}, k={sizes['k']}, g={sizes['g']} "
    )
    if "rawv" in sizes:
        line += f"rawv={sizes['rawv']}, rawk={sizes['rawk']}, "
    if "beta" in sizes:
        line += f"beta={sizes['beta']} "
    return [line]
