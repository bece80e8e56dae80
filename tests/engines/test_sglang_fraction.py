"""SGLang's memory fraction without a GPU, and the sizes whose graphs it captures."""

import pytest

from hybridcalc import load_model, sglang
from hybridcalc.engines.sglang.fraction import NO_GPU, captured_sizes, settle_fraction


def test_without_a_gpu_the_fraction_is_fixed() -> None:
    assert settle_fraction(load_model("qwen3.5-9b"), sglang.ServerArgs(), None).fraction == NO_GPU


@pytest.mark.parametrize(
    ("name", "context", "fraction"),
    [("granite-4-h-tiny", None, 0.862 * 0.85), ("granite-4-h-tiny", 8192, 0.862), ("kimi-k3", None, 0.80866375)],
)
def test_aiter_takes_its_share_of_the_fraction_on_amd(name: str, context: int | None, fraction: float) -> None:
    """MI300X, 8 ranks; Kimi-K3's 12 heads of a rank run on triton."""
    args = sglang.ServerArgs(tp_size=8, platform="hip", context_length=context)
    assert settle_fraction(load_model(name), args, 196_592).fraction == fraction


def test_captured_sizes_grow_coarser() -> None:
    """8 + 14 + 8 + 8 sizes up to 1,024."""
    sizes = captured_sizes(1024)
    assert (len(sizes), sizes[0], sizes[7], sizes[8], sizes[-1]) == (38, 4, 32, 48, 1024)
    assert len(captured_sizes(8192)) == 58
