"""Which numbers of ranks divide a model, what its weights take on one of them, and from which on do they fit?

A search over the usual sizes of tensor parallelism, each asked as a start-up would: states, heads and weights. It names
what to write where the ranks of a launch do not do.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import COMPUTED, ESTIMATED, WEIGHTS, WEIGHTS_NAME, Memory, MemoryPart
from hybridcalc.engines.spelling import as_typed
from hybridcalc.errors import (
    ConfigError,
    HybridcalcError,
    InputError,
    MemoryUnknown,
    NotModelled,
    OneOf,
    Refusal,
    ShardingError,
    write_one_of,
)
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.engines.weights import Weights

SHARED_OUT = ("ep_size", "dp_size", "dcp_size", "decode_context_parallel_size")
"""Arguments beside tensor parallelism that numbers of ranks must suit."""
RANKS_TRIED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
RANKS_SHARED = (1, *RANKS_TRIED[:7])
_WEIGHED: "dict[tuple[Any, ...], Weights]" = {}
OUTSIDE_LAYERS = ("vision", "embedding", "lm_head", "mtp", "added")
"""Groups of tensors that lie in no decoder layer."""
MOST_WEIGHED = 512
"""Answers kept: a sweep asks for the same weights at every point."""


class SearchedEngine(Protocol):
    """What is asked of an engine here (engine.py, which knows this module)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def tp_flag(self) -> str:
        """How its command line says tensor parallelism."""

    @property
    def indivisible(self) -> tuple[str, str]:
        """Stage and rule of a start-up whose ranks do not divide the model."""

    @property
    def flags(self) -> Any:
        """The flags of its command line."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of a start-up, in order."""

    def part(self, name: str) -> Any:
        """A module of its folder."""

    def offers(self, name: str) -> bool:
        """Whether there is one of that name."""

    def offered(self, name: str, what: str) -> Any:
        """One that not every engine has."""

    def with_options(self, args: Any, given: Mapping[str, Any]) -> Any:
        """The arguments with options of a command."""

    def prepare(self, model: Architecture, args: Any) -> Any:
        """What start-up settles before memory counts."""

    def check_heads(self, model: Architecture, args: Any) -> None:
        """Raise Refusal for ranks that cannot share a model's attention heads."""

    def server_ranks(self, args: Any) -> int:
        """GPUs that share one copy of the weights."""


def weights(engine: SearchedEngine, model: Architecture, args: Any, *, mended: bool = True) -> "Weights":
    """What the weights take on the heaviest rank. Raises ShardingError, ``mended`` by the ranks that do, NotModelled,
    and InputError.
    """
    try:
        return _weigh(engine, model, args)
    except ShardingError as error:
        if not mended:
            raise
        error.of_model = True
        ways = [way for way in (ranks_that_do(engine, model, args), error.fix) if way]
        error.fix = ways[0] if len(ways) == 1 else "; or ".join(ways)
        raise


def weights_part(engine: SearchedEngine, model: Architecture, args: Any) -> MemoryPart | None:
    """Weights on a rank, computed; None where nothing is known of them. Raises Refusal for ranks that do not divide the
    model, MemoryUnknown where an unknown part of them is elsewhere.
    """
    from hybridcalc.shell.flags import WEIGHTS_ELSEWHERE

    moved = WEIGHTS_ELSEWHERE.intersection(getattr(args, "uncounted", ()))
    if moved:
        said = f"{min(moved)} keeps weights in host memory: how many is not modelled"
        raise MemoryUnknown(said, figures=(WEIGHTS,), fix="add --weights SIZE")
    try:
        found = weights(engine, model, args)
    except (NotModelled, ConfigError):
        return None
    except ShardingError as error:
        stage, rule = engine.indivisible
        reason = error.message.replace("--tp ", f"{engine.tp_flag} ")
        raise Refusal(reason, stage=stage, rule=rule, fix=error.fix) from None
    low, likely, high = _on_card(found, args)
    how = COMPUTED if low == high else ESTIMATED
    why = found.uncertain or found.weights_from
    if likely * GIB < found.likely:
        why += f", less {found.likely / GIB - likely:.2f} in host memory"
    return MemoryPart(WEIGHTS_NAME, low, likely, high, how, why, found.findings)


