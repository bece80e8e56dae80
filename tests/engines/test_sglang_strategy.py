"""Which strategy SGLang runs for each model class, what it refuses, and the slots a request then holds."""

from typing import Any

import pytest

from hybridcalc import Architecture
from hybridcalc.architecture import GroupedQueryKV, LatentKV
from hybridcalc.architecture.families.lightning import Lightning
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.strategy import of_gpu, resolve_strategy
from hybridcalc.errors import IllegalCombination

EXTRA_BUFFER = [
    "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "FalconH1ForCausalLM", "Glm5NextForConditionalGeneration",
    "GraniteMoeHybridForCausalLM", "InklingForConditionalGeneration", "InternS2PreviewForConditionalGeneration",
    "KimiK3ForConditionalGeneration", "KimiLinearForCausalLM", "MiniCPMV4_6ForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration", "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM",
    "NemotronH_Omni_Reasoning_V3", "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
]  # fmt: skip
NO_BUFFER = [
    "GigaChat35ForCausalLM", "InternS2MobiusForConditionalGeneration", "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "ZayaForCausalLM",
]  # fmt: skip
NO_RADIX = [
    "FalconMambaForCausalLM", "KimiK3LinearForCausalLM", "Lfm2VlForConditionalGeneration", "Mamba2ForCausalLM",
    "MambaForCausalLM", "MiniCPMSALAForCausalLM", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2",
]  # fmt: skip


def model(architecture: str, layers: str = "sa") -> Architecture:
    """A model of that class; its sizes do not matter here."""
    state = Lightning(1, 1) if "s" in layers else None
    return Architecture("m", architecture, layers, state, GroupedQueryKV(1, 1, 1))


def resolve(architecture: str, *, layers: str = "sa", **flags: Any) -> tuple[str, bool, int]:
    """Strategy, overlap and S of a class under flags."""
    args = ServerArgs(**flags)
    resolved = resolve_strategy(model(architecture, layers), args, rules_for(args.engine_version)[0])
    return resolved.strategy, resolved.overlap, resolved.slots.count


@pytest.mark.parametrize("architecture", EXTRA_BUFFER)
def test_auto_takes_extra_buffer_where_the_class_supports_it(architecture: str) -> None:
    """SGLang arg_groups/overrides.py, _MAMBA_EXTRA_BUFFER_ARCHS: 5 slots under the overlap scheduler."""
    assert resolve(architecture) == ("extra_buffer", True, 5)


@pytest.mark.parametrize("architecture", NO_BUFFER)
def test_auto_takes_no_buffer_and_turns_overlap_off_elsewhere(architecture: str) -> None:
    """_MAMBA_RADIX_CACHE_ARCHS without an extra buffer: 3 slots."""
    assert resolve(architecture) == ("no_buffer", False, 3)


@pytest.mark.parametrize("architecture", NO_RADIX)
def test_auto_stays_auto_for_classes_without_a_radix_cache_of_states(architecture: str) -> None:
    """Nothing is resolved or checked; base 3, and 1 where the class switches the prefix cache off."""
    assert resolve(architecture) == ("auto", True, 1 if architecture.startswith("MiniCPM") else 3)
    assert resolve(architecture, mamba_radix_cache_strategy="no_buffer")[0] == "no_buffer"
    assert resolve(architecture, disable_overlap_schedule=False) == resolve(architecture)


def test_granite_counts_only_with_a_mamba_layer() -> None:
    """Plain Granite files have the hybrid class and attention layers alone."""
    assert resolve("GraniteMoeHybridForCausalLM", layers="aa") == ("auto", True, 3)


