"""Parameters in closed form against tensors of the model's own class, and against counts that were published.

tests/data/weights/parameters.json: totals of transformers 5.24.0 on the meta device (or of the engines' model files
where it has no class), by group. published.tsv: counts of the Hub, sizes of FP8 checkpoints on disk.
"""

import csv
import json
from pathlib import Path

import pytest
from known_models import KNOWN, SPELT_OUT, config_files, config_of
from present import present

from hybridcalc import Architecture, load_model
from hybridcalc.architecture import Config
from hybridcalc.architecture.config_json.classes import READERS
from hybridcalc.architecture.layers import STYLES
from hybridcalc.architecture.own_layers import OWN
from hybridcalc.architecture.presets import shipped_checkpoints, shipped_config, shipped_presets
from hybridcalc.architecture.quantization_config import read_quantization
from hybridcalc.architecture.tensors import DRAFT, VISION
from hybridcalc.architecture.weights import parameters, stored_bytes

DATA = Path(__file__).resolve().parent.parent / "data"
COUNTED = json.loads((DATA / "weights" / "parameters.json").read_text(encoding="utf-8"))
PUBLISHED = list(csv.DictReader((DATA / "weights" / "published.tsv").read_text("utf-8").splitlines(), delimiter="\t"))
ROUTED_THROUGHOUT = "thinkingmachines--Inkling"
"""Counted with the defaults of its class, where no layer is dense; its release has two."""
ABSORBED = {"zai-org--GLM-5.3-Flash"}
"""The entry counts a copy of kv_b_proj that an engine makes after loading."""
NOT_COUNTED = {
    "lfm2-8b-a1b": 22 * 32, "nemotron-3-nano-30b-a3b": 23 * 128, "nemotron-3-super-120b-a12b": 41 * 512,
    "nemotron-3-ultra-550b-a55b": 49 * 512, "minicpm-sala": 24 * 8192,
}  # fmt: skip
"""Parameters that the Hub does not count: corrections of routers; in MiniCPM-SALA two vectors a lightning layer."""
BUFFERS = {"class-default:zaya": 40 * 17}
"""Corrections of routers that a checkpoint holds and a class has as buffers."""
PUBLISHED_IN_FP8 = [row for row in PUBLISHED if row["fp8_block128_checkpoint_bytes"]]
INCOMPLETE = {
    "inclusionAI--Ling-2.6-flash", "inclusionAI--Ling-3.0-tiny", "inclusionAI--Ring-flash-linear-2.0",
    "openbmb--MiniCPM-SALA", "ibm-granite--granite-4.0-h-micro",
}  # fmt: skip
"""Files that lack fields; their presets have them. Falcon-H1's were filled in with others than it was released with."""
GROUPS = ("embedding", "lm_head", "routed_experts", "shared_expert")
"""Groups that meta tensors and closed forms part alike; the others are named by taste."""


CLASS_DEFAULTS = {
    "class-default:lara_mini": "Lara-4-Mini", "class-default:lfm3": "LFM3-1.7B",
    "class-default:inkling2": "Inkling-2-Small", "class-default:zaya": "ZAYA1-8B",
}  # fmt: skip


def _models(name: str) -> list[Architecture]:
    """The model of an entry: its preset, and its config with the fields that were filled in for the entry."""
    entry = CLASS_DEFAULTS.get(name)
    filled = COUNTED[name].get("fields_filled")
    files = config_files()
    if name == ROUTED_THROUGHOUT:
        released = load_model("inkling")
        return [released._replace(config=Config(shipped_config("inkling") | {"dense_mlp_idx": 0}))]
    preset = [] if name.startswith("tiiuae--Falcon-H1") else [load_model(entry or files[name][1])]
    if entry is not None or name in INCOMPLETE or isinstance(filled, str):
        return preset
    path, entry = files[name]
    file = json.loads(path.read_text(encoding="utf-8"))
    stated = file if "text_config" in file else config_of(entry) | file | SPELT_OUT.get(entry, {}) | (filled or {})
    return [*preset, Architecture.from_hf_config(stated, name=name, architecture=KNOWN[entry]["architecture"])]


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_parameters_equal_those_of_the_class_on_the_meta_device(name: str) -> None:
    """To the last one, in all and in the groups that both part alike."""
    counted = COUNTED[name]
    for model in _models(name):
        found = parameters(model)
        groups = found.groups()
        text = counted["total"] - counted["totals"].get("vision", 0)
        assert found.number(draft=False, vision=False) - BUFFERS.get(name, 0) == text
        assert {key: groups.get(key, 0) for key in GROUPS} == {key: counted["totals"].get(key, 0) for key in GROUPS}
        if VISION in groups and name != ROUTED_THROUGHOUT:
            assert groups[VISION] == counted["totals"].get("vision", groups[VISION])
        if DRAFT in groups and "mtp" in counted and name not in ABSORBED:
            assert groups[DRAFT] == counted["mtp"]


