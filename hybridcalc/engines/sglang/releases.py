"""What does each release of SGLang do its own way? `RuleSet` has a field a fact, `CHANGES` a row a change."""

from typing import NamedTuple

from hybridcalc.engines.arguments import RECORDED, Change, Releases
from hybridcalc.units import is_later

QWEN = frozenset({
    "Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
})  # fmt: skip
QWEN_WITH_IMAGES = frozenset({"InternS2PreviewForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration"})
QWEN_TEXT = frozenset({"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"})
MAMBA2 = frozenset({"NemotronHForCausalLM", "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM"})
JET = frozenset({"JetNemotronForCausalLM", "JetVLMForConditionalGeneration"})
KIMI_LINEAR, LING_2_5, LFM2_MOE = "KimiLinearForCausalLM", "BailingMoeV2_5ForCausalLM", "Lfm2MoeForCausalLM"

BUFFERED_0_5_14 = QWEN | MAMBA2 | QWEN_WITH_IMAGES | {LING_2_5, "NemotronHPuzzleForCausalLM"}
BUFFERED_0_5_17 = BUFFERED_0_5_14 | {KIMI_LINEAR, "KimiK3ForConditionalGeneration"}
BUFFERED_0_5_19 = BUFFERED_0_5_17 | QWEN_TEXT | {"BailingMoeV3ForCausalLM"}
BUFFERED_0_5_20 = BUFFERED_0_5_19 | {
    "Qwen4ExpForConditionalGeneration", "Glm5NextForConditionalGeneration", "NemotronH_Omni_Reasoning_V3",
}  # fmt: skip
BUFFERED_0_5_21 = BUFFERED_0_5_20 | {"BailingMoeV3VLForConditionalGeneration", "InklingForConditionalGeneration"}
UNBUFFERED_0_5_14 = JET | {"Lfm2ForCausalLM", "ZayaForCausalLM"}
UNBUFFERED_0_5_17 = UNBUFFERED_0_5_14 | {LFM2_MOE}
UNBUFFERED_0_5_18 = UNBUFFERED_0_5_17 | {"InternS2MobiusForConditionalGeneration"}

UNSTAGED_0_5_21 = JET | {
    "Qwen3NextForCausalLM", "FalconH1ForCausalLM", "Lfm2ForCausalLM", LFM2_MOE, "Lfm2VlForConditionalGeneration",
    "MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM", "MiniCPMSALAForCausalLM",
    "InklingForConditionalGeneration", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3",
    "Llama4ForConditionalGeneration", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM", "MuseGlimmerForCausalLM",
}  # fmt: skip
UNSTAGED_0_5_13 = UNSTAGED_0_5_21 | {"Qwen4ExpForConditionalGeneration"}
GEMMA4 = frozenset({"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"})

UNGRAPHED_0_5_15 = frozenset({"expert kernels", "data-parallel attention", "latent rows"})
UNGRAPHED_0_5_18 = frozenset({"context parallelism", "two-batch overlap"})
SEEN_0_5_16 = ("Qwen3_5",)
SEEN_0_5_18 = (*SEEN_0_5_16, "InternS2Mobius", "Muse", "KimiK3", "KimiK25")
SEEN_0_5_19 = (*SEEN_0_5_18, "Cohere2Vision", "PaddleOCRVL")
SEEN_0_5_20 = (*SEEN_0_5_19, "Glm5Next")
SEEN_0_5_22 = (*SEEN_0_5_20, "Qwen4Exp", "MiniMaxM3")

NEW_CLASSES = {
    "0.5.10": ("Lfm2VlForConditionalGeneration",),
    "0.5.11": ("NemotronH_Nano_Omni_Reasoning_V3",),
    "0.5.12": tuple(sorted(QWEN_WITH_IMAGES)),
    "0.5.13": ("NemotronHPuzzleForCausalLM",),
    "0.5.14": ("ZayaForCausalLM",),
    "0.5.16": ("InklingForConditionalGeneration",),
    "0.5.17": ("KimiK3ForConditionalGeneration", *sorted(QWEN_TEXT)),
    "0.5.18": ("InternS2MobiusForConditionalGeneration",),
    "0.5.19": ("BailingMoeV3ForCausalLM", "KimiK3LinearForCausalLM", "MiniCPMSALAForCausalLM"),
    "0.5.20": (
        "Glm5NextForConditionalGeneration", "Qwen4ExpForConditionalGeneration", "Mamba2ForCausalLM",
        "MambaForCausalLM", "FalconMambaForCausalLM", "NemotronH_Omni_Reasoning_V3",
    ),
    "0.5.21": ("GigaChat35ForCausalLM", "BailingMoeV3VLForConditionalGeneration"),
    "0.5.23": ("MiniCPMV4_7ForConditionalGeneration",),
}  # fmt: skip
"""Release -> the model classes that it brings."""

