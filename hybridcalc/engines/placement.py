"""Where does an engine put the tensors of a model, and what does it add to them? What the engines share of that.

A `Placement` says how many ranks share what (`Widths`), which layers each pipeline stage has, what stays whole or is
held wider, what is copied after loading, and how many bytes a quantised matrix takes on the card.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from hybridcalc.architecture import FULL_ATTENTION_LETTERS, WINDOW_LETTERS, Architecture, LatentKV
from hybridcalc.architecture.tensors import FIRST, LAYERS, Local, Part, Tensor, Widths
from hybridcalc.architecture.weights import Parameters, parameters, schemes
from hybridcalc.errors import InputError, ShardingError, quoted
from hybridcalc.units import rounded_up

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization, Scheme


class Extra(NamedTuple):
    """What an engine adds to the loaded tensors: ``bytes`` in each of ``layers``, or once where there are none."""

    name: str
    bytes: int
    why: str
    layers: tuple[int, ...] = ()


def as_stored(scheme: "Scheme", tensor: Tensor, local: Local) -> int:
    """Bytes of one local matrix on the card as its scheme has them; ModelOpt's FP4 of linear layers is padded."""
    if scheme.name == "nvfp4" and not tensor.experts:
        rows, columns = sum(local.rows), local.columns
        values, scales = rounded_up(rows, 32) * rounded_up(columns, 32), rounded_up(rows, 128) * rounded_up(columns, 64)
        return values // 2 + scales // 16 + 8
    return scheme.stored(local.rows, local.columns)


def padded_experts(scheme: "Scheme", tensor: Tensor, local: Local, width: int, hidden: int) -> int:
    """Bytes of one local expert whose own width and the hidden size are rounded up for a kernel."""
    rows, columns = (width, hidden) if tensor.name.endswith("gate_up_proj") else (hidden, width)
    return scheme.stored([rounded_up(part, rows) for part in local.rows], rounded_up(local.columns, columns))


def scale_a_row(scheme: "Scheme", local: Local) -> int:
    """Bytes of one local matrix in Marlin's layout: the scale of a block is repeated for each of its rows, 16 bits."""
    return scheme._replace(block=(1, scheme.block[1]), scale_bytes=2).stored(local.rows, local.columns)


ALL = "*"


class Placement(NamedTuple):
    """Where an engine puts tensors. ``stages``: [first, last) layer of each. ``draft``, ``vision``, ``tables``: whether
    draft layers, the vision tower and the tables that host memory may hold are on the card. ``whole``: names of tensors
    that every rank keeps whole. ``wide``: those held in fp32. ``cut``: the axis of those that are cut otherwise.
    ``matrix``: bytes of a quantised local matrix. ``plain``: names of the draft's tensors that stay in 16 bits whatever
    the checkpoint says, or ALL of them.
    """

    widths: Widths
    stages: tuple[tuple[int, int], ...]
    draft: bool = False
    vision: bool = True
    tables: bool = False
    whole: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    cut: Mapping[str, str] = MappingProxyType({})
    extras: tuple[Extra, ...] = ()
    matrix: "Callable[[Scheme, Tensor, Local], int]" = as_stored
    plain: frozenset[str] = frozenset()


class Absorbed(NamedTuple):
    """The up projections of latent attention that an engine copies: elements of a rank's part, in which layers, and
    their name in a checkpoint.
    """

    elements: int
    layers: tuple[int, ...]
    name: str = ""


