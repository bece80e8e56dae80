"""Draft models of their own beside states on vLLM: groups, pages and blocks, by hand from the rule of the source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.pages import blocks_held
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.server_plan import plan
from hybridcalc.errors import Refusal

GIB = 2**30


def drafting(folder: Path, *, layers: int = 1, heads: int = 8, dim: int = 128, tp: int = 1, **given: Any) -> EngineArgs:
    """Arguments with an EAGLE-3 head of grouped-query attention, whose config.json is made in ``folder``."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "head_dim": dim,
        "num_key_value_heads": heads,
        "num_hidden_layers": layers,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
    }
    folder = folder / f"{layers}x{heads}x{dim}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    spec = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3}
    fields: dict[str, Any] = {"engine_version": "0.33.0", "max_model_len": 32768, **given}
    return EngineArgs(tensor_parallel_size=tp, speculative_config=spec, **fields)


def test_a_head_of_one_layer_cuts_every_layer_into_a_group_of_its_own(tmp_path: Path) -> None:
    """48 states, 16 attention layers and the draft: groups are as small as the smallest bucket, of one layer. A request
    of 32,768 tokens holds 48 x (2 + 3 + 1) blocks of states and 17 x ceil(32768 / 832) of KV.
    """
    made = plan(load_model("qwen3.5-27b"), drafting(tmp_path), available_bytes=40 * GIB)
    assert made.group_sizes == [1] * 65 and made.bytes_per_block == 832 * 4096
    assert made.blocks_per_request == 48 * 6 + 17 * 40
    assert made.num_blocks == 40 * GIB // (832 * 4096)
    assert made.kv_bytes_per_token == 17 * 4096
    assert not [note for note in made.notes if "draft model" in note]


def test_five_layers_are_the_size_of_every_group(tmp_path: Path) -> None:
    """48 states in 10 groups, 16 attention layers in 4, 5 of the draft in one; 2 and 4 slots stay empty."""
    made = plan(load_model("qwen3.5-27b"), drafting(tmp_path, layers=5), available_bytes=40 * GIB)
    assert sorted(made.group_sizes) == [4] * 2 + [4] * 4 + [5] * 9
    assert [line for line in made.log_lines if "padding layers" in line] == [
        "Add 2 padding layers, may waste at most 4.17% KV cache memory",
        "Add 4 padding layers, may waste at most 25.00% KV cache memory",
    ]


@pytest.mark.parametrize(
    ("heads", "page", "blocks"),
    [
        (4, 832 * 4096, {"state": 832, "full attention": 832, "draft model": 1664}),
        (16, 832 * 8192, {"state": 832, "full attention": 1664, "draft model": 832}),
        (6, 832 * 4096, {"state": 832, "full attention": 832, "draft model": 832}),
        (12, 832 * 6144, {"state": 832, "full attention": 832, "draft model": 832}),
    ],
)
def test_pages_become_the_largest_by_longer_blocks_or_by_padding(
    tmp_path: Path, heads: int, page: int, blocks: dict[str, int]
) -> None:
    """A block of 832 tokens: of 4 heads x 256 x 2 for the model's attention, of ``heads`` x 128 x 2 for drafts."""
    ready = prepare(load_model("qwen3.5-27b"), drafting(tmp_path, heads=heads))
    assert {group.kind: group.block for group in ready.groups} == blocks
    assert {group.page for group in ready.groups} == {page}


def test_latent_rows_are_lengthened_by_whole_factors_or_do_not_start(tmp_path: Path) -> None:
    """Kimi-K3 on 8 ranks: 768 x 1,152 B of latent rows; a draft of one head a rank is padded, of five larger."""
    model = load_model("kimi-k3")
    ready = prepare(model, drafting(tmp_path, tp=8))
    assert {group.page for group in ready.groups} == {768 * 1152}
    with pytest.raises(Refusal, match=r"^the draft's page of 1,966,080 B is no multiple of the 884,736 B") as caught:
        prepare(model, drafting(tmp_path, heads=40, tp=8))
    assert caught.value.rule == "HC049"


