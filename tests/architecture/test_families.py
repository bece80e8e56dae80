"""Per-rank shapes of each recurrent family and of attention KV, against hand-worked numbers and against their sums."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybridcalc.architecture import GroupedQueryKV, IndexCache, LatentKV, kv_elements_per_token, kv_heads_on_rank
from hybridcalc.architecture.families import RecurrentState, StateShapes, shard_groups
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.architecture.families.lightning import Lightning
from hybridcalc.architecture.families.mamba1 import Mamba1
from hybridcalc.architecture.families.mamba2 import Mamba2
from hybridcalc.architecture.families.shortconv import ConvStream, ShortConv
from hybridcalc.errors import ShardingError

QWEN3_5_27B = GatedDeltaNet(num_v_heads=48, num_k_heads=16, v_head_dim=128, k_head_dim=128, conv_kernel=4)
KIMI_K3 = KimiDelta(num_heads=96, head_dim=128, conv_kernel=4)
NEMOTRON_3_SUPER = Mamba2(num_heads=128, head_dim=64, state_size=128, n_groups=8, inner_size=8192, conv_kernel=4)
GRANITE_H_TINY = Mamba2(num_heads=48, head_dim=64, state_size=128, n_groups=1, inner_size=3072, conv_kernel=4)
FALCON_MAMBA_7B = Mamba1(inner_size=8192, state_size=16, conv_kernel=4)
LING_2_6_FLASH = Lightning(num_heads=32, head_dim=128)
LFM2_1_2B = ShortConv((ConvStream(width=2048, rows=2),))
ZAYA1_8B = ShortConv((ConvStream(width=1280, rows=2), ConvStream(width=2048, rows=1, kv_heads=None)))
INKLING_KV_STREAM = ConvStream(width=1024, rows=3, kv_heads=8)


@pytest.mark.parametrize(
    ("state", "conv", "temporal"),
    [
        pytest.param(QWEN3_5_27B, 30_720, 786_432, id="gdn-qwen3.5-27b"),
        pytest.param(KIMI_K3, 110_592, 1_572_864, id="kda-kimi-k3"),
        pytest.param(NEMOTRON_3_SUPER, 30_720, 1_048_576, id="mamba2-nemotron-3-super"),
        pytest.param(FALCON_MAMBA_7B, 24_576, 131_072, id="mamba1-falcon-mamba-7b"),
        pytest.param(LING_2_6_FLASH, 0, 524_288, id="lightning-ling-2.6-flash"),
        pytest.param(LFM2_1_2B, 4096, 0, id="shortconv-lfm2-1.2b"),
    ],
)
def test_state_elements_of_one_layer_as_worked_by_hand(state: Any, conv: int, temporal: int) -> None:
    """One number a family, worked through in the model notes: elements of one layer on one rank."""
    shapes = state.shapes(1)
    assert (shapes.conv_elements, shapes.temporal_elements) == (conv, temporal)


@pytest.mark.parametrize(
    ("state", "tp", "conv", "temporal"),
    [
        pytest.param(KIMI_K3, 8, [(3, 4608)], (12, 128, 128), id="kda"),
        pytest.param(QWEN3_5_27B, 4, [(3, 2560)], (12, 128, 128), id="gdn"),
        pytest.param(NEMOTRON_3_SUPER, 8, [(3, 1280)], (16, 64, 128), id="mamba2"),
        pytest.param(FALCON_MAMBA_7B, 4, [(3, 2048)], (2048, 16), id="mamba1"),
        pytest.param(LING_2_6_FLASH, 8, [], (4, 128, 128), id="lightning"),
        pytest.param(LFM2_1_2B, 4, [(2, 512)], (), id="shortconv"),
        pytest.param(ZAYA1_8B, 2, [(2, 640), (1, 2048)], (), id="zaya-hidden-stream-whole"),
        pytest.param(ShortConv((INKLING_KV_STREAM,)), 16, [(3, 128)], (), id="inkling-one-kv-head-a-rank"),
    ],
)
def test_shapes_of_one_rank(state: Any, tp: int, conv: list[tuple[int, int]], temporal: tuple[int, ...]) -> None:
    """SGLang configs/mamba_utils.py, kimi_linear, zaya and inkling configs (0.5.23)."""
    assert state.shapes(tp) == (tuple(conv), temporal)


@pytest.mark.parametrize(
    ("groups", "tp", "held"),
    [(8, 1, 8), (8, 4, 8), (8, 8, 8), (1, 8, 8), (8, 16, 16), (16, 3, 3), (16, 6, 6), (0, 4, 0)],
    ids=["one rank", "divides", "one each", "replicated", "more ranks", "tp 3 of 16", "tp 6 of 16", "no groups"],
)
def test_groups_that_all_ranks_hold_together(groups: int, tp: int, held: int) -> None:
    """G' = G + (tp - G) = tp unless tp divides G, also where tp is smaller (SGLang extra_groups_for_head_shards)."""
    assert shard_groups(groups, tp) == held


