"""Every kind of deployment file: the right engine, the right words, each at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment_files import DATA, flags, opened, read, write
from present import present

from hybridcalc.manifests import Passed
from hybridcalc.manifests.find import find_files, read_file


def test_a_kubernetes_deployment_has_each_flag_at_its_line() -> None:
    (server,) = read("kubernetes/k3-eight-slots.yaml")
    assert (server.engine, server.kind, server.name, server.replicas) == ("sglang", "Deployment", "k3/server", 2)
    assert flags(server) == {
        "--model-path": 16,
        "moonshotai/Kimi-K3": 17,
        "--tp": 18,
        "8": 23,
        "--max-running-requests": 20,
        "4": 21,
        "--max-mamba-cache-size": 22,
    }
    assert (server.words[-1].place.column, server.hardware.label, server.hardware.gpus) == (16, "NVIDIA-B300", 8)


def test_a_leader_worker_set_is_read_through_its_config_map_and_size() -> None:
    """bash -c block, $(VAR) of envFrom, ${VAR} in the script, LWS_GROUP_SIZE from the set's own size."""
    leader, worker = read("kubernetes/lws-kimi.yaml")
    assert (leader.hardware.nodes, leader.hardware.gpus, leader.hardware.label) == (2, 8, "NVIDIA-H100-80GB-HBM3")
    found = flags(leader)
    assert (found["moonshotai/Kimi-K3"], found["--max-running-requests"], found["64"]) == (49, 55, 56)
    assert leader.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"
    assert "--model-path=moonshotai/Kimi-K3" in worker.words
    assert "--nnodes=2" in worker.words


def test_ray_service_holds_yaml_in_yaml() -> None:
    (llm,) = read("kubernetes/rayservice-nemotron.yaml")
    assert (llm.engine, llm.model, llm.hardware.label) == ("vllm", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "H100")
    assert flags(llm)["--tensor-parallel-size"] == 18
    assert flags(llm)["131072"] == 19


def test_a_folded_command_in_a_job() -> None:
    (job,) = read("kubernetes/job-vllm-string.yaml")
    assert job.words[:3] == ("Qwen/Qwen3.6-35B-A3B", "--tensor-parallel-size", "2")
    assert flags(job)["--max-num-seqs"] == 16
    assert job.words[6] == "512"
    assert job.words[-1] == '{"method": "mtp", "num_speculative_tokens": 3}'


def test_a_script_with_arrays_and_a_condition() -> None:
    (server,) = read("shell/launch-k3.sh")
    found = flags(server)
    assert (found["--tp-size"], found["--max-mamba-cache-size"], found["/models/kimi-k3"]) == (10, 25, 8)
    assert found["?${SPEC_ARGS[@]}"] == 26
    assert server.words[-3].why == "a condition adds to it (line 15)"
    assert server.env["SGLANG_MAMBA_CONV_DTYPE"].text == "bfloat16"
    (given,) = read("shell/launch-k3.sh", SPEC_ARGS="--speculative-algorithm EAGLE")
    assert "--speculative-algorithm" in given.words


def test_dynamo_graphs_skip_their_front_ends() -> None:
    decode, prefill = read("dynamo/disagg-v1alpha1.yaml")
    assert [d.name for d in (decode, prefill)] == ["sglang-disagg/decode", "sglang-disagg/prefill"]
    assert (decode.hardware.gpus, decode.hardware.nodes, prefill.replicas) == (8, 2, 0)
    assert flags(decode)["--max-running-requests"] == 45
    (worker,) = read("dynamo/agg-v1beta1.yaml")
    assert (worker.engine, worker.hardware.label) == ("vllm", "nvidia-h200-141gb")


def test_kserve_starts_what_its_fields_say() -> None:
    (service,) = read("kserve/llmisvc.yaml")
    assert (service.engine, service.model) == ("vllm", "hf://Qwen/Qwen3.6-35B-A3B")
    assert service.words == ("--tensor-parallel-size", "2", "--max-model-len", "65536", "--max-num-seqs", "64")
    nemotron, k3 = read("kserve/isvc.yaml")
    assert (nemotron.engine, nemotron.model) == ("vllm", "hf://nvidia/NVIDIA-Nemotron-Nano-12B-v2")
    assert (k3.engine, "--max-mamba-cache-size=8" in k3.words) == ("sglang", True)


