"""Which radix-cache strategy does SGLang run, and how many state slots does a request hold then?

The engine resolves ``auto`` per model class, refuses what the class, the scheduler or another flag cannot do
(refusals.py), and only then lets pipeline parallelism turn the overlap scheduler off. Resolution, in its order:

    class without radix support       stays "auto": no extra buffer, nothing checked; S = 3
    radix cache off                   stays as typed; S = 1
    auto                              extra_buffer if supported and (overlap on or page size > 1), else no_buffer,
                                      which turns the overlap scheduler off

Before there was an automatic strategy, auto is no_buffer, which settles other flags instead (early.py).
Mirrors arg_groups/overrides.py, model_hook.py (0.5.23), server_args.py _handle_mamba_radix_cache (to 0.5.14).
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.defaults import with_defaults
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
from hybridcalc.formulas.slots import Slots, Strategy, slots_per_request


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
    args = with_defaults(model, args, rules)
    choice = choose_strategy(model, args, rules)
    return Resolved(choice.strategy, choice.overlap, slots_of(choice, model, args, rules))


def choose_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Choice:
    """Strategy and scheduler of settled arguments. Raises Refusal (stage "strategy", or "arguments" for what older
    releases refused there).
    """
    check_kv_dtype(args)
    check_companions(model, args)
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
        return Choice("auto", args.overlap, ())
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
