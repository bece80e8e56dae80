"""SGLang plans of models without recurrent layers: KV alone, and what their flags come to; classes that it lacks."""

from typing import Any

import pytest

from hybridcalc import Architecture, load_model, sglang
from hybridcalc.architecture import GroupedQueryKV
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import kv_cell
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.errors import Refusal


def planned(model: str, rest: float, length: int | None = None, **flags: Any) -> Plan:
    workload = Workload.at(length) if length else Workload()
    return sglang.plan(load_model(model), ServerArgs(**flags), rest_gib=rest, workload=workload)


def test_a_model_without_states_is_planned_by_its_kv_alone() -> None:
    """20 GiB over 80 layers x 8 heads x 256 values x 2 B: no slot, no ratio, no pool beside KV."""
    plan = planned("llama-3.3-70b", rest=20.0, length=8000)
    assert (plan.kv_bytes_per_token, plan.max_total_num_tokens) == (327_680, 20 * 2**30 // 327_680)
    assert (plan.requests, plan.binding, plan.slots_per_request, plan.max_mamba_cache_size) == (8, "kv", 0, 0)
    assert (plan.ratio, plan.balanced, plan.fixed_bytes_per_request, plan.slots_reason) == (
        None,
        None,
        0,
        "no recurrent layer",
    )
    assert [line.name for line in plan.budget] == ["KV pool", "request table"]
    assert [step.symbol for step in plan.steps] == ["rest", "KV memory", "cell", "T", "R"]
    assert len(plan.log_lines) == 1 and plan.log_lines[0].startswith("KV Cache is allocated. ")
    assert [s.flags for s in plan.suggestions] == ["--kv-cache-dtype fp8_e4m3"]
    assert planned("llama-3.3-70b", rest=20.0).requests == 2048


@pytest.mark.parametrize(
    ("flags", "tokens", "requests"),
    [
        ({"tp_size": 4}, 262_144, 32),
        ({"pp_size": 4}, 262_144, 32),
        ({"page_size": 64, "kv_cache_dtype": "fp8_e4m3"}, 131_072, 16),
        ({"max_running_requests": 5}, 65_536, 5),
        ({"max_total_tokens": 20_000}, 20_000, 2),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "draft_layers": 1}, 64_726, 8),
        ({"engine_version": "0.5.9"}, 65_536, 8),
        ({"max_mamba_cache_size": 1, "mamba_full_memory_ratio": 9.0}, 65_536, 8),
    ],
)
def test_what_a_model_without_states_is_bound_by(flags: dict[str, Any], tokens: int, requests: int) -> None:
    """KV and the request limit; flags of the state pool change nothing, which is said."""
    plan = planned("llama-3.3-70b", rest=20.0, length=8000, **flags)
    assert (plan.max_total_num_tokens, plan.requests) == (tokens, requests)
    said = [note for note in plan.notes if note.startswith("no layer keeps a state: --m")]
    assert len(said) == sum(name.endswith(("cache_size", "memory_ratio")) for name in flags)
    assert plan.to_dict()["starts"] is True


def test_windows_of_a_model_without_states() -> None:
    """gpt-oss keeps its windows in a pool of their own, at 0.8 of the tokens; Gemma 3 keeps all at full length."""
    plan = planned("gpt-oss-120b", rest=60.0)
    assert plan.ready.cells[0].price == 18 * 2048 + 0.8 * (18 * 2048)
    assert plan.sizing.window_tokens == int(plan.max_total_num_tokens * 0.8)
    gemma = Architecture(
        name="gemma",
        architecture="Gemma3ForCausalLM",
        layers="wwwwwa",
        state=None,
        window=1024,
        attention=GroupedQueryKV(4, 256, 256),
        max_context=131_072,
    )
    whole = sglang.plan(gemma, ServerArgs(), rest_gib=20.0)
    assert whole.kv_bytes_per_token == 6 * 4 * 512 * 2 and whole.sizing.window_tokens is None


def test_a_class_that_no_release_has_is_refused() -> None:
    """Jamba and Zamba2 run on vLLM alone, Bamba on releases of it that are no longer the newest; Lara on none."""
    for name in ("jamba-1.5-mini", "zamba2-7b"):
        with pytest.raises(Refusal, match=r"^SGLang 0\.5\.23 has no class for \w+, nor has any release ") as no:
            planned(name, rest=30.0)
        assert (no.value.rule, no.value.stage) == ("HC024", "arguments")
        assert no.value.fix == "vLLM 0.33.0 has it: --engine vllm"
    for name, fix in (
        ("bamba-9b", "vLLM 0.23.0 has it: --engine vllm --engine-version 0.23.0"),
        ("lara-4-mini", "no other engine known here has it"),
    ):
        with pytest.raises(Refusal) as no:
            planned(name, rest=30.0)
        assert no.value.fix == fix


