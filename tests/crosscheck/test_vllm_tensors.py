"""Where the layers of a vLLM server lie on its buffers: index caches, rings and states of two kinds among them."""

import re
from itertools import pairwise
from math import prod

import pytest

from hybridcalc import load_model
from hybridcalc.crosscheck.tensors import ELEMENT_BYTES, Sizes, TensorView
from hybridcalc.crosscheck.vllm_tensors import block_tensors
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.pages import EMBEDDED, FULL, STATE, TAIL
from hybridcalc.engines.vllm.planner import Prepared, prepare

GLM, QWEN = "glm-5.3-flash", "qwen3.8-flash-next"
BLOCKS = 3


def ready_of(model: str, release: str) -> Prepared:
    return prepare(load_model(model), EngineArgs(tensor_parallel_size=8, max_model_len=65536, engine_version=release))


def views_of(ready: Prepared) -> dict[str, TensorView]:
    (tensor,) = block_tensors(ready, Sizes(blocks=BLOCKS))
    assert tensor.shape_bytes == BLOCKS * ready.bytes_per_block
    return {view.name: view for view in tensor.views}


def place(view: TensorView) -> tuple[int, int]:
    """Byte at which a view starts, and bytes from one block to the next."""
    size = ELEMENT_BYTES[view.dtype]
    return view.offset * size, view.stride[0] * size


@pytest.mark.parametrize("model", [GLM, QWEN])
@pytest.mark.parametrize("release", ["0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_no_two_layers_of_a_group_share_a_byte(model: str, release: str) -> None:
    """Groups lie upon each other, since a block is one group's at a time; within one every page is its own."""
    ready = ready_of(model, release)
    taken: dict[str, list[tuple[int, int]]] = {}
    for name, view in views_of(ready).items():
        start, stride = place(view)
        held = prod(view.shape[1:]) * ELEMENT_BYTES[view.dtype]
        pages = [(start + block * stride, start + block * stride + held) for block in range(BLOCKS)]
        taken.setdefault(name.split(" layer ")[0], []).extend(pages)
    assert len(taken) == len(ready.groups)
    for pages in taken.values():
        ordered = sorted(pages)
        assert all(first[1] <= second[0] for first, second in pairwise(ordered))
        assert ordered[-1][1] <= BLOCKS * ready.bytes_per_block


@pytest.mark.parametrize(("model", "layers"), [(GLM, 11), (QWEN, 12)])
def test_index_pages_lie_before_those_of_attention(model: str, layers: int) -> None:
    """An attention layer registers the keys of its index first, and a group lies in a block kind by kind.

    Source: vLLM models/glm5next/common/attention.py, models/qwen4_exp/nvidia/qsa.py, v1/core/kv_cache_planning.py
    get_kv_cache_config_from_groups (0.33.0).
    """
    ready = ready_of(model, "0.33.0")
    views, keys, page = views_of(ready), ready.pages.index_bytes, ready.pages.attention_page
    (full,) = (number for number, group in enumerate(ready.groups) if group.kind == FULL)
    (tail,) = (number for number, group in enumerate(ready.groups) if group.kind == TAIL)
    for layer in range(layers):
        assert place(views[f"group {full} layer {layer} index"]) == (layer * keys, ready.bytes_per_block)
        assert place(views[f"group {full} layer {layer} kv"]) == (layers * keys + layer * page, ready.bytes_per_block)
        ring = views[f"group {tail} layer {layer} ring"]
        assert place(ring) == (layer * ready.groups[tail].page, ready.bytes_per_block)
    assert views[f"group {full} layer 0 index"].shape == (BLOCKS, ready.pages.block // 4, keys * 4 // ready.pages.block)


def test_glm_before_0_32_lays_indexes_behind_attention() -> None:
    """Layer by layer: states upon attention, rings upon indexes. Source: vLLM v1/core/kv_cache_utils.py (0.31.0)."""
    ready = ready_of(GLM, "0.31.0")
    views, keys, page = views_of(ready), ready.pages.index_bytes, ready.pages.attention_page
    assert [group.kind for group in ready.groups[:3]] == [FULL, TAIL, STATE]
    for layer in range(11):
        behind = (11 * page + layer * keys) * BLOCKS
        assert place(views[f"group 0 layer {layer} kv"]) == (layer * page * BLOCKS, page)
        assert place(views[f"group 0 layer {layer} index"]) == (behind, keys)
        assert place(views[f"group 1 layer {layer} ring"]) == (behind, keys)
    assert place(views["group 2 layer 1 state 0"]) == (page * BLOCKS, page)


def test_the_state_of_n_gram_embeddings_has_its_own_shape() -> None:
    ready = ready_of(QWEN, "0.33.0")
    (number,) = (number for number, group in enumerate(ready.groups) if group.kind == EMBEDDED)
    found = [view for name, view in views_of(ready).items() if re.match(rf"group {number} ", name)]
    assert [view.nominal_bytes // BLOCKS for view in found] == [ready.embedded_bytes]
