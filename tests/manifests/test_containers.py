"""Containers: what compose files, units and `docker run` say of image, mounts and entrypoint; what starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment_files import flags, read, write

from hybridcalc.checks.run import check_paths
from hybridcalc.checks.settings import Settings
from hybridcalc.manifests.find import read_file


def test_compose_interpolates_from_env_file_and_defaults_and_reads_merged_services() -> None:
    listed, folded, shell = read("compose/compose.yaml")
    assert [d.name for d in (listed, folded, shell)] == ["list", "folded", "shell"]
    assert "--max-mamba-cache-size=64" in listed.words
    assert "--tp=2" in listed.words
    assert listed.hardware.gpus == 2
    assert listed.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "0"
    assert folded.words[-3:] == ("--trust-remote-code", "--max-running-requests", "32")
    assert flags(folded)["--max-running-requests"] == 32
    assert shell.words == ("Qwen/Qwen3.6-35B-A3B", "--max-model-len", "65536", "--max-num-seqs", "128")


def test_compose_without_a_value_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "services:\n  a:\n    image: lmsysorg/sglang\n"
        "    command: [--model-path, kimi-k3, --tp, '${TP}', --max-running-requests, '$${M}']\n"
    )
    (only,) = read(tmp_path / "compose.yaml")
    assert [bool(word.why) for word in only.words] == [False, False, False, True, False, False]
    assert only.words[3].why == "TP comes from outside"
    assert only.words[5] == "${M}"
    (given,) = read(tmp_path / "compose.yaml", TP="8")
    assert given.words[3] == "8"


def test_container_runs_nested_shells_and_several_launches() -> None:
    first, second = read("shell/docker-run.sh")
    assert (first.place.line, second.place.line) == (14, 19)
    assert first.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"
    assert "?$CTX" in flags(first)
    prefill, decode = read("shell/slurm-pd.sbatch")
    assert ("prefill" in prefill.words, "decode" in decode.words) == (True, True)
    assert decode.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"


def test_dockerfiles_in_both_forms() -> None:
    (stages,) = read("docker/Dockerfile")
    assert (stages.engine, stages.name, stages.words[0]) == (
        "vllm",
        "vllm/vllm-openai:v0.33.0",
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    )
    assert flags(stages)["--max-num-seqs"] == 11
    (shell,) = read("docker/shell-form.Dockerfile")
    assert shell.words[2:4] == ("--tp", "2")
    assert flags(shell)["--page-size"] == 5


def test_containers_that_units_start(tmp_path: Path) -> None:
    (unit,) = write(
        tmp_path,
        "a.service",
        (
            "[Service]\nExecStart=/usr/bin/docker run --rm --gpus all -v /d/Kimi-K3:/m \\\n"
            "  vllm/vllm-openai:v0.24.0 --model /m --max-num-seqs 8\n"
        ),
    )
    assert (unit.engine, unit.image, unit.model) == ("vllm", "vllm/vllm-openai:v0.24.0", "/d/Kimi-K3")
    (quadlet,) = write(
        tmp_path,
        "b.container",
        (
            "[Container]\nImage=docker.io/lmsysorg/sglang:v0.5.16\nVolume=/d/Kimi-K3:/m:ro\nEnvironment=A=1\n"
            "Exec=sglang serve --model-path /m \\\n  --tp 8\n"
        ),
    )
    assert (quadlet.words, quadlet.words[-1].place.line) == (("--model-path", "/m", "--tp", "8"), 6)
    assert (quadlet.model, quadlet.env["A"].text) == ("/d/Kimi-K3", "1")


def test_compose_mounts_name_the_model(tmp_path: Path) -> None:
    short, long = write(
        tmp_path,
        "compose.yaml",
        (
            "services:\n  a:\n    image: lmsysorg/sglang\n    command: --model-path /model --tp 8\n"
            "    volumes: ['${HF:-/data}/Kimi-K3:/model:ro']\n"
            "  b:\n    image: lmsysorg/sglang\n    command: --model-path /m/x --tp 8\n"
            "    volumes: [{type: bind, source: ./models, target: /m}]\n"
        ),
    )
    assert (short.model, long.model) == ("/data/Kimi-K3", "./models/x")


@pytest.mark.parametrize(
    "tail",
    [
        "--entrypoint bash vllm/vllm-openai:v0.20.0 -lc 'vllm serve {}'",
        "--entrypoint=/bin/sh vllm/vllm-openai:v0.20.0 -c 'set -e; exec vllm serve {}'",
        "--entrypoint python3 vllm/vllm-openai:v0.20.0 -m vllm.entrypoints.openai.api_server --model {}",
        "--entrypoint vllm vllm/vllm-openai:v0.20.0 serve {}",
        "--entrypoint '' vllm/vllm-openai:v0.20.0 vllm serve {}",
    ],
)
def test_the_entrypoint_of_docker_run_stands_before_its_arguments(tmp_path: Path, tail: str) -> None:
    text = "docker run --gpus all " + tail.format("Qwen/Qwen3-Next-80B-A3B-Instruct --max-model-len 8192\n")
    (found,) = write(tmp_path, "run.sh", text.replace("\n'", "'"))
    assert found.words[-2:] == ("--max-model-len", "8192")
    assert "Qwen/Qwen3-Next-80B-A3B-Instruct" in found.words
    assert found.launch.image == "vllm/vllm-openai:v0.20.0"


def test_another_program_in_an_engine_s_image_is_no_launch(tmp_path: Path) -> None:
    text = "docker run --entrypoint nvidia-smi vllm/vllm-openai:v0.20.0 --query-gpu=name\n"
    assert write(tmp_path, "run.sh", text) == ()


def test_an_overlay_of_a_compose_file_starts_nothing_by_itself(tmp_path: Path) -> None:
    text = "services:\n  vllm:\n    entrypoint: [python3, -m, vllm.entrypoints.openai.api_server]\n"
    assert write(tmp_path, "compose.rocm.yml", text) == ()
    (found,) = write(tmp_path, "compose.yml", text + "    image: vllm/vllm-openai:v0.20.0\n")
    assert found.words == ()


def test_an_unknown_image_with_a_model_path_is_no_engine_s(tmp_path: Path) -> None:
    text = "services:\n  max:\n    image: ${IMAGE}\n    command: --model-path org/name --port 8000\n"
    assert write(tmp_path, "compose.yml", text) == ()
    (found,) = write(tmp_path, "compose.yml", text.replace("--port 8000", "--mem-fraction-static 0.8"))
    assert found.engine == "sglang"


def test_a_container_of_llama_cpp_may_be_told_by_variables_alone(tmp_path: Path) -> None:
    service = "services:\n  llm:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    environment:\n"
    (tmp_path / "compose.yaml").write_text(
        service + "      LLAMA_ARG_MODEL: /m/qwen3.5-27b.gguf\n      OTHER: 1\n", "utf-8"
    )
    (found,) = read(tmp_path / "compose.yaml")
    assert (found.engine, found.words, found.model, found.place.line) == ("llama.cpp", (), "/m/qwen3.5-27b.gguf", 5)
    (tmp_path / "compose.yaml").write_text(service + "      OTHER: 1\n", "utf-8")
    assert read(tmp_path / "compose.yaml") == ()


SWAP = """\
startPort: 9000
macros:
  server: |
    # wherever it lies
    /app/llama-server --port ${PORT}
  folder: /models
  context: 4096
