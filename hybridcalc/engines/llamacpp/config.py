"""llama.cpp's context parameters and those of llama-server that bear on memory, under the engine's own names.

``n_ctx`` 0 is the trained length; ``flash_attn_type`` -1 is auto, 0 off, 1 on; ``n_gpu_layers`` -1 is auto, -2 all.
``n_rs_seq`` are copies of a state that drafts roll back to; with a ``spec_type`` that needs them it is ``draft_n_max``.
Fields below the blank line are what the engine reads from elsewhere. Source: include/llama.h llama_context_params,
common/common.h (b11434).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from hybridcalc.engines.arguments import Arguments, Bounds
from hybridcalc.errors import InputError, quoted

ROWS = {
    "f32": Fraction(4), "f16": Fraction(2), "bf16": Fraction(2), "q8_0": Fraction(34, 32), "q5_1": Fraction(24, 32),
    "q5_0": Fraction(22, 32), "q4_1": Fraction(20, 32), "q4_0": Fraction(18, 32), "iq4_nl": Fraction(18, 32),
}  # fmt: skip
"""Bytes of an element of K or V, by the type of the cache: a block's bytes over its elements."""
PLAIN = ("f32", "f16", "bf16")
BLOCK = 32
"""Elements of a block of every quantised type of cache."""
MOST_SEQUENCES = 256
PADDING = 256
"""Cells of a stream are a multiple of this."""
COPYING = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Ways of drafting for which a state is kept as often as a draft has tokens, and once more."""
AUTO_LAYERS, ALL_LAYERS = -1, -2
KNOWN_ENVIRONMENT = frozenset({
    "LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_BATCH", "LLAMA_ARG_UBATCH", "LLAMA_ARG_SWA_FULL",
    "LLAMA_ARG_CTX_CHECKPOINTS", "LLAMA_ARG_CACHE_RAM", "LLAMA_ARG_KV_UNIFIED", "LLAMA_ARG_KV_UNIFIED_PER_SLOT",
    "LLAMA_ARG_FLASH_ATTN", "LLAMA_ARG_KV_OFFLOAD", "LLAMA_ARG_CACHE_TYPE_K", "LLAMA_ARG_CACHE_TYPE_V",
    "LLAMA_ARG_N_GPU_LAYERS", "LLAMA_ARG_SPEC_TYPE", "LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_FIT", "LLAMA_ARG_FIT_CTX",
    "LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO", "LLAMA_ARG_OVERRIDE_TENSOR", "LLAMA_ARG_CPU_MOE", "LLAMA_ARG_N_CPU_MOE",
    "LLAMA_ARG_TENSOR_SPLIT", "LLAMA_ARG_SPLIT_MODE", "LLAMA_ARG_MAIN_GPU", "OLLAMA_NUM_PARALLEL",
    "OLLAMA_CONTEXT_LENGTH", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION", "OLLAMA_MAX_LOADED_MODELS",
    "OLLAMA_GPU_OVERHEAD",
})  # fmt: skip
"""Variables that set a flag which changes a figure or a refusal."""
SPECULATION = (
    "none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark", "ngram-simple", "ngram-map-k",
    "ngram-map-k4v", "ngram-mod", "ngram-cache",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContextParams(Arguments):
    """Parameters of a context and of the server around it; lengths in tokens, ``cache_ram_mib`` in MiB.

    ``kv_unified_per_slot`` 0 is unset. ``fit``: the server may shrink a context that nobody set, and offload fewer
    layers, to leave memory free on each device. ``cards`` and ``gpu_bytes``: GPUs, and the memory of all of them.
    ``command_line``: read as a server reads it, whose --fit gives each stream the trained length where nobody sets one.
    ``ollama``: Ollama starts the server, whose ``n_ctx`` is then that of a slot. ``uncounted``: flags whose memory no
    plan knows.
    """

    engine: ClassVar[str] = "llama.cpp"

    n_ctx: int = 0
    n_seq_max: int = 1
    kv_unified: bool = False
    kv_unified_per_slot: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn_type: int = -1
    swa_full: bool = False
    spec_type: str | None = None
    draft_n_max: int = 3
    n_rs_seq: int = 0
    n_gpu_layers: int = AUTO_LAYERS
    offload_kqv: bool = True
    split_mode: str = "layer"
    tensor_split: str | None = None
    override_tensor: str | None = None
    main_gpu: int = 0
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    cache_prompt: bool = True
    slot_prompt_similarity: float = 0.1
    cache_ram_mib: int = 8192
    fit: bool = True
    fit_ctx: int = 4096
    env: Mapping[str, str] = field(default_factory=dict)
    engine_version: str | None = None

    quantization: str | None = None
    cards: int = 1
    gpu_bytes: int = 0
    command_line: bool = False
    ollama: bool = False
    uncounted: tuple[str, ...] = ()

    @property
    def used_cards(self) -> int:
        """Cards that hold anything: all, or the one of -sm none."""
        return 1 if self.split_mode == "none" else self.cards

    @property
    def copies_asked(self) -> int:
        """Copies of a state that drafts ask for, beside the one it is."""
        drafts = set((self.spec_type or "").split(",")) & COPYING
        return self.n_rs_seq or (self.draft_n_max if drafts else 0)


ARGUMENTS = ContextParams
BOUNDS = Bounds(ContextParams)
check_arguments = BOUNDS.check


def check_together(args: ContextParams) -> None:
    """Raise InputError for a way of drafting that llama.cpp has not."""
    for name in (args.spec_type or "").split(",") if args.spec_type else ():
        if name not in SPECULATION:
            raise InputError(f"--spec-type {quoted(name)} is none of llama.cpp", fix=f"one of {', '.join(SPECULATION)}")


def padded(tokens: int) -> int:
    """So many cells at least, as a stream has them."""
    return -(-tokens // PADDING) * PADDING
