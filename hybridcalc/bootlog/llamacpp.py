"""Which lines of a llama.cpp log say what its buffers are, and whose are they?

Each device prints its model, KV, RS (recurrent state), compute and output buffers; each cache prints its total with
cells, layers and sequences; ``4/2 seqs`` are 4 sequences in 2 streams, and the cells are those of one stream. Before
b5600, and in ik_llama.cpp, the KV total is called "KV self size" and names no cells: they are n_ctx, and the buffers of
ik_llama.cpp hold the states too. A draft context's buffers come behind the line that announces it, and it is the last
context that a load creates. What a load prints while it is fitted to memory is printed again with other figures, and
its KV and weights are 0.00 MiB: that is a rehearsal. "MiB" is 2**20. Source: llama.cpp src/llama-*, common/,
tools/server (b11434), ik_llama.cpp src/llama.cpp (August 2026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcalc.bootlog.boots import Grammar
from hybridcalc.bootlog.forms import CUT, IS, SPACE, Form, Labels, any_of, spelt
from hybridcalc.bootlog.paste import COUNT, SIZE, TableRow

if TYPE_CHECKING:
    from hybridcalc.bootlog import Record
    from hybridcalc.bootlog.boots import Boot

_KV_TOTAL = spelt("llama_kv_cache") + rb"(?!\w{0,12}recurrent)\w{0,24}:" + SPACE + spelt("size")
_RECURRENT = rb"(?:" + spelt("memory") + rb"|" + spelt("kv_cache") + rb")" + CUT + spelt("_recurrent:")
_STATE_TOTAL = spelt("llama_") + CUT + _RECURRENT + SPACE + spelt("size")
_MIB = SPACE + rb"[0-9.]{1,12}" + SPACE
_MAKERS = any_of(("context", "new_context_with_model", "init_from_model"))
_CONTEXT = (
    spelt("llama_")
    + CUT
    + _MAKERS
    + rb":"
    + SPACE
    + any_of(("n_ctx", "n_ctx_seq", "n_ctx_per_seq", "n_seq_max", "n_ubatch", "kv_unified"))
    + IS
)
_TENSORS = spelt("llm_load_tensors:") + SPACE + rb"[A-Z][\w.:\[\]]{0,40}" + SPACE + spelt("buffer size") + IS
_DEVICE = SPACE + rb"[0-9]{1,3}:" + SPACE + rb"\w{0,12}"
_ALLOCATING = spelt("allocating") + _MIB + spelt("MiB")
_ON_DEVICE = _ALLOCATING + SPACE + spelt("on device") + _DEVICE + spelt("alloc failed")
_SHORTENED = _ALLOCATING + rb"[^\n\v]{0,40}?" + spelt("out of memory")
_NUMBERED = SPACE + rb"[0-9]{1,7}" + SPACE
_CELLS = IS + rb"(?=[0-9.]{1,12}" + SPACE + spelt("MiB") + SPACE + rb"\(" + _NUMBERED + spelt("cells,") + _NUMBERED
_CELLS += spelt("layers,") + SPACE + rb"[0-9]{1,4}" + SPACE
_K_AND_V = (
    ("k", "K ({*}): {size}", "kv_k_mib"), ("v", "V ({*}): {size}", "kv_v_mib"),
    ("k", "K ({*}) {mib}", "kv_k_mib"), ("v", "V ({*}) {mib}", "kv_v_mib"),
    ("k_type", "K ({word})"), ("v_type", "V ({word})"),
)  # fmt: skip
"""As llama.cpp prints them, and as people shorten them: the unit is the total's."""
_LATENT = (
    ("k", "c^KV ({*}): {size}", "kv_k_mib"), ("v", "kv^T ({*}): {size}", "kv_v_mib"), ("k_type", "c^KV ({word})"),
    ("v_type", "kv^T ({word})"), ("k", "K-only ({*}): {size}", "kv_k_mib"), ("k_type", "K-only ({word})"),
)  # fmt: skip
"""The same of MLA in ik_llama.cpp."""
_KV_FIGURES = (
    ("cells", "({count} cell", "kv_cells"), ("layers", "{count} layer", "kv_layers"), ("seqs", "{count}/"),
    ("streams", "/{count} seqs"), *_K_AND_V,
)  # fmt: skip
_STATE_FIGURES = (
    ("cells", "({count} cell", "rs_cells"), ("layers", "{count} layer"), ("seqs", "{count} seqs"),
    ("rs_seq", "{count} rs_seq", "rs_seq"), ("r", "R ({*}): {size}", "rs_r_mib"), ("s", "S ({*}): {size}", "rs_s_mib"),
    ("r", "R ({*}) {mib}", "rs_r_mib"), ("s", "S ({*}) {mib}", "rs_s_mib"),
)  # fmt: skip
_CHECKPOINT = (("tokens", "n_tokens = {count},"), ("last", "pos_max = {count},"), ("size", "size = {size}"))
_LAUNCH = (
    ("n_seq_max", "-np {count}"), ("n_seq_max", "--parallel {count}"), ("n_seq_max", "--parallel={count}"),
    ("file", "--model {file}"), ("file", "--model={file}"), ("file", "-m {file}"),
)  # fmt: skip
_FLAGS = rb"(?=[ \t\n\v\\]{1,40}--?[a-z])"
_GGUF = rb"(?=[ \t=]{1,4}[\w./~:\\@{}$-]{1,240}\.gguf)"
BUFFERS = ("weights_buffer", "kv_buffer", "state_buffer", "compute_buffer", "output_buffer")
"""Kinds of buffers, a line a device."""
_REHEARSED = (*BUFFERS, "kv_total", "kv_self", "state_total", "context")
_CACHES = ("kv_buffer", "kv_total", "kv_self", "state_buffer", "state_total")
LARGEST_DRAFT = 4
"""What part of a model's KV a draft's takes at most: it has a layer or two."""
_OF_A_CONTEXT = ("kv_buffer", "kv_self")
_ZERO_IN_A_REHEARSAL = ("kv_buffer", "weights_buffer")
_FAILED = ("alloc_failed", "compute_failed", "weights_failed", "cache_failed", "states_failed", "oom")


