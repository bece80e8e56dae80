"""Which flags does SGLang's command line take, and which model and ServerArgs do the words of a launch ask for?

    sglang serve MODEL --tp 8 --context-length 128Ki -> MODEL, ServerArgs(tp_size=8, context_length=131072)

`FLAGS` is the one place where a flag of a launch command is added: the `ServerArgs` field it sets, its spellings, how
its value is read and within which bounds. `OTHER_FLAGS` are the names that leave memory alone, or bear on it in a way
no plan here knows: they tell an unrelated flag from a misspelt one, and an abbreviation from an ambiguous one. They and
names that no list has are passed over with their values; a name that all but spells a needed one is refused.

Read as the engine's argparse reads it: ``--flag value`` and ``--flag=value``, the last of repeated flags, abbreviations
that fit one flag alone. Values mean what they mean there, so that 8k tokens are 8,000 and 8Ki are 8,192. Checks one
flag at a time: what flags do to each other is the planner's business, but for those that share a field. A file of flags
(``--config``) is refused, not read. Mirrors SGLang srt/server_args.py and srt/arg_groups/fields/ (0.5.23), with names
that releases from 0.4.10 on retired.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.engines.sglang import KNOWN_ENVIRONMENT, ServerArgs
from hybridcalc.engines.spelling import Renamed
from hybridcalc.errors import InputError
from hybridcalc.formulas import STRATEGIES
from hybridcalc.shell.flags import WEIGHTS_ELSEWHERE, Flag, FlagTable, among, environment, multiples
from hybridcalc.units import LARGEST_TOKENS, MOST_RANKS, MOST_SLOTS

MOST_DRAFTS = 1024
STATE_DTYPES = ("float32", "bfloat16", "float16")
ATTENTION_BACKENDS = (
    "flashinfer", "fa3", "fa4", "triton", "trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla", "cutedsl_mla", "dsa",
    "nsa", "aiter", "qsa", "dsv4", "compressed", "tokenspeed_mla", "torch_native", "flex_attention", "hpc_ops", "wave",
    "minicpm_flashattn", "minicpm_flashinfer", "dual_chunk_flash_attn", "intel_amx", "ascend", "intel_xpu", "mlu",
)  # fmt: skip
LINEAR_BACKENDS = (
    "triton", "cutedsl", "flashinfer", "flashkda", "nvidia_kda", "ptx_kda", "helion", "intel_xpu", "ascend",
)  # fmt: skip
"""Backends of any release from 0.5.9 on. Source: SGLang arg_groups/choices.py."""

FLAGS = (
    Flag("model_path", ("--model-path", "--model"), "str"),
    Flag("tp_size", ("--tp-size", "--tensor-parallel-size", "--tp"), "int", 1, MOST_RANKS),
    Flag("pp_size", ("--pp-size", "--pipeline-parallel-size", "--pp"), "int", 1, MOST_RANKS),
    Flag("dp_size", ("--dp-size", "--data-parallel-size", "--dp"), "int", 1, MOST_RANKS),
    Flag("dp_size", ("--attn-dp-size", "--attention-data-parallel-size"), "int", 1, MOST_RANKS),
    Flag("enable_dp_attention", ("--enable-dp-attention",), "flag"),
    Flag("dcp_size", ("--dcp-size", "--decode-context-parallel-size", "--dcp"), "int", 1, MOST_RANKS),
    Flag("kv_cache_dtype", ("--kv-cache-dtype",), "str"),
    Flag("page_size", ("--page-size",), "int", 1, 2**20),
    Flag("attention_backend", ("--attention-backend",), "str", choices=ATTENTION_BACKENDS),
    Flag("linear_attn_backend", ("--linear-attn-backend",), "str", choices=LINEAR_BACKENDS),
    Flag("linear_attn_decode_backend", ("--linear-attn-decode-backend",), "str", choices=LINEAR_BACKENDS),
    Flag("dsa_prefill_backend", ("--dsa-prefill-backend", "--nsa-prefill-backend"), "str"),
    Flag("dsa_decode_backend", ("--dsa-decode-backend", "--nsa-decode-backend"), "str"),
    Flag("qsa_indexer_dtype", ("--qsa-indexer-dtype",), "str", choices=("auto", "bfloat16", "fp8_e4m3")),
    Flag("mamba_ssm_dtype", ("--mamba-ssm-dtype",), "str", choices=STATE_DTYPES),
    Flag(
        "mamba_radix_cache_strategy",
        ("--mamba-radix-cache-strategy", "--mamba-scheduler-strategy", "--strategy"),  # the last is hybridcalc's own
        "str",
        choices=STRATEGIES,
    ),
    Flag("mamba_full_memory_ratio", ("--mamba-full-memory-ratio",), "float", 0, 10**6),
    Flag("max_mamba_cache_size", ("--max-mamba-cache-size",), "int", 1, MOST_SLOTS),
    Flag("mamba_track_interval", ("--mamba-track-interval",), "int", 1, MOST_SLOTS),
    Flag("mamba_max_states_per_path", ("--mamba-max-states-per-path",), "int", -1, MOST_SLOTS),
    Flag("max_running_requests", ("--max-running-requests",), "int", 1, MOST_SLOTS),
    Flag("max_total_tokens", ("--max-total-tokens",), "tokens", 1, LARGEST_TOKENS),
    Flag("swa_full_tokens_ratio", ("--swa-full-tokens-ratio",), "float", 0, 1),
    Flag("context_length", ("--context-length",), "tokens", 1, LARGEST_TOKENS),
    Flag("mem_fraction_static", ("--mem-fraction-static",), "float", 0, 1),
    Flag("chunked_prefill_size", ("--chunked-prefill-size",), "int", -1, LARGEST_TOKENS),
    Flag("mm_feature_transport", ("--mm-feature-transport",), "str", choices=("cpu", "cuda_ipc", "cuda_vmm")),
    Flag("max_prefill_tokens", ("--max-prefill-tokens",), "tokens", 1, LARGEST_TOKENS),
    Flag("disable_overlap_schedule", ("--disable-overlap-schedule",), "flag"),
    Flag("disable_radix_cache", ("--disable-radix-cache",), "flag"),
    Flag("radix_cache_backend", ("--radix-cache-backend",), "str"),
    Flag("speculative_algorithm", ("--speculative-algorithm",), "str"),
    Flag("speculative_num_draft_tokens", ("--speculative-num-draft-tokens",), "int", 1, MOST_DRAFTS),
    Flag("speculative_num_draft_tokens", ("--speculative-dflash-block-size",), "int", 1, MOST_DRAFTS),
    Flag("speculative_num_draft_tokens", ("--speculative-dspark-block-size",), "int", 1, MOST_DRAFTS - 1),
    Flag("speculative_num_steps", ("--speculative-num-steps",), "int", 0, MOST_DRAFTS),
    Flag("speculative_eagle_topk", ("--speculative-eagle-topk",), "int", 1, MOST_DRAFTS),
    Flag("speculative_draft_model_path", ("--speculative-draft-model-path", "--speculative-draft-model"), "str"),
    Flag("enable_linear_replayssm", ("--enable-linear-replayssm",), "flag"),
    Flag("enable_linear_replayssm_spec", ("--enable-linear-replayssm-spec", "--enable-gdn-replayssm-spec"), "flag"),
    Flag("linear_replayssm_cache_len", ("--linear-replayssm-cache-len",), "int", 1, 2**20),
    Flag("disaggregation_mode", ("--disaggregation-mode",), "str", choices=("null", "prefill", "decode")),
    Flag("disaggregation_decode_extra_slots", ("--disaggregation-decode-extra-slots",), "int", 0, MOST_SLOTS),
    Flag("disaggregation_decode_enable_radix_cache", ("--disaggregation-decode-enable-radix-cache",), "flag"),
    Flag("enable_int8_mamba_checkpoint", ("--enable-int8-mamba-checkpoint",), "flag"),
    Flag("int8_mamba_ckpt_size", ("--int8-mamba-ckpt-size",), "int", 0, MOST_SLOTS),
    Flag("enable_hierarchical_cache", ("--enable-hierarchical-cache", "--enable-hicache"), "flag"),
    Flag("hicache_ratio", ("--hicache-ratio",), "float", 0, 10**6),
    Flag("hicache_size", ("--hicache-size",), "int", 0, 2**20),
    Flag("hicache_write_policy", ("--hicache-write-policy",), "str"),
    Flag("enable_lmcache", ("--enable-lmcache",), "flag"),
    Flag("speculative_adaptive", ("--speculative-adaptive",), "flag"),
    Flag("enable_unified_memory", ("--enable-unified-memory",), "flag"),
    Flag("enable_pd_role_switch", ("--enable-pd-role-switch",), "flag"),
    Flag("enable_two_batch_overlap", ("--enable-two-batch-overlap",), "flag"),
    Flag("ep_size", ("--ep-size", "--expert-parallel-size", "--ep"), "int", 1, MOST_RANKS),
    Flag("ep_num_redundant_experts", ("--ep-num-redundant-experts",), "int", 0, MOST_RANKS),
    Flag("cpu_offload_gb", ("--cpu-offload-gb",), "int", 0, 2**20),
    Flag("quantization", ("--quantization",), "str"),
    Flag("moe_dense_tp_size", ("--moe-dense-tp-size",), "int", 1, MOST_RANKS),
    Flag("moe_a2a_backend", ("--moe-a2a-backend",), "str"),
    Flag("enable_dp_lm_head", ("--enable-dp-lm-head",), "flag"),
    Flag("mm_enable_dp_encoder", ("--mm-enable-dp-encoder",), "flag"),
    Flag("language_model_only", ("--language-model-only", "--language-only"), "flag"),
    Flag("disable_cuda_graph", ("--disable-cuda-graph",), "flag"),
    Flag("disable_prefill_cuda_graph", ("--disable-prefill-cuda-graph",), "flag"),
    Flag("cuda_graph_backend_prefill", ("--cuda-graph-backend-prefill",), "str"),
    Flag("cuda_graph_max_bs_decode", ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"), "int", 1, 2**20),
    Flag("cuda_graph_max_bs_prefill", ("--cuda-graph-max-bs-prefill",), "int", 1, 2**20),
)  # fmt: skip

PLATFORMS = ("cuda", "hip", "npu", "xpu", "musa", "cpu")
ELSEWHERE = (
    Flag("draft_layers", ("--draft-layers",), "int", 0, 4096),
    Flag("draft_kv_bytes_per_token", ("--draft-kv-bytes-per-token",), "int", 0, 2**40),
    Flag("max_draft_tokens", ("--max-draft-tokens",), "int", 1, MOST_DRAFTS),
    Flag("platform", ("--platform",), "str", choices=PLATFORMS),
    Flag("gpu_memory_mib", ("--gpu-memory-mib",), "int", 1, 2**30),
    Flag("gpu_capability", ("--gpu-capability",), "str"),
)
"""Arguments that SGLang reads from elsewhere than its command line, under the names that hybridcalc gives them."""

RENAMED = (
    Renamed("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy", "0.5.14", "0.5.19"),
    Renamed("--nsa-prefill-backend", "--dsa-prefill-backend", "0.5.13", "0.5.19"),
    Renamed("--nsa-decode-backend", "--dsa-decode-backend", "0.5.13", "0.5.19"),
    Renamed("--enable-gdn-replayssm-spec", "--enable-linear-replayssm-spec", "0.5.17", "0.5.19", "0.5.16"),
    Renamed("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "0.5.14", "0.5.19"),
    Renamed("--cuda-graph-bs", "--cuda-graph-bs-decode", "0.5.14", "0.5.19"),
    Renamed("--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-prefill", "0.5.14", "0.5.19"),
    Renamed("--piecewise-cuda-graph-tokens", "--cuda-graph-bs-prefill", "0.5.14", "0.5.19"),
    Renamed("--stream-output", "--incremental-streaming-output", "0.5.10", "0.5.19"),
    Renamed("--speculative-dflash-draft-window-size", "--speculative-draft-window-size", "0.5.12", "0.5.19", "0.5.11"),
    Renamed("--enable-deepep-waterfill", "--enable-waterfill", "0.5.16", "0.5.15", "0.5.12"),
    Renamed("--enable-hierarchical-cache", "--enable-hicache", "0.5.23", retiring=False),
)
"""Source: SGLang server_args.py, and arg_groups/fields/ from 0.5.20 on, where the deprecated names are gone."""

FLAG_FILES = ("--config", "--disagg-config")
"""Flags whose file holds more flags: SGLang's own and Dynamo's. Without it the command is not the whole answer."""

_OTHER = """
    abort-on-priority-when-disabled admin-api-key allow-auto-truncate allowed-media-domains api-key
    asr-max-buffer-seconds asr-max-concurrent-sessions attention-context-parallel-size attn-cp-size base-gpu-id
    batch-notify-size bf16-gemm-backend boundary-reduction bucket-e2e-request-latency bucket-inter-token-latency
    bucket-time-to-first-token c128-page-size chat-template checkpoint-engine-wait-weights-before-ready
    collect-tokens-histogram completion-template constrained-json-disable-any-whitespace
    constrained-json-max-whitespace-cnt constrained-json-whitespace-pattern context-bucket cp-strategy
    crash-dump-folder cuda-graph-backend-decode cuda-graph-bs cuda-graph-bs-decode
    cuda-graph-bs-prefill cuda-graph-config
    cuda-graph-max-seq-len-prefill cuda-graph-prefill-max-context cuda-graph-tc-compiler custom-sigquit-handler
    custom-weight-loader dcp-comm-backend dcp-replicate-q-proj debug-cuda-graph debug-tensor-dump-inject
    debug-tensor-dump-input-file debug-tensor-dump-layers debug-tensor-dump-output-folder
    debug-tensor-dump-prefill-only decode-attention-backend decode-log-interval decoupled-spec-bind-endpoint
    decoupled-spec-connect-endpoints decoupled-spec-rank decoupled-spec-role decrypted-config-file
    decrypted-draft-config-file deepep-config
    deepep-dispatcher-output-dtype deepep-mode deepep-v2-mode default-chat-template-kwargs default-priority-value
    delete-ckpt-after-loading detokenizer-worker-num device disable-aiter-allreduce-fusion-in-decode
    disable-aiter-allreduce-fusion-in-prefill disable-attn-tp-gather disable-chunked-prefix-cache
    disable-cuda-graph-padding disable-custom-all-reduce disable-decode-cuda-graph disable-fast-image-processor
    disable-flashinfer-autotune disable-flashinfer-cutlass-moe-fp4-allgather disable-hicache-numa-detect
    disable-hybrid-swa-memory disable-outlines-disk-cache disable-piecewise-cuda-graph
    disable-priority-preemption disable-shared-experts-fusion disable-tokenizer-batch-decode
    disaggregation-bootstrap-port disaggregation-decode-allocation-policy disaggregation-decode-dp
    disaggregation-decode-enable-offload-kvcache disaggregation-decode-host-receive-threshold
    disaggregation-decode-polling-interval disaggregation-decode-retraction-backup disaggregation-decode-tp
    disaggregation-enable-kv-checksum disaggregation-ib-device disaggregation-prefill-pp
    disaggregation-transfer-backend dist-init-addr dist-timeout dllm-algorithm dllm-algorithm-config dllm-fdfo
    download-dir ds-channel-config-path ds-heavy-channel-num ds-heavy-channel-type ds-heavy-token-num
    ds-sparse-decode-threshold dsa-paged-mqa-logits-backend dsa-prefill-cp-mode dsa-topk-backend dsa-triton-union
    dsv4-attn-backend dsv4-prefill-backend dtype dwdp-size dynamic-batch-tokenizer-batch-size
    dynamic-batch-tokenizer-batch-timeout elastic-ep-backend elastic-ep-initial-size elastic-ep-join-mode
    elastic-ep-join-rank-offset elastic-ep-rejoin elastic-ep-scale-timeout enable-adaptive-dispatch-to-encoder
    enable-aiter-allreduce-fusion enable-amd-monokernel enable-attn-tp-input-scattered enable-beta-spec
    enable-breakable-cuda-graph enable-broadcast-mm-inputs-process enable-cache-report enable-cp-decode-attn-tp
    enable-cudagraph-gc enable-custom-logit-processor enable-decoder-swa-bounded-replay enable-deepep-moe
    enable-deepseek-v4-fp4-indexer enable-dense-mlp-attn-tp enable-deterministic-inference enable-double-sparsity
    enable-dp-attention-local-control-broadcast enable-draft-weights-cpu-backup
    enable-dsa-cache-layer-split enable-dsa-fused-indexer enable-dsa-prefill-context-parallel
    enable-dynamic-batch-tokenizer enable-dynamic-chunking enable-elastic-expert-backup
    enable-encoder-swa-bounded-replay enable-ep-moe enable-eplb enable-expert-distribution-metrics
    enable-flashinfer-allreduce-fusion enable-flashinfer-cutedsl-moe enable-flashinfer-cutlass-moe
    enable-flashinfer-mxfp4-moe enable-flashinfer-trtllm-moe enable-flexkv enable-forward-pass-metrics
    enable-fp32-lm-head enable-fused-moe-sum-all-reduce enable-fused-qk-norm-rope
    enable-hisparse enable-http-worker-reuseport enable-http2 enable-kv-cache-sharding enable-layernorm-sp
    enable-layerwise-nvtx-marker enable-lean-attention enable-linker-mla-dedup enable-lora enable-lora-overlap-loading
    enable-mamba-cache-stochastic-rounding enable-megamoe-for-layernorm-sp enable-memory-saver enable-metrics
    enable-metrics-for-all-schedulers enable-mfu-metrics enable-mis enable-mixed-chunk enable-mm-global-cache
    enable-mscclpp enable-multi-layer-eagle enable-multimodal enable-nan-detection enable-nccl-nvls
    enable-nsa-prefill-context-parallel enable-nvidia-megakernel enable-p2p-check enable-page-major-kv-layout
    enable-paged-experts enable-pdmux enable-piecewise-cuda-graph
    enable-precise-embedding-interpolation enable-prefill-context-parallel enable-prefill-cp enable-prefill-delayer
    enable-prefix-mm-cache enable-priority-scheduling enable-profile-cuda-graph enable-quant-communications
    enable-request-time-stats-logging enable-response-store enable-return-aux-hidden-states
    enable-return-hidden-states enable-return-indexer-topk enable-return-routed-experts enable-scattered-sconv
    enable-session-radix-cache enable-shared-experts-attn-tp enable-single-batch-overlap enable-ssl-refresh
    enable-streaming-session enable-strict-thinking enable-symm-mem enable-tf32-matmul enable-tokenizer-batch-encode
    enable-torch-compile enable-torch-compile-debug-mode enable-torch-symm-mem enable-tp-lm-head-all-to-all
    enable-trace enable-triton-kernel-moe enable-unified-cache-external-linker enable-w4a4-mxfp4-megamoe
    enable-waterfill enable-watermark enable-weights-cpu-backup encoder-bootstrap-port encoder-only
    encoder-register-urls encoder-transfer-backend encoder-urls enforce-disable-flashinfer-allreduce-fusion
    enforce-piecewise-cuda-graph enforce-shared-experts-fusion engine-info-bootstrap-port ep-dispatch-algorithm
    eplb-algorithm eplb-min-rebalancing-utilization-threshold
    eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations expert-balancedness-report-mode
    expert-distribution-recorder-buffer-size expert-distribution-recorder-mode
    experts-shared-outer-loras export-metrics-to-file export-metrics-to-file-dir extra-metric-labels fastapi-root-path
    file-storage-path flashinfer-a2a-dispatch-type flashinfer-allreduce-fusion-backend flashinfer-autotune-skip-ops
    flashinfer-mla-disable-ragged flashinfer-mxfp4-moe-precision flexkv-config-file forward-hooks
    forward-pass-metrics-ipc-name forward-pass-metrics-worker-id fp4-gemm-backend fp8-gemm-backend fuseep-mode
    gated-launch-port gc-threshold gc-warning-threshold-secs generation-tokens-buckets gpu-id-step grammar-backend
    grpc-http-sidecar-port grpc-mode grpc-port grpc-response-timeout-secs help hf-chat-template-name
    hicache-host-memory-fraction hicache-host-memory-mode hicache-io-backend hicache-mem-layout
    hicache-storage-backend hicache-storage-backend-extra-config hicache-storage-prefetch-policy
    hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval
    hierarchical-sparse-attention-extra-config hisparse-config host http2-initial-connection-window-size
    http2-max-concurrent-streams hybrid-kvcache-ratio image-processor-backend incremental-streaming-output
    init-expert-location is-embedding json-model-override-args keep-mm-feature-on-device kt-amx-method
    kt-amx-weight-path kt-cpuinfer kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts kt-threadpool-count
    kt-weight-path kv-canary kv-canary-real-data kv-canary-sweep-interval kv-events-config
    limit-mm-data-per-request linear-attn-prefill-backend linear-attn-verify-backend lmcache-config-file
    load-balance-method load-format load-publish-endpoint load-snapshot-publish-interval load-watch-interval log-level
    log-level-http log-requests log-requests-format log-requests-level log-requests-target lora-backend
    lora-drain-wait-threshold lora-eviction-policy lora-paths lora-strict-loading lora-target-modules
    lora-use-virtual-experts mamba-backend mamba-cache-philox-rounds max-ep-size max-loaded-loras max-lora-chunk-size
    max-lora-rank max-loras-per-batch max-micro-batch-size max-queued-requests media-url-max-file-size-mb
    min-free-slots-delay mlx-enable-sampling mm-attention-backend
    mm-global-cache-backend mm-io-worker-num mm-max-concurrent-calls mm-per-request-timeout
    mm-preprocess-cache-size-mb mm-process-config mm-processor-worker-num model-checksum model-config-parser
    model-impl model-loader-extra-config model-type modelexpress-config modelopt-checkpoint-restore-path
    modelopt-checkpoint-save-path modelopt-export-path modelopt-quant moe-data-parallel-size
    moe-dp-size moe-runner-backend monokernel-backend mooncake-ib-device msprobe-dump-config
    multi-item-scoring-delimiter nccl-init-addr nccl-port nnodes node-rank nsa-prefill-cp-mode
    num-continuous-decode-steps num-reserved-decode-tokens numa-node offload-group-size offload-mode
    offload-num-in-group offload-prefetch-step oltp-traces-endpoint optimistic-prefill-attempts otlp-service-name
    otlp-traces-endpoint paged-experts-num-resident pdlb-url pdmux-config-path piecewise-cuda-graph-compiler
    piecewise-cuda-graph-max-tokens piecewise-cuda-graph-tokens ple-offload-backend ple-offload-dir
    ple-offload-embedding port pp-async-batch-depth pp-max-micro-batch-size pre-warm-nccl preferred-sampling-params
    prefill-attention-backend prefill-cp-mode prefill-decode-interval prefill-decode-interval-min-bs
    prefill-delayer-forward-passes-buckets prefill-delayer-max-delay-ms prefill-delayer-max-delay-passes
    prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark prefill-delayer-wait-seconds-buckets
    prefill-kv-cache-dequant-dtype prefill-max-requests prefill-only-disable-kv-cache prefill-round-robin-balance
    priority-scheduling-preemption-threshold prompt-tokens-buckets
    quantization-param-path quantize-and-serve radix-eviction-policy radix-eviction-policy-config random-seed
    reasoning-parser remote-instance-weight-loader-backend remote-instance-weight-loader-seed-instance-ip
    remote-instance-weight-loader-seed-instance-service-port remote-instance-weight-loader-send-weights-group-ports
    remote-instance-weight-loader-start-seed-via-transfer-engine retraction-policy return-aux-hidden-state-layer-ids
    return-hidden-states-mode return-input-ids return-output-ids revision rl-on-policy-target rl-quant-profile
    sampling-backend sampling-defaults sampling-mask-max-tokens schedule-conservativeness
    schedule-low-priority-values-first schedule-policy scheduler-recv-interval served-model-name
    shared-experts-tp-size show-time-cost sidecar sidecar-args skip-server-warmup skip-tokenizer-init sleep-on-idle
    sm-group-num smg-grpc-mode smg-http-sidecar-port soft-watchdog-timeout spec-trace-dir
    speculative-accept-threshold-acc speculative-accept-threshold-single
    speculative-adaptive-config speculative-attention-mode speculative-dflash-draft-window-size
    speculative-domino-candidate-pool-size speculative-draft-attention-backend speculative-draft-kv-cache-dtype
    speculative-draft-load-format
    speculative-draft-model-quantization speculative-draft-model-revision speculative-draft-sink-size
    speculative-draft-window-size speculative-dsa-topk-backend speculative-dspark-align-verify-tokens-to-graph-tier
    speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path speculative-enable-w4a4-mxfp4-megamoe
    speculative-moe-a2a-backend speculative-moe-runner-backend speculative-ngram-branch-length
    speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens speculative-ngram-external-corpus-path
    speculative-ngram-external-sam-budget speculative-ngram-match-type speculative-ngram-max-bfs-breadth
    speculative-ngram-max-match-window-size speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth
    speculative-ngram-min-match-window-size speculative-skip-dp-mlp-sync speculative-token-map
    speculative-use-block-verification speculative-use-rejection-sampling ssl-ca-certs ssl-certfile ssl-keyfile
    ssl-keyfile-password startup-weight-load-mode stream-interval stream-output stream-response-default-include-usage
    strip-thinking-cache swa-prefix-tails tbo-token-distribution-threshold tokenizer-backend
    tokenizer-metrics-allowed-custom-labels tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-path
    tokenizer-worker-num tool-call-parser tool-server torch-compile-max-bs torchao-config trace-modules
    triton-attention-num-kv-splits triton-attention-reduce-in-fp32 triton-attention-split-tile-size
    trust-mm-content-hashes trust-remote-code trust-request-chat-template unified-cache-external-linker-backend
    unified-cache-external-linker-config uno-lora-path use-ray uvicorn-access-log-exclude-prefixes warmups
    watchdog-timeout watermark-config weight-cache-mode weight-cache-socket weight-cache-timeout
    weight-loader-disable-mmap weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints
    weight-loader-prefetch-num-threads weight-version
