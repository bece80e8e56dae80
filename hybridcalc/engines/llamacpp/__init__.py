"""llama.cpp: its context parameters, what its caches take for a hybrid model, and what to set.

``plan(model, params)`` says what a context allocates; a combination the engine refuses raises ``Refusal``.

``n_ctx`` 0 is the trained length; ``flash_attn_type`` -1 is auto, 0 off, 1 on; ``n_gpu_layers`` -1 is auto, -2 all.
``n_rs_seq`` are copies of a state that drafts roll back to; with a ``spec_type`` that needs them it is ``draft_n_max``.
Fields below the blank line are what the engine reads from elsewhere. Source: include/llama.h llama_context_params,
common/common.h (b11434).
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from hybridcalc.engines import names_of_modules
from hybridcalc.engines.arguments import Arguments, Bounds, arguments
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.llamacpp.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import InputError, Refusal, quoted
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.deployment import Rest, Workload
    from hybridcalc.engines.llamacpp.server_plan import Plan as Plan
    from hybridcalc.engines.llamacpp.server_plan import plan as plan
    from hybridcalc.engines.weights import Weights
    from hybridcalc.hardware import Gpu


__all__ = ["NEWEST_VERSION", "ContextParams", "Plan", "Refusal", "plan", "rules_for"]


VERBS = ("serve", "run", "start")
"""First words behind ``ollama`` with which it serves."""

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


@arguments
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
            raise InputError(
                f"--spec-type {quoted(name)} is none of llama.cpp",
                fix=f"one of {', '.join(SPECULATION)}",
                flag="--spec-type",
            )


def padded(tokens: int) -> int:
    """So many cells at least, as a stream has them."""
    return -(-tokens // PADDING) * PADDING


class LlamaCpp(Engine):
    """llama-server: one process, whose layers are shared out over its devices."""

    name, title = "llama.cpp", "llama.cpp"
    model_flag = "--model"
    memory_option = "available"
    options = frozenset({"available", "gpu", "weights", "engine_version", "env"})
    stages = ("llama_init_from_model", "llama_context", "llama_kv_cache")
    model_after_flags = True
    fitted_unasked = False
    in_container = ("--host", "0.0.0.0")  # noqa: S104  (of the container)

    def with_options(self, args: ContextParams, given: Mapping[str, Any]) -> ContextParams:
        """As every engine; all cards that are given hold layers."""
        card: Gpu | None = given.get("gpu")
        changed: ContextParams = super().with_options(args, {**given, "gpu": None})
        if card is None:
            return changed
        cards = card.cards or args.cards
        return replace(changed, cards=cards, gpu_bytes=int(card.gib * GIB) * cards)

    def seeing(self, args: ContextParams, gpus: int) -> ContextParams:
        """As every engine; each takes its part of the layers."""
        return args.changed(cards=max(1, gpus))

    def command(self, model: str) -> tuple[str, ...]:
        """As every engine."""
        return ("llama-server", self.model_flag, model)

    def serves_any(self, words: Sequence[str]) -> bool:
        """An Ollama server does, and a router."""
        return bool(words) and (words[0] in VERBS or any(word.startswith("--models-") for word in words))

    def fraction(self, args: ContextParams) -> dict[str, Any]:
        """Nothing is a fraction: a context takes what it is asked for."""
        return {"fraction": None, "fraction_from": None}

    def file_of(self, model: "Architecture") -> str:
        """The file, or a name with its type mix."""
        from hybridcalc.architecture.quantization_names import mix_of
        from hybridcalc.engines.checkpoints import name_to_load

        mix = mix_of(model.asked)
        if mix is None or model.asked.lower().endswith(".gguf"):
            return name_to_load(model)
        return f"{model.name}-{mix}.gguf"

    def weights(self, model: "Architecture", args: ContextParams, *, mended: bool = True) -> "Weights":
        """On the heaviest card, by the header or the type mix."""
        from hybridcalc.engines.llamacpp.memory import weights_on_card

        return weights_on_card(model, args)

    def refused(
        self, end: str, model: "Architecture", args: ContextParams, rest: "Rest", work: "Workload"
    ) -> Refusal | None:
        """As every engine; what each card is to hold has its own bounds."""
        from hybridcalc.engines.llamacpp.server_plan import LEAST, MOST, plan

        try:
            plan(model, args, rest=rest, workload=work, taken=MOST if end == "least" else LEAST)
        except Refusal as refusal:
            return refusal
        return None

    def changed(self, args: ContextParams, flags: str) -> ContextParams:
        """As every engine; slots stay as they are where no flag says how many."""
        found: ContextParams = super().changed(args, flags)
        if "--parallel" not in flags:
            found = replace(found, n_seq_max=args.n_seq_max, kv_unified=args.kv_unified)
        return found

    def stored_as(self, model: "Architecture") -> str:
        """The type mix in its name; that none is known, of what is no GGUF file."""
        from hybridcalc.architecture.quantization_names import mix_of
        from hybridcalc.engines.llamacpp.memory import header_of

        said = header_of(model) is not None or model.asked.lower().endswith(".gguf")
        return mix_of(model.asked) or ("" if said else "type mix not given")

    def ranks(self, args: ContextParams) -> int:
        """Devices."""
        return args.cards

    def server_ranks(self, args: ContextParams) -> int:
        """As every engine."""
        return args.cards


ENGINE = LlamaCpp()


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others
    __getattr__ = names_of_modules(__name__, {"Plan": "server_plan", "plan": "server_plan"})