def _buffer(kind: str, words: str, name: str, more: Labels = ()) -> Form:
    """``CUDA0 KV buffer size = 4224.00 MiB``, of some people without "size", and of some with more behind it."""
    opens = spelt(words) + rb"(?:" + SPACE + spelt("size") + rb")?" + IS + rb"(?=[0-9*])"
    sizes: Labels = (("size", "size = {size}", name), ("size", "buffer = {size}", name))
    mends = kind == "compute_buffer"
    figures: Labels = (("device", f"{{device}} {{*}}{words}"), *sizes, *more)
    return Form(kind, words, figures, 160, opens, before=40, repeats=True, settled=kind == "kv_buffer", mends=mends)


# Which lines of an Ollama log say what a model's memory is, beside those of the llama.cpp in it?
#
# Ollama reckons before it loads: of each device its weights, caches and graph, and how many layers go to it. Runners of
# its own have no other lines; llama.cpp's runner prints its buffers later, which count then. Sizes have one decimal.
# What a runner is asked for is tried first ("fit", "alloc"): only the commit is what it does. Source:
# lines of public logs of Ollama 0.6 to 0.15.

_OFFLOAD = (
    ("layers", "layers.offload={count}"), ("of", "layers.model={count}"), ("free", 'memory.available="[{rest}'),
    ("needed", 'memory.required.full="{size}'), ("partial", 'memory.required.partial="{size}'),
    ("kv", 'memory.required.kv="{size}', "planned_kv_mib"),
    ("weights", 'memory.weights.total="{size}', "planned_weights_mib"),
    ("graph", 'memory.graph.full="{size}', "planned_compute_mib"),
)  # fmt: skip

_OLLAMA = (
    Form("planned_weights", 'msg="model weights"',
         (("device", "device={device}"), ("size", 'size="{size}', "planned_weights_mib")), 120, repeats=True),
    Form("planned_kv", 'msg="kv cache"',
         (("device", "device={device}"), ("size", 'size="{size}', "planned_kv_mib")), 120, repeats=True, settled=True),
    Form("planned_compute", 'msg="compute graph"',
         (("device", "device={device}"), ("size", 'size="{size}', "planned_compute_mib")), 120, repeats=True),
    Form("planned_total", 'msg="total memory"', (("size", 'size="{size}', "planned_total_mib"),), 80, repeats=True),
    Form("planned_offload", "msg=offload", _OFFLOAD, 1000, repeats=True, settled=True),
    Form("planned_offload", 'msg="offload to', _OFFLOAD, 1000),
    Form("free_on_device", 'msg="gpu memory"', (("free", 'available="{size}'),), 240, repeats=True, mark=True),
    Form("context", 'msg=load request="{Operation:commit',
         (("n_ctx", "KvSize:{count}"), ("n_seq_max", "Parallel:{count}"), ("n_ubatch", "BatchSize:{count}")), 300),
    Form("model_name", 'msg="" architecture=', (("name", 'name="{text}'), ("name", "name={word}")), 240),
    Form("host_refused", "model requires more system memory",
         (("needed", "system memory ({size})"), ("free", "than is available ({size})")), 120, bare=True,
         error="system_memory"),
    Form("ready", "llama runner started in", (), 60),
)  # fmt: skip
PLANNED = tuple(dict.fromkeys(form.kind for form in _OLLAMA if form.kind.startswith("planned")))

