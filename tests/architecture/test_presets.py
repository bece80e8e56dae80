"""Shipped presets: what the files say is what is compiled, known, and found under each of its names."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from known_models import KNOWN, MODELS, derived
from present import present

from hybridcalc import load_model
from hybridcalc.architecture.preset_schema import read_gpu_preset, read_preset
from hybridcalc.architecture.presets import (
    find_preset,
    model_names,
    package_file,
    shipped_checkpoints,
    shipped_config,
    shipped_presets,
)
from hybridcalc.architecture.quantization_config import read_quantization
from hybridcalc.engines.checkpoints import how_stored
from hybridcalc.errors import ModelNotFound
from hybridcalc.hardware import shipped_gpus

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL_FILES = sorted((ROOT / "presets" / "models").glob("*.yaml"))
GPU_FILES = sorted((ROOT / "presets" / "gpus").glob("*.yaml"))
COMPILER = ROOT / "tools" / "compile_presets.py"


@pytest.mark.parametrize("path", MODEL_FILES, ids=lambda path: path.stem)
def test_every_model_file_passes_the_schema_and_is_named_after_its_id(path: Path) -> None:
    """pydantic checks each YAML here, so that the command line need not."""
    preset = read_preset(path.read_text(encoding="utf-8"), path.name)
    assert preset["id"] == path.stem
    listed = [{key: each[key] for key in each if key != "method"} for each in shipped_checkpoints(path.stem)]
    kept = {"config": shipped_config(path.stem), "checkpoints": listed}
    assert preset == shipped_presets()[path.stem] | {key: value for key, value in kept.items() if value}


@pytest.mark.parametrize("name", sorted(shipped_presets()))
def test_a_listed_checkpoint_says_how_it_is_quantised(name: str) -> None:
    """A plan shows the method without reading what it makes of each module; it is that of what is read."""
    for each in shipped_checkpoints(name):
        found = read_quantization({"quantization_config": each["quantization"]}) if each.get("quantization") else None
        assert each.get("method") == (found.method if found is not None else None)
        model = load_model(name)._replace(asked=each["id"])
        assert how_stored(model, None) == each.get("method", "")


@pytest.mark.parametrize("path", GPU_FILES, ids=lambda path: path.stem)
def test_every_gpu_file_passes_the_schema_and_is_named_after_its_id(path: Path) -> None:
    """As for models."""
    preset = read_gpu_preset(path.read_text(encoding="utf-8"), path.name)
    assert preset["id"] == path.stem
    assert preset == shipped_gpus()[path.stem]


@pytest.mark.parametrize("folder", ["models", "gpus"])
def test_the_compiled_index_is_what_the_files_say(folder: str) -> None:
    """Run python tools/compile_presets.py when this fails."""
    spec = importlib.util.spec_from_file_location("compile_presets", COMPILER)
    compiler = importlib.util.module_from_spec(present(spec))
    present(present(spec).loader).exec_module(compiler)
    for name, text in compiler.compiled(folder).items():
        assert package_file(f"presets/{name}.json").decode() == text


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_model_has_a_preset_of_the_same_figures(name: str) -> None:
    """models.json: verified and second-hand entries, each found by name and by Hugging Face id."""
    model = load_model(name)
    figures = derived(model)
    assert figures == {key: KNOWN[name]["derived"][key] for key in figures}
    assert (model.family, model.architecture) == (KNOWN[name]["family"], KNOWN[name]["architecture"])
    assert (model.confidence, model.reading) == (KNOWN[name]["confidence"], "")
    assert load_model(KNOWN[name]["hf_id"]).name == model.name


@pytest.mark.parametrize("name", sorted(MODELS.keys() - KNOWN.keys()))
def test_a_guess_has_no_preset(name: str) -> None:
    """A number that might be wrong is not shipped."""
    assert find_preset(name) is None
    assert find_preset(MODELS[name]["hf_id"]) is None


def test_there_is_no_preset_beyond_the_known_models() -> None:
    """Each preset's figures are checked above."""
    assert sorted(preset["name"] for preset in shipped_presets().values()) == sorted(KNOWN)


