"""What `hybridcalc crossover` answers: T* in three readings, with the sizes SGLang keeps."""

import re
from fractions import Fraction
from typing import Any

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import model_names
from hybridcalc.engines.crossover import Crossover
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.crossover import compare, kv_curve
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.sizes import state_slot
from hybridcalc.errors import InputError


def crossover(name: str, baseline: str | None = None, longest: int | None = None, **flags: Any) -> Crossover:
    """Two presets compared."""
    return compare(load_model(name), load_model(baseline) if baseline else None, ServerArgs(**flags), longest=longest)


def test_nemotron_h_8b_against_llama_3_8b() -> None:
    """Hybrid SSM chapter (C1, C2): 102,137,856 B of state; 779 tokens against Llama's KV, 891 for the whole hybrid."""
    answer = crossover("nemotron-h-8b", "llama-3-8b")
    assert (answer.state_bytes, answer.kv_bytes_per_token) == (102_137_856, 16_384)
    assert present(answer.baseline).component_tokens == Fraction(3117, 4)
    assert present(answer.baseline).total_tokens == Fraction(6234, 7)


def test_nemotron_h_8b_with_a_bf16_state() -> None:
    """Hybrid SSM chapter (C2): 395 tokens."""
    answer = crossover("nemotron-h-8b", "llama-3-8b", mamba_ssm_dtype="bfloat16")
    assert present(answer.baseline).component_tokens == Fraction(1581, 4)


def test_one_layer_pair_and_the_whole_of_nemotron_nano_12b() -> None:
    """Recurrent-state article (D1): 658 tokens a pair; with 28 Mamba and 6 attention layers 3,071."""
    answer = crossover("nemotron-nano-12b-v2", mamba_ssm_dtype="bfloat16")
    assert (answer.per_layer_tokens, answer.component_tokens) == (Fraction(658), Fraction(9212, 3))


def test_a_hybrid_baseline_has_a_state_of_its_own_to_save() -> None:
    """Only the difference of the states has to be made up."""
    answer = crossover("kimi-k3", "kimi-linear-48b-a3b")
    assert present(answer.baseline).total_tokens is None
    assert present(crossover("kimi-linear-48b-a3b", "kimi-k3").baseline).total_tokens == 0


def test_a_baseline_of_less_kv_is_never_met() -> None:
    """LFM2's KV grows more slowly than Falcon-H1's: the hybrid never weighs less."""
    assert present(crossover("falcon-h1-34b", "lfm2-1.2b").baseline).total_tokens is None


@pytest.mark.parametrize(
    ("name", "baseline", "total", "lighter"),
    [
        ("bamba-9b", "codestral-mamba-7b", None, ((1, 12_147),)),
        ("inkling", "qwen3.5-27b", Fraction(20_518, 5), ((1, 340), (4104, None))),
        ("lara-4-mini", "jamba-1.5-mini", 6152, ((1, 41), (6153, None))),
        ("kimi-linear-48b-a3b", "kimi-k3", 0, ((1, None),)),
        ("kimi-k3", "kimi-linear-48b-a3b", None, ()),
    ],
)
def test_a_hybrid_is_lighter_below_one_length_above_one_or_both(
    name: str, baseline: str, total: Fraction | int | None, lighter: tuple[tuple[int, int | None], ...]
) -> None:
    """A baseline with a larger state and less KV is beaten by short sequences only; a window makes it two spans."""
    found = present(crossover(name, baseline).baseline)
    assert (found.total_tokens, found.lighter) == (total, lighter)


PRESETS = [load_model(name) for name in model_names()]
HYBRIDS = [model for model in PRESETS if model.state is not None]


@pytest.mark.parametrize("hybrid", HYBRIDS, ids=lambda model: model.name)
def test_every_pair_of_presets_is_lighter_where_its_bytes_say_so(hybrid: Architecture) -> None:
    """Brute force: both byte functions at powers of two, around windows and on both sides of each end."""
    args = ServerArgs()
    state, curve = state_slot(hybrid, args).bytes, kv_curve(hybrid, args, rules_for(None)[0])
    for model in PRESETS:
        base = present(compare(hybrid, model, args, longest=1).baseline)
        other, other_state = (
            kv_curve(model, args, rules_for(None)[0]),
            state_slot(model, args).bytes if model.state else 0,
        )
        ends = [end for span in base.lighter for end in span if end] + [curve.window_tokens, other.window_tokens]
        lengths = {2**i for i in range(32)} | {end + step for end in ends for step in (-1, 0, 1) if end + step > 0}
        for tokens in lengths:
            less = state + curve.at(tokens) < other_state + other.at(tokens)
            assert less == any(s.first <= tokens <= (s.last or tokens) for s in base.lighter), (model.name, tokens)


