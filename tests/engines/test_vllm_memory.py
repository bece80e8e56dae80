"""The memory that vLLM leaves for its cache: from a flag, from a GPU and weights, given or estimated."""

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.deployment import GIVEN, MemoryPart
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.memory import CLASSES, beside, kind_of, rest_from_flag, rest_from_gpu
from hybridcalc.errors import InputError, Refusal
from hybridcalc.hardware import Gpu
from hybridcalc.units import GIB

CARD = Gpu(80.0, "as given")
MODEL = load_model("qwen3.6-27b")


def weights(gib: float) -> MemoryPart:
    return MemoryPart.of("weights", gib, GIVEN, "--weights")


def test_a_gpu_leaves_its_share_less_weights_and_what_lies_beside_them() -> None:
    """80 x 0.92 - 16 - 4 = 53.6, known; every part of the card has a name."""
    rest = rest_from_gpu(CARD, weights(16.0), MODEL, EngineArgs(), non_cache_gib=4.0)
    assert (rest.low_gib, rest.likely_gib, rest.high_gib) == pytest.approx((53.6,) * 3)
    assert rest.exact and rest.before_gib == 80.0
    assert rest.why == "80.00 GiB (as given) x 0.92 - 16.00 of weights - 4.00 beside"
    assert sum(gib for _, gib in rest.others) + rest.likely_gib == pytest.approx(80.0)


def test_what_lies_beside_them_is_estimated_and_said_to_be() -> None:
    rest = rest_from_gpu(CARD, weights(16.0), MODEL, EngineArgs(gpu_memory_utilization=0.9))
    least, likely, most = beside(CARD, MODEL, EngineArgs(gpu_memory_utilization=0.9))[0][1:4]
    assert (rest.low_gib, rest.likely_gib, rest.high_gib) == pytest.approx((56 - most, 56 - likely, 56 - least))
    assert rest.why.endswith("2.30 (1.50 to 4.15) beside")
    assert not rest.exact
    names = [part.name for part in rest.parts]
    assert names == ["weights", "beside", "non-torch", "sampler", "forward", "encoder", "headroom"]


def test_fewer_sequences_narrow_what_lies_beside() -> None:
    """16 sequences sample in 0.2 GiB: the most that boots of such cards took is cut."""
    small = Gpu(23.5, "as given")
    whole = beside(small, MODEL, EngineArgs(max_num_seqs=128, max_num_batched_tokens=2048))[0]
    cut = beside(small, MODEL, EngineArgs(max_num_seqs=16, max_num_batched_tokens=2048, language_model_only=True))[0]
    assert whole.high == CLASSES["one small"][2]
    assert cut.high < 1.2 < whole.high
    assert kind_of(Gpu(120.0, "GB10", unified=True), EngineArgs()) == "unified"


@pytest.mark.parametrize(
    ("card", "ranks", "most"),
    [
        (Gpu(120.0, "GB10", unified=True), 1, 5.7),
        (Gpu(80.0, "as given"), 1, 0.34),
        (Gpu(80.0, "as given"), 4, 1.84),
        (Gpu(80.0, "as given", linked=True), 4, 1.84),
    ],
)
def test_what_the_driver_holds_depends_on_how_cards_are_joined(card: Gpu, ranks: int, most: float) -> None:
    parts = {part.name: part for part in beside(card, MODEL, EngineArgs(tensor_parallel_size=ranks))[1]}
    held = parts["non-torch"]
    assert 0 < held.low < held.likely < held.high == most


def test_a_flag_says_the_memory_itself() -> None:
    assert rest_from_flag(EngineArgs()) is None
    rest = present(rest_from_flag(EngineArgs(kv_cache_memory_bytes=40 * GIB)))
    assert (rest.likely_gib, rest.exact, rest.why) == (40.0, True, "--kv-cache-memory-bytes")


@pytest.mark.parametrize(("gib", "share"), [(73.61, 0.92), (100.0, 0.92), (40.0, 0.5)])
def test_weights_that_do_not_fit_are_refused(gib: float, share: float) -> None:
    with pytest.raises(Refusal) as caught:
        rest_from_gpu(CARD, weights(gib), MODEL, EngineArgs(gpu_memory_utilization=share))
    assert (caught.value.stage, caught.value.rule) == ("initialize_model", "HC040")
    assert caught.value.message == f"weights alone take {gib:.2f} of {80 * share:.2f} GiB ({share:g} of 80.00)"


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_must_be_one(share: float) -> None:
    with pytest.raises(InputError, match=r"(?m)^--gpu-memory-utilization .* is not a share of the memory$"):
        rest_from_gpu(CARD, weights(16.0), MODEL, EngineArgs(gpu_memory_utilization=share))