FLAGS_SINCE = {
    "dcp_size": "0.5.15", "linear_attn_backend": "0.5.10", "linear_attn_decode_backend": "0.5.10",
    "qsa_indexer_dtype": "0.5.22", "mamba_max_states_per_path": "0.5.17", "enable_linear_replayssm": "0.5.15",
    "enable_linear_replayssm_spec": "0.5.16", "linear_replayssm_cache_len": "0.5.15",
    "disaggregation_decode_extra_slots": "0.5.14", "disaggregation_decode_enable_radix_cache": "0.5.11",
    "enable_int8_mamba_checkpoint": "0.5.14", "int8_mamba_ckpt_size": "0.5.14", "radix_cache_backend": "0.5.13",
    "enable_unified_memory": "0.5.15", "enable_pd_role_switch": "0.5.21", "mm_feature_transport": "0.5.16",
    "cuda_graph_backend_prefill": "0.5.14", "disable_prefill_cuda_graph": "0.5.14", "speculative_adaptive": "0.5.11",
}  # fmt: skip
"""Argument -> the first release that has its flag, of those that 0.5.9 lacks."""

ATTENTION = {
    "dsv4": "0.5.12", "compressed": "0.5.12", "tokenspeed_mla": "0.5.12", "dsa": "0.5.13", "cutedsl_mla": "0.5.13",
    "hpc_ops": "0.5.17", "minicpm_flashattn": "0.5.19", "minicpm_flashinfer": "0.5.19", "qsa": "0.5.20",
}  # fmt: skip
LINEAR = {
    "flashkda": "0.5.15", "nvidia_kda": "0.5.17", "ptx_kda": "0.5.17", "helion": "0.5.18", "intel_xpu": "0.5.19",
}  # fmt: skip
SPARSE = {"flashmla_sparse_q8": "0.5.16", "flashinfer_sparse_mla": "0.5.17"}
VALUES_SINCE = {
    "speculative_algorithm": {"DFLASH": "0.5.11", "DSPARK": "0.5.16"},
    "mamba_radix_cache_strategy": {"extra_buffer_lazy": "0.5.13"},
    "kv_cache_dtype": {"mxfp8": "0.5.16"},
    "attention_backend": ATTENTION,
    "linear_attn_backend": LINEAR,
    "linear_attn_decode_backend": LINEAR,
    "dsa_prefill_backend": SPARSE,
    "dsa_decode_backend": SPARSE,
}
"""Argument -> its values that later releases brought, each with the first that has it."""
VALUES_UNTIL = {
    ("attention_backend", "cutlass_mla"): "0.5.19",
    ("attention_backend", "dual_chunk_flash_attn"): "0.5.19",
}
"""A value that later releases dropped -> the last that has it."""


def _later_than(release: str) -> frozenset[str]:
    """The classes that come after a release."""
    return frozenset(name for later, names in NEW_CLASSES.items() if is_later(later, than=release) for name in names)


