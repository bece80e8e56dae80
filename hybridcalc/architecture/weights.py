"""How many parameters does a model have, by group, and how many bytes do its checkpoints take?

    parameters = sum over blocks of layers x tensors;  bytes = sum of each tensor in its scheme, or in the model's dtype

Exact where the class has a closed form (layers.py) and the config all its fields; anything else is unknown, never
guessed. Counts equal those of transformers 5.24.0 on the meta device and, but for corrections of routers, the Hub's.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV
from hybridcalc.architecture.fields import Fields, text_of
from hybridcalc.architecture.layers import CHOSEN_FIELDS, EXPERT_FIELDS, STYLES, blocks
from hybridcalc.architecture.tensors import DRAFT, VISION, Block, Tensor
from hybridcalc.errors import ConfigError, NotModelled

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization, Scheme


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """All blocks of a model; ``unknown``: parts that are there and have no closed form (a vision tower). ``rotary``:
    how many elements of a head are rotated, 0 for all.
    """

    blocks: tuple[Block, ...]
    tied: bool
    unknown: tuple[str, ...] = ()
    rotary: int = 0

    def number(self, *, draft: bool = True, vision: bool = True) -> int:
        """Parameters, with or without those of the draft layers and the vision tower."""
        left_out = {DRAFT: not draft, VISION: not vision}
        return sum(
            block.copies * sum(tensor.parameters for tensor in block.tensors)
            for block in self.blocks
            if not left_out.get(block.place)
        )

    def groups(self) -> dict[str, int]:
        """Parameters by group, in the order of the model."""
        counted: dict[str, int] = {}
        for block in self.blocks:
            for tensor in block.tensors:
                group = block.place if block.place in (DRAFT, VISION) else tensor.group
                counted[group] = counted.get(group, 0) + block.copies * tensor.parameters
        return counted


Parts = tuple[tuple["Scheme | None", tuple[int, ...] | None], ...]
"""How a tensor is quantised: each scheme with the layers that have it, None for all of its block."""


class Layout:
    """How every tensor of every block is quantised, in their order, each block when it is first asked for; a scheme of
    None is the model's own dtype.
    """

    def __init__(self, found: Parameters, quantization: "Quantization | None") -> None:
        self._blocks, self._quantization = found.blocks, quantization
        self._known: dict[int, tuple[Parts, ...]] = {}

    def of(self, n: int) -> tuple[Parts, ...]:
        """The tensors of the block of that number."""
        if n not in self._known:
            block, how = self._blocks[n], self._quantization
            self._known[n] = (
                (PLAIN,) * len(block.tensors)
                if how is None
                else tuple([_schemes_of(how, block, each) if each.linear else PLAIN for each in block.tensors])
            )
        return self._known[n]

    def __iter__(self) -> Iterator[tuple[Parts, ...]]:
        return map(self.of, range(len(self._blocks)))


@lru_cache(maxsize=64)
def schemes(found: Parameters, quantization: "Quantization | None") -> Layout:
    """How every tensor is quantised."""
    return Layout(found, quantization)


PLAIN: Parts = ((None, None),)


def _schemes_of(quantization: "Quantization", block: Block, tensor: Tensor) -> Parts:
    name = (block.prefix + tensor.name).removesuffix(".weight")
    if tensor.experts:
        name = name.removesuffix(".gate_up_proj").removesuffix(".down_proj")
    layers = block.layers or (0,)
    if len(layers) == 1:
        return ((quantization.of(name.replace("{}", str(layers[0])), expert=bool(tensor.experts)), None),)
    having = quantization.of_layers(name, layers, expert=bool(tensor.experts))
    if len(having) == 1:
        return tuple((scheme, None) for scheme in having)
    return tuple((scheme, tuple(those)) for scheme, those in having.items())


@lru_cache(maxsize=64)
def stored_bytes(
    found: Parameters, quantization: "Quantization | None", *, dtype_bytes: int = 2, scale_bytes: int | None = None
) -> int:
    """Bytes of the tensors of a checkpoint: each in its scheme, the others in the model's dtype, nothing of it twice.

    ``scale_bytes``: of a block's scale, where a checkpoint has others than cards do.
    """
    if quantization is None:
        return found.number() * dtype_bytes
    total = 0
    for block, of_block in zip(found.blocks, schemes(found, quantization), strict=True):
        for tensor, parts in zip(block.tensors, of_block, strict=True):
            for scheme, layers in parts:
                times = block.copies if layers is None else len(layers)
                if scheme is None:
                    total += times * tensor.parameters * dtype_bytes
                    continue
                rows = [part.size for part in tensor.rows]
                matrix = scheme.stored(rows, tensor.columns, scale_bytes=scale_bytes)
                total += times * (tensor.experts or 1) * matrix
    return total


@lru_cache(maxsize=64)
def parameters(model: Architecture) -> Parameters:
    """All parameters of a model. Raises NotModelled where its class has no closed form, ConfigError naming fields of
    its config that are missing.
    """
    build = _builder(model.architecture)
    if build is None or model.hidden_size is None:
        said = f"no closed form of the parameters of {model.architecture}"
        if build is not None:
            said = "its preset says no hidden size, and with it no parameters: give its config.json"
        raise NotModelled(
            f"{model.name}: {said}",
            lacking=f"parameters of {model.architecture}",
            fix="give --weights SIZE, or a folder with its safetensors",
        )
    fields = _fields(model)
    built = tuple(build(model, fields))
    tied = fields.outer("tie_word_embeddings") is True
    unknown = ("the vision tower",) if model.multimodal and not any(b.place == VISION for b in built) else ()
    rotary = _rotary(model, fields)
    fields.finish(model.architecture)
    return Parameters(built, tied, unknown, rotary)


def _builder(name: str) -> "Callable[[Architecture, Fields], Iterator[Block]] | None":
    """What builds the blocks of a class; None for one without a closed form."""
    style = STYLES.get(name)
    if style is not None:
        return lambda model, fields: blocks(model, style, fields)
    from hybridcalc.architecture.own_layers import OWN

    return OWN.get(name)


class Breadths(NamedTuple):
    """What activations of a forward grow with: sizes of the vocabulary, the hidden state and the widest MLP."""

    vocabulary: int
    hidden: int
    inner: int
    experts: int


def expert_choice(model: Architecture) -> tuple[int, int | None]:
    """Routed experts of a layer (0 without any), and how many of them a token takes; None where nobody says."""
    experts, chosen = config_numbers(model, EXPERT_FIELDS, CHOSEN_FIELDS)
    return experts or 0, chosen


def config_word(model: Architecture, name: str) -> str | None:
    """A word of a model's config; None where there is none."""
    value = _fields(model).raw(name)
    return value if isinstance(value, str) else None


