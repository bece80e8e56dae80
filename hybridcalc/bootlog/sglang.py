"""Which lines of an SGLang log say something, from 0.5.6 to 0.5.23 and its forks, and whose record is it?

Memory by stage (weights, pools, graphs), the summary, the clamps, every refusal, the host pools of HiCache, and what a
running server reports. The two pool lines are read by sglang_pools.py: people mangle them most.

"GB" is GiB everywhere but in the two HiCache lines, which count 10**9 (``host_gb``). Source: SGLang 0.5.16 and 0.5.23,
model_executor/, mem_cache/, managers/; docs/log.md lists the forms.

A draft model is smaller than its target, loads into what that left, and is there before the rank is up; any other
second model, and whatever goes on behind a refusal, is another start.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

from hybridcalc.bootlog import sglang_pools
from hybridcalc.bootlog.boots import Grammar, Needle
from hybridcalc.bootlog.forms import CUT, CUT_COUNT, SPACE, Form, spelt
from hybridcalc.bootlog.forms import SIZE as SIZED
from hybridcalc.bootlog.paste import COUNT, SIZE, TableRow

if TYPE_CHECKING:
    from hybridcalc.bootlog import Record
    from hybridcalc.bootlog.boots import Boot

_GRAPH = spelt("Capture") + SPACE + rb"(?:[A-Za-z-]+" + SPACE + rb"){0,6}[Gg]" + CUT + spelt("raph") + SPACE
_UNIFIED = spelt("total_bytes=") + rb"[0-9]+," + SPACE + spelt("max_total_num_tokens=")
_TO_SLOTS = rb"(?:(?:(?!(?:Decode|Prefill) batch|\[[^\[\]]{0,40}[:P])[\s\S]){0,240}?" + spelt("mamba num:") + rb")?"
"""The rest of a serving line up to the slots: only where its head is lost do they open a line of their own."""
_REFUSED = (
    ("max_mamba_cache_size", "max_mamba_cache_size={count}", "max_mamba_cache_size"),
    ("total_rest_memory", "total_rest_memory={size}", "total_rest_memory_gib"),
    ("per_slot", "mamba_cache_per_req={size}", "mamba_cache_per_req_mib"),
    ("per_slot", "{size}/req", "mamba_cache_per_req_mib"),
    ("total_rest_memory", "{size} left", "total_rest_memory_gib"),
    ("per_slot", "{size} of state", "mamba_cache_per_req_mib"),
)
"""As the engine prints them, and as people tell them."""
_TO_REST = rb"(?:[^\[\]]{0,200}?" + spelt("total_rest_memory=") + rb")?"
_REST_ALONE = (
    spelt("max_mamba_cache_size=") + rb"-?" + CUT_COUNT + SPACE + rb"[(,]" + SPACE + spelt("total_rest_memory=")
)
_NO_LINE_READ = ("KV Cache VA upper bound", "Capturing", "Init torch distributed", "Tree cache initialized",
                 "LoRA adapter loading")  # fmt: skip

_RUNNING = (
    ("running_req", "#running-req: {count}", "running_req"), ("queue_req", "#queue-req: {count}", "queue_req"),
    ("full_tokens", "#full token: {count}", "full_tokens"),
    ("full_token_usage", "full token usage: {number}", "full_token_usage"),
    ("mamba_num", "mamba num: {count}", "mamba_num"), ("mamba_usage", "mamba usage: {number}", "mamba_usage"),
    ("retracted", "#retracted-req: {count}"),
)  # fmt: skip

_ARGUMENTS = (
    ("model_path", "model_path='{path}"), ("tp_size", "tp_size={count}"), ("pp_size", "pp_size={count}"),
    ("dp_size", "dp_size={count}"), ("enable_dp_attention", "enable_dp_attention={word}"),
    ("context_length", "context_length={count}"), ("mem_fraction_static", "mem_fraction_static={number}"),
    ("max_running_requests", "max_running_requests={count}"), ("max_total_tokens", "max_total_tokens={count}"),
    ("page_size", "page_size={count}"), ("kv_cache_dtype", "kv_cache_dtype='{word}"),
    ("max_mamba_cache_size", "max_mamba_cache_size={count}"),
    ("mamba_full_memory_ratio", "mamba_full_memory_ratio={number}"), ("mamba_ssm_dtype", "mamba_ssm_dtype='{word}"),
    ("mamba_radix_cache_strategy", "mamba_radix_cache_strategy='{word}"),
    ("disable_radix_cache", "disable_radix_cache={word}"),
    ("disable_overlap_schedule", "disable_overlap_schedule={word}"),
    ("speculative_algorithm", "speculative_algorithm='{word}"),
    ("speculative_num_draft_tokens", "speculative_num_draft_tokens={count}"),
    ("speculative_num_steps", "speculative_num_steps={count}"),
    ("speculative_eagle_topk", "speculative_eagle_topk={count}"),
    ("ep_size", "ep_size={count}"), ("dcp_size", "dcp_size={count}"), ("quantization", "quantization='{word}"),
    ("moe_a2a_backend", "moe_a2a_backend='{word}"), ("enable_dp_lm_head", "enable_dp_lm_head={word}"),
    ("chunked_prefill_size", "chunked_prefill_size={count}"),
    ("enable_int8_mamba_checkpoint", "enable_int8_mamba_checkpoint={word}"),
    ("enable_linear_replayssm_spec", "enable_linear_replayssm_spec={word}"),
    ("linear_replayssm_cache_len", "linear_replayssm_cache_len={count}"),
)  # fmt: skip
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
    ("speculative_num_steps", "--speculative-num-steps", "count"),
    ("speculative_eagle_topk", "--speculative-eagle-topk", "count"), ("model_path", "--model-path", "path"),
    ("model_path", "--model", "path"),
)  # fmt: skip
_SWITCHES = ("disable_radix_cache", "disable_overlap_schedule", "enable_dp_attention", "enable_linear_replayssm_spec")
_COMMAND = (
    *((name, f"{flag}{sign}{{{kind}}}") for name, flag, kind in _FLAGS for sign in (" ", "=")),
    *((name, f"--{name.replace('_', '-')}{{flag}}") for name in _SWITCHES),
)
"""The same as people type them, where a log begins with its launch line."""
_AND_FLAGS = rb"(?=[\s\\]{1,80}--[a-z])"

FORMS = (
    Form("arguments", "server_args=ServerArgs(", _ARGUMENTS, 9000, bare=True, starts=True, repeats=True, mark=True),
    Form("arguments", "sglang.launch_server", _COMMAND, 3000),
    Form("arguments", "launch_server", _COMMAND, 3000, spelt("launch_server") + _AND_FLAGS),
    Form("arguments", "sglang serve", _COMMAND, 3000, spelt("sglang serve") + _AND_FLAGS),
    Form("weights_begin", "Load weight begin", (("avail", "avail mem={size}", "avail_mem_before_weights_gib"),),
         starts=True, repeats=True, moment="while the weights were loaded"),
    Form("weights_loaded", "Load weight end",
         (("model_class", "type={word}"), ("quant", "quant={word}"),
          ("avail", "avail mem={size}", "avail_mem_after_weights_gib"), ("usage", "mem usage={size}", "weights_gib")),
         repeats=True, moment="between the weights and the pools"),
    Form("kv_dtype", "Using KV cache dtype:", (("kv_dtype", "Using KV cache dtype: {dtype}", "kv_dtype"),), 80,
         repeats=True),
    Form("mm_reserve", "Reserving", (("reserved", "Reserving {size} of the KV budget", "mm_reserve_gib"),), 120,
         repeats=True),
    Form("windows", "Use sliding window memory pool",
         (("full", "full_layer_tokens={count}"), ("window", "swa_layer_tokens={count}")), 120, repeats=True),
    Form("pools_done", "Memory pool end", (("avail", "avail mem={size}", "mem_pool_end_avail_gib"),), repeats=True,
         moment="after the pools were allocated"),
    Form("graph_begin", "Capture graph begin", pattern=_GRAPH + spelt("begin"), repeats=True, mark=True,
         moment="while graphs were captured"),
    Form("graph_captured", "Capture graph end",
         (("usage", "mem usage={size}", "cuda_graph_gib"), ("avail", "avail mem={size}", "avail_mem_after_graph_gib")),
         pattern=_GRAPH + spelt("end"), repeats=True, moment="after graphs were captured"),
    Form("post_capture", "Post-capture KV sizing: max_total_num_tokens=",
         (("tokens", "max_total_num_tokens={count}"), ("free", "free memory={size}")), repeats=True),
    Form("unified_pool", "total_bytes=N, max_total_num_tokens=", pattern=_UNIFIED, repeats=True),
    Form("summary", "max_total_num_tokens=",
         (("max_total_num_tokens", "max_total_num_tokens={count}", "max_total_num_tokens"),
          ("chunked_prefill_size", "chunked_prefill_size={count}"),
          ("max_running_requests", "max_running_requests={count}", "max_running_requests"),
          ("context_len", "context_len={count}", "context_len"),
          ("available", "available_gpu_mem={size}", "available_gpu_mem_gib"),
          ("available_bare", "available_gpu_mem={number}", "available_gpu_mem_gib")),
         400, settled=True, up=True, moment="after start-up"),
    Form("capped", "max_running_requests is capped to",
         (("max_running_requests", "capped to {count} by", "max_running_requests"),
          ("max_mamba_cache_size", "max_mamba_cache_size={count}", "max_mamba_cache_size"),
          ("slots_per_request", ", {count} state slots per request", "slots_per_request")),
         300, error="", if_zero="max_running_requests"),
    Form("state_pool", "max_mamba_cache_size=N, conv N GB + ssm N GB",
         (("slots", "max_mamba_cache_size={count},", "max_mamba_cache_size"), ("conv", "conv {size}", "conv_gib"),
          ("ssm", "ssm {size}", "ssm_gib")), 160,
         spelt("max_mamba_cache_size=") + rb"(?=" + CUT_COUNT + SPACE + rb"," + SPACE + spelt("conv") + SPACE + SIZED
         + rb".{0,12}" + spelt("ssm") + rb")", settled=True, told=True),
    Form("capped", "caps max_running_requests to N at N state slots",
         (("max_running_requests", "max_running_requests to {count} at", "max_running_requests"),
          ("slots_per_request", "at {count} state", "slots_per_request")), 120,
         spelt("caps max_running_requests to") + rb"(?=" + SPACE + CUT_COUNT + SPACE + spelt("at") + rb")", told=True),
    Form("summary", "reports max_running_requests=N",
         (("max_running_requests", "max_running_requests={count}", "max_running_requests"),), 100,
         rb"r(?=eports?[ ]{1,3}max_running_requests[ ]{0,2}=[ ]{0,2}[0-9])", told=True),
    Form("flag", "--max-mamba-cache-size",
         (("max_mamba_cache_size", "--max-mamba-cache-size {count}"),
          ("max_mamba_cache_size", "--max-mamba-cache-size={count}")), 60, repeats=True, mark=True, told=True,
         aside=True),
    Form("summary", "max running N -> N", (("max_running_requests", "-> {count}", "max_running_requests"),), 60,
         rb"max[ _]running(?:_requests)?" + SPACE + CUT_COUNT + SPACE + rb"(?=->)", told=True),
    Form("reduced", "max_running_requests was reduced",
         (("requested", "from the requested {count} to"), ("effective", "to {count} (per dp worker)")), 200),
    Form("hicache_kv", "hierarchical KV host pool:",
         (("tokens", "host pool: {count} tokens", "hicache_kv_host_tokens"),
          ("host_gb", "{size} host memory", "hicache_kv_host_gb")), 200, repeats=True),
    Form("hicache_mamba", "Allocating",
         (("host_gb", "Allocating {size} host memory for hierarchical Mamba", "hicache_mamba_host_gb"),), 120,
         repeats=True),
    Form("refused_hybrid", "Not enough GPU memory for hybrid", _REFUSED, 500,
         spelt("Not enough GPU memory for hybrid") + _TO_REST, bare=True, error="not_enough_memory_hybrid"),
    Form("refused_hybrid", "max_mamba_cache_size=N (total_rest_memory=", _REFUSED, 200, _REST_ALONE),
    Form("refused_small", "state cache is too small to serve",
         (("max_mamba_cache_size", "max_mamba_cache_size={count}", "max_mamba_cache_size"),
          ("slots_per_request", "mamba_ratio={count}", "slots_per_request")),
         300, bare=True, error="mamba_cache_too_small"),
    Form("refused_tokens", "Not enough memory. Please try to increase",
         (("mem_fraction_static", "mem_fraction_static={number}"),), 200, bare=True, error="not_enough_memory_kv"),
    Form("profiled", "Memory profiling: available_gpu_memory=",
         (("available", "available_gpu_memory={size}"), ("total", "total_gpu_memory={size}"),
          ("mem_fraction_static", "mem_fraction_static={number}"), ("rest", "rest_memory={size}")), 300),
    Form("refused_weights", "Loaded weights leave no GPU memory", reach=300, error="no_memory_after_weights"),
    Form("ping_pong", "Not enough space for mamba ping pong", error="mamba_ping_pong_exhausted"),
    Form("slots_exhausted", "Not enough space for mamba cache", error="mamba_cache_exhausted"),
    Form("no_host_memory", "No host memory is left for HiCache", error="no_host_memory"),
    Form("frame", "sglang/srt/", (), 40, repeats=True, mark=True, aside=True),
    Form("allocating", "in _init_mamba_pool", (), 40, repeats=True, mark=True, aside=True,
         moment="while the pools were allocated"),
    Form("allocating", "in _init_pools", (), 40, aside=True),
    Form("exception", "Scheduler hit an exception", (("raised", "{error}"), ("page_size", "page_size {*}= {count}")),
         8000, bare=True, repeats=True, error="", aftermath=True),
    Form("running", "Decode batch", _RUNNING, 400, spelt("Decode batch") + _TO_SLOTS, serving=True,
         moment="while serving"),
    Form("prefilling", "Prefill batch", _RUNNING, 400, spelt("Prefill batch") + _TO_SLOTS, serving=True,
         moment="while serving"),
    Form("running", "mamba num:", _RUNNING, 200),
    Form("ready", "The server is fired up", repeats=True, mark=True, settled=True, up=True, mends=True,
         moment="while serving"),
)  # fmt: skip

_SLOTS = rb"(?<![=:])(?P<figure>[0-9][0-9,]{0,11}) slots"
_LIMIT = rb"^\W{0,4}(?P<figure>[0-9]{1,9})\b"
ROWS = (
    TableRow("state_pool", rb"mamba (?:cache|pool|slots)|state (?:pool|slots)", (("slots", _SLOTS),)),
    TableRow("state_pool", rb"(?:mamba|state|gdn|kda) slots\W*$", (("slots", _LIMIT),)),
    TableRow("state_pool", rb"max_mamba_cache_size", (("slots", _LIMIT),), own=rb"max_mamba_cache_size"),
    TableRow("state_pool", rb"^\W{0,4}[0-9][0-9,]{0,8} slots\b", (("slots", _SLOTS),), own=rb"slots\W{1,4}ratio",
             head=True),
    TableRow("summary", rb"kv tokens|max_total_num_tokens",
             (("max_total_num_tokens", rb"^\W{0,4}" + COUNT + rb"(?![0-9.,]| ?[GMK%])"),), joined=True,
             own=rb"max_total_num_tokens"),
    TableRow("summary", rb"kv (?:pool|cache|tokens)|max_total_num_tokens",
             (("max_total_num_tokens", COUNT + rb" tok(?:en)?s?\b"),), joined=True),
    TableRow("capped", rb"is capped", (("max_running_requests", rb"(?:->|\xe2\x86\x92) ?(?P<figure>[0-9]{1,9})\b"),)),
    TableRow("summary", rb"max[_ ]running", (("max_running_requests", _LIMIT),), joined=True),
    TableRow("weights_loaded", rb"weights?\b.{0,20}(?:load|main|target)|^weights?$", (("usage", SIZE),)),
)  # fmt: skip

_REFUSALS = ("refused_hybrid", "refused_small", "refused_tokens", "refused_weights")
_FATAL = ("oom", "ping_pong", "slots_exhausted", "no_host_memory")
"""What a process may die of after its pools stood: another rank's unnamed words say nothing of this one."""
_POOLS = frozenset(form.kind for form in sglang_pools.FORMS)
_STEPS_OF_A_START = _POOLS | {
    "arguments", "weights_begin", "weights_loaded", "kv_dtype", "pools_done", "graph_begin", "graph_captured",
    "summary", "capped", "ready",
}  # fmt: skip
"""Lines that a process which refused to start does not come to."""
_DRAFT_CLASS = re.compile(r"NextN|MTP|Draft|Eagle", re.IGNORECASE)


