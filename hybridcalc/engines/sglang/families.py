"""What does SGLang do with the states of each family of recurrent layers?

A row for each family that it runs, and one for models without a state. Source: configs/mamba_utils.py,
mem_cache/memory_pool.py (0.5.23).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from hybridcalc.architecture.families import rule_for
from hybridcalc.architecture.geometry import Architecture


class FamilyRule(NamedTuple):
    """``kimi_pool``: the pool is the one of KimiLinearCacheParams, which keeps (rows, width) windows, whole windows of
    drafts, and ReplaySSM rings for every slot, whose length it checks; the pool of Mamba2CacheParams keeps (width,
    rows), overlapping windows of drafts, and rings for running requests. ``replayed``: how names of the classes begin
    that --enable-linear-replayssm-spec takes effect on. ``key_heads``: key heads of a ring, over all ranks.
    """

    kimi_pool: bool = False
    replayed: tuple[str, ...] = ()
    key_heads: Callable[[Any], int] = lambda state: 1


ALL_CLASSES = ("",)

FAMILY_RULES = {
    "gdn": FamilyRule(replayed=("Qwen", "Jet"), key_heads=lambda state: state.num_k_heads),
    "kda": FamilyRule(kimi_pool=True, replayed=ALL_CLASSES, key_heads=lambda state: state.num_heads),
    "mamba2": FamilyRule(key_heads=lambda state: state.n_groups),
    "mamba1": FamilyRule(),
    "lightning": FamilyRule(key_heads=lambda state: 0),
    "shortconv": FamilyRule(),
    "attention": FamilyRule(),
}


def family_rule(model: Architecture) -> FamilyRule:
    """What SGLang does with the family of ``model``. Raises UnknownFamily for one that it has no rule for."""
    return rule_for(model.family, FAMILY_RULES, "SGLang")
