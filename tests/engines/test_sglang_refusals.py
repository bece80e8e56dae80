"""What SGLang does not start with, each with the words it is told in; and what is next to it and starts."""

from __future__ import annotations

from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.architecture import CompressedIndex
from hybridcalc.engines.sglang import ServerArgs, refusals
from hybridcalc.engines.sglang.planner import prepare
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.replay import check_replayssm
from hybridcalc.engines.sglang.strategy import with_defaults
from hybridcalc.errors import Refusal
from hybridcalc.formulas import Strategy

NEWEST = rules_for(None)[0]
KIMI, NEXT = load_model("kimi-k3"), load_model("qwen3-next-80b-a3b")
DRAFTS: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
EXTRA, LAZY = Strategy.EXTRA_BUFFER, Strategy.EXTRA_BUFFER_LAZY


def told(check: Any, *given: Any, **named: Any) -> str:
    """The rule and the reason of what a check refuses; nothing where it passes."""
    try:
        check(*given, **named)
    except Refusal as caught:
        refusal = caught
    else:
        return ""
    assert refusal.fix
    return f"{refusal.rule} {refusal.reason}"


@pytest.mark.parametrize(
    ("flags", "overlap", "said"),
    [
        ({}, False, ""),
        ({"page_size": 1}, False, ""),
        ({"page_size": 2}, False, "HC004 no_buffer needs --page-size 1, not 2"),
        ({"page_size": 2}, True, "HC004 no_buffer needs --page-size 1, not 2"),
        ({}, True, "HC003 no_buffer does not run under the overlap scheduler"),
        (
            {"attention_backend": "trtllm_mha"},
            False,
            "HC003 no_buffer does not run with --attention-backend trtllm_mha",
        ),
        ({"attention_backend": "triton"}, False, ""),
    ],
)
def test_no_buffer(flags: dict[str, Any], overlap: bool, said: str) -> None:
    assert told(refusals.check_no_buffer, overlap, ServerArgs(**flags)) == said


@pytest.mark.parametrize(
    ("strategy", "flags", "said"),
    [
        (EXTRA, {}, ""),
        (LAZY, {}, ""),
        (EXTRA, {"disaggregation_mode": "prefill"}, ""),
        (LAZY, {"mamba_track_interval": 4, **DRAFTS}, ""),
        (EXTRA, {"mamba_track_interval": 4, **DRAFTS}, ""),
        (
            EXTRA,
            {"mamba_track_interval": 3, **DRAFTS},
            "HC005 --mamba-track-interval 3 is below the 4 draft tokens of a step",
        ),
        (EXTRA, {"mamba_track_interval": 128, "page_size": 64}, ""),
        (
            EXTRA,
            {"mamba_track_interval": 96, "page_size": 64},
            "HC005 --mamba-track-interval 96 is no multiple of --page-size 64",
        ),
        (EXTRA, {"mamba_track_interval": 256, "page_size": 128}, ""),
        (
            EXTRA,
            {"mamba_track_interval": 192, "page_size": 96},
            "HC004 --page-size 96 neither divides the kernel's chunk of 64 tokens nor is a multiple of it",
        ),
        (
            EXTRA,
            {"mamba_track_interval": 96, "page_size": 48},
            "HC004 --page-size 48 neither divides the kernel's chunk of 64 tokens nor is a multiple of it",
        ),
    ],
)
def test_extra_buffers(strategy: Strategy, flags: dict[str, Any], said: str) -> None:
    """The interval holds a step's drafts and whole pages; a page divides the kernel's chunk or is a multiple of it."""
    assert told(refusals.check_extra_buffer, strategy, KIMI, ServerArgs(**flags), NEWEST, supported=True) == said
    if not said:
        assert told(refusals.check_extra_buffer, strategy, KIMI, ServerArgs(**flags), NEWEST, supported=False) == (
            f"HC003 {strategy.value} is not supported for {KIMI.architecture} here"
        )


