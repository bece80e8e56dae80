"""How vLLM groups layers and what a request holds in each group, against direct counting."""

from collections import Counter
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.pages import (
    ALONE,
    FULL,
    STATE,
    TAIL,
    WINDOW,
    Group,
    Residency,
    blocks_held,
    form_groups,
    table_row,
)
from hybridcalc.engines.vllm.planner import prepare, size
from hybridcalc.engines.vllm.runner import buckets
from hybridcalc.errors import Refusal


@pytest.mark.parametrize(
    ("layers", "first", "drafts", "expected"),
    [
        ("sssa", False, 0, [(STATE, 3), (FULL, 1)]),
        ("asss", False, 0, [(FULL, 1), (STATE, 3)]),
        ("bbb", False, 0, [(STATE, 3), (FULL, 3)]),
        ("bbb", True, 0, [(FULL, 3), (STATE, 3)]),
        ("sbsb", True, 0, [(FULL, 2), (STATE, 4)]),
        ("s.a.w", False, 0, [(STATE, 1), (FULL, 1), (WINDOW, 1)]),
        ("sssa", False, 2, [(STATE, 3), (FULL, 3)]),
        ("ss", False, 1, [(STATE, 2), (FULL, 1)]),
        ("...", False, 0, []),
    ],
)
def test_buckets_come_in_the_order_of_their_first_layers(
    layers: str, first: bool, drafts: int, expected: list[tuple[str, int]]
) -> None:
    """Falcon-H1 and Zamba2 register their attention first; draft layers join the full attention."""
    assert list(buckets(layers, attention_first=first, drafts={FULL: drafts}).items()) == expected


@pytest.mark.parametrize(
    ("model", "flags", "sizes"),
    [
        ("nemotron-h-8b", {}, [4] * 7),
        ("qwen3-next-80b-a3b", {}, [12] * 4),
        ("qwen3-next-80b-a3b", {"speculative_config": {"method": "mtp"}}, [12, 12, 12, 13]),
        ("zamba2-7b", {}, [13, 12, 12, 12, 12, 11, 11, 11]),
        ("falcon-h1-34b", {}, [72, 72]),
        ("codestral-mamba-7b", {}, [64]),
        ("llama-3-8b", {}, [32]),
    ],
)
def test_groups_of_a_model(model: str, flags: dict[str, Any], sizes: list[int]) -> None:
    """Parts are strided, so that they differ by a layer at most; a bucket 1.5 times as large is cut to the smaller."""
    ready = prepare(load_model(model), EngineArgs(**flags))
    assert [group.layers for group in ready.groups] == sizes


def test_a_bucket_that_its_groups_do_not_fill_is_warned_of() -> None:
    """27 layers in groups of 4: a slot empty, 3.70 %."""
    groups, paddings = form_groups({STATE: 27, FULL: 4}, block=16, mamba_block=16)
    assert [group.layers for group in groups] == [4, 4, 4, 4, 4, 4, 3, 4]
    assert [(padding.slots, padding.layers) for padding in paddings] == [(1, 27)]


@given(st.dictionaries(st.sampled_from([FULL, STATE, WINDOW]), st.integers(1, 200), min_size=2))
def test_groups_share_every_layer_out_and_none_is_larger_than_the_size(counts: dict[str, int]) -> None:
    """size = n_max below 1.5 n_min, else n_min; sums, sizes and padding by the definition."""
    groups, paddings = form_groups(counts, block=32, mamba_block=64)
    size = max(counts.values()) if max(counts.values()) < 1.5 * min(counts.values()) else min(counts.values())
    total = Counter[str]()
    for group in groups:
        total[group.kind] += group.layers
        assert 0 < group.layers <= size
        assert group.block == (64 if group.kind == STATE else 32)
    assert total == counts
    for kind, count in counts.items():
        parts = [group.layers for group in groups if group.kind == kind]
        assert len(parts) == ceil(count / size)
        assert max(parts) - min(parts) <= 1
        assert parts == [len(range(i, count, len(parts))) for i in range(len(parts))]
    assert [(p.slots, p.layers) for p in paddings] == [(-n % size, n) for n in counts.values() if n % size]


HELD = Residency(mode="align", drafts=3, checkpoints=1, dcp=1, window=100, in_flight_tokens=50)


