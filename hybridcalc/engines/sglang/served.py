"""Does a release of SGLang serve a model's class, and does data-parallel attention count there?"""

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import NEW_CLASSES, NEWEST_VERSION, RuleSet
from hybridcalc.errors import Refusal, with_release

ABSENT_CLASSES = frozenset({
    "BambaForCausalLM", "Zamba2ForCausalLM", "JambaForCausalLM", "Plamo2ForCausalLM", "OlmoHybridForCausalLM",
    "LaraMiniForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxForCausalLM",
    "BailingMoeLinearV2ForCausalLM", "Lfm3ForCausalLM", "Inkling2ForConditionalGeneration",
})  # fmt: skip
"""Hybrid classes that no release known here has: no EntryClass in models/ of 0.5.9 and 0.5.23 is called so.

bailing_moe_linear.py registers BailingMoeV2_5ForCausalLM alone: Ring-linear 2.0 runs on its vendor's build of SGLang.
"""


def check_served(rules: RuleSet, model: Architecture) -> None:
    """Raise Refusal for a model whose class the release does not have, or none has."""
    if model.architecture in ABSENT_CLASSES:
        from hybridcalc.engines.elsewhere import elsewhere

        raise Refusal(
            f"SGLang {rules.version} has no class for {model.architecture}, nor has any release known here",
            stage="arguments",
            rule="HC024",
            fix=elsewhere("sglang", model),
        )
    check_model(rules, model.architecture)


def check_model(rules: RuleSet, architecture: str) -> None:
    """Raise Refusal for a model class the release does not have."""
    if architecture in rules.missing_classes:
        first = next(release for release, names in NEW_CLASSES.items() if architecture in names)
        raise Refusal(
            f"SGLang {rules.version} has no class for {architecture} yet: the first release that has it is {first}",
            stage="arguments",
            rule="HC024",
            fix=with_release(NEWEST_VERSION),
            release=NEWEST_VERSION,
        )


def data_parallel_attention(args: ServerArgs, rules: RuleSet) -> bool:
    """Whether data-parallel attention counts, which one worker has switched off only later in a start."""
    return args.enable_dp_attention and (args.dp_size > 1 or rules.single_worker_reserved)
