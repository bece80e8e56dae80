"""Which tensors does vLLM keep for each family of recurrent layers, and what does it do with them in its own way?

A row for each family that it runs. Per layer and rank, S speculative tokens widen the convolution window by S rows
(Mamba1 excepted; in 0.22 KDA and short convolutions too). Windows are (rows, width). Divisors are the engine's own: GDN
replicates no groups, Mamba2 takes no ranks that neither divide its groups nor share one, lightning rounds down.
Mirrors model_executor/layers/mamba/mamba_utils.py (0.33.0).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture.families import rule_for, shard_groups
from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import ShardingError

if TYPE_CHECKING:
    from hybridcalc.architecture.families.gdn import GatedDeltaNet
    from hybridcalc.architecture.families.kda import KimiDelta
    from hybridcalc.architecture.families.lightning import Lightning
    from hybridcalc.architecture.families.mamba1 import Mamba1
    from hybridcalc.architecture.families.mamba2 import Mamba2
    from hybridcalc.architecture.families.shortconv import ShortConv


class Layer(NamedTuple):
    """One layer's state on a rank, in elements: convolution windows as (rows, width), and the temporal state."""

    windows: tuple[tuple[int, int], ...]
    temporal: tuple[int, ...] = ()


class FamilyRule(NamedTuple):
    """``backend``: name of the state backend. ``layer``: the state for (sizes, ranks, draft tokens, release's rules).

    ``ssm_dtype``: the temporal state has a dtype of its own; without one it is in the convolution's. ``kernel_dtypes``:
    values of --mamba-ssm-cache-dtype that the kernels take, where they do not take all; such a state is float32 unless
    the class obeys the flag, and the class sizes the page by the flag in any case. ``pages_omit_drafts``: the class
    sizes the page without the rows of drafts. ``replays_drafts``: ReplaySSM with speculation has no more conditions.
    ``rings``: the shapes of ReplaySSM's x, dt and B rings for (sizes, ranks, steps).
    """

    backend: str
    layer: Callable[[Any, int, int, RuleSet], Layer]
    ssm_dtype: bool = True
    kernel_dtypes: tuple[str, ...] = ()
    pages_omit_drafts: bool = False
    replays_drafts: bool = False
    rings: Callable[[Any, int, int], tuple[tuple[int, ...], ...]] | None = None


def family_rule(model: Architecture) -> FamilyRule:
    """What vLLM does with the family of ``model``, which has one. Raises UnknownFamily where it has no rule for it."""
    return rule_for(model.family, FAMILY_RULES, "vLLM")


def _gdn(state: "GatedDeltaNet", tp: int, drafts: int, rules: RuleSet) -> Layer:
    channels = 2 * state.k_head_dim * state.num_k_heads + state.v_head_dim * state.num_v_heads
    window = (state.conv_kernel - 1 + drafts, _divide(channels, tp))
    return Layer((window,), (_divide(state.num_v_heads, tp), state.v_head_dim, state.k_head_dim))


def _kda(state: "KimiDelta", tp: int, drafts: int, rules: RuleSet) -> Layer:
    part = _divide(state.num_heads * state.head_dim, tp)
    windows: tuple[tuple[int, int], ...] = ((state.conv_kernel - 1 + drafts, 3 * part),)
    if not rules.kda_draft_rows:
        windows = ((state.conv_kernel - 1, part),) * 3
    return Layer(windows, (_divide(state.num_heads, tp), state.head_dim, state.head_dim))


def _mamba2(state: "Mamba2", tp: int, drafts: int, rules: RuleSet) -> Layer:
    if state.n_groups % tp and state.n_groups != 1:
        raise ShardingError(
            f"vLLM runs {state.n_groups} Mamba2 groups only on rank counts that divide them, not {tp}",
            total=state.n_groups,
            parts=tp,
        )
    width = _divide(state.inner_size + 2 * shard_groups(state.n_groups, tp) * state.state_size, tp)
    return Layer(
        ((state.conv_kernel - 1 + drafts, width),), (_divide(state.num_heads, tp), state.head_dim, state.state_size)
    )


def _mamba2_rings(state: "Mamba2", tp: int, steps: int) -> tuple[tuple[int, ...], ...]:
    heads, groups = _divide(state.num_heads, tp), shard_groups(state.n_groups, tp) // tp
    return (heads, steps, state.head_dim), (heads, steps), (groups, steps, state.state_size)


def _mamba1(state: "Mamba1", tp: int, drafts: int, rules: RuleSet) -> Layer:
    width = _divide(state.inner_size, tp)
    return Layer(((state.conv_kernel - 1, width),), (width, state.state_size))


def _lightning(state: "Lightning", tp: int, drafts: int, rules: RuleSet) -> Layer:
    return Layer((), (state.num_heads // tp, state.head_dim, state.head_dim))


def _shortconv(state: "ShortConv", tp: int, drafts: int, rules: RuleSet) -> Layer:
    more = drafts if rules.shortconv_draft_rows else 0
    return Layer(tuple((stream.rows + more, _divide(stream.width, tp)) for stream in state.streams))


def _divide(total: int, tp: int) -> int:
    if total % tp:
        raise ShardingError(f"tensor parallel size {tp} does not divide {total:,}", total=total, parts=tp)
    return total // tp


FAMILY_RULES = {
    "gdn": FamilyRule("GDN_ATTN", _gdn),
    "kda": FamilyRule("GDN_ATTN", _kda, kernel_dtypes=("auto", "float32", "bfloat16"), replays_drafts=True),
    "mamba2": FamilyRule("MAMBA2_ATTN", _mamba2, rings=_mamba2_rings),
    "mamba1": FamilyRule("MAMBA1_ATTN", _mamba1),
    "lightning": FamilyRule("LINEAR_ATTN", _lightning, ssm_dtype=False),
    "shortconv": FamilyRule("SHORT_CONV_ATTN", _shortconv, ssm_dtype=False, pages_omit_drafts=True),
}