# Which lines of LM Studio say what a load takes, beside those of the llama.cpp in it?
#
# It reckons before it loads, and its guardrail refuses a load by that estimate; sizes are of 10**9 and 10**6 bytes.
# Source: lines of public logs of LM Studio 0.3 to 0.4.

_LM_STUDIO = (
    Form("model_name", "lms load", (("name", "lms load {path}"),), 120),
    Form("estimate", "Model load size estimate with",
         (("layers", "offload layers '{word}"), ("n_ctx", "context length '{count}'"), ("weights", "Model: {size}"),
          ("caches", "Context: {size}"), ("total", "Total: {size}")), 240, repeats=True),
    Form("estimate", "Estimated GPU Memory:",
         (("device", "GPU Memory: {size}"), ("total", "Total Memory: {size}")), 160),
    Form("guardrail", "Model loading was stopped due to insufficient system resources",
         (("needed", "approximately {size} of memory"),), 240, bare=True, repeats=True, error="system_memory"),
)  # fmt: skip


FORMS = (
    Form("loading", "llama_model_loader: loaded meta data", (("file", "tensors from {path}"),), 300, bare=True,
         repeats=True, mark=True),
    Form("arguments", "llama-server --flags", _LAUNCH, 600, spelt("llama-server") + rb"(?:\.exe)?" + _FLAGS, bare=True,
         repeats=True, mark=True),
    Form("arguments", "-m FILE.gguf", _LAUNCH, 600, rb"-(?:m|-model)" + _GGUF, bare=True),
    Form("model_name", "general.name", (("name", "general.name{*}= {text}"),), 160, repeats=True, mark=True),
    Form("draft_context", "creating MTP draft context", (("target", "the target model '{path}"),), 300, bare=True,
         repeats=True, mark=True),
    Form("draft_context", "creating draft context", (), 60),
    Form("draft_context", "loading draft model", (), 60),
    Form("draft_estimate", "estimated memory usage of", (("size", "context is {size}"),), 100),
    Form("fit_projected", "projected to use", (("use", "to use {size} of"), ("free", "vs. {size} of free")), 160,
         repeats=True, mark=True),
    Form("fit_target", "cannot meet free memory target",
         (("target", "free memory target of {size}"), ("reduce", "device memory by {size}")), 160, repeats=True,
         mark=True),
    Form("fit_context", "context size reduced from",
         (("from", "reduced from {count} to"), ("to", "to {count} ")), 160, repeats=True, mark=True),
    Form("offloaded", "offloaded N/N layers to GPU",
         (("layers", "offloaded {count}/"), ("of", "/{count} layers")), 60,
         spelt("offloaded") + _NUMBERED + rb"/" + _NUMBERED + spelt("layers"), repeats=True, mark=True),
    _buffer("weights_buffer", "model buffer", "weights_buffer_mib"),
    Form("weights_buffer", "llm_load_tensors: DEVICE buffer size =",
         (("device", "llm_load_tensors: {device}"), ("size", "size = {size}", "weights_buffer_mib")), 160, _TENSORS),
    _buffer("kv_buffer", "KV buffer", "kv_buffer_mib",
            (("cells", "({count} cell"), ("layers", "{count} layer"), ("k", "K {mib}"), ("v", "V {mib}"))),
    _buffer("state_buffer", "RS buffer", "rs_buffer_mib",
            (("cells", "({count} cell"), ("layers", "{count} layer"), ("seqs", "{count} seqs"))),
    _buffer("compute_buffer", "compute buffer", "compute_buffer_mib"),
    _buffer("output_buffer", "output buffer", "output_buffer_mib"),
    Form("kv_total", "llama_kv_cache: size", (("size", "size = {size}", "kv_mib"), *_KV_FIGURES), 240, _KV_TOTAL,
         repeats=True, settled=True),
    Form("kv_self", "KV self size", (("size", "self size = {size}", "kv_mib"), *_K_AND_V, *_LATENT), 160, repeats=True,
         settled=True),
    Form("kv_total", "size = N MiB (N cells, N layers, N/N", (("size", "size = {size}", "kv_mib"), *_KV_FIGURES), 240,
         spelt("size") + _CELLS + rb"/)"),
    Form("kv_total", "Total: N MiB (N cells, N layers, N/N", (("size", "Total = {size}", "kv_mib"), *_KV_FIGURES), 240,
         spelt("Total") + _CELLS + rb"/)"),
    Form("state_total", "llama_memory_recurrent: size", (("size", "size = {size}", "rs_mib"), *_STATE_FIGURES), 240,
         _STATE_TOTAL, repeats=True),
    Form("state_total", "size = N MiB (N cells, N layers, N seqs",
         (("size", "size = {size}", "rs_mib"), *_STATE_FIGURES), 240, spelt("size") + _CELLS + spelt("seqs") + rb")"),
    Form("state_total", "Total: N MiB (N cells, N layers, N seqs",
         (("size", "Total = {size}", "rs_mib"), *_STATE_FIGURES), 240, spelt("Total") + _CELLS + spelt("seqs") + rb")"),
    Form("context", "llama_context: n_ctx = N",
         (("n_ctx", "n_ctx = {count}"), ("n_ctx_seq", "n_ctx_seq = {count}"),
          ("n_ctx_seq", "n_ctx_per_seq = {count}"), ("n_seq_max", "n_seq_max = {count}"),
          ("n_ubatch", "n_ubatch = {count}"), ("unified", "kv_unified = {word}")), 60,
         _CONTEXT, repeats=True, mark=True),
    Form("slots", "n_slots = N, n_ctx_slot",
         (("n_slots", "n_slots = {count},"), ("n_ctx_slot", "n_ctx_slot = {count}"),
          ("unified", "kv_unified = '{word}")),
         160, spelt("n_slots") + IS + rb"(?=[0-9]{1,4}" + SPACE + rb",)", repeats=True, mark=True, mends=True),
    Form("slots", "initializing slots", (("n_slots", "n_slots = {count}"),), 120),
    Form("slots", "new slot, n_ctx", (("n_ctx_slot", "n_ctx = {count}"),), 60, repeats=True),
    Form("prompt_cache", "prompt cache is enabled, size limit:", (("limit", "size limit: {size}"),), 80, bare=True,
         repeats=True, mark=True),
    Form("checkpoint", "created context checkpoint",
         (("number", "checkpoint {count} of"), ("most", "of {count} ("), *_CHECKPOINT), 200, repeats=True,
         moment="while serving"),
    Form("checkpoint", "restored context checkpoint", _CHECKPOINT, 200),
    Form("checkpoint", "erased invalidated context checkpoint", _CHECKPOINT, 200),
    Form("checkpoint", "erasing old context checkpoint", _CHECKPOINT, 200),
    Form("alloc_failed", "allocating N MiB on device",
         (("tried", "allocating {size} on device"), ("device", "on device {count}:")), 160, _ON_DEVICE,
         repeats=True, error="cuda_oom"),
    Form("alloc_failed", "allocating N MiB ... out of memory", (("tried", "allocating {size}"),), 60, _SHORTENED),
    Form("alloc_failed", "cudaMalloc failed: out of memory", (), 80),
    Form("compute_failed", "failed to allocate compute", repeats=True, error=""),
    Form("weights_failed", "error loading model: unable to allocate", error=""),
    Form("cache_failed", "failed to allocate buffer for kv cache", (), 40, repeats=True, error="cuda_oom"),
    Form("states_failed", "failed to allocate buffer for rs cache", (), 40, repeats=True, error="cuda_oom"),
    Form("unknown_class", "unknown model architecture:", (("name", "architecture: '{word}"),), 80, repeats=True,
         error=""),
    Form("retried", "retrying without pipeline parallelism", (), 60, repeats=True, mark=True),
    Form("ready", "server is listening", (), 60, repeats=True, mark=True, settled=True, up=True, mends=True,
         moment="while serving"),
    Form("ready", "all slots are idle", (), 60),
    Form("breakdown", "- CUDA0 (name) | N = N + (N = N + N + N)",
         (("device", "{device} ("), ("weights", "({*}= {mib} +"), ("kv", "({*}+ {mib} +"), ("graph", "+ {mib})"),
          ("free", "= {mib} + ("), ("own", "+ ({mib} ="), ("lacking", ") + -{mib}")), 160,
         rb"-[ ]{1,4}(?=[A-Z]\w{0,12}[ ]\([^()\n]{1,60}\)[ ]{1,40}\|[ ]{1,9}[0-9]{1,9}[ ]=)", repeats=True,
         settled=True),
    Form("breakdown", "- Host | N = N + N + N",
         (("device", "{device}"), ("weights", "= {mib} +"), ("graph", "+ {mib} |")), 120,
         rb"-[ ]{1,4}(?=Host[ ]{1,40}\|[ ]{1,40}[0-9]{1,9}[ ]=)"),
    *_OLLAMA,
    *_LM_STUDIO,
)  # fmt: skip


