"""Weights on a rank against what engines printed after loading them, and against shapes worked out by hand.

tests/data/weights/logs.jsonl: "Load weight end ... mem usage" of SGLang, "Model loading took" of vLLM; log_cases.json
says of which model, arguments and layout each is. The misses are explained in docs/weights.md.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import hybridcalc
from hybridcalc import Architecture, load_model
from hybridcalc.architecture import Config
from hybridcalc.architecture.presets import shipped_config
from hybridcalc.engines import ENGINES
from hybridcalc.engines.placement import stages_of
from hybridcalc.engines.weights import Weights, held_by, lines_of
from hybridcalc.errors import InputError, ShardingError

DATA = Path(__file__).resolve().parent.parent / "data" / "weights"
CASES = json.loads((DATA / "log_cases.json").read_text(encoding="utf-8"))
LOGS = {row["id"]: row for row in map(json.loads, (DATA / "logs.jsonl").read_text(encoding="utf-8").splitlines())}
GIB = 2**30


def _model(name: str, quantization: str | None) -> Architecture:
    given = CASES["configs"].get(name)
    model = Architecture.from_hf_config(given, name=name) if given else load_model(name)
    if quantization is None:
        return model
    config = dict(model.config if model.config is not None else shipped_config(model.name))
    return model._replace(config=Config(config | {"quantization_config": CASES["quantizations"][quantization]}))


def _interval(case: list[Any], engine: str) -> tuple[float, float]:
    """GiB: the least and most that are predicted, which are one where the layout is known."""
    name, given, quantization, stage = [*case, None, None][:4]
    served, model = ENGINES[engine], _model(name, quantization)
    args = type(served.arguments())(**given)
    found = served.weights(model, args)
    if stage is None:
        return found.low / GIB, found.high / GIB
    from hybridcalc.architecture.weights import parameters

    whole = parameters(model)
    placed = served.part("weights").placement(model, args)(whole, None)
    held = held_by(whole, None, placed, "bfloat16")
    size = sum(line.bytes for line in lines_of(held, whole, placed, stage)) / GIB
    return size, size


def _off(log: dict[str, Any]) -> float:
    """How far a figure lies outside of what is predicted; GiB."""
    low, high = _interval(CASES["cases"][log["id"]], log["engine"])
    return max(0.0, low - float(log["GiB"]), float(log["GiB"]) - high)


def test_boots_print_the_weights_that_were_predicted() -> None:
    """Within 1 % or 0.2 GiB, whichever is more: every boot whose model and layout are known."""
    usable = [log for log in LOGS.values() if log["usable"] and log["id"] in CASES["cases"]]
    assert {log["id"] for log in LOGS.values() if log["usable"]} - CASES["cases"].keys() == {"x02"}
    met = {log["id"] for log in usable if _off(log) <= max(0.2, float(log["GiB"]) / 100)}
    assert {log["id"] for log in usable} - met == set()


BOOTS_OF_VLLM = [log for log in LOGS.values() if log["usable"] and log["engine"] == "vllm"]


@pytest.mark.parametrize("log", BOOTS_OF_VLLM, ids=lambda log: log["id"])
def test_vllm_prints_them_to_a_tenth_of_a_gib_or_a_quarter_of_a_percent(log: dict[str, Any]) -> None:
    """Its figure is what the allocator holds: nothing of the driver's is in it. With Marlin it is a little more."""
    assert _off(log) <= max(0.14 if "Marlin" in log["quantization"] else 0.11, float(log["GiB"]) / 400)


def test_a_draft_that_sglang_logs_has_its_own_embedding_and_head() -> None:
    """Which it gives back: the layers alone stay (boot x02, 5.53 GiB)."""
    args = hybridcalc.sglang.ServerArgs(speculative_algorithm="EAGLE", speculative_num_draft_tokens=4)
    groups = {
        group.name: group.bytes_per_rank for group in ENGINES["sglang"].weights(load_model("qwen3.8-27b"), args).groups
    }
    logged = groups["mtp"] + groups["embedding"] + groups["lm_head"]
    assert logged / GIB == pytest.approx(LOGS["x02"]["GiB"], abs=0.01)


def _weights(model: str, engine: str = "vllm", **given: Any) -> Weights:
    return hybridcalc.weights(model, engine=engine, **given)


def test_matrices_of_a_397b_model_on_one_of_eight_ranks() -> None:
    """bf16 text of Qwen3.5-397B: 396,346,350,336 parameters; two KV heads and every router are on all ranks."""
    found = _weights("Qwen/Qwen3.5-397B-A17B", tp_size=8, language_model_only=True)
    vectors = ("conv1d", "shared_expert_gate.weight")
    matrices = [line for line in found.lines if len(line.shape) > 1 and not line.name.endswith(vectors)]
    assert sum(line.bytes for line in matrices) == 99_353_231_360
    assert found.parameters_text == 396_346_350_336


