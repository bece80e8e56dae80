"""``hybridcalc plan``: what an engine will allocate, clamp and refuse, and which flags serve the workload better.

Everything that is no option of this command is read as the engine's own command line, so that every spelling the
engine takes works here; what follows ``--`` is a whole launch line.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.deployment import KINDS, Rest, Workload, exact_rest, parse_lengths
from hybridcalc.engines.sglang import memory
from hybridcalc.engines.sglang.config import NEWEST_VERSION, Refusal, ServerArgs
from hybridcalc.engines.sglang.flags import MOST_SLOTS
from hybridcalc.engines.sglang.server_plan import Plan, plan, refused
from hybridcalc.errors import InputError
from hybridcalc.findings import at_or_above
from hybridcalc.reports.document import print_json

LAUNCH_WORDS = "hybridcalc.launch_words"
PLATFORMS = ("cuda", "hip", "npu", "xpu", "musa", "cpu")
Memory = Callable[[ServerArgs], Rest]
"""Memory left for the pools, which may depend on the arguments (--mem-fraction-static)."""


class LaunchCommand(TyperCommand):
    """A command that keeps what follows ``--`` apart: a launch line to read, not words of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before ``--``."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[LAUNCH_WORDS] = args[at + 1 :]
            args = args[:at]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "plan", cls=LaunchCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[MODEL] [ENGINE FLAGS] [OPTIONS] [-- LAUNCH LINE]",
)  # fmt: skip
def plan_command(
    context: typer.Context,
    rest: Annotated[
        str | None, typer.Option("--rest", metavar="SIZE", help="Memory left for both pools on one rank.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME|SIZE", help="GPU, with --weights and --mem-fraction-static.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="SIZE", help="Weights on one rank (`mem usage` of a boot log).")
    ] = None,
    avail_before: Annotated[
        str | None, typer.Option("--avail-before", metavar="GIB", help="`avail mem` a boot printed before the weights.")
    ] = None,
    avail_after: Annotated[
        str | None, typer.Option("--avail-after", metavar="GIB", help="`avail mem` a boot printed after the weights.")
    ] = None,
    length: Annotated[
        str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Tokens a request holds: prompt and answer.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", metavar="L:N,...", help="Unequal requests: 8k:20,128k:2 (length:requests)."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-C", metavar="N", min=1, max=MOST_SLOTS, help="Requests that should run."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", metavar="KIND", help=f"Kind of work: {', '.join(KINDS)}.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="FLAGS", help="Plan these engine flags as well, side by side.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="NAME=V", help="Plan every value: NAME=a,b,c or NAME=low:high:step; repeatable."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a sweep as CSV.")] = False,
    draft_layers: options.DraftLayers = None,
    draft_kv_bytes_per_token: options.DraftKv = None,
    max_draft_tokens: Annotated[
        int | None,
        typer.Option("--max-draft-tokens", metavar="N", min=1, max=1024, help="Most draft tokens, where they adapt."),
    ] = None,
    platform: Annotated[
        str, typer.Option("--platform", metavar="NAME", help="cuda, hip, npu, xpu, musa or cpu.")
    ] = "cuda",
    env: options.Environment = None,
    engine_version: options.EngineVersion = NEWEST_VERSION,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error, never.")
    ] = "never",
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """What SGLang will allocate, where it clamps, what it refuses, and which flags serve the workload better.

    MODEL and the engine's own flags come as on its command line, or as a launch line after --. Memory comes from
    --rest; or --gpu, --weights and --mem-fraction-static; or the two `avail mem` figures of a boot.
    """
    extra: dict[str, Any] = {
        "draft_layers": draft_layers, "draft_kv_bytes_per_token": draft_kv_bytes_per_token,
        "max_draft_tokens": max_draft_tokens, "platform": platform, "engine_version": engine_version,
    }  # fmt: skip
    words = list(context.args)
    _check_options(words, [name for option in context.command.params for name in option.opts])
    _check_together(platform, sweep=bool(sweep), compare=compare is not None, as_csv=as_csv, as_json=as_json)
    launch_words, launch_env = _launch(words, context.meta.get(LAUNCH_WORDS))
    environment = {**launch_env, **options.environment(env or [])}
    name, args = _arguments(launch_words, environment, extra)
    model = options.model(name)
    work = _workload(length, lengths, concurrency, workload)
    severity = options.severity("--fail-on", fail_on)
    given = (rest, gpu, weights, avail_before, avail_after)
    if not any(given) and any(axis.partition("=")[0].strip().removeprefix("--") == "rest" for axis in sweep or []):
        given = ("1GiB", None, None, None, None)  # every point brings its own
    memory_left = _memory(*given, model, name)
    if sweep:
        _sweep(
            model,
            lambda flags: _arguments([*launch_words, *flags], environment, extra)[1],
            sweep,
            memory_left,
            work,
            as_csv=as_csv,
            as_json=as_json,
        )
        return
    first = _planned(model, args, memory_left, work)
    if compare is not None:
        more, more_env = _more_flags(compare)
        other_name, other = _arguments([*launch_words, *more], environment | more_env, extra)
        other_model = model if other_name == name else options.model(other_name)
        second = _planned(other_model, other, _memory(*given, other_model, other_name), work)
        _compare((model, args, first), (other_model, other, second), compare, as_json=as_json)
        return
    if isinstance(first, Refusal):
        if as_json:
            print_json("plan", refused(model, args, first))
        else:
            _print_refusal(first)
        raise typer.Exit(1)
    if as_json:
        print_json("plan", first.to_dict())
    else:
        from hybridcalc.reports.plan_text import print_plan

        print_plan(first, explain=explain)
    if at_or_above(first.findings, severity):
        raise typer.Exit(1)