@pytest.mark.parametrize("preset", sorted(shipped_presets()))
def test_published_counts_are_met(preset: str) -> None:
    """What the Hub counts in each checkpoint; differences are those that NOT_COUNTED explains."""
    found = parameters(load_model(preset))
    for checkpoint in shipped_checkpoints(preset):
        if "parameters" in checkpoint and not found.unknown:
            assert found.number() - checkpoint["parameters"] == NOT_COUNTED.get(preset, 0)


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED if row["fp8_block128_checkpoint_bytes"]], ids=lambda r: r["preset"]
)
def test_fp8_checkpoints_are_sized_to_the_byte(row: dict[str, str]) -> None:
    """Block scales are bf16 on disk; the bf16 checkpoint is twice its parameters."""
    found = parameters(load_model(row["preset"]))
    released = next(each for each in shipped_checkpoints(row["preset"]) if each["id"].endswith("-FP8"))
    fp8 = read_quantization({"quantization_config": released["quantization"]})
    assert stored_bytes(found, fp8, scale_bytes=2) == int(row["fp8_block128_checkpoint_bytes"])
    assert stored_bytes(found, None) == int(row["bf16_bytes"])


@pytest.mark.parametrize("name", ["nvidia--Qwen3.6-27B-NVFP4", "nvidia--Qwen3.6-35B-A3B-NVFP4"])
def test_a_preset_states_a_mixed_checkpoint_as_its_own_list_does(name: str) -> None:
    """Two rules stand for the hundreds of names that the released file lists."""
    path, entry = config_files()[name]
    config = json.loads(path.read_text(encoding="utf-8"))
    listed = read_quantization(config)
    model = load_model(entry)
    released = next(each for each in shipped_checkpoints(model.name) if each["id"].startswith("nvidia/"))
    by_rule = read_quantization({"quantization_config": released["quantization"]})
    found = parameters(model)
    assert stored_bytes(found, by_rule) == stored_bytes(found, listed)
    assert stored_bytes(found, listed) < stored_bytes(found, None)


EXCLUDED = json.loads((DATA / "weights" / "excluded.json").read_text(encoding="utf-8"))
"""The modules that the hf_quant_config.json of a release leaves in 16 bits, by their names."""


@pytest.mark.parametrize("name", sorted(EXCLUDED))
def test_a_preset_leaves_out_what_the_release_does(name: str) -> None:
    """A few rules, among them layers by number, stand for the names of a hundred modules."""
    model = load_model(name)
    released = next(each for each in shipped_checkpoints(model.name) if each["id"] == name)
    by_rule = read_quantization({"quantization_config": released["quantization"]})
    by_name = read_quantization({"hf_quant_config": {"quantization": EXCLUDED[name]}})
    assert stored_bytes(parameters(model), by_rule) == stored_bytes(parameters(model), by_name)


def test_every_style_is_of_a_class_that_configs_are_read_for() -> None:
    """A style for a class that no reader knows would never be asked."""
    assert set(STYLES) | set(OWN) <= set(READERS)
    assert not set(STYLES) & set(OWN)


def test_a_table_of_ngrams_is_sized_by_the_primes_that_its_heads_take() -> None:
    """Sixteen primes from 20,000,000 on make 320,001,446 rows, padded to the 320,001,536 of the tensor in its GGUF."""
    groups = parameters(load_model("qwen3.8-flash-next")).groups()
    assert groups["ngram_table"] == 320_001_536 * 160
    assert parameters(load_model("qwen3.8-flash-next")).number(draft=False, vision=False) == 176_943_899_520


@pytest.mark.parametrize(
    ("layers", "folded", "last"),
    [
        (5, [(64, 3 * 4), (64, 64 * 4), (192, 64 * 4), (384, 192 * 2)], 384 * 2),
        (6, [(64, 3 * 4), (64, 64 * 4), (64, 64 * 1), (192, 64 * 4), (768, 192 * 4)], 768 * 1),
    ],
)
def test_sound_and_patches_are_folded_in_the_steps_that_their_factors_give(
    layers: int, folded: list[tuple[int, int]], last: int
) -> None:
    """Patches of 8 x 8 in 4 frames: 1, 4, 16, 64, 128, 256 elements folded, of 3, 64, 64, 192, 384, 768 channels."""
    stated = shipped_config("inkling") | {
        "audio_config": {"n_mel_bins": 3, "mel_vocab_size": 5},
        "vision_config": {"patch_size": 8, "temporal_patch_size": 4, "n_layers": layers, "num_channels": 3},
    }
    model = load_model("inkling")._replace(config=Config(stated))
    hidden = present(model.hidden_size)
    patches = sum(rows * width + rows for rows, width in folded) + hidden * last + hidden
    assert parameters(model).groups()[VISION] == 3 * 5 * hidden + hidden + patches


@pytest.mark.parametrize(("hidden", "rank"), [(4096, 256), (4100, 257)])
def test_a_rank_of_dt_that_is_not_stated_is_a_sixteenth_of_the_hidden_size(hidden: int, rank: int) -> None:
    sizes = {
        "model_type": "falcon_mamba",
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "intermediate_size": 8192,
        "state_size": 16,
        "conv_kernel": 4,
        "vocab_size": 65024,
    }
    found, stated = (
        parameters(Architecture.from_hf_config(config, name="m", architecture="FalconMambaForCausalLM"))
        for config in (sizes, sizes | {"time_step_rank": rank})
    )
    assert found.number(draft=False, vision=False) == stated.number(draft=False, vision=False) > 0
