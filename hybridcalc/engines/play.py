"""What a page needs to recompute a plan in the browser: its settings, its figures, its launch line, its pictures.

The browser repeats the arithmetic that depends on memory, length and ratio; what depends on ranks, dtypes and strategy,
the weights and the memory that they leave included, an engine computes and hands over in a table. Flags without a
control stay as they were given.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.deployment import Rest
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture

RANKS = (1, 2, 4, 8, 16, 32)
LONGEST, MOST_REQUESTS = 2**20, 10_000
LEAST_GIB, MOST_GIB = 0.5, 256.0
Table = dict[str, dict[str, Any]]


class Control(NamedTuple):
    """One setting of the page: a number in [low, high], or one of ``choices`` (value and what it is called)."""

    name: str
    label: str
    value: str
    low: float = 0
    high: float = 0
    whole: bool = True
    choices: tuple[tuple[str, str], ...] = ()


class Play(NamedTuple):
    """All of it: ``results`` are the figures that the browser writes, by what they are called; ``data`` is what the
    script reads; ``charts`` are the titles of the pictures it draws.
    """

    controls: tuple[Control, ...]
    results: Mapping[str, str]
    charts: Mapping[str, str]
    data: dict[str, Any]


def table_of(own: int, choices: Sequence[Sequence[str]], sizes: Callable[..., dict[str, Any]]) -> Table:
    """The sizes of every combination of ranks and choices; of ranks that refuse all of them, only the ``own`` ones."""
    table: Table = {}
    for ranks in sorted({*RANKS, own}):
        cells = {"|".join((str(ranks), *names)): sizes(ranks, *names) for names in product(*choices)}
        if ranks == own or not all("refused" in cell for cell in cells.values()):
            table |= cells
    return table


def with_own(usual: Sequence[str], own: str) -> list[str]:
    """The usual choices, and the one that is asked for."""
    return [*usual, *([] if own in usual else [own])]


def one_of(name: str, label: str, value: str, choices: Sequence[str], **called: str) -> Control:
    """A choice; each is called as it is, but for those that are ``called`` otherwise."""
    return Control(name, label, value, choices=tuple((one, called.get(one, one)) for one in choices))


def length_control(length: int) -> Control:
    """The length of requests."""
    return Control("length", "Tokens a request holds (L)", str(length), 1, max(LONGEST, length))


def memory_control(label: str, gib: float) -> Control:
    """The memory for the caches, GiB."""
    return Control("memory", label, repr(gib), LEAST_GIB, max(MOST_GIB, gib), whole=False)


def ranks_control(table: Table, own: int) -> Control:
    """The ranks that the table has sizes of."""
    ranks = dict.fromkeys(key.split("|")[0] for key in table)
    return Control("tp", "Tensor-parallel ranks", str(own), choices=tuple((one, f"tp {one}") for one in ranks))


def settled(engine: Engine, model: "Architecture", args: Any, rest: Rest, sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes of one combination with the memory that its arguments leave for the caches and what the GPU holds
    beside, GiB, unless the memory was given and stays what it is; or why its ranks or weights are refused.
    """
    try:
        left = None if rest.again is None or "refused" in sizes else rest.again(args)
        engine.check_ranks(model, args)
    except HybridcalcError as refusal:
        return sizes if "refused" in sizes else {"refused": refusal.message}
    return sizes if left is None else sizes | {"gib": left.likely_gib, "others": [list(part) for part in left.others]}


def launch_line(
    engine: Engine, model: "Architecture", args: Any, fields: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """The launch line that the settings change: its words without those of ``fields``, and for each control its flag
    and the value that needs none. ``fields``: the argument that a control sets, and that value.
    """
    from hybridcalc.engines.document import launch_of

    given = {name: value for name, value in args.given().items() if name not in {field for field, _ in fields.values()}}
    flags = {name: [engine.flags.by_field[field].spellings[0], unset] for name, (field, unset) in fields.items()}
    return {**launch_of(engine, model, given), "flags": flags}