def test_typed_fields_of_custom_resources() -> None:
    (server,) = read("custom/sglang-operator.yaml")
    assert (server.engine, server.model, server.replicas) == ("sglang", "Qwen/Qwen3-Next-80B-A3B-Instruct", 0)
    assert flags(server)["--max-mamba-cache-size"] == 12
    assert server.words[-3:] == ("--kv-cache-dtype", "fp8_e4m3", "--page-size=1")
    assert "--disable-radix-cache" not in server.words
    (values,) = read("custom/production-stack-values.yaml")
    assert values.words[:3] == ("--no-enable-prefix-caching", "--max-model-len", "16384")
    assert "--mamba-ssm-cache-dtype=float32" in values.words


def test_engine_files_alone_and_named_by_a_script() -> None:
    (sglang,) = read("engine/sglang.yaml")
    assert (sglang.engine, flags(sglang)["--max-mamba-cache-size"]) == ("sglang", 6)
    assert "--trust-remote-code" in sglang.words
    (vllm,) = read("engine/vllm.yaml")
    assert vllm.words[-2] == '{"method": "mtp", "num_speculative_tokens": 2}'
    (start,) = read("engine/start.sh")
    assert start.words[-2:] == ("--max-mamba-cache-size", "161")
    assert start.words[0].place.path.endswith("sglang.yaml")


def test_a_config_file_from_a_config_map() -> None:
    """--config /etc/x/worker.yaml is the entry of that name of a ConfigMap among the documents."""
    (worker,) = read("dynamo/config-map.yaml")
    assert (worker.engine, flags(worker)["--max-mamba-cache-size"]) == ("sglang", 10)
    assert "--config" not in worker.words


def test_systemd_units() -> None:
    (unit,) = read("systemd/sglang.service")
    assert unit.words[:4] == ("--model-path", "Qwen/Qwen3.5-397B-A17B", "--tp", "4")
    assert flags(unit)["--max-mamba-cache-size"] == 11
    assert unit.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.*")), ids=lambda path: path.name)
def test_every_word_stands_where_it_says(path: Path) -> None:
    """The text at a word's place is the word, or the reference it came from."""
    for deployment in read_file(str(path), {}).deployments:
        for word in [word for word in deployment.words if "controller" not in getattr(word, "why", "")]:
            text = word.source.text[word.begin : word.end]
            place = word.place
            assert word.source.text.splitlines()[place.line - 1][place.column - 1 :].startswith(text.split("\n")[0])
            known = str(word).lstrip("-").replace("no-", "", 1)
            kebab = "".join(f"-{c.lower()}" if c.isupper() else c for c in text).replace("_", "-")
            assert (
                text in ("", str(word))
                or "$" in text
                or str(word) in text
                or known in kebab
                or "\\" in text
                or text in known
            )


def test_a_folder_is_walked_once_and_in_order() -> None:
    found = [path for path in find_files([str(DATA), str(DATA / "shell")]) if isinstance(path, str)]
    assert found == sorted(found)
    assert len(found) == len(set(found))
    assert all(".env" not in path for path in found)


def test_manifests_that_a_script_applies() -> None:
    (pod,) = read("shell/kubectl-apply.sh")
    assert (pod.kind, pod.words[3], flags(pod)["--max-mamba-cache-size"]) == ("Pod", "8", 11)


def test_scripts_in_fields_of_their_own() -> None:
    """A task's ``run: |`` under its own variables, on the accelerators it asks for."""
    (task,) = read("custom/task.yaml")
    assert (task.engine, task.words[1], task.hardware.label, task.hardware.gpus) == (
        "sglang",
        "moonshotai/Kimi-K3",
        "H200",
        8,
    )
    assert flags(task)["8"] == 12  # N slots; the accelerators above say the ranks
    assert task.words[2:4] == ("--tp", "8")


def test_values_of_a_chart_that_names_its_model_apart() -> None:
    (decode,) = read("custom/model-service-values.yaml")
    assert (decode.engine, decode.model) == ("vllm", "hf://Qwen/Qwen3.6-35B-A3B")
    assert decode.words[:2] == ("--tensor-parallel-size", "2")


def test_a_helper_script_before_the_launch_is_passed_over() -> None:
    (leader,) = read("kubernetes/lws-vllm.yaml")
    assert (leader.place.line, leader.hardware.nodes) == (25, 2)
    assert leader.words[-2:] == ("--pipeline_parallel_size", "2")


def test_arguments_that_a_controller_makes_are_unknown() -> None:
    (workspace,) = read("custom/workspace.yaml")
    assert workspace.words[-3:-1] == ("--max-model-len", "65536")
    assert workspace.words[-1].why == "KAITO's controller makes them"
    assert (workspace.model, workspace.hardware.label) == ("falcon-h1-7b", "Standard_NC24ads_A100_v4")


