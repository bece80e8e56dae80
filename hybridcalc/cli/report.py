"""``hybridcalc report``: one page about a model, a boot log or a launch line.

It only decides what the target is and asks the command that answers it for its page: `log` for a log, `plan` where the
memory is known, else `ratio`, or `crossover` for a model that keeps only a state or only KV.
"""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from hybridcalc.cli import answers, options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.plan import LAUNCH_WORDS, LaunchCommand
from hybridcalc.engines import ENGINES
from hybridcalc.errors import HybridcalcError, InputError, printable, quoted

MEMORY = (
    "--rest", "--available", "--gpu", "--avail-before", "--avail-after", "--kv-cache-memory-bytes", "--engine",
)  # fmt: skip
"""Options that make it a plan."""
DEFAULT_LENGTH = "8k"
CONFIGS = (".json", ".yaml", ".yml")
LENGTHS = ("-L", "--length", "--lengths")
OWN_LENGTHS = ("--shared-prefix", "--private")
"""Options of a plan that say how long requests are."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "report",
    cls=LaunchCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[TARGET] -o FILE [OPTIONS OF THE COMMAND THAT ANSWERS] [-- LAUNCH LINE]",
)
def report(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            autocompletion=options.complete_model,
            help="A MODEL, a boot log, or a launch line (quoted, or the path of a script).",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", "--save", metavar="FILE", help="The page to write, FILE.html.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the page where there is one.")] = False,
) -> None:
    """One page with the verdict, pictures, settings to try, the budget, findings, steps and flags to copy.

    Options of the command that answers come along: those of `log` for a boot log, of `plan` for a launch line or where
    memory is given (--rest, --gpu, ...), else those of `ratio`. Requests of 8k tokens are taken unless -L says more, on
    vLLM those of max_model_len.
    """
    from hybridcalc.cli.app import run

    if output is None:
        raise InputError("report needs a file to write", fix="add -o report.html")
    if Path(output).suffix.lower() != ".html":
        raise InputError(f"-o {quoted(output, 60)} is no page", fix="write -o FILE.html")
    save = ["--save", output, *(["--force"] if force else [])]
    launch: list[str] | None = context.meta.get(LAUNCH_WORDS)
    words = list(context.args)
    if target is None and launch is None:
        raise InputError("report needs a MODEL, a boot log or a launch line", fix="see `hybridcalc report --help`")
    if target is not None and target.startswith("-") and target != "-":
        words, target = [target, *words], None
    asked_for = answers.wanted(answers.Forms(save=output, force=force))
    command = _command(target, words, launch, save)
    if command[0] in ("ratio", "crossover") and not words:
        _model_report(command, asked_for)
        return
    raise typer.Exit(run(command))


def _model_report(command: list[str], asked_for: answers.Wanted) -> None:
    """The page of a model alone: of the first command that has an answer for it, else of what it stores."""
    from hybridcalc.cli.app import run

    refused: HybridcalcError | None = None
    for words in (command, ["crossover", command[1], *command[command.index("--save") :]]):
        try:
            run(words)
        except HybridcalcError as error:
            refused = refused or error
        else:
            return
    model, why = options.model(command[1]), refused
    assert why is not None  # noqa: S101  (nothing answered)
    from hybridcalc.engines.crossover_view import stored_view

    answers.show("report", asked_for, lambda: stored_view(model, ENGINES[ENGINES.usual], why), dict)


def _command(target: str | None, words: list[str], launch: list[str] | None, save: list[str]) -> list[str]:
    """The command line that answers."""
    if launch is not None:
        named = [target] if target is not None else []
        return ["plan", *named, *words, *_length(words, launch), *save, "--", *launch]
    assert target is not None  # noqa: S101  (asked for before)
    if len(target.split()) > 1 or target.endswith(".sh"):
        return ["plan", *words, *_length(words, [target]), *save, "--", target]
    if _is_folder_of_files(target):
        name = printable(target, 60)
        raise InputError(
            f"{name} is a folder of deployments, and a page is of one", fix=f"name a script: {name}/FILE.sh"
        )
    if target == "-" or _is_log(target):
        return ["log", target, *words, *_length(words), *save]
    memory = any(word.partition("=")[0] in MEMORY for word in words)
    if memory or not ENGINES[ENGINES.meant_by([target])].offers("balance"):
        return ["plan", target, *words, *_length(words, []), *save]
    model = options.model(target)
    if model.state is None or model.attention is None:
        return ["crossover", target, *words, *save]
    return ["ratio", target, *words, *_length(words), *save]


def _length(words: list[str], launch: list[str] | None = None) -> list[str]:
    """The length that is taken where none is given; ``launch``: a plan's launch line, whose engine may have its own."""
    names = [word.partition("=")[0] for word in words]
    given = any(name in LENGTHS or name.startswith("-L") for name in names)
    if launch is None:
        return [] if given else ["-L", DEFAULT_LENGTH]
    given |= any(name in OWN_LENGTHS for name in names) or inputs.swept("length", _values(words, "--sweep"))
    given |= any(inputs.is_traffic(kind) for kind in _values(words, "--workload"))
    if given or launch == ["-"]:
        return []
    engine = next(iter(_values(words, "--engine")), None)
    served = ENGINES[inputs.engine_of(engine, inputs.read_line(launch or None))]
    return [] if served.own_length else ["-L", DEFAULT_LENGTH]


def _values(words: list[str], name: str) -> list[str]:
    """What an option is given, each time."""
    joined = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return joined + [value for word, value in pairwise(words) if word == name]


def _is_folder_of_files(target: str) -> bool:
    """Whether it is a folder without a model in it."""
    with suppress(OSError, ValueError):
        return Path(target).is_dir() and not (Path(target) / "config.json").exists()
    return False


def _is_log(target: str) -> bool:
    """Whether it is a file, and none of those that describe a model."""
    try:
        path = Path(target)
        return path.is_file() and path.suffix.lower() not in CONFIGS
    except (OSError, ValueError):
        return False
