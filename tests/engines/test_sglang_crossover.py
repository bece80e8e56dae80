"""What `hybridcalc crossover` answers: T* in three readings, with the sizes SGLang keeps."""

from fractions import Fraction

import pytest

from hybridcalc import load_model
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.crossover import compare
from hybridcalc.errors import InputError


def crossover(name, baseline=None, longest=None, **flags):
    """Two presets compared."""
    return compare(load_model(name), load_model(baseline) if baseline else None, ServerArgs(**flags), longest=longest)


def test_nemotron_h_8b_against_llama_3_8b():
    """Hybrid SSM chapter (C1, C2): 102,137,856 B of state; 779 tokens against Llama's KV, 891 for the whole hybrid."""
    answer = crossover("nemotron-h-8b", "llama-3-8b")
    assert (answer.state_bytes, answer.kv_bytes_per_token) == (102_137_856, 16_384)
    assert answer.baseline.component_tokens == Fraction(3117, 4)
    assert answer.baseline.total_tokens == Fraction(6234, 7)


def test_nemotron_h_8b_with_a_bf16_state():
    """Hybrid SSM chapter (C2): 395 tokens."""
    answer = crossover("nemotron-h-8b", "llama-3-8b", mamba_ssm_dtype="bfloat16")
    assert answer.baseline.component_tokens == Fraction(1581, 4)


def test_one_layer_pair_and_the_whole_of_nemotron_nano_12b():
    """Recurrent-state article (D1): 658 tokens a pair; with 28 Mamba and 6 attention layers 3,071."""
    answer = crossover("nemotron-nano-12b-v2", mamba_ssm_dtype="bfloat16")
    assert (answer.per_layer_tokens, answer.component_tokens) == (658, Fraction(9212, 3))


def test_a_hybrid_baseline_has_a_state_of_its_own_to_save():
    """Only the difference of the states has to be made up."""
    answer = crossover("kimi-k3", "kimi-linear-48b-a3b")
    assert answer.baseline.total_tokens is None
    assert crossover("kimi-linear-48b-a3b", "kimi-k3").baseline.total_tokens == 0


def test_a_baseline_of_less_kv_is_never_met():
    """LFM2's KV grows more slowly than Falcon-H1's: the hybrid never weighs less."""
    assert crossover("falcon-h1-34b", "lfm2-1.2b").baseline.total_tokens is None


def test_context_parallelism_shares_the_tokens_but_not_the_state():
    """dcp 8: each rank keeps an eighth of the KV and its whole state, so the crossover is eight times as far."""
    alone, shared = crossover("kimi-k3", tp_size=8), crossover("kimi-k3", tp_size=8, dcp_size=8)
    assert shared.component_tokens == 8 * alone.component_tokens


def test_windows_bend_the_curve():
    """Inkling's window layers fill up at 512 tokens: 7,299,072 + 45,056 T + 230,686,720 = 131,072 T."""
    answer = crossover("inkling", "llama-3-8b")
    assert answer.baseline.total_tokens == Fraction(7_299_072 + 230_686_720, 131_072 - 45_056)


def test_a_pure_state_space_model_has_no_crossover_of_its_own():
    """Codestral-Mamba has no KV; against a baseline it still has one."""
    answer = crossover("codestral-mamba-7b", "llama-3-8b")
    assert (answer.component_tokens, answer.per_layer_tokens) == (None, None)
    assert answer.baseline.total_tokens == Fraction(answer.state_bytes, 131_072)


def test_a_pure_state_space_model_alone_is_answered_too():
    """No marks, and a curve of the default length."""
    answer = crossover("codestral-mamba-7b")
    assert (answer.marks, answer.curve[-1].tokens) == ([], 131_072)


def test_a_model_without_a_state_is_refused():
    """There is nothing to cross."""
    with pytest.raises(InputError, match=r"^llama-3-8b has no recurrent layer: it keeps no state$"):
        crossover("llama-3-8b")


def test_the_curve_crosses_where_the_marks_say():
    """State weighs more before T*, KV after it."""
    answer = crossover("kimi-k3", "llama-3.3-70b", longest=65_536)
    assert answer.curve[-1].tokens == 65_536
    for point in answer.curve:
        assert (point.kv_bytes >= point.state_bytes) == (point.tokens >= answer.component_tokens)
        hybrid = point.state_bytes + point.kv_bytes
        assert (point.baseline_bytes >= hybrid) == (point.tokens >= answer.baseline.total_tokens)


def test_the_document_has_the_promised_keys():
    """Names and keys are stable; more may be added."""
    document = crossover("nemotron-h-8b", "llama-3-8b").to_dict()
    promised = {"state_bytes", "kv_bytes_per_token", "component_tokens", "per_layer_tokens", "baseline", "curve"}
    assert promised <= set(document)
    assert {"name", "kv_bytes_per_token", "component_tokens", "total_tokens"} <= set(document["baseline"])
    assert set(document["curve"][0]) == {"tokens", "state_bytes", "kv_bytes", "baseline_bytes"}
