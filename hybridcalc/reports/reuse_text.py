"""What a prefix cache does, as text: verdict, figures, what to set, what other settings would change, the best split."""

from collections.abc import Iterator

from hybridcalc.reports import terminal
from hybridcalc.reuse.answer import Reuse
from hybridcalc.reuse.knee import SHARE
from hybridcalc.reuse.memory import Cost
from hybridcalc.reuse.simulation import Outcome
from hybridcalc.units import format_bytes

MOST_SPLITS = 6
HELD_SHOWN = 8


def print_reuse(answer: Reuse, *, explain: bool) -> None:
    """The whole answer."""
    out = terminal.console()
    terminal.verdict(out, *_verdict(answer))
    terminal.figures(out, _figures(answer))
    choices = list(_choices(answer))
    if choices:
        out.print()
        terminal.settings(out, choices)
    if answer.rows:
        out.print()
        priced = answer.priced is not None
        header = ("what if", "requests", "tokens", "recomputed", *(("memory",) if priced else ()), "")
        rows = [("as asked", *_cells(answer.outcome), *_price(answer, answer.price(answer.settings)), "")]
        for row in answer.rows:
            cells = (*_cells(row.outcome), *_price(answer, answer.price(row.variant.settings)))
            rows.append((row.variant.name, *cells, row.variant.flags))
        terminal.listing(out, header, rows, right=tuple(range(1, 5 if priced else 4)))
    if answer.splits:
        out.print()
        shown = sorted(answer.splits[:MOST_SPLITS], key=lambda split: split.running)
        best = answer.splits[0]
        rows = [
            (f"{split.running:,}", f"{split.cached_slots:,}", *_cells(split.outcome),
             f"{split.work_tokens / best.work_tokens:.2f}" if best.work_tokens else "-",
             "best" if split is best else "")
            for split in shown
        ]  # fmt: skip
        header = ("running", "cached slots", "requests", "tokens", "recomputed", "work", "")
        terminal.listing(out, header, rows, right=tuple(range(6)))
    terminal.notes(out, answer.notes)
    if explain:
        terminal.explanation(out, answer.steps)


def _verdict(answer: Reuse) -> tuple[str, str]:
    outcome, knee, given = answer.outcome, answer.knee, answer.settings.slots
    headline = f"{_percent(outcome.token_hit_rate)} of prompt tokens reused"
    if knee is None:
        return headline, f"{_percent(outcome.hit_rate)} of requests hit, with {given:,} slots"
    if knee.slots is None:
        return headline, "this workload reuses nothing with any number of slots"
    pool = given if answer.settings.int8_slots is None else answer.settings.int8_slots
    if answer.enough:
        spare = f"; {pool - knee.slots:,} are spare" if pool > knee.slots else ""
        return headline, f"{knee.slots:,} slots suffice, {pool:,} are given{spare}"
    lost = knee.limit.token_hit_rate
    return headline, f"{knee.slots:,} slots are wanted, {pool:,} are given: {_percent(lost)} could be"


def _figures(answer: Reuse) -> list[tuple[str, str, str, str]]:
    outcome, settings, knee = answer.outcome, answer.settings, answer.knee
    left_out = f"; {answer.warmup_rounds} warm-up rounds left out" if answer.warmup_rounds else ""
    rows = [
        ("requests", f"{outcome.requests:,}", "", f"{answer.workload.name}: {answer.workload.description}{left_out}"),
        ("hit", f"{outcome.hits:,}", "requests", f"{_percent(outcome.hit_rate)}, {answer.setup.policy.name}"),
        ("hit tokens", f"{outcome.hit_tokens:,}", "tokens", f"of {outcome.prompt_tokens:,} in prompts"),
        ("recomputed", f"{outcome.recomputed_tokens:,}", "tokens", _replayed(outcome)),
        ("evictions", f"{outcome.evictions:,}", "states", _other_losses(outcome)),
        ("held", f"{outcome.most_cached:,}", "slots", f"at most, of {answer.setup.cached_slots:,}: {_course(outcome)}"),
    ]
    if settings.running:
        each = answer.setup.policy.own_slots
        rows.append(("running", f"{settings.running * each:,}", "slots", f"{settings.running:,} requests x {each}"))
    if knee is not None and knee.slots is not None:
        limit = knee.limit
        why = f"{SHARE:.0%} of the most: {_percent(limit.hit_rate)} of requests, {_percent(limit.token_hit_rate)} of tokens"
        rows.append(("knee", f"{knee.slots:,}", "slots", why))
    own = answer.price(settings)
    if own is not None:
        why = f"{settings.slots:,} + 1 slots" + (f", {settings.int8_slots:,} + 1 in int8" if own.int8_bytes else "")
        rows.append(("slots weigh", f"{own.gpu_bytes:,} B", format_bytes(own.gpu_bytes), why))
        if own.kv_tokens is not None:
            rows.append(("KV beside", f"{own.kv_tokens:,}", "tokens", "left of the memory given"))
    return rows


