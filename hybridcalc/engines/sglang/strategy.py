"""Which radix-cache strategy does SGLang run, and how many state slots does a request hold then?

The engine resolves ``auto`` per model class, refuses what the class or the scheduler cannot do, and only then lets
pipeline parallelism turn the overlap scheduler off. Resolution, in its order:

    class without radix support       stays "auto": no extra buffer, nothing checked; S = 3
    radix cache off                   stays as typed; S = 1
    auto                              extra_buffer if supported and (overlap on or page size > 1), else no_buffer,
                                      which turns the overlap scheduler off

Mirrors arg_groups/overrides.py and mamba_hook.py (0.5.23). Leaves out checks that need arguments not kept here yet
(track interval, disaggregation).
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.config import RuleSet, ServerArgs
from hybridcalc.errors import IllegalCombination
from hybridcalc.formulas.slots import Slots, Strategy, slots_per_request

EXTRA_BUFFER_ARCHITECTURES = frozenset({
    "KimiLinearForCausalLM", "KimiK3ForConditionalGeneration", "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM",
    "Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen4ExpForConditionalGeneration", "NemotronHForCausalLM",
    "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM", "Glm5NextForConditionalGeneration",
    "InklingForConditionalGeneration",
})  # fmt: skip
NO_BUFFER_ONLY_ARCHITECTURES = frozenset({
    "InternS2MobiusForConditionalGeneration", "JetNemotronForCausalLM", "JetVLMForConditionalGeneration",
    "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "ZayaForCausalLM", "GigaChat35ForCausalLM",
})  # fmt: skip
RADIX_ARCHITECTURES = EXTRA_BUFFER_ARCHITECTURES | NO_BUFFER_ONLY_ARCHITECTURES
NOT_EXTRA_BUFFER_IN_0_5_16 = frozenset({
    "KimiK3ForConditionalGeneration", "BailingMoeV3ForCausalLM", "Glm5NextForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen4ExpForConditionalGeneration",
    "InklingForConditionalGeneration",
})  # fmt: skip
EXTRA_BUFFER_PLATFORMS = ("cuda", "musa", "npu", "hip")


class Resolved(NamedTuple):
    """Strategy as the engine resolves it ("auto" where it never does), whether the overlap scheduler is on, and S."""

    strategy: str
    overlap: bool
    slots: Slots


def resolve_strategy(model: Architecture, args: ServerArgs, rules: RuleSet) -> Resolved:
    """Strategy, scheduler and slots per request. Raises IllegalCombination for what the engine refuses."""
    typed = args.mamba_radix_cache_strategy
    if args.disable_radix_cache:
        return Resolved(typed, args.overlap, slots_per_request(Strategy.NO_BUFFER, radix_cache=False))
    if not _uses_radix_cache(model):
        if typed not in ("auto", Strategy.NO_BUFFER):
            raise IllegalCombination(
                f"--mamba-radix-cache-strategy {typed}: SGLang gives {model.architecture} no buffers to keep",
                fix="leave the strategy at auto",
            )
        return Resolved("auto", args.overlap, Slots(3, f"{model.architecture}: the engine leaves auto alone, base 3"))
    supported = _supports_extra_buffer(model, args, rules)
    overlap_asked = not args.disable_overlap_schedule
    strategy, overlap, why = _choose(typed, model, args, supported, overlap_asked)
    _check(strategy, overlap, model, args, rules, supported)
    if args.pp_size > 1 and overlap:
        overlap, why = False, [*why, f"pp {args.pp_size} turns overlap off"]
    slots = slots_per_request(strategy, overlap=overlap, skip_decode_lock=args.skip_decode_lock)
    return Resolved(strategy.value, overlap, Slots(slots.count, "; ".join([slots.reason, *why])))


def _choose(
    typed: str, model: Architecture, args: ServerArgs, supported: bool, overlap: bool
) -> tuple[Strategy, bool, list[str]]:
    if model.architecture == "InklingForConditionalGeneration" and typed == "auto":
        return Strategy.EXTRA_BUFFER, overlap, ["auto: Inkling always takes extra_buffer"]
    if typed != "auto":
        return Strategy(typed), overlap, []
    if supported and (overlap or args.tokens_per_page > 1):
        return Strategy.EXTRA_BUFFER, overlap, [f"auto: {model.architecture} supports it"]
    reason = "without the overlap scheduler" if supported else f"{model.architecture} has no extra buffer"
    return Strategy.NO_BUFFER, False, [f"auto: {reason}, overlap off"]


def _check(
    strategy: Strategy, overlap: bool, model: Architecture, args: ServerArgs, rules: RuleSet, supported: bool
) -> None:
    if strategy is Strategy.NO_BUFFER:
        if args.tokens_per_page != 1:
            raise IllegalCombination(
                f"no_buffer needs --page-size 1, not {args.tokens_per_page}", fix="drop --page-size"
            )
        if overlap:
            raise IllegalCombination(
                "no_buffer does not run under the overlap scheduler",
                fix="add --disable-overlap-schedule, or leave the strategy at auto",
            )
        if args.attention_backend == "trtllm_mha":
            raise IllegalCombination("no_buffer does not run with --attention-backend trtllm_mha", fix="use triton")
        return
    if not supported:
        raise IllegalCombination(
            f"{strategy.value} is not supported for {model.architecture} here", fix="use no_buffer"
        )
    if strategy is Strategy.EXTRA_BUFFER_LAZY and args.speculative and not rules.lazy_with_speculation:
        raise IllegalCombination(
            f"SGLang {rules.version} refuses extra_buffer_lazy with speculation",
            fix="use --mamba-radix-cache-strategy extra_buffer",
        )


def _uses_radix_cache(model: Architecture) -> bool:
    if model.architecture == "GraniteMoeHybridForCausalLM":
        return model.state_layers > 0
    return model.architecture in RADIX_ARCHITECTURES


def _supports_extra_buffer(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    if model.architecture not in EXTRA_BUFFER_ARCHITECTURES or args.linear_attn_backend != "triton":
        return False
    if rules.version == "0.5.16":
        return model.architecture not in NOT_EXTRA_BUFFER_IN_0_5_16
    return args.platform in EXTRA_BUFFER_PLATFORMS
