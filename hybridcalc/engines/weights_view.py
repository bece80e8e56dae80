"""What weights come to, for people: on a rank, in the checkpoint, by group, and tensor by tensor."""

from typing import TYPE_CHECKING

from hybridcalc.engines.weights import ADDED, Weights
from hybridcalc.findings import Quantity, Table, View
from hybridcalc.units import format_bytes, short_dtype

if TYPE_CHECKING:
    from hybridcalc.hardware import Gpu

MOST_NAMED = 3
"""Groups that the short answer names."""


def weights_view(
    found: Weights,
    engine: str,
    ranks: int,
    *,
    tensors: bool = False,
    others: tuple[tuple[str, Weights], ...] = (),
    card: "Gpu | None" = None,
) -> View:
    """The whole answer, of the heaviest of so many ranks; ``tensors``: with every tensor; ``others``: cards by name on
    which it takes another size; ``card``: the one that is to hold it.
    """
    where = "one rank" if ranks == 1 else f"the heaviest of {ranks} ranks"
    warned = " ".join(finding.message for finding in found.findings)
    uncertain = "" if found.uncertain in warned else found.uncertain
    return View(
        f"Weights of {found.checkpoint} on {engine}",
        _gib(found.likely) if found.exact else f"{_gib(found.low)} to {_gib(found.high)}",
        f"of weights on {where} under {engine}: {found.checkpoint}",
        figures=(*_figures(found), *(_held(found, card) if card is not None else ())),
        findings=found.findings,
        tables=(_groups(found), *((_tensors(found),) if tensors else ())),
        notes=tuple(filter(None, (found.beside, uncertain, _elsewhere(others), _saved(found), *_added(found)))),
    )


def _figures(found: Weights) -> list[Quantity]:
    """The figures it rests on, the most telling first."""
    size, told = found.likely, found.weights_from if found.exact else "the likely value of an estimate"
    rows = [Quantity("on the rank", f"{size:,} B", _gib(size), told)]
    groups = sorted(found.groups, key=lambda group: -group.bytes_per_rank)[:MOST_NAMED]
    if groups:
        first, *others = groups
        named = ", ".join([first.name, *(f"{group.name} {_gib(group.bytes_per_rank)}" for group in others)])
        rows.append(Quantity("most of it", f"{first.bytes_per_rank:,} B", _gib(first.bytes_per_rank), named))
    rows.append(Quantity.of("parameters", f"{found.parameters:,}", _billions(found.parameters), _parts(found), ", "))
    if found.checkpoint_bytes is not None:
        held = found.checkpoint_bytes
        rows.append(
            Quantity(
                "checkpoint", f"{held:,} B", format_bytes(held), found.quantization.replace("none", "not quantised")
            )
        )
    return rows


def _held(found: Weights, card: "Gpu") -> list[Quantity]:
    """Whether the card holds them."""
    room = card.engine_gib * 2**30
    fits = "they fit" if found.high <= room else "they may fit" if found.low <= room else "they do not fit"
    return [Quantity("the card", f"{card.engine_gib:.2f}", "GiB", f"{card.source}: {fits}")]


def _groups(found: Weights) -> Table:
    """A row a group of tensors."""
    rows = (
        (
            each.name,
            f"{each.parameters:,}" if each.parameters else "",
            _gib(each.bytes_per_rank),
            each.dtype,
            each.sharding,
        )
        for each in found.groups
    )
    return Table("Groups", ("group", "parameters", "on the rank", "stored as", "shared"), tuple(rows), (1, 2))


def _tensors(found: Weights) -> Table:
    """A row a tensor of a layer, with its part on the rank."""
    rows = (
        (
            line.name.rpartition(".{}.")[2],
            f"{line.copies:,}",
            "x".join(map(str, line.shape)),
            f"{'x'.join(map(str, line.local))} {short_dtype(line.dtype)}",
            f"{line.bytes:,}",
        )
        for line in found.lines
    )
    heaviest = sorted(range(len(found.lines)), key=lambda n: -found.lines[n].bytes)
    header = ("tensor", "times", "shape", "on the rank", "B")
    return Table("Tensors", header, tuple(rows), (1, 4), asked=True, telling=tuple(heaviest))


def _elsewhere(others: tuple[tuple[str, Weights], ...]) -> str:
    """What it takes on cards whose kernels keep it another way."""
    sizes = " and ".join(f"{_gib(other.likely)} with --gpu {name}" for name, other in others)
    return f"{sizes}: kernels of such cards keep it another way" if sizes else ""


def _added(found: Weights) -> list[str]:
    return [f"{line.name}: {_gib(line.bytes)}, {line.sharding}" for line in found.lines if line.group == ADDED]


def _parts(found: Weights) -> str:
    other = found.parameters - found.parameters_text
    return f"{found.parameters_text:,} of text, {other:,} of {found.counted.others}" if other else "text"


def _saved(found: Weights) -> str:
    """What quantisation spares of the same tensors in 16 bits."""
    if found.checkpoint_bytes is None or found.quantization == "none":
        return ""
    plain = 2 * found.parameters
    spared = 100 * (plain - found.checkpoint_bytes) / plain
    return f"{found.quantization} spares {spared:.0f} % of {plain:,} B in 16 bits"


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 10**9 else f"{count / 1e6:,.1f} M"