models:
  first:
    macros: {context: 8192}
    cmd: |
      ${server}
      -m ${folder}/${MODEL_ID}.gguf
      # of each
      -c ${context} -np ${slots}
  second:
    env: [CUDA_VISIBLE_DEVICES=0]
    cmd: docker run --name ${MODEL_ID} vllm/vllm-openai:v0.33.0 --model org/m --max-model-len ${context} --port ${PORT}
"""


def test_macros_of_llama_swap_are_filled_in(tmp_path: Path) -> None:
    """A model's own before the file's; the port counts from startPort; what no macro has is unresolved, by name."""
    (tmp_path / "config.yaml").write_text(SWAP, "utf-8")
    found = read_file(str(tmp_path / "config.yaml"), {}).deployments
    assert [(one.engine, one.name) for one in found] == [("llama.cpp", "first"), ("vllm", "second")]
    shown = [" ".join(f"?{word}" if word.why else str(word) for word in one.words) for one in found]
    assert shown == [
        "--port 9000 -m /models/first.gguf -c 8192 -np ?${slots}",
        "--model org/m --max-model-len 4096 --port 9000",
    ]
    assert "slots comes from outside" in str(found[0].words[-1].why)
    given = read_file(str(tmp_path / "config.yaml"), {"slots": "4"}).deployments[0]
    assert [str(word) for word in given.words[-2:]] == ["-np", "4"] and not given.words[-1].why
    assert found[0].words[2].place.line == 13 and list(found[1].env) == ["CUDA_VISIBLE_DEVICES"]


def test_macros_that_hold_each_other_end(tmp_path: Path) -> None:
    text = "macros: {a: '${b}${b}', b: '${a}${a}'}\nmodels: {m: {cmd: 'llama-server ${a} -c 10'}}\n"
    (tmp_path / "config.yaml").write_text(text, "utf-8")
    [found] = read_file(str(tmp_path / "config.yaml"), {}).deployments
    assert found.words[0].why and [str(word) for word in found.words[1:]] == ["-c", "10"]


IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda"
BY_VARIABLES = {
    "run.sh": f"docker run --gpus all -e LLAMA_ARG_MODEL=/m/x.gguf --env LLAMA_ARG_CTX_SIZE=4096 {IMAGE}\n",
    "x.container": f"[Container]\nImage={IMAGE}\nEnvironment=LLAMA_ARG_MODEL=/m/x.gguf LLAMA_ARG_CTX_SIZE=4096\n",
    "x.yaml": f"containers:\n- image: {IMAGE}\n  env:\n  - {{name: LLAMA_ARG_MODEL, value: /m/x.gguf}}\n"
    "  - {name: LLAMA_ARG_CTX_SIZE, value: '4096'}\n",
}


@pytest.mark.parametrize("name", BY_VARIABLES)
def test_variables_alone_start_an_engine_that_reads_them(name: str, tmp_path: Path) -> None:
    """In a docker run, a Quadlet and a container."""
    (tmp_path / name).write_text(BY_VARIABLES[name], "utf-8")
    [found] = read_file(str(tmp_path / name), {}).deployments
    assert (found.engine, list(found.words), found.launch.image) == ("llama.cpp", [], IMAGE)
    assert {key: setting.text for key, setting in found.env.items()} == {
        "LLAMA_ARG_MODEL": "/m/x.gguf",
        "LLAMA_ARG_CTX_SIZE": "4096",
    }


def test_an_image_without_such_variables_starts_none(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"docker run -e OTHER=1 {IMAGE}\n", "utf-8")
    assert read_file(str(tmp_path / "run.sh"), {}).deployments == ()


OWN_IMAGES = {
    "llama.cpp": "docker run --gpus all me/llama -m /m/x.gguf --ctx-size 4096 --n-gpu-layers 99\n",
    "sglang": "docker run registry.local/serving:3 --model-path org/m --mem-fraction-static 0.8\n",
    "vllm": "docker run ghcr.io/${NAMESPACE}/serving:1 --model org/m --max-num-seqs 4 --gpu-memory-utilization 0.9\n",
}


@pytest.mark.parametrize("engine", OWN_IMAGES)
def test_flags_say_what_an_image_of_somebodys_own_starts(engine: str, tmp_path: Path) -> None:
    """Also where a part of the image's name is not known."""
    (tmp_path / "run.sh").write_text(OWN_IMAGES[engine], "utf-8")
    [found] = read_file(str(tmp_path / "run.sh"), {}).deployments
    assert found.engine == engine and found.words[0].startswith("-m" if engine == "llama.cpp" else "--model")


