"""What `hybridcalc ratio` answers: r*, the pin, and what each choice of flags comes to in the engine's own solver."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model
from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.balance import Balance, Observed, balance_constants, balance_model
from hybridcalc.engines.sglang.balance_view import too_long
from hybridcalc.engines.sglang.kv import kv_cell
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.settings import by_model
from hybridcalc.engines.sglang.sizes import architecture_constants
from hybridcalc.errors import InputError
from hybridcalc.units import GIB, ratio_text

K3 = load_model("kimi-k3")
K3_FLAGS: dict[str, Any] = {"tp_size": 8, "mamba_ssm_dtype": "float32", "kv_cache_dtype": "fp8_e4m3"}
LAZY: dict[str, Any] = K3_FLAGS | {"mamba_radix_cache_strategy": "extra_buffer_lazy"}


def balance(
    model: Architecture = K3,
    length: int = 9216,
    rest_gib: float | None = None,
    concurrency: int | None = None,
    **flags: Any,
) -> Balance:
    """The answer for a model under flags; Kimi-K3 on 8 ranks with fp8 KV where none are given."""
    return balance_model(
        model, ServerArgs(**(flags or LAZY)), Workload.at(length, concurrency=concurrency), rest_gib=rest_gib
    )


def test_the_worked_example_of_kimi_k3() -> None:
    """SGLang's sizing note (B1 to B4), exactly: 54,263,808 + 1,907,712 B, 13,824 B, 4063.33 tokens, S 4, r* 1.7636."""
    answer = balance()
    constants = answer.constants
    sizes: tuple[int | Fraction, ...] = (constants.state_bytes, constants.ssm_bytes, constants.conv_bytes)
    assert sizes == (56_171_520, 54_263_808, 1_907_712)
    assert (constants.kv_bytes_per_token, answer.token_equiv) == (Fraction(13_824), Fraction(12_190, 3))
    assert (answer.slots.count, answer.strategy, answer.draft_states) == (4, "extra_buffer_lazy", 0)
    assert answer.ratio == 4 * answer.token_equiv / 9216
    assert ratio_text(answer.ratio) == "1.76"


@pytest.mark.parametrize(
    ("flags", "slots", "ratio"),
    [
        (LAZY, 4, 1.7636),
        (LAZY | {"dcp_size": 8}, 4, 14.1088),
        (K3_FLAGS, 5, 2.2045),
        (K3_FLAGS | {"pp_size": 2}, 4, 1.7636),
        (K3_FLAGS | {"disable_radix_cache": True}, 1, 0.4409),
        (K3_FLAGS | {"mamba_ssm_dtype": "bfloat16"}, 5, 1.1397),
        (K3_FLAGS | {"kv_cache_dtype": "bfloat16"}, 5, 1.1022),
        (K3_FLAGS | {"tp_size": 16}, 5, 1.1022),
    ],
    ids=["lazy", "dcp 8", "default", "pp 2", "radix off", "bf16 state", "bf16 KV", "tp 16"],
)
def test_the_ratio_under_other_flags(flags: dict[str, Any], slots: int, ratio: float) -> None:
    """r* = (S + D) x state x dcp / (L x KV); the state is sharded by tp, the MLA row is not."""
    answer = balance(**flags)
    assert answer.slots.count == slots
    assert float(answer.ratio) == pytest.approx(ratio, abs=5e-5)


def test_the_reason_says_that_pipeline_parallelism_turned_overlap_off() -> None:
    """S = 4 instead of 5 comes with its reason."""
    assert balance(**K3_FLAGS, pp_size=2).slots.reason.endswith("; pp 2 turns overlap off")


def test_28_55_gib_at_today_s_ratio_hold_257_slots_and_64_requests() -> None:
    """The published boot log: K = 257; at 9,216 tokens the state binds and half of the KV idles."""
    today = present(balance(rest_gib=28.55).setting("today"))
    assert (today.slots, today.state_requests, today.kv_requests, today.binding) == (257, 64, 126, "state")
    assert (today.flags, round(today.idle_percent, 1)) == ("--mamba-full-memory-ratio 0.9", 49.6)


def test_what_to_set_holds_86_requests_in_both_pools() -> None:
    """1.76 gives K = 347; the pin of 86 requests is 86 x 4 + 1."""
    balanced, pinned, _ = balance(rest_gib=28.55).settings
    assert (balanced.flags, balanced.slots, balanced.state_requests, balanced.kv_requests) == (
        "--mamba-full-memory-ratio 1.76",
        347,
        86,
        87,
    )
    assert (pinned.flags, pinned.state_requests) == ("--max-mamba-cache-size 345", 86)