def test_checkpoints_are_sized_as_published() -> None:
    """Tensors on disk, with block scales in bf16 there and in fp32 on the card."""
    assert _weights("Qwen/Qwen3.8-27B").checkpoint_bytes == 55_562_855_904
    assert _weights("Qwen/Qwen3.6-35B-A3B").checkpoint_bytes == 71_903_645_408
    fp8 = _weights("Qwen/Qwen3.6-27B-FP8")
    assert fp8.checkpoint_bytes == 30_866_663_264
    assert fp8.quantization == "fp8"
    assert isinstance(fp8.bytes_per_rank, int)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("model", "given", "what"),
    [
        ("qwen3.6-27b", {"tp_size": 3}, "--tp 3 does not divide"),
        ("Qwen/Qwen3.6-35B-A3B-FP8", {"tp_size": 8}, "blocks of 128 do not divide"),
        ("nemotron-3-super-120b-a12b", {"tp_size": 12}, "--tp 12 does not divide"),
    ],
)
def test_ranks_that_do_not_divide_are_refused(engine: str, model: str, given: dict[str, Any], what: str) -> None:
    """Heads, widths and fp8 blocks must divide in both engines."""
    with pytest.raises(ShardingError, match=what):
        _weights(model, engine, **given)


def test_pipeline_stages_share_layers_as_each_engine_does() -> None:
    """94 layers on 4 stages: what is over goes to the last stages in SGLang, to those before the last in vLLM."""
    sizes = [last - first for first, last in stages_of(94, 4, last_first=True)]
    assert sizes == [23, 23, 24, 24]
    assert [last - first for first, last in stages_of(94, 4)] == [23, 24, 24, 23]
    assert stages_of(10, 2, "4,6") == ((0, 4), (4, 10))
    with pytest.raises(InputError, match="not of 10 layers"):
        stages_of(10, 2, "4,5")


def test_a_name_that_says_quantised_is_an_interval_and_a_finding() -> None:
    """Never bf16: which modules are in 4 bits is not known."""
    found = _weights("RedHatAI/Qwen3.6-27B-NVFP4")
    low, likely, high = found.bytes_per_rank  # type: ignore[misc]
    assert 14 * GIB < low < likely < high < 30 * GIB
    assert [finding.rule for finding in found.findings] == ["HC090"]
    assert "which modules are quantised is not known" in found.uncertain


def test_a_size_without_a_closed_form_is_an_interval(tmp_path: Path) -> None:
    """A class without one, beside the index of a checkpoint: shared evenly at the least, a tenth of it whole else."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"architectures": ["SeedOssForCausalLM"]}))
    index = {"metadata": {"total_size": 40 * GIB}, "weight_map": {"lm_head.weight": "model-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = _weights(str(tmp_path), tp_size=2)
    assert (found.low, found.high) == (20 * GIB, 24 * GIB)
    assert "no closed form of SeedOssForCausalLM" in found.uncertain


def test_a_table_of_ngrams_stays_in_host_memory() -> None:
    """Where CUDA cards look rows up in pinned memory; SGLang keeps it on other cards, its rows shared out."""
    model, groups = "qwen3.8-flash-next", ("ngram_table", "routed_experts")
    on_card = {
        engine: {g.name: (g.bytes_per_rank, g.sharding) for g in _weights(model, engine, tp_size=4).groups}
        for engine in ("sglang", "vllm")
    }
    for found in on_card.values():
        assert found["ngram_table"] == (0, "host memory")
        assert found["routed_experts"][0] == 120_795_955_200 * 2 // 4
    served = ENGINES["sglang"]
    amd = served.weights(load_model(model), hybridcalc.sglang.ServerArgs(tp_size=4, platform="hip"))
    assert {g.name: g.bytes_per_rank for g in amd.groups}[groups[0]] == 320_001_536 * 160 * 2 // 4


def test_quantisation_on_load_is_of_a_checkpoint_in_16_bits_alone() -> None:
    """--quantization fp8: linear layers in fp8; a checkpoint that is quantised keeps its own."""
    online = _weights("qwen3.6-27b", quantization="fp8")
    assert online.likely < 0.62 * _weights("qwen3.6-27b").likely
    assert _weights("Qwen/Qwen3.6-27B-FP8", quantization="fp8").likely == _weights("Qwen/Qwen3.6-27B-FP8").likely
    with pytest.raises(InputError, match="--quantization 'fp3' is not known"):
        _weights("qwen3.6-27b", quantization="fp3")


def _safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]], cut: int = 0) -> None:
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    data = json.dumps(header).encode()
    path.write_bytes((struct.pack("<Q", len(data)) + data)[: len(data) + 8 - cut])


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "intermediate_size": 256, "tie_word_embeddings": True,
}  # fmt: skip


def test_headers_of_a_folder_size_its_checkpoint(tmp_path: Path) -> None:
    """Names, shapes and dtypes alone are read: the files hold no more here."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    whole = _weights(str(tmp_path))
    count = whole.parameters
    _safetensors(tmp_path / "a.safetensors", {"x": ("BF16", [count - 8], 2 * (count - 8)), "y": ("BF16", [8], 16)})
    found = _weights(str(tmp_path))
    assert (found.checkpoint_bytes, found.bytes_per_rank) == (2 * count, whole.bytes_per_rank)
    assert "safetensors headers" in found.weights_from
    _safetensors(tmp_path / "a.safetensors", {"x": ("BF16", [2 * count], 4 * count)})
    twice = _weights(str(tmp_path))
    assert twice.checkpoint_bytes == 4 * count
    assert twice.low < twice.high
    assert "the closed form" in twice.uncertain


