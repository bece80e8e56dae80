"""``hybridcalc slots``: S for every strategy, slots at chunk boundaries, and how many requests K slots admit."""

from itertools import product
from typing import Annotated, Any

import typer

from hybridcalc.cli import options
from hybridcalc.engines.sglang.config import NEWEST_VERSION, rules_for
from hybridcalc.engines.sglang.strategy import resolve_strategy
from hybridcalc.errors import IllegalCombination
from hybridcalc.formulas.slots import Slots, Strategy, admitted_requests, prefill_slots, slots_per_request
from hybridcalc.reports.document import print_json

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
        str | None,
        typer.Option("--input-length", metavar="TOKENS", help="Prompt length: slots at chunk boundaries."),
    ] = None,
    chunked_prefill_size: Annotated[
        str, typer.Option("--chunked-prefill-size", metavar="TOKENS", help="Tokens of one prefill chunk.")
    ] = "8192",
    env: options.Environment = None,
    engine_version: options.EngineVersion = NEWEST_VERSION,
    as_json: options.Json = False,
) -> None:
    """State slots one running request holds (S), for every strategy and scheduler.

    K slots admit K // S requests. With a MODEL, auto is resolved as the engine resolves it for that class.
    """
    args = options.server_args(
        mamba_radix_cache_strategy=strategy, disable_overlap_schedule=disable_overlap_schedule,
        disable_radix_cache=disable_radix_cache, pp_size=pp_size, page_size=page_size,
        max_mamba_cache_size=max_mamba_cache_size, env=env, engine_version=engine_version,
    )  # fmt: skip
    if model is not None:
        resolved = resolve_strategy(options.model(model), args, rules_for(engine_version)[0])
        name, chosen = resolved.strategy, resolved.slots
    else:
        name = Strategy.EXTRA_BUFFER.value if strategy == "auto" else strategy
        chosen = slots_per_request(
            Strategy(name), overlap=args.overlap, skip_decode_lock=args.skip_decode_lock,
            radix_cache=not disable_radix_cache,
        )  # fmt: skip
    prompt = options.tokens("--input-length", input_length)
    chunk = options.tokens("--chunked-prefill-size", chunked_prefill_size)
    answer = {
        "selected": {"strategy": name, "slots": chosen.count, "reason": chosen.reason},
        "table": _table(),
        "prefill_slots": prefill_slots(prompt, chunk) if prompt and chunk else None,
        "max_mamba_cache_size": max_mamba_cache_size,
        "max_concurrent": admitted_requests(max_mamba_cache_size, chosen.count) if max_mamba_cache_size else None,
    }
    if as_json:
        print_json("slots", answer)
    else:
        _print(answer, chosen, name, prompt, chunk)


def _table() -> list[dict[str, Any]]:
    """Every combination, and whether the engine starts with it."""
    combinations = product((True, False), Strategy, (True, False), (False, True))
    return [_row(strategy, overlap, skip, radix_cache) for radix_cache, strategy, overlap, skip in combinations]


def _row(strategy: Strategy, overlap: bool, skip: bool, radix_cache: bool) -> dict[str, Any]:
    combination = {
        "strategy": strategy.value, "overlap": overlap, "skip_decode_lock": skip, "radix_cache": radix_cache,
    }  # fmt: skip
    try:
        found = slots_per_request(strategy, overlap=overlap, skip_decode_lock=skip, radix_cache=radix_cache)
    except IllegalCombination as refusal:
        return combination | {"slots": None, "allowed": False, "reason": refusal.message}
    if radix_cache and strategy is Strategy.NO_BUFFER and overlap:
        reason = "no_buffer does not run under the overlap scheduler"
        return combination | {"slots": found.count, "allowed": False, "reason": reason}
    return combination | {"slots": found.count, "allowed": True, "reason": found.reason}


def _print(answer: dict[str, Any], chosen: Slots, name: str, prompt: int | None, chunk: int | None) -> None:
    from hybridcalc.reports import terminal

    out = terminal.console()
    terminal.verdict(out, f"S = {chosen.count}", chosen.reason)
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