EAGLE: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "draft_layers": 1}


@pytest.mark.parametrize(
    ("name", "release", "draft"),
    [
        ("gpt-oss-120b", "0.5.14", 0),
        ("gpt-oss-120b", "0.5.15", 256),
        ("gpt-oss-120b", "0.5.18", 256),
        ("gpt-oss-120b", "0.5.19", 205),
        ("inkling", "0.5.18", 512),
        ("inkling", "0.5.23", 512),
    ],
)
def test_a_draft_beside_window_pools_is_a_layer_more(name: str, release: str, draft: int) -> None:
    """A full row from 0.5.15 on; from 0.5.19 on gpt-oss's own draft lies with its windows, Inkling's does not."""
    plan = planned(name, rest=60.0, tp_size=8, engine_version=release, **EAGLE)
    assert plan.ready.cells[0].draft_bytes == draft


def test_bands_of_inkling_s_drafts_are_rows_of_windows_for_every_token() -> None:
    """Its windows have twice the KV heads; a band counts at a row of theirs, of as many tokens as the others."""
    model = load_model("inkling")._replace(draft_bands=(1, 5))
    args = ServerArgs(tp_size=8, **EAGLE | {"draft_layers": 2})
    found = kv_cell(model, args, rules_for(None)[0])
    assert found.draft_bytes == 512 + 1024


def test_the_request_limit_sizes_windows_where_no_prefix_is_cached() -> None:
    """gpt-oss from 0.5.14 on: 64 requests of 128 + 128 + 2 x 64 tokens, two chunks, a page; by the ratio before."""
    flags: dict[str, Any] = {"tp_size": 8, "page_size": 64, "disable_radix_cache": True, "max_running_requests": 64}
    flags |= {"chunked_prefill_size": 8192}
    plan = planned("gpt-oss-120b", rest=60.0, **flags)
    assert plan.sizing.window_tokens == 64 * (128 + 128 + 64 + 64) + 2 * 8192 + 64
    before = planned("gpt-oss-120b", rest=60.0, engine_version="0.5.13", **flags)
    assert before.sizing.window_tokens == int(before.sizing.tokens * 0.8) // 64 * 64 < plan.sizing.tokens


@pytest.mark.parametrize("version", ["0.5.14", "0.5.21", "0.5.22"])
def test_the_request_limit_sizes_windows_of_prompts_in_one_piece_up_to_0_5_21(version: str) -> None:
    """A chunk of -1 counts as two of -1 tokens; from 0.5.22 on the ratio holds, but not on decode servers."""
    flags: dict[str, Any] = {"tp_size": 8, "page_size": 64, "disable_radix_cache": True, "max_running_requests": 64}
    flags |= {"chunked_prefill_size": -1, "engine_version": version}
    plan = planned("gpt-oss-120b", rest=60.0, **flags)
    by_ratio = int(plan.sizing.tokens * 0.8) // 64 * 64
    assert plan.sizing.window_tokens == (by_ratio if version == "0.5.22" else 64 * 384 + 64)
    decode = planned("gpt-oss-120b", rest=60.0, **flags, disaggregation_mode="decode")
    assert decode.sizing.window_tokens == 64 * 384


def test_windows_by_the_request_limit_leave_a_draft_cell_unpriced_up_to_0_5_22() -> None:
    """Inkling with DFLASH: 4,096 B of the draft's own are in the cell, and in T beside such windows from 0.5.23 on."""
    args = ServerArgs(speculative_algorithm="DFLASH", speculative_num_draft_tokens=2, draft_kv_bytes_per_token=4096)
    before, after = (kv_cell(load_model("inkling"), args, rules_for(version)[0]) for version in ("0.5.22", "0.5.23"))
    assert (before.price, before.draft_bytes) == (after.price, 4096)
    assert after.other_bytes - before.other_bytes == 4096


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({}, 2048),
        ({"page_size": 64}, 2048),
        ({"max_total_tokens": 1000}, 1000),
        ({"max_total_tokens": 1000, "page_size": 64}, 960),
        ({"max_total_tokens": 63, "context_length": 4096}, 63),
        ({"context_length": 100, "page_size": 64}, 64),
    ],
)
def test_tokens_that_take_no_memory_are_the_context_in_whole_pages(flags: dict[str, Any], tokens: int) -> None:
    """Falcon-Mamba keeps states alone: its token pool is as long as the context, or as it is told to be."""
    assert planned("falcon-mamba-7b", rest=20.0, **flags).max_total_num_tokens == tokens
