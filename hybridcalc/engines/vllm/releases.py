"""What does each release of vLLM do its own way? `RuleSet` has a field a fact, `CHANGES` a row a change.

Releases from 0.19.0 on were recorded, but for those between whose neighbours say the same; 0.18.0 was read in its
source (its token figure is that of vLLM issue 40691 as well). Of those not recorded some starts are tests too: of their
own classes, where both sides agree, which holds them from changing and proves no more.
"""

from typing import NamedTuple

from hybridcalc.engines.arguments import RECORDED, Change, Releases


class RuleSet(NamedTuple):
    """What a release does its own way; everything else is common to all. The defaults are those of 0.18.0.

    Prefixes: ``caches_hybrid_prefixes``: prefix caching is on by default for hybrids; ``fine_hits``: hits may land
    inside a block; ``sparse_retention``: few states of a prefix are kept unless told otherwise;
    ``retention_checked``: an interval is held against the scheduler's block, with caching and without;
    ``single_unit_checked``: a match unit is the block where there is one group.
    Cache modes: ``modes``: --mamba-cache-mode is obeyed; ``mode_all_refused``: it does not take all;
    ``all_by_default``: mode all is taken where a class supports it, else align; ``align_under_drafts``: with drafts
    align is the default; ``drafts_in_mode_all``: mode all holds blocks for drafts.
    States: ``bfloat16_states``: --mamba-cache-dtype and --mamba-ssm-cache-dtype take bfloat16;
    ``kda_dtype_obeyed``: the latter says something about KDA; ``lightning_float32``: the former takes float32 for
    lightning attention; ``conv_layout_switch``: VLLM_SSM_CONV_STATE_LAYOUT is read; ``kda_joined``: KDA keeps one
    window, not one each for q, k and v; ``kda_draft_rows``, ``shortconv_draft_rows``: drafts widen these
    convolutions.
    Pages: ``least_block``: --block-size is only the least block, which is a multiple of 16, of 64 or 128 for MLA;
    ``block_forgotten``: the configuration of a hybrid says 16 again once the model is built, and its layers keep the
    block; ``latent_block``: MLA blocks are multiples of 128; ``latent_fp8_triton``: fp8 MLA runs on Triton kernels;
    ``flash_takes_fp8``: FlashAttention takes KV of any format of 8 bits on Hopper, ``flash_takes_packed``: and nvfp4,
    of which it reads e4m3 alone;
    ``kernel_blocks``: a block is a multiple of every backend's own; ``index_packed``: pages of GLM-5.3's index lie
    beside those of attention in a block; ``compressed_fp8``: Qwen4-Exp's attention reads fp8 KV;
    ``sparse_fp8_default``: auto is fp8 for GLM-5.3's KV on compute capability 10.x;
    ``mixed_from``: the compute capability, in tenths, from which ModelOpt's checkpoints of mixed precision are loaded;
    ``nvfp4_on_fa2``: nvfp4 KV is read on any GPU from compute capability 8.0 on; ``nvfp4_taken``: FlashInfer takes it,
    ``nvfp4_taken_anywhere``: on GPUs where it does not read it too; ``turboquant_hybrids``: turboquant
    KV lies beside states; ``checkpoints``: kernels whose prefill exports states;
    ``checkpoint_grid``: blocks lie on their grid; ``class_counts_drafts``: every class sizes the page with the rows
    that drafts add; ``drafts_apart``: drafts of other heads have groups of their own;
    ``drafts_copied``: ranks of context parallelism keep drafts of DFLASH and DSPARK whole;
    ``drafts_on_last_stage``: MTP is not cut into pipeline stages as its target is;
    ``states_padded_apart``: states of a stage without attention are padded to the pages of others;
    ``states_hashed_apart``: and hashed in blocks that differ from theirs.
    Context parallelism: ``context_parallel_groups``: several groups of layers run it; ``kda_context_parallel``: KDA
    models do.
    ReplaySSM: ``replayssm``: it exists; ``recovers_kda``: KDA recovers rejected drafts by it; ``replays_flashinfer``:
    on FlashInfer kernels too; ``replays_on_v2``: Triton kernels run under model runner V2; ``replays_drafts``: with
    drafts on FlashInfer; ``replay_buffer_most``: steps of its buffer there at most, 0 for no bound;
    ``kda_records_in_pool``: what KDA recovers from lies in the pool. ``runner_v2``: model runner V2 serves where it
    lacks nothing; ``runner_v2_lacks``: what it lacks.
    Memory: ``seqs_refused``: max_num_seqs above the blocks does not start; ``lightning_draft_graphs``: drafts of
    lightning attention run in full CUDA graphs, which need a block a sequence; ``flashinfer_draft_graphs``: drafts do
    on FlashInfer kernels of compute capabilities that begin with these, ``sharded_draft_graphs``: under context
    parallelism as well; ``latent_triton_graphs``: Triton kernels of MLA run in full CUDA graphs,
    ``latent_triton_draft_graphs``: with drafts as well; ``graphs_uncompiled``: decoding does without compiling;
    ``override_checked``: the memory check counts the blocks of an override; ``all_groups_checked``: it counts the
    blocks of a request in all groups of layers, not in the first alone; ``null_block_reserved``: it leaves out block 0;
    ``layouts_refused``: a layout that cannot be is refused, not ignored; ``one_buffer``: all layers lie on one buffer,
    not one a layer slot; ``connectors_opt_in``: any KV connector turns the hybrid manager off unless that is asked for;
    ``events_without_hybrids``: KV events do; ``in_flight_batches``: windows hold the blocks of every batch in flight,
    not of one; ``windows_retain_drafts``: and what MTP of several depths computes again.
    Defaults: ``utilization_percent``: share of the GPU, %; ``graphs_charged``: memory of CUDA graphs is taken off the
    cache; ``batch_16k``: batches of 16,384 tokens on 160 GiB and more; ``gb10_is_small``: as GPUs below 70 GiB.
    Log: ``tokens_of_pool``: the token figure is blocks // groups x block, not concurrency x max_model_len;
    ``one_capacity_line``: tokens and concurrency share a line; ``caching_warned``: caching states is called
    experimental; ``fitted_to_cache``: a fitted length is said to fit the cache's memory; ``layout_line``,
    ``group_lines``; ``groups_in_round``: their sizes stand in round brackets; ``mode_all_deprecated``: typing mode all
    is warned of.
    """

    version: str
    recorded: bool = False
    caches_hybrid_prefixes: bool = False
    fine_hits: bool = False
    sparse_retention: bool = False
    retention_checked: bool = False
    single_unit_checked: bool = False
    modes: bool = True
    mode_all_refused: bool = False
    all_by_default: bool = True
    align_under_drafts: bool = False
    drafts_in_mode_all: bool = False
    bfloat16_states: bool = False
    lightning_float32: bool = False
    kda_dtype_obeyed: bool = False
    conv_layout_switch: bool = False
    kda_joined: bool = False
    kda_draft_rows: bool = False
    shortconv_draft_rows: bool = False
    least_block: bool = True
    block_forgotten: bool = True
    latent_block: bool = False
    latent_fp8_triton: bool = False
    flash_takes_fp8: bool = True
    flash_takes_packed: bool = False
    kernel_blocks: bool = False
    index_packed: bool = False
    compressed_fp8: bool = False
    sparse_fp8_default: bool = False
    turboquant_hybrids: bool = False
    drafts_apart: bool = False
    drafts_copied: bool = False
    drafts_on_last_stage: bool = False
    states_padded_apart: bool = False
    states_hashed_apart: bool = False
    checkpoints: frozenset[str] = frozenset()
    checkpoint_grid: bool = False
    class_counts_drafts: bool = False
    context_parallel_groups: bool = True
    kda_context_parallel: bool = True
    replayssm: bool = False
    recovers_kda: bool = False
    replays_flashinfer: bool = False
    replays_on_v2: bool = False
    replays_drafts: bool = False
    kda_records_in_pool: bool = False
    replay_buffer_most: int = 0
    runner_v2: bool = False
    runner_v2_lacks: frozenset[str] = frozenset()
    seqs_refused: bool = False
    lightning_draft_graphs: bool = False
    flashinfer_draft_graphs: frozenset[str] = frozenset({"10"})
    sharded_draft_graphs: bool = True
    latent_triton_graphs: bool = False
    latent_triton_draft_graphs: bool = False
    graphs_uncompiled: bool = False
    override_checked: bool = False
    all_groups_checked: bool = False
    null_block_reserved: bool = False
    layouts_refused: bool = False
    nvfp4_on_fa2: bool = False
    mixed_from: int = 89
    nvfp4_taken: bool = False
    nvfp4_taken_anywhere: bool = False
    one_buffer: bool = False
    connectors_opt_in: bool = True
    events_without_hybrids: bool = True
    in_flight_batches: bool = False
    windows_retain_drafts: bool = False
    utilization_percent: int = 90
    graphs_charged: bool = False
    batch_16k: bool = False
    gb10_is_small: bool = False
    tokens_of_pool: bool = True
    one_capacity_line: bool = False
    fitted_to_cache: bool = False
    caching_warned: bool = True
    layout_line: bool = False
    group_lines: bool = False
    groups_in_round: bool = False
    mode_all_deprecated: bool = False