ROWS = (
    TableRow("weights_buffer", rb"model weights|^weights", (("size", SIZE),)),
    TableRow("kv_total", rb"^kv cache",
             (("size", SIZE), ("cells", COUNT + rb" ?(?P<kilo>[Kk])? cells"),
              ("layers", COUNT + rb" (?:attn |KV )?layers"), ("seqs", rb"(?P<figure>[0-9]{1,3})/[0-9]{1,3} seqs"),
              ("streams", rb"/(?P<figure>[0-9]{1,3}) seqs"))),
    TableRow("state_total", rb"recurrent state|rs buffer|ssm state",
             (("size", SIZE), ("seqs", COUNT + rb" seqs?"), ("layers", COUNT + rb" layers"))),
    TableRow("compute_buffer", rb"compute buffer", (("size", SIZE),)),
)  # fmt: skip


def starts_anew(boot: Boot, record: Record) -> bool:
    """Whether a model is loaded behind a KV buffer or a failure, a cache stands behind a failed load, or anything
    but smaller buffers behind a draft's.

    A context that says "KV self size" has one: another cache is another start's, or a draft's where it is small.
    """
    if record.kind in ("loading", "weights_buffer") and any(boot.of(kind) for kind in _FAILED) and boot.errors:
        return True
    if record.kind in _CACHES and boot.errors and any(boot.of(kind) for kind in _CACHES):
        return not any(one.said == record.said for one in boot.of(record.kind))
    if record.kind == "arguments" and record.get("file") is not None and boot.first("arguments", "file") is not None:
        return not boot.empty
    if record.kind in PLANNED and boot.of("ready"):
        return True
    if record.kind == "estimate" and (boot.of("kv_buffer") or boot.errors):
        return not any(one.said == record.said for one in boot.of("estimate"))
    buffers, opened = boot.of("kv_buffer"), next(iter(boot.of("draft_context")), None)
    tokens = record.count("n_ctx")
    if opened is None and boot.of("kv_self") and tokens is not None:
        return tokens != boot.count("context", "n_ctx")
    if opened is None and boot.of("kv_self") and record.kind in _OF_A_CONTEXT:
        same = any(one.said == record.said for one in boot.of(record.kind))
        own, size = boot.size("kv_self", "size"), record.size("size")
        return not same and own is not None and size is not None and size.value > own.value / LARGEST_DRAFT
    if opened is None:
        return record.kind == "loading" and bool(buffers)
    if not buffers or boot.place(buffers[-1]) < boot.place(opened):
        return False
    if record.kind in ("loading", "weights_buffer"):
        return True
    sizes = [size.value for buffer in buffers if buffer.line < opened.line and (size := buffer.size("size"))]
    size = record.size("size") if record.kind == "kv_buffer" else None
    return bool(sizes) and size is not None and size.value >= max(sizes) > 0


