"""Which buffers does vLLM allocate for its blocks, and where on them do states and attention pages lie?

    0.33     one buffer of blocks x bytes_per_block; every group's layers lie on it from byte 0, one upon the other,
             since a block belongs to one group at a time
             layer l, block b at  l x page x blocks + b x page          layouts with L outermost
                                  l x page + b x bytes_per_block        layouts with B outermost
    0.22     one buffer of blocks x page for each layer slot; layer i of every group lies on buffer i
    page     a state's tensors one after the other, the rest is padding; or block x a bytes of keys and values
    index    B outermost: the pages of an index lie before those of attention in a block, from byte 0
             L outermost: behind them, and the rings of the pools in progress lie upon them

Offsets and strides are the engine's own arithmetic, from v1/worker/utils.py, v1/kv_cache_interface.py,
v1/core/kv_cache_planning.py and layers/mamba/abstract.py (0.33.0), and from v1/core/kv_cache_utils.py
_glm5_next_tensor_layout (0.30.0). Leaves out: the kernel's order of heads and positions inside an attention page.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from hybridcalc.crosscheck.tensors import ELEMENT_BYTES, Sizes, Tensor, TensorView, contiguous
from hybridcalc.engines.vllm.layers import StateTensor
from hybridcalc.engines.vllm.packed import embedding_state, index_of
from hybridcalc.engines.vllm.pages import EMBEDDED, FULL, STATES, TAIL, Group
from hybridcalc.engines.vllm.planner import Prepared, Sizing

ALLOCATED = "allocated_bytes"
"""The figure of a plan that all buffers add up to."""


def full_sizes(sizing: Sizing) -> Sizes:
    """The blocks of a plan, the null block among them."""
    return Sizes(blocks=sizing.blocks)


class Part(NamedTuple):
    """What each layer of a group keeps in a block: ``page`` bytes, the first layer's from ``start`` bytes a block on;
    ``rows`` of keys and values in it, none for states.
    """

    name: str
    page: int
    start: int
    rows: int


def block_tensors(ready: Prepared, sizes: Sizes) -> tuple[Tensor, ...]:
    """The raw buffers of one GPU with the views of every layer upon them."""
    if ready.rules.one_buffer:
        size = sizes.blocks * ready.bytes_per_block
        views = tuple(
            view
            for number, group in enumerate(ready.groups)
            for part in parts_of(ready, group)
            for layer in range(group.layers)
            for view in _views(ready, number, group, part, layer, sizes.blocks, *_place(ready, part, layer, sizes))
        )
        return (Tensor("kv_cache", ALLOCATED, "blocks", (size,), "int8", size, "block", views),)
    page = page_bytes(ready)
    slots = ready.bytes_per_block // page
    return tuple(
        Tensor(
            f"kv_cache[{slot}]",
            ALLOCATED,
            "blocks",
            (sizes.blocks * page,),
            "int8",
            sizes.blocks * ready.bytes_per_block // slots,
            "block",
            tuple(
                view
                for number, group in enumerate(ready.groups)
                if slot < group.layers
                for part in parts_of(ready, group)
                for view in _views(ready, number, group, part, slot, sizes.blocks, 0, page)
            ),
        )
        for slot in range(slots)
    )


def page_bytes(ready: Prepared) -> int:
    """Bytes of one layer's page: the state's own where no attention layer sets another."""
    return ready.pages.page if ready.backend is not None else ready.state_bytes


def parts_of(ready: Prepared, group: Group) -> tuple[Part, ...]:
    """What a layer of a group keeps, in the order in which it lies in memory."""
    index = index_of(ready.model, ready.args) if ready.pages.index_bytes else None
    page = page_bytes(ready) if index is None else group.page
    if group.kind in STATES:
        return (Part("state", page, 0, 0),)
    if index is None or group.kind not in (FULL, TAIL):
        return (Part("kv", page, 0, group.block),)
    attention, keys = ready.pages.attention_page, ready.pages.index_bytes
    layers = next(g.layers for g in ready.groups if g.kind == FULL)
    outermost = ready.layout.startswith("B")
    if group.kind == TAIL:
        return (Part("ring", page, 0 if outermost else layers * attention, group.block),)
    index_part = Part("index", keys, 0 if outermost else layers * attention, group.block // index.pool)
    return (index_part, Part("kv", attention, layers * keys if outermost else 0, group.block))


def _place(ready: Prepared, part: Part, layer: int, sizes: Sizes) -> tuple[int, int]:
    """Byte at which a layer's first page starts, and bytes from one of its pages to the next."""
    start = part.start + layer * part.page
    if ready.layout.startswith("B"):
        return start, ready.bytes_per_block
    return start * sizes.blocks, part.page


def _views(
    ready: Prepared, number: int, group: Group, part: Part, layer: int, blocks: int, start: int, stride: int
) -> Iterator[TensorView]:
    """A layer's state tensors, or its keys and values row by row, in every block."""
    name = f"group {number} layer {layer} {part.name}"
    if group.kind not in STATES:
        row = part.page // part.rows
        yield TensorView(name, (blocks, part.rows, row), (stride, row, 1), start, "int8")
        return
    inner = 0
    for place, tensor in enumerate(_state_of(ready, group)):
        size = ELEMENT_BYTES[tensor.dtype]
        if (start + inner) % size or stride % size:  # the engine views bytes as elements there, and could not
            view = TensorView(f"{name} {place}", (blocks, tensor.bytes), (stride, 1), start + inner, "int8")
        else:
            strides = (stride // size, *contiguous(tensor.shape))
            shape = (blocks, *tensor.shape)
            view = TensorView(f"{name} {place}", shape, strides, (start + inner) // size, tensor.dtype)
        if prod(view.shape):
            yield view
        inner += tensor.bytes


def _state_of(ready: Prepared, group: Group) -> tuple[StateTensor, ...]:
    return embedding_state(ready.model, ready.args) if group.kind == EMBEDDED else ready.state
