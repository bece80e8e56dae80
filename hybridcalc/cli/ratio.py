"""``hybridcalc ratio``: r* and what to set."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridcalc.cli import answers, options
from hybridcalc.cli.app import command
from hybridcalc.deployment import Memory, Workload, exact_rest
from hybridcalc.engines import ENGINES, offered
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError, Refusal, ShardingError
from hybridcalc.findings import Finding, at_or_above
from hybridcalc.units import MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.deployment import Rest
    from hybridcalc.engines.answer import Answer
    from hybridcalc.findings import View

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(app)
def ratio(
    *,
    context: typer.Context,
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
    card: options.CardGiven,
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
    fail_on: options.FailOn = "error",
    form: answers.Forms,
) -> None:
    """The ratio of state memory to KV memory at which both pools run out together (r*), and what to set.

    r* = (S + D) x state x dcp / (KV per token x L). Name a MODEL, or give a boot log, or both: then they are compared.
    """
    severity = options.severity("--fail-on", fail_on)
    asked_for = answers.wanted(form)
    engine = ENGINES[ENGINES.meant_by([model or ""])]
    if not engine.offers("balance"):
        raise InputError(f"{engine.title} splits no memory between pools: ratio says nothing of it", fix="write plan")
    known = _memory(rest, card)
    if any(card):
        engine.check_memory(known)
    options.check_fraction(card)
    if card.gpu is not None and log is not None:
        raise InputError("--log says how much memory there was, and --gpu as well", fix="leave one of them out")
    source = context.get_parameter_source("tp_size")
    typed = source is not None and source.name != "DEFAULT"
    args = options.engine_args(
        engine,
        gpu=known.gpu,
        share=not typed,
        mem_fraction_static=card.mem_fraction_static,
        **ranks._asdict() | ({} if typed else {"tp_size": None}),
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
    findings: tuple[Finding, ...] = ()
    architecture = options.model(model) if model is not None else None
    left: Rest | None = None
    try:
        if log is not None:
            room = offered(ENGINES.room(engine.name, "diagnosis", "ratio"), "ratio --log", engine.title)
            answer, findings = room.balance_log(log, architecture, args, workload, rest_gib=known.rest)
        elif known.gpu is None:
            answer = engine.offered("balance", "ratio").balance_model(architecture, args, workload, rest_gib=known.rest)
        else:
            left = _left(engine, architecture, args, known, shared=not typed)
            answer = engine.offered("balance", "ratio").balance_model(architecture, args, workload, rest=left)
            findings = tuple(finding for part in left.parts for finding in part.findings)
    except ShardingError as error:
        raise ((architecture and engine.not_shared(architecture, args, 0, error)) or error) from None
    if architecture is not None:
        engine.check_ranks(architecture, args)

    told, planned = engine.part("balance_view"), None
    if architecture is not None and answer.rest_gib is not None:
        planned = partial(_planned, engine, architecture, args, known, left or exact_rest(answer.rest_gib), workload)
    findings += told.too_long(answer, architecture) + told.short_of(answer, planned, args.attn_dp_size)

    def view() -> "View":
        found: View = engine.part("balance_view").balance_view(answer, findings, architecture, args, left)
        return found

    def document() -> dict[str, Any]:
        found: dict[str, Any] = answer.to_dict() | {"findings": [finding.to_dict() for finding in findings]}
        if left is None:
            return found
        from hybridcalc.engines.document import memory_document

        return found | {"gpus": engine.ranks(args), "memory": memory_document(engine, args, left)}

    answers.show("ratio", asked_for, view, document)
    if at_or_above(findings, severity):
        raise typer.Exit(1)


def _planned(
    engine: Engine, model: "Architecture", args: Any, known: Memory, rest: "Rest", workload: Workload
) -> "Answer":
    """The plan of the flags as they are given, which knows what more ranks would serve."""
    from hybridcalc.engines.remedy import Remedied, wider

    def left(other: "Architecture", changed: Any) -> "Rest":
        return engine.memory(other, changed, engine.weights_moved(known, other, changed, (model, args)))

    plan = engine.plan(model, args, rest, workload)
    if known.gpu is not None:
        plan.wider = partial(wider, Remedied(engine, model, args, left, workload, known.gpu.cards))
    return plan


def _memory(rest: str | None, card: options.CardGiven) -> Memory:
    """The memory as given. Raises InputError naming the option."""
    gpu = None
    if card.gpu is not None:
        from hybridcalc.hardware import find_gpu

        gpu = find_gpu(card.gpu)
    return Memory(rest=options.gib("--rest", rest), gpu=gpu, weights=options.gib("--weights", card.weights))


def _left(engine: Engine, model: "Architecture | None", args: Any, known: Memory, *, shared: bool) -> "Rest":
    """What a GPU leaves for both pools of a model. Raises Refusal, MemoryUnknown and InputError."""
    assert model is not None  # noqa: S101  (without a log one is asked for)
    try:
        return engine.memory(model, args, known)
    except Refusal as refusal:
        gpus = engine.shared_gpus(engine.arguments(), {"gpu": known.gpu, "share": shared})
        raise (engine.not_shared(model, args, gpus, refusal, known.gpu) or refusal) from None