def test_shells_inside_compose_and_both_branches_of_a_script() -> None:
    folded, block = read("compose/shells.yaml")
    assert flags(folded)["--max-mamba-cache-size"] == 7
    assert block.words[:3] == ("Qwen/Qwen3.6-35B-A3B", "--max-model-len", "8192")
    assert flags(block)["?${SEQS}"] == 19
    assert [d.place.line for d in read("kubernetes/two-branches.yaml")] == [14, 16]


def test_kserve_keeps_its_own_flags(tmp_path: Path) -> None:
    (tmp_path / "isvc.yaml").write_text(
        "kind: InferenceService\nspec:\n  predictor:\n    model:\n      modelFormat: {name: huggingface}\n"
        "      args: [--model_name=x, --model_id=Qwen/Qwen3.6-35B-A3B, --max-model-len=8192]\n"
    )
    (service,) = read(tmp_path / "isvc.yaml")
    assert service.words == ("--model=Qwen/Qwen3.6-35B-A3B", "--max-model-len=8192")


def test_placeholders_of_templates_are_unknown(tmp_path: Path) -> None:
    """{{ x }} in a list, in a script, and a workflow's ${{ x }}: never a value."""
    (tmp_path / "pod.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n"
        "    - command: [sglang, serve, kimi-k3]\n"
        "      args: [--tp, '{{ .Values.tp }}', '--page-size={{.Values.page}}']\n"
        "    - command: [bash, -c]\n      args:\n        - |\n"
        "          sglang serve kimi-k3 --tp {{ .Values.tp | quote }} --pp ${{ inputs.pp }}\n"
    )
    listed, script = read(tmp_path / "pod.yaml")
    assert [word.why for word in listed.words[2:]] == ["a template decides it"] * 2
    assert [word.why for word in script.words if word.why] == ["a template decides it"] * 2
    assert flags(script)["--pp"] == 9


def test_files_that_a_script_writes(tmp_path: Path) -> None:
    """A unit, a compose file and a Dockerfile in here-documents, each at its own lines."""
    unit, compose, image = write(
        tmp_path,
        "install.sh",
        (
            "TP=8\ncat > /etc/systemd/system/k3.service <<EOF\n[Service]\n"
            "ExecStart=/x/sglang serve kimi-k3 \\\\\n --tp $TP\nEOF\n"
            "cat <<'EOF' | tee compose.yaml\nservices:\n  a:\n    image: lmsysorg/sglang\n"
            "    command: --model-path kimi-k3 --tp ${TP:-4}\nEOF\n"
            'cat > Dockerfile <<EOF\nFROM lmsysorg/sglang\nCMD ["sglang", "serve", "kimi-k3"]\nEOF\n'
        ),
    )
    assert (unit.kind, unit.words, unit.words[2].place.line) == ("systemd", ("kimi-k3", "--tp", "8"), 5)
    assert (compose.kind, compose.words[-1], compose.words[-1].place.line) == ("compose", "4", 11)
    assert (image.kind, image.words[0].place.line) == ("Dockerfile", 15)


SLURM = {
    "gres": ("--gres=gpu:h100:2", "h100", 2, 1), "nodes": ("-N 2\n#SBATCH --gpus-per-node=8", None, 8, 2),
    "total": ("--nodes=2\n#SBATCH --gpus=h200:16", "h200", 8, 2), "no gpu": ("--gres=nic:2", None, None, 1),
    "constraint": ("-C h100\n#SBATCH -G4", "h100", 4, 1),
}  # fmt: skip


@pytest.mark.parametrize(("line", "label", "gpus", "nodes"), SLURM.values(), ids=SLURM)
def test_gpus_of_a_batch_job(tmp_path: Path, line: str, label: str | None, gpus: int | None, nodes: int) -> None:
    (job,) = write(tmp_path, "a.sbatch", f"#!/bin/bash\n#SBATCH {line}\nsrun vllm serve kimi-k3 --max-num-seqs 8\n")
    assert (job.hardware.label, job.hardware.gpus, job.hardware.nodes) == (label, gpus, nodes)


ARGUMENTS = """kind: Pod
spec:
  containers:
    - command: [sglang, serve]
      env: [{name: M, value: "${MODEL}"}]
      args: [%s]
"""


