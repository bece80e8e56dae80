"""Which radix-cache strategy does SGLang run, and how many state slots does a request hold then?

The engine resolves ``auto`` per model class, refuses what the class, the scheduler or another flag cannot do, and only
then lets pipeline parallelism turn the overlap scheduler off. Resolution, in its order:

    class without radix support       stays "auto": no extra buffer, nothing checked; S = 3
    radix cache off                   stays as typed; S = 1
    auto                              extra_buffer if supported and (overlap on or page size > 1), else no_buffer,
                                      which turns the overlap scheduler off

Mirrors arg_groups/overrides.py, model_hook.py, mamba_hook.py and attention_hook.py (0.5.23).
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.kv import LatentKV
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.kv import DSA_PAGE
from hybridcalc.engines.sglang.releases import EXTRA_BUFFER, RuleSet
from hybridcalc.engines.sglang.replayssm import ring_problem
from hybridcalc.engines.sglang.states import family_rule
from hybridcalc.errors import IllegalCombination, Refusal
from hybridcalc.formulas.slots import Slots, Strategy, slots_per_request

NO_BUFFER_ONLY_ARCHITECTURES = frozenset({
    "InternS2MobiusForConditionalGeneration", "JetNemotronForCausalLM", "JetVLMForConditionalGeneration",
    "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "ZayaForCausalLM", "GigaChat35ForCausalLM",
})  # fmt: skip
RADIX_ARCHITECTURES = EXTRA_BUFFER | NO_BUFFER_ONLY_ARCHITECTURES
FIXED_CHUNKS = {
    "MambaForCausalLM": 256, "FalconMambaForCausalLM": 256, "Lfm2ForCausalLM": 1, "Lfm2MoeForCausalLM": 1,
    "ZayaForCausalLM": 1, "InklingForConditionalGeneration": 64,
}  # fmt: skip
DEFAULT_CHUNK = 64
UNIFIED_SPECULATION = ("DSPARK", "DFLASH", "EAGLE", "EAGLE3")
REPLAY_BACKENDS = (None, "triton", "flashinfer")
DECODE_REPLAY_BACKENDS = (None, "triton", "helion")


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


class Unbuildable(NamedTuple):
    """Why pools are refused: the rule, the reason, and what to write; ``states_built``: the states stand by then."""

    rule: str
    reason: str
    fix: str
    states_built: bool = False

    def refusal(self) -> Refusal:
        """The refusal, to be raised at its stage."""
        return Refusal(self.reason, stage="alloc", rule=self.rule, fix=self.fix)


def resolve_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Resolved:
    """Strategy and slots per request. Raises Refusal for what the engine does not start with."""
    choice = choose_strategy(model, args, rules)
    return Resolved(choice.strategy, choice.overlap, slots_of(choice, model, args))


def choose_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Choice:
    """Strategy and scheduler. Raises Refusal (stage "strategy", or "arguments" for what 0.5.16 refused there)."""
    _check_replayssm(args)
    _check_companions(model, args)
    typed = args.mamba_radix_cache_strategy
    if not args.radix_cache:
        return Choice(typed, args.overlap, ())
    if not uses_radix_cache(model):
        if typed not in ("auto", Strategy.NO_BUFFER):
            if not rules.state_class_checked:
                return Choice(typed, args.overlap, ())
            raise _refusal(
                "HC003",
                f"{typed} keeps states of a radix cache, which SGLang has not for {model.architecture}",
                "leave --mamba-radix-cache-strategy at auto",
            )
        return Choice("auto", args.overlap, ())
    supported = _supports_extra_buffer(model, args, rules)
    strategy, overlap, why = _choose(typed, model, args, supported)
    if strategy is Strategy.NO_BUFFER:
        _check_no_buffer(overlap, args)
    else:
        _check_extra_buffer(strategy, model, args, rules, supported)
    if overlap and args.pipeline_turns_overlap_off:
        overlap, why = False, [*why, f"pp {args.pp_size} turns overlap off"]
    return Choice(strategy.value, overlap, tuple(why))


def slots_of(resolved: Choice, model: Architecture, args: ServerArgs) -> Slots:
    """S of a resolved strategy, and why. Raises Refusal (stage "ratio") for lazy buffers without overlap."""
    if not args.radix_cache:
        return slots_per_request(Strategy.NO_BUFFER, radix_cache=False)
    if resolved.strategy == "auto":
        return Slots(3, f"{model.architecture}: the engine leaves auto alone, base 3")
    try:
        slots = slots_per_request(
            Strategy(resolved.strategy), overlap=resolved.overlap, skip_decode_lock=args.skip_decode_lock
        )
    except IllegalCombination as error:
        fix = error.fix
        if not args.disable_overlap_schedule:
            fix = "use --mamba-radix-cache-strategy extra_buffer: pipeline stages run without overlap"
        raise Refusal(error.message, stage="ratio", rule="HC003", fix=fix) from None
    return Slots(slots.count, "; ".join([slots.reason, *resolved.why]))


def uses_radix_cache(model: Architecture) -> bool:
    """Whether the engine keeps states of this class for prefix reuse."""
    if model.architecture == "GraniteMoeHybridForCausalLM":
        return model.state_layers > 0
    return model.architecture in RADIX_ARCHITECTURES


def chunk_size(model: Architecture) -> int:
    """Tokens of one chunk of the recurrent kernel, which pages must divide or be divided by."""
    return FIXED_CHUNKS.get(model.architecture) or model.chunk_size or DEFAULT_CHUNK


def unbuildable(model: Architecture, args: ServerArgs, *, replay_active: bool) -> Unbuildable | None:
    """What the engine refuses of the pools, which it only sees once they are sized: states first, then pages of KV."""
    if args.speculative and args.enable_linear_replayssm_spec:
        if args.speculative_algorithm in ("DSPARK", "DFLASH") and not family_rule(model).kimi_pool:
            return Unbuildable(
                "HC006",
                f"ReplaySSM verification under {args.speculative_algorithm} needs a KDA model",
                "drop --enable-linear-replayssm-spec",
            )
        if replay_active:
            problem = ring_problem(model, args.linear_replayssm_cache_len, args.most_draft_tokens)
            if problem:
                return Unbuildable("HC006", problem, "change --linear-replayssm-cache-len")
    if model.ple_conv is not None and args.enable_int8_mamba_checkpoint:
        return Unbuildable(
            "HC007", "int8 checkpoints do not hold per-layer-embedding states", "drop --enable-int8-mamba-checkpoint"
        )
    indexer = getattr(model.attention, "indexer", None)
    if indexer is not None and args.tokens_per_page // indexer.kpool != DSA_PAGE:
        page = DSA_PAGE * indexer.kpool
        interval = f" --mamba-track-interval {page}" if args.mamba_track_interval % page else ""
        return Unbuildable(
            "HC004",
            f"the sparse-attention index needs pages of 64 pooled tokens, {indexer.kpool} to one, not pages of "
            f"{args.tokens_per_page}",
            f"write --page-size {page}{interval}",
            states_built=True,
        )
    return None


def check_pools(model: Architecture, args: ServerArgs, *, replay_active: bool = False) -> None:
    """Raise Refusal for pools that the engine refuses, for questions that size none."""
    problem = unbuildable(model, args, replay_active=replay_active)
    if problem is not None:
        raise problem.refusal()


def _choose(typed: str, model: Architecture, args: ServerArgs, supported: bool) -> tuple[Strategy, bool, list[str]]:
    overlap = not args.disable_overlap_schedule
    if model.architecture == "InklingForConditionalGeneration" and typed == "auto":
        return Strategy.EXTRA_BUFFER, overlap, ["auto: Inkling always takes extra_buffer"]
    if typed != "auto":
        return Strategy(typed), overlap, []
    if supported and (overlap or args.tokens_per_page > 1):
        return Strategy.EXTRA_BUFFER, overlap, [f"auto: {model.architecture} supports it"]
    reason = "without the overlap scheduler" if supported else f"{model.architecture} has no extra buffer"
    return Strategy.NO_BUFFER, False, [f"auto: {reason}, overlap off"]


def _check_no_buffer(overlap: bool, args: ServerArgs) -> None:
    if args.tokens_per_page != 1:
        raise _refusal("HC004", f"no_buffer needs --page-size 1, not {args.tokens_per_page}", "drop --page-size")
    if overlap:
        raise _refusal(
            "HC003",
            "no_buffer does not run under the overlap scheduler",
            "add --disable-overlap-schedule, or leave the strategy at auto",
        )
    if args.attention_backend == "trtllm_mha":
        raise _refusal(
            "HC003", "no_buffer does not run with --attention-backend trtllm_mha", "use triton", "--attention-backend"
        )


def _check_extra_buffer(
    strategy: Strategy, model: Architecture, args: ServerArgs, rules: RuleSet, supported: bool
) -> None:
    """The engine's checks, in its order."""
    if not supported:
        raise _refusal("HC003", f"{strategy.value} is not supported for {model.architecture} here", "use no_buffer")
    lazy, page, interval = strategy is Strategy.EXTRA_BUFFER_LAZY, args.tokens_per_page, args.mamba_track_interval
    if lazy and args.disaggregation_mode != "null" and rules.lazy_refused_under_disaggregation:
        raise _refusal(
            "HC003",
            "extra_buffer_lazy does not run on disaggregated servers",
            "use --mamba-radix-cache-strategy extra_buffer",
        )
    if lazy and args.speculative and not rules.lazy_with_speculation:
        raise Refusal(
            f"SGLang {rules.version} refuses extra_buffer_lazy with speculation",
            stage="arguments",
            rule="HC003",
            fix="use --mamba-radix-cache-strategy extra_buffer",
        )
    if args.enable_linear_replayssm_spec and not rules.replayssm_with_extra_buffer:
        raise Refusal(
            f"SGLang {rules.version} refuses ReplaySSM verification with extra buffers",
            stage="arguments",
            rule="HC006",
            fix="use --mamba-radix-cache-strategy no_buffer",
        )
    if interval < args.draft_tokens:
        raise _refusal(
            "HC005",
            f"--mamba-track-interval {interval} is below the {args.draft_tokens} draft tokens of a step",
            f"write at least {args.draft_tokens}",
        )
    if interval % page:
        raise _refusal(
            "HC005",
            f"--mamba-track-interval {interval} is no multiple of --page-size {page}",
            f"write --mamba-track-interval {-(-interval // page) * page}",
        )
    chunk = chunk_size(model)
    if max(chunk, page) % min(chunk, page):
        raise _refusal(
            "HC004",
            f"--page-size {page} neither divides the kernel's chunk of {chunk} tokens nor is a multiple of it",
            f"write --page-size {chunk}",
        )


