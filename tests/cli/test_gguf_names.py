"""A name of GGUF files means the engine that loads them, whichever command it is given to; no command takes it for a
checkpoint in 16 bits.
"""

import json
from typing import Any

import pytest
from command_line import run

import hybridcalc
from hybridcalc.engines import ENGINES

NAMES = ("qwen3.6-27b:Q4_K_M", "unsloth/Qwen3.6-27B-GGUF:Q4_K_M", "Qwen3.6-27B-Q4_K_M.gguf", "qwen3.6-27b:UD-Q4_K_XL")


def told(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json").out)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [
    ("weights",), ("plan", "-L", "8k", "--gpu", "rtx-4090"), ("crossover",),
])  # fmt: skip
def test_a_command_takes_its_engine_from_the_name(words: tuple[str, ...], name: str) -> None:
    command, *more = words
    assert told(command, name, *more)["engine"] == "llama.cpp"
    assert told(command, "--engine", "vllm", *more, name).get("engine", "vllm") == "vllm"


def test_fit_tries_no_other_engine_for_such_a_name() -> None:
    found = told("fit", NAMES[0], "-L", "8k", "-C", "1", "--gpu", "2xrtx-4090")
    assert {made["launch"]["argv"][0] for made in found["deployments"]} == {"llama-server"}


def test_ratio_refuses_it_and_a_report_plans_it(tmp_path: Any) -> None:
    assert "splits no memory between pools" in run("ratio", NAMES[0], "-L", "8k").err
    page = tmp_path / "page.html"
    assert run("report", NAMES[0], "-o", str(page)).code == 0 and "llama.cpp" in page.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_python_does_too(name: str) -> None:
    model = hybridcalc.load_model(name)
    for asked in (name, model):
        found = hybridcalc.weights(asked)
        assert 13 * 2**30 < found.low < found.likely < found.high < 19 * 2**30
        assert hybridcalc.plan(asked, gpu="rtx-4090").to_dict()["engine"] == "llama.cpp"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(("mix", "least", "most"), [("Q4_K_M", 14, 18), ("Q8_0", 27, 28), ("BF16", 50, 52)])
def test_an_engine_that_is_asked_for_counts_the_bits_of_the_mix(engine: str, mix: str, least: int, most: int) -> None:
    found = hybridcalc.weights(f"qwen3.6-27b:{mix}", engine=engine)
    assert least * 2**30 < found.low <= found.high < most * 2**30 and found.quantization == mix
    assert not found.groups and found.checkpoint_bytes is None


@pytest.mark.parametrize("words", [(), ("qwen3.6-27b",), ("org/model", "http://host:8000"), ("a:b", "--flag=x:y")])
def test_any_other_name_means_the_usual_engine(words: tuple[str, ...]) -> None:
    assert ENGINES.meant_by(words) == ENGINES.usual


@pytest.mark.parametrize(("line", "said"), [
    ("llama-server -m Qwen3.6-27B-Q4_K_M.gguf -c 8192 --lora x.gguf", "--lora: adapters take memory"),
    ("llama-server -m Qwen3.6-27B-Q4_K_M.gguf -c 8192 --mmproj x.gguf", "vision tower is not counted"),
    ("llama-server -m Qwen3.6-27B-Q4_K_M.gguf -c 8192 -md small.gguf", "draft model's weights and KV are not counted"),
])  # fmt: skip
def test_a_flag_whose_memory_is_not_counted_is_said(line: str, said: str) -> None:
    found = json.loads(run("plan", "--gpu", "h100", "-L", "8k", "--json", "--", *line.split()).out)["findings"]
    assert [said in one["message"] for one in found if one["rule"] == "HC224"] == [True]


def test_weights_say_on_which_cards_they_take_another_size() -> None:
    assert "129.61 GiB with --gpu b200" in run("weights", "kimi-k3", "--tp", "16").out
    assert "with --gpu" not in run("weights", "kimi-k3", "--tp", "16", "--gpu", "b200").out
    assert "with --gpu" not in run("weights", "qwen3.6-27b").out


def test_flags_of_llama_cpp_are_swept_and_what_goes_to_the_host_is_no_point() -> None:
    """Each point is its plan; one whose caches a card does not hold beside the weights is refused."""
    line = ("llama-server", "-m", "Qwen3.6-27B-Q4_K_M.gguf", "-c", "32768", "-np", "4")
    axes = ("--sweep", "parallel=2,4,8", "--sweep", "ctx-size=32768,131072")
    points = json.loads(run("plan", "-L", "8k", "--gpu", "rtx-4090", *axes, "--json", "--", *line).out)["sweep"]
    started = [(each["parallel"], each["n_ctx"], each["requests"]) for each in points if each["refusal"] is None]
    assert started == [(2, 32768, 2), (4, 32768, 4), (8, 32768, 0)]
    assert sum("layers go to the host" in str(each["refusal"]) for each in points) == 3