def test_a_concurrency_asked_for_is_pinned_exactly() -> None:
    """C requests need C x S + 1 slots."""
    answer = balance(rest_gib=28.55, concurrency=64)
    assert (answer.pin_concurrency, answer.pin_slots) == (64, 257)


def test_speculation_charges_draft_states_and_the_draft_s_kv() -> None:
    """D states more a request, one KV layer more a token; a note says that the engine allocates them elsewhere."""
    spec: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "draft_layers": 1}
    answer = balance(**LAZY, **spec)
    assert answer.ratio == Fraction((4 + 4) * 56_171_520, 9216 * (13_824 + 576))
    assert any("charges D = 4 draft states" in note for note in answer.notes)


def test_replayssm_verification_charges_no_draft_states() -> None:
    """Its rings come with the slots; r* then is that without speculation but for the draft's KV."""
    spec: dict[str, Any] = {
        "speculative_algorithm": "EAGLE",
        "speculative_num_draft_tokens": 4,
        "enable_linear_replayssm_spec": True,
    }
    assert balance(**LAZY, **spec).ratio == balance(**LAZY).ratio
    assert balance(load_model("nemotron-h-8b"), **spec).draft_states == 4


def test_under_attention_data_parallelism_both_proposals_fit_the_same_requests() -> None:
    """Two workers on 16 ranks: the pin, divided by dp, admits what the balanced ratio admits."""
    workers = K3_FLAGS | {"tp_size": 16, "dp_size": 2, "enable_dp_attention": True}
    balanced, pinned, _ = balance(rest_gib=28.55, **workers).settings
    assert abs(balanced.state_requests - pinned.state_requests) <= 1


def test_under_pipeline_parallelism_a_stage_holds_its_own_layers_alone() -> None:
    """SGLang at pp 2 and 60 GiB: K = 1070, about twice that of one stage; no figure at all would do as well."""
    today = balance(rest_gib=60.0, tp_size=8, pp_size=2).setting("today")
    assert today is None or today.slots == pytest.approx(1070, rel=0.02)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llama-3-8b", "has no recurrent layer: there is no state pool to size"),
        ("codestral-mamba-7b", "has no attention layer: there is no growing KV to balance the state against"),
    ],
)
def test_a_model_of_one_cache_has_no_ratio(name: str, reason: str) -> None:
    """There is nothing to balance."""
    with pytest.raises(InputError) as refusal:
        architecture_constants(load_model(name), ServerArgs(), rules_for("0.5.23")[0])
    assert refusal.value.message == f"{name} {reason}"


def test_measured_constants_stand_in_for_a_model() -> None:
    """From a log alone, strategy auto is taken for extra_buffer, and a note says so."""
    constants = architecture_constants(K3, ServerArgs(**K3_FLAGS), rules_for("0.5.23")[0])
    answer = balance_constants(constants, ServerArgs(**K3_FLAGS), Workload.at(9216))
    assert (answer.strategy, answer.slots.count, answer.ratio) == ("extra_buffer", 5, balance(**K3_FLAGS).ratio)
    assert any("no MODEL given" in note for note in answer.notes)


def test_pools_that_a_boot_printed_are_weighed_as_booted() -> None:
    """K and T of the log, not of the solver: 257 slots, 1,167,552 tokens."""
    observed = Observed(257, 1_167_552)
    today = present(balance_model(K3, ServerArgs(**LAZY), Workload.at(9216), observed=observed).setting("today"))
    assert (today.flags, today.slots, today.kv_tokens) == ("as booted", 257, 1_167_552)


@pytest.mark.parametrize(
    ("model", "flags", "length", "note"),
    [
        ("lara-4-mini", {}, 1024, "SGLang has no class for LaraMiniForCausalLM"),
        ("lara-4-mini", {}, 1024, "geometry is second-hand"),
        ("kimi-k3", K3_FLAGS, 2_000_000, "2,000,000 tokens exceed the model's own limit of 1,048,576"),
        (
            "kimi-k3",
            K3_FLAGS | {"engine_version": "0.6.0"},
            1024,
            "SGLang 0.6.0 is newer than the releases known here: the rules of 0.5.23",
        ),
        ("someone/Kimi-K3-FP8", K3_FLAGS, 1024, "read as kimi-k3: quantised weights have the same caches"),
    ],
    ids=["no class", "second-hand", "too long", "version", "reading"],
)
def test_notes_say_what_the_figures_rest_on(model: str, flags: dict[str, Any], length: int, note: str) -> None:
    """Whatever was assumed travels with the answer."""
    notes = balance_model(load_model(model), ServerArgs(**flags), Workload.at(length)).notes
    assert any(note in text for text in notes)


