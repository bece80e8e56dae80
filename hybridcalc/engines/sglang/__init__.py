"""SGLang: its arguments, its start-up, and what to set.

``plan(model, args, rest_gib=...)`` runs the start-up; a configuration the engine refuses raises ``Refusal``.

Only arguments that bear on memory are kept. ``env`` holds environment switches; ``engine_version`` is the release
whose rules count (releases.py), None for the newest. Fields below the blank line are what the engine reads from
elsewhere (the draft model, the platform).
Source: SGLang srt/server_args.py, srt/environ.py (0.5.23).
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hybridcalc.deployment import Memory
from hybridcalc.engines import names_of_modules
from hybridcalc.engines.arguments import Arguments, Bounds, arguments, capability_of
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sglang.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import Drop, InputError, NotModelled, Refusal, quoted

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.engines.sglang.fraction import resolve as resolve
    from hybridcalc.engines.sglang.server_plan import Plan as Plan
    from hybridcalc.engines.sglang.server_plan import plan as plan
    from hybridcalc.hardware import Gpu


__all__ = ["NEWEST_VERSION", "Plan", "Refusal", "ServerArgs", "plan", "resolve", "rules_for"]

DEFAULT_RATIO = 0.9
KNOWN_ENVIRONMENT = frozenset({
    "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "SGLANG_MAMBA_CONV_DTYPE", "SGLANG_MAMBA_SSM_DTYPE",
    "SGLANG_PP_LAYER_PARTITION", "SGLANG_VLM_CACHE_SIZE_MB", "SGLANG_MM_FEATURE_CACHE_MB",
    "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
})  # fmt: skip
"""Environment switches that change a figure."""
SPECULATIVE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DSPARK", "DFLASH")
STEPS, BRANCHES, DRAFTS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
CHAINED_DRAFTS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Algorithms that draft in steps of so many branches: the numbers of steps, branches and drafts go together."""
UNMODELLED_ALGORITHMS = ("UNO", "FROZEN_KV_MTP")
OWN_DRAFT_CELL = ("DSPARK", "DFLASH")
"""Algorithms whose draft model has KV of its own size; that of the others is priced by its layers."""
DEFAULT_WINDOW_RATIO = 0.8


