"""Shapes and views of SGLang's tensors: what the bytes alone do not show."""

from __future__ import annotations

from hybridcalc import load_model
from hybridcalc.architecture import CompressedIndex, GroupedQueryKV
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.sglang import subject as sglang_subject
from hybridcalc.crosscheck.tensors import Sizes
from hybridcalc.deployment import exact_rest
from hybridcalc.engines.sglang import ServerArgs


def test_overlapping_windows_take_less_storage_than_their_shape() -> None:
    """GDN, D = 8, kernel 4: the view holds 8 windows of 3 columns, the storage 8 + 3 - 1 = 10."""
    args = ServerArgs(speculative_algorithm="EAGLE", speculative_num_draft_tokens=8, speculative_eagle_topk=1)
    subject = sglang_subject(load_model("qwen3.6-27b"), args, exact_rest(20.0))
    tensor = next(t for t in subject.stages[0](subject.full) if t.name == "intermediate_conv")
    (view,) = tensor.views
    assert view.shape[2:] == (8, 10240, 3)
    assert tensor.shape[2:] == (10240, 10)
    assert view.nominal_bytes * 10 == tensor.shape_bytes * 24
    assert view.end_bytes <= tensor.shape_bytes


def test_a_window_of_the_view_is_what_one_step_on_would_keep() -> None:
    """Filled with its column's number, window t of the engine's view holds columns t to t + K - 2."""
    args = ServerArgs(speculative_algorithm="EAGLE", speculative_num_draft_tokens=4, speculative_eagle_topk=1)
    subject = sglang_subject(load_model("qwen3.5-0.8b"), args, exact_rest(4.0))
    tensor = next(t for t in subject.stages[0](Sizes(1, 2, 1)) if t.name == "intermediate_conv")
    shared = torch.arange(6).expand(tensor.shape).contiguous()
    (view,) = tensor.views
    windows = shared.as_strided(view.shape, view.stride, view.offset)
    assert windows[0, 1, :, 5].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_k_and_v_are_halves_of_one_allocation() -> None:
    subject = sglang_subject(load_model("qwen3.6-27b"), ServerArgs(tp_size=2, page_size=64), exact_rest(20.0))
    tensor = next(t for t in subject.stages[0](subject.full) if t.name == "kv[3]")
    k, v = tensor.views
    assert tensor.shape == (2, subject.full.tokens + 64, 2, 256)
    assert (k.offset, v.offset * 2, v.end_bytes) == (0, tensor.shape_bytes // 2, tensor.shape_bytes)


def test_pipeline_stages_hold_their_own_layers() -> None:
    """Kimi-K3 over two stages: [0, 46) and [46, 93) hold 35 + 34 KDA layers and 11 + 13 MLA layers."""
    subject = sglang_subject(load_model("kimi-k3"), ServerArgs(tp_size=8, pp_size=2), None)
    held = [{t.name: t.shape[0] for t in build(subject.full)} for build in subject.stages]
    assert [stage["ssm_state"] for stage in held] == [35, 34]
    assert [sum(name.startswith("latent") for name in stage) for stage in held] == [11, 13]


def test_decoding_by_replay_keeps_rings_for_any_family() -> None:
    """Mamba2 too: SGLang 0.5.23's own MambaPool of two slots made these three rings for Nemotron-3-Nano-4B."""
    args = ServerArgs(
        enable_linear_replayssm=True, mamba_radix_cache_strategy="no_buffer", disable_overlap_schedule=True
    )
    subject = sglang_subject(load_model("nemotron-3-nano-4b"), args, exact_rest(20.0))
    held = {tensor.name: tensor.shape_bytes for tensor in subject.stages[0](Sizes(slots=2, rows=2, tokens=1))}
    rings = {name: size for name, size in held.items() if name.startswith("replayssm")}
    assert rings == {"replayssm_d": 30_965_760, "replayssm_k": 4_128_768, "replayssm_g": 387_072}


def test_compressed_index_keys_lie_on_one_buffer() -> None:
    """Qwen4-Exp: a key of 128 for 8 tokens in each of 12 layers, and 8 raw ones of each request with three positions.

    The bytes are those that SGLang 0.5.23's own pool counts beside K and V (158 request rows, 2,678,592 rows of KV).
    """
    attention = GroupedQueryKV(2, 256, 256, CompressedIndex(heads=1, head_dim=128, ratio=8, budget=4096))
    model = load_model("qwen3.8-flash-next")._replace(attention=attention)
    subject = sglang_subject(model, ServerArgs(tp_size=2, page_size=64), exact_rest(60.0))
    tensors = {t.name: t for t in subject.stages[0](Sizes(slots=788, rows=158, tokens=2_678_528))}
    flat, ring, where = tensors["qsa_compressed"], tensors["qsa_key_state[11]"], tensors["qsa_rope_position"]
    assert (flat.shape, ring.shape, where.shape) == ((12, 334_824 * 128), (158 * 8, 1, 128), (158 * 8, 3))
    assert flat.shape_bytes + 12 * ring.shape_bytes + where.shape_bytes == 17_489_761_920 - 16_457_269_248
    assert [view.offset for view in flat.views[:2]] == [0, 334_824 * 128]
    assert tensors["kv[0]"].shape_bytes * 12 == 2 * 16_457_269_248


def test_index_keys_are_stored_pooled() -> None:
    """GLM-5.3-Flash: four tokens share a key of 132 B."""
    subject = sglang_subject(load_model("glm-5.3-flash"), ServerArgs(), None)
    index = next(t for t in subject.stages[0](Sizes(slots=1, rows=2, tokens=2048)) if t.name == "index[0]")
    assert index.formula_bytes == index.shape_bytes == (2048 + 256) // 4 * 132
