"""``hybridcalc replayssm``: the ring buffers, their bytes, and whether a ring length is legal."""

from typing import Annotated, Any

import typer

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.families import family_rule
from hybridcalc.engines.sglang.releases import check_model, rules_for
from hybridcalc.engines.sglang.replayssm import replayssm_rings, ring_problem
from hybridcalc.engines.sglang.states import state_slot
from hybridcalc.engines.sglang.strategy import replayed
from hybridcalc.errors import InputError
from hybridcalc.formulas.replayssm import smallest_ring
from hybridcalc.output.document import print_json
from hybridcalc.units import MOST_SLOTS, format_bytes, short_dtype

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def replayssm(
    model: options.Model,
    slots: Annotated[
        int,
        typer.Option("--slots", metavar="N", min=1, max=MOST_SLOTS, help="Slots with rings; a pool of K has K + 1."),
    ] = 1,
    tp_size: options.Tp = 1,
    dp_size: options.Dp = 1,
    enable_dp_attention: options.DpAttention = False,
    linear_replayssm_cache_len: options.CacheLen = 16,
    speculative_num_draft_tokens: options.DraftTokens = None,
    env: options.Environment = None,
    engine_version: options.EngineVersion = None,
    as_json: options.Json = False,
) -> None:
    """ReplaySSM ring buffers of a model: shapes, bytes per slot and in all, and whether the ring length is legal.

    The ring length is a power of two and at least 2 x D; the engine checks it for KDA models. Exits with 1 when the
    length would be refused.
    """
    args = options.server_args(
        tp_size=tp_size,
        dp_size=dp_size,
        enable_dp_attention=enable_dp_attention,
        env=env,
        linear_replayssm_cache_len=linear_replayssm_cache_len,
        engine_version=engine_version,
    )
    architecture = options.model(model)
    check_model(rules_for(engine_version)[0], architecture.architecture)
    answer = _answer(architecture, args, slots, speculative_num_draft_tokens or 0)
    if as_json:
        print_json("replayssm", answer)
    else:
        _print(architecture, answer)
    if not answer["legal"]:
        raise typer.Exit(1)


def _answer(model: Architecture, args: ServerArgs, slots: int, draft_tokens: int) -> dict[str, Any]:
    rings = replayssm_rings(model, state_slot(model, args), args, slots=slots)
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
        "bytes_per_slot": total // slots,
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


def _print(model: Architecture, answer: dict[str, Any]) -> None:
    from hybridcalc.output import terminal

    out = terminal.console()
    per_slot, total, slots = answer["bytes_per_slot"], answer["total_bytes"], answer["slots"]
    if not answer["buffers"]:
        terminal.verdict(out, "0 B", answer["reason"])
        return
    if answer["legal"]:
        many = "a slot" if slots == 1 else f"{slots:,} slots"
        terminal.verdict(out, f"{total:,} B", f"{format_bytes(total)}: rings of {answer['cache_len']} steps for {many}")
    else:
        terminal.verdict(out, "refused", answer["reason"], style=terminal.TROUBLE)
    rows = [
        (f"  {b['name']}", " x ".join(f"{n:,}" for n in b["shape"]), short_dtype(b["dtype"]), f"{b['bytes']:,} B")
        for b in answer["buffers"]
    ]
    terminal.listing(out, ("  ring", "layers x slots x heads x steps x width", "dtype", "bytes"), rows, right=(1, 3))
    if slots > 1:
        out.print()
        terminal.figures(out, [("per slot", f"{per_slot:,} B", format_bytes(per_slot), "all rings of one slot")])
    if answer["legal"]:
        terminal.notes(out, [answer["reason"]])
    else:
        fitting = max(smallest_ring(answer["draft_tokens"] or 1), 16)
        terminal.notes(out, [f"--linear-replayssm-cache-len {fitting}"], label="use")
