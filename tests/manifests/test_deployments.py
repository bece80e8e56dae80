"""Every kind of deployment file: the right engine, the right words, each at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcalc.manifests.find import find_files, read_file
from hybridcalc.manifests.source import Unknown
from hybridcalc.manifests.variables import Outside

DATA = Path(__file__).parent.parent / "data" / "manifests"


def read(path, **variables):
    """The deployments of a file."""
    contents = read_file(str(DATA / path), Outside(variables))
    assert contents.troubles == ()
    return contents.deployments


def flags(deployment):
    """``word -> line`` of every word, unknown ones with a question mark."""
    return {(f"?{w}" if isinstance(w, Unknown) else str(w)): w.place.line for w in deployment.words}


def test_a_kubernetes_deployment_has_each_flag_at_its_line():
    (server,) = read("kubernetes/k3-eight-slots.yaml")
    assert (server.engine, server.kind, server.name, server.replicas) == ("sglang", "Deployment", "k3/server", 2)
    assert flags(server) == {
        "--model-path": 16, "moonshotai/Kimi-K3": 17, "--tp": 18, "8": 23, "--max-running-requests": 20, "4": 21,
        "--max-mamba-cache-size": 22,
    }  # fmt: skip
    assert (server.words[-1].place.column, server.hardware.label, server.hardware.gpus) == (16, "NVIDIA-H200", 8)


def test_a_leader_worker_set_is_read_through_its_config_map_and_size():
    """bash -c block, $(VAR) of envFrom, ${VAR} in the script, LWS_GROUP_SIZE from the set's own size."""
    leader, worker = read("kubernetes/lws-kimi.yaml")
    assert (leader.hardware.nodes, leader.hardware.gpus, leader.hardware.label) == (2, 8, "NVIDIA-H100-80GB-HBM3")
    found = flags(leader)
    assert (found["moonshotai/Kimi-K3"], found["--max-running-requests"], found["64"]) == (49, 55, 56)
    assert leader.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"
    assert "--model-path=moonshotai/Kimi-K3" in worker.words
    assert "--nnodes=2" in worker.words


def test_ray_service_holds_yaml_in_yaml():
    (llm,) = read("kubernetes/rayservice-nemotron.yaml")
    assert (llm.engine, llm.model, llm.hardware.label) == ("vllm", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "H100")
    assert flags(llm)["--tensor-parallel-size"] == 18
    assert flags(llm)["131072"] == 19


def test_a_folded_command_in_a_job():
    (job,) = read("kubernetes/job-vllm-string.yaml")
    assert job.words[:3] == ("Qwen/Qwen3.6-35B-A3B", "--tensor-parallel-size", "2")
    assert flags(job)["--max-num-seqs"] == 16
    assert job.words[6] == "512"
    assert job.words[-1] == '{"method": "mtp", "num_speculative_tokens": 3}'


def test_compose_interpolates_from_env_file_and_defaults_and_reads_merged_services():
    listed, folded, shell = read("compose/compose.yaml")
    assert [d.name for d in (listed, folded, shell)] == ["list", "folded", "shell"]
    assert "--max-mamba-cache-size=64" in listed.words
    assert "--tp=2" in listed.words
    assert listed.hardware.gpus == 2
    assert listed.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "0"
    assert folded.words[-3:] == ("--trust-remote-code", "--max-running-requests", "32")
    assert flags(folded)["--max-running-requests"] == 32
    assert shell.words == ("Qwen/Qwen3.6-35B-A3B", "--max-model-len", "65536", "--max-num-seqs", "128")


def test_compose_without_a_value_is_unknown(tmp_path):
    (tmp_path / "compose.yaml").write_text(
        "services:\n  a:\n    image: lmsysorg/sglang\n"
        "    command: [--model-path, kimi-k3, --tp, '${TP}', --max-running-requests, '$${M}']\n"
    )
    (only,) = read(tmp_path / "compose.yaml")
    assert [type(word) is Unknown for word in only.words] == [False, False, False, True, False, False]
    assert only.words[3].why == "TP comes from outside"
    assert only.words[5] == "${M}"
    (given,) = read(tmp_path / "compose.yaml", TP="8")
    assert given.words[3] == "8"