def _check_replayssm(args: ServerArgs) -> None:
    """What ReplaySSM does not run with, in decoding and in verification."""
    if args.enable_linear_replayssm and args.enable_linear_replayssm_spec:
        raise _refusal(
            "HC006", "--enable-linear-replayssm and --enable-linear-replayssm-spec exclude each other", "drop one"
        )
    if args.enable_linear_replayssm:
        if args.linear_attn_decode_backend not in DECODE_REPLAY_BACKENDS:
            raise _refusal(
                "HC006",
                f"ReplaySSM decoding does not run on the {args.linear_attn_decode_backend} backend",
                "use --linear-attn-decode-backend triton",
                "--linear-attn-decode-backend",
            )
        if args.mamba_radix_cache_strategy.startswith("extra_buffer"):
            raise _refusal("HC006", "ReplaySSM decoding does not run with extra buffers", "use no_buffer")
        if args.disaggregation_mode != "null":
            raise _refusal(
                "HC006", "ReplaySSM decoding does not run on disaggregated servers", "drop --enable-linear-replayssm"
            )
    if args.enable_linear_replayssm_spec:
        if args.speculative_eagle_topk not in (None, 1):
            raise _refusal(
                "HC006",
                f"ReplaySSM verification needs a linear draft chain, not topk {args.speculative_eagle_topk}",
                "use --speculative-eagle-topk 1",
            )
        if args.linear_attn_decode_backend not in REPLAY_BACKENDS:
            raise _refusal(
                "HC006",
                f"ReplaySSM verification does not run on the {args.linear_attn_decode_backend} backend",
                "use triton or flashinfer",
                "--linear-attn-decode-backend",
            )
        if args.disaggregation_mode == "prefill":
            raise _refusal(
                "HC006", "ReplaySSM verification does not run on prefill servers", "drop --enable-linear-replayssm-spec"
            )


