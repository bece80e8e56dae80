"""``hybridcalc ratio``: r* and what to set."""

from math import ceil
from typing import TYPE_CHECKING, Annotated

import typer

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options, pictures
from hybridcalc.deployment import Workload, requests_text, tokens_text
from hybridcalc.engines.sglang.balance import Balance, balance_model
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.settings import Setting
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding, at_or_above
from hybridcalc.output.document import print_json
from hybridcalc.units import GIB, MOST_SLOTS, format_bytes, ratio_text

WORTH_SAYING_PERCENT = 5
"""Idle memory below this share is rounding, not advice."""

if TYPE_CHECKING:
    from hybridcalc.output.pictures.page import Page

ASSUMED_GIB = 24.0
"""Memory a page's settings start from where none is given."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def ratio(
    model: options.OptionalModel = None,
    length: Annotated[
        str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Tokens a request holds: prompt and answer.")
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FILE", help="Take the constants from an SGLang boot log; - is stdin."),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option("--rest", metavar="SIZE", help="Memory left for both pools on one rank, after weights and slack."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-C", metavar="N", min=1, max=MOST_SLOTS, help="Requests to pin slots for."),
    ] = None,
    tp_size: options.Tp = 1,
    pp_size: options.Pp = 1,
    dp_size: options.Dp = 1,
    enable_dp_attention: options.DpAttention = False,
    dcp_size: options.Dcp = 1,
    kv_cache_dtype: options.KvDtype = "auto",
    mamba_ssm_dtype: options.SsmDtype = None,
    strategy: options.StrategyFlag = "auto",
    disable_overlap_schedule: options.NoOverlap = False,
    disable_radix_cache: options.NoRadix = False,
    page_size: options.PageSize = None,
    speculative_algorithm: options.SpecAlgorithm = None,
    speculative_num_draft_tokens: options.DraftTokens = None,
    draft_layers: options.DraftLayers = None,
    draft_kv_bytes_per_token: options.DraftKv = None,
    enable_linear_replayssm_spec: options.ReplaySpec = False,
    linear_replayssm_cache_len: options.CacheLen = 16,
    mamba_full_memory_ratio: options.FullMemoryRatio = 0.9,
    max_mamba_cache_size: options.MambaCacheSize = None,
    max_running_requests: options.RunningRequests = None,
    max_total_tokens: options.TotalTokens = None,
    env: options.Environment = None,
    engine_version: options.EngineVersion = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error, never.")
    ] = "error",
    save: pictures.Save = None,
    figure: pictures.Figure = None,
    theme: pictures.Theme = "auto",
    force: pictures.Force = False,
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """The ratio of state memory to KV memory at which both pools run out together (r*), and what to set.

    r* = (S + D) x state x dcp / (KV per token x L). Name a MODEL, or give a boot log, or both: then they are compared.
    """
    severity = options.severity("--fail-on", fail_on)
    asked_for = pictures.wanted(save, figure, theme, force=force, document=as_json, explain=explain)
    args = options.server_args(
        tp_size=tp_size,
        pp_size=pp_size,
        dp_size=dp_size,
        enable_dp_attention=enable_dp_attention,
        dcp_size=dcp_size,
        kv_cache_dtype=kv_cache_dtype,
        mamba_ssm_dtype=mamba_ssm_dtype,
        mamba_radix_cache_strategy=strategy,
        disable_overlap_schedule=disable_overlap_schedule,
        disable_radix_cache=disable_radix_cache,
        page_size=page_size,
        speculative_algorithm=speculative_algorithm,
        speculative_num_draft_tokens=speculative_num_draft_tokens,
        draft_layers=draft_layers,
        draft_kv_bytes_per_token=draft_kv_bytes_per_token,
        enable_linear_replayssm_spec=enable_linear_replayssm_spec,
        linear_replayssm_cache_len=linear_replayssm_cache_len,
        mamba_full_memory_ratio=mamba_full_memory_ratio,
        max_mamba_cache_size=max_mamba_cache_size,
        max_running_requests=max_running_requests,
        max_total_tokens=max_total_tokens,
        env=env,
        engine_version=engine_version,
    )
    if length is None:
        raise InputError("ratio needs the tokens a request holds", fix="add -L TOKENS, for example -L 8k")
    if model is None and log is None:
        raise InputError(
            "ratio needs a MODEL or a boot log", fix="name a preset (`hybridcalc models`) or add --log FILE"
        )
    workload = Workload.at(options.tokens("-L", length) or 0, concurrency=concurrency)
    rest_gib = options.gib("--rest", rest)
    findings: tuple[Finding, ...] = ()
    architecture = options.model(model) if model else None
    if log is None:
        assert architecture is not None  # noqa: S101  (one of both was asked for above)
        answer = balance_model(architecture, args, workload, rest_gib=rest_gib)
    else:
        from hybridcalc.diagnosis.sglang.ratio import balance_log

        answer, findings = balance_log(log, architecture, args, workload, rest_gib=rest_gib)
    if asked_for.any:
        draw = _pictures(answer, architecture, args)
        pictures.deliver(asked_for, draw, lambda: _page(answer, findings, architecture, args, draw), quiet=as_json)
    if as_json:
        print_json("ratio", answer.to_dict() | {"findings": [finding.to_dict() for finding in findings]})
    elif not asked_for.any:
        _print(answer, findings, explain=explain)
    if at_or_above(findings, severity):
        raise typer.Exit(1)


def _pictures(answer: Balance, model: Architecture | None, args: ServerArgs) -> pictures.Draw:
    from hybridcalc.output.pictures.sglang import balance_pictures

    return balance_pictures(answer, model, args)


def _page(
    answer: Balance, findings: tuple[Finding, ...], model: Architecture | None, args: ServerArgs, draw: pictures.Draw
) -> "Page":
    from hybridcalc.engines.sglang.crossover import compare
    from hybridcalc.output.pictures.crossover import crossover_picture
    from hybridcalc.output.pictures.page import Choice, Page, command_line
    from hybridcalc.output.pictures.pages import drawn
    from hybridcalc.output.pictures.sglang_play import sglang_play

    play = None
    if model is not None and answer.constants.origin == "architecture":
        play = sglang_play(model, args, answer.rest_gib or ASSUMED_GIB, answer.workload)
    notes = [*answer.notes]
    if play is not None and answer.rest_gib is None:
        notes.append(f"no --rest given: the settings start at {ASSUMED_GIB:g} GiB for both pools")
    choices = tuple(Choice(label, flags, effect) for label, flags, effect in _settings(answer))
    crossed = () if model is None else (lambda: crossover_picture(compare(model, None, args)),)
    title = f"{answer.model or 'As logged'} on SGLang {answer.engine_version}: the balanced ratio"
    return Page(
        title,
        f"r* = {ratio_text(answer.ratio)}",
        _meaning(answer),
        command_line(),
        tuple(_figures(answer)),
        drawn((*draw.values(), *crossed)),
        play,
        findings=findings,
        choices=choices,
        notes=tuple(notes),
        steps=answer.steps,
    )


def _print(answer: Balance, findings: tuple[Finding, ...], *, explain: bool) -> None:
    from hybridcalc.output import terminal

    out = terminal.console()
    terminal.verdict(out, f"r* = {ratio_text(answer.ratio)}", _meaning(answer))
    for finding in findings:
        if finding.severity != "note":
            text = f"{finding.message}{'; ' + finding.fix if finding.fix else ''}"
            terminal.notes(out, [text], label=finding.severity, style=terminal.TROUBLE, gap_after=True)
    terminal.figures(out, _figures(answer), styles=(terminal.STATE, terminal.KV))
    out.print()
    terminal.settings(out, _settings(answer))
    terminal.notes(out, [*(f.message for f in findings if f.severity == "note"), *answer.notes])
    if explain:
        terminal.explanation(out, answer.steps)


def _meaning(answer: Balance) -> str:
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


def _figures(answer: Balance) -> list[tuple[str, str, str, str]]:
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


def _settings(answer: Balance) -> list[tuple[str, str, str]]:
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


def _effect(setting: Setting) -> str:
    text = f"{setting.slots:,} slots: {requests_text(setting.state_requests)}; KV holds {setting.kv_requests:,}"
    if setting.binding == "limit":
        return f"{text}; the request limit binds"
    idle = _idle(setting)
    return f"{text}; {idle}" if idle else text


def _idle(setting: Setting) -> str:
    """How much of which pool idles; empty below what is worth saying."""
    if setting.idle_percent < WORTH_SAYING_PERCENT or setting.binding == "limit":
        return ""
    pool = "KV" if setting.binding == "state" else "slots"
    return f"{min(setting.idle_percent, 99.9):.{0 if setting.idle_percent < 99.5 else 1}f} % of the {pool} idle"
