"""Which --mem-fraction-static does SGLang take where nobody types it?

    fraction = round((gpu - reserved) / gpu, 3)                                MiB, of the smallest GPU of the machine
    reserved = 512 + 1.5 * tokens + 1024 * tp * pp / 8 + 2 * decode sizes + prefill graphs + what dp attention adds

tokens: the chunk that is prefilled at once, 2,048 at least. Prefill graphs: 1,536 for MLA, else 8 for each captured
size. At least 10,240 above 60 GiB. A multimodal model takes 0.95 of it, times a factor by the size of its vision tower;
AMD's aiter 0.85 beyond 8,192 tokens of context.
Mirrors SGLang arg_groups/memory_hook.py handle_gpu_memory_settings, reserve_for_graph_mb, adjust_mem_fraction_for_vlm
and arg_groups/cuda_graph_hook.py (0.5.22, 0.5.23); older releases by RuleSet.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture, LatentKV
from hybridcalc.engines.sglang import ServerArgs, is_set
from hybridcalc.engines.sglang.pools import request_limit
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.served import data_parallel_attention
from hybridcalc.engines.sglang.sizes import context_length
from hybridcalc.engines.sglang.strategy import Choice, choose_strategy, with_defaults, workspace_share

NO_GPU = 0.95
BY_MEMORY = (
    (20 * 1024, 2048, 8, 8), (35 * 1024, 4096, 48, 160), (60 * 1024, 4096, 32, 160), (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
)  # fmt: skip
"""MiB below which a GPU gets: chunk, largest decode graph, and the same with four tensor-parallel ranks or more."""
LARGEST = (16_384, 512, 512)
SMALL_BAND, SMALL_BEFORE = range(20 * 1024, 35 * 1024), (2048, 24, 80)
"""What GPUs of 20 to 35 GiB got in early releases."""
BIG_GPU_MIB, BIG_GPU_RESERVE_MIB, LEAST_TOKENS = 60 * 1024, 10_240, 2048
MLA_GRAPHS_MIB, GRAPH_MIB, A2A_MIB, A2A_GRAPHS_MIB = 1536, 8, 2048, 1024
A2A_MOST_TOKENS = 2048
A2A_WITH_GRAPHS = (None, "none", "deepep", "megamoe", "flashinfer")
WITHOUT_PIECES = ("Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM")
"""Classes whose prefill early releases do not capture. Source: configs/model_config.py (0.5.10 to 0.5.14)."""
VISION_DEFAULTS = {"KimiK3": (27, 1024), "Qwen4Exp": (24, 1152)}
"""Layers and width of the vision tower where the class itself says them and the config does not."""


class Settled(NamedTuple):
    """What a start settles by the memory of its GPU."""

    fraction: float
    chunk: int
    decode_sizes: int
    prefill_graphs: int
    reserved_mib: float
    why: str


def settle_fraction(model: Architecture, args: ServerArgs, gpu_mib: int | None) -> Settled:
    """The fraction, and what it follows from; ``gpu_mib`` is the total that nvidia-smi prints, None for no GPU."""
    rules, ranks = rules_for(args.engine_version)[0], args.tp_size * args.pp_size
    if gpu_mib is None:
        return Settled(NO_GPU, args.chunked_prefill_size or LARGEST[0], 0, 0, 0.0, "no GPU is known")
    chunk, sizes = by_memory(args, gpu_mib, rules)
    decoding, prefilling = args.disaggregation_mode == "decode", args.disaggregation_mode == "prefill"
    graphs = prefill_graphs(model, args, chunk, rules)
    multimodal = _sees(model) and (rules.images_on_decode or not decoding) and not args.language_model_only
    if after_capture(model, args, chunk, rules):
        reserved = rules.post_capture_floor_mib + 1024 * ranks / 8
        fraction = round((gpu_mib - reserved) / gpu_mib, 3) - (8 * 1024 / gpu_mib if multimodal else 0)
        return Settled(fraction, chunk, sizes, graphs, reserved, "KV is sized after graphs are captured")
    tokens = max(chunk if chunk > 0 else args.max_prefill_tokens, LEAST_TOKENS)
    if decoding and rules.reserve_by_role:
        drafts = args.speculative_num_draft_tokens or 1  # as typed: those of an algorithm are settled later
        tokens = max((args.max_running_requests or sizes) * drafts, LEAST_TOKENS)
    reserved = 512 + 1.5 * tokens + 1024 * ranks / 8
    decode_graphs = not args.disable_cuda_graph and not prefilling
    if decode_graphs or not rules.reserve_by_role:
        reserved += 2 * sizes
    if data_parallel_attention(args, rules) and not prefilling:
        reserved += 3 * sizes * args.dp_size + (1.5 * sizes * args.dp_size if sizes > 300 else 0)
    captured = prefill_backend(model, args, rules) if rules.prefill_graphs else ""
    if captured and not decoding:
        reserved += MLA_GRAPHS_MIB if isinstance(model.attention, LatentKV) else GRAPH_MIB * graphs
        if rules.expert_graphs_reserved and args.moe_a2a_backend == "deepep" and captured == "breakable":
            reserved += A2A_GRAPHS_MIB
    if gpu_mib > BIG_GPU_MIB:
        reserved = max(reserved, BIG_GPU_RESERVE_MIB)
    if rules.reserve_by_role and args.moe_a2a_backend == "deepep" and decode_graphs:
        reserved += A2A_MIB
    reserved += _drafts_mib(args, rules)
    fraction = round((gpu_mib - reserved) / gpu_mib, 3)
    share = aiter_share(model, args)
    why = f"({gpu_mib:,} - {reserved:,g}) / {gpu_mib:,} MiB"
    if multimodal:
        factor = vision_factor(model)
        fraction, why = fraction * (0.95 * factor), f"{why} x 0.95 x {factor:.3f} for images"
    if share != 1:
        fraction, why = fraction * share, f"{why} x {share:g} for aiter"
    return Settled(fraction, chunk, sizes, graphs, reserved, why)


def aiter_share(model: Architecture, args: ServerArgs) -> float:
    """What AMD's backend leaves of a memory fraction, given or not: 0.85 beyond 8,192 tokens of context."""
    args = with_defaults(model, args, rules_for(args.engine_version)[0])
    return workspace_share(args, args.context_length or context_length(model))