"""
OTHER_FLAGS = frozenset("--" + name for name in _OTHER.split())
"""What else the engine registers, and registered once."""
UNCOUNTED = WEIGHTS_ELSEWHERE | {
    "--enable-lora", "--lora-paths", "--enable-double-sparsity", "--enable-hisparse", "--enable-kv-cache-sharding",
    "--speculative-draft-kv-cache-dtype", "--prefill-only-disable-kv-cache",
}  # fmt: skip
"""Those of them that bear on the memory of a GPU, in a way that no plan here knows."""


_tokens = multiples({
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
})  # fmt: skip
"""The engine's human_readable_int; decimals of the last digit are cut off."""


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, ServerArgs]:
    """MODEL (None where no flag names it) and ServerArgs of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, for a misspelt
    or ambiguous flag, and for a word that belongs to no flag unless a flag that is passed over stands before it.
    ``unknown`` collects the flags that are passed over although no list of SGLang's has them.
    """
    env = environment(env, KNOWN_ENVIRONMENT)
    given = TABLE.read(words, unknown=unknown)
    if "" in given:
        given.setdefault(FLAGS[0].spellings[0], given.pop(""))
    fields = _fields(given)
    fields |= {"env": env, "uncounted": among(words, UNCOUNTED), "names": TABLE.named(words)}
    return fields.pop("model_path", None), ServerArgs(**fields)


