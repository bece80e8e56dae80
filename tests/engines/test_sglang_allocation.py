"""What SGLang's pools take beside states: the request table, a decode server's own slots, keys and values, windows."""

from __future__ import annotations

from typing import Any

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.architecture import Architecture, GroupedQueryKV, IndexCache, LatentKV
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.allocation import (
    TORCH_DTYPES,
    Allocation,
    Settled,
    allocate,
    index_bytes,
    int8_pool,
    kv_lines,
    kv_tensors,
    limit_lines,
    table_extra,
)
from hybridcalc.engines.sglang.kv import KV_CACHE_DTYPES, kv_cell
from hybridcalc.engines.sglang.planner import prepare
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.sizes import dense_windows, state_slot

NEWEST = rules_for("0.5.23")[0]
K3 = load_model("kimi-k3")
QWEN = load_model("qwen3.5-35b-a3b")


def pools(
    model: Architecture = K3, *, slots: int = 100, requests: int = 20, tokens: int = 4096, **flags: Any
) -> Allocation:
    """The pools of so many slots, requests and tokens, of all layers."""
    args = ServerArgs(tp_size=8, **flags)
    slot = state_slot(model, args)
    return allocate(
        model,
        slot,
        slot.layers,
        kv_cell(model, args, NEWEST),
        args,
        NEWEST,
        slots=slots,
        tokens=tokens,
        requests=requests,
        context_length=8192,
        replay_active=False,
    )


def entries(*, draft: int, page: int, topk: int, steps: int | None, chain: bool) -> int:
    """Extra entries of a request in the table, by the rule of SGLang's request pool (0.5.23)."""
    taken = steps if steps is not None else max(draft - 1, 1)
    ahead = max(taken * topk, draft)
    if topk > 1 and not chain:
        pages = 1
        while pages * page < page - 1 + taken:
            pages += 1
        ahead = max(pages * page * topk, draft)
    return max(4 + draft, 2 * ahead + page - 1)


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "DSPARK", "DFLASH"])
@pytest.mark.parametrize("page", [2, 16, 64])
@pytest.mark.parametrize(("draft", "topk", "steps"), [(1, None, None), (2, 1, 1), (4, 1, None), (8, 4, 3), (5, 2, 17)])
def test_a_drafting_request_reserves_pages_ahead_of_its_tokens(
    algorithm: str, page: int, draft: int, topk: int | None, steps: int | None
) -> None:
    """Twice what it may be ahead and a page less one; chains of drafts take no page a branch."""
    args = ServerArgs(
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=draft,
        speculative_eagle_topk=topk,
        speculative_num_steps=steps,
        page_size=page,
    )
    chain = algorithm in ("NGRAM", "DSPARK", "DFLASH")
    assert table_extra(args) == entries(draft=draft, page=page, topk=topk or 1, steps=steps, chain=chain)


@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        ({}, 4),
        ({"page_size": 64}, 4),
        ({"max_draft_tokens": 9}, 4),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, 8),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "page_size": 1}, 8),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "page_size": 2}, 9),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "dcp_size": 2}, 9),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "page_size": 2, "dcp_size": 2}, 11),
    ],
)
def test_entries_of_the_request_table_beyond_the_context(flags: dict[str, Any], extra: int) -> None:
    """Four and the drafts; more only for drafts on pages of several tokens, of all ranks that share a sequence."""
    assert table_extra(ServerArgs(tp_size=8, **flags)) == extra


@pytest.mark.parametrize(
    ("limit", "workers", "ahead"),
    [(None, 1, 0), (1, 1, 2), (31, 1, 62), (32, 1, 64), (33, 1, 0), (64, 2, 64), (66, 2, 0), (1, 2, 0), (3, 2, 2)],
)
def test_a_decode_server_of_few_requests_holds_twice_as_many_ahead(limit: int | None, workers: int, ahead: int) -> None:
    """Up to 32 requests of a worker; none where it runs more, or none (SGLang disaggregation/decode.py)."""
    flags: dict[str, Any] = {"dp_size": workers, "enable_dp_attention": True} if workers > 1 else {}
    found = pools(
        requests=20, max_running_requests=limit, disaggregation_mode="decode", disable_radix_cache=True, **flags
    )
    assert found.request_rows == 20 + ahead + 1


@pytest.mark.parametrize("given", [0, 1, 7])
def test_what_a_decode_server_is_told_to_hold_ahead_counts(given: int) -> None:
    found = pools(max_running_requests=4, disaggregation_mode="decode", disaggregation_decode_extra_slots=given)
    assert found.request_rows == 20 + given + 1


