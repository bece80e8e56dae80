"""Which buffers does vLLM allocate for its blocks, and where on them do states and attention pages lie?

    0.33     one buffer of blocks x bytes_per_block; every group's layers lie on it from byte 0, one upon the other,
             since a block belongs to one group at a time
             layer l, block b at  l x page x blocks + b x page          layouts with L outermost
                                  l x page + b x bytes_per_block        layouts with B outermost
    0.22     one buffer of blocks x page for each layer slot; layer i of every group lies on buffer i
    page     a state's tensors one after the other, the rest is padding; or block x a bytes of keys and values

Offsets and strides are the engine's own arithmetic, from v1/worker/utils.py, v1/kv_cache_interface.py and
layers/mamba/abstract.py (0.33.0). Leaves out: the kernel's order of heads and positions inside an attention page.
"""

from math import prod

from hybridcalc.crosscheck.tensors import ELEMENT_BYTES, Sizes, Tensor, TensorView, contiguous
from hybridcalc.engines.vllm.pages import STATE, Group
from hybridcalc.engines.vllm.planner import Prepared, Sizing
from hybridcalc.errors import NotModelled

ALLOCATED = "allocated_bytes"
"""The figure of a plan that all buffers add up to."""


def full_sizes(sizing: Sizing) -> Sizes:
    """The blocks of a plan, the null block among them."""
    return Sizes(blocks=sizing.blocks)


def block_tensors(ready: Prepared, sizes: Sizes) -> tuple[Tensor, ...]:
    """The raw buffers of one GPU with the views of every layer upon them."""
    if ready.pages.index_bytes:
        cache = f"buffers of the index cache of {ready.model.name}"
        raise NotModelled(f"{cache} are not modelled for vLLM", lacking=cache, fix="verify it for SGLang")
    if ready.rules.one_buffer:
        size = sizes.blocks * ready.bytes_per_block
        views = tuple(
            view
            for number, group in enumerate(ready.groups)
            for layer in range(group.layers)
            for view in _layer_views(ready, number, group, layer, sizes.blocks, *_place(ready, layer, sizes.blocks))
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
                for view in _layer_views(ready, number, group, slot, sizes.blocks, 0, page)
            ),
        )
        for slot in range(slots)
    )


def page_bytes(ready: Prepared) -> int:
    """Bytes of one layer's page: the state's own where no attention layer sets another."""
    return ready.pages.page if ready.backend is not None else ready.state_bytes


def _place(ready: Prepared, layer: int, blocks: int) -> tuple[int, int]:
    """Byte at which a layer's first page starts, and bytes from one of its pages to the next."""
    page = page_bytes(ready)
    if ready.layout.startswith("B"):
        return layer * page, ready.bytes_per_block
    return layer * page * blocks, page


def _layer_views(
    ready: Prepared, number: int, group: Group, layer: int, blocks: int, start: int, stride: int
) -> tuple[TensorView, ...]:
    """A layer's state tensors, or its keys and values token by token, in every block."""
    name = f"group {number} layer {layer}"
    if group.kind != STATE:
        page = page_bytes(ready)
        token = page // group.block
        return (TensorView(f"{name} kv", (blocks, group.block, token), (stride, token, 1), start, "int8"),)
    found, inner = [], 0
    for part, tensor in enumerate(ready.state):
        size = ELEMENT_BYTES[tensor.dtype]
        if (start + inner) % size or stride % size:  # the engine views bytes as elements there, and could not
            view = TensorView(f"{name} state {part}", (blocks, tensor.bytes), (stride, 1), start + inner, "int8")
        else:
            strides = (stride // size, *contiguous(tensor.shape))
            view = TensorView(
                f"{name} state {part}", (blocks, *tensor.shape), strides, (start + inner) // size, tensor.dtype
            )
        if prod(view.shape):
            found.append(view)
        inner += tensor.bytes
    return tuple(found)
