"""``hybridcalc ratio``: r* and what to set."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridcalc.cli import answers, options
from hybridcalc.deployment import Workload
from hybridcalc.engines.engine import ENGINES, offered
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding, at_or_above
from hybridcalc.units import MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.steps import View

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@options.command(app)
def ratio(
    *,
    model: options.OptionalModel = None,
    length: options.Length = None,
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
    ranks: options.Ranks,
    pp_size: options.Pp = 1,
    dcp_size: options.Dcp = 1,
    kv_cache_dtype: options.KvDtype = "auto",
    mamba_ssm_dtype: options.SsmDtype = None,
    prefixes: options.Prefixes,
    limits: options.Limits,
    drafts: options.Drafts,
    rules: options.Rules,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error, never.")
    ] = "error",
    form: answers.Forms,
) -> None:
    """The ratio of state memory to KV memory at which both pools run out together (r*), and what to set.

    r* = (S + D) x state x dcp / (KV per token x L). Name a MODEL, or give a boot log, or both: then they are compared.
    """
    severity = options.severity("--fail-on", fail_on)
    asked_for = answers.wanted(form)
    engine = ENGINES[ENGINES.usual]
    args = options.engine_args(
        engine,
        **ranks._asdict(),
        **prefixes._asdict(),
        **limits._asdict(),
        **drafts._asdict(),
        **rules._asdict(),
        pp_size=pp_size,
        dcp_size=dcp_size,
        kv_cache_dtype=kv_cache_dtype,
        mamba_ssm_dtype=mamba_ssm_dtype,
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
    architecture = options.model(model) if model is not None else None
    if log is None:
        answer = engine.offered("balance", "ratio").balance_model(architecture, args, workload, rest_gib=rest_gib)
    else:
        room = offered(ENGINES.room(engine.name, "diagnosis", "ratio"), "ratio --log", engine.title)
        answer, findings = room.balance_log(log, architecture, args, workload, rest_gib=rest_gib)

    def view() -> "View":
        found: View = engine.part("balance_view").balance_view(answer, findings, architecture, args)
        return found

    document: dict[str, Any] = {"findings": [finding.to_dict() for finding in findings]}
    answers.show("ratio", asked_for, view, lambda: answer.to_dict() | document)
    if at_or_above(findings, severity):
        raise typer.Exit(1)
