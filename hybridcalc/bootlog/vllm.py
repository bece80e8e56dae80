"""Which lines of a vLLM log say what its pages and blocks are, from 0.8 to 0.33?

The block size that attention is given, the padding of state pages, the memory for the cache, its tokens and
concurrency, the graphs, and every refusal. Byte counts behind ``--kv-cache-memory`` and the utilization it advises are
not read: they are advice. Source: vLLM 0.22 and 0.33 (v1/core, v1/worker, config, platforms); docs/log.md lists them.
"""

from __future__ import annotations

from hybridcalc.bootlog.boots import Grammar
from hybridcalc.bootlog.forms import CUT_COUNT, RAISED, SPACE, Form, spelt
from hybridcalc.bootlog.paste import COUNT, NUMBER, SIZE, TableRow

_ONE_REQUEST = (
    spelt("To serve at least one request")
    + rb"(?:(?:(?!"
    + spelt("To serve")
    + rb")[^\[\]]){0,200}?"
    + spelt("is needed, which is larger")
    + rb")?"
)
"""Up to the words by which a quotation without the first ones is known."""
_SEQS_EXCEED = (
    spelt("max_num_seqs") + SPACE + rb"\(" + CUT_COUNT + rb"\)" + SPACE + spelt("exceeds available Mamba cache blocks")
)

_STORED = spelt("The model") + rb".{1,3}" + spelt("s max seq len (") + CUT_COUNT + rb"\)" + SPACE + spelt("is larger")
_LOGGED = (
    spelt("ERROR")
    + rb" +[0-9-]{5} [0-9:]{8} \[(?:core|multiproc_executor|worker_base|gpu_worker|ray_\w{1,20})\.py:[0-9]+\] +"
)
"""In front of each line of a traceback, where a process of the engine died of it."""
_CONCURRENCY = (
    ("max_model_len", "concurrency for {count} tokens", "max_model_len"),
    ("concurrency", "per request: {number}x", "max_concurrency"),
)  # fmt: skip

_FLAGS = (
    ("model", "--model", "path"), ("max_model_len", "--max-model-len", "count"),
    ("max_num_seqs", "--max-num-seqs", "count"), ("gpu_memory_utilization", "--gpu-memory-utilization", "number"),
    ("tensor_parallel_size", "--tensor-parallel-size", "count"), ("tensor_parallel_size", "-tp", "count"),
    ("pipeline_parallel_size", "--pipeline-parallel-size", "count"), ("pipeline_parallel_size", "-pp", "count"),
    ("data_parallel_size", "--data-parallel-size", "count"), ("data_parallel_size", "-dp", "count"),
    ("decode_context_parallel_size", "--decode-context-parallel-size", "count"),
    ("decode_context_parallel_size", "-dcp", "count"), ("kv_cache_dtype", "--kv-cache-dtype", "word"),
    ("mamba_ssm_cache_dtype", "--mamba-ssm-cache-dtype", "word"), ("mamba_cache_mode", "--mamba-cache-mode", "word"),
    ("max_num_batched_tokens", "--max-num-batched-tokens", "count"), ("block_size", "--block-size", "count"),
)  # fmt: skip
_SWITCHES = ("enable_prefix_caching", "enforce_eager", "enable_expert_parallel", "language_model_only")
_TYPED = (
    *((name, f"{flag}{sign}{{{kind}}}") for name, flag, kind in _FLAGS for sign in (" ", "=")),
    *((name, f"--{name.replace('_', '-')}{{flag}}") for name in _SWITCHES),
    ("model", "vllm serve {path}"),
    ("drafting", "--speculative-config{flag}"),
    ("speculative_method", 'method": "{word}'),
    ("num_speculative_tokens", 'num_speculative_tokens": {count}'),
)
"""Flags as people type them, where a log begins with its launch line."""
_ARGUMENTS = (
    rb"(?=[\s\\]{1,80}(?:--[a-z]|[\w.~-]{0,60}/[\w./-]{1,200}[\s\\]"
    rb"|[\w.-]{0,100}[0-9][\w.-]{0,100}[\s\\]{1,80}--?[a-z]))"
)
"""A model with a slash, or flags, behind a name at most: a sentence has neither."""