def by_memory(args: ServerArgs, gpu_mib: int, rules: RuleSet) -> tuple[int, int]:
    """The chunk and the largest decode graph: as given, else by the GPU; a default is no larger than the limit."""
    chunk, few, many = next((row[1:] for row in BY_MEMORY if gpu_mib < row[0]), LARGEST)
    if gpu_mib in SMALL_BAND and not rules.cards_of_32_gib_raised:
        chunk, few, many = SMALL_BEFORE
    chunk = args.chunked_prefill_size if args.chunked_prefill_size is not None else chunk
    if args.cuda_graph_max_bs_decode is not None:
        return chunk, args.cuda_graph_max_bs_decode
    sizes = many if args.tp_size >= 4 else few
    if rules.limit_lowers_graphs and args.max_running_requests is not None:
        sizes = min(sizes, args.max_running_requests)
    return chunk, sizes


def prefill_backend(model: Architecture, args: ServerArgs, rules: RuleSet) -> str:
    """How prefill runs: "breakable" or "full" graphs, or "" without any."""
    if args.cuda_graph_backend_prefill is not None:
        return "" if args.cuda_graph_backend_prefill == "disabled" else args.cuda_graph_backend_prefill
    if model.architecture.startswith("Inkling") and not args.disable_prefill_cuda_graph:
        return "full"
    if rules.piecewise_prefill:
        return "piecewise" if _in_pieces(model, args, rules) else ""
    beside = {
        "pipeline stages": args.pp_size > 1,
        "context parallelism": args.dcp_size > 1,
        "two-batch overlap": args.enable_two_batch_overlap,
        "expert kernels": args.moe_a2a_backend not in (None, "none"),
        "data-parallel attention": data_parallel_attention(args, rules),
        "latent rows": isinstance(model.attention, LatentKV) and model.attention.indexer is None,
        "Nemotron-H": model.architecture.startswith("NemotronH"),
        "Kimi": model.architecture.startswith("Kimi"),
    }
    off = (
        args.disable_cuda_graph
        or args.disable_prefill_cuda_graph
        or args.platform != "cuda"
        or (model.architecture.startswith("Glm5Next") and not rules.prefill_graphs_of_glm)
        or args.moe_a2a_backend not in A2A_WITH_GRAPHS
        or args.disaggregation_mode == "decode"
        or any(given and words in rules.no_prefill_graphs for words, given in beside.items())
    )
    if off:
        return ""
    seen = not _sees(model) or model.architecture.startswith(rules.prefill_graphs_of_images)
    return "breakable" if seen else ""


def _sees(model: Architecture) -> bool:
    """Whether the class is one of images, whatever its config has of a vision tower."""
    return model.multimodal or model.architecture.startswith(tuple(VISION_DEFAULTS))


