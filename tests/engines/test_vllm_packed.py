"""Blocks whose pages differ: index caches beside attention, rings, two kinds of states, convolutions as windows."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import Architecture, load_model, vllm
from hybridcalc.architecture import Config
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.packed import PackedLayers, packed_groups
from hybridcalc.engines.vllm.pages import (
    CONVOLUTION,
    EMBEDDED,
    EVERY_CONVOLUTION,
    FULL,
    LOCAL_CONVOLUTION,
    STATE,
    STATES,
    TAIL,
    WINDOW,
)
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.windows import without_states
from hybridcalc.errors import NotModelled, Refusal

GLM, QWEN, INKLING = load_model("glm-5.3-flash"), load_model("qwen3.8-flash-next"), load_model("inkling")
MTP: dict[str, Any] = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}


@pytest.mark.parametrize(
    ("kv", "length", "blocks", "block", "concurrency", "tokens"),
    [
        ("auto", 262_144, 744, 1600, "4.11", 1_077_542),
        ("auto", 8_192, 730, 1600, "31.74", 260_006),
        ("fp8", 262_144, 707, 3184, "7.07", 1_853_358),
        ("fp8", 262_144, 327, 3184, "3.27", 857_210),
    ],
)
def test_public_boots_of_qwen4_exp(
    kv: str, length: int, blocks: int, block: int, concurrency: str, tokens: int
) -> None:
    """Two GB10 with two drafts, whose logs print block, padding, tokens and concurrency: the blocks follow from these.

    Source: vLLM issues 54426 and 54458.
    """
    args = EngineArgs(
        max_model_len=length,
        kv_cache_dtype=kv,
        max_num_seqs=4,
        num_gpu_blocks_override=blocks,
        gpu_capability="12.1",
        engine_version="0.31.0",
        **MTP,
    )
    plan = vllm.plan(QWEN, args, available_bytes=0)
    assert plan.attn_block_size == block
    assert (f"{plan.max_concurrency:.2f}", plan.kv_cache_size_tokens) == (concurrency, tokens)
    assert any("Padding mamba page size by 0.88%" in line for line in plan.log_lines) == (kv == "auto")


def test_groups_of_qwen4_exp() -> None:
    """36 states in three groups of 12, the state of the embeddings alone, 12 attention layers with keys for 4 tokens.

    784 tokens a block on 4 ranks, and 73 caches, as LMCache describes that server (its pull request 5042).
    """
    ready = prepare(QWEN, EngineArgs(tensor_parallel_size=4, engine_version="0.29.0"))
    assert [(group.kind, group.layers, group.block) for group in ready.groups] == [
        *[(STATE, 12, 784)] * 3,
        (EMBEDDED, 1, 784),
        (TAIL, 12, 4),
        (FULL, 12, 784),
    ]
    assert sum(ready.settled["group_sizes"]) == 73
    assert (ready.layout, ready.pages.index_bytes) == ("BLNHC", 784 // 4 * 128 * 2)
    assert ready.bytes_per_block == 12 * (784 * 2 * 512 + 784 // 4 * 256)
    assert ready.groups[-2].page == 4 * (128 + 12) * 2  # positions of pictures beside the raw keys
    assert ready.embedded_bytes == 9 * 4 * 2560 * 2


@pytest.mark.parametrize(
    ("flags", "stage", "message"),
    [
        ({"kv_cache_dtype": "fp8", "engine_version": "0.30.0"}, "initialize_model", "keeps no KV in fp8"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "initialize_model", "keeps no KV in fp8_e5m2"),
        ({"pipeline_parallel_size": 2}, "create_engine_config", "embeds n-grams on the first pipeline stage alone"),
        ({"speculative_config": {"method": "eagle3", "model": "x", "num_speculative_tokens": 2}},
         "create_engine_config", "drafts by its own layers or by n-grams, not by eagle3"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 19}}, "get_kv_cache_spec",
         "the ring of 24 tokens that 19 drafts want does not divide the block of"),
    ],
)  # fmt: skip
def test_what_qwen4_exp_does_not_start_with(flags: dict[str, Any], stage: str, message: str) -> None:
    with pytest.raises(Refusal, match=message) as caught:
        prepare(QWEN, EngineArgs(tensor_parallel_size=2, **flags))
    assert caught.value.stage == stage


OLD: dict[str, Any] = {"engine_version": "0.31.0"}
NEW: dict[str, Any] = {"engine_version": "0.33.0"}


@pytest.mark.parametrize(
    ("flags", "block", "sizes", "ring"),
    [
        ({"tensor_parallel_size": 8}, 640, [11, 11, 9, 9, 8, 8], 4),
        ({"tensor_parallel_size": 1}, 4352, [11, 11, 9, 9, 8, 8], 4),
        ({"tensor_parallel_size": 8, "speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
         640, [12, 12, 12, 11, 11], 8),
        ({"tensor_parallel_size": 8, "speculative_config": {"method": "mtp", "num_speculative_tokens": 5}},
         640, [12, 12, 12, 11, 11], 16),
    ],
)  # fmt: skip
def test_index_caches_lie_beside_the_pages(flags: dict[str, Any], block: int, sizes: list[int], ring: int) -> None:
    """GLM-5.3: 34 states in the pages of 11 MLA layers; a key of 128 + 4 B for 4 tokens; a tail of whole pools.

    Blocks are multiples of 4 x 32 tokens. In 0.31 groups of its own, from 0.32 those of all: states first, and a block
    of whole rows and whole pages of the index. Source: vLLM models/glm5next/, v1/core/kv_cache_planning.py.
    """
    for release in (OLD, NEW):
        ready = prepare(GLM, EngineArgs(max_model_len=131072, **flags, **release))
        tp = ready.args.tensor_parallel_size
        rows = 3 + ready.args.num_speculative_tokens
        state = rows * 3 * 64 * 128 // tp * 2 + 64 // tp * 128 * 128 * 4
        assert (ready.state_bytes, ready.pages.block) == (state, block)
        assert block % 128 == 0 and block * 1024 >= state > (block - 128) * 1024
        kinds = [FULL, TAIL, *[STATE] * (len(sizes) - 2)]
        own = dict(zip([*kinds[2:], FULL, TAIL] if release is NEW else kinds, range(9), strict=False))
        assert [g.kind for g in ready.groups] == (kinds if release is OLD else [*kinds[2:], FULL, TAIL])
        assert sorted((group.layers for group in ready.groups), reverse=True) == sorted(sizes, reverse=True)
        assert ready.groups[own[TAIL]].block == ring
        if release is NEW:  # a raw key and its gate in 16 bits; in 0.31 as long as a page of keys
            assert ready.groups[own[TAIL]].page == ring * 2 * 128 * 2
        whole = sizes[0] * (block * 1024 + block // 4 * 132)
        assert ready.bytes_per_block == (whole if release is OLD else ceil(whole / 33792) * 33792)
        held = 2 + ready.args.num_speculative_tokens + (release is NEW)
        assert ready.blocks_at(100_000) == -(-100_000 // block) + 1 + (len(sizes) - 2) * held


@pytest.mark.parametrize(
    ("capability", "dtype", "release", "block", "row"),
    [
        ("9.0", "auto", "0.33.0", 1152, 1024),
        ("9.0", "fp8", "0.33.0", 2176, 512),
        ("10.0", "auto", "0.32.0", 1152, 1024),
        ("10.0", "auto", "0.33.0", 2176, 512),
        ("10.0", "bfloat16", "0.33.0", 1152, 1024),
        ("12.0", "auto", "0.33.0", 1280, 656),
    ],
)
def test_rows_of_sparse_latent_kv(capability: str, dtype: str, release: str, block: int, row: int) -> None:
    """fp8 halves a row, and is the default on Blackwell from 0.33; RTX cards keep rows of 656 B under bf16 blocks."""
    args = EngineArgs(tensor_parallel_size=4, gpu_capability=capability, kv_cache_dtype=dtype, engine_version=release)
    ready = prepare(GLM, args)
    assert (ready.pages.block, ready.pages.attention_page) == (block, block * row)
    full = next(group for group in ready.groups if group.kind == FULL)
    assert full.page == block * row + block // 4 * 132
    assert all(group.bytes <= ready.bytes_per_block for group in ready.groups)


def test_states_larger_than_rows_do_not_start_before_pages_are_packed() -> None:
    """On RTX cards a state lies in a page of bf16 rows that attention does not have in 0.31."""
    with pytest.raises(Refusal, match="does not fit the page of 839,680 B") as caught:
        prepare(GLM, EngineArgs(tensor_parallel_size=4, gpu_capability="12.0", **OLD))
    assert caught.value.rule == "HC046"


def test_states_of_a_stage_need_pages_of_attention_there() -> None:
    """Of 45 layers the last of 45 stages has a state and no attention: refused until pages are packed."""
    with pytest.raises(Refusal, match=r"^a pipeline stage has recurrent layers and no attention") as caught:
        prepare(GLM, EngineArgs(pipeline_parallel_size=45, **OLD))
    assert (caught.value.stage, caught.value.rule) == ("layout+groups", "HC050")
    for release in (OLD, NEW):
        staged = prepare(GLM, EngineArgs(pipeline_parallel_size=2, **release))
        assert [sum(group.layers for group in own if group.kind == STATE) for own in staged.stages] == [18, 16]
    with pytest.raises(NotModelled, match=r"a pipeline stage without attention beside an index"):
        prepare(GLM, EngineArgs(pipeline_parallel_size=45, **NEW))
    uncached = EngineArgs(pipeline_parallel_size=45, enable_prefix_caching=False, **NEW)
    assert prepare(GLM, uncached).bytes_per_block > 0


@given(st.integers(1, 60), st.integers(1, 200), st.integers(0, 3), st.integers(1, 400))
def test_packed_groups_hold_every_layer_and_states_widen_no_block(full: int, states: int, more: int, key: int) -> None:
    """A group of states takes no more than a block of attention, and no group is left out."""
    caches = [
        PackedLayers(STATE, states, (1000,), 16),
        PackedLayers(FULL, full, (1000, key), 16),
        PackedLayers(TAIL, full, (8,), 4),
    ]
    caches += [PackedLayers(EMBEDDED, more, (1000,), 16)] if more else []
    groups = packed_groups(caches)
    for cache in caches:
        own = [group for group in groups if group.kind == cache.kind]
        assert sum(group.layers for group in own) == cache.layers
        assert max(group.layers for group in own) - min(group.layers for group in own) <= 1
    widest = max(group.bytes for group in groups if group.kind == FULL)
    assert widest == full * (1000 + key)
    assert all(group.bytes <= max(widest, 1000) for group in groups if group.kind in STATES)


def test_inkling_keeps_convolutions_as_windows() -> None:
    """55 local and 11 full layers, each with a window of 4 tokens of 16 x 1,024 or 8 x 2,048 values."""
    ready = prepare(INKLING, EngineArgs(tensor_parallel_size=8, max_model_len=32768, max_num_batched_tokens=2048))
    page = 4 * 16 * 1024 * 2 // 8
    assert [(group.kind, group.layers, group.block, group.page) for group in ready.groups] == [
        *[(LOCAL_CONVOLUTION, 11, 4, page)] * 5,
        *[(WINDOW, 11, 16, page)] * 5,
        (CONVOLUTION, 11, 4, page),
        (FULL, 11, 32, page),
    ]
    assert (ready.bytes_per_block, ready.prefix_caching, ready.mode) == (11 * page, True, "none")
    assert not ready.state and not ready.seqs_checked
    short, long = ceil((3 + 4096) / 4) + 1, ceil((511 + 4096) / 16) + 1
    assert ready.blocks_at(32768) == 6 * short + 5 * long + 1024


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ({"tensor_parallel_size": 16}, Refusal, "tensor parallel size 16 is more than the 8 KV heads"),
        ({"dtype": "float16"}, Refusal, "convolution windows are kept in bfloat16 alone"),
        (
            {"disable_hybrid_kv_cache_manager": True},
            Refusal,
            "turns the hybrid manager off, which alone keeps windows of",
        ),
    ],
)
def test_what_inkling_does_not_start_with(flags: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        prepare(INKLING, EngineArgs(**flags))


@pytest.mark.parametrize(
    ("drafts", "release", "local", "whole", "more"),
    [(1, "0.33.0", 56, 11, 0), (3, "0.33.0", 57, 12, 2), (8, "0.33.0", 61, 13, 7), (8, "0.27.0", 61, 13, 0)],
)
def test_mtp_depths_of_inkling_join_its_layers(drafts: int, release: str, local: int, whole: int, more: int) -> None:
    """Depths 0, 2, 4 to 7 are local: of 1, 3 and 8 drafts 1, 2 and 6, beside 55 local and 11 whole layers. From 0.28
    on windows keep what several depths compute again.
    """
    spec = {"method": "mtp", "num_speculative_tokens": drafts}
    ready = prepare(INKLING, EngineArgs(tensor_parallel_size=8, speculative_config=spec, engine_version=release))
    layers = {kind: sum(g.layers for g in ready.groups if g.kind == kind) for kind in (WINDOW, FULL, CONVOLUTION)}
    assert layers == {WINDOW: local, FULL: whole, CONVOLUTION: whole}
    assert ready.held.retained == more


@pytest.mark.parametrize("said", [None, {}, {"num_nextn_predict_layers": 0}])
def test_a_checkpoint_without_depths_has_none(said: dict[str, int] | None) -> None:
    config = {} if said is None else {"mtp_config": said}
    assert without_states(INKLING._replace(config=Config(config))).draft_layers == 0


@pytest.mark.parametrize(
    ("dtype", "block", "local", "blocks"),
    [("auto", None, 16, {4, 16, 32}), ("fp8", None, 32, {4, 32, 64}), ("fp8", 48, 48, {4, 48, 96})],
)
def test_blocks_grow_to_the_page_by_whole_factors_alone(
    dtype: str, block: int | None, local: int, blocks: set[int]
) -> None:
    """A window of 4 tokens is 128 KiB, 48 tokens of fp8 are 192 KiB: the former stays as it is."""
    args = EngineArgs(kv_cache_dtype=dtype, block_size=block, max_model_len=8192)
    groups = prepare(INKLING, args).groups
    assert {group.block for group in groups if group.kind == WINDOW} == {local}
    assert {group.block for group in groups} == blocks


def test_convolutions_of_the_same_heads_are_one_kind() -> None:
    """Where local and whole layers have as many heads, their windows are alike."""
    config = {
        "architectures": ["InklingForConditionalGeneration"],
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window_size": 512,
        "local_layer_ids": [layer for layer in range(12) if layer % 6 != 5],
        "sconv_kernel_size": 4,
    }
    model = Architecture.from_hf_config(config, name="inkling-12")
    ready = prepare(model, EngineArgs(max_model_len=65536))
    assert [(group.kind, group.layers) for group in ready.groups] == [
        *[(EVERY_CONVOLUTION, 2)] * 6,
        *[(WINDOW, 2)] * 5,
        (FULL, 2),
    ]
    stages = prepare(model, EngineArgs(max_model_len=65536, pipeline_parallel_size=2)).stages
    assert [sum(group.layers for group in own if group.kind == EVERY_CONVOLUTION) for own in stages] == [6, 6]
    with pytest.raises(Refusal, match="inkling-12 has no MTP layers to draft with"):
        prepare(model, EngineArgs(**MTP))
