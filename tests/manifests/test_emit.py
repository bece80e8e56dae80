"""What --emit writes is read back as the same launch, and `check` has nothing to say about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_line import run

from hybridcalc.manifests import Deployment
from hybridcalc.manifests.find import read_file

NAMES = {"cmd": "serve.sh", "compose": "compose.yaml", "kubernetes": "deployment.yaml"}
LAUNCHES = {
    "sglang": "--engine sglang Qwen/Qwen3.6-27B-FP8 --tp 2 --mamba-radix-cache-strategy extra_buffer_lazy"
    " --mamba-full-memory-ratio 0.25 --kv-cache-dtype fp8_e4m3",
    "vllm": "--engine vllm Qwen/Qwen3.6-27B-FP8 -tp 2 --max-model-len 32768 --max-num-seqs 32"
    ' --speculative-config {"method":"mtp","num_speculative_tokens":2}',
}


def find_deployments(path: Path) -> tuple[Deployment, ...]:
    return read_file(str(path), {}).deployments


@pytest.mark.parametrize("engine", LAUNCHES)
@pytest.mark.parametrize("form", ["cmd", "compose", "kubernetes", "yaml"])
def test_plans_are_read_back_as_they_were(engine: str, form: str, tmp_path: Path) -> None:
    """The same arguments from the file, nothing unresolved, and no finding that is not set aside as the plan's."""
    asked = ("plan", *LAUNCHES[engine].split(), "--gpu", "h100", "-L", "8k")
    plan = run(*asked, "--json", "--fail-on", "never").document
    name = f"{engine}-yaml" if form == "yaml" else form
    done = run(*asked, "--emit", name)
    text, path = done.out, tmp_path / NAMES.get(form, f"{engine}-config.yaml")
    path.write_text(text, encoding="utf-8")
    reached = '"--host"' in text or engine == "vllm"  # SGLang listens to its own container alone by default
    assert reached == (form in ("compose", "kubernetes") or engine == "vllm")
    checked = run("check", str(path), "--json").document
    assert {found["rule"] for found in checked["findings"]} <= {found["rule"] for found in plan["findings"]}
    told = [f"{found['rule']} {found['message']}" for found in checked["findings"] if found["suppressed"]]
    assert len(told) == len(checked["findings"]) and all(each in done.err for each in told)
    for known in ((), ("--gpu", "h100"), ("--gpu", "h100", "-L", "8k")):
        assert run("check", str(path), "--fail-on", "note", *known).code == 0
    assert checked["deployments"][0]["unresolved"] == []
    again = run("compare", str(path), "--gpu", "h100", "--json").document["sides"][0]["arguments"]
    left_out = {"engine_version"}
    assert {k: v for k, v in again.items() if k not in left_out} == plan["arguments"]


TYPED = {
    "sglang": "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B-FP8 --port 9000 --trust-remote-code"
    " --served-model-name=qwen --lora-paths a=b c=d --host 127.0.0.1",
    "vllm": "HF_TOKEN=hf_secret VLLM_USE_X=1 vllm serve /srv/Qwen3.6-27B-FP8 --port=9000 --max-num-seqs 64"
    " --trust-remote-code --served-model-name qwen --lora-modules a=b c=d",
}


@pytest.mark.parametrize("engine", TYPED)
@pytest.mark.parametrize("form", ["cmd", "compose", "kubernetes", "yaml"])
def test_flags_that_say_nothing_to_a_plan_are_written_too(engine: str, form: str, tmp_path: Path) -> None:
    """With their values, as they were typed; the port is the container's, and no secret is written."""
    name = f"{engine}-yaml" if form == "yaml" else form
    text = run("plan", "--gpu", "h100", "--emit", name, "--", *TYPED[engine].split()).out
    path = tmp_path / NAMES.get(form, f"{engine}-config.yaml")
    path.write_text(text, encoding="utf-8")
    read = (word for each in find_deployments(path) for word in each.words)
    words = [part for word in read for part in word.split("=", 1) if "=" in word[:20] or part]
    for flag, *values in (("--port", "9000"), ("--trust-remote-code",), ("--served-model-name", "qwen")):
        assert flag in words and (not values or words[words.index(flag) + 1] == values[0]), (flag, text)
    assert {"a", "c", "d"} <= set(words)
    if form in ("compose", "kubernetes"):
        assert {"compose": '"9000:9000"', "kubernetes": "containerPort: 9000"}[form] in text
        assert "hf_secret" not in text and "HF_TOKEN" in text
        assert text.count("--host") == (engine == "sglang") and "0.0.0.0" not in text
        assert ("/srv" in text.partition("volumes")[2]) == (engine == "vllm")


