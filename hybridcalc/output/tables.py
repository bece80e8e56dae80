"""Tables about models: presets, weights on a rank, state slots of a request, ReplaySSM's rings."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from hybridcalc.formulas import Strategy, smallest_ring
from hybridcalc.output import terminal
from hybridcalc.output.terminal import COLUMNS
from hybridcalc.units import format_bytes, short_dtype

MOST_MODELS = 8
"""Whose sizes are shown without -v."""


def print_models(entries: Sequence[Mapping[str, Any]], *, chosen: bool, verbose: bool) -> None:
    """One line a model; without ``verbose`` the first of those that were ``chosen``, or a line a family."""
    out = terminal.console()
    hidden = 0 if verbose else max(len(entries) - MOST_MODELS, 0)
    if hidden and not chosen:
        _families(out, entries)
        return
    count = f"{len(entries)} preset{'' if len(entries) == 1 else 's'}"
    entries = entries[: len(entries) - hidden]
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
    texts = ["layers are recurrent + attention; sizes are those of a single rank"]
    texts += ["* second-hand geometry"] if any(name.endswith("*") for name, *_ in rows) else []
    if hidden:
        terminal.notes(out, [f"{hidden} more, of {count}"], label="-v", style=terminal.QUIET)
    else:
        terminal.notes(out, [*texts, f"{count}; `hybridcalc models show NAME` tells where each comes from"])


def _families(out: Console, entries: Sequence[Mapping[str, Any]]) -> None:
    """How many there are of each family, and the names that fit beside."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        names.setdefault(entry["family"], []).append(entry["name"])
    terminal.verdict(out, f"{len(entries)} presets", f"of {len(names)} famil{'y' if len(names) == 1 else 'ies'}")
    room = COLUMNS - max(map(len, names)) - len("  " * 3 + "000")
    rows = [(f"  {family}", str(len(found)), _as_many(found, room)) for family, found in names.items()]
    terminal.listing(out, ("  family", "", "models"), rows, right=(1,))
    told = "each with its sizes; `hybridcalc models WORD` those with it in their name"
    terminal.notes(out, [told], label="-v", style=terminal.QUIET, gap=False)


def _as_many(names: Sequence[str], room: int) -> str:
    """The names that fit, and three dots for the others."""
    shown = ""
    for number, name in enumerate(names):
        longer = f"{shown}, {name}" if shown else name
        if len(longer) + (0 if number == len(names) - 1 else len(", ...")) > room:
            return f"{shown}, ..."
        shown = longer
    return shown


TELLING = ("hf_id", "state_bytes_per_slot", "kv_bytes_per_token", "max_context", "source", "confidence")
"""Fields of a model that are said first."""


def print_model(entry: Mapping[str, Any], layers: str, reading: str, *, verbose: bool) -> None:
    """The telling fields of one model, or every one that is known; ``layers`` in words, ``reading``: how its config was
    read.
    """
    out = terminal.console()
    terminal.verdict(out, entry["name"], layers if entry["tp_size"] == 1 else f"{layers}, on tp {entry['tp_size']}")
    known = {key: value for key, value in entry.items() if value not in (None, "", [])}
    shown = known if verbose else {key: known[key] for key in TELLING if key in known}
    terminal.pairs(out, [(key.replace("_", " "), _shown(value)) for key, value in shown.items()])
    terminal.notes(out, [reading] if reading and verbose else [])
    if not verbose:
        terminal.notes(out, [f"{len(known) - len(shown)} more fields"], label="-v", style=terminal.QUIET, gap=False)


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


def print_slots(answer: Mapping[str, Any], prompt: int | None, chunk: int | None) -> None:
    """S and why, the table, what the slots admit; ``prompt`` and ``chunk``: the tokens that were asked about."""
    out, chosen = terminal.console(), answer["selected"]
    count = chosen["slots"]
    terminal.verdict(out, f"S = {count} state slot{'' if count == 1 else 's'} per request", chosen["reason"])
    cells = {(r["strategy"], r["overlap"], r["skip_decode_lock"]): r for r in answer["table"] if r["radix_cache"]}
    rows = []
    for strategy in Strategy:
        row = [f"  {strategy.value}"]
        for overlap, skip in ((True, False), (False, False), (True, True), (False, True)):
            cell = cells[strategy.value, overlap, skip]
            row.append(str(cell["slots"]) if cell["allowed"] else "refused")
        rows.append(row)
    rows.append(["  radix cache off", "1", "1", "1", "1"])
    header = ("  strategy", "overlap", "no overlap", "overlap, skip*", "no overlap, skip*")
    terminal.listing(out, header, rows, right=(1, 2, 3, 4))
    out.print("  * with SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1", style=terminal.QUIET)
    notes = []
    if answer["max_concurrent"] is not None:
        slots, admitted = answer["max_mamba_cache_size"], answer["max_concurrent"]
        notes.append(f"{slots:,} slots // {count} ({chosen['strategy']}) admit {admitted:,} requests")
    if prompt and chunk:
        touched = f"ceil({prompt:,} / {chunk:,}) + 2 = {answer['prefill_slots']} slots"
        notes.append(f"a prompt of {prompt:,} tokens in chunks of {chunk:,} touches {touched}")
    terminal.notes(out, notes)


def print_rings(answer: Mapping[str, Any]) -> None:
    """Every ring, and whether their length is legal."""
    out = terminal.console()
    per_slot, total, slots = answer["ring_bytes_per_slot"], answer["total_bytes"], answer["slots"]
    if not answer["buffers"]:
        terminal.verdict(out, "0 B", answer["reason"])
        return
    if answer["legal"]:
        many = "a slot" if slots == 1 else f"{slots:,} slots of {per_slot:,} B"
        terminal.verdict(out, f"{total:,} B", f"{format_bytes(total)}: rings of {answer['cache_len']} steps for {many}")
    else:
        terminal.verdict(out, "refused", answer["reason"], style=terminal.TROUBLE)
    rows = [
        (f"  {b['name']}", " x ".join(f"{n:,}" for n in b["shape"]), short_dtype(b["dtype"]), f"{b['bytes']:,} B")
        for b in answer["buffers"]
    ]
    terminal.listing(out, ("  ring", "layers x slots x heads x steps x width", "dtype", "bytes"), rows, right=(1, 3))
    if answer["legal"]:
        terminal.notes(out, [answer["reason"]])
    else:
        fitting = max(smallest_ring(answer["draft_tokens"] or 1), 16)
        terminal.notes(out, [f"--linear-replayssm-cache-len {fitting}"], label="use")
