"""``hybridcalc verify``: allocate the tensors of a plan, read the allocator, and compare to the byte."""

import os
import time
from typing import Annotated, Any

import typer

from hybridcalc.cli import options, verify_inputs
from hybridcalc.cli.app import Json, command
from hybridcalc.cli.plan import LAUNCH_WORDS, LaunchCommand
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.output.document import print_json
from hybridcalc.units import parse_bytes

GIVE_WAY_SECONDS = 10.0
"""How long a process of torchrun that fails waits for the first to say so: the first exit code that torchrun sees ends
the others, with their words unsaid. One that fails alone speaks after it.
"""
app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(
    app,
    "verify",
    cls=LaunchCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[MODEL] [ENGINE FLAGS] [OPTIONS] [-- LAUNCH LINE]",
)
def verify(
    *,
    context: typer.Context,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", help="meta (no memory), cpu or cuda; default: cuda where there is one."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            "--scale", metavar="auto|N|full", help="auto: what fits beside what is in use; N: an N-th of it all."
        ),
    ] = "auto",
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="The most memory to take.")] = None,
    plan_file: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="FILE", help="Hold the tensors against this answer of plan --json; - reads stdin."
        ),
    ] = None,
    all_presets: Annotated[
        bool, typer.Option("--all", help="Every preset with a recurrent state, under these flags.")
    ] = False,
    engine_package: Annotated[
        bool, typer.Option("--engine-package", help="Compare with the SGLang or vLLM installed beside hybridcalc.")
    ] = False,
    engine: options.EngineName = None,
    known: options.MemoryGiven,
    server: options.ServerGiven,
    env: options.Environment = None,
    as_json: Json = False,
    explain: options.Explain = False,
    verbose: options.Verbose = False,
) -> None:
    """Allocate every tensor of a plan and compare formula, storage and allocator to the byte.

    MODEL, the engine's flags, launch lines and the memory come as for plan; without a memory the pools are sized by
    the flags, for 64 requests. Exits with 1 when a byte differs, with 2 for too little memory. Needs torch:
    pip install 'hybridcalc[torch]'.
    """
    given = {**known._asdict(), **server._asdict()}
    own = [name for option in context.command.params for name in option.opts]
    words = verify_inputs.Words(
        list(context.args), context.meta.get(LAUNCH_WORDS), options.environment(env or []), own, engine
    )
    if explain and all_presets:
        raise InputError("--explain shows the steps of one server, --all verifies many", fix="leave one of them out")
    limit = None if memory is None else parse_bytes(memory)
    boot = verify_inputs.boots_whole(words)
    if boot is not None:
        others = {"--device": device, "--memory": memory, "--plan": plan_file, "--scale": scale != "auto" or None}
        flags = {"--all": all_presets or None, "--engine-package": engine_package or None}
        _show_boot(verify_inputs.booted(words, given, boot, others | flags), explain, verbose, as_json=as_json)
        return
    try:
        subjects = verify_inputs.subjects(words, given, plan_file=plan_file, all_presets=all_presets)
        answer = _run(subjects, device, scale, limit, all_presets, engine_package, quiet=as_json)
    except HybridcalcError as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(GIVE_WAY_SECONDS)  # torchrun ends this process once the first has said what is wrong
            error.message = f"rank {os.environ['RANK'][:8]}: {error.message}"
        raise
    if answer is None:
        return  # another process of torchrun speaks
    if as_json:
        print_json("verify", answer.to_dict())
    else:
        from hybridcalc.output.verify_text import print_answer

        print_answer(answer, explain=explain, verbose=verbose)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def _show_boot(answer: Any, explain: bool, verbose: bool, *, as_json: bool) -> None:
    """Show what an engine that is booted whole came to. Raises Exit with 1 where something differs."""
    if as_json:
        print_json("verify", answer.to_dict())
    else:
        from hybridcalc.output.text import print_view

        print_view(answer.view, explain=explain, verbose=verbose)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def _run(
    subjects: Any, device: str | None, scale: str, limit: int | None, many: bool, engine_package: bool, *, quiet: bool
) -> Any:
    from hybridcalc.crosscheck.run import run_verification  # imports torch
    from hybridcalc.output.progress import byte_bars

    with byte_bars(quiet=quiet) as watch:
        return run_verification(
            subjects, device=device, scale=scale, limit=limit, many=many, engine_package=engine_package, watch=watch
        )