def _in_pieces(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    """Whether early releases capture prefill in pieces: not beside most other features, whatever decode does."""
    off = (
        args.disable_prefill_cuda_graph
        or args.platform != "cuda"
        or args.pp_size > 1
        or data_parallel_attention(args, rules)
        or args.moe_a2a_backend not in (None, "none")
        or args.enable_hierarchical_cache
        or args.cpu_offload_gb > 0
        or args.disaggregation_mode != "null"
        or model.multimodal
        or model.architecture in WITHOUT_PIECES
        or (args.speculative and not rules.piecewise_drafts)
    )
    return not off


def prefill_graphs(model: Architecture, args: ServerArgs, chunk: int, rules: RuleSet) -> int:
    """How many sizes prefill is captured for; 0 where it runs without graphs."""
    backend = prefill_backend(model, args, rules) if rules.prefill_graphs else ""
    if not backend:
        return 0
    most = args.cuda_graph_max_bs_prefill
    if args.moe_a2a_backend == "deepep" and backend == "breakable" and rules.expert_graphs_reserved:
        return len({-(-size // 8) * 8 for size in captured_sizes(most or A2A_MOST_TOKENS)})
    if most is None:
        most = min(8192, chunk) if isinstance(model.attention, LatentKV) else chunk
        if args.pp_size > 1 and backend == "breakable" and rules.pipeline_graphs_capped:
            most = min(most, 8192)
        if args.max_total_tokens is not None:
            most = min(most, args.max_total_tokens)
    return len(captured_sizes(most))


def captured_sizes(most: int) -> list[int]:
    """Tokens that prefill graphs are captured for: finely at first, and ever more coarsely."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, most + 1, 512))
    sizes = (size for first, last, step in steps for size in range(first, last, step))
    return list(takewhile(lambda size: size <= most, sizes))


def vision_factor(model: Architecture) -> float:
    """0.8 to 1.05: less for a vision tower that is larger than 24 layers of 1,024."""
    own = next((sizes for name, sizes in VISION_DEFAULTS.items() if model.architecture.startswith(name)), (24, 1024))
    config = _vision_config(model)
    layers, width = config.get("num_hidden_layers", own[0]), config.get("hidden_size", own[1])
    size = layers * width**2 / (24 * 1024**2) if isinstance(layers, int) and isinstance(width, int) else 1.0
    return max(0.8, min(1.05, 1.0 - 0.1 * (size - 1)))


def _vision_config(model: Architecture) -> Mapping[str, object]:
    from hybridcalc.architecture.presets import shipped_config

    config = model.config if model.config is not None else shipped_config(model.name)
    found = config.get("vision_config")
    return found if isinstance(found, Mapping) else {}


def after_capture(model: Architecture, args: ServerArgs, chunk: int, rules: RuleSet) -> bool:
    """Whether KV is sized after graphs are captured."""
    return (
        rules.after_capture
        and is_set(args.env.get("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"))
        and args.platform == "cuda"
        and args.dcp_size == 1
        and not isinstance(model.attention, LatentKV)
        and not args.enable_unified_memory
        and (args.disaggregation_mode == "decode" or chunk > 0)
    )


def _drafts_mib(args: ServerArgs, rules: RuleSet) -> int:
    """What early releases kept for a draft model; n-grams have none."""
    if not args.speculative or args.speculative_algorithm == "NGRAM" or not rules.drafts_reserve_mib:
        return 0
    return 6144 if args.speculative_algorithm == "STANDALONE" else rules.drafts_reserve_mib


SETTLED = (
    "chunked_prefill_size", "page_size", "attention_backend", "mamba_radix_cache_strategy",
)  # fmt: skip
"""What a plan says of it beside its own figures."""


def resolve(model: Architecture, args: ServerArgs) -> dict[str, Any]:
    """What start-up settles of the arguments, under the engine's own names; needs no memory figure, but
    ``gpu_memory_mib`` and ``gpu_capability`` for what depends on the GPU. Raises Refusal and InputError.
    """
    rules, _ = rules_for(args.engine_version)
    choice = choose_strategy(model, args, rules) if model.state else None
    return settled_arguments(model, with_defaults(model, args, rules), rules, choice)


def settled_arguments(model: Architecture, args: ServerArgs, rules: RuleSet, choice: Choice | None) -> dict[str, Any]:
    """The same of arguments with their defaults, and of the strategy that was chosen for a model with states."""
    found: dict[str, Any] = {
        "mem_fraction_static": args.mem_fraction_static,
        "chunked_prefill_size": args.chunked_prefill_size,
        "page_size": args.tokens_per_page,
        "attention_backend": args.attention_backend,
        "max_running_requests": request_limit(args),
        "mamba_full_memory_ratio": args.memory_ratio,
        "swa_full_tokens_ratio": args.window_ratio,
        "disable_radix_cache": not args.radix_cache,
    }
    if choice is not None:
        found |= {"mamba_radix_cache_strategy": choice.strategy, "disable_overlap_schedule": not choice.overlap}
    if args.gpu_memory_mib is not None:
        settled = settle_fraction(model, args, args.gpu_memory_mib)
        decode = args.disable_cuda_graph or args.disaggregation_mode == "prefill"
        prefill = prefill_backend(model, args, rules) if rules.prefill_graphs else ""
        found |= {
            "mem_fraction_static": args.mem_fraction_static or settled.fraction,
            "chunked_prefill_size": settled.chunk // args.attn_dp_size,
            "decode_max_bs": settled.decode_sizes,
            "decode_backend": "disabled" if decode else "full",
            "prefill_backend": prefill or "disabled",
        }
    return found