def config_numbers(model: Architecture, *named: tuple[str, ...]) -> tuple[int | None, ...]:
    """Whole numbers of a model's config, each under the first of its names that is there; None where there is none."""
    fields = _fields(model)
    try:
        found = tuple(fields.optional(*names, at_least=0) for names in named)
        fields.finish(model.architecture)
    except ConfigError:
        return (None,) * len(named)
    return found


@lru_cache(maxsize=64)
def widths_of(model: Architecture) -> Breadths | None:
    """Those of a model; None where its config does not tell them."""
    fields = _fields(model)
    try:
        vocabulary, experts = fields.optional("vocab_size"), fields.optional(*EXPERT_FIELDS, at_least=0) or 0
        inner = fields.optional("intermediate_size", "block_ff_dim", "shared_intermediate_size") or 0
        fields.finish(model.architecture)
    except ConfigError:
        return None
    return (
        None if vocabulary is None or not model.hidden_size else Breadths(vocabulary, model.hidden_size, inner, experts)
    )


def _rotary(model: Architecture, fields: Fields) -> int:
    """Elements of a head that carry its position; 0 for all of them."""
    rope = fields.raw("rope_parameters", "rope_scaling")
    inner = Fields(rope, fields.where) if isinstance(rope, Mapping) else fields
    part = fields.real("partial_rotary_factor") or inner.real("partial_rotary_factor")
    width = model.attention.head_dim if isinstance(model.attention, GroupedQueryKV) else 0
    return fields.optional("rotary_dim") or (int(width * part) if part else 0)


def _fields(model: Architecture) -> Fields:
    """The fields of a model's config, of the text part first."""
    from hybridcalc.architecture.presets import shipped_config

    config: Mapping[str, Any] = model.config if model.config is not None else shipped_config(model.name)
    text = text_of(config)
    return Fields(text, model.source if text is not config else model.name, fallback=config)