@pytest.mark.parametrize(
    ("strategy", "flags", "field", "said"),
    [
        (
            LAZY,
            {"disaggregation_mode": "decode"},
            ("lazy_refused_under_disaggregation", True),
            "HC003 extra_buffer_lazy does not run on disaggregated servers",
        ),
        (LAZY, DRAFTS, ("lazy_with_speculation", False), "HC003 SGLang {} refuses extra_buffer_lazy with speculation"),
        (
            LAZY,
            {**DRAFTS, "speculative_algorithm": "DFLASH"},
            ("lazy_with_dflash", False),
            "HC003 SGLang {} refuses extra_buffer_lazy with DFLASH drafts",
        ),
        (EXTRA, {}, ("extra_buffer_platforms", ()), "HC003 extra_buffer does not run on cuda"),
    ],
)
def test_what_a_release_refuses_of_extra_buffers(
    strategy: Strategy, flags: dict[str, Any], field: tuple[str, Any], said: str
) -> None:
    """By the rule of the release; under the other rule, or without what it is about, the same starts."""
    name, value = field
    opposite: dict[str, Any] = {name: ("cuda",) if value == () else not value}
    strict, free = NEWEST._replace(**{name: value}), NEWEST._replace(**opposite)
    args, check = ServerArgs(**flags), refusals.check_extra_buffer
    assert told(check, strategy, KIMI, args, strict, supported=True) == said.format(NEWEST.version)
    assert told(check, strategy, KIMI, args, free, supported=True) == ""
    if value != ():
        assert told(check, strategy, KIMI, ServerArgs(), strict, supported=True) == ""
        other = EXTRA if strategy is LAZY else LAZY
        found = told(check, other, KIMI, args, strict, supported=True)
        assert found == ("" if strategy is LAZY else said.format(NEWEST.version))


@pytest.mark.parametrize(
    ("strategy", "flags", "rules", "said"),
    [
        (Strategy.NO_BUFFER, {}, {}, ""),
        (Strategy.NO_BUFFER, DRAFTS, {}, "HC003 SGLang {} caches no prefixes beside drafts under no_buffer"),
        (Strategy.NO_BUFFER, {**DRAFTS, "disable_radix_cache": True}, {}, ""),
        (LAZY, {}, {}, ""),
        (
            EXTRA,
            {"disable_radix_cache": True},
            {"buffers_need_radix_cache": True},
            "HC003 extra buffers keep states of the radix cache, which is off",
        ),
        (EXTRA, {"disable_radix_cache": True}, {"buffers_need_radix_cache": False}, ""),
        (EXTRA, {}, {"buffers_need_radix_cache": True}, ""),
        (
            EXTRA,
            {"mamba_track_interval": 3, **DRAFTS},
            {},
            "HC005 --mamba-track-interval 3 is below the 4 draft tokens of a step",
        ),
    ],
)
def test_early_releases(strategy: Strategy, flags: dict[str, Any], rules: dict[str, Any], said: str) -> None:
    early = NEWEST._replace(**rules)
    found = told(refusals.check_early_buffers, strategy, KIMI, ServerArgs(**flags), early, supported=True)
    assert found == said.format(NEWEST.version)


@pytest.mark.parametrize(
    ("dtype", "capability", "platform", "runs"),
    [
        ("mxfp8", (10, 0), "cuda", True),
        ("mxfp8", (12, 0), "cuda", True),
        ("mxfp8", None, "cuda", True),
        ("mxfp8", (9, 0), "cuda", False),
        ("mxfp8", (10, 0), "rocm", False),
        ("fp8_e4m3", (9, 0), "cuda", True),
    ],
)
def test_mxfp8_wants_blackwell(dtype: str, capability: tuple[int, int] | None, platform: str, runs: bool) -> None:
    class Args:
        kv_cache_dtype = dtype

    args: Any = Args()
    args.capability, args.platform = capability, platform
    assert told(refusals.check_kv_dtype, args) == (
        "" if runs else "HC025 --kv-cache-dtype mxfp8 runs on Blackwell alone"
    )


