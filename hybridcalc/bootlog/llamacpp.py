"""Which lines of a llama.cpp log say what its buffers are?

Before b5600 the KV total was called "KV self size". Each device prints its model, KV, RS (recurrent state) and
compute buffers; each cache prints its total with cells and layers. A draft context's buffers come behind the line
that announces it. "MiB" is 2**20. Source: llama.cpp src/llama-*.
"""

from __future__ import annotations

from hybridcalc.bootlog.forms import Form
from hybridcalc.bootlog.spelling import CUT, SPACE, spelt

_SIZE = (("size", "size = {size}"),)
_KV_TOTAL = spelt("llama_kv_cache") + rb"(?!\w{0,12}recurrent)\w{0,24}:" + SPACE + rb"(?=" + spelt("size") + rb")"
_STATE_TOTAL = (
    spelt("llama_")
    + CUT
    + rb"(?:"
    + spelt("memory")
    + rb"|"
    + spelt("kv_cache")
    + rb")"
    + CUT
    + spelt("_recurrent:")
    + SPACE
    + rb"(?="
    + spelt("size")
    + rb")"
)
_ALLOCATING = (
    spelt("allocating")
    + SPACE
    + rb"[0-9.]{1,12}"
    + SPACE
    + spelt("MiB on device")
    + SPACE
    + rb"[0-9]{1,3}:"
    + SPACE
    + rb"\w{0,12}"
    + spelt("alloc failed")
)
_K_AND_V = (("k", "K ({*}): {size}"), ("v", "V ({*}): {size}"), ("k", "K ({*}) {mib}"), ("v", "V ({*}) {mib}"))
"""As llama.cpp prints them, and as people shorten them: the unit is the total's."""

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
            ("size", "size = {size}"), ("cells", "{count} cell"), ("layers", "{count} layer"), *_K_AND_V,
        ),
        240, _KV_TOTAL,
    ),
    Form("kv_total", "KV self size", (("size", "self size = {size}"), *_K_AND_V), 160),
    Form(
        "state_total", "llama_memory_recurrent: size",
        (
            ("size", "size = {size}"), ("cells", "{count} cell"), ("layers", "{count} layer"),
            ("seqs", "{count} seqs"), ("rs_seq", "{count} rs_seq"), ("r", "R ({*}): {size}"), ("s", "S ({*}): {size}"),
            ("r", "R ({*}) {mib}"), ("s", "S ({*}) {mib}"),
        ),
        240, _STATE_TOTAL,
    ),
    Form("context", "llama_context: n_ubatch", (("n_ubatch", "n_ubatch = {count}"),), 60),
    Form(
        "alloc_failed", "allocating N MiB on device",
        (("tried", "allocating {size} on device"), ("device", "on device {count}:")), 160, _ALLOCATING,
    ),
    Form("alloc_failed", "cudaMalloc failed: out of memory", (), 80),
    Form("compute_failed", "failed to allocate compute"),
    Form("weights_failed", "error loading model: unable to allocate"),
    Form("ready", "server is listening", (), 60),
)  # fmt: skip
