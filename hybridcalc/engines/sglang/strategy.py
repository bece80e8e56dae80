"""What does start-up settle: defaults of the class and the GPU, the radix-cache strategy, and S, slots of a request?

The engine resolves ``auto`` per model class, refuses what the class, the scheduler or another flag cannot do
(refusals.py), and only then lets pipeline parallelism turn the overlap scheduler off. Resolution, in its order:

    class without radix support       stays "auto": no extra buffer, nothing checked; S = 3
    radix cache off                   stays as typed; S = 1
    auto                              extra_buffer if supported and (overlap on or page size > 1), else no_buffer,
                                      which turns the overlap scheduler off

Before there was an automatic strategy (0.5.9 to 0.5.13), auto is no_buffer, which turns the overlap scheduler off and,
with drafts, the prefix cache (`settle_early`); some classes have no prefix cache at all. Ahead of that a model class
brings defaults of its own; MiniCPM-SALA caches no prefixes.
Which attention backend and which pages serve is settled twice, where they are not given or may not stay. A model class
has its say first (`of_class`), and the strategy is judged on what it says; what is open then, and the pages that a
backend insists on, follow (`of_gpu`):

    Hopper       fa3, for heads with a tree of drafts, or one branch and pages: flashinfer
    Blackwell    heads trtllm_mha (pages of 16 to 128 tokens, else 64), with drafts only where their branches are
                 typed as one; MLA flashinfer; Kimi-K3 trtllm_mla (32 or 64)
    AMD          aiter, but triton for MLA of other than 16 or 128 heads a rank
    others       heads flashinfer, MLA triton

fa3 does not read fp8_e5m2, where triton takes its place. Where the GPU is not known, nothing is settled here but the
pages that an index needs: 64 keys.
Mirrors arg_groups/overrides.py, model_overrides/, model_hook.py (0.5.23), server_args.py (to 0.5.14).
"""

from typing import NamedTuple

from hybridcalc.architecture import Architecture, LatentKV
from hybridcalc.engines.sglang import DEFAULT_RATIO, DEFAULT_WINDOW_RATIO, ServerArgs
from hybridcalc.engines.sglang.kv import DSA_PAGE, index_page
from hybridcalc.engines.sglang.refusals import (
    AUTOMATIC,
    BUFFERED,
    caches_when_judged,
    check_companions,
    check_early_buffers,
    check_extra_buffer,
    check_kernels,
    check_kv_dtype,
    check_no_buffer,
    refused,
)
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import Drop, Either, IllegalCombination, Refusal, Write
from hybridcalc.formulas import Slots, Strategy, slots_per_request

INKLING_RATIO = 0.1
TRITON_ON_BLACKWELL = ("FalconH1", "JetNemotron", "JetVLM")
TRTLLM_WITH_BUFFERS = (
    "Qwen3Next", "Qwen3_5ForConditional", "Qwen3_5MoeForConditional", "Qwen4Exp", "InternS2",
)  # fmt: skip
"""How names of classes begin that bring a backend for Blackwell; the last take TensorRT-LLM's where pages may be 64,
and their pages with it, whatever is typed.
"""
BACKEND_PAGES = {
    "trtllm_mla": (32, 64), "cutedsl_mla": (32, 64), "flashmla": (64,), "dsa": (64,), "cutlass_mla": (128,),
    "hpc_ops": (64,),
}  # fmt: skip
"""Pages that a backend takes, trtllm_mha by release; any other becomes 64, or the only one."""
ANY_PAGE = ("dsa", "cutlass_mla")
"""Backends whose pages are not enforced here."""
AITER_HEADS, AITER_CONTEXT, AITER_SHARE = (16, 128), 8192, 0.85


