"""How many bytes of KV does SGLang price for one token on one rank?

    gqa   layers * max(1, kv_heads // (attn_tp // dcp)) * (head_dim + v_head_dim) * sizeof(kv)
    mla   layers * (kv_lora_rank + qk_rope_head_dim) * sizeof(kv)          whole on every rank; mxfp8 a byte
    dsa   mla row (packed under fp8) + ceil((d + d / 128 * 4) / kpool)     index keys of a sparse-attention layer

    qsa   gqa row + index heads * d * 2 // ratio                          compressed index keys, at 1 B under fp8

layers counts attention layers; fp8 is one byte, fp4 half a byte and a scale for 16 values, mxfp8 a scale for 32.
A draft model adds to the cell: EAGLE-like ones in proportion to their layers, DSPARK and DFLASH their own cell times
dcp, NGRAM nothing.
Mirrors model_executor/pool_configurator.py (0.5.23).
"""

from typing import NamedTuple

from hybridcalc.architecture import (
    Architecture,
    CompressedIndex,
    GroupedQueryKV,
    IndexCache,
    LatentKV,
    kv_heads_on_rank,
)
from hybridcalc.architecture.presets import model_if_known, plain
from hybridcalc.engines.sglang import OWN_DRAFT_CELL, ServerArgs
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.errors import InputError, NotModelled
from hybridcalc.units import DTYPE_BYTES, rounded_up, short_dtype

KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2", "fp4_mx_block16", "mxfp8")
KV_DTYPE_ALIASES = {"bf16": "bfloat16", "fp8": "fp8_e4m3", "fp4_e2m1": "fp4_mx_block16"}
FULL_LENGTH_WINDOWS = ("JetNemotronForCausalLM", "JetVLMForConditionalGeneration")
"""Classes with recurrent layers whose sliding-window layers SGLang gives KV of full length."""
WINDOW_POOLS = frozenset({
    "GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM", "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration", "Llama4ForConditionalGeneration", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM", "LagunaForCausalLM", "MellumForCausalLM", "MuseGlimmerForCausalLM",
})  # fmt: skip
"""Classes of attention alone whose windows have a pool of their own; those of any other are kept at full length.
Source: configs/model_config.py is_hybrid_swa_model (0.5.23).
"""
NO_DRAFT_KV = ("NGRAM",)
FUSED_ALGORITHMS = ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")
PART, ENTRY = 16, 32
"""Bytes that the parts of an entry of unified memory, and the entry, are rounded up to."""
DSA_PAGE = 64
"""Pooled tokens of a page that a sparse-attention index needs."""


class KvCell(NamedTuple):
    """Bytes one token takes on one rank of one stage: the target's layers and the draft's.

    ``price`` is what the engine divides its KV memory by: an int, and a float where window layers count in part.
    ``row`` says how a layer is made up. ``window_bytes``: of the windows' layers a token of theirs, drafts included;
    ``other_bytes``: of all others, where there are windows whose pool the request limit sizes.
    """

    layers: int
    target_bytes: int
    draft_bytes: int
    price: int | float
    dtype: str
    row: str
    window_bytes: int = 0
    other_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The price in whole bytes."""
        return int(self.price)


def draft_row_bytes(cell: KvCell, args: ServerArgs) -> int:
    """Bytes a token of a sequence takes in the draft model's KV on one rank."""
    return cell.draft_bytes // args.dcp_size if args.speculative_algorithm in OWN_DRAFT_CELL else cell.draft_bytes


def kv_layers(model: Architecture) -> int:
    """Attention layers whose KV SGLang keeps at full length."""
    extra = model.window_layers if model.architecture in FULL_LENGTH_WINDOWS else 0
    return model.attention_layers + extra


def kv_cell(model: Architecture, args: ServerArgs, rules: RuleSet) -> KvCell:
    """Bytes per token and rank over the whole model, draft included. 0 for a pure state-space model.

    Raises InputError for a dtype or a context-parallel size the engine does not take, and for a row of 0 bytes.
    """
    return stage_cell(model, args, rules, kv_layers(model), model.window_layers)


def stage_cell(model: Architecture, args: ServerArgs, rules: RuleSet, layers: int, window_layers: int) -> KvCell:
    """Bytes per token and rank of a pipeline stage with ``layers`` full-length and ``window_layers`` window layers.

    Window layers with KV of their own (Inkling) are priced at --swa-full-tokens-ratio, in floats as the engine does.
    """
    dtype = kv_dtype(model, args)
    check_dcp(args)
    windowed = window_kv(model) if window_layers else None
    if model.attention is None or not (layers or windowed):
        shared = 0 if model.attention is None else workspace_bytes(model.attention, args, dtype, rules)
        return KvCell(0, shared, 0, shared, dtype, "no attention layer")
    if windowed is not None:
        return _cell_of_windows(model, model.attention, windowed, args, dtype, rules, layers, window_layers)
    each, row = layer_bytes(model.attention, args, dtype, rules)
    target = layers * each + workspace_bytes(model.attention, args, dtype, rules)
    draft = _draft_bytes(model, target, layers, args, rules)
    if fuses_drafts(model, args, rules):
        own = own_draft_bytes(model, args, rules)
        draft = rounded_up(rounded_up(target, PART) + (draft if own is None else own), ENTRY) - target
    return KvCell(layers, target, draft, target + draft, dtype, row)