@pytest.mark.parametrize(("ratio", "text"), [(14.1088, "14.11"), (1.0, "1.00"), (0.04394, "0.0439"), (0.5, "0.5")])
def test_a_ratio_is_written_as_a_flag_value(ratio: float, text: str) -> None:
    """Two decimals, or three significant digits below one."""
    assert ratio_text(Fraction(ratio)) == text


def test_steps_carry_formula_numbers_unit_and_source() -> None:
    """Every number knows why."""
    steps = {step.symbol: step for step in balance().steps}
    assert [*steps] == ["state", "kv", "token_equiv", "S", "D", "r*", "pin"]
    assert all(step.formula and step.with_numbers and step.unit and step.source for step in steps.values())
    assert steps["r*"].with_numbers == "(4 + 0) x 56,171,520 / (9,216 x 13,824)"


def test_drafts_without_kv_of_their_own_charge_none() -> None:
    """NGRAM drafts from the prompt: the solver counts no draft KV for it, so r* does not either."""
    ngram: dict[str, Any] = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}
    answer, newest = balance(**LAZY, **ngram), rules_for("0.5.23")[0]
    assert answer.draft_kv_bytes_per_token == kv_cell(K3, ServerArgs(**LAZY, **ngram), newest).draft_bytes == 0


@given(st.integers(256, 200_000), st.floats(8, 500), st.sampled_from([{}, {"dcp_size": 8}, {"pp_size": 2}]))
def test_no_other_ratio_serves_more_requests_than_the_one_proposed(
    length: int, rest: float, flags: dict[str, Any]
) -> None:
    """Kimi-K3 in the engine's own solver, two requests allowed for: the flag has two decimals."""
    flags = K3_FLAGS | flags
    answer, evaluate = balance(length=length, rest_gib=rest, **flags), by_model(K3, rest, Fraction(length))
    proposed = present(answer.setting("set"))
    for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2):
        ratio = float(answer.ratio) * factor
        other = evaluate("other", "", ServerArgs(**flags, mamba_full_memory_ratio=ratio))
        assert present(other).requests <= proposed.requests + 2 + proposed.requests // 100


@pytest.mark.parametrize("rest", [0.4, 0.5, 1.0, 28.55])
def test_a_pin_that_starts_is_shown_whatever_a_ratio_does(rest: float) -> None:
    """Kimi-K3 with five slots pinned: one request's slots, and what KV is left."""
    today = present(balance(rest_gib=rest, tp_size=8, max_mamba_cache_size=5).setting("today"))
    assert (today.slots, today.state_requests) == (5, 1)


@pytest.mark.parametrize(("short", "rules"), [(1, ["HC002"]), (0, [])])
def test_a_request_is_too_long_for_less_than_its_states_and_tokens_take(short: int, rules: list[str]) -> None:
    """Slots of 56,171,520 B, 100,000 tokens of 13,824 B; where both fit it is no error though no split has both."""
    answer = balance(length=100_000, rest_gib=(4 * 56_171_520 + 100_000 * 13_824 - short) / GIB)
    assert present(answer.setting("set")).requests == 0
    assert [finding.rule for finding in too_long(answer, K3)] == rules


def test_without_prefix_caching_a_request_limit_is_k_and_no_ratio_is_set() -> None:
    """The ratio has no effect there: a K is pinned that serves more than the limit does."""
    args = ServerArgs(tp_size=4, disable_radix_cache=True, max_running_requests=1024)
    answer = balance_model(load_model("qwen3.5-27b"), args, Workload.at(32768), rest_gib=60.0)
    assert present(answer.setting("set")).flags == "--max-mamba-cache-size 112"
    assert present(answer.setting("today")).flags == "--max-running-requests 1024"
    assert (present(answer.setting("set")).requests, present(answer.setting("today")).requests) == (111, 46)