class RuleSet(NamedTuple):
    """What a release does its own way; everything else is common to all. The defaults are those of 0.5.9.

    Model classes: ``missing_classes``: those it lacks; ``extra_buffer_classes`` can keep extra buffers, of states
    before and behind a prefix; ``no_buffer_classes`` cache prefixes without; ``prefix_cache_off_classes``: the
    cache is switched off for them; ``state_class_checked``: buffers are refused for a class that has no prefix
    cache; ``unstaged_classes`` do not run pipeline stages.
    Strategies: ``automatic_strategy``: auto is by class, not always no_buffer; releases before take it (early.py,
    with its rules: ``drafts_need_buffers``: no_buffer is refused with drafts, not the prefix cache switched off;
    ``buffers_need_radix_cache``; ``decode_settled_first``: a decode server is without a cache before that is
    judged; ``drafts_unrefused_on_amd``: there it is switched off; ``single_token_pages``: no_buffer sets the page
    to 1; ``tracked_by_drafts``: drafts decide how many slots track prefixes, not the scheduler).
    ``extra_buffer_platforms``: buffers are refused on any other; ``unbuffered_platforms``: auto avoids them there;
    ``lazy_with_speculation``, ``lazy_with_dflash``: run together; ``lazy_refused_under_disaggregation``;
    ``strict_verification``: ReplaySSM verifies drafts in rings of twice as many, of float32, on triton, beside no
    extra buffers and no disaggregation;
    ``dcp_unlimited``: context parallelism runs with drafts on CUDA, and off CUDA and ROCm; ``decode_lock_skip``:
    SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK saves a slot; ``typed_default_is_unset``: a ratio typed at its default gives
    way to the class's own.
    Solver: ``drafts_solved_with_slots``: draft states are sized by the slots, not taken off first;
    ``empty_pool_refused``: no slot or no request stops the start; ``padding_slot_charged``: the slot that pads the
    pool is paid for; ``stage_share_charged``: of a slot the layers of the heaviest pipeline stage alone;
    ``prefill_keeps_drafts``: prefill servers keep draft states; ``windows_overlap``: convolution windows of drafts
    share columns; ``one_window_length``: and must be of one length then; ``replayssm_priced``: rings are;
    ``rings_of_drafts``: those of GDN come with every slot, a window of inputs as long as the most drafts.
    Requests: ``limit_shared_out``: the request limit is that of all workers; ``estimate_caps_limit``: it is capped
    by the estimate; ``worker_limit_at_least_one``: limit // dp is 1 at least.
    KV: ``stages_share_a_layer``: a pipeline stage counts the next one's first layer too, where windows have a pool
    of their own; ``bare_stages``: a stage without attention starts; ``draft_layers_priced``: drafts have a part in
    a token's cell; ``dflash_layers_priced``: those of DFLASH and DSPARK have; ``drafts_beside_windows``: where
    windows have a pool of their own too; ``drafts_in_windows``: its windows lie in that pool;
    ``window_rows_first``: bytes of windows are summed before the ratio; ``windows_checked``: a pool of windows
    holds one and a page; ``windows_by_limit``: it is sized by the request limit where no prefixes are cached;
    ``limit_needs_chunks``: and prompts are in chunks; ``own_draft_cell``: DSPARK and DFLASH drafts are priced by a
    cell of their own; ``own_cell_by_limit``: beside windows by the limit too; ``draft_cell_apart``: an EAGLE
    draft's cell is rounded down apart from the target's; ``fp4_workspace_priced``: fp4 pays for a row in fp8;
    ``raw_tilelang_rows``: tilelang on both sides reads plain fp8; ``heads_shared_by_dcp``: context parallelism
    divides heads; ``index_pooled``: keys of a sparse-attention index are priced pooled, and a page holds 64 of
    them, not of tokens.
    Memory: ``multimodal_reserve`` is kept; ``after_capture``: KV can be sized after graph capture;
    ``unified_memory``: slots and KV can share a pool; ``fused_drafts``: in which drafts lie beside the target's KV.
    Log: ``kv_dtype_line``: the line of the KV pool names its dtype; ``requests_line`` says R, ``reduced_line`` that
    it is less than asked for; ``cap_line``: why slots cap the requests; ``int8_lines``: of the checkpoint pool;
    ``kv_line_recorded``: a recorded start-up includes the line of the KV pool.
    Default fraction (fraction.py): ``cards_of_32_gib_raised``: GPUs of 20 to 35 GiB take the chunk of larger ones;
    ``reserve_by_role``: memory is reserved by the role of a disaggregated server; ``post_capture_floor_mib``: where
    KV is sized after capture; ``prefill_graphs`` are kept room for, ``prefill_graphs_of_glm`` as well, and those of
    the multimodal classes whose names begin as ``prefill_graphs_of_images``, but not beside ``no_prefill_graphs``;
    ``piecewise_prefill``: they are pieces, which fewer launches have, ``piecewise_drafts``: those with drafts do;
    ``limit_lowers_graphs``: decode graphs are no larger than the request limit; ``drafts_reserve_mib`` for a draft
    model; ``expert_graphs_reserved``: prefill graphs of DeepEP take more; ``single_worker_reserved``: data-parallel
    attention of one worker is kept room for as well; ``images_on_decode``: decode servers keep room for images;
    ``pipeline_graphs_capped``: prefill graphs of pipeline stages end at 8,192 tokens.
    Backends (strategy.py): ``fa4_on_hopper``: Inkling's backend there; ``nemotron_by_drafts``: Nemotron-H's on
    Blackwell depends on drafts, flashinfer before; ``convolution_classes`` take flashinfer there, and triton
    nowhere; ``trtllm_mha_majors``: compute capabilities that trtllm_mha runs on, in ``trtllm_mha_pages``.
    Weights: ``qwen3_5_keeps_quantization``: auto follows what its checkpoint says of KV; ``head_in_fp32`` begin the
    names of classes whose output head is held in fp32; ``vocabulary_padded``: until the ranks divide
    it, off the CPU too.
    """

    version: str
    recorded: bool = False
    missing_classes: frozenset[str] = _later_than("0.5.9")
    extra_buffer_classes: frozenset[str] = QWEN
    no_buffer_classes: frozenset[str] = MAMBA2 | JET | {"Lfm2ForCausalLM"}
    prefix_cache_off_classes: frozenset[str] = frozenset({KIMI_LINEAR, LING_2_5})
    state_class_checked: bool = False
    unstaged_classes: frozenset[str] = UNSTAGED_0_5_13 | GEMMA4
    automatic_strategy: bool = False
    drafts_need_buffers: bool = False
    buffers_need_radix_cache: bool = False
    decode_settled_first: bool = False
    drafts_unrefused_on_amd: bool = False
    single_token_pages: bool = False
    tracked_by_drafts: bool = True
    extra_buffer_platforms: tuple[str, ...] = ("cuda",)
    unbuffered_platforms: tuple[str, ...] = ()
    lazy_with_speculation: bool = False
    lazy_with_dflash: bool = False
    lazy_refused_under_disaggregation: bool = False
    strict_verification: bool = False
    decode_lock_skip: bool = False
    typed_default_is_unset: bool = True
    drafts_solved_with_slots: bool = False
    empty_pool_refused: bool = False
    padding_slot_charged: bool = False
    stage_share_charged: bool = False
    prefill_keeps_drafts: bool = True
    windows_overlap: bool = False
    one_window_length: bool = False
    replayssm_priced: bool = False
    rings_of_drafts: bool = False
    limit_shared_out: bool = False
    estimate_caps_limit: bool = False
    worker_limit_at_least_one: bool = False
    stages_share_a_layer: bool = True
    bare_stages: bool = False
    draft_layers_priced: bool = False
    dflash_layers_priced: bool = False
    drafts_beside_windows: bool = False
    drafts_in_windows: bool = False
    window_rows_first: bool = False
    windows_checked: bool = False
    windows_by_limit: bool = False
    limit_needs_chunks: bool = False
    own_draft_cell: bool = False
    own_cell_by_limit: bool = False
    draft_cell_apart: bool = False
    fp4_workspace_priced: bool = False
    raw_tilelang_rows: bool = False
    heads_shared_by_dcp: bool = False
    index_pooled: bool = False
    multimodal_reserve: bool = False
    cards_of_32_gib_raised: bool = False
    reserve_by_role: bool = False
    post_capture_floor_mib: int = 512
    fa4_on_hopper: bool = False
    nemotron_by_drafts: bool = False
    convolution_classes: tuple[str, ...] = ("Lfm2ForCausalLM",)
    trtllm_mha_majors: tuple[int, ...] = (10,)
    trtllm_mha_pages: tuple[int, ...] = (16, 32, 64)
    single_worker_reserved: bool = True
    images_on_decode: bool = True
    pipeline_graphs_capped: bool = False
    dcp_unlimited: bool = False
    expert_graphs_reserved: bool = False
    qwen3_5_keeps_quantization: bool = False
    after_capture: bool = False
    unified_memory: bool = False
    fused_drafts: bool = False
    kv_dtype_line: bool = False
    requests_line: bool = False
    reduced_line: bool = False
    cap_line: bool = False
    int8_lines: bool = False
    kv_line_recorded: bool = False
    head_in_fp32: tuple[str, ...] = ("Bailing",)
    vocabulary_padded: bool = False
    prefill_graphs: bool = False
    prefill_graphs_of_glm: bool = False
    prefill_graphs_of_images: tuple[str, ...] = ()
    no_prefill_graphs: frozenset[str] = UNGRAPHED_0_5_15
    piecewise_prefill: bool = False
    piecewise_drafts: bool = True
    limit_lowers_graphs: bool = False
    drafts_reserve_mib: int = 2048