@pytest.mark.parametrize(
    ("strategy", "overlap", "radix", "slots"),
    [
        ("extra_buffer", True, True, 3),
        ("extra_buffer", False, True, 2),
        ("extra_buffer_lazy", True, True, 2),
        ("no_buffer", True, True, 1),
        ("auto", True, True, 1),
        ("extra_buffer", True, False, 1),
    ],
)
def test_a_decode_server_raises_its_slots_to_what_its_requests_hold(
    strategy: str, overlap: bool, radix: bool, slots: int
) -> None:
    """One live state, and what tracks prefixes where they are cached there; raised only where there are fewer."""
    flags: dict[str, Any] = {
        "disaggregation_mode": "decode",
        "disaggregation_decode_extra_slots": 5,
        "mamba_radix_cache_strategy": strategy,
        "disable_overlap_schedule": not overlap,
        "disaggregation_decode_enable_radix_cache": radix,
    }
    needed = 25 * slots
    fewer, exact = pools(slots=needed - 1, **flags), pools(slots=needed, **flags)
    assert (fewer.pool_slots, fewer.raised_from) == (needed, needed - 1)
    assert (exact.pool_slots, exact.raised_from) == (needed, None)
    assert pools(slots=needed - 1, **flags | {"disaggregation_mode": "prefill"}).raised_from is None


def test_every_pool_holds_a_slot_or_a_row_more_than_it_serves() -> None:
    """K + 1 slots of states, R + 1 rows of drafts and of the table; int32 entries."""
    found, slot = pools(), state_slot(K3, ServerArgs(tp_size=8))
    assert (found.conv_state, found.ssm_state) == (101 * slot.conv_bytes, 101 * slot.ssm_bytes)
    assert (found.request_rows, found.request_table) == (21, 21 * (8192 + 4) * 4)
    drafting = pools(speculative_algorithm="EAGLE", speculative_num_draft_tokens=4)
    assert drafting.intermediate_ssm == 21 * 4 * slot.ssm_bytes
    assert (found.intermediate_ssm, found.intermediate_conv) == (0, 0)
    assert drafting.state_total == found.state_total + drafting.intermediate_ssm + drafting.intermediate_conv


@pytest.mark.parametrize(("key", "value"), [(256, 256), (192, 128), (64, 256)])
def test_keys_and_values_share_the_pool_by_their_widths(key: int, value: int) -> None:
    """A page of tokens pads it; two tensors for heads, one row for MLA, empty ones without attention."""
    model = QWEN._replace(attention=GroupedQueryKV(2, key, value))
    args = ServerArgs(page_size=16)
    row = 2 * 2 * model.attention_layers
    sizes = kv_tensors(model, kv_cell(model, args, NEWEST), 4096, args, NEWEST)
    assert sizes == ((4096 + 16) * row * key, (4096 + 16) * row * value)
    mla = kv_tensors(K3, kv_cell(K3, args, NEWEST), 4096, args, NEWEST)
    assert mla == ((4096 + 16) * 576 * 2 * K3.attention_layers,)
    pure = load_model("codestral-mamba-7b")
    assert kv_tensors(pure, kv_cell(pure, args, NEWEST), 4096, args, NEWEST) == (0, 0)


@pytest.mark.parametrize("dtype", [*KV_CACHE_DTYPES])
def test_packed_heads_and_windows_have_pools_that_are_not_known(dtype: str) -> None:
    """4 and 8 bits with scales beside; MLA in 4 bits lies in a pool of whole bytes."""
    args = ServerArgs(kv_cache_dtype=dtype)
    known = dtype not in ("fp4_mx_block16", "mxfp8")
    assert bool(kv_tensors(QWEN, kv_cell(QWEN, args, NEWEST), 64, args, NEWEST)) is known
    inkling = load_model("inkling")
    assert kv_tensors(inkling, kv_cell(inkling, args, NEWEST), 64, args, NEWEST) == ()
    if dtype == "fp4_mx_block16":
        assert kv_tensors(K3, kv_cell(K3, args, NEWEST), 64, args, NEWEST) == (65 * 576 * K3.attention_layers,)


@pytest.mark.parametrize(("version", "kpool", "page"), [("0.5.21", 4, 64), ("0.5.22", 4, 256), ("0.5.22", 1, 64)])
@pytest.mark.parametrize("rows", [0, 63, 64, 255, 256, 257, 1000])
@pytest.mark.parametrize("dcp", [1, 2])
def test_index_keys_lie_in_whole_pages_of_64(version: str, kpool: int, page: int, rows: int, dcp: int) -> None:
    """Of pooled keys from 0.5.22 on; a key is a byte a value and four for every 128."""
    attention = LatentKV(512, 64, indexer=IndexCache(head_dim=128, kpool=kpool))
    found = index_bytes(attention, rows, ServerArgs(dcp_size=dcp), rules_for(version)[0])
    assert found == rows * dcp // page * 64 * (128 + 4)
    assert index_bytes(LatentKV(512, 64), rows, ServerArgs(), NEWEST) == 0


