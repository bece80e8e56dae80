"""What a model holds of a sequence on vLLM, for its crossovers: states in whole padded pages, KV in whole blocks.

    state held  = blocks of the state groups of one request x bytes of a block     (padding, checkpoints, drafts
    counted) KV a token  = attention groups x bytes of a block / block                      (empty layer slots counted)

That is what the pool loses to a request, not what its tensors hold; the steps show both.
"""

from fractions import Fraction

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.crossover import Crossover, Holdings
from hybridcalc.crossover import compare as compare_holdings
from hybridcalc.engines.vllm.config import EngineArgs, rules_for
from hybridcalc.engines.vllm.groups import FULL, STATE, WINDOW, blocks_held
from hybridcalc.engines.vllm.planner import Prepared, prepare
from hybridcalc.errors import InputError
from hybridcalc.formulas.crossover import KvCurve
from hybridcalc.plan import Step


def compare(
    model: Architecture, baseline: Architecture | None, args: EngineArgs, *, longest: int | None = None
) -> Crossover:
    """Physical crossovers of ``model`` with itself and with ``baseline``, up to ``longest`` tokens in the curve.

    Raises InputError for a model without a state or with sliding windows, Refusal for what the engine refuses.
    """
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: it keeps no state")
    hybrid = holdings(model, args)
    return compare_holdings(hybrid, None if baseline is None else holdings(baseline, args), longest=longest)


def holdings(model: Architecture, args: EngineArgs) -> Holdings:
    """What one request takes of the pool: the bytes of its state blocks, and of its KV blocks per token."""
    ready = prepare(model, args)
    if any(group.kind == WINDOW for group in ready.groups):
        raise InputError(f"{model.name}: blocks of sliding windows have no crossover here", fix="use --engine sglang")
    if ready.mode == "all":
        raise InputError("mode all keeps states for every block: they grow with the length", fix="use mode align")
    states = [group for group in ready.groups if group.kind == STATE]
    blocks = sum(blocks_held(group, 1, ready.held) for group in states)
    per_token = sum(
        (Fraction(ready.bytes_per_block, group.block * ready.held.dcp) for group in ready.groups if group.kind == FULL),
        Fraction(0),
    )
    why = f"{blocks} blocks of {ready.bytes_per_block:,} B in {len(states)} groups, mode {ready.mode}"
    kv_why = f"{len(ready.groups) - len(states)} group of blocks of {ready.pages.block:,} tokens"
    notes = (rules_for(args.engine_version)[1], model.reading, _padding_note(ready, model))
    return Holdings(
        model.name, model.describe_layers, blocks * ready.bytes_per_block, model.state_layers, why,
        KvCurve(-(-per_token.numerator // per_token.denominator)), max(1, model.attention_layers), kv_why,
        notes=tuple(text for text in notes if text), steps=_steps(ready, blocks, model),
    )  # fmt: skip


def _padding_note(ready: Prepared, model: Architecture) -> str:
    raw = ready.state_bytes * model.state_layers
    return f"physical: in whole padded pages; the states themselves are {raw:,} B" if raw else ""


def _steps(ready: Prepared, blocks: int, model: Architecture) -> tuple[Step, ...]:
    if not ready.state:
        return ()
    raw, source = ready.state_bytes * model.state_layers, f"vLLM {ready.rules.version} v1/core/kv_cache_planning.py"
    return (
        Step("states", "layers x state of one", f"{model.state_layers} x {ready.state_bytes:,}", raw, "B", source),
        Step("held", "state blocks x block bytes", f"{blocks} x {ready.bytes_per_block:,}",
             blocks * ready.bytes_per_block, "B per request", source),
    )  # fmt: skip
