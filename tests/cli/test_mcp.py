"""The commands as tools, asked by the protocol's own client over the pipes of a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run

pytestmark = pytest.mark.needs("mcp")
LAUNCH = "sglang serve --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
LINES = [LAUNCH, LAUNCH + " --mamba-radix-cache-strategy extra_buffer_lazy"]
MANY = ("--gpu", "h100,h200,b300,l40s", "-L", "8192", "-C", "100")
METRICS = "examples/kimi-k3-metrics.txt"
LOG = "examples/kimi-k3-boot.log"
ALIKE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plan": (
        {"launch": LAUNCH, "rest": "28.55GiB", "length": "9216"},
        ("--rest", "28.55GiB", "-L", "9216", "--", *LAUNCH.split()),
    ),
    "fit": (
        {
            "model": "qwen3.6-35b-a3b",
            "length": "8k",
            "concurrency": 100,
            "gpu": "h200",
            "pace": 40,
            "headroom": "10%",
            "allow": "accuracy",
        },
        (
            "qwen3.6-35b-a3b",
            "-L",
            "8k",
            "-C",
            "100",
            "--gpu",
            "h200",
            "--pace",
            "40",
            "--headroom",
            "10%",
            "--allow",
            "accuracy",
        ),
    ),
    "compare": ({"launches": LINES, "gpu": "h200", "length": "8k"}, (*LINES, "--gpu", "h200", "-L", "8k")),
    "log": ({"path": LOG, "length": "9216"}, (LOG, "-L", "9216")),
    "live": ({"urls": [METRICS]}, (METRICS,)),
    "check": ({"path": "examples/deployments/bad"}, ("examples/deployments/bad",)),
    "ratio": ({"model": "kimi-k3", "length": "9216", "tp_size": 8}, ("kimi-k3", "-L", "9216", "--tp", "8")),
    "weights": ({"model": "kimi-k3", "tp_size": 8}, ("kimi-k3", "--tp", "8")),
}
"""A tool -> its arguments, and the command line that asks the same."""
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("plan", {"model": "no-such-model", "gpu": "h200", "length": "8k"}, "no-such-model"),
    ("plan", {"model": "--save=/tmp/x.html", "gpu": "h200"}, "is an option"),
    ("plan", {"model": "kimi\0k3", "gpu": "h200"}, "no command takes an argument like that: embedded null byte"),
    ("plan", {"model": "k" * 200_000}, "no command takes an argument like that: argument list too long"),
    ("plan", {"launch": "sglang serve 'open", "gpu": "h200"}, "No closing quotation"),
    ("weights", {"model": "kimi-k3", "tp": 3}, "'tp' is not an argument of weights: write tp_size"),
    ("plan", {"model": "kimi-k3", "foo": 1}, "'foo' is not an argument of plan: it takes launch, model, gpu, length"),
    ("check", {"txt": "x"}, "write text"),
    ("plan", {"launch": 5, "gpu": []}, "plan: launch: input should be a valid string; gpu: "),
    ("log", {}, "give either text or path"),
    ("log", {"text": "x", "path": LOG}, "give either text or path"),
]


async def _ask(calls: list[tuple[str, dict[str, Any]]]) -> tuple[list[Any], list[Any]]:
    from mcp import Client, StdioServerParameters

    root = str(Path(__file__).resolve().parents[2])
    server = StdioServerParameters(command=sys.executable, args=["-m", "hybridcalc", "mcp"], cwd=root)
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        return tools, [await client.call_tool(name, arguments) for name, arguments in calls]


@pytest.fixture(scope="module")
def answers() -> tuple[list[Any], list[Any]]:
    """The tools, and what one process of the server answers: to ALIKE, to REFUSED, and to a log's text."""
    text = (Path(__file__).resolve().parents[2] / LOG).read_text(encoding="utf-8")
    calls = [(name, arguments) for name, (arguments, _) in ALIKE.items()]
    calls += [(name, arguments) for name, arguments, _ in REFUSED]
    calls += [("fit", {"model": "qwen3.6-35b-a3b", "gpu": MANY[1], "length": 8192, "concurrency": 100})]
    calls += [("plan", {"model": "kimi-k3", "gpu": "8xb200", "length": 9216, "engine_version": "0.5.20"})]
    return asyncio.run(_ask([*calls, ("log", {"text": text, "length": "9216"})]))


def test_every_tool_says_what_it_is_for(answers: tuple[list[Any], list[Any]]) -> None:
    tools = {tool.name: tool.description for tool in answers[0]}
    assert tools.keys() == ALIKE.keys()
    assert all(len(description) > 40 for description in tools.values())
    assert all(tool.input_schema["additionalProperties"] is False for tool in answers[0])


@pytest.mark.parametrize("name", ALIKE)
def test_a_tool_answers_with_the_document_of_its_command(
    answers: tuple[list[Any], list[Any]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    answer = answers[1][list(ALIKE).index(name)]
    assert not answer.is_error
    assert answer.structured_content == run(name, "--json", *ALIKE[name][1]).document


def test_fit_leaves_out_what_only_costs_more(answers: tuple[list[Any], list[Any]]) -> None:
    """Of all GPUs that is nine tenths of the document."""
    of_command = run("fit", "qwen3.6-35b-a3b", *MANY, "--json").document
    assert {lost["kind"] for lost in of_command["refused"]} == {"dearer"}
    assert answers[1][-3].structured_content == of_command | {"refused": []}


def test_a_length_may_be_a_number_and_a_release_is_asked_for(answers: tuple[list[Any], list[Any]]) -> None:
    of_number = run("plan", "kimi-k3", "--gpu", "8xb200", "-L", "9216", "--engine-version", "0.5.20", "--json").document
    assert answers[1][-2].structured_content == of_number
    assert of_number["engine_version"] == "0.5.20"


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused_is_an_error_that_says_why(answers: tuple[list[Any], list[Any]], number: int) -> None:
    answer = answers[1][len(ALIKE) + number]
    assert answer.is_error
    assert REFUSED[number][2] in answer.content[0].text


def test_the_text_of_a_log_is_read_as_the_file_is(answers: tuple[list[Any], list[Any]]) -> None:
    of_path, of_text = answers[1][list(ALIKE).index("log")].structured_content, answers[1][-1].structured_content
    assert [boot | {"file": "stdin"} for boot in of_path["boots"]] == of_text["boots"]


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert run("mcp") == (2, "", "error: mcp needs the library mcp\n       pip install 'hybridcalc[mcp]'\n")
