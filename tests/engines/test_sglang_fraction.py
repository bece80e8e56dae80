"""SGLang's memory fraction without a GPU, and the sizes whose graphs it captures."""

from hybridcalc import load_model, sglang
from hybridcalc.engines.sglang.fraction import NO_GPU, captured_sizes, settle_fraction


def test_without_a_gpu_the_fraction_is_fixed() -> None:
    assert settle_fraction(load_model("qwen3.5-9b"), sglang.ServerArgs(), None).fraction == NO_GPU


def test_captured_sizes_grow_coarser() -> None:
    """8 + 14 + 8 + 8 sizes up to 1,024."""
    sizes = captured_sizes(1024)
    assert (len(sizes), sizes[0], sizes[7], sizes[8], sizes[-1]) == (38, 4, 32, 48, 1024)
    assert len(captured_sizes(8192)) == 58