RESULTS = "results of its own classes"
FRACTION = "server_args.py _handle_gpu_memory_settings"
ARGUMENTS, MIXIN = "server_args.py _handle_mamba_radix_cache", "model_executor/model_runner_kv_cache_mixin.py"
OVERRIDES, CONFIGURATOR = "arg_groups/overrides.py", "mem_cache/kv_cache_configurator.py"
CELL, MULTIMODAL = "model_executor/pool_configurator.py", "configs/model_config.py breakable_cuda_graph"
BREAKABLE = "server_args.py _disable_breakable_cudagraph_if_incompatible"
PIECEWISE = "server_args.py _handle_piecewise_cuda_graph"
GPU_MEMORY = "server_args.py _handle_gpu_memory_settings"
EXTRA_BUFFER_ARCHS, RADIX_ARCHS = f"{OVERRIDES} _MAMBA_EXTRA_BUFFER_ARCHS", f"{OVERRIDES} _MAMBA_RADIX_CACHE_ARCHS"
CHANGES: tuple[Change, ...] = (
    Change("0.5.9", RECORDED, True, RESULTS),
    Change("0.5.10", RECORDED, True, RESULTS),
    Change("0.5.10", "missing_classes", _later_than("0.5.10"), "models/"),
    Change("0.5.10", "qwen3_5_keeps_quantization", True, "models/qwen3_vl.py quant_config"),
    Change("0.5.10", "prefill_graphs", True, GPU_MEMORY),
    Change("0.5.10", "piecewise_prefill", True, PIECEWISE),
    Change("0.5.10", "piecewise_drafts", False, PIECEWISE),
    Change("0.5.10", "drafts_reserve_mib", 4096, GPU_MEMORY),
    Change("0.5.10", "drafts_need_buffers", True, ARGUMENTS),
    Change("0.5.10", "buffers_need_radix_cache", True, ARGUMENTS),
    Change("0.5.10", "tracked_by_drafts", False, f"{MIXIN} _calculate_mamba_ratio"),
    Change("0.5.10", "limit_shared_out", True, f"{MIXIN} _resolve_max_num_reqs"),
    Change("0.5.10", "estimate_caps_limit", True, f"{MIXIN} _resolve_max_num_reqs"),
    Change("0.5.11", RECORDED, True, RESULTS),
    Change("0.5.11", "piecewise_drafts", True, PIECEWISE),
    Change("0.5.11", "single_token_pages", True, ARGUMENTS),
    Change("0.5.11", "missing_classes", _later_than("0.5.11"), "models/"),
    Change("0.5.11", "extra_buffer_platforms", ("cuda", "musa"), ARGUMENTS),
    Change("0.5.11", "drafts_unrefused_on_amd", True, ARGUMENTS),
    Change("0.5.11", "decode_settled_first", True, "server_args.py __post_init__"),
    Change("0.5.11", "dflash_layers_priced", True, f"{CELL} DefaultPoolConfigurator.__init__"),
    Change("0.5.12", RECORDED, True, RESULTS),
    Change("0.5.12", "missing_classes", _later_than("0.5.12"), "models/"),
    Change("0.5.12", "extra_buffer_classes", QWEN | QWEN_WITH_IMAGES, ARGUMENTS),
    Change("0.5.12", "extra_buffer_platforms", ("cuda", "musa", "npu"), ARGUMENTS),
    Change("0.5.13", RECORDED, True, RESULTS),
    Change("0.5.13", "missing_classes", _later_than("0.5.13"), "models/"),
    Change("0.5.13", "extra_buffer_classes", BUFFERED_0_5_14 | JET, ARGUMENTS),
    Change("0.5.13", "no_buffer_classes", frozenset({"Lfm2ForCausalLM"}), ARGUMENTS),
    Change("0.5.13", "prefix_cache_off_classes", frozenset({KIMI_LINEAR}), ARGUMENTS),
    Change("0.5.13", "drafts_solved_with_slots", True, f"{MIXIN} handle_max_mamba_cache"),
    Change("0.5.13", "empty_pool_refused", True, f"{MIXIN} handle_max_mamba_cache"),
    Change("0.5.13", "kv_dtype_line", True, "mem_cache/memory_pool.py"),
    Change("0.5.13", "requests_line", True, f"{MIXIN} _resolve_max_num_reqs"),
    Change("0.5.13", "unstaged_classes", UNSTAGED_0_5_13, "models/gemma4_causal.py"),
    Change("0.5.14", RECORDED, True, RESULTS),
    Change("0.5.14", "missing_classes", _later_than("0.5.14"), "models/"),
    Change("0.5.14", "drafts_reserve_mib", 0, GPU_MEMORY),
    Change("0.5.14", "automatic_strategy", True, ARGUMENTS),
    Change("0.5.14", "extra_buffer_classes", BUFFERED_0_5_14, ARGUMENTS),
    Change("0.5.14", "no_buffer_classes", UNBUFFERED_0_5_14 | {KIMI_LINEAR}, ARGUMENTS),
    Change("0.5.14", "prefix_cache_off_classes", frozenset(), ARGUMENTS),
    Change("0.5.14", "estimate_caps_limit", False, f"{MIXIN} _resolve_max_num_reqs"),
    Change("0.5.14", "draft_layers_priced", True, f"{CELL} DefaultPoolConfigurator.__init__"),
    Change("0.5.14", "windows_by_limit", True, f"{CELL} SWAChunkCapPoolConfigurator"),
    Change("0.5.14", "windows_overlap", True, "mem_cache/memory_pool.py conv_window_dedup_enabled"),
    Change("0.5.14", "requests_line", False, f"{MIXIN} _resolve_max_num_reqs"),
    Change("0.5.14", "reduced_line", True, f"{MIXIN} _resolve_max_num_reqs"),
    Change("0.5.15", RECORDED, True, RESULTS),
    Change("0.5.15", "piecewise_prefill", False, "model_executor/cuda_graph_config.py default_prefill_backend"),
    Change("0.5.15", "drafts_beside_windows", True, f"{CELL} HybridSWAPoolConfigurator"),
    Change("0.5.15", "unified_memory", True, "mem_cache/unified_memory_pool.py"),
    Change("0.5.16", RECORDED, True, RESULTS),
    Change("0.5.16", "no_prefill_graphs", UNGRAPHED_0_5_15 | {"context parallelism"}, BREAKABLE),
    Change("0.5.16", "prefill_graphs_of_images", SEEN_0_5_16, MULTIMODAL),
    Change("0.5.16", "missing_classes", _later_than("0.5.16"), "models/"),
    Change("0.5.16", "extra_buffer_classes", BUFFERED_0_5_14 | {KIMI_LINEAR}, EXTRA_BUFFER_ARCHS),
    Change("0.5.16", "no_buffer_classes", UNBUFFERED_0_5_14, EXTRA_BUFFER_ARCHS),
    Change("0.5.16", "extra_buffer_platforms", ("cuda", "musa", "npu", "hip"), ARGUMENTS),
    Change("0.5.16", "strict_verification", True, "server_args.py _validate_gdn_replayssm_spec_ring"),
    Change("0.5.16", "fp4_workspace_priced", True, f"{CELL} _compute_cell_size"),
    Change("0.5.16", "after_capture", True, f"{CONFIGURATOR} _profile_available_bytes"),
    Change("0.5.16", "reserve_by_role", True, FRACTION),
    Change("0.5.16", "windows_checked", True, f"{CELL} HybridSWAPoolConfigurator"),
    Change("0.5.17", RECORDED, True, RESULTS),
    Change("0.5.17", "no_prefill_graphs", UNGRAPHED_0_5_18 | {"latent rows", "Nemotron-H"}, BREAKABLE),
    Change("0.5.17", "missing_classes", _later_than("0.5.17"), "models/"),
    Change("0.5.17", "extra_buffer_classes", BUFFERED_0_5_17, EXTRA_BUFFER_ARCHS),
    Change("0.5.17", "no_buffer_classes", UNBUFFERED_0_5_17, RADIX_ARCHS),
    Change("0.5.17", "lazy_with_speculation", True, "server_args.py _validate_mamba_extra_buffer"),
    Change("0.5.17", "lazy_refused_under_disaggregation", True, "server_args.py _validate_mamba_extra_buffer"),
    Change("0.5.17", "strict_verification", False, "server_args.py _handle_linear_attn_backend"),
    Change("0.5.17", "decode_lock_skip", True, f"{CONFIGURATOR} _calculate_mamba_ratio"),
    Change("0.5.17", "padding_slot_charged", True, f"{CONFIGURATOR} _handle_max_mamba_cache"),
    Change("0.5.17", "stage_share_charged", True, f"{CONFIGURATOR} _handle_max_mamba_cache"),
    Change("0.5.17", "replayssm_priced", True, f"{CONFIGURATOR} _handle_max_mamba_cache"),
    Change("0.5.17", "rings_of_drafts", True, f"{CONFIGURATOR} _handle_max_mamba_cache"),
    Change("0.5.17", "one_window_length", True, "mem_cache/memory_pool.py _detect_conv_window_axis"),
    Change("0.5.17", "cap_line", True, f"{CONFIGURATOR} resolve_max_num_reqs"),
    Change("0.5.17", "dcp_unlimited", True, "server_args.py _handle_dcp_validation"),
    Change("0.5.17", "images_on_decode", False, GPU_MEMORY),
    Change("0.5.17", "expert_graphs_reserved", True, "server_args.py reserve_for_graph_mb"),
    Change("0.5.17", "convolution_classes", ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), f"{OVERRIDES} _lfm2_overrides"),
    Change("0.5.17", "trtllm_mha_pages", (16, 32, 64, 128), f"{OVERRIDES} _mla_backend_page_constraints"),
    Change("0.5.17", "int8_lines", True, "mem_cache/mamba_checkpoint_pool.py"),
    Change("0.5.17", "kv_line_recorded", True, RESULTS),
    Change("0.5.17", "bare_stages", True, f"{CELL} DefaultPoolConfigurator"),
    Change("0.5.18", RECORDED, True, RESULTS),
    Change("0.5.18", "no_prefill_graphs", UNGRAPHED_0_5_18, BREAKABLE),
    Change("0.5.18", "missing_classes", _later_than("0.5.18"), "models/"),
    Change("0.5.18", "no_buffer_classes", UNBUFFERED_0_5_18, RADIX_ARCHS),
    Change("0.5.18", "extra_buffer_platforms", ("cuda", "musa", "npu", "hip", "xpu"),
           "server_args.py _validate_mamba_extra_buffer"),
    Change("0.5.18", "lazy_with_dflash", True, "server_args.py _validate_mamba_extra_buffer"),
    Change("0.5.18", "own_draft_cell", True, f"{CELL} _dflash_draft_cell_size"),
    Change("0.5.18", "heads_shared_by_dcp", True, f"{CELL} _compute_cell_size"),
    Change("0.5.18", "multimodal_reserve", True, f"{CONFIGURATOR} mm_runtime_reservation_gb"),
    Change("0.5.18", "post_capture_floor_mib", 1536, FRACTION),
    Change("0.5.18", "prefill_graphs_of_images", SEEN_0_5_18, MULTIMODAL),
    Change("0.5.19", RECORDED, True, RESULTS),
    Change("0.5.19", "no_prefill_graphs", UNGRAPHED_0_5_18 | {"pipeline stages"}, BREAKABLE),
    Change("0.5.19", "missing_classes", _later_than("0.5.19"), "models/"),
    Change("0.5.19", "extra_buffer_classes", BUFFERED_0_5_19, EXTRA_BUFFER_ARCHS),
    Change("0.5.19", "pipeline_graphs_capped", True, "arg_groups/cuda_graph_hook.py"),
    Change("0.5.19", "nemotron_by_drafts", True, "arg_groups/model_overrides/nemotron_h.py"),
    Change("0.5.19", "trtllm_mha_majors", (9, 10, 12), "arg_groups/attention_hook.py"),
    Change("0.5.19", "drafts_in_windows", True, f"{CELL} HybridSWAPoolConfigurator"),
    Change("0.5.19", "prefill_graphs_of_images", SEEN_0_5_19, MULTIMODAL),
    Change("0.5.19", "head_in_fp32", ("BailingMoeV2_5", "BailingMoeLinear"), "models/bailing_moe_v3.py"),
    Change("0.5.20", RECORDED, True, RESULTS),
    Change("0.5.20", "no_prefill_graphs", UNGRAPHED_0_5_18 | {"pipeline stages", "Kimi"}, BREAKABLE),
    Change("0.5.20", "missing_classes", _later_than("0.5.20"), "models/"),
    Change("0.5.20", "extra_buffer_classes", BUFFERED_0_5_20, EXTRA_BUFFER_ARCHS),
    Change("0.5.20", "unbuffered_platforms", ("xpu",), f"{OVERRIDES} supports_mamba_cache_extra_buffer"),
    Change("0.5.20", "typed_default_is_unset", False, "arg_groups/model_overrides/inkling.py"),
    Change("0.5.20", "rings_of_drafts", False, f"{CONFIGURATOR} _handle_max_mamba_cache"),
    Change("0.5.20", "cards_of_32_gib_raised", True, "arg_groups/memory_hook.py"),
    Change("0.5.20", "prefill_graphs_of_images", SEEN_0_5_20, MULTIMODAL),
    Change("0.5.21", RECORDED, True, RESULTS),
    Change("0.5.21", "missing_classes", _later_than("0.5.21"), "models/"),
    Change("0.5.21", "extra_buffer_classes", BUFFERED_0_5_21, EXTRA_BUFFER_ARCHS),
    Change("0.5.21", "no_buffer_classes", UNBUFFERED_0_5_18 | {"GigaChat35ForCausalLM"},
           "configs/linear_attn_model_registry.py"),
    Change("0.5.21", "state_class_checked", True, "arg_groups/model_hook.py"),
    Change("0.5.21", "fp4_workspace_priced", False, f"{CELL} _compute_cell_size"),
    Change("0.5.21", "unstaged_classes", UNSTAGED_0_5_21, "models/qwen4_exp.py"),
    Change("0.5.21", "stages_share_a_layer", False, "model_executor/model_runner_components/layer_setup.py"),
    Change("0.5.22", RECORDED, True, RESULTS),
    Change("0.5.22", "single_worker_reserved", False, "arg_groups/parallel_hook.py handle_deprecated_dp_attention"),
    Change("0.5.22", "prefill_graphs_of_glm", True, "arg_groups/cuda_graph_hook.py"),
    Change("0.5.22", "prefill_graphs_of_images", SEEN_0_5_22, MULTIMODAL),
    Change("0.5.22", "limit_lowers_graphs", True, "arg_groups/cuda_graph_hook.py"),
    Change("0.5.22", "prefill_keeps_drafts", False, f"{CONFIGURATOR} _pd_prefill_skips_mamba_spec_state"),
    Change("0.5.22", "fused_drafts", True, f"{CONFIGURATOR} _fused_draft_decision"),
    Change("0.5.22", "limit_needs_chunks", True, f"{CELL} SWARequestCapPoolConfigurator.is_applicable"),
    Change("0.5.22", "window_rows_first", True, f"{CELL} HybridSWAPoolConfigurator"),
    Change("0.5.22", "draft_cell_apart", True, f"{CELL} DefaultPoolConfigurator.__init__"),
    Change("0.5.22", "raw_tilelang_rows", True, f"{CONFIGURATOR} calculate_mla_kv_cache_dim"),
    Change("0.5.22", "index_pooled", True, f"{CELL} _compute_dsa_indexer_cell_size"),
    Change("0.5.22", "vocabulary_padded", True, "layers/vocab_parallel_embedding.py VocabParallelEmbedding.__init__"),
    Change("0.5.22", "fa4_on_hopper", True, "arg_groups/model_overrides/inkling.py"),
    Change("0.5.23", RECORDED, True, RESULTS),
    Change("0.5.23", "missing_classes", frozenset(), "models/"),
    Change("0.5.23", "extra_buffer_classes", BUFFERED_0_5_21 | {"MiniCPMV4_7ForConditionalGeneration"},
           EXTRA_BUFFER_ARCHS),
    Change("0.5.23", "own_cell_by_limit", True, f"{CELL} SWARequestCapPoolConfigurator.calculate_pool_sizes"),
    Change("0.5.23", "worker_limit_at_least_one", True, f"{CONFIGURATOR} resolve_max_num_reqs"),
)  # fmt: skip
"""A new release is added here, a row a change, or one row where it changed nothing."""

RELEASES = Releases("SGLang", RuleSet(CHANGES[0].release), CHANGES)
NEWEST_VERSION = RELEASES.newest
rules_for = RELEASES.rules_for
LISTED_CLASSES = RELEASES.rule_sets[-1].extra_buffer_classes | RELEASES.rule_sets[-1].no_buffer_classes
"""Classes whose states the newest release caches with prefixes."""