DECODE: dict[str, Any] = {"enable_linear_replayssm": True}
VERIFY: dict[str, Any] = {"enable_linear_replayssm_spec": True}


@pytest.mark.parametrize(
    ("flags", "strategy", "said"),
    [
        ({}, "extra_buffer", ""),
        (
            {**DECODE, **VERIFY},
            "no_buffer",
            "--enable-linear-replayssm and --enable-linear-replayssm-spec exclude each other",
        ),
        (DECODE, "no_buffer", ""),
        (DECODE, "extra_buffer", "ReplaySSM decoding does not run with extra buffers"),
        (DECODE, "extra_buffer_lazy", "ReplaySSM decoding does not run with extra buffers"),
        ({**DECODE, "disable_radix_cache": True}, "extra_buffer", ""),
        (
            {**DECODE, "disaggregation_mode": "decode"},
            "no_buffer",
            "ReplaySSM decoding does not run on disaggregated servers",
        ),
        (VERIFY, "extra_buffer", ""),
        ({**VERIFY, "speculative_eagle_topk": 1}, "extra_buffer", ""),
        (
            {**VERIFY, "speculative_eagle_topk": 2},
            "extra_buffer",
            "ReplaySSM verification needs a linear draft chain, not topk 2",
        ),
        ({**VERIFY, "disaggregation_mode": "decode"}, "extra_buffer", ""),
        (
            {**VERIFY, "disaggregation_mode": "prefill"},
            "extra_buffer",
            "ReplaySSM verification does not run on prefill servers",
        ),
        ({**VERIFY, "linear_attn_decode_backend": "flashinfer"}, "extra_buffer", ""),
        (
            {**VERIFY, "linear_attn_decode_backend": "cutedsl"},
            "extra_buffer",
            "ReplaySSM verification does not run on the cutedsl backend",
        ),
        (
            {**DECODE, "linear_attn_decode_backend": "cutedsl"},
            "no_buffer",
            "ReplaySSM decoding does not run on the cutedsl backend",
        ),
    ],
)
def test_replayssm(flags: dict[str, Any], strategy: str, said: str) -> None:
    """Decoding without extra buffers, verification of linear chains; each on kernels of its own."""
    assert told(check_replayssm, ServerArgs(**flags), strategy, NEWEST) == (f"HC006 {said}" if said else "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"linear_replayssm_cache_len": 8}, ""),
        ({"mamba_ssm_dtype": "float32"}, ""),
        ({"linear_replayssm_cache_len": 12}, "the ring length must be a power of two, 12 is not"),
        ({"linear_replayssm_cache_len": 4}, "the ring length must be at least 2 x D = 8 for 4 draft tokens, 4 is not"),
        ({"mamba_ssm_dtype": "bfloat16"}, "{} needs states of float32, not bfloat16"),
        ({"linear_attn_decode_backend": "flashinfer"}, "{} does not run on the flashinfer backend"),
        ({"disaggregation_mode": "decode"}, "{} does not run on disaggregated servers"),
    ],
)
def test_verification_is_stricter_in_its_first_release(flags: dict[str, Any], said: str) -> None:
    """0.5.17 takes all that 0.5.16 refuses, extra buffers included."""
    args, strict, free = ServerArgs(**VERIFY | DRAFTS | flags), rules_for("0.5.16")[0], rules_for("0.5.17")[0]
    words = "ReplaySSM verification of SGLang 0.5.16"
    assert told(check_replayssm, args, "no_buffer", strict) == (f"HC006 {said.format(words)}" if said else "")
    assert told(check_replayssm, args, "extra_buffer", free) == told(check_replayssm, args, "no_buffer", free) == ""
    if not said:
        assert told(check_replayssm, args, "extra_buffer", strict) == f"HC006 {words} does not run with extra buffers"
        without = args.changed(disable_radix_cache=True)
        assert told(check_replayssm, without, "extra_buffer", strict) == ""


