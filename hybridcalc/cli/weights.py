"""``hybridcalc weights``: what a model's weights take, in its checkpoint and on one rank."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridcalc.cli import options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.app import Json, command
from hybridcalc.cli.plan import LAUNCH_WORDS, LaunchCommand
from hybridcalc.errors import HybridcalcError, ShardingError
from hybridcalc.units import MOST_RANKS

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.engines.engine import Engine
    from hybridcalc.engines.weights import Weights

OTHER_CARDS = ("b200", "a100", "mi300x")
"""One of each kind whose kernels may keep weights another way than the card that is meant where none is named."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _ranks(*names: str, text: str) -> Any:
    return typer.Option(*names, metavar="N", min=1, max=MOST_RANKS, help=text, rich_help_panel=options.RANKS)


@command(
    app,
    "weights",
    cls=LaunchCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[MODEL] [ENGINE FLAGS] [OPTIONS] [-- LAUNCH LINE]",
)
def weights(
    *,
    context: typer.Context,
    tp_size: Annotated[
        int | None, _ranks("--tp-size", "--tp", "--tensor-parallel-size", text="Tensor-parallel ranks.")
    ] = None,
    pp_size: Annotated[
        int | None, _ranks("--pp-size", "--pp", "--pipeline-parallel-size", text="Pipeline stages.")
    ] = None,
    ep_size: Annotated[
        int | None, _ranks("--ep-size", "--ep", "--expert-parallel-size", text="Ranks that share the experts out.")
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization", "-q", metavar="NAME", help="How a 16-bit checkpoint is quantised: fp8, nvfp4, awq, ..."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="The card, whose kernels may keep scales another way.")
    ] = None,
    engine: options.EngineName = None,
    engine_version: options.EngineVersion = None,
    env: options.Environment = None,
    as_json: Json = False,
    explain: options.Explain = False,
    verbose: options.Verbose = False,
) -> None:
    """What the weights of a model take: parameters, bytes of the checkpoint, bytes on the heaviest rank, by group.

    Closed forms of the config.json, the headers of safetensors in a local folder, or a preset; where none of them
    tells, an interval that says why. --explain lists every tensor with its shape and its part on the rank.
    """
    own = [name for option in context.command.params for name in option.opts]
    given: dict[str, Any] = {
        "tp_size": tp_size,
        "pp_size": pp_size,
        "ep_size": ep_size,
        "quantization": quantization,
        "gpu": gpu,
        "engine_version": engine_version,
    }
    launch, variables = context.meta.get(LAUNCH_WORDS), options.environment(env or [])
    question = inputs.question(context.args, launch, variables, own, engine, given, "weights")
    asked = question.arguments()
    model = options.model(asked.model)
    try:
        found = question.engine.weights(model, asked.args)
    except ShardingError as error:
        raise (question.engine.not_shared(model, asked.args, asked.shared, error) or error) from None
    if as_json:
        from hybridcalc.output.document import print_json

        print_json("weights", {"engine": question.engine.name, **found.to_dict()})
        return
    from hybridcalc.engines.weights_view import weights_view
    from hybridcalc.hardware import find_gpu
    from hybridcalc.output.text import print_view

    ranks = question.engine.server_ranks(asked.args)
    others = () if gpu is not None else _on_other_cards(question.engine, model, asked.args, found)
    card = None if gpu is None else find_gpu(gpu)
    view = weights_view(found, question.engine.title, ranks, tensors=explain, others=others, card=card)
    print_view(view, explain=False, verbose=verbose)


def _on_other_cards(
    engine: "Engine", model: "Architecture", args: Any, found: "Weights"
) -> "tuple[tuple[str, Weights], ...]":
    """Weights on cards whose kernels keep them another way, where that is more than a hundredth."""
    from hybridcalc.hardware import find_gpu

    others = list[tuple[str, "Weights"]]()
    for name in OTHER_CARDS:
        with suppress(HybridcalcError):
            other = engine.weights(model, engine.with_options(args, {"gpu": find_gpu(name)}))
            if abs(other.likely - found.likely) > found.likely // 100:
                others.append((name, other))
    return tuple(others)
