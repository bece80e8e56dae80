"""What a balanced ratio comes to, for people: what to set, what today's flags do, figures, pictures, what to try."""

from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import requests_text, tokens_text
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.balance import Balance
from hybridcalc.engines.sglang.sizes import longest_of
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Choice, Finding, Quantity, View
from hybridcalc.units import GIB, format_bytes, percent_text, ratio_text

if TYPE_CHECKING:
    from hybridcalc.deployment import Rest
    from hybridcalc.engines.answer import Answer
    from hybridcalc.engines.charts import Picture
    from hybridcalc.engines.play import Play
    from hybridcalc.engines.sglang.settings import Setting

WORTH_SAYING_PERCENT = 5
"""Idle memory below this share is rounding, not advice."""
ASSUMED_GIB = 24.0
"""Memory that settings to try start from where none is given."""


def balance_view(
    answer: Balance,
    findings: tuple[Finding, ...],
    model: Architecture | None,
    args: ServerArgs,
    rest: "Rest | None" = None,
) -> View:
    """The whole answer; settings to try start from what was given. ``rest``: the memory, where a GPU says it."""
    from hybridcalc.engines.sglang import ENGINE

    figures = _figures(answer)
    subject = (
        f"{ENGINE.title} {ENGINE.release_in_words(args.engine_version)}" if ENGINE.newer(args.engine_version) else ""
    )
    if model is not None and rest is not None:
        from hybridcalc.engines.view import memory_figure, planned

        figures.append(memory_figure(rest))
        subject = planned(ENGINE, model, args, rest.gpu)
    return View(
        f"{answer.model or 'As logged'} on SGLang {answer.engine_version}: the balanced ratio",
        f"r* = {ratio_text(answer.ratio)}",
        _meaning(answer) + _beyond(answer, model),
        figures=tuple(figures),
        roles=("state", "kv"),
        findings=findings,
        choices=tuple(_choices(answer)),
        notes=tuple(answer.notes),
        steps=answer.steps,
        pictures=_pictures(answer, model, args),
        play=partial(_play, answer, model, args, rest),
        subject=subject,
        inputs=partial(_inputs, answer, model, args, rest),
    )


def _inputs(
    answer: Balance, model: Architecture | None, args: ServerArgs, rest: "Rest | None"
) -> tuple[tuple[str, str], ...]:
    if model is None:
        return ()
    from hybridcalc.engines.sglang import ENGINE
    from hybridcalc.engines.view import inputs

    return inputs(ENGINE, model, args, rest, answer.workload)


def too_long(answer: Balance, model: Architecture | None) -> tuple[Finding, ...]:
    """An error where no split of the memory holds one request of the length; nothing where it is not known."""
    best, constants, rest = answer.setting("set"), answer.constants, answer.rest_gib
    if best is None or rest is None or max((best.requests, *(best.ends or ()))):
        return ()
    kv = constants.kv_bytes_per_token / answer.dcp_size + answer.draft_kv_bytes_per_token
    one = answer.slots.count * constants.state_bytes + kv * answer.workload.longest
    if one <= rest * GIB:
        return ()
    longest = longest_of(model)
    limit = f": the model's own limit is {tokens_text(longest)}" if 0 < longest < answer.workload.longest else ""
    said = f"none runs, whatever the ratio: a request of {tokens_text(answer.workload.longest)} takes "
    said += f"{format_bytes(round(one))} of {format_bytes(round(rest * GIB))}"
    return (Finding.made("HC002", "error", said, f"shorten the requests{limit}"),)


def short_of(answer: Balance, plan: "Callable[[], Answer] | None", dp: int) -> tuple[Finding, ...]:
    """An error where the balanced ratio runs fewer requests than are wanted, on ``dp`` workers, with what lets them run
    by a ``plan`` of the flags as given; nothing where no memory is known.
    """
    wanted, best = answer.workload.wanted, answer.setting("set")
    if wanted is None or best is None or not best.running or best.running * dp >= wanted:
        return ()
    said = f"{requests_text(wanted)} {'is' if wanted == 1 else 'are'} wanted: no ratio runs more than "
    otherwise = "use more GPUs, or shorten the requests"
    fix = otherwise
    if plan is not None:
        from hybridcalc.engines.better import way_to

        with suppress(HybridcalcError):  # today's flags may not start
            fix = way_to(plan(), wanted, otherwise)
    return (Finding.made("HC002", "error", f"{said}{best.running * dp:,}", fix),)


def _meaning(answer: Balance) -> str:
    """What the headline means: what it would admit, and what today's flags do."""
    length, best, today = answer.workload.longest, answer.setting("set"), answer.setting("today")
    if best is None and answer.rest_gib is not None:
        return f"does not fit: no ratio starts in {format_bytes(round(answer.rest_gib * GIB))}"
    if best is None:
        return f"both pools fill together at {tokens_text(length)} a request"
    text = f"{requests_text(best.requests)}{_ends(best)} of {tokens_text(length)}"
    if today is None:
        return text
    return f"{text}; today {today.requests:,}{_ends(today)}, {_idle(today) or 'balanced'}"


