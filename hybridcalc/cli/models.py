"""``hybridcalc models``: the presets, and ``models show NAME``: one of them with the source of its geometry."""

from typing import Annotated, Any

import typer

from hybridcalc.architecture.families.family import FAMILIES, NO_FAMILY
from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import find_preset, from_preset, shipped_presets
from hybridcalc.cli import options
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.kv import kv_cell
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.states import state_slot
from hybridcalc.errors import InputError, UnknownFamily, quoted
from hybridcalc.output.document import print_json
from hybridcalc.units import format_bytes

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    family: Annotated[
        str | None,
        typer.Option("--family", metavar="NAME", help=f"Only one family: {', '.join((*FAMILIES, NO_FAMILY))}."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """The model presets: layers, state of one sequence and KV of one token on a single rank, and how sure they are.

    State in the dtype SGLang keeps it in by default, KV in the model's own.
    """
    if context.invoked_subcommand is not None:
        if family is not None:
            raise InputError(f"--family chooses among presets, `{context.invoked_subcommand}` is of one", fix="drop it")
        context.obj = {"as_json": as_json}
        return
    if family is not None and family not in (choices := (*FAMILIES, NO_FAMILY)):
        raise InputError(f"--family {quoted(family)} is not a family", fix=f"write one of {', '.join(choices)}")
    entries = [_entry(preset) for preset in shipped_presets().values() if family in (None, preset["family"])]
    if as_json:
        print_json("models", {"models": entries})
        return
    from hybridcalc.output import terminal

    out = terminal.console()
    rows = [
        (
            e["name"] + ("" if e["confidence"] == "verified" else " *"),
            e["family"],
            _layers(e),
            format_bytes(e["state_bytes"]) if e["state_bytes"] else "-",
            f"{e['kv_bytes_per_token']:,} B" if e["kv_bytes_per_token"] else "-",
        )
        for e in entries
    ]
    terminal.listing(out, ("model", "family", "layers", "state", "KV a token"), rows, right=(2, 3, 4))
    texts = ["layers are recurrent + attention; sizes are those of a single rank", "* second-hand geometry"]
    terminal.notes(out, [*texts, f"{len(rows)} presets; `hybridcalc models show NAME` tells where each comes from"])


def _layers(entry: dict[str, Any]) -> str:
    return f"{entry['state_layers']} + {entry['attention_layers'] + entry['window_layers']}"


@app.command()
def show(context: typer.Context, name: options.Model, tp_size: options.Tp = 1, as_json: options.Json = False) -> None:
    """One preset or config: geometry, sizes per rank, source, confidence."""
    found = find_preset(name)
    model = options.model(name)
    preset = shipped_presets()[found[0]] if found is not None and model.name == found[0] else None
    entry = _entry(preset, tp_size) if preset is not None else _sizes(model, tp_size)
    if as_json or context.obj["as_json"]:
        print_json("models", {"models": [entry]})
        return
    from hybridcalc.output import terminal

    out = terminal.console()
    terminal.verdict(out, model.name, model.describe_layers)
    rows = [(key.replace("_", " "), _shown(value)) for key, value in entry.items() if value not in (None, "", [])]
    terminal.pairs(out, rows)
    terminal.notes(out, [model.reading] if model.reading else [])


def _entry(preset: dict[str, Any], tp: int = 1) -> dict[str, Any]:
    """A preset's own fields, then the sizes that follow from them."""
    listed = {key: preset.get(key) for key in ("hf_id", "aliases", "parameters_b", "evidence")}
    stated = {key: preset.get(key) for key in ("state", "attention", "window")}
    model = from_preset(preset)
    return _sizes(model, tp) | listed | stated | {"notes": preset.get("notes", "")}


def _sizes(model: Architecture, tp: int) -> dict[str, Any]:
    args = ServerArgs(tp_size=tp)
    try:
        slot = state_slot(model, args) if model.state is not None else None
    except UnknownFamily:  # the engine may not run it yet; its geometry is known all the same
        slot = None
    no_slot = 0 if model.state is None else None
    cell = kv_cell(model._replace(window_attention=None), args, rules_for(None)[0])
    return {
        "name": model.name,
        "architecture": model.architecture,
        "family": model.family,
        "num_layers": model.num_layers,
        "state_layers": model.state_layers,
        "attention_layers": model.attention_layers,
        "window_layers": model.window_layers,
        "layers": model.layers,
        "tp_size": tp,
        "ssm_dtype": slot.ssm_dtype if slot else None,
        "state_bytes": slot.bytes if slot else no_slot,
        "conv_bytes": slot.conv_bytes if slot else no_slot,
        "ssm_bytes": slot.ssm_bytes if slot else no_slot,
        "kv_bytes_per_token": cell.target_bytes,
        "max_context": model.max_context,
        "source": model.source,
        "confidence": model.confidence or "as given",
    }


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return str(value)