@arguments
class ServerArgs(Arguments):
    """Arguments of ``python -m sglang.launch_server``; sizes in tokens, slots or requests as the engine counts them."""

    engine: ClassVar[str] = "sglang"

    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
    dcp_size: int = 1
    kv_cache_dtype: str = "auto"
    page_size: int | None = None
    attention_backend: str | None = None
    linear_attn_backend: str = "triton"
    dsa_prefill_backend: str | None = None
    dsa_decode_backend: str | None = None
    qsa_indexer_dtype: str = "auto"
    mamba_ssm_dtype: str | None = None
    mamba_radix_cache_strategy: str = "auto"
    mamba_full_memory_ratio: float | None = None
    max_mamba_cache_size: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    swa_full_tokens_ratio: float | None = None
    context_length: int | None = None
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    disable_overlap_schedule: bool | None = None
    disable_radix_cache: bool = False
    mamba_track_interval: int = 256
    mamba_max_states_per_path: int = -1
    speculative_algorithm: str | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_draft_model_path: str | None = None
    enable_linear_replayssm: bool = False
    enable_linear_replayssm_spec: bool = False
    linear_replayssm_cache_len: int = 16
    linear_attn_decode_backend: str | None = None
    disaggregation_mode: str = "null"
    disaggregation_decode_extra_slots: int | None = None
    disaggregation_decode_enable_radix_cache: bool = False
    enable_int8_mamba_checkpoint: bool = False
    int8_mamba_ckpt_size: int | None = None
    enable_hierarchical_cache: bool = False
    hicache_ratio: float | None = None
    hicache_size: int | None = None
    hicache_write_policy: str | None = None
    radix_cache_backend: str | None = None
    enable_lmcache: bool = False
    enable_unified_memory: bool = False
    enable_pd_role_switch: bool = False
    enable_two_batch_overlap: bool = False
    cpu_offload_gb: int = 0
    ep_size: int = 1
    ep_num_redundant_experts: int = 0
    quantization: str | None = None
    moe_dense_tp_size: int | None = None
    moe_a2a_backend: str | None = None
    enable_dp_lm_head: bool = False
    mm_enable_dp_encoder: bool = False
    language_model_only: bool = False
    disable_cuda_graph: bool = False
    disable_prefill_cuda_graph: bool = False
    cuda_graph_backend_prefill: str | None = None
    cuda_graph_max_bs_decode: int | None = None
    cuda_graph_max_bs_prefill: int | None = None
    mm_feature_transport: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    engine_version: str | None = None

    draft_layers: int | None = None
    draft_kv_bytes_per_token: int | None = None
    max_draft_tokens: int | None = None
    speculative_adaptive: bool = False
    platform: str = "cuda"
    gpu_memory_mib: int | None = None
    gpu_capability: str | None = None
    uncounted: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()

    @property
    def attn_dp_size(self) -> int:
        """Data-parallel attention workers; plain data parallelism is separate servers and changes nothing here."""
        return self.dp_size if self.enable_dp_attention else 1

    @property
    def attn_tp_size(self) -> int:
        """Ranks that share one attention (and state) worker. Raises InputError when dp does not divide tp."""
        if self.tp_size % self.attn_dp_size:
            raise InputError(
                f"--dp-size {self.dp_size} does not divide --tp-size {self.tp_size}",
                fix="under --enable-dp-attention the tp ranks are shared out among the dp workers",
                flag="--dp-size",
            )
        return self.tp_size // self.attn_dp_size

    @property
    def memory_ratio(self) -> float:
        """Bytes of state to bytes of KV: --mamba-full-memory-ratio, or what it is where nobody sets it."""
        return DEFAULT_RATIO if self.mamba_full_memory_ratio is None else self.mamba_full_memory_ratio

    @property
    def window_ratio(self) -> float:
        """Tokens of sliding-window layers to tokens of the others, as --swa-full-tokens-ratio or its default."""
        return DEFAULT_WINDOW_RATIO if self.swa_full_tokens_ratio is None else self.swa_full_tokens_ratio

    @property
    def tokens_per_page(self) -> int:
        """KV page size in tokens; 1 where it is not set."""
        return self.page_size or 1

    @property
    def overlap(self) -> bool:
        """Whether the overlap scheduler runs. Pipeline parallelism turns it off, unless the field is False itself:
        that leaves it on, as replays of the pools alone do.
        """
        return not self.disable_overlap_schedule and not self.pipeline_turns_overlap_off

    @property
    def pipeline_turns_overlap_off(self) -> bool:
        """Whether start-up turns the overlap scheduler off because of pipeline stages."""
        return self.pp_size > 1 and self.disable_overlap_schedule is None

    @property
    def skip_decode_lock(self) -> bool:
        """SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK."""
        return is_set(self.env.get("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"))

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the GPU, (10, 0) for "10.0"; None where it is not known. Raises InputError."""
        return None if self.gpu_capability is None else capability_of(self.gpu_capability)

    @property
    def linear_decode_backend(self) -> str:
        """The backend that decodes recurrent layers: FlashInfer on Blackwell for bf16 states, where none is named."""
        named = self.linear_attn_decode_backend
        blackwell = self.capability is not None and self.capability[0] == 10
        if named is None and blackwell and self.mamba_ssm_dtype == "bfloat16" and self.linear_attn_backend != "helion":
            return "flashinfer"
        named = named or self.linear_attn_backend
        return "triton" if named == "flashkda" else named

    @property
    def speculative(self) -> bool:
        """Whether a speculative algorithm is set."""
        return self.speculative_algorithm is not None

    @property
    def radix_cache(self) -> bool:
        """Whether prefixes are cached: off by flag, and on a decode server of a disaggregated pair unless asked for."""
        if self.disable_radix_cache:
            return False
        return self.disaggregation_mode != "decode" or self.disaggregation_decode_enable_radix_cache

    @property
    def most_draft_tokens(self) -> int:
        """D that buffers are allocated for: the adaptive maximum where there is one; 0 without speculation."""
        return max(self.draft_tokens, self.max_draft_tokens or 0) if self.speculative else 0

    @property
    def draft_tokens(self) -> int:
        """D, draft tokens a verification step holds states for; 0 without speculation.

        Drafts in a chain of one branch are steps + 1, whatever is typed. Where nothing is, they are 4 (3 steps), and 12
        of NGRAM. Source: SGLang arg_groups/speculative_hook.py (of classes other than Llama and Grok).
        """
        typed = self.speculative_num_draft_tokens
        if not self.speculative:
            return 0
        if self.speculative_algorithm in CHAINED_DRAFTS:
            if self.speculative_num_steps is not None and self.speculative_eagle_topk == 1:
                return self.speculative_num_steps + 1
            if self.drafts_unset:
                return 4
        return typed or (12 if self.speculative_algorithm == "NGRAM" else 0)

    @property
    def drafts_unset(self) -> bool:
        """Whether nothing says how many steps, branches and drafts there are: the engine then chooses all three."""
        given = self.speculative_num_steps, self.speculative_eagle_topk, self.speculative_num_draft_tokens
        return given == (None, None, None)


def is_set(value: str | None) -> bool:
    """Whether an environment variable that switches something is on, as the engine reads it."""
    return (value or "").strip().lower() in ("1", "true", "yes", "y", "on")


ARGUMENTS = ServerArgs
BOUNDS = Bounds(ServerArgs)
check_arguments = BOUNDS.check


OF_DRAFTS = {
    "--draft-layers": "draft_layers", "--draft-kv-bytes-per-token": "draft_kv_bytes_per_token",
    "--max-draft-tokens": "max_draft_tokens",
}  # fmt: skip
"""Options of a plan that say nothing without speculation, and their fields."""


def check_together(args: ServerArgs) -> None:
    """Raise InputError for arguments that contradict each other, or of which one says nothing without another."""
    algorithm = args.speculative_algorithm
    if algorithm is None:
        alone = {
            DRAFTS: args.speculative_num_draft_tokens,
            **{flag: getattr(args, of) for flag, of in OF_DRAFTS.items()},
        }
        if flag := next((flag for flag, value in alone.items() if value), None):
            raise InputError(f"{flag} has no effect alone", fix="add --speculative-algorithm NAME", flag=flag)
    elif algorithm not in SPECULATIVE_ALGORITHMS:
        modelled = algorithm not in UNMODELLED_ALGORITHMS
        raise (InputError if modelled else NotModelled)(
            f"--speculative-algorithm {quoted(algorithm)} is not {'known' if modelled else 'modelled'}",
            fix=f"write {', '.join(SPECULATIVE_ALGORITHMS)}",
            flag="--speculative-algorithm",
        )
    elif not args.draft_tokens and (algorithm not in CHAINED_DRAFTS or args.speculative_adaptive):
        raise InputError(
            f"--speculative-algorithm {algorithm} needs a number of draft tokens",
            fix="add --speculative-num-draft-tokens D",
            flag="--speculative-algorithm",
        )
    elif args.draft_kv_bytes_per_token is not None and algorithm not in OWN_DRAFT_CELL:
        raise InputError(f"SGLang prices the KV of an {algorithm} draft by its layers", fix="give --draft-layers N")
    _ = args.attn_tp_size  # raises InputError where the workers do not share the ranks evenly


def lacking_of_chain(args: ServerArgs) -> InputError | None:
    """What is wrong where some of steps, branches and drafts stand without the others, and what to write; None where
    nothing is. Later code than the releases known here wants all of them or none, and stops at an assertion (read in a
    copy of arg_groups/speculative_hook.py). An adaptive server has them from its own list.
    """
    if args.speculative_algorithm not in CHAINED_DRAFTS:
        return None
    steps, branches, drafts = args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens
    whole = args.drafts_unset or (steps and branches and args.draft_tokens)
    adaptive = args.speculative_adaptive or args.max_draft_tokens is not None
    if whole or adaptive:
        return None
    given = {flag: number for flag, number in ((STEPS, steps), (BRANCHES, branches), (DRAFTS, drafts)) if number}
    wanted = {STEPS: steps or max(1, (drafts or 4) - 1), BRANCHES: branches or 1}
    wanted |= {DRAFTS: wanted[STEPS] + 1} if wanted[BRANCHES] > 1 else {}
    lacking = {flag: number for flag, number in wanted.items() if flag not in given}
    said = f"{' and '.join(given)} without {' and '.join(lacking)}: SGLang takes all of them or none, and may stop"
    fix = f"add {' '.join(f'{flag} {number}' for flag, number in lacking.items())}, or leave all of them out"
    return InputError(said, fix=fix, flag=next(iter(given)))


def check_chain(args: ServerArgs) -> None:
    """Raise InputError where so little is given that the number of drafts is not known."""
    found = None if args.draft_tokens else lacking_of_chain(args)
    if found is not None:
        raise found


def drop_drafts(args: ServerArgs) -> Drop:
    """The fix that drafts no more: every flag that says how, since most of them are refused alone."""
    said = {
        "--speculative-algorithm": True,
        DRAFTS: args.speculative_num_draft_tokens,
        STEPS: args.speculative_num_steps,
        BRANCHES: args.speculative_eagle_topk,
        "--speculative-draft-model-path": args.speculative_draft_model_path,
        "--speculative-adaptive": args.speculative_adaptive,
    }
    return Drop(*(flag for flag, given in said.items() if given))


class Sglang(Engine):
    """SGLang's server."""

    name, title = "sglang", "SGLang"
    model_flag = "--model-path"
    memory_option = "rest"
    options = frozenset(
        {
            "rest",
            "gpu",
            "weights",
            "avail_before",
            "avail_after",
            "engine_version",
            "platform",
            "draft_layers",
            "draft_kv_bytes_per_token",
            "max_draft_tokens",
            "tp_size",
            "dp_size",
            "enable_dp_attention",
            "dcp_size",
            "kv_cache_dtype",
            "mamba_ssm_dtype",
            "env",
            "pp_size",
            "ep_size",
            "quantization",
        }
    )
    stages = ("arguments", "load", "strategy", "shapes", "ratio", "solve", "tokens", "max_running_requests", "alloc")
    indivisible = ("load", "HC009")
    in_container = ("--host", "0.0.0.0")  # noqa: S104  (of the container)

    def release_with(self, model: "Architecture") -> str:
        """Of the hybrid classes that are listed."""
        from hybridcalc.engines.sglang.releases import LISTED_CLASSES, NEW_CLASSES

        known = LISTED_CLASSES.union(*NEW_CLASSES.values())
        return self.newest if model.architecture in known else ""

    def check_options(self, given: Mapping[str, Any]) -> None:
        """As every engine; and the platform."""
        super().check_options(given)
        platform = given.get("platform")
        if platform is not None:
            from hybridcalc.engines.sglang.flags import PLATFORMS

            if platform not in PLATFORMS:
                raise InputError(f"--platform {quoted(platform)} is not known", fix=f"write {', '.join(PLATFORMS)}")

    def with_options(self, args: ServerArgs, given: Mapping[str, Any]) -> ServerArgs:
        """As every engine; and what a GPU (``gpu``) decides."""
        card: Gpu | None = given.get("gpu")
        if card is not None:
            mib = args.gpu_memory_mib or round(card.gib * 1024)
            args = args.changed(gpu_memory_mib=mib, gpu_capability=args.gpu_capability or card.capability)
            if card.amd and given.get("platform") is None:
                args = args.changed(platform="hip")
        typed = given.get("speculative_algorithm")
        if typed is not None:
            given = {**given, "speculative_algorithm": typed.strip().upper()}
        changed: ServerArgs = super().with_options(args, given)
        return changed

    def changed(self, args: ServerArgs, flags: str) -> ServerArgs:
        """As every engine; a ratio takes the place of a number of slots."""
        found: ServerArgs = super().changed(args, flags)
        return replace(found, max_mamba_cache_size=None) if "--mamba-full-memory-ratio" in flags.split() else found

    def remarks(self, args: ServerArgs, known: Memory) -> list[str]:
        """As every engine."""
        said = super().remarks(args, known)
        if known.rest is not None and args.mem_fraction_static is not None:
            said.append("--rest is given: --mem-fraction-static changes nothing here")
        return said

    def fraction(self, args: ServerArgs) -> dict[str, Any]:
        """As every engine."""
        known = args.mem_fraction_static
        return {"fraction": known, "fraction_from": None if known is None else "--mem-fraction-static"}

    def attention_ranks(self, args: ServerArgs) -> int:
        """As every engine."""
        return args.attn_tp_size

    def server_ranks(self, args: ServerArgs) -> int:
        """As every engine."""
        return args.tp_size * args.pp_size

    def ranks(self, args: ServerArgs) -> int:
        """As every engine; data-parallel workers beside attention workers have ranks of their own."""
        return args.tp_size * args.pp_size * (1 if args.enable_dp_attention else args.dp_size)


ENGINE = Sglang()


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others
    __getattr__ = names_of_modules(__name__, {"Plan": "server_plan", "plan": "server_plan", "resolve": "fraction"})
