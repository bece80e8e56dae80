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
What the GPU settles is in backends.py.
Mirrors arg_groups/overrides.py, model_overrides/, model_hook.py (0.5.23), server_args.py (to 0.5.14).
"""

from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import DEFAULT_RATIO, DEFAULT_WINDOW_RATIO, ServerArgs
from hybridcalc.engines.sglang.backends import of_class, of_gpu
from hybridcalc.engines.sglang.refusals import (
    check_companions,
    check_early_buffers,
    check_extra_buffer,
    check_kv_dtype,
    check_no_buffer,
    check_replayssm,
    refused,
)
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import IllegalCombination, Refusal
from hybridcalc.formulas import Slots, Strategy, slots_per_request

INKLING_RATIO = 0.1


def with_defaults(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments with what the model's class, the GPU and, in early releases, its strategy settle of them; settled
    ones stay as they are.
    """
    return of_gpu(model, class_defaults(model, args, rules))


def class_defaults(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The same with what is settled before the strategy is, and that is judged on."""
    if model.architecture.startswith("Inkling"):
        args = _inkling(model.architecture, args, rules)
    if model.architecture == "MiniCPMSALAForCausalLM" and model.state is not None and not args.pools_alone:
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
    choice = choose_strategy(model, args, rules)
    args = with_defaults(model, args, rules)
    return Resolved(choice.strategy, choice.overlap, slots_of(choice, model, args, rules))


def choose_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Choice:
    """Strategy and scheduler of arguments as they are given. Raises Refusal (stage "strategy", or "arguments" for what
    older releases refused there).
    """
    args = class_defaults(model, args, rules)
    check_kv_dtype(args)
    check_companions(model, args, rules)
    choice = _choose(model, args, rules) if rules.automatic_strategy else _choose_early(model, args, rules)
    check_replayssm(args, choice.strategy)
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
        fix = error.fix
        if not args.disable_overlap_schedule:
            fix = "use --mamba-radix-cache-strategy extra_buffer: pipeline stages run without overlap"
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
                "leave --mamba-radix-cache-strategy at auto",
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
        supported = model.architecture in rules.extra_buffer_classes and args.linear_attn_backend == "triton"
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
    if not args.radix_cache:
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
        off = not rules.drafts_need_buffers or args.platform == "hip"
        return args.changed(disable_radix_cache=True) if off else args
    if args.attention_backend == "trtllm_mha":
        return args.changed(disable_radix_cache=True, disable_overlap_schedule=False)
    return args.changed(disable_overlap_schedule=True)