UNIFIED: dict[str, Any] = {"enable_unified_memory": True}
INT8: dict[str, Any] = {"enable_int8_mamba_checkpoint": True}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, ""),
        (INT8, ""),
        ({"enable_hierarchical_cache": True, "enable_lmcache": True}, ""),
        (
            {**INT8, "enable_hierarchical_cache": True},
            "HC007 int8 checkpoints do not run with --enable-hierarchical-cache",
        ),
        ({**INT8, "radix_cache_backend": "x"}, "HC007 int8 checkpoints do not run with --radix-cache-backend"),
        ({**INT8, "enable_lmcache": True}, "HC007 int8 checkpoints do not run with --enable-lmcache"),
        (UNIFIED, ""),
        ({"disaggregation_mode": "decode", "enable_two_batch_overlap": True}, ""),
        ({**UNIFIED, "disaggregation_mode": "decode"}, "HC008 unified memory does not run on disaggregated servers"),
        ({**UNIFIED, "enable_lmcache": True}, "HC008 unified memory does not run with --enable-lmcache"),
        (
            {**UNIFIED, "enable_two_batch_overlap": True},
            "HC008 unified memory does not run with --enable-two-batch-overlap",
        ),
        ({**UNIFIED, "kv_cache_dtype": "fp4_e2m1"}, "HC008 unified memory does not run with fp4 KV"),
        (
            {**UNIFIED, "dcp_size": 2, "tp_size": 2},
            "HC008 unified memory does not run under context parallelism without MLA",
        ),
        ({**UNIFIED, **DRAFTS, "speculative_eagle_topk": 1}, ""),
        (
            {**UNIFIED, **DRAFTS, "speculative_eagle_topk": 2},
            "HC008 unified memory does not run with this kind of speculation",
        ),
        (
            {**UNIFIED, **DRAFTS, "speculative_algorithm": "NGRAM"},
            "HC008 unified memory does not run with this kind of speculation",
        ),
    ],
)
def test_companions_of_int8_checkpoints_and_unified_memory(flags: dict[str, Any], said: str) -> None:
    assert told(refusals.check_companions, NEXT, ServerArgs(**flags), NEWEST) == said


def test_context_parallelism_parts_pooled_index_keys() -> None:
    """GLM-5.3-Flash pools 4 tokens to an index key; and latent rows of Kimi-K3 may be unified under it."""
    glm = load_model("glm-5.3-flash")
    said = "HC027 4 tokens share an index key, and context parallelism would part them"
    assert told(refusals.check_companions, glm, ServerArgs(tp_size=2, dcp_size=2), NEWEST) == said
    assert told(refusals.check_companions, glm, ServerArgs(tp_size=2), NEWEST) == ""
    assert told(refusals.check_companions, KIMI, ServerArgs(tp_size=2, dcp_size=2, **UNIFIED), NEWEST) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"heads": 2}, "2 index KV heads, not 1"),
        ({"ratio": 2, "budget": 1024}, ""),
        ({"ratio": 1, "budget": 512}, "one key for 1 token, not 2 or more"),
        ({"ratio": 16, "budget": 8192}, ""),
        ({"ratio": 16, "budget": 8193}, "a budget of 8193, which keys of 16 tokens do not divide"),
        ({"ratio": 16, "budget": 32_768}, ""),
        ({"ratio": 16, "budget": 16_384}, "1,024 keys a query, not 512 or 2,048"),
    ],
)
def test_a_compressed_index_that_kernels_select_from(fields: dict[str, int], said: str) -> None:
    """One head, two tokens a key or more, 512 or 2,048 keys a query."""

    class Attention:
        compressed: Any = None

    index = type("Index", (), {"heads": 1, "ratio": 16, "budget": 8192, **fields})
    attention: Any = Attention()
    attention.compressed = index
    model = KIMI._replace(attention=attention)
    assert told(refusals.check_index, model, ServerArgs()) == (f"HC028 the compressed index has {said}" if said else "")