def test_a_folder_whose_name_says_quantised_is_what_its_headers_say(tmp_path: Path) -> None:
    """16 bits a parameter are no AWQ, whatever the folder is called; fewer bytes are."""
    folder = tmp_path / "model-AWQ"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    count = _weights(str(tmp_path)).parameters
    _safetensors(folder / "a.safetensors", {"x": ("BF16", [count], 2 * count)})
    assert [finding.rule for finding in _weights(str(folder)).findings] == []
    _safetensors(folder / "a.safetensors", {"x": ("I8", [count], count)})
    assert [finding.rule for finding in _weights(str(folder)).findings] == ["HC090"]


def test_a_damaged_header_is_an_error_of_one_line(tmp_path: Path) -> None:
    """Cut short, no JSON, a length beyond the file, a tensor without a place."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    file = tmp_path / "model.safetensors"
    _safetensors(file, {"x": ("BF16", [8], 16)}, cut=3)
    for content in (
        file.read_bytes(),
        b"\xff" * 8,
        b"",
        struct.pack("<Q", 4) + b"[1]x",
        struct.pack("<Q", 12) + b'{"a": {"x":1',
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match="safetensors"):
            _weights(str(tmp_path))
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 0]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match="lies outside"):
        _weights(str(tmp_path))


def test_hf_quant_config_beside_a_config_counts(tmp_path: Path) -> None:
    """ModelOpt writes it, and some releases have nothing in their config.json."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    plain = _weights(str(tmp_path)).likely
    inner = {"quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.0*"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": inner}))
    found = _weights(str(tmp_path))
    assert plain * 0.6 < found.likely < plain
    assert found.quantization == "modelopt fp8 per tensor"


MALFORMED = {
    "empty": "", "array": "[]",
    "metadata null": '{"metadata": null}', "text": '{"metadata": {"total_size": "5"}}',
    "true": '{"metadata": {"total_size": true}}',
    "zero": '{"metadata": {"total_size": 0}}', "negative": '{"metadata": {"total_size": -5}}',
    "huge": '{"metadata": {"total_size": 1e30}}', "infinite": '{"metadata": {"total_size": Infinity}}',
    "nan": '{"metadata": {"total_size": NaN}}', "digits": '{"metadata": {"total_size": ' + "9" * 5000 + "}}",
    "deep": "[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_an_index_without_a_usable_total_is_refused(tmp_path: Path, text: str) -> None:
    """Named with its path; never a figure made up."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json: ") as refusal:
        _weights(str(tmp_path))
    assert refusal.value.fix == "give --weights SIZE"


@pytest.mark.parametrize("text", ["{}", '{"metadata": {}}', '{"weight_map": {"x": "gone.safetensors"}}'])
def test_an_index_that_states_no_total_leaves_the_closed_form(tmp_path: Path, text: str) -> None:
    """Nothing is known of the checkpoint's size then, which is no error."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(text)
    found = _weights(str(tmp_path))
    assert found.weights_from == "closed form of its config.json"
    assert found.checkpoint_bytes == 2 * found.parameters


def test_an_index_weighs_a_model_without_a_closed_form(tmp_path: Path) -> None:
    """Its total, shared evenly at the least."""
    config = LLAMA | {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 160 * GIB}}))
    low, likely, high = _weights(str(tmp_path), tp_size=2).bytes_per_rank  # type: ignore[misc]
    assert low == 80 * GIB < likely < high < 100 * GIB