@pytest.mark.parametrize("preset_id", shipped_presets())
def test_a_preset_id_is_lower_case_and_carries_no_organisation(preset_id: str) -> None:
    """A name one would type: the model's, without org/ and without blanks."""
    organisation = shipped_presets()[preset_id]["hf_id"].partition("/")[0].lower()
    assert preset_id == preset_id.lower() and not set(preset_id) & set("/ _")
    assert not preset_id.startswith(f"{organisation}-")


@pytest.mark.parametrize("presets", [shipped_presets(), shipped_gpus()], ids=["models", "gpus"])
def test_no_two_presets_share_a_name(presets: dict[str, dict[str, Any]]) -> None:
    """Ids, names, Hugging Face ids and aliases of different presets differ in any case."""
    owners: dict[str, set[str]] = {}
    for preset_id, preset in presets.items():
        for alias in (preset_id, preset["name"], preset.get("hf_id", preset_id), *preset.get("aliases", ())):
            owners.setdefault(alias.lower(), set()).add(preset_id)
    assert {alias: ids for alias, ids in owners.items() if len(ids) > 1} == {}


@pytest.mark.parametrize("preset_id", shipped_presets())
def test_a_preset_is_found_by_each_of_its_names_in_any_case(preset_id: str) -> None:
    """Id, name, Hugging Face id and aliases, as typed or shouted."""
    preset = shipped_presets()[preset_id]
    names = [preset_id, preset["name"], preset["hf_id"], *preset.get("aliases", ())]
    found = {find_preset(spelt) for name in names for spelt in (name, name.upper(), f" {name.lower()} ")}
    assert found == {(preset_id, "")}


