"""Flags under the names that a release has, as each release's own parser takes them."""

import json
from typing import Any

import pytest
from command_line import plan, run

from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.spelling import misspelt_names, respelled, rows_of
from hybridcalc.errors import InputError, Write, WriteAll

SGLANG, VLLM = ENGINES["sglang"], ENGINES["vllm"]
OLD, NEW = "--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"
LAUNCH = "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B-FP8"


@pytest.mark.parametrize(
    ("engine", "old", "new", "first", "last_of_old"),
    [
        (SGLANG, OLD, NEW, "0.5.14", "0.5.19"),
        (SGLANG, "--nsa-prefill-backend", "--dsa-prefill-backend", "0.5.13", "0.5.19"),
        (SGLANG, "--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "0.5.14", "0.5.19"),
        (SGLANG, "--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-prefill", "0.5.14", "0.5.19"),
        (SGLANG, "--enable-gdn-replayssm-spec", "--enable-linear-replayssm-spec", "0.5.17", "0.5.19"),
        (SGLANG, "--enable-deepep-waterfill", "--enable-waterfill", "0.5.16", "0.5.15"),
        (VLLM, "--gpu-memory-utilization", "--device-memory-utilization", "0.31.0", "0.33.0"),
        (VLLM, "--speculative-config", "-sc", "0.19.0", "0.33.0"),
    ],
)
def test_a_name_is_taken_by_the_releases_that_have_it(
    engine: Engine, old: str, new: str, first: str, last_of_old: str
) -> None:
    """Of the parsers of SGLang 0.5.9 to 0.5.23 and vLLM 0.18 to 0.33."""
    releases = engine.releases
    born = next((row.first for row in rows_of(engine) if row.old == old), "") or releases[0]
    for number, version in enumerate(releases):
        if number >= releases.index(born):
            _taken(engine, new, version, number >= releases.index(first), old)
            _taken(engine, old, version, number <= releases.index(last_of_old), new)


def _taken(engine: Engine, name: str, version: str, has: bool, other: str) -> None:
    assert [each.instead for each in misspelt_names(engine, [f"{name}=1"], version)] == ([] if has else [other])
    if has:
        return
    assert respelled(f"add {name} 4", rows_of(engine), version) == f"add {other} 4"


def test_a_flag_that_a_release_has_under_no_name_is_said_to_come() -> None:
    """0.5.11 has neither --enable-deepep-waterfill (0.5.12) nor what it is called since."""
    with pytest.raises(InputError, match=r"yet: the first release that has it is 0\.5\.12"):
        misspelt_names(SGLANG, ["--enable-deepep-waterfill"], "0.5.11")


def test_a_fix_that_is_flags_stays_one() -> None:
    """So that it can be applied: its value and what is said behind it are kept."""
    one = respelled(Write(NEW, "no_buffer", " or so"), rows_of(SGLANG), "0.5.12")
    assert isinstance(one, Write)
    assert (one.sets, one.more) == (f"{OLD} no_buffer", " or so")
    both = respelled(WriteAll(f"{NEW} no_buffer --tp 2", ""), rows_of(SGLANG), "0.5.12")
    assert isinstance(both, WriteAll)
    assert both.sets == f"{OLD} no_buffer --tp 2"


def test_a_launch_under_a_name_that_its_release_lacks_is_planned_and_told() -> None:
    """SGLang 0.5.12 knows --mamba-scheduler-strategy alone, and 0.5.20 --mamba-radix-cache-strategy."""
    for version, typed, name in (("0.5.12", NEW, OLD), ("0.5.20", OLD, NEW)):
        asked = ("plan", "--rest", "40GiB", "-L", "8k", "--engine-version", version, "--json", "--", *LAUNCH.split())
        told, plain = (json.loads(run(*asked, flag, "extra_buffer").out) for flag in (typed, name))
        assert told["requests"] == plain["requests"]
        (finding,) = [each for each in told["findings"] if each["rule"] == "HC071"]
        assert finding["message"] == f"no start: SGLang {version} has no {typed}: its name there is {name}"
        assert finding["fix"] == f"write {name}"


@pytest.mark.parametrize(("version", "name"), [("0.5.12", OLD), ("0.5.16", NEW), ("0.5.23", NEW)])
def test_what_is_written_has_the_names_of_its_release(version: str, name: str) -> None:
    """Typed for hybridcalc under the newest name, written as the release calls it."""
    words = ("Qwen/Qwen3.6-27B-FP8", NEW, "extra_buffer", "--cuda-graph-max-bs-decode", "64")
    answer: dict[str, Any] = plan(*words, "--rest", "40GiB", "--engine-version", version)
    argv = answer["launch"]["argv"]
    assert name in argv
    assert ("--cuda-graph-max-bs" in argv) is (name == OLD)


def test_a_refusal_names_the_flag_as_its_release_does() -> None:
    """extra_buffer_lazy came with 0.5.13, whose flag has the old name."""
    words = ("--rest", "40GiB", "--engine-version", "0.5.12")
    refusal = plan("Qwen/Qwen3.6-27B-FP8", NEW, "extra_buffer_lazy", *words, code=1)["refusal"]
    assert refusal["reason"].startswith(f"SGLang 0.5.12 has no {OLD} extra_buffer_lazy yet")
    assert refusal["fix"] == f"drop {OLD}, or use --engine-version 0.5.13"
