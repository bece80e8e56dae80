"""The balanced ratio as text: what to set, what today's flags do, and the figures that it rests on."""

from math import ceil
from typing import TYPE_CHECKING

from hybridcalc.deployment import requests_text, tokens_text
from hybridcalc.findings import Finding
from hybridcalc.output import terminal
from hybridcalc.units import GIB, format_bytes, ratio_text

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.balance import Balance
    from hybridcalc.engines.sglang.settings import Setting

WORTH_SAYING_PERCENT = 5
"""Idle memory below this share is rounding, not advice."""


def print_ratio(answer: "Balance", findings: tuple[Finding, ...], *, explain: bool) -> None:
    """The whole answer: verdict, findings, figures, what to set, notes; the steps with ``explain``."""
    out = terminal.console()
    terminal.verdict(out, f"r* = {ratio_text(answer.ratio)}", ratio_meaning(answer))
    for finding in findings:
        if finding.severity != "note":
            text = f"{finding.message}{'; ' + finding.fix if finding.fix else ''}"
            terminal.notes(out, [text], label=finding.severity, style=terminal.TROUBLE, gap_after=True)
    terminal.figures(out, ratio_figures(answer), styles=(terminal.STATE, terminal.KV))
    out.print()
    terminal.settings(out, ratio_settings(answer))
    terminal.notes(out, [*(f.message for f in findings if f.severity == "note"), *answer.notes])
    if explain:
        terminal.explanation(out, answer.steps)


def ratio_meaning(answer: "Balance") -> str:
    """What the headline means: what it would admit, and what today's flags do."""
    length, best, today = answer.workload.longest, answer.setting("set"), answer.setting("today")
    if best is None and answer.rest_gib is not None:
        return f"does not fit: no ratio starts in {format_bytes(round(answer.rest_gib * GIB))}"
    if best is None:
        return f"both pools fill together at {tokens_text(length)} a request"
    text = f"{requests_text(best.requests)} of {tokens_text(length)}"
    if today is None:
        return text
    return f"{text}; today {today.requests:,}, {_idle(today) or 'balanced'}"


def ratio_figures(answer: "Balance") -> list[tuple[str, str, str, str]]:
    """The figures it rests on: label, value, human unit, reason."""
    constants, equal = answer.constants, float(answer.token_equiv)
    state, kv = constants.state_bytes, constants.kv_bytes_per_token
    rows = [
        ("state per slot", f"{round(state):,} B", format_bytes(state), constants.state_why),
        ("KV per token", f"{round(kv):,} B", format_bytes(kv), constants.kv_why),
        ("token_equiv", f"{equal:,.2f}", "tokens", "of KV that one state slot weighs"),
        ("slots per request", f"{answer.slots.count}", "slots", answer.slots.reason),
    ]
    if answer.draft_states:
        rows.append(("draft states", f"{answer.draft_states}", "states", "charged to each request as well"))
    if answer.draft_kv_bytes_per_token:
        draft = answer.draft_kv_bytes_per_token
        rows.append(("draft KV per token", f"{draft:,} B", format_bytes(draft), "not divided by context parallelism"))
    if answer.dcp_size > 1:
        rows.append(("context parallel", f"{answer.dcp_size}", "ranks", "share a sequence's KV, not its state"))
    crossover = ceil(answer.token_equiv * answer.dcp_size)
    rows.append(("crossover at", f"{crossover:,}", "tokens", "from there on KV outweighs one state"))
    return rows


def ratio_settings(answer: "Balance") -> list[tuple[str, str, str]]:
    """What to set: label, flags, what they come to."""
    if answer.setting("set") is None and answer.rest_gib is not None:
        left = format_bytes(round(answer.rest_gib * GIB))
        rows = [("set", f"--mamba-full-memory-ratio {ratio_text(answer.ratio)}", f"does not fit in {left}")]
        return rows + [(setting.label, setting.flags, _effect(setting)) for setting in answer.settings]
    if not answer.settings:
        rows = [("set", f"--mamba-full-memory-ratio {ratio_text(answer.ratio)}", "--rest SIZE shows what it admits")]
        if answer.pin_concurrency > 1:
            effect = f"{answer.pin_concurrency:,} requests x {answer.slots.count} slots, and 1 spare"
            rows.append(("or", f"--max-mamba-cache-size {answer.pin_slots}", effect))
        return rows
    return [(setting.label, setting.flags, _effect(setting)) for setting in answer.settings]


def _effect(setting: "Setting") -> str:
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
    return f"{min(setting.idle_percent, 99.9):.{0 if setting.idle_percent < 99.5 else 1}f} % of the {pool} idle"
