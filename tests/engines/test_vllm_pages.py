"""vLLM's block, page and padding: the figures of Nemotron-H-8B, checkpoint grids, and the arithmetic for any model."""

from math import lcm
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.architecture.families.shortconv import ShortConv
from hybridcalc.architecture.presets import model_names
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES
from hybridcalc.engines.vllm.pages import Pages
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.errors import HybridcalcError, Refusal

NEMOTRON, NEXT, KIMI = "nemotron-h-8b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b"
OLD: dict[str, Any] = {"engine_version": "0.22.1", "enable_prefix_caching": True}


def pages(model: str = NEMOTRON, **flags: Any) -> Pages:
    return prepare(load_model(model), EngineArgs(**flags)).pages


def test_nemotron_h_8b_needs_1040_tokens_to_cover_a_state() -> None:
    """4,255,744 B over 4,096 B a token are 1,039 tokens: 1,040 in steps of 16, in align and in none."""
    for caching in (True, False):
        ready = prepare(load_model(NEMOTRON), EngineArgs(enable_prefix_caching=caching))
        assert (ready.state_bytes, ready.kv_bytes) == (4_255_744, 4_096)
        assert (ready.pages.block, ready.pages.page) == (1040, 4_259_840)
        assert ready.settled["padding_pct"] == 100 * (4_259_840 - 4_255_744) / 4_255_744


def test_nemotron_h_8b_under_all_takes_whole_chunks() -> None:
    """0.22.1: 5 chunks of 256 tokens, a page of 5,242,880 B, 23.2 % of it padding."""
    found = pages(**OLD)
    assert (found.block, found.mamba_block, found.page, found.padded) == (1280, 1280, 5_242_880, 5_242_880)
    assert f"{100 * (found.page - 4_255_744) / 4_255_744:.1f}" == "23.2"


@pytest.mark.parametrize(
    ("model", "flags", "block"),
    [
        (NEMOTRON, {"block_size": 512}, 1536),
        (NEMOTRON, {"block_size": 1024}, 2048),
        (NEMOTRON, {"block_size": 1040}, 1040),
        (NEMOTRON, {"block_size": 2080}, 2080),
        (NEMOTRON, {"kv_cache_dtype": "fp8"}, 2080),
        (NEMOTRON, {**OLD, "mamba_block_size": 1024}, 2048),
        (NEMOTRON, {**OLD, "mamba_block_size": 640}, 1280),
        (NEMOTRON, {**OLD, "mamba_cache_mode": "align"}, 1040),
        (NEXT, {}, 576),
        (NEXT, {"block_size": 544}, 1088),
        (NEXT, {"enable_prefix_caching": False}, 544),
        (NEXT, {"gdn_prefill_backend": "triton"}, 544),
        (NEXT, {"additional_config": {"gdn_prefill_backend": "triton"}}, 544),
        (NEXT, {"gpu_capability": "10.0"}, 576),
        (NEXT, {"gpu_capability": "8.0"}, 544),
        (NEXT, OLD, 544),
        ("olmo-hybrid-7b", {}, 80),
        *((NEXT, {"tensor_parallel_size": tp}, block) for tp, block in ((2, 576), (4, 320), (8, 192))),
        *((KIMI, {"tensor_parallel_size": tp}, block) for tp, block in ((1, 1920), (2, 1024), (4, 512), (8, 256))),
    ],
)
def test_the_block_of_a_configuration(model: str, flags: dict[str, Any], block: int) -> None:
    """Steps of the given block; 64 for GDN checkpoints on FlashInfer; 128 for MLA, which is not cut by tp."""
    assert pages(model, **flags).block == block


@pytest.mark.parametrize(
    ("model", "flags", "blocks"),
    [
        (NEMOTRON, {}, 1),
        (NEXT, {}, 1),
        (NEXT, {"gdn_prefill_backend": "triton"}, 0),
        ("olmo-hybrid-7b", {}, 0),
        (KIMI, {}, 0),
        ("kimi-k3", {}, 1),
        ("kimi-k3", {"kda_prefill_backend": "triton"}, 0),
        ("jamba-1.5-mini", {}, 0),
        ("lfm2-1.2b", {}, 0),
        (NEMOTRON, OLD, 0),
    ],
)
def test_blocks_that_prefill_checkpoints_take(model: str, flags: dict[str, Any], blocks: int) -> None:
    """One for every Mamba2, for GDN on FlashInfer and for KDA on FlashKDA; none in 0.22.1."""
    assert prepare(load_model(model), EngineArgs(**flags)).held.checkpoints == blocks


def test_a_short_convolution_wider_than_its_class_says_outgrows_the_page() -> None:
    """LFM2 with drafts: the class counts 2 rows, the layer 2 + S; 32,768 B of page hold up to 8 rows of 4,096 B."""
    config = {"method": "ngram", "num_speculative_tokens": 6}
    ready = prepare(load_model("lfm2-1.2b"), EngineArgs(speculative_config=config))
    assert (ready.state_bytes, ready.pages.class_bytes, ready.pages.page) == (32_768, 8_192, 32_768)
    with pytest.raises(Refusal) as caught:
        prepare(load_model("lfm2-1.2b"), EngineArgs(speculative_config={**config, "num_speculative_tokens": 7}))
    assert (caught.value.stage, caught.value.rule) == ("get_kv_cache_spec", "HC046")
    assert caught.value.message == (
        "a layer's state of 36,864 B does not fit the page of 32,768 B that its class sizes"
    )