def _launch(words: list[str], launch: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """The engine's words and environment; what stands outside the launch line comes last, so that it wins."""
    from hybridcalc.commandline import read_launch

    if launch is None:
        return words, {}
    read = read_launch(launch)
    if read.engine not in (None, "sglang"):
        raise InputError(f"the launch line starts {read.engine}, which is not planned yet", fix="give an SGLang line")
    if words and not words[0].startswith("-"):
        words = ["--model-path", *words]
    return [*read.words, *words], dict(read.env)


def _arguments(words: Sequence[str], env: dict[str, str], extra: dict[str, Any]) -> tuple[str, ServerArgs]:
    from dataclasses import replace

    from hybridcalc.engines.sglang.command import from_words

    model, args = from_words(words, env)
    if model is None:
        raise InputError(
            "plan needs a MODEL", fix="name a preset (`hybridcalc models`), a config.json, or --model-path"
        )
    args = replace(args, **extra)
    options.check_arguments(args)
    return model, args


def _more_flags(text: str) -> tuple[list[str], dict[str, str]]:
    """Flags of a comparison, as a suggestion states them: variables first, a MODEL may follow."""
    from hybridcalc.shell import split_command

    words, env = list(split_command(text)), dict[str, str]()
    while words and not words[0].startswith("-") and "=" in words[0]:
        env |= options.environment([words.pop(0)])
    if words and not words[0].startswith("-"):
        words.insert(0, "--model-path")
    return words, env


def _check_options(words: Sequence[str], own: Sequence[str]) -> None:
    """Refuse a misspelt option of this command: the engine would pass over a flag it does not know."""
    from difflib import get_close_matches

    from hybridcalc.engines.sglang.flags import FLAGS, OTHER_FLAGS

    engine = {spelling for flag in FLAGS for spelling in flag.spellings} | OTHER_FLAGS
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--") or any(spelling.startswith(name) for spelling in engine):
            continue
        near = get_close_matches(name[:80], [*own, *engine], n=1, cutoff=0.8)
        if near and near[0] in own:
            raise InputError(f"{name[:40]} is not an option of plan", fix=f"write {near[0]}")


def _check_together(platform: str, *, sweep: bool, compare: bool, as_csv: bool, as_json: bool) -> None:
    """Refuse options of which one would be passed over."""
    if platform not in PLATFORMS:
        raise InputError(f"--platform {platform[:40]!r} is not known", fix=f"write {', '.join(PLATFORMS)}")
    if sweep and compare:
        raise InputError("--sweep and --compare exclude each other", fix="give one of them")
    if as_csv and not sweep:
        raise InputError("--csv prints a sweep, and there is none", fix="add --sweep NAME=values, or write --json")
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other", fix="give one of them")


def _workload(length: str | None, lengths: str | None, concurrency: int | None, kind: str | None) -> Workload:
    if length is not None and lengths is not None:
        raise InputError("-L and --lengths exclude each other", fix="give one of them")
    if kind is not None and kind not in KINDS:
        raise InputError(f"--workload {kind[:40]!r} is not a kind of work", fix=f"write {', '.join(KINDS)}")
    if lengths is not None:
        return Workload(parse_lengths(lengths), concurrency, kind)
    tokens = options.tokens("-L", length)
    return Workload(((tokens, 1),) if tokens else (), concurrency, kind)


def _memory(
    rest: str | None, gpu: str | None, weights: str | None, before: str | None, after: str | None, model: Architecture,
    name: str,
) -> Memory:  # fmt: skip
    """How the memory left follows from the arguments, from whichever way it was given; one way only."""
    boot = before is not None or after is not None
    if sum((rest is not None, gpu is not None, boot)) > 1:
        raise InputError("the memory is given in more than one way", fix="keep --rest, --gpu or the avail figures")
    if weights is not None and gpu is None:
        raise InputError("--weights says nothing without --gpu", fix="add --gpu NAME, or leave it out")
    if rest is not None:
        known = exact_rest(_signed_gib("--rest", rest))
        return lambda _: known
    if before is not None and after is not None:
        left = _gib_figure("--avail-before", before), _gib_figure("--avail-after", after)
        return lambda args: memory.rest_from_boot(*left, model, args)
    if boot:
        raise InputError("--avail-before and --avail-after go together", fix="give both figures of the boot log")
    if gpu is not None:
        card = memory.find_gpu(gpu)
        weighed = None if weights is None else options.gib("--weights", weights)
        return lambda args: memory.rest_from_gpu(card, _weights(weighed, name, args), model, args)
    raise InputError(
        "plan needs the memory left for the pools: add --rest SIZE",
        fix="or --gpu NAME --weights SIZE --mem-fraction-static F, or --avail-before GIB --avail-after GIB",
    )


def _weights(given: float | None, name: str, args: ServerArgs) -> float:
    """Weights on one rank, GiB: as given, or from the checkpoint that MODEL names."""
    weighed = memory.weights_from_index(Path(name), args) if given is None else given
    if weighed is None:
        raise InputError("--gpu needs the weights on one rank", fix="add --weights SIZE")
    return weighed


def _signed_gib(flag: str, text: str) -> float:
    """A size in GiB that may be below zero, as a boot that runs out of memory prints it."""
    sign, size = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text)
    return sign * (options.gib(flag, size) or 0.0)


