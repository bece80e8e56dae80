"""vLLM: its arguments, how it sizes pages and blocks for a hybrid model, and what to set.

``plan(model, args, available_bytes=...)`` runs the start-up; a configuration the engine refuses raises ``Refusal``.

Only arguments that bear on memory are kept. ``env`` holds environment switches; ``engine_version`` is the release
whose rules count (releases.py), None for the newest. Fields below the blank line are what the engine reads from
elsewhere (the GPU, the draft model).
Source: vLLM engine/arg_utils.py, config/cache.py (0.33.0; 0.22.1 where it differs).
"""

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from hybridcalc.deployment import Memory
from hybridcalc.engines import names_of_modules
from hybridcalc.engines.arguments import Arguments, Bounds, arguments, capability_of
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.vllm.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import InputError, Refusal, quoted
from hybridcalc.units import LARGEST_TOKENS, MOST_RANKS, MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.engines.vllm.layers import layer_state as layer_state
    from hybridcalc.engines.vllm.layers import state_bytes_per_layer as state_bytes_per_layer
    from hybridcalc.engines.vllm.server_plan import Plan as Plan
    from hybridcalc.engines.vllm.server_plan import plan as plan
    from hybridcalc.hardware import Gpu
    from hybridcalc.shell.flags import Flag


__all__ = [
    "NEWEST_VERSION", "EngineArgs", "Plan", "Refusal", "layer_state", "plan", "rules_for", "state_bytes_per_layer",
]  # fmt: skip

AUTO_FIT = -1
"""The value of max_model_len with which the engine looks for the longest that fits."""
KNOWN_ENVIRONMENT = frozenset({
    "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_KV_CACHE_LAYOUT", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_PP_LAYER_PARTITION", "VLLM_ROCM_FP8_PADDING", "VLLM_USE_SIMPLE_KV_OFFLOAD",
})  # fmt: skip
"""Environment switches that change a figure or a refusal."""


WITHOUT_DRAFT_KV = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "extract_hidden_states", "custom_class")
"""Speculative methods whose drafts keep no KV that can be counted here."""
DRAFT_METHODS = ("mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model", *WITHOUT_DRAFT_KV)
"""Speculative methods of any release from 0.18 on; beside them mtp under the names of models, qwen3_5_mtp and others.
Source: vLLM config/speculative.py.
"""