def test_a_page_that_its_state_fills_exactly_is_outgrown_as_well() -> None:
    """Four times as wide: 2 rows of 16,384 B are the page of 16 tokens, nothing is padded, and a third does not fit."""
    lfm2 = load_model("lfm2-1.2b")
    wide = lfm2._replace(state=ShortConv((cast(ShortConv, lfm2.state).streams[0]._replace(width=8192),)))
    exact = prepare(wide, EngineArgs())
    assert (exact.state_bytes, exact.pages.page, exact.pages.padded) == (32_768, 32_768, None)
    with pytest.raises(Refusal) as caught:
        prepare(wide, EngineArgs(speculative_config={"method": "ngram", "num_speculative_tokens": 1}))
    assert (caught.value.stage, caught.value.rule) == ("get_kv_cache_spec", "HC046")
    assert "49,152 B does not fit the page of 32,768 B" in caught.value.message


def test_a_kimi_state_that_only_the_class_halves_is_refused() -> None:
    """--mamba-ssm-cache-dtype bfloat16 shrinks the page, the layer stays float32."""
    with pytest.raises(Refusal) as caught:
        prepare(load_model(KIMI), EngineArgs(mamba_ssm_cache_dtype="bfloat16"))
    assert (caught.value.stage, caught.value.rule) == ("get_kv_cache_spec", "HC046")
    assert "2,170,880 B does not fit the page of 1,179,648 B" in caught.value.message


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 4096), ("bfloat16", 4096), ("fp8", 2048), ("fp8_e5m2", 2048), ("int8_per_token_head", 2048 + 8 * 8)],
)
def test_bytes_of_a_token_in_a_layer(dtype: str, size: int) -> None:
    """8 KV heads x 2 x 128; a scale of 4 B for each key and each value of a head where they are kept per token."""
    assert prepare(load_model(NEMOTRON), EngineArgs(kv_cache_dtype=dtype)).kv_bytes == size


def test_kv_heads_are_copied_once_there_are_more_ranks() -> None:
    """Qwen3-Next has 2: tp 2, 4 and 8 keep 1,024 B a token each."""
    sizes = [prepare(load_model(NEXT), EngineArgs(tensor_parallel_size=tp)).kv_bytes for tp in (1, 2, 4, 8)]
    assert sizes == [2048, 1024, 1024, 1024]


def test_without_a_state_or_without_attention_nothing_grows() -> None:
    assert (pages("llama-3-8b").block, pages("llama-3-8b").padded) == (16, None)
    pure = pages("codestral-mamba-7b", enable_prefix_caching=True)
    assert (pure.block, pure.mamba_block, pure.padded) == (16, 16, None)


PRESETS = [name for name in model_names() if load_model(name).architecture in CLASSES]
CONFIGURATIONS = st.fixed_dictionaries({
    "model": st.sampled_from(PRESETS),
    "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8", "int8_per_token_head"]),
    "block_size": st.sampled_from([None, 16, 32, 64, 128, 512, 1024]),
    "enable_prefix_caching": st.booleans(),
    "mamba_cache_mode": st.sampled_from([None, "align"]),
    "mamba_ssm_cache_dtype": st.sampled_from(["auto", "bfloat16", "float32"]),
    "engine_version": st.sampled_from(["0.33.0", "0.22.1"]),
})  # fmt: skip


@given(CONFIGURATIONS)
def test_a_page_covers_a_state_by_the_least_block_of_its_steps(drawn: dict[str, Any]) -> None:
    """Against a search: the first multiple of the steps whose page holds the state, and never below --block-size;
    with an index, made up to whole pages of its keys.
    """
    model = load_model(drawn.pop("model"))
    try:
        ready = prepare(model, EngineArgs(**drawn))
    except HybridcalcError:
        return
    found = ready.pages
    if ready.backend is None:
        assert found.block == (drawn["block_size"] or 16)
        return
    assert found.page == found.block * ready.kv_bytes >= found.class_bytes
    assert found.block % ready.backend.kernel_block == 0
    assert found.padded == (found.page if found.page != found.class_bytes else None)
    if ready.mode == "all":
        step = (
            lcm(model.chunk_size or 2048, drawn["block_size"] or 16)
            if not ready.kind.default_chunk
            else lcm(2048, drawn["block_size"] or 16)
        )
    else:
        step = max(
            drawn["block_size"] or 16, 128 if ready.backend.name.endswith("MLA") and ready.rules.latent_block else 16
        )
        if ready.mode == "align" and ready.held.checkpoints and ready.kind.checkpoint != "mamba2":
            step = lcm(step, {"gdn": 64, "kda": 16}[ready.kind.checkpoint.split()[0]])
    blocks = range(step, 10**7, step)
    held = next(block for block in blocks if block * ready.kv_bytes >= found.class_bytes)
    indexer = getattr(model.attention, "indexer", None)  # whole pages of its kernels as well: 32 keys, each of a pool
    whole = 1 if indexer is None else lcm(ready.backend.kernel_block, 32 * indexer.kpool)
    assert found.block == -(-held // whole) * whole
