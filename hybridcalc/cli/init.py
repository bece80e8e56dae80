"""``hybridcalc init``: a hybridcalc.yaml for a folder, from flags or by asking, that `check` then holds."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridcalc.architecture.presets import load_model
from hybridcalc.cli import options
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, printable
from hybridcalc.hardware import find_gpu
from hybridcalc.units import parse_tokens

FILE = "hybridcalc.yaml"
ABOUT = """# What `hybridcalc check` holds this folder to; `hybridcalc check --schema`: what else may stand here
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write hybridcalc.yaml.")] = Path(),
    command: Annotated[
        str | None, typer.Option("--command", metavar="LINE", help="The launch line, in place of --model and --engine.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="A preset, its alias or Hub id.")
    ] = None,
    engine: options.EngineName = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="GPU, several as 8xh200.")] = None,
    length: options.Length = None,
    concurrency: options.Concurrency = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write hybridcalc.yaml: the deployment, its GPUs, its requests and what is expected of it, for `hybridcalc check`.

    What no flag says is asked for in a terminal. The file expects that the server starts and, with -C, that so many
    requests run at once; docs/check.md says what else may stand in it.
    """
    target = folder / FILE
    if not folder.is_dir():
        raise InputError(f"{printable(str(folder), 60)} is no folder", fix="name one that is there")
    if target.exists() and not force:
        raise InputError(f"{printable(str(target), 60)} is there already", fix="add --force to write over it")
    if target.is_symlink() and not target.exists() and not force:
        raise InputError(
            f"{printable(str(target), 60)} is a link to a file that is not there", fix="add --force to write through it"
        )
    given = {"--model or --command": command or model, "--gpu": gpu, "-L": length}
    lacking = [flag for flag, text in given.items() if text is None]
    if lacking and not sys.stdin.isatty():
        wanted = ", ".join(lacking)
        raise InputError(f"init needs {wanted}", fix=f"add {wanted}, or run it in a terminal, where it asks")
    if command is None and model is None:
        model = _asked("Model, or its launch line in one line", _served)
        if len(model.split()) > 1:
            command, model = model, None
    card = gpu or _asked("GPU, several as 8xh200", find_gpu)
    tokens = parse_tokens(length or _asked("Tokens of a request, prompt and answer", parse_tokens))
    at_once = {} if concurrency is None else {"concurrency": concurrency}
    entry = {
        **_launch(command, model, engine, find_gpu(card).cards),
        "hardware": _hardware(card),
        "workload": {"length": tokens, **at_once},
        "expect": {"fits": True, **({} if concurrency is None else {"min_requests": concurrency})},
    }
    target.write_text(_text(entry), encoding="utf-8")
    typer.echo(f"wrote {target}\n  next  hybridcalc check {shlex.quote(str(target))}")


def _served(text: str) -> None:
    """Raises InputError for what is neither a model nor a line that starts an engine."""
    if len(text.split()) == 1:
        load_model(text)
    elif not ENGINES.launch(text).engine:
        raise InputError("the line starts no engine known here", fix=f"start one of {', '.join(ENGINES)}")


def _launch(command: str | None, model: str | None, engine: str | None, cards: int | None) -> dict[str, Any]:
    """The keys of a deployment that say what starts. Raises InputError for what is not known, and for too much."""
    if command is not None:
        if model is not None or engine is not None:
            raise InputError("--command says model and engine", fix="leave out --model and --engine")
        _served(f"{command} ")
        return {"name": "server", "command": command}
    load_model(model or "")
    served = ENGINES[ENGINES.meant_by([model or ""]) if engine is None else ENGINES.named(engine, flag="--engine")]
    flag = served.flags.by_field.get(served.renamed.get("tp_size", "tp_size"))
    ranks = {} if flag is None or not cards or cards == 1 else {flag.spellings[0].lstrip("-"): cards}
    return {"name": "server", "model": model, "engine": served.name, "flags": ranks}


def _hardware(card: str) -> dict[str, Any]:
    cards = find_gpu(card).cards
    return {"gpu": card} if cards is None else {"gpu": card.lstrip("0123456789").lstrip(" xX*"), "gpus": cards}


def _text(entry: dict[str, Any]) -> str:
    """The file: every value as JSON quotes it, which YAML reads as the same."""
    keys = "\n    ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items() if value)
    return f"{ABOUT}deployments:\n  - {keys}\n"


def _asked(question: str, check: Callable[[str], Any]) -> str:
    """The answer to a question, asked until it is right."""
    while True:
        answer: str = typer.prompt(question)
        try:
            check(answer)
        except InputError as error:
            typer.echo(f"  {error.message}{'; ' + error.fix if error.fix else ''}", err=True)
        else:
            return answer
