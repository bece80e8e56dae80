"""Alerts on states of servers: promtool evaluates the rules on series, and what fires is the verdict of `live`.

Skipped where no promtool is installed; that the rules parse and name known metrics is tested in any case.
"""

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridcalc.live import alerts
from hybridcalc.live.verdict import binding
from hybridcalc.live.worker import BLOCKS, KV, LIMIT, OTHER, STATE, Pool, Worker

PROMTOOL = shutil.which("promtool")
SLOTS, STATES = 5, 150
SGLANG = {STATE: "StatePoolBinds", KV: "KvBinds", OTHER: "NoPoolBinds", None: None}
VLLM = {BLOCKS: "BlocksBind", LIMIT: "LimitBinds", OTHER: "NoPoolBinds", None: None}


def sglang(chance: random.Random) -> tuple[dict[str, float], str | None]:
    """Metrics of a server, and what `live` says of them."""
    slots, tokens = chance.choice((0, 257, 300)), 100_000
    most = slots // SLOTS
    running = chance.choice((most, max(0, most - 1), chance.randint(1, 80)))
    used = min(slots, chance.choice((4, 5)) * running)
    kv = chance.choice((0, tokens // 2, 94_999, 95_001, tokens))
    queued, retracted = chance.choice((0, 3)), chance.choice((0, 0, 0, 2))
    pools = {KV: Pool(kv, tokens)} | ({STATE: Pool(used, slots)} if slots else {})
    worker = Worker("sglang", "", None, running, queued, pools, retracted=retracted)
    figures = {
        "num_running_reqs": running,
        "num_queue_reqs": queued,
        "num_retracted_reqs": retracted,
        "mamba_used_tokens": used,
        "mamba_available_tokens": slots - used,
        "mamba_evictable_tokens": 0,
        "mamba_usage": used / slots if slots else 0,
        "kv_used_tokens": kv,
        "kv_available_tokens": tokens - kv,
        "kv_evictable_tokens": 0,
        "full_token_usage": kv / tokens,
    }
    return {f"sglang:{name}": value for name, value in figures.items()}, SGLANG[binding(worker, SLOTS)]


def vllm(chance: random.Random) -> tuple[dict[str, float], str | None]:
    usage, queued, reason = (
        chance.choice((0.2, 0.95, 0.951, 1.0)),
        chance.choice((0, 4)),
        chance.choice(("capacity", "deferred")),
    )
    worker = Worker("vllm", "", None, 9, queued, {BLOCKS: Pool(None, None, 0, usage)}, reasons={reason: queued})
    figures = {
        "num_requests_running": 9,
        "num_requests_waiting": queued,
        "kv_cache_usage_perc": usage,
        f'num_requests_waiting_by_reason{{reason="{reason}"}}': queued,
    }
    return {f"vllm:{name}": value for name, value in figures.items()}, VLLM[binding(worker, None)]


def series(metric: str, number: int, value: float) -> dict[str, Any]:
    name, _, labels = metric.partition("{")
    return {"series": f'{name}{{instance="{number}",{labels.rstrip("}")}}}', "values": f"{value}x20"}


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool of Prometheus")
@pytest.mark.parametrize("state", [sglang, vllm], ids=["sglang", "vllm"])
def test_what_fires_is_the_verdict(state: Any, tmp_path: Path) -> None:
    chance = random.Random(7)
    states = [state(chance) for _ in range(STATES)]
    assert len({verdict for _, verdict in states}) == 4
    names = [name for name, _, _ in alerts.alerts(SLOTS)]
    fires: dict[str, list[int]] = {name: [] for name in names}
    for number, (_, verdict) in enumerate(states):
        if verdict is not None:
            fires[verdict].append(number)
    expressions = {name: expression for name, expression, _ in alerts.alerts(SLOTS)}
    checks = [
        {
            "expr": f"count by (instance) ({expressions[name]})",
            "eval_time": "10m",
            "exp_samples": [{"labels": f'{{instance="{number}"}}', "value": 1} for number in numbers],
        }
        for name, numbers in fires.items()
    ]
    rules, test = tmp_path / "rules.yml", tmp_path / "test.yml"
    rules.write_text(alerts.prometheus(SLOTS))
    given = [
        series(metric, number, value) for number, (found, _) in enumerate(states) for metric, value in found.items()
    ]
    test.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(rules)],
                "evaluation_interval": "1m",
                "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": checks}],
            }
        )
    )
    assert PROMTOOL is not None
    checked = subprocess.run([PROMTOOL, "check", "rules", rules], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    ran = subprocess.run([PROMTOOL, "test", "rules", test], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