def test_a_script_with_arrays_and_a_condition():
    (server,) = read("shell/launch-k3.sh")
    found = flags(server)
    assert (found["--tp-size"], found["--max-mamba-cache-size"], found["/models/kimi-k3"]) == (10, 25, 8)
    assert found["?${SPEC_ARGS[@]}"] == 26
    assert server.words[-3].why == "a condition sets it (line 15)"
    assert server.env["SGLANG_MAMBA_CONV_DTYPE"].text == "bfloat16"
    (given,) = read("shell/launch-k3.sh", SPEC_ARGS="--speculative-algorithm EAGLE")
    assert "--speculative-algorithm" in given.words


def test_container_runs_nested_shells_and_several_launches():
    first, second = read("shell/docker-run.sh")
    assert (first.place.line, second.place.line) == (14, 19)
    assert first.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"
    assert "?$CTX" in flags(first)
    prefill, decode = read("shell/slurm-pd.sbatch")
    assert ("prefill" in prefill.words, "decode" in decode.words) == (True, True)
    assert decode.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"


def test_dockerfiles_in_both_forms():
    (stages,) = read("docker/Dockerfile")
    assert (stages.engine, stages.name, stages.words[0]) == (
        "vllm", "vllm/vllm-openai:v0.33.0", "nvidia/NVIDIA-Nemotron-Nano-9B-v2")  # fmt: skip
    assert flags(stages)["--max-num-seqs"] == 11
    (shell,) = read("docker/shell-form.Dockerfile")
    assert shell.words[2:4] == ("--tp", "2")
    assert flags(shell)["--page-size"] == 5


def test_dynamo_graphs_skip_their_front_ends():
    decode, prefill = read("dynamo/disagg-v1alpha1.yaml")
    assert [d.name for d in (decode, prefill)] == ["sglang-disagg/decode", "sglang-disagg/prefill"]
    assert (decode.hardware.gpus, decode.hardware.nodes, prefill.replicas) == (8, 2, 0)
    assert flags(decode)["--max-running-requests"] == 45
    (worker,) = read("dynamo/agg-v1beta1.yaml")
    assert (worker.engine, worker.hardware.label) == ("vllm", "nvidia-h200-141gb")


def test_kserve_starts_what_its_fields_say():
    (service,) = read("kserve/llmisvc.yaml")
    assert (service.engine, service.model) == ("vllm", "hf://Qwen/Qwen3.6-35B-A3B")
    assert service.words == ("--tensor-parallel-size", "2", "--max-model-len", "65536", "--max-num-seqs", "64")
    nemotron, k3 = read("kserve/isvc.yaml")
    assert (nemotron.engine, nemotron.model) == ("vllm", "hf://nvidia/NVIDIA-Nemotron-Nano-12B-v2")
    assert (k3.engine, "--max-mamba-cache-size=8" in k3.words) == ("sglang", True)


def test_typed_fields_of_custom_resources():
    (server,) = read("custom/sglang-operator.yaml")
    assert (server.engine, server.model, server.replicas) == ("sglang", "Qwen/Qwen3-Next-80B-A3B-Instruct", 0)
    assert flags(server)["--max-mamba-cache-size"] == 12
    assert server.words[-3:] == ("--kv-cache-dtype", "fp8_e4m3", "--page-size=1")
    assert "--disable-radix-cache" not in server.words
    (values,) = read("custom/production-stack-values.yaml")
    assert values.words[:3] == ("--no-enable-prefix-caching", "--max-model-len", "16384")
    assert "--mamba-ssm-cache-dtype=float32" in values.words


def test_engine_files_alone_and_named_by_a_script():
    (sglang,) = read("engine/sglang.yaml")
    assert (sglang.engine, flags(sglang)["--max-mamba-cache-size"]) == ("sglang", 6)
    assert "--trust-remote-code" in sglang.words
    (vllm,) = read("engine/vllm.yaml")
    assert vllm.words[-2] == '{"method": "mtp", "num_speculative_tokens": 2}'
    (start,) = read("engine/start.sh")
    assert start.words[-2:] == ("--max-mamba-cache-size", "161")
    assert start.words[0].place.path.endswith("sglang.yaml")