def test_what_does_not_serve_is_no_file() -> None:
    """Neither what does not start nor what runs too few: why is said where a file is not, with the plan's exit code."""
    few = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "-L", "8k", "-C", "900", "--emit", "cmd")
    done = run(*few)
    assert (done.out, done.code) == ("", 1) and "HC002" in done.err
    assert "\npython -m sglang.launch_server" in run(*few, "--fail-on", "never").out
    none = run("plan", "qwen3.6-35b-a3b", "--gpu", "rtx-4090", "-L", "8k", "--emit", "kubernetes")
    assert (none.out, none.code) == ("", 1) and "HC0" in none.err


def test_nodes_that_were_typed_are_said_anew(tmp_path: Path) -> None:
    """A line of node 1 is written for all nodes, with the addresses of the set."""
    line = (
        "sglang serve --model-path moonshotai/Kimi-K3 --tp 16 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000"
    )
    text = run("plan", "--gpu", "b200", "-L", "8k", "--emit", "kubernetes", "--", *line.split()).out
    assert "size: 2\n" in text and "10.0.0.1" not in text and text.count("--node-rank") == 1


@pytest.mark.parametrize("form", ["cmd", "compose", "kubernetes"])
def test_a_file_of_a_hub_stays_what_it_is(form: str) -> None:
    line = "llama-server -hf unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M -c 65536 -np 8"
    text = run("plan", "-L", "8k", "--gpu", "h100", "--emit", form, "--", *line.split()).out
    assert "unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M" in text and "-hf" in text and "--model" not in text


def test_folders_are_quoted_and_a_config_stands_for_its_folder(tmp_path: Path) -> None:
    line = ("vllm", "serve", "/srv/all {of} them/Qwen3.6-27B-FP8", "--max-num-seqs", "8")
    for form in ("compose", "kubernetes"):
        text = run("plan", "--gpu", "h100", "-L", "8k", "--emit", form, "--", *line).out
        assert all(yaml.safe_load_all(text)) and '"/srv/all {of} them' in text.partition("olumes")[2]
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SMALL}), encoding="utf-8"
    )
    done = run("plan", str(config), "--rest", "20GiB", "-L", "1k", "--emit", "cmd")
    assert done.out.split()[-1] == str(tmp_path)  # the folder, of which servers read


