"""Ollama: the llama-server that it starts for a model, by release, as server/sched.go and llm/llama_server.go say."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from gguf_files import QWEN35_27B, header
from present import present

from hybridcalc import llamacpp, load_model, plan
from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings
from hybridcalc.engines import ENGINES
from hybridcalc.engines.llamacpp.ollama import RELEASES, model_named
from hybridcalc.errors import InputError, Refusal

ENGINE = ENGINES["llama.cpp"]


def planned(line: str, model: str | None = None, **options: Any) -> Any:
    """The plan of a line, whatever it costs."""
    found = ENGINES.launch(line)
    named, args = ENGINE.read(found.words, found.variables)
    args = ENGINE.with_options(args, {"engine_version": ENGINES.release(found), **options})
    return llamacpp.plan(load_model(model or named or ""), args)


def test_slots_multiply_the_context() -> None:
    """-c is num_ctx x slots, so that each slot has num_ctx; one slot of 4,096 tokens where nothing is said."""
    bare = planned("ollama run granite-4.0-h-small").engine_figures
    assert (bare["n_ctx"], bare["n_seq_max"], bare["n_ctx_seq"]) == (4096, 1, 4096)
    line = "OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=8192 ollama run granite-4.0-h-small"
    several = planned(line)
    figures = several.engine_figures
    assert (figures["n_ctx"], figures["n_seq_max"], figures["streams"], figures["n_ctx_seq"]) == (32768, 4, 4, 8192)
    same = llamacpp.plan(
        several.model, llamacpp.ContextParams(n_ctx=32768, n_seq_max=4, n_batch=1024, n_ubatch=1024, cards=1)
    )
    assert same.engine_figures == figures
    assert several.to_dict()["launch"]["argv"][:1] == ["llama-server"]


def test_models_with_states_get_one_slot() -> None:
    """From 0.17.1 on qwen35 has one slot whatever is asked, and HC220 says so; Granite has as many as are asked for."""
    for version, slots in (("0.15.5", 4), ("0.17.1", 1), ("0.32.15", 1)):
        found = planned(f"docker run -e OLLAMA_NUM_PARALLEL=4 ollama/ollama:{version}", "qwen3.5-27b")
        assert found.ready.sequences == slots
        assert ("HC220" in [finding.rule for finding in found.findings]) == (slots == 1)
    assert planned("OLLAMA_NUM_PARALLEL=4 ollama serve", "granite-4.0-h-small").ready.sequences == 4


@pytest.mark.parametrize(
    ("version", "gpu", "tokens"),
    [
        ("0.5.13", None, 2048), ("0.6.7", "8xh100", 4096), ("0.15.5", None, 4096),
        ("0.32.15", "rtx-4090", 32768),
        ("0.32.15", "rtx-4080", 4096), ("0.32.15", "2xrtx-4090", 131072), ("0.32.15", "h100", 131072),
    ],
)  # fmt: skip
def test_the_context_where_nothing_sets_it(version: str, gpu: str | None, tokens: int) -> None:
    """2,048, then 4,096, then by the memory of all GPUs: 262,144 from 47 GiB on, no more than was trained."""
    from hybridcalc.hardware import find_gpu

    card = find_gpu(gpu) if gpu is not None else None
    found = planned("ollama serve", "granite-4.0-h-small", engine_version=version, gpu=card)
    assert found.ready.n_ctx_seq == min(tokens, found.model.max_context)


def test_what_a_modelfile_sets_comes_first(tmp_path: Path) -> None:
    """num_ctx beats OLLAMA_CONTEXT_LENGTH; num_gpu, num_batch and drafts of a model that has them."""
    words = "--num-ctx 16384 --num-batch 256 --num-gpu 20 --draft-num-predict 4"
    found = planned(f"OLLAMA_CONTEXT_LENGTH=8192 ollama run qwen3.5-27b {words}")
    ready = found.ready
    assert (ready.n_ctx_seq, ready.n_ubatch, ready.args.n_gpu_layers, ready.copies) == (16384, 256, 20, 4)
    assert planned(f"ollama run granite-4.0-h-small {words}").ready.copies == 0
    assert planned("ollama run qwen3.5-27b a prompt of words").ready.copies == 0


def test_a_modelfile_is_planned_where_a_launch_line_stands(tmp_path: Path) -> None:
    """With the parameters of the file, which lies anywhere; one without a FROM starts nothing."""
    path = tmp_path / "Modelfile"
    path.write_text("FROM qwen3.5:27b-q4_K_M\nPARAMETER num_ctx 8192\n", "utf-8")
    assert "1 slot of 8,192 tokens, by Ollama" in run("plan", "--", str(path)).out
    path.write_text("PARAMETER num_ctx 8192\n", "utf-8")
    assert run("plan", "--", str(path)).code == 2


def test_more_slots_than_there_are_sequences() -> None:
    with pytest.raises(Refusal) as caught:
        planned("OLLAMA_NUM_PARALLEL=257 ollama run granite-4.0-h-small")
    assert (caught.value.rule, caught.value.fix) == ("HC202", "write OLLAMA_NUM_PARALLEL=256")


def test_types_of_kv() -> None:
    """Both K and V; before 0.30 a quantised type needs OLLAMA_FLASH_ATTENTION, later llama-server refuses it."""
    line = "OLLAMA_KV_CACHE_TYPE=Q8_0 {} ollama run granite-4.0-h-small"
    new, old = planned(line.format("")), planned(line.format(""), engine_version="0.24.0")
    assert (new.args.type_k, new.args.type_v) == ("q8_0", "q8_0")
    assert (old.args.type_k, [finding.rule for finding in old.findings if finding.rule == "HC221"]) == (
        "f16",
        ["HC221"],
    )
    assert planned(line.format("OLLAMA_FLASH_ATTENTION=1"), engine_version="0.24.0").args.type_k == "q8_0"
    with pytest.raises(Refusal, match="V in q8_0 needs flash attention") as caught:
        planned(line.format("OLLAMA_FLASH_ATTENTION=false"))
    assert caught.value.fix == "leave out OLLAMA_FLASH_ATTENTION, or OLLAMA_KV_CACHE_TYPE"
    with pytest.raises(InputError, match="OLLAMA_KV_CACHE_TYPE='q9' is no type of llama-server"):
        planned("OLLAMA_KV_CACHE_TYPE=q9 ollama run granite-4.0-h-small")


def test_variables_of_llama_server_reach_it() -> None:
    """Where Ollama passes no flag: context checkpoints, --fit; not the context, which it always passes."""
    found = planned("LLAMA_ARG_CTX_CHECKPOINTS=4 LLAMA_ARG_CTX_SIZE=99999 LLAMA_ARG_FIT=off ollama run qwen3.5-27b")
    assert (found.args.ctx_checkpoints, found.args.fit, found.ready.n_ctx) == (4, False, 4096)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("qwen3.5:27b-q4_K_M", "qwen3.5-27b:Q4_K_M"), ("qwen3.5:27b", "qwen3.5-27b"), ("x:latest", "x"),
        ("qwen3.5:27b-fp16", "qwen3.5-27b:F16"), ("registry.ollama.ai/library/qwen3.5:27b", "qwen3.5-27b"),
        ("me/model:Q4_K_M", "me/model:Q4_K_M"),
        ("hf.co/unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M", "unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M"), ("./m.gguf", "./m.gguf"),
    ],
)  # fmt: skip
def test_names_of_the_library(name: str, read: str) -> None:
    assert model_named(name) == read


def test_what_runs_elsewhere_is_refused() -> None:
    with pytest.raises(InputError, match=r"'qwen3\.5:397b-cloud' runs on Ollama's servers"):
        model_named("qwen3.5:397b-cloud")


def test_releases_are_in_order_and_notes_say_what_is_not_known() -> None:
    assert RELEASES.newest == "0.32.15"
    assert ENGINES["llama.cpp"].note("0.31.0") == "Ollama 0.31.0: the rules of 0.30.0 are used"
    with pytest.raises(InputError, match=r"Ollama 0\.4\.0 is older than every version known here"):
        ENGINES["llama.cpp"].note("0.4.0")
    said = planned("ollama serve", "qwen3.5-27b", engine_version="0.24.0").notes
    assert any("lays caches out in runners of its own" in note for note in said)
    assert plan("ollama run qwen3.5:27b-q4_K_M").to_dict()["engine"] == "llama.cpp"


FILES = {
    "compose.yaml": "services:\n  o:\n    image: ollama/ollama:0.32.15\n"
    "    environment:\n      - OLLAMA_NUM_PARALLEL=4\n",
    "ollama.service": '[Service]\nExecStart=/usr/bin/ollama serve\nEnvironment="OLLAMA_NUM_PARALLEL=4"\n',
    "pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: o\n"
    "    image: ollama/ollama:0.31.0\n    env: [{name: OLLAMA_NUM_PARALLEL, value: '4'}]\n",
    "start.sh": "ollama pull qwen3.5:27b\nollama list\nOLLAMA_NUM_PARALLEL=4 ollama serve &\n",
    "Modelfile": 'FROM qwen3.5:27b\nSYSTEM """\nFROM nothing\nPARAMETER num_ctx 1\n"""\nPARAMETER num_ctx 8192\n',
}


@pytest.mark.parametrize("name", FILES)
def test_check_reads_files_of_ollama(name: str, tmp_path: Path) -> None:
    """A server that names no model is judged with one that is given; a Modelfile names its own."""
    path = tmp_path / name
    path.write_text(FILES[name], "utf-8")
    (found,) = present(check_file(str(path), Settings(models={"*": "qwen3.5-27b"}, length=16384), {})).checked
    assert ("HC222" if name == "Modelfile" else "HC220") in {item.finding.rule for item in found.findings}
    (alone,) = present(check_file(str(path), Settings(), {})).checked
    assert not alone.opened
    if name != "Modelfile":
        assert alone.model is None and "it serves whatever model a request names" in alone.notes[0]


MODEL_LAYER = "application/vnd.ollama.image.model"


@pytest.mark.parametrize(("name", "where"), [
    ("qwen3.5:27b", "registry.ollama.ai/library/qwen3.5/27b"),
    ("somebody/mine", "registry.ollama.ai/somebody/mine/latest"),
    ("hf.co/unsloth/Qwen3.5-27B-GGUF:Q4_K_M", "hf.co/unsloth/Qwen3.5-27B-GGUF/Q4_K_M"),
])  # fmt: skip
def test_a_model_in_the_local_store_is_read_from_its_file(
    name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its manifest: the header of the blob says what a preset could only estimate."""
    blob, manifest = tmp_path / "blobs" / f"sha256-{'0a' * 32}", tmp_path / "manifests" / where
    blob.parent.mkdir()
    manifest.parent.mkdir(parents=True)
    tensors = {"token_embd.weight": ((64, 32), 0), "output.weight": ((64, 32), 0)}
    blob.write_bytes(header(QWEN35_27B, tensors, [0, 0]))
    layers = [{"mediaType": "text/plain", "digest": "?"}, {"mediaType": MODEL_LAYER, "digest": f"sha256:{'0a' * 32}"}]
    manifest.write_text(json.dumps({"layers": layers}))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    figures = planned(f"ollama run {name}").engine_figures
    assert figures["weights_bytes"] == 2 * 64 * 32 * 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layers": 3}', '{"layers": [{"mediaType": 1}]}', "[" * 100_000])
def test_a_store_that_cannot_be_read_leaves_the_name(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "qwen3.5" / "27b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(text)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert planned("ollama run qwen3.5:27b").model.name == "qwen3.5-27b"
    assert ENGINE.read(["run", "../../../x:27b"], {})[0] == "../../../x:27b"
