"""hybridcalc.yaml: what it expects is held against the plan, and the file itself is read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged import check, found
from present import present

from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings

NATIVE = """\
deployments:
  - name: k3
    model: kimi-k3
    engine: sglang
    flags: {tp-size: 8, kv-cache-dtype: fp8_e4m3}
    hardware: {rest: 28.55GiB}
    workload: {length: 9216}
    expect:
      fits: %s
      min_requests: %s
      min_tokens: %s
      max_idle_percent: %s
"""


def test_expectations_are_checks(tmp_path: Path) -> None:
    good = check(tmp_path, NATIVE % ("true", 51, "1M", 61), "hybridcalc.yaml", ignore=("HC010", "HC012"))
    assert found(good) == {}
    bad = check(tmp_path, NATIVE % ("false", 52, "2M", 59), "hybridcalc.yaml", ignore=("HC010", "HC012"))
    assert {rule: place[0] for rule, place in found(bad).items()} == {"HC074": 9, "HC075": 10, "HC076": 11, "HC077": 12}
    assert found(bad)["HC075"][2] == "51 requests run, 52 are expected"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("engine: sglang\n    flag: {}", "5: deployments.0.flag: no such key (write flags)"),
        ("engine: tgi", "4: deployments.0.engine: not one of its values (write sglang, vllm or llama.cpp)"),
        ("hardware: {gpus: many}", "4: deployments.0.hardware.gpus: not a whole number"),
        ("hardware: {gpus: 0}", "4: deployments.0.hardware.gpus: below 1"),
        ("expect: {min_request: 4}", "4: deployments.0.expect.min_request: no such key (write min_requests)"),
        ("hardware: {rest: lots}", "4: deployments.0.hardware.rest: 'lots' is not a size"),
        ("workload: {length: 8k, lengths: '8k:2'}", "4: deployments.0.workload: length and lengths exclude each other"),
        ("flags: {tp: 8}", "2: a deployment needs an engine"),
    ],
)
def test_a_native_file_is_strict_and_names_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "hybridcalc.yaml"
    path.write_text(f"deployments:\n  - name: a\n    model: kimi-k3\n    {line}\n")
    result = check_file(str(path), Settings(), {})
    (trouble,) = present(result).troubles
    fix = f" ({trouble.fix})" if trouble.fix.startswith("write") and "(" in message else ""
    assert f"{trouble.line}: {trouble.message}{fix}" == message


def test_an_expectation_that_cannot_be_held_waits(tmp_path: Path) -> None:
    text = (NATIVE % ("true", 51, "1M", 61)).replace("    hardware: {rest: 28.55GiB}\n", "")
    checked = check(tmp_path, text, "hybridcalc.yaml")
    missing = ("the GPU",)
    assert {(rule, missing) for rule in ("HC074", "HC075", "HC076", "HC077")} <= set(checked.waiting)


def test_a_native_file_may_name_a_model_beside_it(tmp_path: Path) -> None:
    config = Path(__file__).parent.parent.parent / "examples" / "qwen3.5-27b" / "config.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    text = "deployments: [{model: ./config.json, engine: sglang, flags: {tp-size: 5}}]\n"
    assert "HC009" in found(check(tmp_path, text, "hybridcalc.yaml"))


FIGURES = """deployments:
  - model: kimi-k3
    engine: sglang
    flags: {tp-size: 8%s}
    hardware: {%s}
    workload: {length: 9216}
    expect: {fits: true, min_requests: 4}
"""


def test_an_expectation_that_cannot_be_judged_is_not_met(tmp_path: Path) -> None:
    opened = check(tmp_path, FIGURES % ("", ""), name="hybridcalc.yaml").opened
    assert [(item.text, item.line, item.column, item.fix) for item in opened] == [
        ("expect: fits", 7, 20, "give the GPU"),
        ("expect: min_requests", 7, 40, "give the GPU"),
    ]
    assert check(tmp_path, FIGURES % ("", "gpu: h200, weights: 96GiB"), name="hybridcalc.yaml").opened == ()
    assert check(tmp_path, FIGURES % ("", ""), name="hybridcalc.yaml", ignore=("HC07",)).opened == ()
