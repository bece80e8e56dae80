"""When does SGLang replay states instead of keeping draft states, and what do the rings cost the solver?

--enable-linear-replayssm-spec takes effect on KDA models and on the GDN models of Qwen and Jet; elsewhere it is inert
and draft states are kept as if it were not there. KDA rings come with every state slot, GDN rings with every running
request. Mirrors configs/mamba_utils.py, kv_cache_configurator.py and memory_pool.py (0.5.23; 0.5.16 prices no ring).
"""

from hybridcalc.architecture.geometry import Architecture, GatedDeltaNet, KimiDelta, Lightning, Mamba2
from hybridcalc.engines.sglang.config import RuleSet, ServerArgs
from hybridcalc.engines.sglang.pools import Rings
from hybridcalc.engines.sglang.states import SHARDED_OVER_ALL_RANKS, StateSlot, state_slot
from hybridcalc.formulas.replayssm import Ring, gdn_rings, kda_rings, ring_length_problem


def replayssm_active(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    """Whether --enable-linear-replayssm-spec takes effect for this model; it does without speculation too."""
    if not (args.enable_linear_replayssm_spec and rules.replayssm_priced):
        return False
    return isinstance(model.state, KimiDelta) or is_gdn(model)


def is_gdn(model: Architecture) -> bool:
    """Whether SGLang counts the class as GDN: those of Qwen and Jet (GigaChat has the shape, not the class)."""
    return isinstance(model.state, GatedDeltaNet) and model.architecture.startswith(("Qwen", "Jet"))


def decode_rings(model: Architecture, slot: StateSlot, args: ServerArgs, *, slots: int) -> tuple[Ring, ...]:
    """Rings of ReplaySSM decoding: d and k in the SSM dtype, g in float32 and per channel for KDA."""
    rings = replayssm_rings(model, slot._replace(conv_dtype=slot.ssm_dtype), args, slots=slots) or ()
    return tuple(ring for ring in rings if ring.name in ("d", "k", "g"))


def charged_rings(model: Architecture, args: ServerArgs, rules: RuleSet) -> Rings:
    """Ring bytes the solver takes off the state pool; none where ReplaySSM is not active."""
    if not replayssm_active(model, args, rules):
        return Rings()
    size = sum(ring.bytes for ring in replayssm_rings(model, state_slot(model, args), args, slots=1) or ())
    return Rings(per_slot=size) if isinstance(model.state, KimiDelta) else Rings(per_request=size)


def ring_problem(model: Architecture, cache_len: int, draft_tokens: int) -> str:
    """Why the engine would refuse this ring length, empty when it would not: only KDA pools check it (0.5.23)."""
    return ring_length_problem(cache_len, draft_tokens) if isinstance(model.state, KimiDelta) else ""


def replayssm_rings(model: Architecture, slot: StateSlot, args: ServerArgs, *, slots: int) -> tuple[Ring, ...] | None:
    """Rings of ``slots`` slots; None for Inkling, which keeps no temporal state to replay.

    KDA has a form of its own; every other family takes the GDN form with its temporal shape as (Hv, dv, dk) and
    ceil(groups / tp) key heads.
    """
    if model.architecture.startswith("Inkling"):
        return None
    heads, value_dim, key_dim = slot.temporal_shape
    if isinstance(model.state, KimiDelta):
        return kda_rings(
            layers=slot.layers,
            slots=slots,
            heads=heads,
            head_dim=value_dim,
            cache_len=args.linear_replayssm_cache_len,
            conv_dtype=slot.conv_dtype,
        )
    return gdn_rings(
        layers=slot.layers,
        slots=slots,
        v_heads=heads,
        v_head_dim=value_dim,
        k_heads=_ring_key_heads(model, args),
        k_head_dim=key_dim,
        cache_len=args.linear_replayssm_cache_len,
        conv_dtype=slot.conv_dtype,
    )


def _ring_key_heads(model: Architecture, args: ServerArgs) -> int:
    if isinstance(model.state, GatedDeltaNet):
        return -(-model.state.num_k_heads // args.attn_tp_size)
    if isinstance(model.state, Mamba2):
        ranks = args.tp_size if model.architecture in SHARDED_OVER_ALL_RANKS else args.attn_tp_size
        return -(-model.state.n_groups // ranks)
    return 0 if isinstance(model.state, Lightning) else 1
