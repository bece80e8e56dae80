"""What is a family of recurrent layers? Its sizes, and what follows from them for one layer of one sequence.

A family is a subclass of `RecurrentState` in a module of its own and a line in `FAMILIES`. Its fields are the sizes
that presets state, and their schema (preset_schema.py): an int is at least 1, `OrZero` at least 0. Shapes are elements
of one layer on one of tp ranks, every division exact or refused. Engines order the axes differently, use other
divisors, or refuse what a family shards: that is theirs (FAMILY_RULES). The rules here are those of SGLang
configs/mamba_utils.py and vLLM model_executor/layers/mamba/mamba_utils.py, which agree on every size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from hybridcalc.errors import InputError, NotModelled, ShardingError, UnknownFamily, quoted, write_one_of

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Tensor

FAMILIES = {
    "gdn": "hybridcalc.architecture.families.gdn:GatedDeltaNet",
    "kda": "hybridcalc.architecture.families.kda:KimiDelta",
    "mamba2": "hybridcalc.architecture.families.mamba2:Mamba2",
    "mamba1": "hybridcalc.architecture.families.mamba1:Mamba1",
    "lightning": "hybridcalc.architecture.families.lightning:Lightning",
    "shortconv": "hybridcalc.architecture.families.shortconv:ShortConv",
}
"""Family as presets spell it -> module and class, loaded with the first model of it."""

NO_FAMILY = "attention"
"""Family of a model without a recurrent layer."""

OrZero = Annotated[int, 0]
"""A size that may be 0."""

MOST_RANKS_TRIED, RANKS_WITHOUT_HEADS = 1024, 64
"""Tensor-parallel sizes tried when one is refused, to name those that would do: the heads, at most; where a state has
none, a bound beyond any tensor-parallel group.
"""

Rule = TypeVar("Rule")


class ConvWindow(NamedTuple):
    """Convolution window of one layer on one rank: ``rows`` past positions x ``width`` channels, in elements."""

    rows: int
    width: int


class StateShapes(NamedTuple):
    """State of one layer of one sequence on one rank, in elements. Heads are the first of a temporal state's axes."""

    conv: tuple[ConvWindow, ...]
    temporal: tuple[int, ...]

    @property
    def conv_elements(self) -> int:
        """Elements of all convolution windows."""
        elements = 0
        for rows, width in self.conv:
            elements += rows * width
        return elements

    @property
    def temporal_elements(self) -> int:
        """Elements of the temporal (SSM) state; 0 where the family has none."""
        return prod(self.temporal) if self.temporal else 0


class PleConv(NamedTuple):
    """Qwen4-Exp's per-layer-embedding short convolution, kept per state slot beside the recurrent state."""

    layers: int
    channels: int
    columns: int


Replay = Literal["pairs", "inputs"]
"""What a replay keeps of a token: d and k as pairs of a rounded value and the rest, or the inputs of its step."""


class Recurrence(NamedTuple):
    """How the v_dim x k_dim state of one head takes a token: it decays, then d k^T is added (crosscheck/recurrence.py).

    ``delta_rule``: d is what the decayed state lacks at k, not the value itself. ``channel_decay``: each key channel
    decays by its own factor, not the whole head by one. ``replay``: from what ReplaySSM rebuilds the state
    (formulas.py); None where no engine replays the family.
    """

    v_dim: int
    k_dim: int
    delta_rule: bool = False
    channel_decay: bool = False
    replay: Replay | None = None


class RecurrentState(ABC):
    """The state of one recurrent layer. ``family`` is its name in presets, ``label`` its name in texts."""

    __slots__ = ()
    family: ClassVar[str]
    label: ClassVar[str]

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """The state of a preset's checked fields."""
        return cls(**fields)

    @property
    @abstractmethod
    def recurrence(self) -> Recurrence | None:
        """How the temporal state takes a token; None where there is none."""

    @abstractmethod
    def shard(self, tp: int) -> StateShapes:
        """Shapes on one of ``tp`` ranks. Raises ShardingError without a fix; callers ask `shapes`."""

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """Parameters of one layer's mixer beside a residual stream of ``hidden``; ``form`` is how a model class builds
        them, ``fields`` its config. Raises NotModelled for a family without a closed form.
        """
        raise NotModelled(f"{self.label} has no closed form of its parameters", lacking=f"parameters of {self.family}")

    def shapes(self, tp: int) -> StateShapes:
        """Shapes of one layer's state on one of ``tp`` ranks.

        Raises ShardingError, with the sizes that would do, when tp does not divide what it must.
        """
        try:
            return self.shard(tp)
        except ShardingError as error:
            temporal = self.shard(1).temporal
            most = min(temporal[0] if len(temporal) == 3 else RANKS_WITHOUT_HEADS, MOST_RANKS_TRIED)
            fitting = [str(ranks) for ranks in range(1, most + 1) if self._shards(ranks)]
            error.fix = write_one_of("--tp", fitting[:14], "others" if len(fitting) > 14 else "")
            raise

    def _shards(self, tp: int) -> bool:
        try:
            self.shard(tp)
        except ShardingError:
            return False
        return True


def family_class(name: str) -> type[RecurrentState]:
    """The class of a family. Raises InputError for a name that is none."""
    if name not in FAMILIES:
        raise InputError(f"{quoted(name)} is no family of recurrent layers", fix=f"write one of {', '.join(FAMILIES)}")
    module, _, found = FAMILIES[name].partition(":")
    state: type[RecurrentState] = getattr(import_module(module), found)
    return state


def rule_for(family: str, rules: Mapping[str, Rule], holder: str) -> Rule:
    """A family's row in a table of ``holder``, an engine. Raises UnknownFamily where there is none."""
    if family not in rules:
        raise UnknownFamily(
            f"{holder} has no rule for family {family}",
            lacking=f"family {family}",
            fix="plan it for an engine that runs it",
        )
    return rules[family]


def shard_groups(groups: int, tp: int) -> int:
    """Groups all ranks hold together: ``groups`` when tp divides them, else tp, one whole group on each rank.

    With more ranks than groups this replicates groups. With fewer it is the engine's own arithmetic
    (groups + (tp - groups) = tp), which holds fewer than the model has: Qwen3.8-27B at tp 3 keeps 3 groups of 16.
    """
    return groups if groups % tp == 0 else tp


def divide(total: int, tp: int, what: str) -> int:
    """A rank's share of ``total``. Raises ShardingError naming ``what`` when tp does not divide it."""
    if total % tp:
        raise ShardingError(f"--tp {tp} does not divide {what}", total=total, parts=tp)
    return total // tp