TABLE = FlagTable("SGLang", FLAGS, OTHER_FLAGS, FLAG_FILES, read_tokens=_tokens, multiples="8k is 8,000, 8Ki is 8,192")


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flag -> values by field, the fields that several flags share settled."""
    fields = {flag.field: given[flag.spellings[0]] for flag in FLAGS if flag.spellings[0] in given}
    if "speculative_algorithm" in fields:
        fields["speculative_algorithm"] = fields["speculative_algorithm"].upper()
    fields |= {"speculative_num_draft_tokens": _draft_tokens(given, fields.get("speculative_algorithm"))}
    return fields | _attention_workers(given)


def _attention_workers(given: Mapping[str, Any]) -> dict[str, Any]:
    """``--attn-dp-size N`` is the newer way to say ``--dp-size N --enable-dp-attention``; the engine refuses a mix."""
    replicas, workers = given.get("--dp-size", 1), given.get("--attn-dp-size", 1)
    if workers == 1:
        return {"dp_size": replicas}
    if replicas > 1:
        raise InputError(
            f"--dp-size {replicas} beside --attn-dp-size {workers}: SGLang takes one of them",
            fix="leave out --dp-size",
            flag="--dp-size",
        )
    return {"dp_size": workers, "enable_dp_attention": True}


def _draft_tokens(given: Mapping[str, Any], algorithm: str | None) -> int | None:
    """D; DFLASH calls it its block size, and DSPARK's block leaves out the token that is verified along with it."""
    asked: int | None = given.get("--speculative-num-draft-tokens")
    name, more = {
        "DFLASH": ("--speculative-dflash-block-size", 0),
        "DSPARK": ("--speculative-dspark-block-size", 1),
    }.get(algorithm or "", ("", 0))
    if name not in given:
        return asked
    drafts = int(given[name]) + more
    if asked is not None and asked != drafts:
        raise InputError(
            f"{name} {given[name]} makes {drafts} draft tokens, not {asked}",
            fix="leave out one of the two flags",
            flag=name,
        )
    return drafts