def _check_companions(model: Architecture, args: ServerArgs) -> None:
    """What int8 checkpoints and unified memory do not run beside."""
    others = {
        "--enable-hierarchical-cache": args.enable_hierarchical_cache,
        "--radix-cache-backend": args.radix_cache_backend is not None,
        "--enable-lmcache": args.enable_lmcache,
    }
    beside = next((flag for flag, given in others.items() if given), None)
    if args.enable_int8_mamba_checkpoint and beside is not None:
        raise _refusal("HC007", f"int8 checkpoints do not run with {beside}", "drop --enable-int8-mamba-checkpoint")
    if not args.enable_unified_memory:
        return
    problems = {
        "on disaggregated servers": args.disaggregation_mode != "null",
        "with --enable-lmcache": args.enable_lmcache,
        "with --enable-two-batch-overlap": args.enable_two_batch_overlap,
        "with fp4 KV": args.kv_cache_dtype.startswith("fp4"),
        "under context parallelism without MLA": args.dcp_size > 1 and not isinstance(model.attention, LatentKV),
        "with this kind of speculation": args.speculative
        and (args.speculative_algorithm not in UNIFIED_SPECULATION or args.speculative_eagle_topk not in (None, 1)),
    }
    problem = next((words for words, given in problems.items() if given), None)
    if problem is not None:
        raise _refusal("HC008", f"unified memory does not run {problem}", "drop --enable-unified-memory")


def _supports_extra_buffer(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    if model.architecture not in rules.extra_buffer_classes or args.linear_attn_backend != "triton":
        return False
    return not rules.extra_buffer_platforms or args.platform in rules.extra_buffer_platforms


def _refusal(rule: str, reason: str, fix: str, flag: str = "") -> Refusal:
    return Refusal(reason, stage="strategy", rule=rule, fix=fix, flag=flag)