@pytest.mark.parametrize(
    ("flags", "resolved"),
    [
        ({"disable_overlap_schedule": True}, ("no_buffer", False, 3)),
        ({"disable_overlap_schedule": True, "page_size": 64}, ("extra_buffer", False, 4)),
        ({"linear_attn_backend": "cutedsl"}, ("no_buffer", False, 3)),
        ({"platform": "xpu"}, ("no_buffer", False, 3)),
        ({"disable_radix_cache": True}, ("auto", True, 1)),
        ({"disable_radix_cache": True, "mamba_radix_cache_strategy": "extra_buffer"}, ("extra_buffer", True, 1)),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, ("extra_buffer_lazy", True, 4)),
        ({"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True}, ("no_buffer", False, 3)),
        ({"pp_size": 2}, ("extra_buffer", False, 4)),
        ({"env": {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}}, ("extra_buffer", True, 4)),
        ({"tp_size": 8, "speculative_algorithm": "EAGLE"}, ("extra_buffer", True, 5)),
    ],
    ids=[
        "no overlap",
        "no overlap but pages",
        "other backend",
        "other platform",
        "radix off",
        "radix off, typed",
        "lazy",
        "no_buffer typed",
        "pipeline",
        "decode lock skipped",
        "speculation changes nothing",
    ],
)
def test_flags_change_the_strategy_and_the_slots(flags: dict[str, Any], resolved: tuple[str, bool, int]) -> None:
    """Resolution in the engine's order, for Qwen3-Next."""
    assert resolve("Qwen3NextForCausalLM", **flags) == resolved


def test_inkling_takes_extra_buffer_even_without_overlap() -> None:
    """SGLang model_overrides/inkling.py sets it before anything is resolved."""
    assert resolve("InklingForConditionalGeneration", disable_overlap_schedule=True) == ("extra_buffer", False, 4)


@pytest.mark.parametrize(
    ("architecture", "version", "before"),
    [
        ("KimiLinearForCausalLM", "0.5.15", ("no_buffer", False, 3)),
        ("Qwen3_5ForCausalLM", "0.5.18", ("auto", True, 3)),
        ("FalconH1ForCausalLM", "0.5.12", ("no_buffer", False, 3)),
    ],
)
def test_older_releases_have_fewer_classes_with_an_extra_buffer(
    architecture: str, version: str, before: tuple[str, bool, int]
) -> None:
    """They fall back on no_buffer there, or have no prefix cache of states at all."""
    assert resolve(architecture, engine_version=version) == before


def test_0_5_16_does_not_ask_whether_a_typed_strategy_has_states_to_keep() -> None:
    """The newer version raises "needs mamba state"; the older one returned in silence and kept the strategy."""
    flags = {"engine_version": "0.5.16", "mamba_radix_cache_strategy": "extra_buffer"}
    assert resolve("Mamba2ForCausalLM", **flags)[0] == "extra_buffer"


@pytest.mark.parametrize(
    ("architecture", "flags", "reason"),
    [
        ("KimiK3ForConditionalGeneration", {}, "extra_buffer: 3 + 2; auto: KimiK3ForConditionalGeneration supports it"),
        ("Lfm2ForCausalLM", {}, "auto: Lfm2ForCausalLM has no extra buffer, overlap off"),
        ("Qwen3NextForCausalLM", {"disable_overlap_schedule": True}, "auto: without the overlap scheduler"),
        ("Qwen3NextForCausalLM", {"pp_size": 2}, "pp 2 turns overlap off"),
        ("Mamba2ForCausalLM", {}, "Mamba2ForCausalLM: the engine leaves auto alone, base 3"),
    ],
    ids=["supported", "unsupported", "no overlap", "pipeline", "no radix"],
)
def test_the_reason_travels_with_the_number(architecture: str, flags: dict[str, Any], reason: str) -> None:
    """A resolved default says why it is what it is."""
    args = ServerArgs(**flags)
    assert reason in resolve_strategy(model(architecture), args, rules_for(args.engine_version)[0]).slots.reason


REFUSED = {
    "no_buffer under overlap": (
        "Qwen3NextForCausalLM", {"mamba_radix_cache_strategy": "no_buffer"},
        "no_buffer does not run under the overlap scheduler",
        "write --disable-overlap-schedule, or drop --mamba-radix-cache-strategy",
    ),
    "no_buffer with pages": (
        "Qwen3NextForCausalLM",
        {"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True, "page_size": 64},
        "no_buffer needs --page-size 1, not 64", "drop --page-size",
    ),
    "auto no_buffer with pages": (
        "Lfm2ForCausalLM", {"page_size": 64}, "no_buffer needs --page-size 1, not 64", "drop --page-size"
    ),
    "no_buffer with trtllm_mha": (
        "Qwen3NextForCausalLM",
        {
            "mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True,
            "attention_backend": "trtllm_mha",
        },
        "no_buffer does not run with --attention-backend trtllm_mha", "write --attention-backend triton",
    ),
    "extra_buffer where there is none": (
        "Lfm2ForCausalLM", {"mamba_radix_cache_strategy": "extra_buffer"},
        "extra_buffer is not supported for Lfm2ForCausalLM here", "drop --mamba-radix-cache-strategy",
    ),
    "extra_buffer without a radix cache of states": (
        "Mamba2ForCausalLM", {"mamba_radix_cache_strategy": "extra_buffer"},
        "extra_buffer keeps states of a radix cache, which SGLang has not for Mamba2ForCausalLM",
        "drop --mamba-radix-cache-strategy",
    ),
    "lazy without overlap": (
        "Qwen3NextForCausalLM",
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "disable_overlap_schedule": True},
        "extra_buffer_lazy needs the overlap scheduler",
        "drop --disable-overlap-schedule, or write --mamba-radix-cache-strategy extra_buffer",
    ),
    "lazy on a disaggregated server": (
        "Qwen3NextForCausalLM",
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "disaggregation_mode": "prefill"},
        "extra_buffer_lazy does not run on disaggregated servers", "write --mamba-radix-cache-strategy extra_buffer",
    ),
    "a track interval below the draft": (
        "Qwen3NextForCausalLM",
        {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 8, "mamba_track_interval": 4},
        "--mamba-track-interval 4 is below the 8 draft tokens of a step", "write --mamba-track-interval 8",
    ),
    "a track interval beside the page": (
        "Qwen3NextForCausalLM", {"page_size": 64, "mamba_track_interval": 100},
        "--mamba-track-interval 100 is no multiple of --page-size 64",
        "write --mamba-track-interval 128",
    ),
    "a page beside the chunk": (
        "Qwen3NextForCausalLM", {"page_size": 48, "mamba_track_interval": 96},
        "--page-size 48 neither divides the kernel's chunk of 64 tokens nor is a multiple of it",
        "drop --page-size",
    ),
    "a draft tree under ReplaySSM": (
        "Qwen3NextForCausalLM",
        {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4, "enable_linear_replayssm_spec": True},
        "ReplaySSM verification needs a linear draft chain, not topk 4", "write --speculative-eagle-topk 1",
    ),
    "lazy with speculation in 0.5.16": (
        "Qwen3NextForCausalLM",
        {
            "mamba_radix_cache_strategy": "extra_buffer_lazy", "speculative_algorithm": "EAGLE",
            "speculative_num_draft_tokens": 4, "engine_version": "0.5.16",
        },
        "SGLang 0.5.16 refuses extra_buffer_lazy with speculation", "write --mamba-radix-cache-strategy extra_buffer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("architecture", "flags", "message", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_the_engine_refuses_is_refused_with_a_way_out(
    architecture: str, flags: dict[str, Any], message: str, fix: str
) -> None:
    """SGLang mamba_hook.py, model_hook.py and server_args.py; the words are ours."""
    with pytest.raises(IllegalCombination) as refusal:
        resolve(architecture, **flags)
    assert (refusal.value.message, refusal.value.fix) == (message, fix)


@pytest.mark.parametrize(
    ("backend", "capability", "attention", "flags", "page"),
    [
        ("fa4", "10.0", GroupedQueryKV(1, 1, 1), {}, 128),
        ("fa4", "10.3", GroupedQueryKV(1, 1, 1), {"page_size": 64}, 128),
        ("fa4", "9.0", GroupedQueryKV(1, 1, 1), {}, 1),
        ("fa4", "12.0", GroupedQueryKV(1, 1, 1), {"page_size": 64}, 64),
        ("fa4", "10.0", LatentKV(512, 64), {}, 1),
        ("fa4", "10.0", GroupedQueryKV(1, 1, 1), {"speculative_eagle_topk": 1}, 128),
        ("fa4", "10.0", GroupedQueryKV(1, 1, 1), {"speculative_eagle_topk": 2}, 1),
        ("triton", "10.0", GroupedQueryKV(1, 1, 1), {}, 1),
    ],
)
def test_flash_attention_4_has_pages_of_128_on_blackwell_servers(
    backend: str, capability: str, attention: Any, flags: dict[str, Any], page: int
) -> None:
    """Capability 10.x, KV of heads, no tree of drafts, whatever page is asked. SGLang server_args.py."""
    args = ServerArgs(attention_backend=backend, gpu_capability=capability, **flags)
    found = of_gpu(model("Qwen3NextForCausalLM")._replace(attention=attention), args, rules_for(None)[0])
    assert (found.attention_backend, found.page_size) == (backend, page)


def test_lazy_under_pipeline_parallelism_does_not_blame_a_flag_that_was_not_given() -> None:
    """pp turns overlap off by itself; dropping --disable-overlap-schedule would not help."""
    with pytest.raises(IllegalCombination) as refusal:
        resolve("Qwen3NextForCausalLM", pp_size=2, mamba_radix_cache_strategy="extra_buffer_lazy")
    assert "--disable-overlap-schedule" not in refusal.value.fix