def test_a_draft_of_the_same_heads_joins_the_attention(tmp_path: Path) -> None:
    """Kimi-K3 has 69 states and 24 attention layers; DSpark's 5 make 29, and 18 of 3 x 29 slots stay empty: 26.09 %, as
    vLLM Ascend issue 14314 prints. It is the engine's own planning code.
    """
    args = EngineArgs(
        tensor_parallel_size=16,
        speculative_config={"method": "dspark", "model": "/draft", "num_speculative_tokens": 5},
        draft_layers=5,
    )
    assert "Add 18 padding layers, may waste at most 26.09% KV cache memory" in "\n".join(
        plan(load_model("kimi-k3"), args, available_bytes=60 * GIB).log_lines
    )
    heads = drafting(tmp_path, layers=4, heads=4, dim=256)
    assert [group.layers for group in prepare(load_model("qwen3.5-27b"), heads).groups] == [16, 16, 16, 20]


def test_the_last_pipeline_stage_has_the_draft(tmp_path: Path) -> None:
    """Groups are those of the whole model; the draft's layers lie on the last stage."""
    ready = prepare(load_model("qwen3.5-27b"), drafting(tmp_path, layers=5, pipeline_parallel_size=2))
    assert [sum(g.layers for g in own if g.kind == "draft model") for own in ready.stages] == [0, 5]
    assert [sum(g.layers for g in own) for own in ready.stages] == [32, 37]


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("qwen3.5-27b", {"engine_version": "0.27.0"}),
        ("qwen3.5-27b", {"env": {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}}),
        ("gpt-oss-120b", {}),
    ],
)
def test_what_is_not_counted_is_said(tmp_path: Path, model: str, given: dict[str, Any]) -> None:
    """Older releases, blocks outermost, and models without states: as before, with a warning."""
    made = plan(load_model(model), drafting(tmp_path, **given), available_bytes=60 * GIB)
    assert any("no KV of the draft model is counted" in found.message for found in made.findings)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_context_parallelism_share_out_a_drafts_tokens(tmp_path: Path, ranks: int) -> None:
    """8 ranks hold the 4 heads of the model twice. A request of 32,768 tokens has 16,384 of them on a rank."""
    ready = prepare(load_model("qwen3.5-27b"), drafting(tmp_path, tp=8, decode_context_parallel_size=ranks))
    own = next(group for group in ready.groups if group.kind == "draft model")
    assert blocks_held(own, 32768, ready.held) == -(-32768 // ranks // own.block)
    assert own.span(ranks) == own.block * ranks


WINDOWED = {"layer_types": ["sliding_attention"], "sliding_window": 2048, "architectures": ["LlamaForCausalLM"],
            "model_type": "llama"}  # fmt: skip


def windowed(folder: Path, config: dict[str, Any] | None = None, **given: Any) -> EngineArgs:
    """The same head, whose layer sees 2,048 tokens."""
    args = drafting(folder, **given)
    file = next(folder.glob("*/config.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | WINDOWED | (config or {})))
    return args


def test_windows_that_come_first_have_the_first_groups(tmp_path: Path) -> None:
    """Two windows and a full layer, as the engine's own classes planned them: 24 blocks each, and 40."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    args = windowed(tmp_path, {"layer_types": kinds}, layers=3, max_num_batched_tokens=8192)
    ready = prepare(load_model("qwen3.5-27b"), args)
    own = [group for group in ready.groups if "draft model" in group.kind]
    assert [blocks_held(group, 32768, ready.held) for group in own] == [24, 24, 40]


def test_qwen3_keeps_windows_whole(tmp_path: Path) -> None:
    """Its class reads no layer_types: the draft is one of full attention."""
    args = windowed(tmp_path, {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
    ready = prepare(load_model("qwen3.5-27b"), args)
    assert [group.kind for group in ready.groups][-1] == "draft model"


@pytest.mark.parametrize("heads", [(8, 128), (4, 256)])
def test_windows_of_a_draft_hold_their_window(tmp_path: Path, heads: tuple[int, int]) -> None:
    """A bucket of its own whatever its heads: ceil((2048 - 1 + 2 x 8192) / 832) + 1 blocks."""
    args = windowed(tmp_path, heads=heads[0], dim=heads[1], max_num_batched_tokens=8192)
    made = plan(load_model("qwen3.5-27b"), args, available_bytes=40 * GIB)
    own = next(group for group in made.ready.groups if group.kind == "window of the draft model")
    assert (own.layers, own.block) == (1, 832)
    assert made.blocks_per_request == 48 * 6 + 16 * 40 + -(-(2047 + 2 * 8192) // 832) + 1
    assert not [found for found in made.findings if "draft model" in found.message]


def test_windows_of_a_draft_do_not_run_under_context_parallelism(tmp_path: Path) -> None:
    """DCP not support sliding window."""
    with pytest.raises(Refusal, match="do not run under context parallelism"):
        prepare(load_model("qwen3.5-27b"), windowed(tmp_path, tp=8, decode_context_parallel_size=2))


def test_windows_on_flashinfer_are_said_not_to_be_counted(tmp_path: Path) -> None:
    """Its kernels take blocks of fixed sizes, of which windows have the largest."""
    args = windowed(tmp_path, gpu_capability="10.0")
    made = plan(load_model("qwen3.5-27b"), args, available_bytes=40 * GIB)
    assert any("no KV of the draft model is counted" in found.message for found in made.findings)


def dflash(folder: Path, *, heads: int, dim: int, dcp: int, version: str = "0.33.0", **config: Any) -> EngineArgs:
    """Qwen3-Next on 8 ranks with a DFLASH draft of five layers, whose ranks share out the context."""
    args = drafting(
        folder, layers=5, heads=heads, dim=dim, tp=8, decode_context_parallel_size=dcp, engine_version=version
    )
    file = next(folder.glob("*/config.json"))
    own = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_target_layers": 48, **config}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    return replace(args, speculative_config={**(args.speculative_config or {}), "method": "dflash"})


MIXED = {"layer_types": ["sliding_attention"] * 4 + ["full_attention"], "sliding_window": 2048}


@pytest.mark.parametrize(
    ("heads", "dim", "dcp", "config", "sizes", "blocks", "per_block"),
    [
        (8, 128, 2, {}, [12, 12, 12, 12, 5], [6, 6, 6, 86, 171], 2359296),
        (2, 256, 4, {}, [5] * 4 + [4] * 7 + [5], [6] * 8 + [43] * 3 + [171], 983040),
        (8, 128, 2, MIXED, [12, 12, 12, 12, 4, 1], [6, 6, 6, 86, 55, 171], 2359296),
    ],
)
def test_every_rank_keeps_a_dflash_draft_whole(
    tmp_path: Path,
    heads: int,
    dim: int,
    dcp: int,
    config: dict[str, Any],
    sizes: list[int],
    blocks: list[int],
    per_block: int,
) -> None:
    """As vLLM 0.33.0's own classes plan Qwen3-Next: groups, blocks of a request of 32,768 tokens, bytes of a block."""
    args = replace(dflash(tmp_path, heads=heads, dim=dim, dcp=dcp, **config), max_num_batched_tokens=4096)
    ready = prepare(load_model("qwen3-next-80b-a3b"), args)
    assert [group.layers for group in ready.groups] == sizes
    assert [blocks_held(group, 32768, ready.held) for group in ready.groups] == blocks
    assert (ready.bytes_per_block, ready.layout[0]) == (per_block, "B" if dim == 128 else "L")


def test_ranks_shared_out_a_dflash_draft_before(tmp_path: Path) -> None:
    """0.30 and before: half of the tokens on each of two ranks, in pages as large as the model's."""
    ready = prepare(load_model("qwen3-next-80b-a3b"), dflash(tmp_path, heads=8, dim=128, dcp=2, version="0.29.0"))
    own = next(group for group in ready.groups if group.kind == "draft model")
    assert (own.copied, own.block, blocks_held(own, 32768, ready.held)) == (False, 288, 57)


def test_windows_that_a_dflash_draft_names_in_its_own_fields_are_not_counted(tmp_path: Path) -> None:
    args = dflash(tmp_path, heads=8, dim=128, dcp=2, dflash_config={"use_swa": True, "swa_window_size": 512})
    made = plan(load_model("qwen3-next-80b-a3b"), args, available_bytes=40 * GIB)
    assert any("no KV of the draft model is counted" in found.message for found in made.findings)