def test_the_int8_pool_is_its_data_scales_and_windows() -> None:
    """N + 1 slots of N = 2 K unless it is given; a byte a value, a scale a row, windows as they are."""
    args = ServerArgs(tp_size=8, enable_int8_mamba_checkpoint=True)
    slot = state_slot(K3, args)
    heads, values, keys = slot.temporal_shape
    pool = present(int8_pool(slot, 3, 50, args))
    assert (pool.slots, pool.bytes) == (100, 101 * pool.per_slot)
    assert pool.data_bytes == 101 * 3 * heads * values * keys
    assert pool.scale_bytes == 101 * 3 * heads * keys * 4
    assert pool.conv_bytes == 101 * 3 * slot.conv_bytes_per_layer
    assert pool.per_slot * 101 == pool.data_bytes + pool.scale_bytes + pool.conv_bytes
    assert present(int8_pool(slot, 3, 50, args.changed(int8_mamba_ckpt_size=7))).slots == 7
    assert int8_pool(slot, 3, 50, ServerArgs()) is None


@pytest.mark.parametrize(
    ("model", "flags", "dense"),
    [
        ("qwen3.5-35b-a3b", {}, False),
        *(("qwen3.5-35b-a3b", {"platform": name}, False) for name in ("cuda", "hip", "xpu", "musa")),
        *(("qwen3.5-35b-a3b", {"platform": name}, True) for name in ("npu", "cpu")),
        ("qwen3.5-35b-a3b", {"speculative_eagle_topk": 1}, False),
        ("qwen3.5-35b-a3b", {"speculative_eagle_topk": 2}, True),
        ("qwen3.5-35b-a3b", {"engine_version": "0.5.13"}, True),
        ("qwen3.5-35b-a3b", {"engine_version": "0.5.14"}, False),
        ("kimi-k3", {}, True),
        ("inkling", {}, True),
    ],
)  # fmt: skip
def test_draft_windows_overlap_in_a_chain_on_gpus(model: str, flags: dict[str, Any], dense: bool) -> None:
    """Not for KDA's own pool or Inkling, not in a tree of drafts, not before 0.5.14, not on an NPU or a CPU."""
    args = ServerArgs(**flags)
    assert dense_windows(load_model(model), args, rules_for(args.engine_version)[0]) is dense


SETTLED = Settled(
    slots=40, slots_per_request=5, tokens=4096, requests=8, asked=20, asked_by_user=True, kv_dtype="bfloat16"
)


@pytest.mark.parametrize(
    ("version", "changed", "begins"),
    [
        (
            "0.5.23",
            {},
            "max_running_requests is capped to 8 by the mamba state cache (max_mamba_cache_size=40, 5 state",
        ),
        ("0.5.23", {"asked": 9}, "max_running_requests is capped to 8"),
        ("0.5.23", {"asked": 8}, ""),
        ("0.5.23", {"tokens": 18}, "max_running_requests is capped to 8"),
        ("0.5.23", {"tokens": 17}, "max_running_requests was reduced from the requested 20 to 8"),
        ("0.5.23", {"tokens": 16, "asked_by_user": False}, ""),
        ("0.5.16", {}, "max_running_requests was reduced from the requested 20 to 8 (per dp worker)"),
        ("0.5.16", {"asked": 9}, "max_running_requests was reduced from the requested 9 to 8"),
        ("0.5.16", {"asked": 8}, ""),
        ("0.5.13", {}, "Max concurrent requests (per dp worker) from the finalized token capacity: max_num_reqs=8."),
        ("0.5.12", {}, ""),
    ],
)
def test_the_log_says_why_fewer_requests_run(version: str, changed: dict[str, Any], begins: str) -> None:
    """Slots are the cause where K // S is below the limit and T // 2; each release has a line of its own."""
    lines = limit_lines(SETTLED._replace(**changed), rules_for(version)[0])
    assert len(lines) == (1 if begins else 0)
    assert all(line.startswith(begins) for line in lines)


def test_every_kv_dtype_is_printed_under_torch_s_name() -> None:
    """E4M3 without its zero, as torch has it; 8 bits with scales are stored in it too."""
    assert TORCH_DTYPES == {
        "bfloat16": "torch.bfloat16",
        "float16": "torch.float16",
        "float32": "torch.float32",
        "fp8_e4m3": "torch.float8_e4m3fn",
        "fp8_e5m2": "torch.float8_e5m2",
        "fp4_mx_block16": "torch.float4_e2m1fn_x2",
        "mxfp8": "torch.float8_e4m3fn",
    }
    assert set(KV_CACHE_DTYPES) - {"auto"} <= set(TORCH_DTYPES)
    (line,) = kv_lines(pools()._replace(kv=(3 * 2**30, 2**30)), SETTLED)
    assert line == "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, K size: 3.00 GB, V size: 1.00 GB"
    (line,) = kv_lines(pools()._replace(kv=(2**30,)), SETTLED)
    assert line == "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, KV size: 1.00 GB"
    assert kv_lines(pools()._replace(kv=()), SETTLED) == []


def test_a_stage_s_pools_are_of_its_own_layers() -> None:
    """The first of two stages of Kimi-K3: 46 of 93 layers."""
    args = ServerArgs(tp_size=8, pp_size=2)
    ready = prepare(K3, args)
    assert [(stage.first, stage.end) for stage in ready.stages] == [(0, 46), (46, 93)]
