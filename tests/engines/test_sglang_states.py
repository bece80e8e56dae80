"""The state slot SGLang keeps: bytes, shapes in its own order, and the priority of dtypes."""

from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.architecture.families.shortconv import ConvStream, ShortConv
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.pools import charged_rings, replayssm_rings, ring_problem
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.sizes import replayssm_active, state_slot
from hybridcalc.errors import InputError, ShardingError

SPEC: dict[str, Any] = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_draft_tokens": 4,
    "enable_linear_replayssm_spec": True,
}


def test_the_slot_of_kimi_k3_on_8_ranks() -> None:
    """The published boot log's slot: 54,263,808 B of fp32 state and 1,907,712 B of bf16 windows."""
    slot = state_slot(load_model("kimi-k3"), ServerArgs(tp_size=8))
    assert (slot.bytes, slot.ssm_bytes, slot.conv_bytes, slot.layers) == (56_171_520, 54_263_808, 1_907_712, 69)


@pytest.mark.parametrize(
    ("name", "tp", "slot_bytes"),
    [
        ("qwen3.5-27b", 1, 153_944_064),
        ("nemotron-3-super-120b-a12b", 1, 170_229_760),
        ("falcon-mamba-7b", 1, 36_700_160),
        ("ling-2.6-flash", 1, 58_720_256),
        ("lfm2-1.2b", 1, 81_920),
        ("nemotron-h-8b", 1, 102_137_856),
        ("qwen3.5-35b-a3b", 4, 16_097_280),
    ],
)
def test_slots_of_other_families(name: str, tp: int, slot_bytes: int) -> None:
    """Model notes, one a family; C1 for Nemotron-H-8B; E1's fp32 reading for Qwen3.5-35B-A3B on 4 ranks."""
    assert state_slot(load_model(name), ServerArgs(tp_size=tp)).bytes == slot_bytes


@pytest.mark.parametrize(
    ("name", "conv_shape", "temporal_shape"),
    [
        ("kimi-k3", ((3, 36_864),), (96, 128, 128)),
        ("qwen3.5-27b", ((10_240, 3),), (48, 128, 128)),
        ("falcon-mamba-7b", ((8192, 3),), (8192, 1, 16)),
        ("ling-2.6-flash", ((0, 0),), (32, 128, 128)),
        ("lfm2-1.2b", ((2048, 2),), (1, 2048, 0)),
        ("zaya1-8b", ((1280, 2), (2048, 1)), (1, 1, 0)),
        ("inkling", ((3, 1024), (3, 1024), (3, 2048), (3, 2048), (3, 6144), (3, 6144)), (0, 0, 0)),
    ],
)
def test_shapes_are_ordered_as_the_engine_orders_them(
    name: str, conv_shape: tuple[tuple[int, int], ...], temporal_shape: tuple[int, int, int]
) -> None:
    """(width, rows), but (rows, width) for KDA and Inkling; an empty part keeps its place."""
    slot = state_slot(load_model(name), ServerArgs())
    assert (slot.conv_shape, slot.temporal_shape) == (conv_shape, temporal_shape)