def _beyond(answer: Balance, model: Architecture | None) -> str:
    """What to know of requests that are longer than the model's own limit; empty where they are not."""
    longest = longest_of(model)
    over = 0 < longest < answer.workload.longest and not too_long(answer, model)
    return f"; longer than the model's own limit of {longest:,}" if over else ""


def _ends(setting: "Setting") -> str:
    """The requests over a memory that is an estimate; nothing where they are those of the likely one."""
    least, most = setting.ends or (setting.requests, setting.requests)
    return "" if least == most else f" ({least:,} to {most:,})"


def _figures(answer: Balance) -> list[Quantity]:
    """The figures it rests on, the most telling first."""
    constants, equal = answer.constants, float(answer.token_equiv)
    state, kv = constants.state_bytes, constants.kv_bytes_per_token
    rows = [
        Quantity.of("state per slot", f"{round(state):,} B", format_bytes(state), constants.state_why),
        Quantity.of("KV per token", f"{round(kv):,} B", format_bytes(kv), constants.kv_why),
        Quantity.of(
            "slots per request",
            f"{answer.slots.count}",
            "slot" if answer.slots.count == 1 else "slots",
            answer.slots.reason,
            "; ",
        ),
        Quantity(
            "token_equiv",
            f"{equal:,.2f}",
            "tokens",
            "of KV that one state slot weighs" + (", draft included" if answer.draft_kv_bytes_per_token else ""),
        ),
    ]
    if answer.draft_states:
        rows.append(Quantity("draft states", f"{answer.draft_states}", "states", "charged to each request as well"))
    if answer.draft_kv_bytes_per_token:
        draft = answer.draft_kv_bytes_per_token
        rows.append(
            Quantity("draft KV per token", f"{draft:,} B", format_bytes(draft), "not divided by context parallelism")
        )
    if answer.dcp_size > 1:
        rows.append(Quantity("context parallel", f"{answer.dcp_size}", "ranks", "share a sequence's KV, not its state"))
    crossover = ceil(Fraction(state) / (Fraction(kv) / answer.dcp_size + answer.draft_kv_bytes_per_token))
    rows.append(Quantity("crossover at", f"{crossover:,}", "tokens", "from there on KV outweighs one state"))
    return rows


def _choices(answer: Balance) -> list[Choice]:
    """What to set, and what it comes to."""
    if too_long(answer, None):
        return []  # none of them helps
    rows = [Choice(setting.label, setting.flags, _effect(setting)) for setting in answer.settings]
    star = f"--mamba-full-memory-ratio {ratio_text(answer.ratio)}"
    if answer.rest_gib is not None and answer.setting("set") is None:
        rows.insert(0, Choice("set", star, f"does not fit in {format_bytes(round(answer.rest_gib * GIB))}"))
    elif not rows:
        rows.append(Choice("set", star, "--gpu NAME shows what it admits"))
        if answer.pin_concurrency > 1:
            effect = f"{answer.pin_concurrency:,} requests x {answer.slots.count} slots, and 1 spare"
            rows.append(Choice("or", f"--max-mamba-cache-size {answer.pin_slots}", effect))
    return rows


def _effect(setting: "Setting") -> str:
    if setting.label == "or" and setting.kv_requests < setting.state_requests:
        pinned = f"{setting.slots:,} slots are enough for {setting.state_requests:,}"
        return f"{requests_text(setting.requests)}: {pinned}, and KV holds {setting.kv_requests:,}"
    text = f"{setting.slots:,} slots: {requests_text(setting.state_requests)}; KV holds {setting.kv_requests:,}"
    if setting.binding == "limit":
        return f"{text}; the request limit binds"
    idle = _idle(setting)
    return f"{text}; {idle}" if idle else text


def _idle(setting: "Setting") -> str:
    """How much of which pool idles; empty below what is worth saying."""
    if setting.idle_percent < WORTH_SAYING_PERCENT or setting.binding == "limit":
        return ""
    pool = "KV" if setting.binding == "state" else "slots"
    return f"{percent_text(setting.idle_percent)} % of the {pool} idle"


def _pictures(answer: Balance, model: Architecture | None, args: ServerArgs) -> "dict[str, Callable[[], Picture]]":
    """Requests over the ratio where the memory is known, r* over the length, and state against KV."""
    found: dict[str, Callable[[], Picture]] = {}
    rest = answer.rest_gib
    if model is not None and rest is not None and answer.constants.origin == "architecture":
        found["ratios"] = lambda: _curves().balance_picture(answer, model, args, rest)
    found["balance"] = lambda: _curves().ratio_by_length(answer)
    if model is not None:
        found["crossover"] = lambda: _curves().crossover_of(model, args)
    return found


def _curves() -> Any:
    from hybridcalc.engines.sglang import curves

    return curves


def _play(answer: Balance, model: Architecture | None, args: ServerArgs, rest: "Rest | None") -> "Play | None":
    """The settings of a page to try, from the memory that was given."""
    if model is None or answer.constants.origin != "architecture":
        return None
    from hybridcalc.deployment import exact_rest
    from hybridcalc.engines.sglang.play import play

    return play(model, args, rest or exact_rest(answer.rest_gib or ASSUMED_GIB), answer.workload)