def _gib_figure(flag: str, text: str) -> float:
    """A figure of a log: GiB as printed, with or without its unit."""
    try:
        value = float(text.strip().lower().removesuffix("gib").removesuffix("gb").strip())
    except ValueError:
        raise InputError(
            f"{flag} {text[:20]!r} is not a figure in GiB", fix="write 22.93, as the log prints it"
        ) from None
    if not 0 < value < 2**20:
        raise InputError(f"{flag} {text[:20]!r} is not a usable size")
    return value


def _planned(model: Architecture, args: ServerArgs, memory_left: Memory, work: Workload) -> Plan | Refusal:
    try:
        return plan(model, args, rest=memory_left(args), workload=work)
    except Refusal as refusal:
        return refusal


def _print_refusal(refusal: Refusal) -> None:
    from hybridcalc.reports import terminal

    out = terminal.console()
    terminal.verdict(out, "does not start", refusal.reason, style=terminal.TROUBLE)
    rows = [("rule", refusal.rule, "", ""), ("stage", refusal.stage, "", "of the engine's start-up")]
    terminal.figures(out, rows)
    if refusal.fix:
        terminal.notes(out, [refusal.fix], label="fix")


Planned = tuple[Architecture, ServerArgs, Plan | Refusal]
"""One side of a comparison: what was asked and the answer."""


def _compare(first: Planned, second: Planned, flags: str, *, as_json: bool) -> None:
    if as_json:
        documents = [
            refused(model, args, p) if isinstance(p, Refusal) else p.to_dict() for model, args, p in (first, second)
        ]
        print_json("plan", {"compare": documents, "flags": flags})
        return
    from hybridcalc.reports.plan_text import print_comparison

    print_comparison(first[2], second[2], flags)


def _sweep(
    model: Architecture, arguments: Callable[[list[str]], ServerArgs], specs: list[str], memory_left: Memory,
    work: Workload, *, as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    from hybridcalc.engines.sglang.sweep import count_points, mark_front, parse_axis, sweep
    from hybridcalc.reports import plan_text

    axes = [parse_axis(spec) for spec in specs]
    count = count_points(axes)
    length: Fraction | None = work.mean_length
    points = sweep(model, arguments, axes, memory=memory_left, length=length)
    marked = mark_front(list(plan_text.with_progress(points, count)))
    if as_json:
        print_json("plan", {"sweep": [point.to_dict(axes) for point in marked]})
    elif as_csv:
        rows = [point.to_dict(axes) for point in marked]
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        plan_text.print_sweep(axes, marked, length)
