"""Draft models of their own beside states on vLLM: groups, pages and blocks, by hand from the rule of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.drafts import own_drafter
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import rules_for
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


@pytest.mark.parametrize(
    ("ranks", "given", "counted"), [(1, {}, True), (2, {}, False), (1, {"heads": 4, "dim": 256}, False)]
)
def test_a_draft_keeps_rows_of_its_own_without_context_parallelism(
    tmp_path: Path, ranks: int, given: dict[str, Any], counted: bool
) -> None:
    """And where its heads are not the model's, whose rows it would share."""
    args = drafting(tmp_path, tp=8, decode_context_parallel_size=ranks, **given)
    draft = own_drafter(load_model("qwen3.5-27b"), args, rules_for("0.33.0")[0])
    assert (draft is not None) is counted
