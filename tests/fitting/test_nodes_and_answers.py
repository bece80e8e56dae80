"""What `fit` says of GPUs that no node holds, of contexts that no GPU mends, of a pace and a price; what it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import hybridcalc
from hybridcalc.engines import ENGINES
from hybridcalc.engines.shapes import nodes_of
from hybridcalc.fitting.answer import Fit, layout
from hybridcalc.hardware import find_gpu, shipped_gpus


def found(*words: Any, **asked: Any) -> Fit:
    answer = hybridcalc.fit(*words, **asked)
    assert isinstance(answer, Fit)
    return answer


def test_nodes_hold_what_presets_say_of_them() -> None:
    assert {name: find_gpu(name).node for name in ("h200", "gb200", "gb10", "gh200")} == {
        "h200": 8,
        "gb200": 4,
        "gb10": 1,
        "gh200": 1,
    }
    for name, preset in shipped_gpus().items():
        assert find_gpu(f"16x{name}").node == preset.get("gpus_per_node", 8)


@pytest.mark.parametrize(
    ("model", "gpu", "count", "engine", "said"),
    [
        (
            "kimi-k3",
            "b200",
            100,
            "vllm",
            "2 of 8 GPUs; node N adds --nnodes 2 --node-rank N --master-addr HEAD; beyond node 0 --headless",
        ),
        (
            "kimi-k3",
            "gb200",
            20,
            "sglang",
            "4 of 3 GPUs; node N adds --nnodes 4 --node-rank N --dist-init-addr HEAD:20000",
        ),
    ],
)
def test_a_server_of_more_gpus_than_a_node_holds_says_what_each_node_adds(
    model: str, gpu: str, count: int, engine: str, said: str
) -> None:
    made = found(model, length="64k", concurrency=count, gpu=gpu, engine=engine).deployments[0]
    assert made.shape.ranks > made.offer.gpu.node
    assert made.spread.startswith(said)


def test_every_row_of_more_gpus_than_a_node_says_so_and_no_other() -> None:
    for gpu in ("h200", "gb200", "rtx-4090", "gb10"):
        for made in found("qwen3.5-397b-a17b", length="64k", concurrency=100, gpu=gpu, top=20).deployments:
            over = made.gpus // made.launches > made.offer.gpu.node
            assert bool(made.spread) == over, (gpu, layout(made))


def test_what_each_node_adds_stands_in_the_answer() -> None:
    asked = ("Qwen/Qwen3.5-397B-A17B-FP8", "-L", "64k", "-C", "200", "--gpu", "h200", "--pace", "50")
    short = run("fit", *asked).out
    assert "nodes    2 of 8 GPUs; what each adds: -v" in short and len(short.splitlines()) <= 12
    assert "--node-rank N --master-addr HEAD; beyond node 0 --headless" in " ".join(
        run("fit", *asked, "-v").out.split()
    )


FILES = {"cmd": "serve.sh", "compose": "compose.yaml", "kubernetes": "pods.yaml"}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize(
    ("model", "gpu", "count", "engine", "linked", "nodes"),
    [
        ("kimi-k3", "b200", "100", "vllm", ("--nnodes", "--node-rank", "--master-addr", "--headless"), 2),
        ("kimi-k3", "gb200", "20", "sglang", ("--nnodes", "--node-rank", "--dist-init-addr"), 4),
    ],
)
def test_a_server_on_several_nodes_is_written_whole_and_read_back_as_one(
    form: str, model: str, gpu: str, count: str, engine: str, linked: tuple[str, ...], nodes: int, tmp_path: Path
) -> None:
    """A set of as many pods as nodes; or a command and a service for node 0 and for the others."""
    text = run("fit", model, "-L", "64k", "-C", count, "--gpu", gpu, "--engine", engine, "--emit", form).out
    assert all(flag in text for flag in linked)
    assert text.count(linked[0]) == 1 + ("--headless" in text)
    assert ("kind: LeaderWorkerSet" in text and f"size: {nodes}\n" in text) == (form == "kubernetes")
    path = tmp_path / FILES[form]
    path.write_text(text, encoding="utf-8")
    read = run("check", str(path), "--gpu", gpu, "-L", "64k", "--json")
    (one,) = read.document["deployments"]
    loud = [finding for finding in read.document["findings"] if not finding.get("suppressed")]
    assert (read.code, one["nodes"], one["unresolved"], loud) == (0, nodes, [], [])


def test_nodes_hold_whole_stages_and_workers_or_share_one() -> None:
    """Three nodes of four GPUs do not hold two workers of six ranks: four nodes of three do."""
    vllm, sglang = ENGINES["vllm"], ENGINES["sglang"]
    workers = vllm.arguments().changed(tensor_parallel_size=6, data_parallel_size=2)
    stages = sglang.arguments().changed(tp_size=6, pp_size=2)
    flat = sglang.arguments().changed(tp_size=12)
    assert [nodes_of(sglang, args, 12, 4) for args in (stages, flat)] == [4, 3]
    assert [nodes_of(vllm, workers, 12, node) for node in (1, 4, 8, 16)] == [12, 4, 2, 1]


def test_whole_servers_of_one_node_are_replicas_without_a_word_of_nodes() -> None:
    written = run(
        "fit", "qwen3.6-27b", "-L", "16k", "-C", "300", "--gpu", "l40s", "--pace", "30", "--emit", "kubernetes"
    )
    assert "replicas: 3" in written.out and 'nvidia.com/gpu: "4"' in written.out and "nodes" not in written.out


def test_where_nothing_serves_no_prose_is_written_as_a_file() -> None:
    done = run("fit", "kimi-k3", "-L", "64k", "-C", "100", "--gpu", "8xb200", "--emit", "kubernetes")
    assert (done.out, done.code) == ("", 1)
    assert "nothing here serves 100 requests" in done.err


def test_a_length_beyond_the_context_is_the_reason_on_every_gpu() -> None:
    for gpu in (("l40s", "h100"), ("l4",)):
        answer = found("qwen3.6-35b-a3b", length="2m", concurrency=3, gpu=gpu)
        assert answer.nearest is not None and not answer.nearest.lacks
        assert answer.nearest.text == "2,097,152 tokens are beyond the context of qwen3.6-35b-a3b, 262,144"
        assert {loser.kind for loser in answer.losers} == {"context"}


def test_copies_in_one_launch_are_dp_and_launches_are_counted() -> None:
    asked = {"length": "16k", "concurrency": 300, "gpu": "l40s", "pace": 40, "allow": "accuracy"}
    for made in found("qwen3.6-35b-a3b", **asked).deployments:
        words = made.launch["argv"]
        flag = "--dp-size" if made.engine.name == "sglang" else "--data-parallel-size"
        copies = int(words[words.index(flag) + 1]) if flag in words else 1
        assert (f"dp {copies}" in layout(made)) == (copies > 1)
        assert layout(made).endswith(f" x {made.launches}") == (made.launches > 1)


def test_models_at_a_pace_show_it_and_the_price_and_fit_in_twelve_lines() -> None:
    for words in (
        ("--gpu", "2xrtx-4090", "-L", "128k", "-C", "4", "--pace", "30", "--price", "rtx-4090=0.4"),
        ("--gpu", "mi300x", "-L", "32k"),
    ):
        text = run("fit", *words).out
        assert len(text.splitlines()) <= 12 and max(map(len, text.splitlines())) <= 80
        assert ("tokens/s\n" in text) == ("price    0.80 an hour" in text) == ("--pace" in words)
    names = [line.split()[0] for line in text.splitlines()[3:7]]
    assert len(set(zip(names, [line.split()[1] for line in text.splitlines()[3:7]], strict=True))) == 4


def test_what_the_first_row_is_warned_of_stands_in_the_answer() -> None:
    asked = ("qwen3.6-35b-a3b", "-L", "16k", "-C", "20", "--gpu", "l40s", "--engine", "llama.cpp")
    first = run("fit", *asked, "--json").document["deployments"][0]
    assert [each["rule"] for each in first["findings"]] == ["HC212"]
    assert "HC212    context checkpoints take up to" in run("fit", *asked).out


def test_a_traffic_does_not_say_how_many_run() -> None:
    done = run("fit", "qwen3.6-35b-a3b", "--gpu", "h100", "--workload", "chat:sessions=50")
    assert done.code == 2 and "how many are to run at once; a workload does not say" in done.err


def test_where_the_limit_binds_the_pool_that_idles_more_is_told() -> None:
    line = "--model-path nvidia/Qwen3.6-35B-A3B-NVFP4 --tp-size 2 --dp-size 3 --kv-cache-dtype fp8_e4m3 "
    line += "--mamba-ssm-dtype bfloat16 --mamba-full-memory-ratio 0.981 --max-running-requests 103"
    words = f"--gpu 6xl40s -L 16k --json -- python -m sglang.launch_server {line}".split()
    plan = run("plan", *words).document
    assert plan["binding"] == "limit"
    each, slots, tokens = plan["requests_per_worker"], plan["max_mamba_cache_size"], plan["max_total_num_tokens"]
    idle = max(1 - each * plan["slots_per_request"] / slots, 1 - each * 16384 / tokens)
    assert plan["idle_percent"] == pytest.approx(100 * idle, abs=0.01) and idle > 0.2


def test_copies_on_one_node_are_services_with_gpus_and_ports_of_their_own(tmp_path: Path) -> None:
    """Docker gives every container of a count the same first GPUs."""
    asked = ("fit", "qwen3.6-35b-a3b", "-L", "16k", "-C", "300", "--gpu", "l40s", "--engine", "vllm", "--emit")
    text = run(*asked, "compose").out
    ids = [line.partition("device_ids: [")[2].partition("]")[0] for line in text.splitlines() if "device_ids" in line]
    assert ids == ['"0", "1"', '"2", "3"', '"4", "5"'] and "start it" not in text
    assert all(f'"{8000 + number}:8000"' in text for number in range(3))
    path = tmp_path / "compose.yaml"
    path.write_text(text, encoding="utf-8")
    read = run("check", str(path), "--gpu", "l40s", "-L", "16k", "--json")
    assert (read.code, len(read.document["deployments"]), read.document["findings"]) == (0, 3, [])
    assert "start it 3 times, each on other GPUs" in run(*asked, "cmd").out.splitlines()[0]


def test_what_is_asked_of_models_alone_is_refused_beside_one() -> None:
    done = run("fit", "qwen3.6-35b-a3b", "-L", "16k", "-C", "4", "--gpu", "h100", "--sort", "requests")
    assert done.code == 2 and "--sort is the order of models" in done.err
    first, more = (run("fit", "--gpu", "h100", "-L", "16k", "--top", top).out.splitlines() for top in ("1", "6"))
    assert len(more) - len(first) == 5


def test_models_and_checkpoints_are_counted_apart_and_nothing_ends_a_state() -> None:
    out = run("fit", "--gpu", "2xrtx-4090", "-L", "4k", "--sort", "requests").out
    models, checkpoints = map(int, re.findall(r"(\d+) (?:models|checkpoints)", out)[:2])
    assert models < checkpoints and " any\n" in out
    shown = sum(line.endswith((" any", "00")) and line.startswith("  ") for line in out.splitlines()[3:7])
    assert f"{checkpoints - shown} more fit" in out


def test_an_older_release_says_how_its_line_is_planned() -> None:
    asked = ("qwen3.6-27b", "-L", "8k", "-C", "20", "--gpu", "h100", "--engine")
    assert "plan --engine-version 0.5.12 -- LINE has its figures" in run("fit", *asked, "sglang@0.5.12").out
    assert "release" not in run("fit", *asked, "sglang").out


def test_prices_that_say_nothing_or_two_things_are_refused(tmp_path: Path) -> None:
    empty, excel, asked = tmp_path / "none.txt", tmp_path / "excel.txt", ("fit", "lfm2-8b-a1b", "-L", "8k", "-C", "9")
    empty.write_text("# none\n", encoding="utf-8")
    excel.write_bytes(b"\xef\xbb\xbfl40s=0.5\r\nh100=2\r\n")
    assert "has no price in it" in run(*asked, "--prices", str(empty)).err
    assert "has two prices" in run(*asked, "--price", "h100=2.5,h100=3").err
    assert run(*asked, "--prices", str(excel), "--price", "l40s=0.001").out.startswith("0.001 an hour: 1 x L40S")
    assert "leave out --json and --csv" in run(*asked, "--gpu", "l4", "--emit", "cmd", "--csv").err


def test_rows_share_out_what_certainly_runs() -> None:
    for made in found("nemotron-3-super-120b-a12b", length="16k", concurrency=200, gpu="gb300").deployments:
        gpus = f"{made.gpus} x GB300"
        line = next(
            line
            for line in run(
                "fit", "nemotron-3-super-120b-a12b", "-L", "16k", "-C", "200", "--gpu", "gb300"
            ).out.splitlines()
            if made.engine.title in line and gpus in line
        )
        assert f" {made.certain / made.gpus:.1f} " in line