def _on_card(found: "Weights", args: Any) -> tuple[float, float, float]:
    """GiB of weights on the GPU, low, likely and high: without the tensors of decoder layers that --cpu-offload-gb
    keeps in host memory, which are moved one by one until there are as many.
    """
    low, likely, high = (size / GIB for size in (found.low, found.likely, found.high))
    asked = max(0.0, getattr(args, "cpu_offload_gb", 0))
    if not asked:
        return low, likely, high
    inner = [line for line in found.lines if line.group not in OUTSIDE_LAYERS]
    most = sum(line.bytes for line in inner) / GIB if inner else likely
    largest = max((line.bytes / line.copies for line in inner), default=0) / GIB
    return low - min(asked + largest, most), likely - min(asked, most), high - min(asked, most)


def too_heavy(
    engine: SearchedEngine, model: Architecture, args: Any, refusal: Refusal, budget_gib: float, *, computed: bool
) -> Refusal:
    """The refusal of weights above a budget, with what holds them where they are ``computed``; or what the start-up
    refuses before it loads any.
    """
    try:
        engine.prepare(model, args)
    except Refusal as early:
        if engine.stages.index(early.stage) < engine.stages.index(refusal.stage):
            return early
    except HybridcalcError:
        pass
    fix = enough_ranks(engine, model, args, budget_gib) if computed else ""
    fix = "; or ".join((fix or refusal.fix, *leaner(engine, model, args, budget_gib)))
    better = Refusal(refusal.reason, stage=refusal.stage, rule=refusal.rule, fix=fix)
    better.outputs = refusal.outputs
    return better


def enough_ranks(engine: SearchedEngine, model: Architecture, args: Any, budget_gib: float) -> str:
    """The fewest ranks whose weights are below a budget, as a flag; empty where none of those tried has."""
    for ranks in RANKS_TRIED:
        if ranks <= engine.server_ranks(args):
            continue
        try:
            found = _weigh(engine, model, engine.with_options(args, {"tp_size": ranks}))
        except (ShardingError, Refusal, InputError):
            continue
        each = _on_card(found, args)[1]
        if each < budget_gib:
            return f"at least {engine.tp_flag} {ranks}: {each:.1f} GiB of weights a rank"
    return ""


def leaner(engine: SearchedEngine, model: Architecture, args: Any, budget_gib: float) -> tuple[str, ...]:
    """What to load instead of a checkpoint whose weights are above a budget: one of the preset whose weights are below
    it, by name; where none is known, in general, but for one that is quantised already.
    """
    from hybridcalc.engines.checkpoints import checkpoint_of, quantised_releases

    known = quantised_releases(model) if args.quantization is None else []
    for name in known:
        with suppress(ShardingError, Refusal, InputError):
            taken = _on_card(_weigh(engine, load_model(name), args), args)[1]
            if taken < budget_gib:
                return (f"{name}: {taken:.1f} GiB",)
    stored = checkpoint_of(model, args.quantization)
    return () if known or stored.quantization or stored.marked else ("a quantised checkpoint",)


def deciding(engine: SearchedEngine, args: Any) -> tuple[Any, ...]:
    """What weights follow from, of arguments: weights of a model are the same where it is equal."""
    own = engine.offers("weights")
    decided: tuple[Any, ...] = engine.part("weights").DECIDED_BY(args) if own else (engine.server_ranks(args),)
    return (*decided, *sorted(args.env.items()))


def ranks_that_do(engine: SearchedEngine, model: Architecture, args: Any, card: Any = None) -> str:
    """The tensor-parallel sizes that divide the model, on the GPUs that there are where their number is known (of
    ``card``), with all other arguments as they are; where none does, without the flag that shares something else out.
    Empty for none.
    """
    tried = (1, *RANKS_TRIED)
    fitting = fitting_ranks(engine, model, args, tried, card)
    if fitting:
        return write_one_of(engine.tp_flag, fitting)
    given = tuple(name for name in SHARED_OUT if name in args.given())
    for names in (*((name,) for name in given), given):
        fitting = fitting_ranks(
            engine, model, args.changed(**{name: args.defaults[name][1] for name in names}), tried, card
        )
        if fitting:
            left_out = " and ".join(engine.flags.by_field[name].spellings[0] for name in names)
            return write_one_of(engine.tp_flag, fitting, behind=f" without {left_out}")
    return ""