@arguments
class EngineArgs(Arguments):
    """Arguments of ``vllm serve``; lengths in tokens, sizes in bytes.

    ``max_model_len`` None is the model's own limit, AUTO_FIT the longest that fits. ``prefix_cache_retention_interval``
    None keeps every state, 0 the engine's choice of them. ``num_speculative_tokens`` is the value in
    ``speculative_config``, where that has one. What is None is the release's and the GPU's default. ``command_line``:
    they were read from a launch line, whose choices may be fewer than what the engine's own class takes. ``names``:
    other names of flags that were typed, each with the typed one.
    """

    engine: ClassVar[str] = "vllm"

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    data_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    mamba_cache_mode: str | None = None
    mamba_block_size: int | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    prefix_match_unit: int | None = None
    prefix_cache_retention_interval: int | None = 0
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    speculative_config: Mapping[str, Any] | None = None
    num_speculative_tokens: int = 0
    use_replayssm: bool = False
    replayssm_buffer_len: int = 16
    mamba_backend: str = "triton"
    attention_backend: str | None = None
    gdn_prefill_backend: str | None = None
    kda_prefill_backend: str | None = None
    additional_config: Mapping[str, Any] | None = None
    compilation_config: Mapping[str, Any] | None = None
    hf_overrides: Mapping[str, Any] | None = None
    enforce_eager: bool = False
    disable_hybrid_kv_cache_manager: bool | None = None
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    eplb_config: Mapping[str, Any] | None = None
    quantization: str | None = None
    kv_transfer_config: Mapping[str, Any] | None = None
    kv_events_config: Mapping[str, Any] | None = None
    kv_offloading_size: float | None = None
    kv_offloading_backend: str | None = None
    cpu_offload_gb: float = 0
    language_model_only: bool = False
    mm_encoder_tp_mode: str = "weights"
    performance_mode: str = "balanced"
    env: Mapping[str, str] = field(default_factory=dict)
    engine_version: str | None = None

    gpu_capability: str = "9.0"
    rocm: bool = False
    gpu_memory_gib: float | None = None
    draft_layers: int | None = None
    uncounted: tuple[str, ...] = field(default=(), compare=False)
    names: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    command_line: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Take the draft tokens out of the speculative configuration."""
        given = self.speculative_config
        drafts = given.get("num_speculative_tokens") if isinstance(given, Mapping) else None
        if drafts is not None:
            object.__setattr__(self, "num_speculative_tokens", drafts)

    @property
    def speculative_method(self) -> str | None:
        """The method of the speculative configuration, lower case; None without one."""
        method = (self.speculative_config or {}).get("method")
        return str(method).lower() if method is not None else ("draft_model" if self.speculative_config else None)

    @property
    def draft_path(self) -> str | None:
        """The draft model that keeps KV of its own, where one is named and --draft-layers does not speak for it."""
        method, path = self.speculative_method or "", (self.speculative_config or {}).get("model")
        counted = self.draft_layers is None and not method.endswith("mtp") and method not in WITHOUT_DRAFT_KV
        return path if counted and isinstance(path, str) else None

    @property
    def redundant_experts(self) -> int:
        """Copies of experts that balance their load."""
        copies = (self.eplb_config or {}).get("num_redundant_experts", 0)
        return copies if type(copies) is int else 0

    @property
    def moves_kv(self) -> bool:
        """Whether KV goes to other servers or memory, or its events do."""
        return bool(self.kv_transfer_config is not None or self.kv_events_config is not None or self.kv_offloading_size)

    @property
    def full_graphs(self) -> bool:
        """Whether decoding runs in full CUDA graphs, as it does unless told otherwise."""
        mode = (self.compilation_config or {}).get("cudagraph_mode")
        return not self.enforce_eager and (mode is None or "FULL" in str(mode).upper())

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the GPU: (9, 0) is Hopper. Raises InputError for what is none."""
        return capability_of(self.gpu_capability)

    @property
    def utilization(self) -> float:
        """The share of the GPU that weights and cache may take: as given, or the release's default."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return rules_for(self.engine_version)[0].utilization_percent / 100

    @property
    def default_seqs(self) -> int:
        """max_num_seqs where it is not given: 1,024 on a GPU of 70 GiB and more, else 256; 256 for an unnamed one.

        An A100 counts as a small one, and so does GB10 in the releases that say so.
        """
        small = {(8, 0), (12, 1)} if rules_for(self.engine_version)[0].gb10_is_small else {(8, 0)}
        return 1024 if (self.gpu_memory_gib or 0) >= 70 and self.capability not in small else 256

    @property
    def seqs(self) -> int:
        """Sequences that may run at once: as given, or the default, at most the tokens of a step that are given."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        return min(self.default_seqs * self._doubled, self.max_num_batched_tokens or MOST_SLOTS)

    def of_seqs(self, seqs: int) -> "EngineArgs":
        """With that max_num_seqs, and the tokens of a step that are given raised to it: they may not be fewer."""
        tokens = self.max_num_batched_tokens
        return self.changed(max_num_seqs=seqs, max_num_batched_tokens=tokens and max(tokens, seqs))

    def seqs_flags(self, seqs: int) -> str:
        """The flags of ``of_seqs``, without those that stay."""
        tokens = self.max_num_batched_tokens
        more = f" --max-num-batched-tokens {seqs}" if tokens is not None and tokens < seqs else ""
        return f"--max-num-seqs {seqs}{more}"

    @property
    def _doubled(self) -> int:
        """What defaults of a batch are multiplied by: 2 where the server is tuned for throughput."""
        return 2 if self.performance_mode == "throughput" else 1

    @property
    def batched_tokens(self) -> int:
        """Tokens of one step: as given, or the server's default for the GPU."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        length = self.max_model_len or 0
        most = self.seqs * length if length > 0 else LARGEST_TOKENS
        if (self.gpu_memory_gib or 0) >= 160 and rules_for(self.engine_version)[0].batch_16k:
            return min(most, 16384 * self._doubled)
        return min(most, (8192 if self.default_seqs == 1024 else 2048) * self._doubled)


ARGUMENTS = EngineArgs
BOUNDS = Bounds(EngineArgs)


def check_arguments(args: EngineArgs) -> None:
    """Raise InputError for an argument that the command line would refuse."""
    BOUNDS.check(args)
    method = (args.speculative_config or {}).get("method")
    if method is not None and not isinstance(method, str):
        raise InputError(
            f"the speculative method {quoted(method)} is not a name",
            fix="mtp, ngram, eagle3, ...",
            flag="--speculative-config",
        )
    if method is not None and method.lower() not in DRAFT_METHODS and not method.lower().endswith("_mtp"):
        raise InputError(
            f"the speculative method {quoted(method)} is not known",
            fix=f"write {', '.join(DRAFT_METHODS)}",
            flag="--speculative-config",
        )
    copies = (args.eplb_config or {}).get("num_redundant_experts", 0)
    if type(copies) is not int or not 0 <= copies <= MOST_RANKS:
        raise InputError(
            f"num_redundant_experts {quoted(copies)} is no number of experts",
            fix=f"write 0 to {MOST_RANKS:,}",
            flag="--eplb-config",
        )
    if args.max_model_len == 0:
        raise InputError(
            "max_model_len 0 is not a usable length", fix="write tokens, or -1 for what fits", flag="--max-model-len"
        )


def check_together(args: EngineArgs) -> None:
    """Raise InputError for layers of a draft without speculation; all else the start-up itself refuses."""
    if args.draft_layers and args.speculative_method is None:
        flag = "--draft-layers"
        raise InputError(f"{flag} has no effect alone", fix="add --speculative-config JSON", flag=flag)


class Vllm(Engine):
    """vLLM's server."""

    name, title = "vllm", "vLLM"
    model_flag = "--model"
    tp_flag, memory_option = "-tp", "available"
    options = frozenset(
        {
            "available",
            "gpu",
            "weights",
            "non_cache",
            "shared_prefix",
            "private",
            "engine_version",
            "draft_layers",
            "gpu_capability",
            "tp_size",
            "dcp_size",
            "kv_cache_dtype",
            "mamba_ssm_dtype",
            "enable_prefix_caching",
            "env",
            "max_total_tokens",
            "pp_size",
            "ep_size",
            "quantization",
        }
    )
    renamed = MappingProxyType(
        {
            "tp_size": "tensor_parallel_size",
            "pp_size": "pipeline_parallel_size",
            "dp_size": "data_parallel_size",
            "dcp_size": "decode_context_parallel_size",
            "mamba_ssm_dtype": "mamba_ssm_cache_dtype",
        }
    )
    model_after_flags = own_length = True
    indivisible = ("initialize_model", "HC050")
    variants = MappingProxyType({"--omni": "vLLM-Omni"})
    stages = (
        "create_engine_config",
        "initialize_model",
        "update_block_size_for_backend",
        "get_kv_cache_spec",
        "layout+groups",
        "get_kv_cache_configs",
        "resolve_kv_cache_block_sizes",
        "retention",
        "cudagraph_mamba_check",
    )

    def release_with(self, model: "Architecture") -> str:
        """Of the hybrid classes that are modelled, the last where it was removed."""
        from hybridcalc.engines.vllm.families import CLASSES

        found = CLASSES.get(model.architecture)
        return "" if found is None else found.last or self.newest

    def with_options(self, args: EngineArgs, given: Mapping[str, Any]) -> EngineArgs:
        """As every engine; a GPU (``gpu``, a hardware.Gpu) decides kernels and the default of max_num_seqs,
        ranks that share experts (``ep_size``) how many replicas there are.
        """
        card: Gpu | None = given.get("gpu")
        if card is not None:
            capability = card.capability or args.gpu_capability
            args = replace(args, gpu_memory_gib=card.gib, gpu_capability=capability, rocm=card.amd)
        ep = given.get("ep_size") or 1
        if ep > 1:
            args = replace(args, enable_expert_parallel=True)
        changed: EngineArgs = super().with_options(args, given)
        tp, dp = changed.tensor_parallel_size, changed.data_parallel_size
        if ep not in (1, tp * dp) and dp == 1 and ep % tp == 0:  # as many replicas as share the experts with it
            return self.with_options(replace(args, data_parallel_size=ep // tp), {**given, "tp_size": tp})
        if ep not in (1, tp * dp):
            shared = f"vLLM shares experts out among all tp x dp ranks, {tp * dp} here"
            raise InputError(f"--ep {ep}: {shared}", fix=f"write --ep {tp * dp}")
        _ = changed.capability  # raises for what is none
        return changed

    def remarks(self, args: EngineArgs, known: Memory) -> list[str]:
        """As every engine."""
        said = super().remarks(args, known)
        if known.available is not None and args.kv_cache_memory_bytes is not None:
            said.append("--available is given: --kv-cache-memory-bytes changes nothing here")
        return said

    def command(self, model: str) -> tuple[str, ...]:
        """As every engine; ``vllm serve`` takes the model without a flag."""
        return ("vllm", "serve", model)

    def typed(self, name: str, given: Mapping[str, Any]) -> "tuple[Flag, ...]":
        """As every engine; the number of draft tokens stands in the speculative configuration, where there is one."""
        return () if name == "num_speculative_tokens" and "speculative_config" in given else super().typed(name, given)

    def fraction(self, args: EngineArgs) -> dict[str, Any]:
        """As every engine."""
        given = args.gpu_memory_utilization is not None
        source = "--gpu-memory-utilization" if given else f"{self.title}'s default"
        return {"fraction": args.utilization, "fraction_from": source}

    def attention_ranks(self, args: EngineArgs) -> int:
        """As every engine."""
        return args.tensor_parallel_size

    def server_ranks(self, args: EngineArgs) -> int:
        """As every engine."""
        return args.tensor_parallel_size * args.pipeline_parallel_size

    def ranks(self, args: EngineArgs) -> int:
        """As every engine."""
        return args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size


ENGINE = Vllm()


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others
    __getattr__ = names_of_modules(
        __name__,
        {"Plan": "server_plan", "plan": "server_plan", "layer_state": "layers", "state_bytes_per_layer": "layers"},
    )