def starts_anew(boot: Boot, record: Record) -> bool:
    """Whether ``record`` goes on behind a refusal, is of another model, or differs from what may be the same rank's."""
    if _behind_a_refusal(boot, record) or _of_another_model(boot, record):
        return True
    if boot.form(record.kind).repeats or record.rank in boot.firsts(record.kind):
        return False
    first = boot.first_of(record.kind, record.rank)
    return first is not None and not first.agrees(record)


def _behind_a_refusal(boot: Boot, record: Record) -> bool:
    if record.kind not in _STEPS_OF_A_START:
        return False
    if any(boot.first_of(kind, record.rank) is not None for kind in _REFUSALS):
        return True
    begins = record.kind in _POOLS or record.kind == "weights_loaded"
    fatal = [ranks for kind in _FATAL if (ranks := boot.firsts(kind))] if begins else []
    return any(not record.rank or record.rank in ranks for ranks in fatal)


def _of_another_model(boot: Boot, record: Record) -> bool:
    """Whether weights or a KV pool are neither the target's nor a draft's."""
    first = boot.first_of(record.kind, record.rank) if record.kind in ("kv_pool", "weights_loaded") else None
    if first is None or (record.kind == "kv_pool" and record.count("tokens") in _shared_out(boot)):
        return False
    tokens, dtype = record.count("tokens"), record.word("dtype")
    if dtype and tokens is None and not _kv_bytes(record) and not first.word("dtype"):
        return True  # its dtype alone: a draft's line has sizes
    if first.agrees(record):
        return False
    if record.kind == "weights_loaded":
        if is_draft(record) or same_model(first, record):
            return False
        size, target = record.size("usage"), first.size("usage")
        left, before = record.size("avail"), first.size("avail")
        if size is not None and target is not None and 2 * size.value > target.value:
            return True
        if target is None and size is not None and (record.get("model_class") or not first.figures):
            return True
        if left is not None and before is not None and left.value > before.value:
            return True
    else:
        other = first.count("tokens") != tokens
        if other and None not in (first.count("tokens"), tokens) and _kv_bytes(record) >= _kv_bytes(first):
            return True
        if dtype and first.word("dtype") and dtype != first.word("dtype") and other:
            return True
    up = boot.first_of("summary", record.rank) or boot.first_of("ready", "")
    return up is not None and up.line > first.line