def fitting_ranks(
    engine: SearchedEngine, model: Architecture, args: Any, tried: Sequence[int], card: Any = None
) -> list[str]:
    """Those of the tensor-parallel sizes that divide states, heads and weights, on the GPUs of ``card``."""
    fitting = []
    for ranks in tried:
        with suppress(HybridcalcError):
            asked = engine.with_options(args, {"tp_size": ranks, "gpu": card})
            with suppress(InputError):  # a model that is not planned has weights all the same
                engine.prepare(model, asked)
            engine.check_heads(model, asked)
            with suppress(NotModelled, ConfigError):  # nothing is known of its weights
                _weigh(engine, model, asked)
            fitting.append(str(ranks))
    return fitting


def _weigh(engine: SearchedEngine, model: Architecture, args: Any) -> "Weights":
    from hybridcalc.engines.weights import weigh

    own = engine.offered("weights", "weights")
    key = (engine.name, model, *deciding(engine, args))
    found = _WEIGHED.get(key)
    if found is None:
        found = weigh(
            model,
            own.placement(model, args),
            dtype=own.dtype_of(model, args),
            quantization=args.quantization,
            ranks=engine.server_ranks(args),
        )
        if model.config is None:  # a preset: nothing on disk can change
            if len(_WEIGHED) >= MOST_WEIGHED:
                _WEIGHED.clear()
            _WEIGHED[key] = found
    return found


def given_elsewhere(
    engine: SearchedEngine, model: Architecture, args: Any, known: Memory, first: tuple[Architecture, Any]
) -> Memory:
    """A memory whose weights were given for another model or other arguments (``first``): multiplied by what the
    computed weights of both differ by. Raises InputError where nothing tells that, Refusal for ranks that do not
    divide the model.
    """
    if known.weights is None or not engine.offers("weights"):
        return known
    decided = engine.part("weights").DECIDED_BY
    if model == first[0] and (decided(args), args.env) == (decided(first[1]), first[1].env):
        return known
    here, there = weights_part(engine, model, args), weights_part(engine, *first)
    if here is None or there is None:
        raise InputError(
            "--weights is of the plan as given, and nothing tells what they are here", fix="plan this by itself"
        )
    if here.likely == there.likely:
        return known
    why = f"--weights x {here.likely:.2f} / {there.likely:.2f}, as computed here and for the plan as given"
    moved = MemoryPart.of(WEIGHTS_NAME, known.weights * here.likely / there.likely, COMPUTED, why)
    return known._replace(weights=None, weighed=lambda: moved)


def not_shared(
    engine: SearchedEngine, model: Architecture, args: Any, gpus: int, stopped: Exception, card: Any = None
) -> Refusal | None:
    """What to say where ranks do not divide the model: of those that nobody typed (``gpus``), which numbers of GPUs do,
    of others the ranks that do, on the GPUs of ``card``. None where something else stopped the start.
    """
    stage, rule = engine.indivisible
    if not (isinstance(stopped, ShardingError) or getattr(stopped, "rule", "") == rule):
        return None
    if not gpus:
        found = stopped if isinstance(stopped, ShardingError) else stopped.__context__
        if not isinstance(stopped, HybridcalcError):
            return None
        if isinstance(stopped.fix, OneOf) or (isinstance(found, ShardingError) and not found.of_model):
            fix = ranks_that_do(engine, model, args, card) or stopped.fix
            stopped.fix = as_typed(engine, args, fix)
        return None
    fitting = fitting_ranks(engine, model, args, RANKS_SHARED)
    reason = f"{gpus} GPUs do not share {model.name}"
    return Refusal(reason, stage=stage, rule=rule, fix=f"{', '.join(fitting)} GPUs do" if fitting else "")
