"""What a model holds of a sequence on vLLM, for its crossovers: states in whole padded pages, KV in whole blocks.

    state held  = blocks of the state groups of one request x bytes of a block     (padding, checkpoints, drafts
    counted) KV a token  = attention groups x bytes of a block / block                      (empty layer slots counted)

That is what the pool loses to a request, not what its tensors hold; the steps show both.
"""

from dataclasses import replace
from fractions import Fraction
from math import gcd

from hybridcalc.architecture import Architecture
from hybridcalc.engines.crossover import Crossover, Holdings, StateGrid, Stream, moved_whole
from hybridcalc.engines.crossover import compare as compare_holdings
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.pages import DRAFT, FULL, WHOLE, WINDOW, blocks_held
from hybridcalc.engines.vllm.planner import Prepared, prepare
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.errors import InputError
from hybridcalc.findings import Step
from hybridcalc.formulas import KvCurve


def compare(
    model: Architecture, baseline: Architecture | None, args: EngineArgs, *, longest: int | None = None
) -> Crossover:
    """Physical crossovers of ``model`` with itself and with ``baseline``, up to ``longest`` tokens in the curve.

    Raises InputError for a model without a state or with sliding windows, Refusal for what the engine refuses.
    """
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: it keeps no state")
    hybrid = holdings(model, args)
    other = None if baseline is None else holdings(baseline, args)
    if other is not None:
        whole = lighter_in_blocks(hybrid, _block(model, args), other, _block(baseline, args))
        said = "from no length on" if whole is None else f"from {whole:,} tokens on"
        hybrid = hybrid._replace(
            notes=(*hybrid.notes, f"counted in whole blocks, {model.name} holds less than {other.name} {said}")
        )
    return compare_holdings(hybrid, other, moved_whole(model, stream(model, args)), longest=longest)


def holdings(model: Architecture, args: EngineArgs) -> Holdings:
    """What one request takes of the pool: the bytes of its state blocks, and of its KV blocks per token."""
    ready = prepare(model, args)
    if any(group.kind == WINDOW for group in ready.groups):
        raise InputError(f"{model.name}: blocks of sliding windows have no crossover here", fix="use --engine sglang")
    if ready.mode == "all":
        raise InputError("mode all keeps states for every block: they grow with the length", fix="use mode align")
    states = [group for group in ready.groups if group.kind in WHOLE]
    blocks = sum(blocks_held(group, 1, ready.held) for group in states)
    per_token = sum(
        (
            Fraction(ready.bytes_per_block, group.span(ready.held.dcp))
            for group in ready.groups
            if group.kind in (FULL, DRAFT)
        ),
        Fraction(0),
    )
    why = f"{blocks} blocks of {ready.bytes_per_block:,} B in {len(states)} groups, mode {ready.mode}"
    kv_why = f"{len(ready.groups) - len(states)} group of blocks of {ready.pages.block:,} tokens"
    notes = (rules_for(args.engine_version)[1], model.reading, _padding_note(ready, model))
    return Holdings(
        model.name,
        model.describe_layers,
        blocks * ready.bytes_per_block,
        model.state_layers,
        why,
        KvCurve(-(-per_token.numerator // per_token.denominator)),
        max(1, model.attention_layers),
        kv_why,
        notes=tuple(text for text in notes if text),
        steps=_steps(ready, blocks, model),
        slot_bytes=ready.state_bytes * model.state_layers,
    )


def stream(model: Architecture, args: EngineArgs) -> Stream:
    """What one request moves in a step on one rank: states and rows themselves, without the padding of their pages and
    what drafts add to a convolution's window.
    """
    ready = prepare(model, args)
    positions, replays = 1 + ready.args.num_speculative_tokens, ready.args.use_replayssm
    if positions > 1 or replays:
        args = replace(args, speculative_config=None, num_speculative_tokens=0, draft_layers=0, use_replayssm=False)
        ready = prepare(model, args)
    full, windowed = model.attention_layers, model.window_layers
    whole = ready.kind.ignores_window or not model.window
    curve = KvCurve((full + (windowed if whole else 0)) * ready.kv_bytes)
    if windowed and not whole:
        curve = KvCurve(full * ready.kv_bytes, windowed * ready.kv_bytes, model.window or 0)
    elements = 0
    if model.state is not None:
        elements = model.state_layers * model.state.shapes(args.tensor_parallel_size).temporal_elements
    states, writes = ready.state_bytes * model.state_layers, 0 if replays else positions
    return Stream(states, elements, curve, ready.held.dcp, positions, writes)


def saved(ready: Prepared) -> StateGrid | None:
    """States of prompts and answers lie where a block ends."""
    if not ready.prefix_caching or not ready.state or ready.mode == "none":
        return None
    return StateGrid(ready.pages.block, ready.pages.block)


def lighter_in_blocks(hybrid: Holdings, block: int, other: Holdings, other_block: int) -> int | None:
    """The length from which on ``hybrid`` always holds less, each request taking whole blocks; None where there is
    none.

    Within one block of the hybrid its bytes stand still, and the other's grow in steps. So for its m-th block the last
    length at which it holds no less is floor(bytes with m + 1 blocks / bytes of the other's block) other blocks; the
    greatest such length over all m is wanted. Beyond the crossing by the token, plus one block, there is none.
    """
    mine, theirs = hybrid.curve.bytes_per_token * block, other.curve.bytes_per_token * other_block
    gain = other.curve.bytes_per_token - hybrid.curve.bytes_per_token
    lead = hybrid.state_bytes - other.state_bytes
    if gain < 0:
        return None
    if not gain:  # both keep their distance, but for what their last blocks leave empty
        most_behind = hybrid.curve.bytes_per_token * (block - gcd(block, other_block))
        return 1 if lead + most_behind < 0 else None
    if lead < 0 and not mine:
        lead = max(lead, 0)
    for m in range(max(0, (lead + mine) // gain) // block + 1, -1, -1):
        last = min((m + 1) * block, (lead + (m + 1) * mine) // theirs * other_block)
        if last > m * block:
            return last + 1
    return 1


def _block(model: Architecture | None, args: EngineArgs) -> int:
    return 1 if model is None else prepare(model, args).pages.block


def _padding_note(ready: Prepared, model: Architecture) -> str:
    raw = ready.state_bytes * model.state_layers
    return f"physical: states in whole padded pages (themselves {raw:,} B), KV by the token" if raw else ""


def _steps(ready: Prepared, blocks: int, model: Architecture) -> tuple[Step, ...]:
    if not ready.state:
        return ()
    raw, source = ready.state_bytes * model.state_layers, f"vLLM {ready.rules.version} v1/core/kv_cache_planning.py"
    return (
        Step("states", "layers x state of one", f"{model.state_layers} x {ready.state_bytes:,}", raw, "B", source),
        Step(
            "held",
            "state blocks x block bytes",
            f"{blocks} x {ready.bytes_per_block:,}",
            blocks * ready.bytes_per_block,
            "B per request",
            source,
        ),
    )