FORMS = (
    Form("engine_started", "Initializing a V1 LLM engine",
         (("version", "LLM engine ({path})"), ("model", "model='{path}"), ("served", "served_model_name={path}"),
          ("max_model_len", "max_seq_len={count}"),
          ("tensor_parallel_size", "tensor_parallel_size={count}"),
          ("pipeline_parallel_size", "pipeline_parallel_size={count}"), ("kv_cache_dtype", "kv_cache_dtype={word}"),
          ("enable_prefix_caching", "enable_prefix_caching={word}"), ("enforce_eager", "enforce_eager={word}"),
          ("speculative_method", "SpeculativeConfig(method='{word}"),
          ("num_speculative_tokens", "num_spec_tokens={count}")), 4000,
         bare=True, starts=True, repeats=True),
    Form("server_version", "vLLM API server version",
         (("version", "server version {word}"),), 80, starts=True, repeats=True),
    Form("server_version", "version N behind the banner", (("version", "version {word}"),), 80,
         b"\xe2\x96\x88 {1,3}version (?=[0-9])"),
    Form("context_parallel", "cp_world_size", (("size", "dcp_world_size {count}"),), 80, repeats=True, mark=True),
    Form("profiling", "profile_run", (), 40, repeats=True, mark=True, aside=True,
         moment="between the weights and the pools"),
    Form("profiling", "_dummy_run", (), 40, aside=True),
    Form("arguments", "non-default args:",
         (("model", "model': '{path}"), ("model_tag", "model_tag': '{path}"),
          ("served", "served_model_name': ['{path}"),
          ("max_model_len", "max_model_len': {count}"), ("max_num_seqs", "max_num_seqs': {count}"),
          ("gpu_memory_utilization", "gpu_memory_utilization': {number}"),
          ("tensor_parallel_size", "tensor_parallel_size': {count}"), ("kv_cache_dtype", "kv_cache_dtype': '{word}"),
          ("mamba_ssm_cache_dtype", "mamba_ssm_cache_dtype': '{word}"),
          ("enable_prefix_caching", "enable_prefix_caching': {word}"),
          ("num_speculative_tokens", "num_speculative_tokens': {count}"), ("speculative_method", "method': '{word}"),
          ("quantization", "quantization': '{word}"), ("dtype", "'dtype': '{word}"),
          ("pipeline_parallel_size", "pipeline_parallel_size': {count}"),
          ("data_parallel_size", "data_parallel_size': {count}"),
          ("decode_context_parallel_size", "decode_context_parallel_size': {count}"),
          ("enable_expert_parallel", "enable_expert_parallel': {word}"), ("enforce_eager", "enforce_eager': {word}"),
          ("max_num_batched_tokens", "max_num_batched_tokens': {count}"),
          ("mamba_cache_mode", "mamba_cache_mode': '{word}"), ("block_size", "block_size': {count}"),
          ("language_model_only", "language_model_only': {word}")),
         3000, bare=True, starts=True, repeats=True, mark=True),
    Form("arguments", "vllm serve", _TYPED, 3000, spelt("vllm serve") + _ARGUMENTS, bare=True),
    Form("arguments", "vllm.entrypoints.openai.api_server", _TYPED, 3000),
    Form("arguments", "vllm/vllm-openai:", _TYPED, 3000),
    Form("architecture", "Resolved architecture:", (("name", "architecture: {word}"),), 100, repeats=True),
    Form("gdn_triton", "Using Triton/FLA GDN prefill kernel", reach=120, mark=True),
    Form("gdn_flashinfer", "Using FlashInfer GDN prefill kernel", reach=120, mark=True),
    Form("gdn_cutedsl", "Using CuteDSL GDN prefill kernel", reach=120, mark=True),
    Form("kv_dtype", "resolved query dtypes:", (("dtype", "kv_cache_dtype={dtype}"),), 160, mark=True, repeats=True),
    Form("cache_mode", "Mamba cache mode is set to",
         (("mode", "is set to {mode}", "mamba_cache_mode"), ("class", "for {word} by default")), 140),
    Form("weights_loaded", "Model loading took",
         (("usage", "Model loading took {size}", "weights_gib"),), 80, repeats=True,
         moment="between the weights and the pools"),
    Form("weights_loaded", "Loading model weights took", (("usage", "model weights took {size}", "weights_gib"),), 80),
    Form("block_size", "Setting attention block size to",
         (("tokens", "block size to {count} tokens", "attention_block_size"), ("before", "tokens (was {count})")), 80,
         moment="before the cache was sized"),
    Form("padding", "Padding mamba page size by", (("percent", "page size by {number}%", "mamba_padding_pct"),), 80),
    Form("padding_layers", "Add N padding layers",
         (("layers", "Add {count} padding layers", "padding_layers"),
          ("waste", "waste at most {number}%", "padding_waste_pct")), 120, spelt("Add") + SPACE + rb"(?=[0-9])",
         repeats=True),
    Form("available", "Available KV cache memory:",
         (("available", "cache memory: {size}", "available_kv_gib"),), 60, moment="after the cache was sized"),
    Form("available", "Available KV cache memory (", (("available", "cache memory ({size})", "available_kv_gib"),), 60),
    Form("reserved", "Initial free memory",
         (("free", "free memory {size}"), ("available", "reserved {size} memory for KV")), 200),
    Form("cpu_memory", "Explicitly set",
         (("available", "set ({gib}/", "available_kv_gib"), ("node", "/{gib}) GiB for KV cache", "node_memory_gib")),
         100),
    Form("graph_estimate", "Estimated CUDA graph memory:",
         (("estimate", "graph memory: {size} total", "cuda_graph_estimated_gib"),), 80),
    Form("graphs_uncharged", "CUDA graph memory profiling will be enabled by default", reach=80, repeats=True,
         mark=True),
    Form("graph_pool", "CUDA graph pool memory:",
         (("actual", "{size} (actual)", "cuda_graph_gib"),
          ("estimate", "{size} (estimated)", "cuda_graph_estimated_gib")), 140, repeats=True,
         moment="after graphs were captured"),
    Form("graph_pool", "Graph capturing finished in", (("actual", "took {size}", "cuda_graph_gib"),), 120),
    Form("kv_size", "KV cache size:",
         (("tokens", "KV cache size: {count} token", "gpu_kv_cache_tokens"),
          ("goes_on", "KV cache size: {count} tokens,")), 80, settled=True, up=True,
         moment="after the cache was allocated"),
    Form("concurrency", "Maximum concurrency for", _CONCURRENCY, 120),
    Form("concurrency", "maximum concurrency for", _CONCURRENCY, 120),
    Form("free_memory", "Free memory on device",
         (("free", "({gib}/", "gpu_free_gib"), ("total", "/{size})", "gpu_total_gib"),
          ("utilization", "utilization is ({number},", "gpu_memory_utilization"),
          ("requested", ", {size}).", "requested_gib"), ("consumed", "{size} for consumed memory", "consumed_gib"),
          ("activation", "{size} for peak activation", "peak_activation_gib"),
          ("graphs", "{size} for CUDAGraph memory", "cuda_graph_gib"),
          ("in_use", "kv cache memory in use is {size}", "kv_in_use_gib")), 900, moment="after start-up"),
    Form("startup_refused", "less than desired GPU memory utilization",
         (("utilization", "memory utilization ({number},", "gpu_memory_utilization"),
          ("requested", ", {size})", "requested_gib")), 120, bare=True, error=""),
    Form("utilization", "The current --gpu-memory-utilization=",
         (("utilization", "current --gpu-memory-utilization={number} is", "gpu_memory_utilization"),
          ("effective", "equivalent to --gpu-memory-utilization={number} without", "gpu_memory_utilization_effective")),
         260),
    Form("seqs_exceed_blocks", "max_num_seqs (A) exceeds available Mamba cache blocks",
         (("max_num_seqs", "max_num_seqs ({count}) exceeds", "max_num_seqs"),
          ("blocks", "cache blocks ({count})", "mamba_cache_blocks")), 160, _SEQS_EXCEED,
         error="max_num_seqs_exceeds_mamba_blocks"),
    Form("seqs_exceed_blocks", "exceeds available Mamba cache blocks",
         (("blocks", "cache blocks ({count})", "mamba_cache_blocks"),), 100),
    Form("graph_sizes_capped", "Capping cudagraph capture sizes",
         (("from", "from max {count} to", "cuda_graph_capped_from"),
          ("to", "to {count} to fit", "cuda_graph_capped_to"),
          ("blocks", "({count} blocks available)", "mamba_cache_blocks")), 160),
    Form("no_memory", "No available memory for the cache blocks",
         reach=200, error="no_available_memory_for_cache_blocks"),
    Form("one_request_too_big", "To serve at least one request",
         (("max_model_len", "max seq len ({count})", "max_model_len"),
          ("needed", "{size} KV cache is needed", "kv_needed_gib"),
          ("available", "cache memory ({size})", "available_kv_gib"),
          ("estimated", "maximum model length is {count}.", "estimated_max_model_len"),
          ("estimated", "maximum model length is {count}", "estimated_max_model_len")), 500, _ONE_REQUEST, bare=True,
         error="kv_cache_below_one_request"),
    Form("one_request_too_big", "is needed, which is larger than the available KV cache memory",
         (("needed", "{size} KV cache is needed", "kv_needed_gib"),
          ("available", "cache memory ({size})", "available_kv_gib"),
          ("estimated", "maximum model length is {count}.", "estimated_max_model_len"),
          ("estimated", "maximum model length is {count}", "estimated_max_model_len")), 500, before=40),
    Form("one_request_too_big", "The model's max seq len",
         (("max_model_len", "max seq len ({count})", "max_model_len"), ("stored", "stored in KV cache ({count})")), 300,
         _STORED, bare=True),
    Form("no_auto_fit", "Cannot auto-fit max_model_len", reach=200, error="no_token_fits"),
    Form("auto_fit", "Auto-fit max_model_len: reduced from",
         (("from", "reduced from {count} to"), ("to", "to {count} to fit")), 200),
    Form("serving", "Avg prompt throughput:",
         (("running_req", "Running: {count} reqs"), ("queue_req", "Waiting: {count} reqs"),
          ("kv_usage_pct", "KV cache usage: {number}%")), 300, serving=True, moment="while serving"),
    Form("ready", "Application startup complete",
         repeats=True, mark=True, settled=True, up=True, mends=True, moment="while serving"),
    Form("manager_off", "Hybrid KV cache manager is disabled", (), 60, repeats=True, mark=True),
    Form("specs_differ", "failed to convert the KV cache specs", (), 40, repeats=True, error=""),
    Form("pages_differ", "assert new_spec.page_size_bytes == max_page_size", (), 40, repeats=True, error=""),
    Form("frame", "vllm/v1/", (), 40, repeats=True, mark=True, aside=True),
    Form("allocating", "in _allocate_kv_cache_tensors", (), 40, repeats=True, mark=True, aside=True,
         moment="while the cache was allocated"),
    Form("raised", "ERROR ... SomeError: what happened", (("what", "] {rest}"),), 400,
         _LOGGED + rb"(?=" + RAISED + rb")", repeats=True, error="", aftermath=True),
    Form("engine_failed", "EngineCore failed to start", repeats=True, error="", aftermath=True),
    Form("engine_failed", "Engine core initialization failed"),
    Form("engine_failed", "WorkerProc hit an exception"),
    Form("engine_failed", "EngineCore encountered a fatal error"),
    Form("engine_failed", "EngineCore encountered an issue"),
)  # fmt: skip
ROWS = (
    TableRow("utilization", rb"gpu.?memory.?util", (("utilization", NUMBER),)),
    TableRow("available", rb"^\W{0,2}kv\W{0,2}$|(?:available |gpu )?kv (?:cache|pool|memory)(?! size)",
             (("available", SIZE),)),
    TableRow("kv_size", rb"^\W{0,2}tokens\W{0,2}$|kv (?:cache )?(?:size|tokens)|kv pool",
             (("tokens", rb"^\W{0,4}" + COUNT + rb"(?![0-9.,]| ?[GMK%])"),)),
    TableRow("concurrency", rb"concurrency", (("concurrency", rb"(?P<figure>[0-9]{1,5}(?:\.[0-9]{1,2})?) ?x\b"),),
             joined=True),
    TableRow("concurrency", rb"^\W{0,2}(?:max.{0,3})?(?:context|ctx|model.?len)",
             (("max_model_len", rb"^\W{0,4}" + COUNT + rb" ?(?P<kilo>[Kk])?\W{0,4}(?:$|,|tok(?:en)?s?\W*$)"),),
             joined=True),
    TableRow("kv_size", rb"kv (?:cache|pool)", (("tokens", COUNT + rb" tok(?:en)?s?\b"),)),
    TableRow("concurrency", rb"kv (?:cache|pool)",
             (("concurrency", rb"(?P<figure>[0-9]{1,5}(?:\.[0-9]{1,2})?) ?x\b"),
              ("max_model_len", rb"\b(?:at|for) " + COUNT + rb"\b")), joined=True),
    TableRow("block_size", rb"block.?size", (("tokens", rb"^\W{0,4}" + COUNT),)),
    TableRow("weights_loaded", rb"^weights|model loading|model weights", (("usage", SIZE),)),
)  # fmt: skip


GRAMMAR = Grammar(
    "vllm",
    "vLLM",
    FORMS,
    rows=ROWS,
    fragments=rb"Setting att|Padding m|Memory p|Capping|Maximum c|No a|CUDA",
    samples=(b"Avg prompt throughput",),
    workers=("VllmWorkerProcess", "RayWorkerWrapper"),
)
