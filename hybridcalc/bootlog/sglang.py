"""Which other lines of an SGLang log say something, from 0.5.6 to 0.5.23 and its forks?

Memory by stage (weights, pools, graphs), the summary, the clamps, every refusal, the host pools of HiCache, and what a
running server reports. The two pool lines have a grammar of their own (sglang_pools.py): people mangle them most.

"GB" is GiB everywhere but in the two HiCache lines, which count 10**9 (``host_gb``). Source: SGLang 0.5.16 and 0.5.23,
model_executor/, mem_cache/, managers/; docs/log.md lists the forms.
"""

from __future__ import annotations

from hybridcalc.bootlog.forms import Form
from hybridcalc.bootlog.spelling import CUT, CUT_COUNT, SPACE, spelt

_AVAILABLE = ("avail", "avail mem={size}")
_USED = ("usage", "mem usage={size}")
_GRAPH = spelt("Capture") + SPACE + rb"(?:[A-Za-z-]+" + SPACE + rb"){0,6}[Gg]" + CUT + spelt("raph") + SPACE
_UNIFIED = spelt("total_bytes=") + rb"[0-9]+," + SPACE + spelt("max_total_num_tokens=")
_TO_SLOTS = rb"(?:(?:(?!(?:Decode|Prefill) batch|\[[^\[\]]{0,40}[:P])[\s\S]){0,240}?" + spelt("mamba num:") + rb")?"
"""The rest of a serving line up to the slots: only where its head is lost do they open a line of their own."""
_REFUSED = (
    ("max_mamba_cache_size", "max_mamba_cache_size={count}"),
    ("total_rest_memory", "total_rest_memory={size}"),
    ("per_slot", "mamba_cache_per_req={size}"),
)
_TO_REST = rb"(?:[^\[\]]{0,200}?" + spelt("total_rest_memory=") + rb")?"
_REST_ALONE = (
    spelt("max_mamba_cache_size=") + rb"-?" + CUT_COUNT + SPACE + rb"[(,]" + SPACE + spelt("total_rest_memory=")
)
ELSEWHERE = (
    Form("", "Mamba Cache is allocated"),
    Form("", "KV Cache is allocated"),
    Form("", "KV cache allocated"),
    Form("", "KV Cache VA upper bound"),
    Form("", "Capturing"),
    Form("", "Init torch distributed"),
    Form("", "Tree cache initialized"),
    Form("", "LoRA adapter loading"),
)
"""Openings of lines that sglang_pools.py reads, or nobody: the statement before them ends there."""

_RUNNING = (
    ("running_req", "#running-req: {count}"),
    ("queue_req", "#queue-req: {count}"),
    ("full_tokens", "#full token: {count}"),
    ("full_token_usage", "full token usage: {number}"),
    ("mamba_num", "mamba num: {count}"),
    ("mamba_usage", "mamba usage: {number}"),
    ("retracted", "#retracted-req: {count}"),
)

_ARGUMENTS = (
    ("model_path", "model_path='{path}"),
    ("tp_size", "tp_size={count}"),
    ("pp_size", "pp_size={count}"),
    ("dp_size", "dp_size={count}"),
    ("enable_dp_attention", "enable_dp_attention={word}"),
    ("context_length", "context_length={count}"),
    ("mem_fraction_static", "mem_fraction_static={number}"),
    ("max_running_requests", "max_running_requests={count}"),
    ("max_total_tokens", "max_total_tokens={count}"),
    ("page_size", "page_size={count}"),
    ("kv_cache_dtype", "kv_cache_dtype='{word}"),
    ("max_mamba_cache_size", "max_mamba_cache_size={count}"),
    ("mamba_full_memory_ratio", "mamba_full_memory_ratio={number}"),
    ("mamba_ssm_dtype", "mamba_ssm_dtype='{word}"),
    ("mamba_radix_cache_strategy", "mamba_radix_cache_strategy='{word}"),
    ("disable_radix_cache", "disable_radix_cache={word}"),
    ("disable_overlap_schedule", "disable_overlap_schedule={word}"),
    ("speculative_algorithm", "speculative_algorithm='{word}"),
    ("speculative_num_draft_tokens", "speculative_num_draft_tokens={count}"),
)
"""Arguments that bear on memory, under their own names, as the engine echoes them at its start."""

_FLAGS = (
    ("tp_size", "--tp-size", "count"), ("tp_size", "--tp", "count"), ("pp_size", "--pp-size", "count"),
    ("dp_size", "--dp-size", "count"), ("dp_size", "--dp", "count"), ("context_length", "--context-length", "count"),
    ("mem_fraction_static", "--mem-fraction-static", "number"),
    ("max_running_requests", "--max-running-requests", "count"),
    ("max_total_tokens", "--max-total-tokens", "count"), ("page_size", "--page-size", "count"),
    ("kv_cache_dtype", "--kv-cache-dtype", "word"), ("max_mamba_cache_size", "--max-mamba-cache-size", "count"),
    ("mamba_full_memory_ratio", "--mamba-full-memory-ratio", "number"),
    ("mamba_ssm_dtype", "--mamba-ssm-dtype", "word"),
    ("mamba_radix_cache_strategy", "--mamba-radix-cache-strategy", "word"),
    ("speculative_algorithm", "--speculative-algorithm", "word"),
    ("speculative_num_draft_tokens", "--speculative-num-draft-tokens", "count"),
)  # fmt: skip
_COMMAND = tuple((name, f"{flag}{sign}{{{kind}}}") for name, flag, kind in _FLAGS for sign in (" ", "="))
"""The same as people type them, where a log begins with its launch line."""

