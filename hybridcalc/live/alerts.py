"""Rules for Prometheus and a dashboard for Grafana that say what ``live`` says.

    state pool    queue > 0, and running >= floor(K / S) or slots > 0.95        K = used + available + evictable slots
    KV            queue > 0, and usage > 0.95 or requests retracted or preempted in the last minutes, unless states bind
    limit         vLLM: requests wait for capacity, and blocks are not full
    no pool       queue > 0, and none of these

S is the number of slots a request keeps: a figure of the launch, given as it is planned. A model without states exports
0 slots, which bind nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

from hybridcalc.live.verdict import FULL

MINUTES = 5
SLOTS = "(sglang:mamba_used_tokens + sglang:mamba_available_tokens + sglang:mamba_evictable_tokens)"
TOKENS = "(sglang:kv_used_tokens + sglang:kv_available_tokens + sglang:kv_evictable_tokens)"
WAITS, VLLM_WAITS = "sglang:num_queue_reqs > 0", "vllm:num_requests_waiting > 0"
RETRACTED = f"max_over_time(sglang:num_retracted_reqs[{MINUTES}m]) > 0"
KV_FULL = f"(sglang:kv_used_tokens / {TOKENS} > {FULL} or sglang:full_token_usage > {FULL})"
BLOCKS_FULL = f"vllm:kv_cache_usage_perc > {FULL}"
PREEMPTED = f"increase(vllm:num_preemptions_total[{MINUTES}m]) > 0"
DEFERRED = 'vllm:num_requests_waiting_by_reason{reason="deferred"}'
FOR_MEMORY = f"((vllm:num_requests_waiting - ignoring(reason) {DEFERRED}) or vllm:num_requests_waiting) > 0"
"""All that wait but those that are deferred, where a release says how many."""
CAPACITY = 'vllm:num_requests_waiting_by_reason{reason="capacity"} > 0'


def states_bind(slots: int) -> str:
    """Requests wait for state slots."""
    reached = f"sglang:num_running_reqs >= floor(({SLOTS} > 0) / {slots})"
    return f"{WAITS} and ({reached} or sglang:mamba_usage > {FULL})"


def recorded(slots: int) -> tuple[tuple[str, str], ...]:
    """Recording rules: name and expression."""
    return (
        ("hybridcalc:state_slots", SLOTS),
        ("hybridcalc:state_requests_most", f"floor({SLOTS} / {slots})"),
        ("hybridcalc:state_slots_held", "sglang:mamba_used_tokens / (sglang:num_running_reqs > 0)"),
        ("hybridcalc:kv_tokens", TOKENS),
        ("hybridcalc:kv_tokens_held", "sglang:kv_used_tokens / (sglang:num_running_reqs > 0)"),
        ("hybridcalc:kv_usage", f"sglang:kv_used_tokens / {TOKENS}"),
        ("hybridcalc:block_usage", "vllm:kv_cache_usage_perc"),
    )


def alerts(slots: int) -> tuple[tuple[str, str, str], ...]:
    """Alerting rules: name, expression, what it says."""
    state, kv = states_bind(slots), f"({WAITS} and ({KV_FULL} or {RETRACTED}))"
    blocks = f"({FOR_MEMORY} and ({BLOCKS_FULL} or {PREEMPTED}))"
    limit = f"({CAPACITY} unless ignoring(reason) {blocks})"
    return (
        ("StatePoolBinds", state, f"Requests wait for state slots: K // {slots} run. Raise --mamba-full-memory-ratio."),
        (
            "KvBinds",
            f"{kv} unless ({state})",
            "Requests wait for KV, or are retracted. Lower --mamba-full-memory-ratio.",
        ),
        ("BlocksBind", blocks, "Requests wait for blocks, or are preempted: states and KV share them."),
        ("LimitBinds", limit, "Requests wait, and blocks are free: raise --max-num-seqs."),
        (
            "NoPoolBinds",
            f"({WAITS} unless ({state}) unless {kv})"
            f" or ({VLLM_WAITS} unless {blocks} unless ignoring(reason) {CAPACITY})",
            "Requests wait and no pool is full: a limit, adapters, grammars or a router.",
        ),
        (
            "SlotsBind",
            "llamacpp:requests_deferred > 0",
            "Requests wait for a slot of llama.cpp: raise --parallel, and --ctx-size with it.",
        ),
    )


def prometheus(slots: int) -> str:
    """A file of rules for Prometheus, YAML."""
    lines = ["groups:", "- name: hybridcalc", "  rules:"]
    for name, expression in recorded(slots):
        lines += [f"  - record: {name}", f"    expr: {json.dumps(expression)}"]
    for name, expression, said in alerts(slots):
        lines += [
            f"  - alert: {name}",
            f"    expr: {json.dumps(expression)}",
            f"    for: {MINUTES}m",
            "    labels: {severity: warning}",
            f"    annotations: {{summary: {json.dumps(said)}}}",
        ]
    return "\n".join(lines) + "\n"


def grafana(slots: int) -> str:
    """A dashboard for Grafana, JSON: what binds, requests, pools in use, what a request holds."""
    bound = {name: f"count({expression}) or vector(0)" for name, expression, _ in alerts(slots)}
    panels: tuple[tuple[str, Mapping[str, str], str], ...] = (
        ("Workers on which it binds", bound, "short"),
        (
            "Requests",
            _named(
                "sglang:num_running_reqs",
                "sglang:num_queue_reqs",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "llamacpp:requests_processing",
                "llamacpp:requests_deferred",
            )
            | {"K // S": f"floor({SLOTS} / {slots})"},
            "short",
        ),
        (
            "Pools in use",
            {
                "slots": f"sglang:mamba_used_tokens / {SLOTS}",
                "KV": f"sglang:kv_used_tokens / {TOKENS}",
                "blocks": "vllm:kv_cache_usage_perc",
            },
            "percentunit",
        ),
        ("Slots a running request", {"slots": "sglang:mamba_used_tokens / (sglang:num_running_reqs > 0)"}, "short"),
        ("Tokens a running request", {"tokens": "sglang:kv_used_tokens / (sglang:num_running_reqs > 0)"}, "short"),
    )
    made: list[dict[str, Any]] = [
        {
            "id": place + 1,
            "type": "timeseries",
            "title": title,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"h": 8, "w": 12, "x": 12 * (place % 2), "y": 8 * (place // 2)},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + n), "expr": query, "legendFormat": f"{name} {{{{instance}}}}"}
                for n, (name, query) in enumerate(queries.items())
            ],
        }
        for place, (title, queries, unit) in enumerate(panels)
    ]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    dashboard = {
        "title": "State and KV pools",
        "uid": "hybridcalc",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": made,
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _named(*metrics: str) -> dict[str, str]:
    """Metrics under their own names."""
    return {metric.partition(":")[2]: metric for metric in metrics}