def test_a_config_file_from_a_config_map():
    """--config /etc/x/worker.yaml is the entry of that name of a ConfigMap among the documents."""
    (worker,) = read("dynamo/config-map.yaml")
    assert (worker.engine, flags(worker)["--max-mamba-cache-size"]) == ("sglang", 10)
    assert "--config" not in worker.words


def test_systemd_units():
    (unit,) = read("systemd/sglang.service")
    assert unit.words[:4] == ("--model-path", "Qwen/Qwen3.5-397B-A17B", "--tp", "4")
    assert flags(unit)["--max-mamba-cache-size"] == 11
    assert unit.env["SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"].text == "1"


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.*")), ids=lambda path: path.name)
def test_every_word_stands_where_it_says(path):
    """The text at a word's place is the word, or the reference it came from."""
    for deployment in read_file(str(path), Outside({})).deployments:
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


def test_a_folder_is_walked_once_and_in_order():
    found = [path for path in find_files([str(DATA), str(DATA / "shell")]) if isinstance(path, str)]
    assert found == sorted(found)
    assert len(found) == len(set(found))
    assert all(".env" not in path for path in found)


def test_manifests_that_a_script_applies():
    (pod,) = read("shell/kubectl-apply.sh")
    assert (pod.kind, pod.words[3], flags(pod)["--max-mamba-cache-size"]) == ("Pod", "8", 11)


def test_scripts_in_fields_of_their_own():
    """A task's ``run: |`` under its own variables, on the accelerators it asks for."""
    (task,) = read("custom/task.yaml")
    assert (task.engine, task.words[1], task.hardware.label, task.hardware.gpus) == (
        "sglang", "moonshotai/Kimi-K3", "H200", 8)  # fmt: skip
    assert flags(task)["?$SKYPILOT_NUM_GPUS_PER_NODE"] == 11


def test_values_of_a_chart_that_names_its_model_apart():
    (decode,) = read("custom/model-service-values.yaml")
    assert (decode.engine, decode.model) == ("vllm", "hf://Qwen/Qwen3.6-35B-A3B")
    assert decode.words[:2] == ("--tensor-parallel-size", "2")


def test_a_helper_script_before_the_launch_is_passed_over():
    (leader,) = read("kubernetes/lws-vllm.yaml")
    assert (leader.place.line, leader.hardware.nodes) == (25, 2)
    assert leader.words[-2:] == ("--pipeline_parallel_size", "2")


def test_arguments_that_a_controller_makes_are_unknown():
    (workspace,) = read("custom/workspace.yaml")
    assert workspace.words[-3:-1] == ("--max-model-len", "65536")
    assert workspace.words[-1].why == "KAITO's controller makes them"
    assert (workspace.model, workspace.hardware.label) == ("falcon-h1-7b", "Standard_NC24ads_A100_v4")


def test_shells_inside_compose_and_both_branches_of_a_script():
    folded, block = read("compose/shells.yaml")
    assert flags(folded)["--max-mamba-cache-size"] == 7
    assert block.words[:3] == ("Qwen/Qwen3.6-35B-A3B", "--max-model-len", "8192")
    assert flags(block)["?${SEQS}"] == 19
    assert [d.place.line for d in read("kubernetes/two-branches.yaml")] == [14, 16]


def test_kserve_keeps_its_own_flags(tmp_path):
    (tmp_path / "isvc.yaml").write_text(
        "kind: InferenceService\nspec:\n  predictor:\n    model:\n      modelFormat: {name: huggingface}\n"
        "      args: [--model_name=x, --model_id=Qwen/Qwen3.6-35B-A3B, --max-model-len=8192]\n"
    )
    (service,) = read(tmp_path / "isvc.yaml")
    assert service.words == ("--model=Qwen/Qwen3.6-35B-A3B", "--max-model-len=8192")


def test_placeholders_of_templates_are_unknown(tmp_path):
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
    assert [word.why for word in script.words if isinstance(word, Unknown)] == ["a template decides it"] * 2
    assert flags(script)["--pp"] == 9