def window_kv(model: Architecture) -> GroupedQueryKV | LatentKV | None:
    """What a window layer keeps of a token, where windows have a pool of their own; None where they have none."""
    return model.attention if model.architecture in WINDOW_POOLS else model.window_attention


def _cell_of_windows(
    model: Architecture,
    attention: GroupedQueryKV | LatentKV,
    windowed: GroupedQueryKV | LatentKV,
    args: ServerArgs,
    dtype: str,
    rules: RuleSet,
    layers: int,
    window_layers: int,
) -> KvCell:
    """The cell where windows have a pool of their own: priced without fp4's halves, and every context-parallel rank
    holds all tokens.
    """
    alike, whole = rules._replace(heads_shared_by_dcp=False), "fp8_e4m3" if dtype.startswith("fp4") else dtype
    each, row = layer_bytes(attention, args, whole, alike)
    window_bytes, _ = layer_bytes(windowed, args, whole, alike)
    row += f", and {window_layers} window layers at {args.window_ratio} of the tokens"
    full, banded, short = _drafts_beside_windows(model, args, rules)
    others, own = (layers + full) * each + banded * window_bytes, 0
    if args.speculative_algorithm in OWN_DRAFT_CELL and rules.own_draft_cell:
        own = (own_draft_bytes(model, args, rules) or 0) * args.dcp_size
    windows = window_bytes * (window_layers + short) if layers else 0
    alone = layers * each + _window_price(window_bytes, window_layers, layers, args, rules)
    price = others + own + _window_price(window_bytes, window_layers + short, layers, args, rules)
    others += own if rules.own_cell_by_limit else 0
    return KvCell(layers, int(alone), int(price) - int(alone), price, dtype, row, windows, others)


def _window_price(row: int, layers: int, beside: int, args: ServerArgs, rules: RuleSet) -> float:
    """Bytes of window layers to a token of the layers ``beside`` them, multiplied in the engine's order; to a token of
    their own where there are no others.
    """
    if not beside:
        return row * layers
    return args.window_ratio * (row * layers) if rules.window_rows_first else args.window_ratio * row * layers


def _drafts_beside_windows(model: Architecture, args: ServerArgs, rules: RuleSet) -> tuple[int, int, int]:
    """Layers of an EAGLE-like draft whose rows are full ones; those of windows, of as many tokens (Inkling's bands);
    and those in the pool of windows, as many as the draft has, or the target where the draft is its own.
    """
    count = 0 if args.speculative_algorithm in OWN_DRAFT_CELL else draft_layers(model, args)
    if not rules.drafts_beside_windows:
        return 0, 0, 0
    if model.architecture.startswith("Inkling"):
        banded = len([band for band in model.draft_bands if band < count])
        return count - banded, banded, 0
    if not rules.drafts_in_windows:
        return count, 0, 0
    path = args.speculative_draft_model_path
    drafter = model_if_known(path) if path else model
    short = min(count, 0 if drafter is None or window_kv(drafter) is None else drafter.window_layers)
    return count - short, 0, short


KEEPS_QUANTIZATION = (
    "NemotronH", "Qwen3Next", "Qwen3_5", "KimiLinear", "KimiK3", "Deepseek", "GlmMoeDsa", "Llama", "Qwen3Moe",
)  # fmt: skip
"""How names of classes begin that are known to keep their ``quant_config`` (models/)."""


def kv_dtype(model: Architecture, args: ServerArgs) -> str:
    """The dtype KV is stored in; auto takes the model's."""
    asked = KV_DTYPE_ALIASES.get(args.kv_cache_dtype, args.kv_cache_dtype)
    if asked not in KV_CACHE_DTYPES:
        raise NotModelled(
            f"--kv-cache-dtype {asked[:40]} is not known",
            fix=f"write one of {', '.join(KV_CACHE_DTYPES)}",
            flag="--kv-cache-dtype",
        )
    if asked != "auto":
        return asked
    return "fp8_e4m3" if kv_of_checkpoint(model, args.engine_version) == "fp8" else model.model_dtype


