"""Which lines of a llama.cpp log say what its buffers are, and whose are they?

Before b5600 the KV total was called "KV self size". Each device prints its model, KV, RS (recurrent state) and
compute buffers; each cache prints its total with cells and layers. A draft context's buffers come behind the line
that announces it, and it is the last context that a load creates. "MiB" is 2**20. Source: llama.cpp src/llama-*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcalc.bootlog.boots import Grammar
from hybridcalc.bootlog.forms import CUT, SPACE, Form, spelt

if TYPE_CHECKING:
    from hybridcalc.bootlog.boots import Boot
    from hybridcalc.bootlog.records import Record

_KV_TOTAL = spelt("llama_kv_cache") + rb"(?!\w{0,12}recurrent)\w{0,24}:" + SPACE + rb"(?=" + spelt("size") + rb")"
_RECURRENT = rb"(?:" + spelt("memory") + rb"|" + spelt("kv_cache") + rb")" + CUT + spelt("_recurrent:")
_STATE_TOTAL = spelt("llama_") + CUT + _RECURRENT + SPACE + rb"(?=" + spelt("size") + rb")"
_MIB = SPACE + rb"[0-9.]{1,12}" + SPACE
_DEVICE = SPACE + rb"[0-9]{1,3}:" + SPACE + rb"\w{0,12}"
_ALLOCATING = spelt("allocating") + _MIB + spelt("MiB on device") + _DEVICE + spelt("alloc failed")
_K_AND_V = (
    ("k", "K ({*}): {size}", "kv_k_mib"), ("v", "V ({*}): {size}", "kv_v_mib"),
    ("k", "K ({*}) {mib}", "kv_k_mib"), ("v", "V ({*}) {mib}", "kv_v_mib"),
)  # fmt: skip
"""As llama.cpp prints them, and as people shorten them: the unit is the total's."""


def _buffer(kind: str, opening: str, name: str) -> Form:
    return Form(kind, opening, (("size", "size = {size}", name),), 80, repeats=True, settled=kind == "kv_buffer")


FORMS = (
    Form("loading", "llama_model_loader: loaded meta data", (), 60, repeats=True, mark=True),
    Form("draft_context", "creating MTP draft context", (), 60, repeats=True, mark=True),
    Form("draft_context", "creating draft context", (), 60),
    Form("draft_context", "loading draft model", (), 60),
    _buffer("weights_buffer", "model buffer size", "weights_buffer_mib"),
    _buffer("kv_buffer", "KV buffer size", "kv_buffer_mib"),
    _buffer("state_buffer", "RS buffer size", "rs_buffer_mib"),
    _buffer("compute_buffer", "compute buffer size", "compute_buffer_mib"),
    Form("kv_total", "llama_kv_cache: size",
         (("size", "size = {size}", "kv_mib"), ("cells", "{count} cell", "kv_cells"),
          ("layers", "{count} layer", "kv_layers"), *_K_AND_V), 240, _KV_TOTAL, repeats=True, settled=True),
    Form("kv_total", "KV self size", (("size", "self size = {size}", "kv_mib"), *_K_AND_V), 160),
    Form("state_total", "llama_memory_recurrent: size",
         (("size", "size = {size}", "rs_mib"), ("cells", "{count} cell", "rs_cells"), ("layers", "{count} layer"),
          ("seqs", "{count} seqs"), ("rs_seq", "{count} rs_seq", "rs_seq"), ("r", "R ({*}): {size}", "rs_r_mib"),
          ("s", "S ({*}): {size}", "rs_s_mib"), ("r", "R ({*}) {mib}", "rs_r_mib"),
          ("s", "S ({*}) {mib}", "rs_s_mib")), 240, _STATE_TOTAL, repeats=True),
    Form("context", "llama_context: n_ubatch", (("n_ubatch", "n_ubatch = {count}"),), 60, repeats=True, mark=True),
    Form("alloc_failed", "allocating N MiB on device",
         (("tried", "allocating {size} on device"), ("device", "on device {count}:")), 160, _ALLOCATING,
         repeats=True, error="cuda_oom"),
    Form("alloc_failed", "cudaMalloc failed: out of memory", (), 80),
    Form("compute_failed", "failed to allocate compute", repeats=True, error=""),
    Form("weights_failed", "error loading model: unable to allocate", error=""),
    Form("ready", "server is listening", (), 60, repeats=True, mark=True, settled=True, up=True,
         moment="while serving"),
)  # fmt: skip


def starts_anew(boot: Boot, record: Record) -> bool:
    """Whether a model is loaded behind a KV buffer, or anything but smaller buffers behind a draft context's."""
    buffers, opened = boot.of("kv_buffer"), next(iter(boot.of("draft_context")), None)
    if opened is None:
        return record.kind == "loading" and bool(buffers)
    if not buffers or boot.place(buffers[-1]) < boot.place(opened):
        return False
    if record.kind in ("loading", "weights_buffer"):
        return True
    sizes = [size.value for buffer in buffers if buffer.line < opened.line and (size := buffer.size("size"))]
    size = record.size("size") if record.kind == "kv_buffer" else None
    return bool(sizes) and size is not None and size.value >= max(sizes) > 0


def of_draft(boot: Boot) -> set[int]:
    """Everything behind the line that announces a draft context."""
    opened = next(iter(boot.of("draft_context")), None)
    return set() if opened is None else {id(record) for record in boot.statements[boot.place(opened) :]}


GRAMMAR = Grammar("llama.cpp", "llama.cpp", FORMS, starts_anew=starts_anew, of_draft=of_draft)
