"""GPUs that a file names: ranks are held against them."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged import check, found
from present import present

from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings


def test_ranks_and_gpus_are_counted(tmp_path: Path) -> None:
    pod = (
        "kind: Pod\nspec:\n  containers:\n    - command: [sglang, serve, kimi-k3]\n      args: [--tp, '{tp}'{more}]\n"
        "      resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}\n"
    )
    fewer = check(tmp_path, pod.format(tp=8, gpus=4, more=""), "pod.yaml")
    assert found(fewer)["HC070"][:3] == (5, 21, "8 ranks, and 4 GPUs to run them on")
    more = check(tmp_path, pod.format(tp=4, gpus=8, more=""), "pod.yaml")
    assert found(more)["HC073"][:3] == (6, 44, "4 ranks on 8 GPUs: the others idle")
    nodes = check(tmp_path, pod.format(tp=16, gpus=8, more=", --nnodes, '2'"), "pod.yaml")
    assert {"HC070", "HC073"} & set(found(nodes)) == set()
    unknown = check(tmp_path, pod.format(tp=16, gpus=8, more=", --nnodes, $(N)"), "pod.yaml")
    assert "HC070" not in found(unknown)


def test_ranks_are_held_against_the_gpus_that_are_named(tmp_path: Path) -> None:
    """--gpu 8xh200 beside a launch: one rank is one rank, and more than there are stop it."""
    for ranks, rule in ((1, "HC073"), (8, ""), (16, "HC070")):
        path = tmp_path / f"{ranks}.sh"
        path.write_text("vllm serve nvidia/Nemotron-H-8B-Base-8K" + (f" -tp {ranks}\n" if ranks > 1 else "\n"))
        told = present(check_file(str(path), Settings(gpu="8xh200"), {})).checked[0].findings
        assert [f.finding.rule for f in told if f.finding.rule in ("HC070", "HC073")] == [rule] * bool(rule)


def test_servers_that_share_a_container_share_its_gpus(tmp_path: Path) -> None:
    pod = (
        "kind: Pod\nspec:\n  containers:\n    - command: [bash, -c]\n      resources: {limits: {nvidia.com/gpu: 8}}\n"
        "      args:\n        - |\n          sglang serve kimi-k3 --tp 4 &\n"
    )
    path = tmp_path / "pod.yaml"
    path.write_text(pod)
    assert [f.finding.rule for f in present(check_file(str(path), Settings(), {})).checked[0].findings] == ["HC073"]
    path.write_text(pod + "          sglang serve kimi-k3 --tp 4 --port 2\n")
    assert [one.findings for one in present(check_file(str(path), Settings(), {})).checked] == [(), ()]


def test_ranks_in_other_pods_are_not_counted(tmp_path: Path) -> None:
    pod = (
        "kind: Pod\nspec:\n  containers:\n    - command: [vllm, serve, nemotron-h-8b, --data-parallel-size, '16', "
        "--data-parallel-size-local, '8']\n      resources: {limits: {nvidia.com/gpu: 8}}\n"
    )
    assert check(tmp_path, pod, "pod.yaml").findings == ()


def test_a_gpu_that_is_none_for_certain_is_named(tmp_path: Path) -> None:
    checked = check(tmp_path, "#SBATCH --gres=gpu:a100:8\nvllm serve Qwen/Qwen3.6-35B-A3B\n", name="a.sbatch")
    assert checked.gpu == "a100, of which there are several"
    checked = check(
        tmp_path, "#SBATCH --gres=gpu:a100:8\nvllm serve Qwen/Qwen3.6-35B-A3B\n", name="a.sbatch", gpu="h200"
    )
    assert checked.gpu == "h200"


@pytest.mark.parametrize(
    ("gpus", "ranks", "rules"),
    [
        ('"device=0,1"', 8, {"HC070"}),
        ("'\"device=0,1\",capabilities=utility'", 4, {"HC070"}),
        ("4", 4, set()),
        ("all", 8, set()),
        ("$N", 8, set()),
        ("'\"device=GPU-1,GPU-2\"'", 1, {"HC073"}),
    ],
)
def test_a_container_has_the_gpus_that_docker_gives_it(tmp_path: Path, gpus: str, ranks: int, rules: set[str]) -> None:
    run = f"docker run --gpus {gpus} lmsysorg/sglang:v0.5.20 sglang serve qwen3-next-80b-a3b --tp {ranks}"
    assert set(found(check(tmp_path, run))) & {"HC070", "HC073"} == rules


@pytest.mark.parametrize(
    "launch",
    [
        "CUDA_VISIBLE_DEVICES=0 vllm serve m {}",
        "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=1 vllm/vllm-openai:v0.29.0 --model m {}",
        "docker run --device nvidia.com/gpu=0 vllm/vllm-openai:v0.29.0 --model m {}",
        "export HIP_VISIBLE_DEVICES=3\nvllm serve m {}",
    ],
)
def test_a_launch_has_the_gpus_that_it_sees(tmp_path: Path, launch: str) -> None:
    path = tmp_path / "a.sh"
    for ranks, rules in ((1, []), (2, ["HC070"])):
        path.write_text(launch.replace(" m ", " nvidia/Nemotron-H-8B-Base-8K ").format(f"-tp {ranks}") + "\n")
        (one,) = present(check_file(str(path), Settings(), {})).checked
        assert [item.finding.rule for item in one.findings if item.finding.rule in ("HC070", "HC073")] == rules


def test_a_server_without_ranks_takes_every_gpu_that_it_sees(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("docker run --gpus device=0,1 ghcr.io/ggml-org/llama.cpp:server-cuda -m Qwen3.6-27B-Q4_K_M.gguf\n")
    (one,) = present(check_file(str(path), Settings(), {})).checked
    assert (one.gpus, [item for item in one.findings if item.finding.rule == "HC073"]) == (2, [])


RAY = """
kind: RayCluster
spec:
  headGroupSpec:
    template: {spec: {containers: [{command: [bash, -c, "ray start --head; vllm serve nemotron-h-8b -tp 8 -pp 2"]%s}]}}
  workerGroupSpecs:
    - replicas: %s
      template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""