def rehearsed(boot: Boot, record: Record | None) -> tuple[str, ...]:
    """Kinds of lines that were of a rehearsal, once ``record`` is of the load itself; with none, those of a boot that
    is nothing else.
    """
    size = record.size("size") if record is not None and record.kind in _ZERO_IN_A_REHEARSAL else None
    if not boot.of("kv_buffer") or (record is not None and (size is None or not size.value)):
        return ()
    printed = (one.size("size") for kind in _ZERO_IN_A_REHEARSAL for one in boot.of(kind))
    return () if any(size.value for size in printed if size is not None) else _REHEARSED


def of_draft(boot: Boot) -> set[int]:
    """Everything behind the line that announces a draft context, or behind a context from the next one's cache on."""
    opened = next(iter(boot.of("draft_context")), None)
    if opened is None and boot.of("kv_self"):
        own = boot.place(boot.of("kv_self")[0])
        behind = (one for one in boot.statements[own + 1 :] if one.kind in _OF_A_CONTEXT)
        opened = next(behind, None)
    return set() if opened is None else {id(record) for record in boot.statements[boot.place(opened) :]}


GRAMMAR = Grammar(
    "llama.cpp", "llama.cpp", FORMS, starts_anew=starts_anew, of_draft=of_draft, rehearsed=rehearsed, rows=ROWS
)
