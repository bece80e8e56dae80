"""Rules for Prometheus and a dashboard for Grafana: expressions parse, of metrics that are read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_line import run

from hybridcalc.live import alerts, llamacpp, sglang, vllm

promql = pytest.importorskip("promql_parser")
METRIC = re.compile(r"\b(?:sglang|vllm|llamacpp):\w+")
SOURCES = "".join(Path(module.__file__ or "").read_text() for module in (sglang, vllm, llamacpp))


def expressions() -> Iterator[str]:
    for group in yaml.safe_load(alerts.prometheus(5))["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for panel in json.loads(alerts.grafana(5))["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_is_promql_of_known_metrics(expression: str) -> None:
    promql.parse(expression)
    for metric in METRIC.findall(expression):
        prefix, _, name = metric.partition(":")
        for pool in ("mamba_", "kv_"):  # both pools have the same names
            if name.startswith(pool) and name.endswith("_tokens"):
                name = name.removeprefix(pool).removesuffix("_tokens")
        assert name in SOURCES, f"{prefix} {name}"


def test_rules_hold_s_and_are_named_once() -> None:
    rules = yaml.safe_load(alerts.prometheus(3))["groups"][0]["rules"]
    names = [rule.get("alert") or rule["record"] for rule in rules]
    assert len(set(names)) == len(names)
    assert sum("/ 3)" in rule["expr"] for rule in rules) >= 3


def test_both_are_printed_by_the_command() -> None:
    assert run("live", "--rules", "prometheus")[:2] == (0, alerts.prometheus(5))
    assert run("live", "--dashboard", "grafana", "--slots", "3")[:2] == (0, alerts.grafana(3))
    code, _, err = run("live", "--rules", "datadog")
    assert code == 2
    assert "write prometheus" in err