@pytest.mark.parametrize(("tp", "width"), [(3, 2304), (6, 1280)])
def test_fewer_ranks_than_groups_that_do_not_divide_keep_fewer_groups(tp: int, width: int) -> None:
    """Qwen3.8-27B at tp 3 keeps 3 groups of 16: a real shape of the engine, no error."""
    assert QWEN3_5_27B.shapes(tp).conv == ((3, width),)


def test_each_rank_keeps_a_whole_group_where_groups_are_fewer() -> None:
    """Granite has one group: at tp 4 every rank keeps all of B and C, 3072 / 4 + 2 x 128 channels."""
    assert GRANITE_H_TINY.shapes(4).conv == ((3, 1024),)


@pytest.mark.parametrize(("kv_heads", "tp", "kept"), [(8, 2, 4), (8, 8, 1), (2, 8, 1), (1, 64, 1), (4, 3, 1)])
def test_kv_heads_are_shared_out_and_below_one_replicated(kv_heads: int, tp: int, kept: int) -> None:
    """max(1, kv_heads // tp), as in both engines."""
    assert kv_heads_on_rank(kv_heads, tp) == kept
    assert kv_elements_per_token(GroupedQueryKV(kv_heads, 128, 64), tp) == kept * 192


@pytest.mark.parametrize("tp", [1, 8, 96])
def test_a_latent_row_is_whole_on_every_rank(tp: int) -> None:
    """MLA caches kv_lora_rank + qk_rope_head_dim once for all heads; index keys are not counted here."""
    assert kv_elements_per_token(LatentKV(512, 64), tp) == 576
    assert kv_elements_per_token(LatentKV(512, 0, IndexCache(128, 4)), tp) == 512


@pytest.mark.parametrize(
    ("state", "tp", "message", "fix", "total"),
    [
        pytest.param(
            KIMI_K3,
            5,
            "--tp 5 does not divide 96 KDA heads",
            "write --tp 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 or 96",
            12_288,
            id="kda",
        ),
        pytest.param(
            QWEN3_5_27B,
            5,
            "--tp 5 does not divide 48 GDN value heads",
            "write --tp 1, 2, 3, 4, 6, 8, 12, 16, 24 or 48",
            7424,
            id="gdn",
        ),
        pytest.param(
            GRANITE_H_TINY,
            5,
            "--tp 5 does not divide 48 Mamba2 heads",
            "write --tp 1, 2, 3, 4, 6, 8, 12, 16, 24 or 48",
            4352,
            id="mamba2",
        ),
        pytest.param(
            Mamba2(8, 1, 1, 8, 9, 4),
            4,
            "--tp 4 does not divide the Mamba2 convolution of 25 channels",
            "write --tp 1",
            25,
            id="mamba2-conv",
        ),
        pytest.param(
            Mamba1(96, 16, 4),
            5,
            "--tp 5 does not divide the Mamba1 inner size of 96",
            "write --tp 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 or 48",
            96,
            id="mamba1",
        ),
        pytest.param(
            LING_2_6_FLASH,
            3,
            "--tp 3 does not divide 32 lightning heads",
            "write --tp 1, 2, 4, 8, 16 or 32",
            32,
            id="lightning",
        ),
        pytest.param(
            LFM2_1_2B,
            3,
            "--tp 3 does not divide the short convolution of 2,048 channels",
            "write --tp 1, 2, 4, 8, 16, 32 or 64",
            2048,
            id="shortconv",
        ),
        pytest.param(
            Lightning(720, 64),
            7,
            "--tp 7 does not divide 720 lightning heads",
            "write --tp 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 18, 20 or others",
            720,
            id="long list cut",
        ),
    ],
)
def test_ranks_that_do_not_divide_are_refused_with_those_that_do(
    state: Any, tp: int, message: str, fix: str, total: int
) -> None:
    """The words of the refusal, and the number the engine's own assertion names."""
    with pytest.raises(ShardingError) as refusal:
        state.shapes(tp)
    assert (refusal.value.message, refusal.value.fix) == (message, fix)
    assert (refusal.value.total, refusal.value.parts) == (total, tp)