def kv_of_checkpoint(model: Architecture, version: str | None = None) -> str | None:
    """What auto follows of the checkpoint's quantisation: "fp8", "" for nothing; None where it is not known, or
    whether the class follows it.

    The engine looks for kv_cache_quant_algo of the quantisation that the class keeps, as ModelOpt's alone has one.
    Source: SGLang mem_cache/kv_cache_dtype.py, layers/quantization/modelopt_quant.py.
    """
    unkept = model.architecture.startswith("Qwen3_5") and not rules_for(version)[0].qwen3_5_keeps_quantization
    if plain(model) or unkept:
        return ""
    from hybridcalc.engines.checkpoints import kv_cache_said

    said = kv_cache_said(model, modelopt=True)
    return None if said == "fp8" and not model.architecture.startswith(KEEPS_QUANTIZATION) else said


def draft_layers(model: Architecture, args: ServerArgs) -> int:
    """Attention layers of the draft model that keep KV: as given, else the checkpoint's own prediction layers."""
    if not args.speculative or args.speculative_algorithm in NO_DRAFT_KV:
        return 0
    if args.draft_layers is not None:
        return args.draft_layers
    if args.speculative_algorithm in OWN_DRAFT_CELL:
        return 0
    if args.speculative_draft_model_path is None:
        return model.draft_layers
    drafter = model_if_known(args.speculative_draft_model_path)
    return 0 if drafter is None else drafter.draft_layers or drafter.num_layers


def own_draft_bytes(model: Architecture, args: ServerArgs, rules: RuleSet) -> int | None:
    """Bytes of a token in a draft model of its own geometry, on one rank: as given, or of its config's heads; None
    where neither is known.
    """
    if args.draft_kv_bytes_per_token is not None:
        return args.draft_kv_bytes_per_token
    drafter = model_if_known(args.speculative_draft_model_path) if args.speculative_draft_model_path else None
    heads = None if drafter is None else drafter.attention
    if drafter is None or not isinstance(heads, GroupedQueryKV):
        return None
    layers, width = drafter.attention_layers + drafter.window_layers, heads.head_dim + heads.v_head_dim
    return layers * _heads(heads, args, rules) * width * DTYPE_BYTES.get(kv_dtype(model, args), 1)


def check_dcp(args: ServerArgs) -> None:
    """Raise InputError where context parallelism does not share out the ranks of an attention worker."""
    if args.attn_tp_size % args.dcp_size:
        raise InputError(
            f"--dcp-size {args.dcp_size} does not divide the {args.attn_tp_size} ranks of an attention worker",
            fix="context parallelism shares those ranks; give a divisor of --tp-size",
            flag="--dcp-size",
        )


def layer_bytes(attention: GroupedQueryKV | LatentKV, args: ServerArgs, dtype: str, rules: RuleSet) -> tuple[int, str]:
    """Bytes of one layer's KV per token on one rank, and in words how they come about.

    Raises InputError where they round to 0, as a row of one value in 4 bits does.
    """
    size, words = _row(attention, args, dtype, rules)
    if not size:
        raise InputError(
            f"a token's KV rounds to 0 bytes: {words}", fix="give another --kv-cache-dtype, or check the model's sizes"
        )
    return size, words


def workspace_bytes(attention: GroupedQueryKV | LatentKV, args: ServerArgs, dtype: str, rules: RuleSet) -> int:
    """Bytes a token adds to the one fp8 row that prefills of fp4 heads are unpacked in, where it is priced."""
    if not (_packed(dtype, args) and rules.fp4_workspace_priced and isinstance(attention, GroupedQueryKV)):
        return 0
    return _heads(attention, args, rules) * attention.head_dim * 2


def _heads(attention: GroupedQueryKV, args: ServerArgs, rules: RuleSet) -> int:
    """KV heads on a rank."""
    return kv_heads_on_rank(attention.kv_heads, _head_ranks(args, rules))


def _head_ranks(args: ServerArgs, rules: RuleSet) -> int:
    """Ranks that share the KV heads: those of an attention worker, less what context parallelism takes of them."""
    return args.attn_tp_size // args.dcp_size if rules.heads_shared_by_dcp else args.attn_tp_size