@pytest.mark.parametrize(
    ("ratio", "page", "refused"), [(4, 1, True), (4, 6, True), (4, 4, False), (4, 64, False), (2, 2, False)]
)
def test_pages_hold_whole_compressed_keys(ratio: int, page: int, refused: bool) -> None:
    attention: Any = NEXT.attention
    model = NEXT._replace(attention=attention._replace(compressed=CompressedIndex(1, 128, ratio, 512 * ratio)))
    found = refusals.unbuildable(model, ServerArgs(page_size=page), NEWEST, replay_active=False)
    assert (found is not None and found.reason.startswith("compressed index keys need pages")) is refused


def test_fp8_index_keys_want_an_index() -> None:
    said = "HC028 there are no compressed index keys to keep in fp8"
    assert told(refusals.check_index, KIMI, ServerArgs(qsa_indexer_dtype="fp8_e4m3")) == said
    assert told(refusals.check_index, KIMI, ServerArgs()) == ""


TREE: dict[str, Any] = DRAFTS | {"speculative_eagle_topk": 4}
WORKERS: dict[str, Any] = {"dp_size": 2, "enable_dp_attention": True}


@pytest.mark.parametrize(
    ("name", "capability", "flags", "said"),
    [
        ("qwen3-next-80b-a3b", "8.9", {"attention_backend": "trtllm_mha"}, "trtllm_mha does not run on"),
        ("qwen3-next-80b-a3b", "9.0", {"attention_backend": "trtllm_mha"}, ""),
        ("qwen3-next-80b-a3b", "12.0", {"attention_backend": "trtllm_mha", "kv_cache_dtype": "fp8_e4m3"}, "read fp8"),
        ("kimi-k3", "10.0", {"kv_cache_dtype": "fp8_e5m2"}, "trtllm_mla does not read fp8_e5m2"),
        ("kimi-k3", "9.0", {"kv_cache_dtype": "fp8_e5m2"}, ""),
        ("glm-5.3-flash", "9.0", {"kv_cache_dtype": "fp8_e5m2"}, "dsa does not read fp8_e5m2"),
        ("qwen3-next-80b-a3b", "10.0", {"attention_backend": "trtllm_mha"} | TREE, "verify trees of drafts"),
        ("kimi-k3", "10.0", {"speculative_algorithm": "NGRAM"}, "trees of drafts on pages of 64"),
        ("kimi-k3", "9.0", {"speculative_algorithm": "NGRAM"}, ""),
        ("qwen3-next-80b-a3b", "9.0", {"page_size": 64} | TREE, ""),
        ("lfm2-1.2b", "9.0", {"attention_backend": "triton"}, "do not run on triton"),
        ("lfm2-1.2b", "9.0", {"kv_cache_dtype": "fp8_e5m2"}, ""),
        ("kimi-k3", "9.0", {"speculative_algorithm": "NGRAM"} | WORKERS, "NGRAM drafts"),
    ],
)
def test_what_backends_have_no_kernel_for(name: str, capability: str, flags: dict[str, Any], said: str) -> None:
    """Judged where the GPU is known, on what start-up settles; LFM2 on what is typed."""
    model, typed = load_model(name), ServerArgs(tp_size=2, gpu_capability=capability, **flags)
    found = told(refusals.check_kernels, model, typed, with_defaults(model, typed, NEWEST), NEWEST)
    assert said in found and bool(said) == bool(found)
    unknown = typed.changed(gpu_capability=None)
    assert not told(refusals.check_kernels, model, unknown, with_defaults(model, unknown, NEWEST), NEWEST)


@pytest.mark.parametrize(
    ("flags", "settled"),
    [({}, {}), (DRAFTS, {"max_running_requests_defaulted": 48}), (DRAFTS | {"max_running_requests": 7}, {})],
)
def test_a_refusal_says_the_limit_that_drafts_settled(flags: dict[str, Any], settled: dict[str, int]) -> None:
    """48 requests, where none are asked for: SGLang settles it before it chooses the strategy."""
    args = ServerArgs(mamba_radix_cache_strategy="no_buffer", page_size=2, disable_overlap_schedule=True, **flags)
    with pytest.raises(Refusal) as refused:
        prepare(NEXT, args)
    assert refused.value.outputs == settled
