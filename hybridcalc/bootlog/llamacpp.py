"""Which lines of a llama.cpp log say what its buffers are?

Each device prints its model, KV, RS (recurrent state) and compute buffers; each cache prints its total with cells and
layers. A draft context's buffers come behind the line that announces it. "MiB" is 2**20. Source: llama.cpp src/llama-*.
"""

from __future__ import annotations

from hybridcalc.bootlog.forms import Form
from hybridcalc.bootlog.spelling import CUT, SPACE, spelt

_SIZE = (("size", "size = {size}"),)
_KV_TOTAL = spelt("llama_kv_cache") + rb"(?!\w{0,12}recurrent)\w{0,24}:" + SPACE + rb"(?=" + spelt("size") + rb")"
_STATE_TOTAL = (
    spelt("llama_") + CUT + rb"(?:" + spelt("memory") + rb"|" + spelt("kv_cache") + rb")" + CUT
    + spelt("_recurrent:") + SPACE + rb"(?=" + spelt("size") + rb")"
)  # fmt: skip

FORMS = (
    Form("loading", "llama_model_loader: loaded meta data", (), 60),
    Form("draft_context", "creating MTP draft context", (), 60),
    Form("draft_context", "creating draft context", (), 60),
    Form("draft_context", "loading draft model", (), 60),
    Form("weights_buffer", "model buffer size", _SIZE, 80),
    Form("kv_buffer", "KV buffer size", _SIZE, 80),
    Form("state_buffer", "RS buffer size", _SIZE, 80),
    Form("compute_buffer", "compute buffer size", _SIZE, 80),
    Form(
        "kv_total", "llama_kv_cache: size",
        (
            ("size", "size = {size}"), ("cells", "{count} cells"), ("layers", "{count} layers"),
            ("k", "K ({*}): {size}"), ("v", "V ({*}): {size}"),
        ),
        240, _KV_TOTAL,
    ),
    Form(
        "state_total", "llama_memory_recurrent: size",
        (
            ("size", "size = {size}"), ("cells", "{count} cells"), ("layers", "{count} layers"),
            ("seqs", "{count} seqs"), ("rs_seq", "{count} rs_seq"), ("r", "R ({*}): {size}"), ("s", "S ({*}): {size}"),
        ),
        240, _STATE_TOTAL,
    ),
    Form("alloc_failed", "cudaMalloc failed: out of memory", (), 80),
    Form("ready", "server is listening", (), 60),
)  # fmt: skip
