"""What does SGLang settle that nobody typed?

A model class brings defaults of its own (SGLang arg_groups/model_overrides/), and a sparse-attention index its pages:
64 pooled keys of ``kpool`` tokens each. Mirrors arg_groups/overrides.py (0.5.23).
"""

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.config import DEFAULT_RATIO, DEFAULT_WINDOW_RATIO, ServerArgs
from hybridcalc.engines.sglang.kv import index_page
from hybridcalc.engines.sglang.releases import RuleSet

INKLING_RATIO = 0.1


def with_defaults(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments with what the model's class and, in early releases, its strategy settle of them; settled ones stay
    as they are.
    """
    if model.architecture.startswith("Inkling"):
        args = _inkling(model.architecture, args, rules)
    indexer = getattr(model.attention, "indexer", None)
    if indexer is not None and args.page_size is None:
        args = args.changed(page_size=index_page(indexer, rules))
    if not rules.automatic_strategy:
        from hybridcalc.engines.sglang.early import settle_early

        return settle_early(model, args, rules)
    return args


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