@pytest.mark.parametrize("line", ["docker run db -c max_connections=9", "docker run web --port 80 --host 0.0.0.0"])
def test_other_images_start_no_engine(line: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(line + "\n", "utf-8")
    assert read_file(str(tmp_path / "run.sh"), {}).deployments == ()


def test_a_variable_that_compose_hands_on_is_unset_unless_the_caller_sets_it(tmp_path: Path) -> None:
    """`environment: [BYTES]` hands on the caller's value; a default behind it counts where there is none."""
    script = 'A=(); if [ -n "$${BYTES:-}" ]; then A=(--max-num-seqs "$${BYTES}"); fi; exec vllm serve org/m "$${A[@]}"'
    text = f"services:\n  s:\n    environment:\n    - BYTES\n    entrypoint: [bash, -c, '{script}']\n"
    (tmp_path / "compose.yaml").write_text(text, "utf-8")
    [found] = read_file(str(tmp_path / "compose.yaml"), {}).deployments
    assert [str(word) for word in found.words] == ["org/m"]
    [found] = read_file(str(tmp_path / "compose.yaml"), {"BYTES": "4"}).deployments
    assert [str(word) for word in found.words] == ["org/m", "--max-num-seqs", "4"]


def test_a_script_that_is_a_comment_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {s: {entrypoint: [bash, -c, '# vllm serve m']}}\n", "utf-8")
    assert read_file(str(tmp_path / "compose.yaml"), {}).deployments == ()


@pytest.mark.parametrize(
    ("image", "severity"), [("ghcr.io/ggml-org/llama.cpp:server", "error"), ("me/fork", "warning")]
)
@pytest.mark.parametrize("flag", ["--cache-type-k kvarn4", "--spec-type dflash"])
def test_flags_of_a_fork_are_no_errors(image: str, severity: str, flag: str, tmp_path: Path) -> None:
    """Another's build of llama.cpp may have cache types and ways of drafting of its own."""
    line = f"docker run {image} -m /m/Qwen3.6-27B-Q4_K_M.gguf --ctx-size 4096 --n-gpu-layers 99 {flag}\n"
    (tmp_path / "run.sh").write_text(line, "utf-8")
    findings = check_paths([str(tmp_path / "run.sh")], Settings(), {}).findings
    assert [(one.finding.rule, one.finding.severity) for one in findings if one.finding.rule == "HC071"] == [
        ("HC071", severity)
    ]
