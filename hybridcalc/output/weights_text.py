"""A model's weights as text: what the heaviest rank holds, by group, and what quantisation spares."""

from hybridcalc.engines.weights import ADDED, Weights
from hybridcalc.output import terminal
from hybridcalc.units import format_bytes, short_dtype


def print_weights(found: Weights, engine: str, ranks: int, *, explain: bool) -> None:
    """The bytes on a rank, the figures they rest on, one line a group; with ``explain`` one a tensor."""
    out = terminal.console()
    where = "one rank" if ranks == 1 else f"the heaviest of {ranks} ranks"
    size = _gib(found.likely) if found.exact else f"{_gib(found.low)} to {_gib(found.high)}"
    terminal.verdict(out, size, f"of weights on {where} under {engine}: {found.checkpoint}")
    rows = [("parameters", f"{found.parameters:,}", _billions(found.parameters), _parts(found))]
    if found.checkpoint_bytes is not None:
        rows.append(
            ("checkpoint", f"{found.checkpoint_bytes:,} B", format_bytes(found.checkpoint_bytes), found.quantization)
        )
    if found.exact:
        rows.append(("on the rank", f"{found.likely:,} B", _gib(found.likely), found.weights_from))
    else:
        rows.append(("on the rank", f"{found.likely:,} B", _gib(found.likely), "the likely value of an estimate"))
    terminal.figures(out, rows)
    if found.groups:
        out.print()
        lines = [
            (f"  {g.name}", f"{g.parameters:,}" if g.parameters else "", _gib(g.bytes_per_rank), g.dtype, g.sharding)
            for g in found.groups
        ]
        terminal.listing(out, ("  group", "parameters", "on the rank", "stored as", "shared"), lines, right=(1, 2))
    if explain and found.lines:
        out.print()
        tensors = [
            (
                f"  {line.name.rpartition('.{}.')[2]}",
                f"{line.copies:,}",
                "x".join(map(str, line.shape)),
                f"{'x'.join(map(str, line.local))} {short_dtype(line.dtype)}",
                f"{line.bytes:,}",
            )
            for line in found.lines
        ]
        heads = ("  tensor", "times", "shape", "on the rank", "B")
        terminal.listing(out, heads, tensors, right=(1, 4))
    added = [f"{line.name}: {_gib(line.bytes)}, {line.sharding}" for line in found.lines if line.group == ADDED]
    terminal.notes(out, [text for text in (found.uncertain, _saved(found), *added) if text])


def _parts(found: Weights) -> str:
    other = found.parameters - found.parameters_text
    return f"{found.parameters_text:,} of text, {other:,} of vision and draft layers" if other else "text"


def _saved(found: Weights) -> str:
    """What quantisation spares of the same tensors in 16 bits."""
    if found.checkpoint_bytes is None or found.quantization == "none":
        return ""
    plain = 2 * found.parameters
    return (
        f"{found.quantization} spares {100 * (plain - found.checkpoint_bytes) / plain:.0f} % of {plain:,} B in 16 bits"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 10**9 else f"{count / 1e6:,.1f} M"
