"""When does SGLang replay states instead of keeping draft states, and what do the rings cost the solver?

--enable-linear-replayssm-spec takes effect on KDA models and on the GDN models of Qwen and Jet; elsewhere it is inert
and draft states are kept as if it were not there. KDA rings come with every state slot, GDN rings with every running
request. Mirrors configs/mamba_utils.py, kv_cache_configurator.py and memory_pool.py (0.5.23; 0.5.16 prices no ring).
"""

from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.pools import Rings
from hybridcalc.engines.sglang.releases import RuleSet, check_model, rules_for
from hybridcalc.engines.sglang.states import StateSlot, family_rule, replayed, replayssm_active, state_ranks, state_slot
from hybridcalc.errors import InputError
from hybridcalc.formulas import Ring, replay_rings, ring_length_problem


def decode_rings(model: Architecture, slot: StateSlot, args: ServerArgs, *, slots: int) -> tuple[Ring, ...]:
    """Rings of ReplaySSM decoding: d and k in the SSM dtype, g in float32 and per channel for KDA."""
    rings = replayssm_rings(model, slot._replace(conv_dtype=slot.ssm_dtype), args, slots=slots) or ()
    return tuple(ring for ring in rings if ring.name in ("d", "k", "g"))


def ring_bytes(model: Architecture, slot: StateSlot, args: ServerArgs, rules: RuleSet) -> int | None:
    """Ring bytes of one slot over all layers, active or not; None where there is no state to replay."""
    rings = replayssm_rings(model, slot, args, slots=1, window=rules.rings_of_drafts)
    return None if rings is None else sum(ring.bytes for ring in rings)


def rings_per_slot(model: Architecture, rules: RuleSet) -> bool:
    """Whether verification keeps rings with every slot, and not with the running requests alone."""
    return family_rule(model).kimi_pool or rules.rings_of_drafts


def ring_length(model: Architecture, args: ServerArgs, rules: RuleSet) -> int:
    """Steps a ring of verification keeps: as given, or the most drafts."""
    if rules.rings_of_drafts and not family_rule(model).kimi_pool and args.most_draft_tokens:
        return args.most_draft_tokens
    return args.linear_replayssm_cache_len


def charged_rings(model: Architecture, slot: StateSlot, args: ServerArgs, rules: RuleSet) -> Rings:
    """Ring bytes over all layers that the solver takes off the state pool; none where ReplaySSM is not active."""
    rings = verification_rings(model, slot, args, rules, slots=1) if replayssm_active(model, args, rules) else None
    if rings is None:
        return Rings()
    size = sum(ring.bytes for ring in rings)
    return Rings(per_slot=size) if rings_per_slot(model, rules) else Rings(per_request=size)


def ring_problem(model: Architecture, cache_len: int, draft_tokens: int) -> str:
    """Why the engine would refuse this ring length, empty when it would not: only KDA pools check it (0.5.23)."""
    return ring_length_problem(cache_len, draft_tokens) if family_rule(model).kimi_pool else ""


def verification_rings(
    model: Architecture, slot: StateSlot, args: ServerArgs, rules: RuleSet, *, slots: int
) -> tuple[Ring, ...] | None:
    """Rings of verification in a release, for ``slots`` slots; None where there is nothing to replay."""
    length = ring_length(model, args, rules)
    return replayssm_rings(model, slot, args, slots=slots, length=length, window=rules.rings_of_drafts)


def replayssm_rings(
    model: Architecture,
    slot: StateSlot,
    args: ServerArgs,
    *,
    slots: int,
    length: int | None = None,
    window: bool = False,
) -> tuple[Ring, ...] | None:
    """Rings of ``slots`` slots, ``length`` steps long (as given where it is None); None without a temporal state to
    replay, as for Inkling.

    The pool of KDA keeps the inputs of its steps; every other family takes the form of GDN, a ``window`` of inputs in
    the releases that had one, with its temporal shape as (Hv, dv, dk) and ceil(groups / ranks) key heads.
    """
    if model.state is None or model.architecture.startswith("Inkling"):
        return None
    heads, value_dim, key_dim = slot.temporal_shape
    rule = family_rule(model)
    return replay_rings(
        "inputs" if rule.kimi_pool else "window" if window else "pairs",
        layers=slot.layers,
        slots=slots,
        v_heads=heads,
        v_head_dim=value_dim,
        k_heads=-(-rule.key_heads(model.state) // state_ranks(model, args)),
        k_head_dim=key_dim,
        cache_len=args.linear_replayssm_cache_len if length is None else length,
        conv_dtype=slot.conv_dtype,
    )


def rings_answer(model: Architecture, args: ServerArgs, slots: int, draft_tokens: int) -> dict[str, Any]:
    """The keys of ``replayssm --json``: every ring of ``slots`` slots, and whether the ring length is legal.

    Raises Refusal for a class that the release lacks, InputError for a model with nothing to replay.
    """
    rules, _ = rules_for(args.engine_version)
    check_model(rules, model.architecture)
    rings = verification_rings(model, state_slot(model, args), args, rules, slots=slots)
    if rings is None:
        raise InputError(f"{model.name} keeps no temporal state: there is nothing to replay")
    if not replayed(model):
        rings = ()  # the flag is inert there
    total = sum(ring.bytes for ring in rings)
    problem = ring_problem(model, args.linear_replayssm_cache_len, draft_tokens)
    return {
        "model": model.name,
        "family": model.family,
        "cache_len": args.linear_replayssm_cache_len,
        "draft_tokens": draft_tokens or None,
        "slots": slots,
        "buffers": [{"name": r.name, "shape": list(r.shape), "dtype": r.dtype, "bytes": r.bytes} for r in rings],
        "total_bytes": total,
        "ring_bytes_per_slot": total // slots,
        "legal": not problem,
        "reason": problem or _why_legal(model, args, draft_tokens),
    }


def _why_legal(model: Architecture, args: ServerArgs, draft_tokens: int) -> str:
    if family_rule(model).kimi_pool:
        enough = f" and at least 2 x {draft_tokens}" if draft_tokens else "; give D to check that it is at least 2 x D"
        return f"{args.linear_replayssm_cache_len} is a power of two{enough}"
    if replayed(model):
        return "the engine checks the ring length for KDA models only"
    return f"--enable-linear-replayssm-spec has no effect on {model.architecture}: no ring is allocated"