@pytest.mark.parametrize(
    ("kind", "changed", "length", "blocks"),
    [
        (FULL, {}, 1, 1),
        (FULL, {}, 64, 1),
        (FULL, {}, 65, 2),
        (FULL, {"dcp": 2}, 128, 1),
        (FULL, {"dcp": 2}, 129, 2),
        (STATE, {}, 1, 6),
        (STATE, {}, 10**6, 6),
        (STATE, {"checkpoints": 0, "drafts": 0}, 9, 2),
        (STATE, {"mode": "none"}, 9, 4),
        (STATE, {"mode": "all"}, 129, 6),
        (STATE, {"mode": "all", "drafts": 0}, 128, 2),
        (WINDOW, {}, 64, 2),
        (WINDOW, {}, 10**6, 4),
        (TAIL, {}, 10**6, 1),
    ],
)
def test_blocks_of_a_request_in_a_group(kind: str, changed: dict[str, Any], length: int, blocks: int) -> None:
    """align 2 + S + C, none 1 + S, all one for every block; a window holds W - 1 and what is in flight, and one."""
    assert blocks_held(Group(kind, 1, 64), length, HELD._replace(**changed)) == blocks


def test_a_row_of_the_block_table_is_as_long_as_the_request() -> None:
    """In align a state group has a row for every block although a handful is held."""
    assert table_row(Group(STATE, 1, 64), 1000, HELD) == 16 + 3
    assert table_row(Group(STATE, 1, 64), 1000, HELD._replace(mode="none")) == 4
    assert table_row(Group(FULL, 1, 64), 1000, HELD) == 16
    assert table_row(Group(WINDOW, 1, 64), 1000, HELD) == 16


def test_states_of_a_stage_without_attention_are_groups_of_their_own() -> None:
    """Layers 42 to 51 of Nemotron-H-8B hold no attention: their worker leaves the block at 16 tokens, others grow it.

    vLLM 0.33.0's own classes give 11,762 blocks, a third of those without, with fp8 KV at TP2.
    """
    model = load_model("nemotron-h-8b")
    args = EngineArgs(
        tensor_parallel_size=2, kv_cache_dtype="fp8", pipeline_parallel_size=5, enable_prefix_caching=True
    )
    ready = prepare(model, args)
    assert {group.block for group in ready.groups if group.kind == ALONE} == {16}
    assert {group.block for group in ready.groups if group.kind != ALONE} == {ready.pages.block}
    assert all({group.kind for group in own if group.layers} in ({ALONE}, {STATE, FULL}) for own in ready.stages)
    longer = prepare(model, replace(args, mamba_block_size=256))
    assert {group.block for group in longer.groups if group.kind == ALONE} == {256}
    whole = prepare(model, replace(args, enable_prefix_caching=False))
    for plan in (whole, prepare(model, replace(args, pipeline_parallel_size=2))):
        assert ALONE not in {group.kind for group in plan.groups}
    assert prepare(model, replace(args, engine_version="0.19.0")).stages


@pytest.mark.parametrize(
    ("release", "mode", "stage"),
    [
        ("0.25.1", "align", "layout+groups"),
        ("0.26.0", "align", "retention"),
        ("0.28.0", "align", None),
        ("0.28.0", "all", "retention"),
    ],
)
def test_stages_without_attention_start_from_a_release_on(release: str, mode: str, stage: str | None) -> None:
    """Pages are padded from 0.26 on, and hashes fit blocks of several sizes from 0.28 on, but for mode all."""
    args = EngineArgs(
        max_model_len=4096,
        pipeline_parallel_size=5,
        enable_prefix_caching=True,
        mamba_cache_mode=mode,
        engine_version=release,
    )
    if stage is None:
        assert size(prepare(load_model("nemotron-h-8b"), args), 64 << 30).blocks > 0
        return
    with pytest.raises(Refusal, match="a pipeline stage") as caught:
        size(prepare(load_model("nemotron-h-8b"), args), 64 << 30)
    assert (caught.value.stage, caught.value.rule) == (stage, "HC050")


def test_attention_must_fit_the_hash_block_beside_a_stage_without_attention() -> None:
    """States in blocks of 512 tokens divide the hash block of 0.26, attention in blocks of 16 does not."""
    args = EngineArgs(
        max_model_len=4096,
        tensor_parallel_size=2,
        pipeline_parallel_size=7,
        enable_prefix_caching=True,
        mamba_block_size=512,
        engine_version="0.26.0",
    )
    with pytest.raises(Refusal, match="a pipeline stage") as caught:
        size(prepare(load_model("lfm2-8b-a1b"), args), 64 << 30)
    assert (caught.value.stage, caught.value.rule) == ("retention", "HC050")
    assert size(prepare(load_model("lfm2-8b-a1b"), replace(args, engine_version="0.28.0")), 64 << 30).blocks > 0


def test_stages_without_attention_need_no_hash_block_without_caching() -> None:
    args = EngineArgs(
        max_model_len=1000, pipeline_parallel_size=5, enable_prefix_caching=False, engine_version="0.28.0"
    )
    assert size(prepare(load_model("nemotron-h-8b"), args), 64 << 30).blocks > 0