def _replayed(outcome: Outcome) -> str:
    if not outcome.preemptions:
        return "of prompts"
    return f"{outcome.replayed_tokens:,} of them after {outcome.preemptions:,} preemptions"


def _other_losses(outcome: Outcome) -> str:
    """What else went, where it did."""
    parts = [
        f"{outcome.capped:,} more to the path cap" if outcome.capped else "",
        f"{outcome.kv_evictions:,} KV tokens" if outcome.kv_evictions else "",
        f"{outcome.host_hits:,} hits from the host" if outcome.host_hits else "",
    ]
    return "; ".join(part for part in parts if part)


def _course(outcome: Outcome) -> str:
    """A few points of the slots held, in order."""
    held = outcome.held
    step = max(len(held) // HELD_SHOWN, 1)
    return " ".join(f"{cached:,}" for _, cached, _ in held[step - 1 :: step][:HELD_SHOWN]) + " over time"


def _choices(answer: Reuse) -> Iterator[tuple[str, str, str]]:
    """Flags that reach the knee, where the slots given do not."""
    knee, settings = answer.knee, answer.settings
    if knee is None or knee.slots is None or answer.enough or settings.engine != "sglang":
        return
    label = "set"
    if settings.int8_slots is None:
        yield label, f"--max-mamba-cache-size {knee.slots}", _effect(answer, settings._replace(slots=knee.slots), knee.slots)
    else:
        wanted = settings._replace(int8_slots=knee.slots)
        yield label, f"--int8-mamba-ckpt-size {knee.slots}", _effect(answer, wanted, knee.slots)
    for row in answer.rows or ():
        reaches = row.outcome.hits >= SHARE * knee.limit.hits and row.outcome.hit_tokens >= SHARE * knee.limit.hit_tokens
        if reaches and row.variant.name in ("int8 checkpoints", "host tier"):
            weighs = answer.price(row.variant.settings)
            text = f"{_percent(row.outcome.token_hit_rate)} of tokens"
            yield "or", row.variant.flags, text + (f", {_memory(weighs)}" if weighs is not None else "")


def _effect(answer: Reuse, settings: object, slots: int) -> str:
    from hybridcalc.reuse.settings import Settings

    weighs = answer.price(settings) if isinstance(settings, Settings) else None
    knee = answer.knee
    rate = _percent(SHARE * knee.limit.token_hit_rate) if knee is not None else ""
    return f"at least {rate} of tokens" + (f", {_memory(weighs)}" if weighs is not None else "")


def _cells(outcome: Outcome) -> tuple[str, str, str]:
    return _percent(outcome.hit_rate), _percent(outcome.token_hit_rate), f"{outcome.recomputed_tokens:,}"


def _price(answer: Reuse, weighs: Cost | None) -> tuple[str, ...]:
    if answer.priced is None:
        return ()
    return ("refused",) if weighs is None else (_memory(weighs),)


def _memory(weighs: Cost) -> str:
    host = f" + {format_bytes(weighs.host_bytes)} host" if weighs.host_bytes else ""
    return f"{format_bytes(weighs.gpu_bytes)}{host}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