def computed(numbers: str) -> Fraction:
    """What the printed arithmetic of a step comes to, exactly."""
    value: Fraction = eval(
        re.sub(r"[\d,]+", lambda m: f"Fraction({m[0].replace(',', '')})", numbers.replace(" x ", " * "))
    )
    return value


@pytest.mark.parametrize("hybrid", HYBRIDS, ids=lambda model: model.name)
def test_the_printed_numbers_of_every_step_compute_to_its_value(hybrid: Architecture) -> None:
    """All pairs of presets: the baseline's state and windows are in the numbers, and nothing divides by zero."""
    for model in PRESETS:
        for step in compare(hybrid, model, ServerArgs(), longest=1).steps:
            assert computed(step.with_numbers) == step.value, (model.name, step)


@pytest.mark.parametrize("baseline", ["kimi-linear-48b-a3b", "deepseek-v3", "qwen3.5-27b"])
@pytest.mark.parametrize("name", ["kimi-k3", "qwen3.5-27b", "jamba-1.5-mini"])
def test_the_printed_numbers_count_the_ranks_that_keep_a_state_each(name: str, baseline: str) -> None:
    """Context parallelism: every rank holds the whole state beside its share of the tokens."""
    for step in crossover(name, baseline, tp_size=8, dcp_size=4).steps:
        assert computed(step.with_numbers) == step.value


def test_windows_count_where_kv_outweighs_the_state() -> None:
    """Inkling's windows still fill: 7,299,072 B are 14.7 tokens of 45,056 + 450,560 B, not 162."""
    answer = crossover("inkling")
    assert answer.component_tokens == Fraction(7_299_072, 45_056 + 450_560)
    for point in answer.curve:
        assert (point.kv_bytes >= point.state_bytes) == (point.tokens >= answer.component_tokens)


def test_context_parallelism_shares_the_tokens_but_not_the_state() -> None:
    """dcp 8: each rank keeps an eighth of the KV and its whole state, so the crossover is eight times as far."""
    alone, shared = crossover("kimi-k3", tp_size=8), crossover("kimi-k3", tp_size=8, dcp_size=8)
    assert shared.component_tokens == 8 * present(alone.component_tokens)


def test_windows_bend_the_curve() -> None:
    """Inkling's window layers fill up at 512 tokens: 7,299,072 + 45,056 T + 230,686,720 = 131,072 T."""
    answer = crossover("inkling", "llama-3-8b")
    assert present(answer.baseline).total_tokens == Fraction(7_299_072 + 230_686_720, 131_072 - 45_056)


def test_a_pure_state_space_model_has_no_crossover_of_its_own() -> None:
    """Codestral-Mamba has no KV; against a baseline it still has one."""
    answer = crossover("codestral-mamba-7b", "llama-3-8b")
    assert (answer.component_tokens, answer.per_layer_tokens) == (None, None)
    assert present(answer.baseline).total_tokens == Fraction(answer.state_bytes, 131_072)


def test_a_pure_state_space_model_alone_is_answered_too() -> None:
    """No marks, and a curve of the default length."""
    answer = crossover("codestral-mamba-7b")
    assert (answer.marks, answer.curve[-1].tokens) == ([], 131_072)


def test_a_model_without_a_state_is_refused() -> None:
    """There is nothing to cross."""
    with pytest.raises(InputError, match=r"(?m)^llama-3-8b has no recurrent layer: it keeps no state$"):
        crossover("llama-3-8b")


def test_the_curve_crosses_where_the_marks_say() -> None:
    """State weighs more before T*, KV after it."""
    answer = crossover("kimi-k3", "llama-3.3-70b", longest=65_536)
    assert answer.curve[-1].tokens == 65_536
    for point in answer.curve:
        assert (point.kv_bytes >= point.state_bytes) == (point.tokens >= present(answer.component_tokens))
        hybrid = point.state_bytes + point.kv_bytes
        assert (present(point.baseline_bytes) >= hybrid) == (
            point.tokens >= present(present(answer.baseline).total_tokens)
        )


def test_the_document_has_the_promised_keys() -> None:
    """Names and keys are stable; more may be added."""
    document = crossover("nemotron-h-8b", "llama-3-8b").to_dict()
    promised = {"state_bytes", "kv_bytes_per_token", "component_tokens", "per_layer_tokens", "baseline", "curve"}
    assert promised <= set(document)
    assert document["lighter_tokens"] == [[891, None]]
    assert {"name", "kv_bytes_per_token", "component_tokens", "total_tokens"} <= set(document["baseline"])
    assert set(document["curve"][0]) == {"tokens", "state_bytes", "kv_bytes", "baseline_bytes"}
