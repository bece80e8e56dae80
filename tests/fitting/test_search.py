"""The pruned search is the full one, and each row is what `plan` says of its launch line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import run
from fitting.spaces import found_alike, question, random_question
from jsonschema import Draft202012Validator

import hybridcalc
from hybridcalc.fitting.answer import Fit, command_text
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.models import FitModels
from hybridcalc.fitting.question import Question
from hybridcalc.fitting.search import Search
from hybridcalc.output.schema import schema_of

SPACES = [
    question("qwen3.6-35b-a3b", 16384, 40, "h100,l40s"),
    question("qwen3.6-35b-a3b", 131072, 3, "4xrtx-4090,a100-80gb", "accuracy", engine="sglang", ranks=(1, 2)),
    question("qwen3.6-35b-a3b", 131072, 3, "4xrtx-4090,a100-80gb", "accuracy", engine="vllm"),
    question("kimi-linear-48b-a3b", 65536, 64, "h200", "reuse", ranks=(1, 2, 3, 4, 8)),
    question("nemotron-3-nano-30b-a3b", 8192, 300, "b200,h20-96gb", engine="sglang@0.5.20"),
    question("qwen3.5-9b", 30000, 25, "l4,a10", "accuracy", "reuse", ranks=(1, 2)),
    question("granite-4.0-h-small", 100_000, None, "4xa100-40gb", "reuse"),
    question("llama-3.1-8b", 4096, 100, "rtx-5090,mi300x", ranks=(1, 2)),
    question("qwen3.6-35b-a3b", 65536, 40, "h200,l40s", pace=60.0),
    question("lfm2-8b-a1b", 8192, 200, "rtx-4090,l40s", "accuracy", engine="llama.cpp", ranks=(1, 2)),
    *(random_question(seed) for seed in range(12)),
]


@pytest.mark.parametrize(
    "asked",
    SPACES,
    ids=[f"{each.models[0].name} on {each.offers[0].name}, {place}" for place, each in enumerate(SPACES)],
)
def test_pruned_search_finds_what_planning_everything_finds(asked: Question) -> None:
    """The best of each group, in order, with the same requests: of all combinations planned one by one."""
    assert found_alike(asked)


ROWS, EVERY = 200, 3
"""Rows planned again, and of how many workloads one is asked: the thirds take every model, length and allowance."""
WORKLOADS = [(model, length, requests) for model in ("qwen3.5-397b-a17b", "qwen3.6-35b-a3b", "kimi-linear-48b-a3b",
             "nemotron-3-nano-30b-a3b", "falcon-h1-34b", "granite-4.0-h-small", "lfm2-8b-a1b", "qwen3.5-9b")
             for length, requests in ((1000, 500), (16384, 100), (65536, 30), (250_000, 3), (40_000, 64))]  # fmt: skip


def rows() -> Iterator[Deployment]:
    """Rows of many questions: all kinds of GPU, both engines, settings that change answers and such that do not; those
    of models on hardware that is there, and those that keep a pace.
    """
    for gpus, length, pace in (("2xl40s", 16384, None), ("h200", 8192, 40.0)):
        found = hybridcalc.fit(gpu=gpus, length=length, pace=pace)
        assert isinstance(found, FitModels)
        yield from found.deployments
    for number, (model, length, requests) in list(enumerate(WORKLOADS))[::EVERY]:
        for gpus in ("h100,b200,l40s,rtx-4090", "h200,a100-80gb,rtx-pro-6000,mi300x"):
            allowed = ((), ("accuracy",), ("reuse",), ("accuracy", "reuse"))[number % 4]
            asked = question(model, length, requests, gpus, *allowed, ranks=(1, 2, 3, 4, 8))
            yield from Search(asked, 8).run().deployments


def test_rows_planned_again_serve_what_they_say() -> None:
    """200 launch lines through `plan -- LINE --gpu`: the same requests, likely and certain, workers and GPUs."""
    planned = 0
    for made in rows():
        variables = [f"{name}={value}" for name, value in made.launch["env"].items()]
        line = [*variables, *made.launch["argv"]]
        length = made.one.workload.longest
        ran = run("plan", "--json", "-L", f"{length}", "--gpu", made.offer.name, "--fail-on", "never", "--", *line)
        plan = ran.document
        said = (made.requests, made.gpus, made.servers * made.shape.workers)
        times = made.launches
        assert (plan["requests"] * times, plan["gpus"] * times, plan["workers"] * times) == said, command_text(
            made.launch
        )
        planned += 1
        if planned == ROWS:
            break
    assert planned == ROWS


def test_a_workload_that_nothing_serves_names_what_comes_nearest() -> None:
    """Of one kind of GPU: what it runs at most, and how many requests more are asked for."""
    asked = question("qwen3.6-35b-a3b", 131072, 500, "2xl40s")
    near = Fit(asked, Search(asked, 4).run()).nearest
    assert near is not None
    assert near.made is not None
    assert near.lacks_requests == 500 - near.made.certain
    assert near.more is not None
    assert near.more.certain >= 500


def test_models_on_hardware_are_as_the_schema_says() -> None:
    """The document of the inverse question, and records that a table takes."""
    ran = run("fit", "--gpu", "rtx-4090", "-L", "8k", "-C", "8", "--json")
    Draft202012Validator(schema_of("fit")).validate(ran.document)
    assert {row["name"] for row in ran.document["models"]}.isdisjoint({"kimi-k3", "qwen3.5-397b-a17b"})
    assert all(row["requests_certain"] >= 8 and row["max_length"] >= 8192 for row in ran.document["models"])