@pytest.mark.parametrize(
    "argument",
    [
        '"--max-mamba-cache-size=${SLOTS}"',
        '--max-mamba-cache-size, "$SLOTS"',
        '--max-mamba-cache-size, "${SLOTS:?}"',
        '"--max-mamba-cache-size=$(SLOTS)"',
        '--max-mamba-cache-size, "{SLOTS}"',
        '--max-mamba-cache-size, "<SLOTS>"',
        '"--max-mamba-cache-size=@SLOTS@"',
        '--max-mamba-cache-size, "__SLOTS__"',
    ],
)
def test_references_that_no_shell_reads_are_templates(tmp_path: Path, argument: str) -> None:
    """Flux, envsubst, kustomize and their like fill them in; --set does so here."""
    (pod,) = write(tmp_path, "a.yaml", ARGUMENTS % argument)
    (text,) = opened(pod)
    assert ("SLOTS" in text, next(w for w in pod.words if w == text).place.line) == (True, 6)
    (pod,) = write(tmp_path, "a.yaml", ARGUMENTS % argument, SLOTS="8")
    assert "=".join(pod.words) == "--max-mamba-cache-size=8"


@pytest.mark.parametrize("argument", ["${SLOTS:=4}", "${SLOTS-4}"])
def test_a_reference_with_a_default_has_it_where_nothing_is_given(tmp_path: Path, argument: str) -> None:
    written = ARGUMENTS % f'--max-mamba-cache-size, "{argument}"'
    assert [str(word) for pod in write(tmp_path, "a.yaml", written) for word in pod.words][1] == "4"
    assert [str(word) for pod in write(tmp_path, "a.yaml", written, SLOTS="8") for word in pod.words][1] == "8"


def test_a_model_that_a_template_names(tmp_path: Path) -> None:
    (pod,) = write(tmp_path, "a.yaml", ARGUMENTS % "--model-path, $(M)")
    assert opened(pod) == {"${MODEL}": "MODEL comes from outside"}
    values = "engine:\n  vllmConfig: {maxModelLen: 8192, maxNumSeqs: 8}\n  modelURL: ${MODEL}\n"
    (typed,) = write(tmp_path, "b.yaml", values)
    assert (typed.model, opened(typed)) == (None, {"${MODEL}": "MODEL comes from outside"})
    (typed,) = write(tmp_path, "b.yaml", values, MODEL="kimi-k3")
    assert typed.model == "kimi-k3"


def test_a_recipe_fills_its_command_from_its_defaults(tmp_path: Path) -> None:
    text = (
        'model: kimi-k3\ndefaults:\n  tp: 4\n  spec: \'{"method": "mtp"}\'\ncommand: |\n'
        "  vllm serve kimi-k3 --tensor-parallel-size {tp} --max-num-seqs {seqs} --speculative-config {spec}\n"
    )
    (recipe,) = write(tmp_path, "a.yaml", text)
    assert opened(recipe) == {"{seqs}": "a template decides it"}
    assert (recipe.words[2], present(recipe.words[2].written).line, recipe.words[-1]) == ("4", 3, '{"method": "mtp"}')
    (recipe,) = write(tmp_path, "a.yaml", text, seqs="8", tp="2")
    assert ("8" in recipe.words, recipe.words[2]) == (True, "2")


RUNTIME = """apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: rt}
spec:
  containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.24.0
      command: [python, -m, vllm.entrypoints.openai.api_server]
      args: [--model=/mnt/models, --max-num-seqs=64]
      env: [{name: A, value: "1"}]
"""
SERVICE = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: svc}
spec:
  predictor:
    model:
      runtime: rt
      modelFormat: {name: vllm}
      storageUri: hf://moonshotai/Kimi-K3
      args: [--max-model-len=8192]