def _row(attention: GroupedQueryKV | LatentKV, args: ServerArgs, dtype: str, rules: RuleSet) -> tuple[int, str]:
    if isinstance(attention, GroupedQueryKV):
        heads = _heads(attention, args, rules)
        width = attention.head_dim + attention.v_head_dim
        words = f"{heads} of {attention.kv_heads} KV heads x {width} {short_dtype(dtype)}"
        if heads * _head_ranks(args, rules) > attention.kv_heads:
            words += ", replicated"
        index = 0 if attention.compressed is None else compressed_price(attention.compressed, args)
        words += f", {index} B of index keys" if index else ""
        if _packed(dtype, args):
            return heads * (attention.head_dim // 2) * 2 + (heads * attention.head_dim // 16) * 2 + index, words
        if dtype == "mxfp8":
            return heads * width + heads * width // 32 + index, words
        return heads * width * DTYPE_BYTES.get(dtype, 1) + index, words
    row, index = attention.kv_lora_rank + attention.qk_rope_head_dim, index_price(attention, args, rules)
    words = f"{row} {short_dtype(dtype)}, whole on every rank" + (f", {index} B of index keys" if index else "")
    if _packed(dtype, args):
        return row // 2 + row // 16 + index, words
    if attention.indexer is not None:
        return _dsa_row(attention, args, dtype, rules) + index, words
    return row * DTYPE_BYTES.get(dtype, 1), words


def _packed(dtype: str, args: ServerArgs) -> bool:
    """Whether fp4 is priced as such: off CUDA no release takes it for fp4, but for one byte a value."""
    return dtype == "fp4_mx_block16" and args.platform == "cuda"


def index_price(attention: LatentKV, args: ServerArgs, rules: RuleSet) -> int:
    """Bytes of index keys a token is priced at in a sparse-attention layer, rounded up to whole ones; 0 in others."""
    if attention.indexer is None:
        return 0
    if not rules.index_pooled:
        return index_row_bytes(attention.indexer)
    return -(-index_row_bytes(attention.indexer) // attention.indexer.kpool) * args.dcp_size


def compressed_price(index: CompressedIndex, args: ServerArgs) -> int:
    """Bytes of compressed index keys a token is priced at in a layer, down to whole ones."""
    return index.heads * index.head_dim * (1 if args.qsa_indexer_dtype == "fp8_e4m3" else 2) // index.ratio


def index_page(indexer: IndexCache, rules: RuleSet) -> int:
    """Tokens of a page that a sparse-attention index needs: 64 pooled keys."""
    return DSA_PAGE * indexer.kpool if rules.index_pooled else DSA_PAGE


def index_row_bytes(indexer: IndexCache) -> int:
    """Bytes of one pooled index key: a byte a value, and four for the scale of every 128."""
    return indexer.head_dim + indexer.head_dim // 128 * 4


def _dsa_row(attention: LatentKV, args: ServerArgs, dtype: str, rules: RuleSet) -> int:
    """A sparse-attention row: under fp8_e4m3 latent values, their scales and a bf16 rotary part, unless a backend
    reads plain fp8.
    """
    if dtype == "fp8_e4m3" and not _raw_rows(args, rules):
        return attention.kv_lora_rank + attention.kv_lora_rank // 128 * 4 + 2 * attention.qk_rope_head_dim
    return (attention.kv_lora_rank + attention.qk_rope_head_dim) * DTYPE_BYTES.get(dtype, 1)


def _raw_rows(args: ServerArgs, rules: RuleSet) -> bool:
    """Whether sparse-attention backends read fp8 without scales: trtllm on a side that runs here; on ROCm tilelang,
    triton or aiter on either side, else tilelang on both.
    """
    sides = {"prefill": args.dsa_prefill_backend, "decode": args.dsa_decode_backend}
    run = (sides[args.disaggregation_mode],) if args.disaggregation_mode in sides else tuple(sides.values())
    if "trtllm" in run:
        return True
    if args.platform == "hip":
        return any(side in ("tilelang", "triton", "aiter") for side in sides.values())
    return rules.raw_tilelang_rows and all(side == "tilelang" for side in sides.values())


def _draft_bytes(model: Architecture, target: int, layers: int, args: ServerArgs, rules: RuleSet) -> int:
    count = draft_layers(model, args)
    if args.speculative_algorithm in OWN_DRAFT_CELL:
        if args.draft_layers == 0 or not rules.dflash_layers_priced:
            return 0
        own = own_draft_bytes(model, args, rules) if rules.own_draft_cell else None
        if own is not None:
            return own * args.dcp_size
        return -(-target * (layers + count * args.dcp_size) // layers) - target
    if not rules.draft_layers_priced:
        return 0
    if isinstance(model.attention, LatentKV) and model.attention.indexer is not None:
        index = layers * index_price(model.attention, args, rules)
        ranks = args.dcp_size if rules.draft_cell_apart else 1  # a draft's rows lie whole on every rank
        return int((target - index) * count / layers) * ranks + index * count // layers
    if rules.draft_cell_apart:
        return int(target * count / layers)
    return int(target * (1 + count / layers)) - target


def fuses_drafts(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    """Whether the draft's rows lie in the entries of unified memory beside the target's: those of dense attention,
    where context parallelism does not part the target's.
    """
    if not (rules.fused_drafts and args.enable_unified_memory and args.speculative and model.state is not None):
        return False
    if args.speculative_algorithm not in FUSED_ALGORITHMS or args.dcp_size > 1:
        return False
    return isinstance(model.attention, GroupedQueryKV) or own_draft_bytes(model, args, rules) is not None