def test_a_refusal_is_quick_however_many_heads_a_config_states(steps: Callable[..., Any]) -> None:
    """Configs state up to 2**31 heads; the sizes that would do are not searched one by one."""

    def refuse() -> None:
        with pytest.raises(ShardingError):
            KimiDelta(num_heads=2**31, head_dim=128, conv_kernel=4).shapes(3)

    assert steps(refuse) < 10_000


sizes, kernels = st.integers(1, 64), st.integers(2, 8)
SHARDABLE = st.one_of(
    st.builds(GatedDeltaNet, sizes, sizes, sizes, sizes, kernels),
    st.builds(KimiDelta, sizes, sizes, kernels),
    st.builds(
        lambda heads, dim, n, groups, k: Mamba2(heads, dim, n, groups, heads * dim, k),
        sizes, sizes, sizes, st.integers(0, 16), kernels,
    ),
    st.builds(Mamba1, sizes, sizes, kernels),
    st.builds(Lightning, sizes, sizes),
    st.builds(lambda width, rows: ShortConv((ConvStream(width, rows),)), sizes, kernels),
)  # fmt: skip


def _shapes_or_skip(state: RecurrentState, tp: int) -> StateShapes:
    try:
        return state.shapes(tp)
    except ShardingError:
        assume(False)


@given(SHARDABLE, st.integers(1, 16))
def test_shards_sum_to_the_whole(state: Any, tp: int) -> None:
    """Temporal states always do; convolutions do where tp divides the groups, else their shares of groups differ."""
    whole, shard = state.shapes(1), _shapes_or_skip(state, tp)
    assert shard.temporal_elements * tp == whole.temporal_elements
    groups = getattr(state, "num_k_heads", getattr(state, "n_groups", 0))
    if groups % tp == 0:
        assert shard.conv_elements * tp == whole.conv_elements
    elif groups < tp:
        assert shard.conv_elements * tp > whole.conv_elements
    else:
        assert shard.conv_elements * tp < whole.conv_elements


@given(SHARDABLE, st.integers(1, 16), st.integers(2, 8))
def test_more_ranks_never_hold_a_larger_share(state: Any, tp: int, factor: int) -> None:
    """A rank's state does not grow when ranks are multiplied and both counts divide."""
    fewer, more = _shapes_or_skip(state, tp), _shapes_or_skip(state, tp * factor)
    assert more.temporal_elements <= fewer.temporal_elements
    if getattr(state, "num_k_heads", getattr(state, "n_groups", 0)) % tp == 0:
        assert more.conv_elements <= fewer.conv_elements


@given(SHARDABLE, st.integers(1, 80))
def test_a_refusal_names_only_sizes_that_do(state: Any, tp: int) -> None:
    """Each size a refusal offers shards without a refusal, and the refused one is not among them."""
    try:
        state.shapes(tp)
        offered = []
    except ShardingError as error:
        offered = [int(size) for size in re.findall(r"\d+", error.fix)]
    assert tp not in offered
    for size in offered:
        state.shapes(size)


@given(st.integers(1, 128), st.integers(1, 128), st.integers(1, 128))
def test_kv_of_a_rank_is_a_share_and_never_less_than_one_head(kv_heads: int, tp: int, head_dim: int) -> None:
    """Whole heads, one at the least; exactly a share where tp divides them."""
    row = kv_elements_per_token(GroupedQueryKV(kv_heads, head_dim, head_dim), tp)
    assert row >= 2 * head_dim
    if kv_heads % tp == 0:
        assert row * tp == kv_elements_per_token(GroupedQueryKV(kv_heads, head_dim, head_dim), 1)