PRIORITY = {
    "flag": ("qwen3.5-27b", {"mamba_ssm_dtype": "bfloat16"}, {}, "bfloat16", "--mamba-ssm-dtype"),
    "flag before env": (
        "qwen3.5-27b", {"mamba_ssm_dtype": "float16"}, {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"}, "float16",
        "--mamba-ssm-dtype",
    ),
    "env before config": (
        "qwen3.5-27b", {}, {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"}, "bfloat16", "SGLANG_MAMBA_SSM_DTYPE"
    ),
    "config where the class reads it": ("qwen3.5-27b", {}, {}, "float32", "the config's mamba_ssm_dtype"),
    "default": ("kimi-k3", {}, {}, "float32", "the engine's default"),
    "unknown flag": (
        "kimi-k3", {"mamba_ssm_dtype": "fp8"}, {}, "float32", "--mamba-ssm-dtype fp8 is not known: float32"
    ),
    "replay sets fp32": (
        "qwen3.5-27b", {"enable_linear_replayssm_spec": True}, {}, "float32", "--enable-linear-replayssm-spec sets it"
    ),
    "flag before replay": (
        "qwen3.5-27b", {"mamba_ssm_dtype": "bfloat16", "enable_linear_replayssm_spec": True}, {}, "bfloat16",
        "--mamba-ssm-dtype",
    ),
    "inkling is fixed": ("inkling", {"mamba_ssm_dtype": "float32"}, {}, "bfloat16", "fixed by the model class"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "flags", "env", "dtype", "reason"), PRIORITY.values(), ids=PRIORITY)
def test_the_ssm_dtype_is_flag_then_env_then_config_then_fp32(
    name: str, flags: dict[str, Any], env: dict[str, str], dtype: str, reason: str
) -> None:
    """SGLang mamba2_state_dtype (0.5.23), with the reason an answer shows."""
    slot = state_slot(load_model(name), ServerArgs(**flags, env=env))
    assert (slot.ssm_dtype, slot.ssm_dtype_reason) == (dtype, reason)


READING = (
    "Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen4ExpForConditionalGeneration", "NemotronHForCausalLM",
    "FalconH1ForCausalLM", "JetNemotronForCausalLM", "Lfm2ForCausalLM", "ZayaForCausalLM", "GigaChat35ForCausalLM",
)  # fmt: skip
NOT_READING = (
    "KimiLinearForCausalLM", "BailingMoeV3ForCausalLM", "GraniteMoeHybridForCausalLM", "Lfm2MoeForCausalLM",
    "Mamba2ForCausalLM",
)  # fmt: skip


@pytest.mark.parametrize("name", READING + NOT_READING)
def test_some_classes_read_the_dtype_that_a_config_declares(name: str) -> None:
    """Those whose config hands itself to mamba2_state_dtype (0.5.23)."""
    model = load_model("qwen3.5-27b")._replace(architecture=name, declared_ssm_dtype="bfloat16")
    assert state_slot(model, ServerArgs()).ssm_dtype == ("bfloat16" if name in READING else "float32")


def test_nemotron_s_cache_dtype_field_is_not_read() -> None:
    """SGLang reads mamba_ssm_dtype alone; mamba_ssm_cache_dtype is vLLM's."""
    model = load_model("nemotron-3-nano-30b-a3b")
    assert model.declared_ssm_cache_dtype == "float32"
    assert state_slot(model, ServerArgs()).ssm_dtype_reason == "the engine's default"


@pytest.mark.parametrize(("value", "dtype"), [("float32", "float32"), ("float16", "float16"), ("fp8", "bfloat16")])
def test_the_conv_dtype_comes_from_the_environment_alone(value: str, dtype: str) -> None:
    """SGLANG_MAMBA_CONV_DTYPE, bfloat16 otherwise and for names it does not know."""
    assert state_slot(load_model("kimi-k3"), ServerArgs(env={"SGLANG_MAMBA_CONV_DTYPE": value})).conv_dtype == dtype


def test_most_classes_divide_by_the_attention_ranks_and_pure_mamba_by_all() -> None:
    """tp 8 in 4 attention workers: 2 ranks share a state of Kimi-K3, 8 share one of Falcon-Mamba."""
    args = ServerArgs(tp_size=8, dp_size=4, enable_dp_attention=True)
    assert state_slot(load_model("kimi-k3"), args).temporal_shape[0] == 48
    assert state_slot(load_model("falcon-mamba-7b"), args).temporal_shape[0] == 1024


def test_a_model_without_a_state_is_refused() -> None:
    """Llama has KV alone."""
    with pytest.raises(InputError) as refusal:
        state_slot(load_model("llama-3-8b"), ServerArgs())
    assert refusal.value.message == "llama-3-8b has no recurrent layer: it keeps no state"


@pytest.mark.parametrize("streams", [(ConvStream(1, 1, 4),), ()], ids=["thinner than its heads", "no stream"])
def test_a_state_of_no_bytes_is_refused(streams: tuple[ConvStream, ...]) -> None:
    """The pool's memory is divided by it."""
    with pytest.raises(InputError) as refusal:
        state_slot(load_model("lfm2-1.2b")._replace(state=ShortConv(streams)), ServerArgs())
    assert refusal.value.message == "lfm2-1.2b keeps 0 B of state on a rank: its shortconv sizes leave nothing"


def test_a_dtype_is_quoted_without_its_control_characters_and_never_at_length() -> None:
    """Flags and variables come from scripts."""
    slot = state_slot(load_model("kimi-k3"), ServerArgs(env={"SGLANG_MAMBA_SSM_DTYPE": "\x1b[31m" + "x" * 5000}))
    assert slot.ssm_dtype_reason == f"SGLANG_MAMBA_SSM_DTYPE ?[31m{'x' * 35} is not known: float32"


def test_ranks_that_do_not_divide_are_refused() -> None:
    """As the families module refuses them."""
    with pytest.raises(ShardingError, match=r"(?m)^--tp 5 does not divide 96 KDA heads$"):
        state_slot(load_model("kimi-k3"), ServerArgs(tp_size=5))


@pytest.mark.parametrize(
    ("name", "flags", "active"),
    [
        ("kimi-k3", SPEC, True),
        ("qwen3.5-27b", SPEC, True),
        ("jet-nemotron-2b", SPEC, True),
        ("nemotron-h-8b", SPEC, False),
        ("ling-2.6-flash", SPEC, False),
        ("kimi-k3", SPEC | {"speculative_algorithm": None}, True),
        ("kimi-k3", {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, False),
    ],
    ids=["kda", "gdn of qwen", "gdn of jet", "mamba2", "lightning", "no speculation", "no flag"],
)
def test_replayssm_is_inert_outside_kda_and_the_gdn_of_qwen_and_jet(
    name: str, flags: dict[str, Any], active: bool
) -> None:
    """SGLang asks for hybrid_gdn_config or hybrid_kda_config; elsewhere draft states are kept as before."""
    assert replayssm_active(load_model(name), ServerArgs(**flags), rules_for("0.5.23")[0]) is active


def test_rings_of_kimi_k3_come_with_every_slot_and_those_of_qwen_with_every_request() -> None:
    """20,401,920 B a slot on 8 ranks; 0.5.16 prices no ring."""
    args, newest = ServerArgs(tp_size=8, **SPEC), rules_for("0.5.23")[0]
    kimi, qwen = load_model("kimi-k3"), load_model("qwen3.5-27b")
    assert charged_rings(kimi, state_slot(kimi, args), args, newest) == (20_401_920, 0)
    per_slot, per_request = charged_rings(qwen, state_slot(qwen, args), args, newest)
    assert per_slot == 0 < per_request
    assert charged_rings(kimi, state_slot(kimi, args), args, rules_for("0.5.16")[0]) == (0, 0)


def test_inkling_has_nothing_to_replay() -> None:
    """It keeps no temporal state."""
    model = load_model("inkling")
    assert replayssm_rings(model, state_slot(model, ServerArgs()), ServerArgs(), slots=1) is None


def test_only_kda_pools_check_the_ring_length() -> None:
    """SGLang memory_pool.py: GDN pools take any length."""
    assert ring_problem(load_model("kimi-k3"), 12, 4) == "the ring length must be a power of two, 12 is not"
    assert ring_problem(load_model("qwen3.5-27b"), 12, 4) == ""
