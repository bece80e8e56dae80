"""``hybridcalc models``: the presets, and ``models show NAME``: one of them with the source of its geometry."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import FAMILIES, NO_FAMILY
from hybridcalc.architecture.presets import find_preset, from_preset, shipped_presets
from hybridcalc.cli import options
from hybridcalc.cli.app import Json
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, quoted
from hybridcalc.output.document import print_json


class Presets(TyperGroup):
    """The list of presets, and the commands about one of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named, else the list of those presets that have the words in their names."""
        if self.get_command(ctx, args[0]) is None:
            return "matching", self.get_command(ctx, "matching"), args
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Presets, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    family: Annotated[
        str | None,
        typer.Option("--family", metavar="NAME", help=f"Only one family: {', '.join((*FAMILIES, NO_FAMILY))}."),
    ] = None,
    as_json: Json = False,
    verbose: options.Verbose = False,
) -> None:
    """The model presets: layers, state of one sequence and KV of one token on a single rank, and how sure they are.

    State in the dtype SGLang keeps it in by default, KV in the model's own.
    Words choose those that have each in their names: `hybridcalc models qwen 27b`.
    """
    if context.invoked_subcommand == "show" and family is not None:
        raise InputError("--family chooses among presets, `show` is of one", fix="drop it")
    if family is not None and family not in (choices := (*FAMILIES, NO_FAMILY)):
        raise InputError(f"--family {quoted(family)} is not a family", fix=f"write one of {', '.join(choices)}")
    context.obj = {"as_json": as_json, "family": family, "verbose": verbose}
    if context.invoked_subcommand is None:
        _list(family, (), as_json=as_json, verbose=verbose)


@app.command(hidden=True)
def matching(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="WORD...")],
    as_json: Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Presets that have each of the words in their names: ``hybridcalc models qwen 27b``."""
    form = context.obj
    _list(form["family"], words, as_json=as_json or form["as_json"], verbose=verbose or form["verbose"])


def _list(family: str | None, words: Sequence[str], *, as_json: bool, verbose: bool) -> None:
    """The presets of a family whose names, aliases included, have each of the words."""
    presets = [preset for preset in shipped_presets().values() if family in (None, preset["family"])]
    for word in words:
        presets = [preset for preset in presets if word.lower() in _names(preset)]
        if not presets:
            raise InputError(f"no preset has {quoted(word)} in its name", fix="`hybridcalc models` lists them all")
    entries = [_entry(preset) for preset in presets]
    if as_json:
        print_json("models", {"models": entries})
        return
    from hybridcalc.output.tables import print_models

    print_models(entries, chosen=bool(words or family), verbose=verbose)


def _names(preset: dict[str, Any]) -> str:
    return " ".join((preset["id"], preset["hf_id"], *preset.get("aliases", ()))).lower()


@app.command()
def show(
    context: typer.Context,
    name: options.Model,
    tp_size: options.Tp = 1,
    as_json: Json = False,
    verbose: options.Verbose = False,
) -> None:
    """One preset or config: geometry, sizes per rank, source, confidence."""
    found = find_preset(name)
    model = options.model(name)
    preset = shipped_presets()[found[0]] if found is not None and model.name == found[0] else None
    entry = _entry(preset, tp_size) if preset is not None else _sizes(model, tp_size)
    if as_json or context.obj["as_json"]:
        print_json("models", {"models": [entry]})
        return
    from hybridcalc.output.tables import print_model

    print_model(entry, model.describe_layers, model.reading, verbose=verbose)


def _entry(preset: dict[str, Any], tp: int = 1) -> dict[str, Any]:
    """A preset's own fields, then the sizes that follow from them."""
    listed = {key: preset.get(key) for key in ("hf_id", "aliases", "parameters_b", "evidence")}
    stated = {key: preset.get(key) for key in ("state", "attention", "window")}
    model = from_preset(preset)
    return _sizes(model, tp) | listed | stated | {"notes": preset.get("notes", "")}


def _sizes(model: Architecture, tp: int) -> dict[str, Any]:
    """The sizes of a model as the usual engine keeps them."""
    sizes: dict[str, Any] = ENGINES[ENGINES.usual].part("sizes").model_sizes(model, tp)
    return sizes
