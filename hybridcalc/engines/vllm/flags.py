"""Which flags of vLLM's command line does a plan read, and which model and EngineArgs do the words of a launch ask for?

    vllm serve MODEL -tp 2 --max-model-len 128K --speculative-config.method mtp -> MODEL, EngineArgs(...)

`FLAGS` is the one place where a flag of a launch command is added: the `EngineArgs` field it sets, its spellings, how
its value is read and within which bounds. `OTHER_FLAGS` are the names that leave memory alone, or bear on it in a way
no plan here knows: they tell an unrelated flag from a misspelt one, and an abbreviation from an ambiguous one.

Read as the engine reads it: underscores may stand for dashes, ``--no-x`` switches off, dotted names fill a JSON value
(``--speculative-config.num_speculative_tokens 3``), 1k is 1,000 and 1K is 1,024; shell/flags.py has the rest. Checks
one flag at a time: what flags do to each other is the planner's business. A file of flags (``--config``) is not read.
Mirrors vLLM engine/arg_utils.py and entrypoints/common/cli_args.py (0.33.0, 0.22.1).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.engines.spelling import Renamed
from hybridcalc.engines.vllm import KNOWN_ENVIRONMENT, EngineArgs
from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.flags import (
    WEIGHTS_ELSEWHERE,
    Flag,
    FlagTable,
    among,
    check_resolved,
    environment,
    is_flag,
    multiples,
)
from hybridcalc.units import LARGEST_BYTES, LARGEST_TOKENS, MOST_RANKS, MOST_SLOTS

MOST_DRAFTS = 1024
STATE_DTYPES = ("auto", "float32", "bfloat16", "float16")

FLAGS = (
    Flag("model", ("--model",), "str"),
    Flag("tensor_parallel_size", ("--tensor-parallel-size", "-tp"), "int", 1, MOST_RANKS),
    Flag("pipeline_parallel_size", ("--pipeline-parallel-size", "-pp"), "int", 1, MOST_RANKS),
    Flag("decode_context_parallel_size", ("--decode-context-parallel-size", "-dcp"), "int", 1, MOST_RANKS),
    Flag("data_parallel_size", ("--data-parallel-size", "-dp"), "int", 1, MOST_RANKS),
    Flag("dtype", ("--dtype",), "str", choices=("auto", "half", "float16", "bfloat16", "float", "float32")),
    Flag("kv_cache_dtype", ("--kv-cache-dtype",), "str"),
    Flag("block_size", ("--block-size",), "int", 1, 2**20),
    Flag("max_model_len", ("--max-model-len",), "tokens", -1, LARGEST_TOKENS),
    Flag("max_num_seqs", ("--max-num-seqs",), "int", 1, MOST_SLOTS),
    Flag("max_num_batched_tokens", ("--max-num-batched-tokens",), "tokens", 1, LARGEST_TOKENS),
    Flag("enable_prefix_caching", ("--enable-prefix-caching",), "switch"),
    Flag("enable_chunked_prefill", ("--enable-chunked-prefill",), "switch"),
    Flag("mamba_cache_mode", ("--mamba-cache-mode",), "str", choices=("all", "align", "none")),
    Flag("mamba_block_size", ("--mamba-block-size",), "int", 1, 2**30),
    Flag("mamba_cache_dtype", ("--mamba-cache-dtype",), "str", choices=STATE_DTYPES),
    Flag("mamba_ssm_cache_dtype", ("--mamba-ssm-cache-dtype",), "str", choices=STATE_DTYPES),
    Flag("prefix_match_unit", ("--prefix-match-unit",), "int", 1, 2**30),
    Flag("prefix_cache_retention_interval", ("--prefix-cache-retention-interval",), "int", 0, LARGEST_TOKENS),
    Flag("num_gpu_blocks_override", ("--num-gpu-blocks-override",), "int", 1, MOST_SLOTS),
    Flag("gpu_memory_utilization", ("--gpu-memory-utilization", "--device-memory-utilization"), "float", 0, 1),
    Flag("kv_cache_memory_bytes", ("--kv-cache-memory-bytes",), "tokens", 1, LARGEST_BYTES),
    Flag("speculative_config", ("--speculative-config", "-sc"), "json"),
    Flag("method", ("--spec-method",), "str"),
    Flag("num_speculative_tokens", ("--spec-tokens",), "int", 1, MOST_DRAFTS),
    Flag("use_replayssm", ("--use-replayssm",), "switch"),
    Flag("replayssm_buffer_len", ("--replayssm-buffer-len",), "int", 1, 2**20),
    Flag("mamba_backend", ("--mamba-backend",), "str"),
    Flag("attention_backend", ("--attention-backend",), "str"),
    Flag("gdn_prefill_backend", ("--gdn-prefill-backend",), "str"),
    Flag("kda_prefill_backend", ("--kda-prefill-backend",), "str"),
    Flag("additional_config", ("--additional-config", "-ac"), "json"),
    Flag("compilation_config", ("--compilation-config", "-cc"), "json"),
    Flag("hf_overrides", ("--hf-overrides",), "json"),
    Flag("enforce_eager", ("--enforce-eager",), "switch"),
    Flag("disable_hybrid_kv_cache_manager", ("--disable-hybrid-kv-cache-manager",), "switch"),
    Flag("enable_expert_parallel", ("--enable-expert-parallel", "-ep"), "switch"),
    Flag("enable_eplb", ("--enable-eplb",), "switch"),
    Flag("eplb_config", ("--eplb-config",), "json"),
    Flag("quantization", ("--quantization", "-q"), "str"),
    Flag("kv_transfer_config", ("--kv-transfer-config",), "json"),
    Flag("kv_events_config", ("--kv-events-config",), "json"),
    Flag("kv_offloading_size", ("--kv-offloading-size",), "float", 0, 2**30),
    Flag("kv_offloading_backend", ("--kv-offloading-backend",), "str"),
    Flag("cpu_offload_gb", ("--cpu-offload-gb",), "float", -1, 2**20),
    Flag("language_model_only", ("--language-model-only",), "switch"),
    Flag("mm_encoder_tp_mode", ("--mm-encoder-tp-mode",), "str", choices=("weights", "data")),
    Flag("performance_mode", ("--performance-mode",), "str", choices=("balanced", "interactivity", "throughput")),
)

ELSEWHERE = (
    Flag("gpu_capability", ("--gpu-capability",), "str"),
    Flag("gpu_memory_gib", ("--gpu",), "float", 0, 2**20),
    Flag("rocm", ("--gpu",), "switch"),
    Flag("draft_layers", ("--draft-layers",), "int", 0, 1024),
    Flag("command_line", ("--",), "switch"),
    Flag("num_speculative_tokens", ("--spec-tokens",), "int", 0, MOST_DRAFTS),
    Flag("dtype", ("--dtype",), "str", choices=STATE_DTYPES),
)
"""Arguments that vLLM reads from elsewhere than its command line, under the names that hybridcalc gives them, and what
others are once the command line is read.
"""

RENAMED = (
    Renamed("--speculative-config", "-sc", "0.19.0", retiring=False),
    Renamed("--speculative-config.method", "--spec-method", "0.22.0", retiring=False),
    Renamed("--speculative-config.num_speculative_tokens", "--spec-tokens", "0.22.0", retiring=False),
    Renamed("--gpu-memory-utilization", "--device-memory-utilization", "0.31.0", retiring=False),
)
"""Source: vLLM engine/arg_utils.py of 0.18 to 0.33."""

FLAG_FILES = ("--config",)
"""Flags whose file holds more flags. Without it the command is not the whole answer."""

_OTHER = """
    aggregate-engine-logging all2all-backend allow-credentials allow-deprecated-quantization allowed-headers
    allowed-local-media-path allowed-media-domains allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-key api-server-count async-scheduling attention-config aux-output-config
    calculate-kv-scales chat-template chat-template-content-format code-revision cohere-format
    cohere-is-reasoning-model collect-detailed-traces config-format convert cp-kv-cache-interleave-size
    cpu-distributed-timeout-seconds cpu-offload-params cudagraph-capture-sizes cudagraph-metrics
    custom-histogram-buckets data-parallel-address data-parallel-backend data-parallel-external-lb
    data-parallel-hybrid-lb data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port
    data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold
    dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate
    default-chat-template-kwargs default-mm-loras device-ids diffusion-config disable-access-log-for-endpoints
    disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-log-stats
    disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
    distributed-executor-backend distributed-timeout-seconds download-dir dp-supervisor-probe-failure-threshold
    dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval ec-manager-config
    ec-transfer-config elastic-ep-max-dp-size enable-auto-tool-choice enable-batch-sharded-sampling
    enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter
    enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage
    enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
    enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
    enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
    enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
    enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts
    enable-scale-out enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh
    enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay engram-config
    exclude-tools-when-tool-choice-none expert-placement-strategy fail-on-environ-validation fault-tolerance-config
    fingerprint-mode fingerprint-value fully-sharded-loras generation-config grpc grpc-port h11-max-header-count
    h11-max-incomplete-event-size headless help hf-config-path hf-token host ignore-patterns interleave-mm-strings
    io-processor-plugin ir-op-priority jit-monitor-mode jit-monitor-verbose kda-decode-backend kernel-config
    kv-cache-dtype-skip-layers kv-cache-metrics kv-cache-metrics-sample
    kv-sharing-fast-prefill limit-mm-per-prompt
    linear-backend load-format log-config-file log-error-stack log-level logging-config logits-processors
    logprobs-mode long-prefill-token-threshold long-prefill-token-threshold-adaptive lora-dtype lora-modules
    lora-target-modules mamba-cache-philox-rounds mamba-ssu-algorithm master-addr master-port max-cpu-loras
    max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills max-lora-cls-labels max-lora-rank
    max-loras max-num-active-seqs max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens
    max-num-scheduled-tokens max-parallel-loading-workers media-io-kwargs middleware mm-device-do-normalize
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-only mm-hasher-algorithm mm-ipc-gpu-memory-gb
    mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
    mm-shm-cache-max-object-size-mb mm-tensor-ipc model-class-overrides model-impl model-loader-extra-config
    moe-backend monokernel nnodes node-rank numa-bind numa-bind-cpus numa-bind-nodes offload-backend
    offload-group-size offload-num-in-group offload-params offload-prefetch-step optimization-level
    otlp-traces-endpoint override-attention-dtype override-generation-config per-request-spec-decode-metrics
    pooler-config port prefill-context-parallel-size prefill-schedule-interval
    prefix-caching-hash-algo profiler-config pt-load-map-location quantization-config
    ray-workers-use-nsight reasoning-config reasoning-effort-map reasoning-parser reasoning-parser-plugin
    renderer-num-workers response-role return-sampling-mask return-tokens-as-token-ids revision root-path runner
    safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
    scheduler-reserve-full-isl scheduling-policy seed served-model-name show-hidden-metrics-for-version
    shutdown-timeout skip-mm-profiling skip-tokenizer-init sleep-mode-backend sleep-mode-offload-cudagraph
    sleep-preserve-parameter-names sparse-indexer-topk-backend spec-model specialize-active-lora
    sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval
    structured-outputs-config swa-bounded-replay tokenizer tokenizer-mode tokenizer-revision tokens-only
    tool-call-parser tool-parser-plugin tool-server tool-strict-level trust-remote-code trust-request-chat-template
    trust-request-mm-kwargs ubatch-size uds use-fp64-gumbel use-tqdm-on-load uvicorn-log-level video-pruning-method
    video-pruning-rate watchdog-config watermark watermark-config weight-transfer-config worker-cls
    worker-extension-cls