def absorbed(model: Architecture, ranks: int) -> Absorbed:
    """kv_b_proj of each MLA layer on one of ``ranks``; none without latent attention."""
    if not isinstance(model.attention, LatentKV):
        return Absorbed(0, ())
    for block in parameters(model).blocks:
        for tensor in block.tensors:
            if tensor.name == "kv_b_proj" and block.place == LAYERS:
                return Absorbed(tensor.parameters // ranks, block.layers, block.prefix + tensor.name)
    return Absorbed(0, ())


WITHOUT_ROPE = ("NemotronH", "GraniteMoeHybrid", "Kimi", "Jamba", "Mamba", "FalconMamba", "Inkling")
"""Classes whose attention has no rotary positions, or that have no attention."""


def rope_bytes(model: Architecture, found: Parameters, rows: int, element_bytes: int) -> int:
    """The table of rotary angles, one for all layers: rows x rotary width. ``found`` is of the same model."""
    letters = FULL_ATTENTION_LETTERS + WINDOW_LETTERS
    if model.architecture.startswith(WITHOUT_ROPE) or not any(letter in letters for letter in model.layers):
        return 0
    if isinstance(model.attention, LatentKV):
        width = model.attention.qk_rope_head_dim
    elif model.attention is not None:
        width = found.rotary or model.attention.head_dim
    else:
        width = 0
    return rows * width * element_bytes


@lru_cache(maxsize=64)
def stages_of(layers: int, stages: int, given: str = "", *, last_first: bool = False) -> tuple[tuple[int, int], ...]:
    """[first, last) layers of each pipeline stage: as ``given`` (4,4,5), else even shares. What is over goes to the
    last stages (``last_first``), or to those before the last one. Raises ShardingError for more stages than layers,
    InputError for a list that is none.
    """
    if given:
        listed = given.split(",")
        counted = all(part.strip().isdecimal() and len(part) < 8 for part in listed)
        if len(listed) != stages or not counted:
            raise InputError(f"the layer partition {quoted(given)} is not {stages} numbers", fix="write 15,15,16,14")
        counts = [int(part) for part in listed]
        if sum(counts) != layers:
            raise InputError(f"the layer partition {quoted(given)} is not of {layers} layers")
    elif stages > layers:
        reason = f"{layers:,} layers do not make {stages:,} pipeline stages"
        raise ShardingError(reason, total=layers, parts=stages, fix=f"{layers:,} stages or fewer")
    else:
        counts, over = [layers // stages] * stages, layers % stages
        for n in range(over):
            counts[stages - 1 - n if last_first else max(0, stages - 2 - n)] += 1
    ends = [sum(counts[:n]) for n in range(stages + 1)]
    return tuple(pairwise(ends))


def check_split(
    found: Parameters, quantization: "Quantization | None", widths: Widths, ranks: int, whole_experts: str
) -> None:
    """Raise ShardingError for fp8 blocks that ranks would cut in two; both engines refuse them.

    ``whole_experts``: the flag that shares experts out whole, which is the way out where nothing else is cut.
    """
    if quantization is None or ranks == 1 or quantization.scheme is None or quantization.scheme.block[0] <= 1:
        return
    refused = _cut_block(found, quantization, widths)
    if refused is None:
        return
    fix = ""
    if widths.expert_cut > 1:
        shared = widths._replace(experts=widths.experts * widths.expert_cut, expert_cut=1)
        with suppress(ShardingError):
            fix = whole_experts if _cut_block(found, quantization, shared) is None else ""
    raise ShardingError(f"--tp {ranks} cuts {refused[0]}", total=refused[1], parts=ranks, fix=fix)


def _cut_block(found: Parameters, quantization: "Quantization", widths: Widths) -> tuple[str, int] | None:
    """The first tensor whose part on a rank ends inside a block, in words, with its whole size; None for none."""
    layout = schemes(found, quantization)
    for n, block in enumerate(found.blocks):
        if block.place not in (LAYERS, FIRST):
            continue
        for tensor, parts in zip(block.tensors, layout.of(n), strict=True):
            scheme, rows = parts[0][0], tensor.cut == "rows"
            share = widths.expert_cut if tensor.over == "experts" else widths.ranks.get(tensor.over, 1)
            if scheme is None or share == 1 or not tensor.cut or scheme.block[not rows] == 1:
                continue
            side, whole = scheme.block[not rows], tensor.rows if rows else (Part(tensor.columns),)
            cut = [part.share(share, tensor.name) for part in whole]
            if any(size % side and size != part.size for size, part in zip(cut, whole, strict=True)):
                said = f"{tensor.name} into {min(cut):,}, which blocks of {side} do not divide"
                return said, sum(part.size for part in whole)
    return None
