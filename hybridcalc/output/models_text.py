"""Model presets as text: all of them as a table, or one with all that is known of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.output import terminal
from hybridcalc.units import format_bytes


def print_models(entries: Sequence[Mapping[str, Any]]) -> None:
    """One line a model."""
    out = terminal.console()
    rows = [
        (
            e["name"] + ("" if e["confidence"] == "verified" else " *"),
            e["family"],
            _layers(e),
            format_bytes(e["state_bytes_per_slot"]) if e["state_bytes_per_slot"] else "-",
            f"{e['kv_bytes_per_token']:,} B" if e["kv_bytes_per_token"] else "-",
        )
        for e in entries
    ]
    terminal.listing(out, ("model", "family", "layers", "state", "KV a token"), rows, right=(2, 3, 4))
    texts = ["layers are recurrent + attention; sizes are those of a single rank", "* second-hand geometry"]
    terminal.notes(out, [*texts, f"{len(rows)} presets; `hybridcalc models show NAME` tells where each comes from"])


def print_model(entry: Mapping[str, Any], layers: str, reading: str) -> None:
    """Every field of one model that is known; ``layers`` in words, ``reading``: how its config was read."""
    out = terminal.console()
    terminal.verdict(out, entry["name"], layers)
    rows = [(key.replace("_", " "), _shown(value)) for key, value in entry.items() if value not in (None, "", [])]
    terminal.pairs(out, rows)
    terminal.notes(out, [reading] if reading else [])


def _layers(entry: Mapping[str, Any]) -> str:
    return f"{entry['state_layers']} + {entry['attention_layers'] + entry['window_layers']}"


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