FORMS = (
    Form("arguments", "server_args=ServerArgs(", _ARGUMENTS, 9000, bare=True),
    Form("arguments", "sglang.launch_server", (("model_path", "--model-path {path}"), *_COMMAND), 3000),
    Form("weights_begin", "Load weight begin", (_AVAILABLE,)),
    Form(
        "weights_loaded",
        "Load weight end",
        (("model_class", "type={word}"), ("quant", "quant={word}"), _AVAILABLE, _USED),
    ),
    Form("kv_dtype", "Using KV cache dtype:", (("kv_dtype", "Using KV cache dtype: {dtype}"),), 80),
    Form("mm_reserve", "Reserving", (("reserved", "Reserving {size} of the KV budget"),), 120),
    Form("pools_done", "Memory pool end", (_AVAILABLE,)),
    Form("graph_begin", "Capture graph begin", pattern=_GRAPH + spelt("begin")),
    Form("graph_captured", "Capture graph end", (_USED, _AVAILABLE), pattern=_GRAPH + spelt("end")),
    Form(
        "post_capture",
        "Post-capture KV sizing: max_total_num_tokens=",
        (("tokens", "max_total_num_tokens={count}"), ("free", "free memory={size}")),
    ),
    Form("unified_pool", "total_bytes=N, max_total_num_tokens=", pattern=_UNIFIED),
    Form(
        "summary",
        "max_total_num_tokens=",
        (
            ("max_total_num_tokens", "max_total_num_tokens={count}"),
            ("chunked_prefill_size", "chunked_prefill_size={count}"),
            ("max_running_requests", "max_running_requests={count}"),
            ("context_len", "context_len={count}"),
            ("available", "available_gpu_mem={size}"),
            ("available_bare", "available_gpu_mem={number}"),
        ),
        400,
    ),
    Form(
        "capped",
        "max_running_requests is capped to",
        (
            ("max_running_requests", "capped to {count} by the mamba state"),
            ("max_mamba_cache_size", "max_mamba_cache_size={count}"),
            ("slots_per_request", ", {count} state slots per request"),
        ),
        300,
    ),
    Form(
        "reduced",
        "max_running_requests was reduced",
        (("requested", "from the requested {count} to"), ("effective", "to {count} (per dp worker)")),
        200,
    ),
    Form(
        "hicache_kv",
        "hierarchical KV host pool:",
        (("tokens", "host pool: {count} tokens"), ("host_gb", "{size} host memory")),
        200,
    ),
    Form("hicache_mamba", "Allocating", (("host_gb", "Allocating {size} host memory for hierarchical Mamba"),), 120),
    Form(
        "refused_hybrid",
        "Not enough GPU memory for hybrid",
        _REFUSED,
        500,
        spelt("Not enough GPU memory for hybrid") + _TO_REST,
        bare=True,
    ),
    Form("refused_hybrid", "max_mamba_cache_size=N (total_rest_memory=", _REFUSED, 200, _REST_ALONE),
    Form(
        "refused_small",
        "state cache is too small to serve",
        (("max_mamba_cache_size", "max_mamba_cache_size={count}"), ("slots_per_request", "mamba_ratio={count}")),
        300,
        bare=True,
    ),
    Form(
        "refused_tokens",
        "Not enough memory. Please try to increase",
        (("mem_fraction_static", "mem_fraction_static={number}"),),
        200,
        bare=True,
    ),
    Form(
        "profiled",
        "Memory profiling: available_gpu_memory=",
        (
            ("available", "available_gpu_memory={size}"),
            ("total", "total_gpu_memory={size}"),
            ("mem_fraction_static", "mem_fraction_static={number}"),
            ("rest", "rest_memory={size}"),
        ),
        300,
    ),
    Form("refused_weights", "Loaded weights leave no GPU memory", (), 300),
    Form("ping_pong", "Not enough space for mamba ping pong"),
    Form("slots_exhausted", "Not enough space for mamba cache"),
    Form("no_host_memory", "No host memory is left for HiCache"),
    Form(
        "exception",
        "Scheduler hit an exception",
        (("raised", "{error}"), ("page_size", "page_size {*}= {count}")),
        8000,
        bare=True,
    ),
    Form("running", "Decode batch", _RUNNING, 400, spelt("Decode batch") + _TO_SLOTS),
    Form("prefilling", "Prefill batch", _RUNNING, 400, spelt("Prefill batch") + _TO_SLOTS),
    Form("running", "mamba num:", _RUNNING, 200),
    Form("ready", "The server is fired up"),
)