def _kv_bytes(pool: Record) -> Fraction:
    return sum((part.value for part in pool.sizes("k", "v", "kv")), Fraction(0))


def is_draft(record: Record) -> bool:
    """Whether weights are a draft model's by the name of their class."""
    return _DRAFT_CLASS.search(record.word("model_class") or "") is not None


def same_model(first: Record, second: Record) -> bool:
    """Whether two weight lines without a rank are two ranks of one model: the same class and about the same size."""
    one, other = first.size("usage"), second.size("usage")
    named = first.get("model_class") is not None and first.get("model_class") == second.get("model_class")
    if not named or first.rank or one is None or other is None:
        return False
    return 2 * min(one.value, other.value) > max(one.value, other.value)


def differ(pools: list[Record]) -> bool:
    """Whether two of them differ in a figure that both print: one that is cut off is no other pool."""
    return any(not one.agrees(other) for one, other in combinations({p.figures: p for p in pools}.values(), 2))


def _shared_out(boot: Boot) -> set[int | None]:
    """Tokens of the two KV pools of a model whose layers have sliding windows in part."""
    return {one.count(name) for one in boot.of("windows") for name in ("full", "window")} - {None}


def window_pools(boot: Boot) -> list[Record]:
    """KV pools of layers that keep a sliding window: their tokens are no request's."""
    windows = {one.count("window") for one in boot.of("windows")} - {one.count("full") for one in boot.of("windows")}
    return [pool for pool in boot.of("kv_pool") if pool.count("tokens") in windows]