@pytest.mark.parametrize(
    ("name", "preset_id"),
    [
        ("Qwen/Qwen3.5-27B-FP8", "qwen3.5-27b"),
        ("qwen3-next-80b-a3b-instruct-fp8", "qwen3-next-80b-a3b"),
        ("someone/Kimi-K3-NVFP4", "kimi-k3"),
        ("kimi-k3-AWQ-4bit", "kimi-k3"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b"),
        ("unsloth/LFM2-1.2B-GGUF", "lfm2-1.2b"),
    ],
)
def test_a_quantised_release_is_read_as_the_model_it_was_made_from(name: str, preset_id: str) -> None:
    """Quantising weights leaves the caches alone; the reading says what was done."""
    assert find_preset(name) == (preset_id, f"read as {preset_id}: quantised weights have the same caches")
    assert load_model(name).name == preset_id


@pytest.mark.parametrize("preset_id", shipped_presets())
def test_the_nvfp4_release_of_every_model_is_found(preset_id: str) -> None:
    """Vendors name a quantised release after the model, in place of its own -BF16 or -MXFP8."""
    base = re.sub(r"-(BF16|NVFP4|MXFP8)$", "", shipped_presets()[preset_id]["hf_id"])
    assert (find_preset(f"{base}-NVFP4") or ("none", ""))[0] == preset_id


def test_another_organisation_s_copy_is_read_as_the_model_of_that_name() -> None:
    """org/name of a mirror: the name decides, and the reading says so."""
    assert find_preset("mirror/Kimi-K3") == ("kimi-k3", "read as kimi-k3: mirror/Kimi-K3 has the same model name")


@pytest.mark.parametrize("name", ["kimi", "kimi-k3-turbo", "a/b/kimi-k3", "-fp8", "kimi-k3-fp8-turbo", "27b"])
def test_a_name_that_only_resembles_a_preset_is_not_taken_for_it(name: str) -> None:
    """A wrong geometry is worse than none."""
    assert find_preset(name) is None


@pytest.mark.parametrize(
    ("name", "named"),
    [("kimi-k4", "nearest: kimi-k3"), ("Qwen/Qwen3.5-28B", "qwen3.5-27b"), ("zzzzzzzz", "`hybridcalc models` lists")],
)
def test_an_unknown_model_is_refused_with_the_nearest_presets(name: str, named: str) -> None:
    """What to write instead; nothing near, and it says where the list is."""
    with pytest.raises(ModelNotFound) as refusal:
        load_model(name)
    assert refusal.value.message == f"no model {name!r}"
    assert named in refusal.value.fix
    assert "; or give a config.json or its folder" in refusal.value.fix


def test_names_for_listings_are_sorted_ids() -> None:
    """For `hybridcalc models` and for shell completion."""
    assert model_names() == sorted(path.stem for path in MODEL_FILES)


@pytest.mark.parametrize("gpu", shipped_gpus())
def test_a_gpu_has_plausible_memory_bandwidth_and_peaks(gpu: str) -> None:
    """The runtime gives a little less than the driver prints; narrower numbers multiply no slower."""
    preset = shipped_gpus()[gpu]
    runtime = preset.get("runtime_gib", 0.98 * preset.get("driver_mib", 0) / 1024)
    driver = preset.get("driver_mib", 1024 * runtime) / 1024
    assert 10_000 <= 1024 * driver <= 300_000 and 0.93 <= runtime / driver <= 1.0001
    assert 100 <= preset["bandwidth_gbs"] <= 10_000
    peaks = preset.get("dense_tflops", {})
    assert all(4 <= rate <= 20_000 for rate in peaks.values())
    assert peaks.get("bf16", 0) <= peaks.get("fp8", 20_000) <= peaks.get("fp4", 20_000)


@pytest.mark.parametrize(
    ("gpu", "mib"), [("h100", 81_559), ("h200", 143_771), ("b200", 183_359), ("h20-96gb", 97_871), ("t4", 15_360)]
)
def test_the_memory_of_common_gpus(gpu: str, mib: int) -> None:
    """nvidia-smi totals in MiB; 143771MiB is the H200 of the usage text."""
    assert shipped_gpus()[gpu]["driver_mib"] == mib


@pytest.mark.parametrize(
    ("typed", "preset"),
    [
        ("qwen36-27b", "qwen3.6-27b"),
        ("Qwen3_6-27B", "qwen3.6-27b"),
        ("qwen3-6-35b-a3b", "qwen3.6-35b-a3b"),
        ("qwen38-27b-fp8", "qwen3.8-27b"),
        ("qwen3.6:35b-a3b", "qwen3.6-35b-a3b"),
        ("nemotron-3-nano:30b", "nemotron-3-nano-30b-a3b"),
        ("unsloth/Qwen3.6-35B-A3B-UD-Q4_K_XL", "qwen3.6-35b-a3b"),
        ("lfm25-1.2b", "lfm2.5-1.2b"),
    ],
)
def test_names_as_people_and_registries_write_them(typed: str, preset: str) -> None:
    """A version without its dot, a tag behind a colon, a mix of types behind a dash."""
    found = find_preset(typed)
    assert found is not None and found[0] == preset


@pytest.mark.parametrize("typed", ["falcon-h1-15b", "Qwen3-8B", "qwen3-5b", "zamba2-12b", "qwen38"])
def test_a_size_is_no_version(typed: str) -> None:
    """A dot that is lost in a size makes another model."""
    assert find_preset(typed) is None


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen3.6-35B-A3B-IQ4_XS-4.19bpw.gguf", "qwen3.6-35b-a3b"),
        ("Qwen3.6-27B-MTP-IQ4_KS.gguf", "qwen3.6-27b"),
        ("LiquidAI/LFM2.5-1.2B-JP", "lfm2.5-1.2b"),
        ("LiquidAI/LFM2.5-1.2B-JP-202606", "lfm2.5-1.2b"),
    ],
)
def test_files_and_trainings_of_a_preset_are_read_as_it(name: str, preset: str) -> None:
    """Mixes of types said in bits a weight, files with their MTP layer, trainings of a month."""
    found = find_preset(name)
    assert found is not None
    assert found[0] == preset