LINES = frozenset({
    "tokens_of_pool", "one_capacity_line", "caching_warned", "fitted_to_cache", "layout_line", "group_lines",
    "groups_in_round", "mode_all_deprecated",
})  # fmt: skip
"""Rules that change what is printed, and no figure that is."""
READ, RESULTS = "its source, not its results", "results of its own classes"
PLANNING, UTILS, HITS = "v1/core/kv_cache_planning.py", "v1/core/kv_cache_utils.py", "v1/core/kv_cache_coordinator.py"
BLOCKS, LAYERS, SHAPES = "platforms/interface.py", "model_executor/layers/mamba/", "layers/mamba/mamba_utils.py"
HOOKS, CONFIG, ARGS = "model_executor/models/config.py", "config/vllm.py", "engine/arg_utils.py"
FLASHINFER, TRITON_MLA = "v1/attention/backends/flashinfer.py", "v1/attention/backends/mla/triton_mla.py"
FLASH = "v1/attention/backends/flash_attn.py supports_kv_cache_dtype"
REPLAY, RUNNER = f"{CONFIG} validate_mamba_cached_kernel", f"{CONFIG} use_v2_model_runner"
DRAFTS_ON_V1 = frozenset({"ngram", "suffix", "medusa", "mlp_speculator", "custom_class", "parallel drafting"})
"""Drafts for which model runner V2 stood back when it became the default."""
LACKED_FIRST = DRAFTS_ON_V1 | {"draft_model", "eagle3 in stages"}
"""What it lacked before, beside what is said of states."""
CHANGES: tuple[Change, ...] = (
    Change("0.18.0", RECORDED, False, READ),
    Change("0.19.0", "all_groups_checked", True, f"{UTILS} _max_memory_usage_bytes_from_groups"),
    Change("0.19.0", RECORDED, True, RESULTS),
    Change("0.20.0", "seqs_refused", True, "config/compilation.py"),
    Change("0.20.0", "flash_takes_packed", True, FLASH),
    Change("0.20.0", "least_block", False, f"{HOOKS} HybridAttentionMambaModelConfig"),
    Change("0.20.0", "block_forgotten", False, f"{BLOCKS} update_block_size_for_backend"),
    Change("0.20.0", "align_under_drafts", True, f"{HOOKS} MambaModelConfig"),
    Change("0.20.0", "conv_layout_switch", True, f"{LAYERS} mamba_utils.py"),
    Change("0.20.0", "context_parallel_groups", False, f"{UTILS} resolve_kv_cache_block_sizes"),
    Change("0.20.0", "utilization_percent", 92, "config/cache.py"),
    Change("0.20.0", "events_without_hybrids", False, CONFIG),
    Change("0.20.0", "runner_v2_lacks", LACKED_FIRST | {"states"}, RUNNER),
    Change("0.20.1", "lightning_float32", True, SHAPES),
    Change("0.20.1", "tokens_of_pool", False, f"{UTILS} _report_kv_cache_config"),
    Change("0.20.1", "override_checked", True, f"{UTILS} get_kv_cache_configs"),
    Change("0.20.2", RECORDED, True, RESULTS),
    Change("0.21.0", "graphs_charged", True, "v1/worker/gpu_worker.py"),
    Change("0.21.0", "turboquant_hybrids", True, ARGS),
    Change("0.21.0", "nvfp4_taken", True, FLASHINFER),
    Change("0.21.0", "nvfp4_taken_anywhere", True, FLASHINFER),
    Change("0.21.0", RECORDED, True, RESULTS),
    Change("0.22.0", "bfloat16_states", True, "config/cache.py MambaDType"),
    Change("0.22.0", "align_under_drafts", False, f"{HOOKS} MambaModelConfig"),
    Change("0.22.0", "drafts_in_mode_all", True, "v1/kv_cache_interface.py MambaSpec"),
    Change("0.22.0", "connectors_opt_in", False, CONFIG),
    Change("0.22.0", "flash_takes_fp8", False, FLASH),
    Change("0.22.0", "flash_takes_packed", False, FLASH),
    Change("0.22.0", "latent_triton_graphs", True, TRITON_MLA),
    Change("0.22.0", "latent_triton_draft_graphs", True, TRITON_MLA),
    Change("0.22.1", RECORDED, True, RESULTS),
    Change("0.23.0", "kda_joined", True, SHAPES),
    Change("0.23.0", "runner_v2_lacks", LACKED_FIRST | {"states in mode align"}, RUNNER),
    Change("0.23.0", RECORDED, True, RESULTS),
    Change("0.24.0", RECORDED, True, RESULTS),
    Change("0.24.0", "mixed_from", 75, "model_executor/layers/quantization/modelopt.py get_min_capability"),
    Change("0.25.0", "nvfp4_taken_anywhere", False, FLASHINFER),
    Change("0.25.0", "runner_v2_lacks", LACKED_FIRST, RUNNER),
    Change("0.25.0", "lightning_draft_graphs", True, "v1/attention/backends/linear_attn.py"),
    Change("0.25.1", RECORDED, True, RESULTS),
    Change("0.26.0", "context_parallel_groups", True, f"{UTILS} resolve_kv_cache_block_sizes"),
    Change("0.26.0", "fine_hits", True, HITS),
    Change("0.26.0", "states_padded_apart", True, f"{UTILS} unify_kv_cache_spec_page_size"),
    Change("0.26.0", "sparse_retention", True, HITS),
    Change("0.26.0", "in_flight_batches", True, "v1/kv_cache_interface.py SlidingWindowSpec"),
    Change("0.26.0", "latent_triton_draft_graphs", False, TRITON_MLA),
    Change("0.26.0", RECORDED, True, RESULTS),
    Change("0.27.0", "latent_block", True, BLOCKS),
    Change("0.27.0", "latent_fp8_triton", True, "platforms/cuda.py"),
    Change("0.27.0", "kda_draft_rows", True, SHAPES),
    Change("0.27.0", "kda_context_parallel", False, "model_executor/layers/mla.py"),
    Change("0.27.0", "replayssm", True, REPLAY),
    Change("0.27.0", RECORDED, True, RESULTS),
    Change("0.28.0", "caches_hybrid_prefixes", True, f"{ARGS} _set_default_chunked_prefill_and_prefix_caching_args"),
    Change("0.28.0", "all_by_default", False, HOOKS),
    Change("0.28.0", "caching_warned", False, HOOKS),
    Change("0.28.0", "kda_context_parallel", True, "model_executor/layers/mla.py"),
    Change("0.28.0", "one_capacity_line", True, UTILS),
    Change("0.28.0", "states_hashed_apart", True, f"{UTILS} resolve_kv_cache_block_sizes"),
    Change("0.28.0", "drafts_apart", True, f"{UTILS} unify_kv_cache_spec_page_size"),
    Change("0.28.0", "one_buffer", True, "v1/worker/utils.py"),
    Change("0.28.0", "windows_retain_drafts", True, "v1/kv_cache_interface.py SlidingWindowSpec"),
    Change("0.28.0", "batch_16k", True, f"{ARGS} get_batch_defaults"),
    Change("0.28.0", "flashinfer_draft_graphs", frozenset({"10", "12"}), FLASHINFER),
    Change("0.28.0", RECORDED, True, RESULTS),
    Change("0.29.0", "null_block_reserved", True, PLANNING),
    Change("0.29.0", "checkpoints", frozenset({"kda"}), "models/kimi_k3/nvidia/kda.py"),
    Change("0.29.0", "shortconv_draft_rows", True, SHAPES),
    Change("0.29.0", "retention_checked", True, HITS),
    Change("0.29.0", "layouts_refused", True, "v1/attention/backends/utils.py resolve_kv_cache_layout"),
    Change("0.29.0", "recovers_kda", True, REPLAY),
    Change("0.29.0", "kda_records_in_pool", True, f"{SHAPES} append_kda_recoverssm_record"),
    Change("0.29.0", "runner_v2", True, RUNNER),
    Change("0.29.0", "replays_on_v2", True, REPLAY),
    Change("0.29.0", "layout_line", True, "v1/attention/backends/utils.py"),
    Change("0.29.0", RECORDED, True, RESULTS),
    Change("0.30.0", "drafts_on_last_stage", True, "config/speculative.py create_draft_parallel_config"),
    Change("0.30.0", "group_lines", True, PLANNING),
    Change("0.30.0", "mode_all_deprecated", True, "config/cache.py"),
    Change("0.30.0", "kda_dtype_obeyed", True, f"{SHAPES} kda_state_dtype"),
    Change("0.30.0", "replays_flashinfer", True, REPLAY),
    Change("0.30.0", "replays_on_v2", False, REPLAY),
    Change("0.30.0", "runner_v2_lacks", DRAFTS_ON_V1 | {"draft_model", "mode all"}, RUNNER),
    Change("0.30.0", "flashinfer_draft_graphs", frozenset({"9", "10", "12"}), FLASHINFER),
    Change("0.30.0", "graphs_uncompiled", True, CONFIG),
    Change("0.30.0", "sharded_draft_graphs", False, FLASHINFER),
    Change("0.30.0", RECORDED, True, RESULTS),
    Change("0.31.0", "runner_v2_lacks", DRAFTS_ON_V1 | {"mode all"}, RUNNER),
    Change("0.31.0", "drafts_copied", True, "v1/worker/gpu/model_runner.py get_kv_cache_spec"),
    Change("0.31.0", "compressed_fp8", True, "models/qwen4_exp/nvidia/qsa.py"),
    Change("0.31.0", "latent_triton_draft_graphs", True, TRITON_MLA),
    Change("0.31.0", RECORDED, True, RESULTS),
    Change("0.32.0", "modes", False, "config/cache.py"),
    Change("0.32.0", "mode_all_deprecated", False, "config/cache.py"),
    Change("0.32.0", "fitted_to_cache", True, UTILS),
    Change("0.32.0", "groups_in_round", True, UTILS),
    Change("0.32.0", "mode_all_refused", True, "config/cache.py"),
    Change("0.32.0", "kernel_blocks", True, f"{BLOCKS} _align_hybrid_block_size"),
    Change("0.32.0", "class_counts_drafts", True, "model_executor/models/"),
    Change("0.32.0", "checkpoints", frozenset({"kda", "kda of GLM-5.3", "mamba2"}), f"{LAYERS} get_kv_cache_spec"),
    Change("0.32.0", "index_packed", True, f"{UTILS} _get_packed_kv_cache_groups"),
    Change("0.32.0", "single_unit_checked", True, f"{UTILS} resolve_kv_cache_block_sizes"),
    Change("0.32.0", "nvfp4_on_fa2", True, "v1/attention/backends/flashinfer.py"),
    Change("0.32.0", "replays_drafts", True, REPLAY),
    Change("0.32.0", "replay_buffer_most", 16, REPLAY),
    Change("0.32.0", "runner_v2_lacks", DRAFTS_ON_V1 - {"ngram"}, RUNNER),
    Change("0.32.0", RECORDED, True, RESULTS),
    Change("0.33.0", "flashinfer_draft_graphs", frozenset({"7", "8", "9", "10", "12"}), FLASHINFER),
    Change("0.33.0", "mode_all_refused", False, ARGS),
    Change("0.33.0", "checkpoint_grid", True, BLOCKS),
    Change("0.33.0", "sparse_fp8_default", True, f"{HOOKS} Glm5NextModelConfig"),
    Change("0.33.0", "checkpoints", frozenset({"kda", "kda of GLM-5.3", "mamba2", "gdn"}), f"{LAYERS} gdn/"),
    Change("0.33.0", "kda_records_in_pool", False, "models/kimi_k3/nvidia/kda.py"),
    Change("0.33.0", "runner_v2_lacks", frozenset({"suffix", "custom_class", "parallel drafting"}), RUNNER),
    Change("0.33.0", "gb10_is_small", True, f"{ARGS} get_batch_defaults"),
    Change("0.33.0", RECORDED, True, RESULTS),
)  # fmt: skip
"""A new release is added here, a row a change, or one row where it changed nothing."""

BUILDS = {"0.26.1": "0.28.0"}
"""No 0.26.1 was published. From the branch of 0.26 to that of 0.28 builds of main are called 0.26.1rc1.devN; they cache
prefixes of hybrids by default since vLLM pull request 50991 (between dev298 and dev608, August 2026), which 0.27 lacks.
"""
RELEASES = Releases("vLLM", RuleSet(CHANGES[0].release), CHANGES, BUILDS)
NEWEST_VERSION = RELEASES.newest
rules_for = RELEASES.rules_for