"""


@pytest.mark.parametrize("service", [SERVICE, SERVICE.replace("      args: [--max-model-len=8192]\n", "")])
def test_a_service_is_read_with_the_runtime_it_names(tmp_path: Path, service: str) -> None:
    """In one file or two; the runtime alone is then no deployment of its own."""
    (one,) = write(tmp_path, "a.yaml", RUNTIME + "---\n" + service)
    own = ("--max-model-len=8192",) if "args" in service else ()
    assert one.words == ("--model=/mnt/models", "--max-num-seqs=64", *own)
    assert (one.name, one.model, one.image, one.env["A"].text) == (
        "svc",
        "hf://moonshotai/Kimi-K3",
        "vllm/vllm-openai:v0.24.0",
        "1",
    )
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "service.yaml").write_text(service)
    assert write(tmp_path / "apart", "runtime.yaml", RUNTIME) == ()
    (apart,) = read(tmp_path / "apart" / "service.yaml")
    assert (apart.words, apart.image) == (one.words, one.image)


PARALLEL = {
    "workers on nodes": ("{tensor: 4, data: 8, dataLocal: 2}", "", 4),
    "all on one": ("{tensor: 4, data: 2}", "", 1),
    "stages on nodes": ("{tensor: 8, pipeline: 2}", "  worker: {containers: [{name: main}]}\n", 2),
    "stages on one": ("{tensor: 4, pipeline: 2}", "", 1), "nonsense": ("{data: 8, dataLocal: 0}", "", 1),
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "more", "nodes"), PARALLEL.values(), ids=PARALLEL)
def test_kserve_spreads_a_server_over_nodes(tmp_path: Path, sizes: str, more: str, nodes: int) -> None:
    server, *_ = write(
        tmp_path,
        "a.yaml",
        (
            "kind: LLMInferenceService\nmetadata: {name: a}\nspec:\n"
            f"  model: {{uri: 'oci://registry/modelcar:1', name: kimi-k3}}\n  parallelism: {sizes}\n{more}"
            "  template:\n    containers:\n      - {name: main, resources: {limits: {nvidia.com/gpu: '8'}}}\n"
        ),
    )
    assert (server.hardware.nodes, server.model) == (nodes, "kimi-k3")


def test_the_image_of_chart_values(tmp_path: Path) -> None:
    entry, block = write(
        tmp_path,
        "values.yaml",
        (
            "servingEngineSpec:\n  modelSpec:\n    - repository: vllm/vllm-openai\n      tag: v0.24.0\n"
            "      modelURL: kimi-k3\n      vllmConfig: {maxModelLen: 8192, extraArgs: [--mamba-cache-mode, all]}\n"
            "other:\n  image: {repository: vllm/vllm-openai, tag: v0.25.0}\n"
            "  vllmConfig: {model: kimi-k3, maxModelLen: 8192}\n"
        ),
    )
    assert (entry.image, block.image) == ("vllm/vllm-openai:v0.24.0", "vllm/vllm-openai:v0.25.0")


def test_skypilot_and_dstack_tasks(tmp_path: Path) -> None:
    (sky,) = write(
        tmp_path,
        "sky.yaml",
        (
            "resources: {accelerators: 'A100:8'}\nenvs: {M: kimi-k3}\n"
            "run: |\n  vllm serve $M --data-parallel-size $((SKYPILOT_NUM_GPUS_PER_NODE / 2))\n"
        ),
    )
    assert (sky.hardware.label, sky.hardware.gpus, sky.words[-1]) == ("A100-40GB", 8, "4")
    (dstack,) = write(
        tmp_path,
        "task.dstack.yml",
        ("type: task\nenv:\n  - M=kimi-k3\ncommands:\n  - pip install sglang\n  - sglang serve $M --tp 8\n"),
    )
    assert (dstack.words, dstack.words[0].place.line) == (("kimi-k3", "--tp", "8"), 6)


def test_a_chart_value_that_names_another(tmp_path: Path) -> None:
    text = """\
modelArtifacts:
  name: Qwen/Qwen3-Next-80B-A3B-Instruct
  uri: hf://"{{ .Values.modelArtifacts.name }}"
tracing:
  vllm: {collectDetailedTraces: all}
decode:
  parallelism: {tensor: 2}
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d-cuda:latest
      modelCommand: vllmServe
      args: [--max-model-len, "8192"]
"""
    (found,) = write(tmp_path, "values.yaml", text)
    assert found.model == "hf://Qwen/Qwen3-Next-80B-A3B-Instruct"
    assert found.words == ("--tensor-parallel-size", "2", "--max-model-len", "8192")
    (found,) = write(tmp_path, "values.yaml", text.replace(".Values.modelArtifacts.name", ".Values.elsewhere"))
    assert found.model is None


def test_notebooks_and_guides_of_a_folder_are_named_where_they_start_an_engine(tmp_path: Path) -> None:
    cell = '{"cells": [{"cell_type": "code", "source": [\n    "%s\\n",\n    "2"\n]}]}'
    (tmp_path / "serve.ipynb").write_text(cell % "!vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct")
    (tmp_path / "llm.ipynb").write_text(cell % "from vllm import LLM; llm = LLM(model='x')")
    (tmp_path / "other.ipynb").write_text(cell % "# vllm is fast")
    (tmp_path / "guide.rst").write_text("Serve::\n\n   vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct\n")
    found = [Path(item.path).name for item in find_files([str(tmp_path)]) if isinstance(item, Passed)]
    assert sorted(found) == ["guide.rst", "llm.ipynb", "serve.ipynb"]