def target_pools(boot: Boot) -> list[Record]:
    """The first KV pool of each rank, those of sliding windows aside: later ones are a draft model's, and so is one
    behind the line that says that the target's pools are done.
    """
    windows = {id(pool) for pool in window_pools(boot)}
    firsts = list(boot.firsts("kv_pool").values())
    if windows:
        pools = (pool for pool in boot.of("kv_pool") if id(pool) not in windows)
        firsts = list({pool.rank: pool for pool in reversed(list(pools))}.values())
    return [pool for pool in firsts if not _pools_done_before(boot, pool)]


def _pools_done_before(boot: Boot, pool: Record) -> bool:
    """Whether a rank's pools were done before ``pool``, in a log whose lines are in their own order."""
    state, done = (boot.firsts(kind).get(pool.rank) for kind in ("state_pool", "pools_done"))
    if state is None or done is None or pool.sorted:
        return False
    return boot.place(state) < boot.place(done) < boot.place(pool)


def draft_pools(boot: Boot) -> list[Record]:
    """KV pools of a draft model."""
    others = {id(pool) for pool in (*target_pools(boot), *window_pools(boot))}
    return [pool for pool in boot.of("kv_pool") if id(pool) not in others]


def _behind_a_draft(boot: Boot, done: Record) -> bool:
    """Whether the pools that are done are a draft's, which stands before the line on its rank."""
    return any(pool.rank == done.rank and boot.place(pool) < boot.place(done) for pool in draft_pools(boot))


def of_draft(boot: Boot) -> set[int]:
    """Records of a draft model: the second of their kind on a rank, or those whose class says so."""
    drafts = {id(pool) for pool in draft_pools(boot)}
    for kind in ("weights_loaded", "pools_done"):
        for record in boot.of(kind):
            target = boot.firsts(kind)[record.rank]
            lost = kind == "pools_done" and _behind_a_draft(boot, record)
            if lost or is_draft(record) or (target is not record and not same_model(target, record)):
                drafts.add(id(record))
    begun = boot.firsts("weights_begin")
    return drafts | {id(record) for record in boot.of("weights_begin") if begun[record.rank] is not record}


GRAMMAR = Grammar(
    "sglang",
    "SGLang",
    FORMS,
    (*sglang_pools.FORMS, *(Form("", opening) for opening in _NO_LINE_READ)),
    sglang_pools.find,
    (Needle(b"Mamba", b"M"), Needle(b"is capped", b"_"), Needle(b"Not enough", b"E")),
    rb"_state|_cache|_num_tokens|#tokens|V [Cc]ache|Mamba|Load w|Not e|is capped",
    (b"Decode batch", b"Prefill batch"),
    starts_anew,
    of_draft,
    rows=ROWS,
)
