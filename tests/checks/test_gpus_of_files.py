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