"""
_SHORT = "-dc -dpa -dpb -dpe -dph -dpl -dpm -dpn -dpp -dpr -n -pcp -r"
OTHER_FLAGS = frozenset(["--" + name for name in _OTHER.split()] + _SHORT.split())
"""What else the engine registers."""
UNCOUNTED = WEIGHTS_ELSEWHERE | {"--enable-lora", "--kv-cache-dtype-skip-layers", "--prefill-context-parallel-size"}
"""Those of them that bear on the memory of a GPU, in a way that no plan here knows."""


DEEPEST = 20
"""Levels of a dotted name."""
DTYPES = {"half": "float16", "float": "float32"}
_number = multiples({
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
})  # fmt: skip


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, EngineArgs]:
    """MODEL (None where no word names it) and EngineArgs of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, for a misspelt
    or ambiguous flag, and for a word that belongs to no flag unless a flag that is passed over stands before it.
    ``unknown`` collects the flags that are passed over although no list of vLLM's has them.
    """
    env = environment(env, KNOWN_ENVIRONMENT)
    given = TABLE.read(_undotted(words), unknown=unknown)
    model = given.get("--model", given.get(""))
    fields = {flag.field: given[flag.spellings[0]] for flag in FLAGS[1:] if flag.spellings[0] in given}
    if "dtype" in fields:
        fields["dtype"] = DTYPES.get(fields["dtype"], fields["dtype"])
    for name in ("mamba_backend", "gdn_prefill_backend", "kda_prefill_backend"):
        if name in fields:
            fields[name] = fields[name].lower()
    taken = among(words, UNCOUNTED, _spelling)
    return model, EngineArgs(
        **_speculation(fields), env=env, command_line=True, uncounted=taken, names=TABLE.named(words)
    )


def _speculation(fields: dict[str, Any]) -> dict[str, Any]:
    """``--spec-method`` and ``--spec-tokens`` joined to the speculative configuration, and its number checked."""
    short = {name: fields.pop(name) for name in ("method", "num_speculative_tokens") if name in fields}
    config = {**fields.pop("speculative_config", {}), **short}
    if not config:
        return fields
    drafts = config.get("num_speculative_tokens")
    if drafts is not None and (
        isinstance(drafts, bool) or not isinstance(drafts, int) or not 1 <= drafts <= MOST_DRAFTS
    ):
        raise InputError(
            f"--speculative-config: num_speculative_tokens {quoted(drafts)} is not a whole number from 1 to "
            f"{MOST_DRAFTS:,}",
            flag="--speculative-config",
        )
    return fields | {"speculative_config": config}


def _spelling(name: str) -> str:
    """A flag as the engine spells it: dashes for the underscores before the first dot."""
    if not name.startswith("--"):
        return name
    head, dot, rest = name.partition(".")
    return head.replace("_", "-") + dot + rest


def _undotted(words: Sequence[str]) -> list[str]:
    """``words`` with dotted names gathered into one JSON value a flag, at the end, as the engine does."""
    kept, gathered = list[str](), dict[str, dict[str, Any]]()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if not word.startswith("-") or "." not in name or not is_flag(word):
            kept.append(word)
            continue
        if not equals:
            if at == len(words):
                raise InputError(f"{quoted(word)} has no value", fix="write it after the name", flag=name)
            value = words[at]
            at += 1
        flag, *path = _spelling(name).removesuffix("+").split(".")
        if not all(path):
            raise InputError(f"{quoted(word)} names no field", fix=f"write {flag}.NAME VALUE", flag=name)
        if flag in TABLE.by_spelling and TABLE.by_spelling[flag].kind == "json":
            check_resolved(value)
            _put(gathered.setdefault(flag, {}), path[:DEEPEST], _json_or_text(value))
    return kept + [word for flag, value in gathered.items() for word in (flag, json.dumps(value))]


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        below = tree.get(name)
        tree[name] = below if isinstance(below, dict) else {}
        tree = tree[name]
    tree[path[-1]] = value


def _json_or_text(text: str) -> Any:
    """A value after a dotted name: JSON, a number with a multiple, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        number = _tokens(text)
        return text if number is None else number


def _tokens(text: str) -> int | None:
    """The engine's human_readable_int: 1k is 1,000, 1K is 1,024 (no decimals); -1 for ``auto``."""
    if text.strip().lower() == "auto":
        return -1
    return _number(text.strip())


TABLE = FlagTable(
    "vLLM", FLAGS, OTHER_FLAGS, FLAG_FILES, read_tokens=_tokens, multiples="8k is 8,000, 8K is 8,192",
    spelling=_spelling,
)  # fmt: skip