def with_defaults(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments with what the model's class, the GPU and, in early releases, its strategy settle of them; settled
    ones stay as they are.
    """
    return of_gpu(model, class_defaults(model, args, rules), rules)


def class_defaults(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The same with what is settled before the strategy is, and that is judged on."""
    if model.architecture.startswith("Inkling"):
        args = _inkling(model.architecture, args, rules)
    if model.architecture == "MiniCPMSALAForCausalLM" and model.state is not None:
        args = args.changed(disable_radix_cache=True)
    args = of_class(model, args, rules)
    return args if rules.automatic_strategy else settle_early(model, args, rules)


def _inkling(architecture: str, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    typed = not rules.typed_default_is_unset
    changed = dict[str, object]()
    if args.mamba_full_memory_ratio is None or (args.mamba_full_memory_ratio == DEFAULT_RATIO and not typed):
        changed["mamba_full_memory_ratio"] = INKLING_RATIO
    if args.swa_full_tokens_ratio is None or (args.swa_full_tokens_ratio == DEFAULT_WINDOW_RATIO and not typed):
        changed["swa_full_tokens_ratio"] = INKLING_RATIO
    if args.mamba_radix_cache_strategy == "auto" and architecture == "InklingForConditionalGeneration":
        changed["mamba_radix_cache_strategy"] = "extra_buffer"
    return args.changed(**changed) if changed else args


class Choice(NamedTuple):
    """Strategy as the engine resolves it ("auto" where it never does), whether the overlap scheduler is on, and why."""

    strategy: str
    overlap: bool
    why: tuple[str, ...]


class Resolved(NamedTuple):
    """A strategy with the slots a request holds under it."""

    strategy: str
    overlap: bool
    slots: Slots


def resolve_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Resolved:
    """Strategy and slots per request. Raises Refusal for what the engine does not start with."""

    def resolved(args: ServerArgs) -> Resolved:
        choice = choose_strategy(model, args, rules)
        args = with_defaults(model, args, rules)
        return Resolved(choice.strategy, choice.overlap, slots_of(choice, model, args, rules))

    try:
        return resolved(args)
    except Refusal as refusal:
        from hybridcalc.engines.sglang.mend import mended

        raise mended(refusal, args, resolved) from None


def judged_strategy(model: Architecture, typed: ServerArgs, args: ServerArgs, rules: RuleSet) -> Choice:
    """Strategy and scheduler, of arguments as they are ``typed`` and settled, whose kernels run. Raises Refusal, with a
    fix that would start where there is one.
    """

    def judged(typed: ServerArgs, args: ServerArgs) -> Choice:
        choice = choose_strategy(model, typed, rules)
        check_kernels(model, typed, args, rules)
        return choice

    def starts(changed: ServerArgs) -> Slots:
        settled = with_defaults(model, changed, rules)
        return slots_of(judged(changed, settled), model, settled, rules)

    try:
        return judged(typed, args)
    except Refusal as refusal:
        from hybridcalc.engines.sglang.mend import mended

        raise mended(refusal, typed, starts) from None


def choose_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Choice:
    """Strategy and scheduler of arguments as they are given. Raises Refusal (stage "strategy", or "arguments" for what
    older releases refused there).
    """
    args = class_defaults(model, args, rules)
    check_kv_dtype(args)
    check_companions(model, args, rules)
    choice = _choose(model, args, rules) if rules.automatic_strategy else _choose_early(model, args, rules)
    if args.enable_linear_replayssm or args.enable_linear_replayssm_spec:
        from hybridcalc.engines.sglang.replay import check_replayssm

        check_replayssm(args, choice.strategy, rules)
    return choice


def slots_of(resolved: Choice, model: Architecture, args: ServerArgs, rules: RuleSet) -> Slots:
    """S of a resolved strategy, and why. Raises Refusal (stage "ratio") for lazy buffers without overlap."""
    if not args.radix_cache:
        return slots_per_request(Strategy.NO_BUFFER, radix_cache=False)
    if resolved.strategy == "auto":
        return Slots(3, f"{model.architecture}: the engine leaves auto alone, base 3")
    strategy = Strategy(resolved.strategy)
    if rules.tracked_by_drafts and strategy is Strategy.EXTRA_BUFFER:
        tracking, why = (1, "with") if args.speculative else (2, "without")
        return Slots(3 + tracking, f"extra_buffer {why} drafts: 3 + {tracking}")
    try:
        slots = slots_per_request(
            strategy, overlap=resolved.overlap, skip_decode_lock=args.skip_decode_lock and rules.decode_lock_skip
        )
    except IllegalCombination as error:
        fix: str = Either(Drop("--disable-overlap-schedule"), BUFFERED)
        if not args.disable_overlap_schedule:
            fix = Write(BUFFERED.flag, BUFFERED.value, ": pipeline stages run without overlap")
        raise Refusal(error.message, stage="ratio", rule="HC003", fix=fix) from None
    return Slots(slots.count, "; ".join([slots.reason, *resolved.why]))


def uses_radix_cache(model: Architecture, rules: RuleSet) -> bool:
    """Whether the engine keeps states of this class for prefix reuse."""
    if model.architecture == "GraniteMoeHybridForCausalLM":
        return model.state_layers > 0
    return model.architecture in rules.extra_buffer_classes or model.architecture in rules.no_buffer_classes


def _choose(model: Architecture, args: ServerArgs, rules: RuleSet) -> Choice:
    typed = args.mamba_radix_cache_strategy
    if not args.radix_cache:
        return Choice(typed, args.overlap, ())
    if not uses_radix_cache(model, rules):
        if typed not in ("auto", Strategy.NO_BUFFER):
            if not rules.state_class_checked:
                return Choice(typed, args.overlap, ())
            raise refused(
                "HC003",
                f"{typed} keeps states of a radix cache, which SGLang has not for {model.architecture}",
                AUTOMATIC,
            )
        return Choice(typed, args.overlap, ())
    supported = _supports_extra_buffer(model, args, rules)
    strategy, overlap, why = _automatic(typed, model, args, supported)
    if strategy is Strategy.NO_BUFFER:
        check_no_buffer(overlap, args)
    else:
        check_extra_buffer(strategy, model, args, rules, supported)
    if overlap and args.pipeline_turns_overlap_off:
        overlap, why = False, [*why, f"pp {args.pp_size} turns overlap off"]
    return Choice(strategy.value, overlap, tuple(why))


def _choose_early(model: Architecture, args: ServerArgs, rules: RuleSet) -> Choice:
    """Of releases without an automatic strategy: no_buffer unless another is typed."""
    typed = args.mamba_radix_cache_strategy
    strategy = Strategy.NO_BUFFER if typed == "auto" else Strategy(typed)
    if model.architecture not in rules.prefix_cache_off_classes and uses_radix_cache(model, rules):
        supported = model.architecture in rules.extra_buffer_classes  # whatever the kernels
        check_early_buffers(strategy, model, args, rules, supported)
    return Choice(strategy.value, args.overlap, () if args.radix_cache else ("the prefix cache is off",))


def _automatic(typed: str, model: Architecture, args: ServerArgs, supported: bool) -> tuple[Strategy, bool, list[str]]:
    overlap = not args.disable_overlap_schedule
    if typed != "auto":
        by_class = typed == Strategy.EXTRA_BUFFER and model.architecture.startswith("Inkling")
        return Strategy(typed), overlap, ["Inkling takes it unless told otherwise"] if by_class else []
    if supported and (overlap or args.tokens_per_page > 1):
        return Strategy.EXTRA_BUFFER, overlap, [f"auto: {model.architecture} supports it"]
    reason = "without the overlap scheduler" if supported else f"{model.architecture} has no extra buffer"
    return Strategy.NO_BUFFER, False, [f"auto: {reason}, overlap off"]


def _supports_extra_buffer(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    if model.architecture not in rules.extra_buffer_classes or args.linear_attn_backend != "triton":
        return False
    return args.platform not in rules.unbuffered_platforms


def settle_early(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments as a class and no_buffer settle them; what they refuse is left as it is (refusals.py)."""
    if not caches_when_judged(args, rules):
        return args
    if model.architecture in rules.prefix_cache_off_classes:
        return args.changed(disable_radix_cache=True)
    keeps = model.architecture in rules.extra_buffer_classes or model.architecture in rules.no_buffer_classes
    if model.architecture == "GraniteMoeHybridForCausalLM":
        keeps = model.state_layers > 0
    if not keeps or args.mamba_radix_cache_strategy not in ("auto", "no_buffer"):
        return args
    if rules.single_token_pages and args.tokens_per_page != 1:
        args = args.changed(page_size=1)
    if args.speculative:
        off = not rules.drafts_need_buffers or (args.platform == "hip" and rules.drafts_unrefused_on_amd)
        return args.changed(disable_radix_cache=True) if off else args
    if args.attention_backend == "trtllm_mha":
        return args.changed(disable_radix_cache=True, disable_overlap_schedule=False)
    return args.changed(disable_overlap_schedule=True)


def of_class(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments with what a model class settles of backend, pages and strategy."""
    known, name = args.platform == "cuda" and args.capability is not None, model.architecture
    page = _page_of_index(model, rules)
    if page is not None and (args.page_size is None or known):
        args = args.changed(page_size=page)
    major = args.capability[0] if args.capability is not None else 0
    if known and getattr(model.attention, "indexer", None) is not None:
        return _sparse(args.changed(attention_backend=args.attention_backend or "dsa"), major)
    if not known or args.attention_backend is not None:
        return args
    if name.startswith("Inkling"):
        return args.changed(
            attention_backend="fa4" if major == 10 or (major == 9 and rules.fa4_on_hopper) else "triton"
        )
    if name.startswith("NemotronH"):
        return _nemotron(args, major, rules)
    if major != 10:
        return args
    if name.startswith("KimiK3"):
        return args.changed(attention_backend="trtllm_mla")
    if name.startswith(TRITON_ON_BLACKWELL):
        return args.changed(attention_backend="triton")
    if (name.startswith("GraniteMoeHybrid") and model.state_layers) or name in rules.convolution_classes:
        return args.changed(attention_backend="flashinfer")
    if name.startswith(TRTLLM_WITH_BUFFERS):
        buffered = args.radix_cache and args.mamba_radix_cache_strategy.startswith("extra_buffer")
        pages = not args.radix_cache or buffered or args.speculative
        whole = pages and _default(model, args) == "trtllm_mha"
        return args.changed(
            attention_backend="trtllm_mha" if whole else "triton", page_size=page or (DSA_PAGE if whole else 1)
        )
    return args


def of_gpu(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments with the GPU's backend and pages, where the class left them open or the backend insists on its own;
    on AMD's with the backend alone.
    """
    if args.platform == "hip":
        return args if args.attention_backend else args.changed(attention_backend=_default(model, args))
    if args.platform != "cuda" or args.capability is None:
        return args
    backend, page = args.attention_backend or _default(model, args), args.page_size
    taken = rules.trtllm_mha_pages if backend == "trtllm_mha" else BACKEND_PAGES.get(backend, ())
    if taken and page not in taken and (page is None or backend not in ANY_PAGE):
        page = DSA_PAGE if DSA_PAGE in taken else taken[0]
    tree = (args.speculative_eagle_topk or 0) > 1
    if backend == "fa4" and args.capability[0] == 10 and not isinstance(model.attention, LatentKV) and not tree:
        page = 128
    if backend == "fa3" and args.kv_cache_dtype == "fp8_e5m2":
        backend = "triton"
    return args.changed(attention_backend=backend, page_size=page or 1)


def workspace_share(args: ServerArgs, context_length: int) -> float:
    """What AMD's aiter leaves of the memory fraction, given or not, for contexts beyond 8,192 tokens."""
    return AITER_SHARE if args.attention_backend == "aiter" and context_length > AITER_CONTEXT else 1.0


def _page_of_index(model: Architecture, rules: RuleSet) -> int | None:
    """Tokens of a page that an index of sparse attention needs."""
    indexer = getattr(model.attention, "indexer", None)
    if indexer is not None:
        return index_page(indexer, rules)
    return DSA_PAGE if getattr(model.attention, "compressed", None) is not None else None


def _sparse(args: ServerArgs, major: int) -> ServerArgs:
    """Sparse attention keeps KV in fp8 on Blackwell, in rows that TensorRT-LLM reads, with scales elsewhere."""
    dtype = args.kv_cache_dtype
    if dtype == "auto":
        dtype = "fp8_e4m3" if major >= 10 else "bfloat16"
    if dtype == "fp8_e4m3":
        prefill = decode = "trtllm" if major >= 10 else "flashmla_kv"
    else:
        prefill, decode = "flashmla_sparse", "trtllm" if major >= 10 else "fa3"
    return args.changed(
        kv_cache_dtype=dtype,
        dsa_prefill_backend=args.dsa_prefill_backend or prefill,
        dsa_decode_backend=args.dsa_decode_backend or decode,
    )


def _nemotron(args: ServerArgs, major: int, rules: RuleSet) -> ServerArgs:
    """Nemotron-H on Blackwell of any kind; with drafts of one branch its extra buffers come along."""
    if not rules.nemotron_by_drafts:
        return args.changed(attention_backend="flashinfer") if major == 10 else args
    if major not in (10, 12) or not (args.speculative or major == 10):
        return args
    if args.speculative and (major == 12 or args.speculative_eagle_topk not in (None, 1)):
        return args.changed(attention_backend="triton")
    if not args.speculative:
        return args.changed(attention_backend="trtllm_mha")
    strategy = args.mamba_radix_cache_strategy
    return args.changed(
        attention_backend="trtllm_mha",
        page_size=args.page_size or DSA_PAGE,
        mamba_radix_cache_strategy="extra_buffer" if strategy == "auto" else strategy,
    )


def _default(model: Architecture, args: ServerArgs) -> str:
    """The backend of a GPU for heads or latent rows."""
    major, latent = args.capability[0] if args.capability is not None else 0, isinstance(model.attention, LatentKV)
    if args.platform == "hip":
        heads = (model.num_attention_heads or 0) // args.tp_size
        return "triton" if latent and heads not in AITER_HEADS else "aiter"
    if latent:
        return {9: "fa3", 10: "flashinfer"}.get(major, "triton")
    topk = args.speculative_eagle_topk
    chain = topk is None or (topk == 1 and args.page_size in (None, 1))
    if major == 9 and chain:
        return "fa3"
    named = not args.speculative or topk is not None or args.speculative_algorithm == "DFLASH"
    return "trtllm_mha" if major == 10 and chain and named else "flashinfer"
