"""How many state slots does a request hold, for every strategy and scheduler, and what do K slots admit?"""

from dataclasses import replace
from itertools import product
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.balance import UNNAMED_MODEL, resolve_unnamed
from hybridcalc.engines.sglang.refusals import check_pools
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.served import check_model
from hybridcalc.engines.sglang.strategy import resolve_strategy
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.formulas import Strategy, admitted_requests, prefill_slots, slots_per_request


def slots_answer(
    model: Architecture | None, args: ServerArgs, *, prompt: int | None = None, chunk: int | None = None
) -> dict[str, Any]:
    """The keys of ``slots --json``: S of the strategy that runs, the table of all, and what slots admit.

    ``prompt``, ``chunk``: tokens, for the slots that a prompt touches where each chunk keeps a state. Raises InputError
    for a model without a state, Refusal for what the engine does not start with.
    """
    rules, _ = rules_for(args.engine_version)
    if model is None:
        resolved = resolve_unnamed(args, rules)
    elif model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: its requests hold no state slots")
    else:
        check_model(rules, model.architecture)
        resolved = resolve_strategy(model, args, rules)
        if args.page_size is not None:
            check_pools(model, args, rules)
    per_request, slots = resolved.slots.count, args.max_mamba_cache_size
    return {
        "selected": {"strategy": resolved.strategy, "slots": per_request, "reason": resolved.slots.reason},
        "table": _table(model or UNNAMED_MODEL, args),
        "prefill_slots": prefill_slots(prompt, chunk) if prompt and chunk else None,
        "max_mamba_cache_size": slots,
        "max_concurrent": admitted_requests(slots, per_request) if slots else None,
    }


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
