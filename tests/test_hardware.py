"""GPUs by name, alias or size, and the weights that a checkpoint's index states."""

import pytest

from hybridcalc.errors import InputError
from hybridcalc.hardware import find_gpu
from hybridcalc.units import GIB


@pytest.mark.parametrize(
    ("name", "gib", "source"),
    [
        ("h200", 143_771 / 1024, "NVIDIA H200"),
        (" H200 ", 143_771 / 1024, "NVIDIA H200"),
        ("NVIDIA H200", 143_771 / 1024, "NVIDIA H200"),
        ("h100-sxm5", 81_559 / 1024, "NVIDIA H100 80GB HBM3"),
        ("a100", 80.0, "NVIDIA A100-SXM4-80GB"),
        ("80GiB", 80.0, "80 GiB as given"),
        ("143771MiB", 143_771 / 1024, "140.4 GiB as given"),
        ("80GB", 80e9 / GIB, "74.51 GiB as given"),
    ],
)
def test_a_gpu_is_found_by_name_alias_or_size(name: str, gib: float, source: str) -> None:
    assert find_gpu(name)[:2] == (gib, source)


@pytest.mark.parametrize(("name", "near"), [("h201", "h200"), ("rtx4091", "rtx-4090"), ("xyz", "or a size")])
def test_an_unknown_gpu_is_refused_with_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"^no GPU '{name}'$") as refusal:
        find_gpu(name)
    assert near in refusal.value.fix


@pytest.mark.parametrize("text", ["80 apples", "0GiB", "9" * 60])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        find_gpu(text)


def test_a_preset_knows_its_compute_capability() -> None:
    """vLLM chooses kernels by it; AMD's cards have none."""
    assert (find_gpu("h200").capability, find_gpu("b200").capability, find_gpu("mi300x").capability) == (
        "9.0",
        "10.0",
        None,
    )


def test_several_cards_are_one_word() -> None:
    """8xh200: as many, each as the preset says."""
    assert find_gpu("8xh200") == find_gpu("h200")._replace(cards=8)
    assert find_gpu("2 x 80GiB").cards == 2
    with pytest.raises(InputError, match="no number of GPUs"):
        find_gpu("0xh200")


def test_an_engine_multiplies_what_the_runtime_gives() -> None:
    """94.97 of 95.59 GiB on an RTX PRO 6000; where no output is known, the driver's less what such cards lack."""
    assert find_gpu("rtx-pro-6000").engine_gib == 94.97
    assert find_gpu("a40").engine_gib == pytest.approx(46068 / 1024 - 0.6)
    assert find_gpu("mi210").engine_gib == find_gpu("mi210").gib
    assert find_gpu("80GiB").engine_gib == 80.0