@pytest.mark.parametrize(
    ("head", "workers", "nodes"), [(", resources: {limits: {nvidia.com/gpu: 8}}", 1, 2), ("", 2, 2), ("", 4, 4)]
)
def test_workers_of_a_ray_cluster_are_nodes(tmp_path: Path, head: str, workers: int, nodes: int) -> None:
    path = tmp_path / "ray.yaml"
    path.write_text(RAY % (head, workers))
    (one,) = present(check_file(str(path), Settings(), {})).checked
    assert (one.gpus, one.nodes) == (8, nodes)
    rules = [item.finding.rule for item in one.findings if item.finding.rule in ("HC070", "HC073")]
    assert rules == ([] if nodes == 2 else ["HC073"])


def test_ranks_of_a_cluster_that_other_nodes_join_are_not_counted(tmp_path: Path) -> None:
    run = "docker run --gpus 8 vllm/vllm-openai bash -c 'ray start --head; vllm serve nemotron-h-8b -tp 8 -pp 2'\n"
    assert "HC070" not in found(check(tmp_path, run))
    assert "HC070" in found(check(tmp_path, run.replace("ray start --head; ", "")))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.dstack.yml", "image: x\nresources: {gpu: 'H100:4'}\ncommands: [vllm serve m -tp $DSTACK_GPUS_NUM]\n"),
        ("a.sbatch", "#SBATCH --gpus-per-node=4\nvllm serve m -tp $SLURM_GPUS_ON_NODE\n"),
    ],
)
def test_schedulers_tell_a_launch_its_gpus(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    (one,) = present(check_file(str(path), Settings(), {})).checked
    assert [(value.flag, value.value) for value in one.values] == [("--tensor-parallel-size", "4")]


def test_a_worker_of_a_group_has_the_ranks_of_its_leader(tmp_path: Path) -> None:
    """What it would say of its own is not said; other ranks than the leader's break the group."""
    pod = "containers: [{command: [sglang, serve, kimi-k3, --tp, '%s', --nnodes, '2'], resources: {limits: {gpu: 8}}}]"
    text = (
        "kind: LeaderWorkerSet\nmetadata: {name: k3}\nspec:\n  leaderWorkerTemplate:\n    size: 2\n"
        f"    leaderTemplate: {{spec: {{{pod % 16}}}}}\n    workerTemplate: {{spec: {{{pod}}}}}\n"
    )
    path = tmp_path / "lws.yaml"
    for ranks, expected in ((16, []), (8, ["--tp-size 8 in a worker, and 16 in the leader of its group"])):
        path.write_text(text % ranks)
        leader, worker = present(check_file(str(path), Settings(), {})).checked
        assert [item.finding.message for item in leader.findings] == []
        assert [item.finding.message for item in worker.findings] == expected


@pytest.mark.parametrize(
    ("label", "gpus", "nodes", "said"),
    [
        ("NVIDIA-H200", 16, 1, "16 GPUs are asked for on one node, which holds 8 of NVIDIA H200"),
        ("NVIDIA-H200", 8, 1, ""),
        ("NVIDIA-GB200", 8, 1, "8 GPUs are asked for on one node, which holds 4 of"),
        ("NVIDIA-H200", 16, 2, ""),
        ("a-card-nobody-knows", 16, 1, ""),
    ],
)
def test_one_pod_asks_for_no_more_gpus_than_a_node_holds(
    tmp_path: Path, label: str, gpus: int, nodes: int, said: str
) -> None:
    pod = (
        "kind: Pod\nspec:\n  nodeSelector: {nvidia.com/gpu.product: LABEL}\n  containers:\n"
        f"    - command: [sglang, serve, kimi-k3, --tp, '{gpus * nodes}', --nnodes, '{nodes}']\n"
        f"      resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}\n"
    )
    told = found(check(tmp_path, pod.replace("LABEL", label), "pod.yaml"))
    assert ("HC081" in told) == bool(said)
    assert not said or told["HC081"][2].startswith(said)


SERVED = "vllm/vllm-openai:v0.30.0\n{0}args: [--model, nvidia/Nemotron-H-8B-Base-8K, --max-model-len, '8192']\n"
COPIES = {
    "deployment": (
        "kind: Deployment\nspec:\n  replicas: 4\n  template:\n    spec:\n      containers:\n      - image: "
        + SERVED.format("        "),
        4,
    ),
    "service that scales": (
        "kind: InferenceService\nspec:\n  predictor:\n    minReplicas: 4\n    containers:\n    - image: "
        + SERVED.format("      "),
        4,
    ),
    "service that scales to none": (
        "kind: InferenceService\nspec:\n  predictor:\n    minReplicas: 0\n    containers:\n    - image: "
        + SERVED.format("      "),
        None,
    ),
    "compose": (
        "services:\n  a:\n    deploy: {replicas: 4}\n    image: " + SERVED.format("    ").replace("args", "command"),
        4,
    ),
    "ray": (
        "applications:\n- args:\n    llm_configs:\n"
        "    - model_loading_config: {model_id: nvidia/Nemotron-H-8B-Base-8K}\n"
        "      deployment_config: {autoscaling_config: {min_replicas: 4}}\n"
        "      engine_kwargs: {max_model_len: 8192}\n",
        4,
    ),
}


@pytest.mark.parametrize(("text", "copies"), COPIES.values(), ids=COPIES)
def test_requests_are_wanted_of_all_replicas(tmp_path: Path, text: str, copies: int | None) -> None:
    """As of data-parallel replicas: each serves its share, and 10,000 are beyond what four of them run."""
    (tmp_path / "a.yaml").write_text(text)
    for wanted, rules in ((400, ["HC063"] if copies is None else []), (10_000, ["HC063"])):
        settings = Settings(gpu="h100", length=2000, concurrency=wanted)
        (checked,) = present(check_file(str(tmp_path / "a.yaml"), settings, {})).checked
        assert checked.replicas == copies
        told = [item.finding.message for item in checked.findings if item.finding.rule == "HC063"]
        assert ["HC063"] * len(told) == rules
        said = "10,000 requests are wanted of 4 replicas, 2,500 of each: "
        assert wanted == 400 or copies is None or told[0].startswith(said)


def test_a_copy_is_to_run_as_many_as_its_own_limit_lets_in(tmp_path: Path) -> None:
    """Nothing shares requests out evenly: of 32 for two copies that take 32 each, one may get all."""
    launch = "sglang serve Qwen/Qwen3.6-35B-A3B-FP8 --max-mamba-cache-size 64"
    text = "services:\n  a:\n    deploy: {{replicas: 2}}\n    image: lmsysorg/sglang:v0.5.23\n    command: {0}\n"
    for limit, wanted in ((" --max-running-requests 32", "32 requests x 5 slots"), ("", "16 requests x 5 slots")):
        (tmp_path / "compose.yaml").write_text(text.format(launch + limit))
        settings = Settings(gpu="h200", length=8192, concurrency=32)
        (checked,) = present(check_file(str(tmp_path / "compose.yaml"), settings, {})).checked
        (found,) = [item.finding for item in checked.findings if item.finding.rule == "HC002"]
        assert wanted in found.message


def test_a_rule_that_depends_on_the_gpu_waits_for_it(tmp_path: Path) -> None:
    """FLASHINFER_MLA runs on compute capability 10.x alone: an error on an H100, nothing on a B200, and not known where
    no GPU is; what holds on every GPU is said.
    """
    text = "vllm serve moonshotai/Kimi-K3 -tp 16 -dcp 16 --kv-cache-dtype fp8 --attention-backend FLASHINFER_MLA\n"
    assert "HC047" in {item.finding.rule for item in check(tmp_path, text, gpu="h100").findings}
    assert "HC047" not in {item.finding.rule for item in check(tmp_path, text, gpu="b200").findings}
    unknown = check(tmp_path, text)
    assert [item.finding.rule for item in unknown.findings] == ["HC058"]
    assert ("HC047", ("the GPU",)) in unknown.waiting
    for gpu in (None, "h100", "b200"):
        refused = check(tmp_path, text.replace("-dcp 16", "-dcp 16 --mamba-ssm-cache-dtype int8"), gpu=gpu)
        assert "HC071" in {item.finding.rule for item in refused.findings}


RECIPE = """\
model: {{path: qwen3.5-fp8, container: "{image}"}}
resources: {{gpu_type: gb300, gpus_per_node: 4}}
backend:
  type: sglang
  decode_environment: {{SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK: "1"}}
  sglang_config:
    prefill: &role
      served-model-name: Qwen/Qwen3.5-397B-A17B-FP8
      model-path: /model/
      tensor-parallel-size: 4
      disaggregation-mode: prefill
    decode:
      served-model-name: Qwen/Qwen3.5-397B-A17B-FP8
      model-path: /model/
      tensor-parallel-size: 4
      disaggregation-mode: decode
"""


def test_a_recipe_for_slurm_says_gpu_and_release(tmp_path: Path) -> None:
    """srt-slurm: resources.gpu_type, and the tag of model.container, hold for prefill and decode servers alike."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(image="lmsysorg/sglang:v0.5.11-cu130"))
    result = check_file(str(path), Settings(), {})
    assert result is not None
    prefill, decode = result.checked
    assert {(one.gpu, one.version, one.model_preset) for one in (prefill, decode)} == {
        ("gb300", "0.5.11", "qwen3.5-397b-a17b")
    }
    assert decode.env == (("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "1"),)
    assert prefill.env == ()
    path.write_text(RECIPE.format(image="lmsysorg/sglang:nightly-dev-cu13"))
    assert "0.5.23 is assumed" in check_file(str(path), Settings(), {}).checked[0].assumed_release  # type: ignore[union-attr]
