"""``hybridcalc slots``: S for every strategy, slots at chunk boundaries, and how many requests K slots admit."""

from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import typer

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.engines.sglang.balance import UNNAMED_MODEL, resolve_unnamed
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.strategy import check_pools, resolve_strategy
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.formulas.slots import Slots, Strategy, admitted_requests, prefill_slots, slots_per_request
from hybridcalc.output.document import print_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def slots(
    model: options.OptionalModel = None,
    strategy: options.StrategyFlag = "auto",
    disable_overlap_schedule: options.NoOverlap = False,
    disable_radix_cache: options.NoRadix = False,
    pp_size: options.Pp = 1,
    page_size: options.PageSize = None,
    max_mamba_cache_size: options.MambaCacheSize = None,
    input_length: Annotated[
        str | None, typer.Option("--input-length", metavar="TOKENS", help="Prompt length: slots at chunk boundaries.")
    ] = None,
    chunked_prefill_size: Annotated[
        str, typer.Option("--chunked-prefill-size", metavar="TOKENS", help="Tokens of one prefill chunk.")
    ] = "8192",
    env: options.Environment = None,
    engine_version: options.EngineVersion = None,
    as_json: options.Json = False,
) -> None:
    """State slots one running request holds (S), for every strategy and scheduler.

    K slots admit K // S requests. With a MODEL, auto is resolved as the engine resolves it for that class.
    Exits with 1 for flags the engine refuses.
    """
    args = options.server_args(
        mamba_radix_cache_strategy=strategy,
        disable_overlap_schedule=disable_overlap_schedule,
        disable_radix_cache=disable_radix_cache,
        pp_size=pp_size,
        page_size=page_size,
        max_mamba_cache_size=max_mamba_cache_size,
        env=env,
        engine_version=engine_version,
    )
    rules, _ = rules_for(engine_version)
    architecture = options.model(model) if model is not None else None
    if architecture is not None:
        if architecture.state is None:
            raise InputError(f"{architecture.name} has no recurrent layer: its requests hold no state slots")
        resolved = resolve_strategy(architecture, args, rules)
        if page_size is not None:
            check_pools(architecture, args)
    else:
        resolved = resolve_unnamed(args, rules)
    name, chosen = resolved.strategy, resolved.slots
    prompt = options.tokens("--input-length", input_length)
    chunk = options.tokens("--chunked-prefill-size", chunked_prefill_size)
    answer = {
        "selected": {"strategy": name, "slots": chosen.count, "reason": chosen.reason},
        "table": _table(architecture or UNNAMED_MODEL, args),
        "prefill_slots": prefill_slots(prompt, chunk) if prompt and chunk else None,
        "max_mamba_cache_size": max_mamba_cache_size,
        "max_concurrent": admitted_requests(max_mamba_cache_size, chosen.count) if max_mamba_cache_size else None,
    }
    if as_json:
        print_json("slots", answer)
    else:
        _print(answer, chosen, name, prompt, chunk)


def _table(model: Architecture, args: ServerArgs) -> list[dict[str, Any]]:
    """Every combination under the other flags as given, and whether the engine starts the model with it."""
    combinations = product((True, False), Strategy, (True, False), (False, True))
    return [
        _row(model, args, radix_cache, strategy, overlap, skip) for radix_cache, strategy, overlap, skip in combinations
    ]


def _row(
    model: Architecture, args: ServerArgs, radix_cache: bool, strategy: Strategy, overlap: bool, skip: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "strategy": strategy.value,
        "overlap": overlap,
        "skip_decode_lock": skip,
        "radix_cache": radix_cache,
    }
    try:
        found = slots_per_request(strategy, overlap=overlap, skip_decode_lock=skip, radix_cache=radix_cache)
        row["slots"] = found.count
        changed = _with(args, strategy, overlap=overlap, skip=skip, radix_cache=radix_cache)
        found = resolve_strategy(model, changed, rules_for(args.engine_version)[0]).slots
        row |= {"slots": found.count, "allowed": True, "reason": found.reason}
    except IllegalCombination as refusal:
        row |= {"slots": row.get("slots"), "allowed": False, "reason": refusal.message}
    return row


def _with(args: ServerArgs, strategy: Strategy, *, overlap: bool, skip: bool, radix_cache: bool) -> ServerArgs:
    return replace(
        args,
        mamba_radix_cache_strategy=strategy.value,
        disable_overlap_schedule=not overlap,
        disable_radix_cache=not radix_cache,
        env={**args.env, "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": str(int(skip))},
    )


def _print(answer: dict[str, Any], chosen: Slots, name: str, prompt: int | None, chunk: int | None) -> None:
    from hybridcalc.output import terminal

    out = terminal.console()
    terminal.verdict(out, f"S = {chosen.count} state slot{'' if chosen.count == 1 else 's'} per request", chosen.reason)
    cells = {(r["strategy"], r["overlap"], r["skip_decode_lock"]): r for r in answer["table"] if r["radix_cache"]}
    rows = []
    for strategy in Strategy:
        row = [f"  {strategy.value}"]
        for overlap, skip in ((True, False), (False, False), (True, True), (False, True)):
            cell = cells[strategy.value, overlap, skip]
            row.append(str(cell["slots"]) if cell["allowed"] else "refused")
        rows.append(row)
    rows.append(["  radix cache off", "1", "1", "1", "1"])
    header = ("  strategy", "overlap", "no overlap", "overlap, skip*", "no overlap, skip*")
    terminal.listing(out, header, rows, right=(1, 2, 3, 4))
    out.print("  * with SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1", style=terminal.QUIET)
    notes = []
    if answer["max_concurrent"] is not None:
        slots, admitted = answer["max_mamba_cache_size"], answer["max_concurrent"]
        notes.append(f"{slots:,} slots // {chosen.count} ({name}) admit {admitted:,} requests")
    if prompt and chunk:
        touched = f"ceil({prompt:,} / {chunk:,}) + 2 = {answer['prefill_slots']} slots"
        notes.append(f"a prompt of {prompt:,} tokens in chunks of {chunk:,} touches {touched}")
    terminal.notes(out, notes)