SMALL = {
    "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_file_of_weights_is_mounted() -> None:
    asked = ("fit", "qwen3.6-35b-a3b", "-L", "16k", "-C", "20", "--gpu", "l40s", "--engine", "llama.cpp", "--emit")
    for form in ("compose", "kubernetes"):
        text = run(*asked, form).out
        assert "llama.cpp:server-cuda-b" in text and '["/app/llama-server"]' in text and "/models" in text


@pytest.mark.parametrize("form", ["cmd", "compose", "kubernetes", "sglang-yaml", "vllm-yaml"])
def test_the_first_row_of_fit_is_written(form: str, tmp_path: Path) -> None:
    """Replicas as a number where the form has one; variables in front, in the environment or in a comment."""
    asked = ("fit", "qwen3.6-35b-a3b", "-L", "16k", "-C", "300", "--gpu", "l40s,h100")
    text = run(*asked, "--emit", form).out
    path = tmp_path / NAMES.get(form, f"{form}.yaml")
    path.write_text(text, encoding="utf-8")
    checked = run("check", str(path), "--gpu", "l40s", "--json").document
    assert len(checked["deployments"]) == 1
    assert checked["findings"] == []


def test_forms_that_cannot_be_are_refused() -> None:
    """Of another engine, unknown, of GPUs whose image is not known, beside --json."""
    asked = ("plan", "qwen3.6-35b-a3b", "--gpu", "2xh100")
    assert "write sglang-yaml" in run(*asked, "--emit", "vllm-yaml").err
    assert "cmd, compose, kubernetes" in run(*asked, "--emit", "helm").err
    served = ("--", *["llama-server", "-m", "qwen3.6-27b-Q4_K_M.gguf", "-c", "32768", "-np", "4"])
    assert "write cmd, compose, kubernetes\n" in run("plan", "--gpu", "h100", "--emit", "vllm-yaml", *served).err
    assert "leave out --json" in run(*asked, "--emit", "cmd", "--json").err
    assert "write --emit cmd" in run("plan", "qwen3.6-35b-a3b", "--gpu", "mi300x", "--emit", "compose").err


def test_a_log_is_written_with_the_safest_that_helps() -> None:
    """The launch line of the boot, with the first suggestion; without the line there is nothing to write."""
    boot = ("log", "examples/kimi-k3-boot.log", "-L", "9216", "-C", "70")
    line = "sglang serve --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
    suggested = run(*boot, "--command", line, "--json").document["boots"][0]["suggestions"]
    text = run(*boot, "--command", line, "--emit", "cmd").out
    assert suggested
    assert all(word in text for word in suggested[0]["flags"])
    said = run(*boot, "--emit", "cmd").err
    assert said == "error: --emit: the log prints no arguments that name its launch: add --command LINE\n"


@pytest.mark.parametrize(
    ("log", "flags"),
    [
        ("sgl/nvfp4-tp1-bf16.log", ("Qwen/Qwen3.8-27B-NVFP4", "--max-mamba-cache-size 4", "--mamba-ssm-dtype bf")),
        ("sgl/two-refusals-one-host.log", ("/models/GLM-5.3-Flash", "--mem-fraction-static 0.86", "--context-len")),
        ("vllm/kimi-linear-boot.log", ("--quantization fp8", "--gpu-memory-utilization 0.95", "--max-num-seqs 306")),
    ],
)
def test_printed_arguments_are_a_launch(log: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """What an engine printed of its arguments is written with what is to be set, and read back as a launch."""
    asked = ("log", f"tests/data/cases/{log}", "-L", "8k", "--emit", "cmd")
    text = run(*asked).out
    assert all(flag in text for flag in flags)
    script = tmp_path / "serve.sh"
    script.write_text(text, encoding="utf-8")
    read = run("check", str(script), "--json", "--allow-unresolved", "--fail-on", "never").document
    assert len(read["deployments"]) == 1
    assert read["deployments"][0]["model"] in text


def test_a_log_without_a_boot_is_no_launch() -> None:
    assert run("log", "README.md", "--emit", "cmd").err.startswith("error: --emit: no boot is in the log")


ARGUMENTS = """\
(APIServer pid=1) INFO 09-01 10:00:00 [utils.py:278] non-default args: {{'model': 'Qwen/Qwen3.6-27B', {last}}}
(EngineCore pid=107) INFO 09-01 10:00:10 [core.py:114] Initializing a V1 LLM engine (v{version}) with config: \
model='Qwen/Qwen3.6-27B', tensor_parallel_size=1
(EngineCore pid=107) INFO 09-01 10:01:00 [gpu_worker.py:508] Available KV cache memory: 5.98 GiB
"""
REFUSED = """\
(EngineCore pid=107) ERROR 09-01 10:01:01 [core.py:900] ValueError: To serve at least one request with the models's \
max seq len (262144), (16.55 GiB KV cache is needed, which is larger than the available KV cache memory (5.98 GiB). \
Based on the available memory, the estimated maximum model length is 90000. Try increasing `gpu_memory_utilization`
"""


def of_log(tmp_path: Path, form: str, last: str, version: str = "0.24.1", more: str = "") -> str:
    log = tmp_path / "boot.log"
    log.write_text(ARGUMENTS.format(last=last, version=version) + more, encoding="utf-8")
    return run("log", str(log), "--emit", form).out


@pytest.mark.parametrize(
    ("last", "flag"),
    [
        ("'tensor_parallel_size': 2", "-tp 2"),
        ("'max_num_seqs': 4", "--max-num-seqs 4"),
        ("'gpu_memory_utilization': 0.8", "--gpu-memory-utilization 0.8"),
        ("'max_num_seqs': 4, 'max_model_len': 32768", "--max-model-len 32768"),
    ],
)
def test_the_last_argument_that_a_log_prints_is_written_too(tmp_path: Path, last: str, flag: str) -> None:
    """The brace that closes the arguments ends a number, as a comma does."""
    assert flag.removeprefix("-tp") in of_log(tmp_path, "cmd", last)


@pytest.mark.parametrize("version", ["0.27.1", "0.24.1", "0.24.0"])
def test_the_image_is_of_the_release_that_the_log_names(tmp_path: Path, version: str) -> None:
    text = of_log(tmp_path, "compose", "'max_num_seqs': 4", version)
    assert f"image: vllm/vllm-openai:v{version}\n" in text and "newest known" not in text


def test_an_image_that_the_log_does_not_name_is_said_to_be_assumed(tmp_path: Path) -> None:
    text = of_log(tmp_path, "kubernetes", "'max_num_seqs': 4", "0.24.2.dev7+gabc")
    assert "the log is of vLLM 0.24.2.dev7" in text.splitlines()[0] and "the newest known here" in text.splitlines()[0]
    assert "newest" not in of_log(tmp_path, "cmd", "'max_num_seqs': 4", "0.24.2.dev7+gabc")


def test_a_failed_boot_is_written_with_what_mends_it(tmp_path: Path) -> None:
    """The length that the refusal names in place of the one that failed, and the sequences that start with it."""
    text = of_log(tmp_path, "cmd", "'max_model_len': 262144", more=REFUSED)
    assert "--max-model-len 90000" in text and "262144" not in text.partition("\n")[2]
    assert text.startswith("# --max-model-len 90000 --max-num-seqs 124: one request of 262,144 tokens does not fit")


def test_a_failure_that_no_flag_is_known_for_is_said(tmp_path: Path) -> None:
    died = (
        "(EngineCore pid=107) ERROR 09-01 10:01:02 [core.py:900] ValueError: No available memory for the cache blocks\n"
    )
    text = of_log(tmp_path, "cmd", "'max_model_len': 262144", more=died)
    assert text.startswith("# nothing to set is known that mends this: no memory for the cache")
