"""GPUs by name, alias or size, and the weights that a checkpoint's index states."""

import pytest

from hybridcalc.errors import InputError
from hybridcalc.hardware import find_gpu, gpu_of_label, shipped_gpus
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


@pytest.mark.parametrize("gpu", shipped_gpus())
def test_every_name_alias_and_label_finds_its_preset(gpu: str) -> None:
    """Labels as node labels too; of the aliases those alone that leave no doubt about the memory."""
    preset = shipped_gpus()[gpu]
    for name in (gpu, preset["name"], *preset.get("aliases", ()), *preset.get("labels", ())):
        assert find_gpu(name).source == preset["name"]
        assert gpu_of_label(name) in (gpu, None)
    assert {gpu_of_label(label) for label in preset.get("labels", ())} <= {gpu}


@pytest.mark.parametrize(
    ("name", "source", "cards"),
    [
        ("7900xtx", "AMD Radeon RX 7900 XTX", None),
        ("2x7900xtx", "AMD Radeon RX 7900 XTX", 2),
        ("4060ti", "NVIDIA GeForce RTX 4060 Ti 16GB", None),
        ("4060ti-16gb", "NVIDIA GeForce RTX 4060 Ti 16GB", None),
        ("3090-24GB", "NVIDIA GeForce RTX 3090", None),
        ("6000d", "NVIDIA RTX 6000D", None),
        ("8xV100-SXM2-32GB", "Tesla V100 32GB", 8),
        ("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3", None),
    ],
)
def test_a_gpu_is_found_without_dashes_and_with_its_memory(name: str, source: str, cards: int | None) -> None:
    found = find_gpu(name)
    assert (found.source, found.cards) == (source, cards)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("h201", "h200"),
        ("rtx4091", "rtx-4090"),
        ("xyz", "or a size"),
        ("4070", "nearest: rtx-4070-ti-super"),
        ("7900xt", "nearest: rx-7900-xtx"),
        ("4060ti-8gb", "nearest: rtx-4060-ti-16gb"),
        ("rtx-5090-laptop", "nearest: rtx-5090"),
    ],
)
def test_an_unknown_gpu_is_refused_with_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"(?m)^no GPU '{name}'$") as refusal:
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
