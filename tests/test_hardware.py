"""GPUs by name, alias or size, and the weights that a checkpoint's index states."""

import json
from pathlib import Path

import pytest

from hybridcalc.errors import InputError
from hybridcalc.hardware import find_gpu, weights_from_index
from hybridcalc.units import GIB


@pytest.mark.parametrize(
    ("name", "gib", "source"),
    [
        ("h200", 143_771 / 1024, "NVIDIA H200"),
        (" H200 ", 143_771 / 1024, "NVIDIA H200"),
        ("NVIDIA H200", 143_771 / 1024, "NVIDIA H200"),
        ("h100-sxm5", 81_559 / 1024, "NVIDIA H100 80GB HBM3"),
        ("a100", 80.0, "NVIDIA A100-SXM4-80GB"),
        ("80GiB", 80.0, "as given"),
        ("143771MiB", 143_771 / 1024, "as given"),
        ("80GB", 80e9 / GIB, "as given"),
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


def index(folder: Path, text: str) -> Path:
    """A folder with a safetensors index of that content."""
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def test_weights_are_shared_out_over_the_ranks(tmp_path: Path) -> None:
    """total_size over tp x pp, in GiB."""
    folder = index(tmp_path, json.dumps({"metadata": {"total_size": 160 * GIB}, "weight_map": {}}))
    assert weights_from_index(folder, 1) == 160
    assert weights_from_index(folder, 16) == 10


def test_without_an_index_nothing_is_known(tmp_path: Path) -> None:
    assert weights_from_index(tmp_path, 1) is None
    assert weights_from_index(tmp_path / "config.json", 1) is None


MALFORMED = {
    "empty": "", "array": "[]", "no metadata": "{}", "no total": '{"metadata": {}}', "metadata null":
    '{"metadata": null}', "text": '{"metadata": {"total_size": "5"}}', "true": '{"metadata": {"total_size": true}}',
    "zero": '{"metadata": {"total_size": 0}}', "negative": '{"metadata": {"total_size": -5}}',
    "huge": '{"metadata": {"total_size": 1e30}}', "infinite": '{"metadata": {"total_size": Infinity}}',
    "nan": '{"metadata": {"total_size": NaN}}', "digits": '{"metadata": {"total_size": ' + "9" * 5000 + "}}",
    "deep": "[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_an_index_without_a_usable_total_is_refused(tmp_path: Path, text: str) -> None:
    """Named with its path; never a figure made up."""
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json: ") as refusal:
        weights_from_index(index(tmp_path, text), 1)
    assert refusal.value.fix == "give --weights SIZE"
