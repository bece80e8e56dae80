"""vLLM's metrics: one pool of blocks for states and KV, its share in use, and the cache's own settings as labels.

    blocks in use = kv_cache_usage_perc x num_gpu_blocks          of all groups, states included

There is no metric of the states alone. Requests wait for a reason: ``capacity`` is blocks or sequences, ``deferred`` is
something else (a transfer, an adapter, a grammar). Names of vLLM v1/metrics/loggers.py (0.33).
"""

from collections.abc import Iterator
from typing import Any

from hybridcalc.live.scrape import Scrape
from hybridcalc.live.worker import BLOCKS, LIMIT, Family, Pool, Worker

PREFIX, LABEL = "vllm:", "engine"
DOCUMENTS = ()
PLANNED = {BLOCKS: "num_blocks", LIMIT: "max_num_seqs"}
"""Pools and the limit of requests -> the figure of a plan that is their size."""
DEFAULT_BLOCK = "16"
"""What releases export whose workers settle the tokens of a block later."""
COUNTERS = {
    "preempted": "num_preemptions_total",
    "prefix_queries": "prefix_cache_queries_total",
    "prefix_hits": "prefix_cache_hits_total",
    "drafted": "spec_decode_num_draft_tokens_total",
    "accepted": "spec_decode_num_accepted_tokens_total",
}
SETTINGS = {
    "cache_dtype": "kv_cache_dtype",
    "mamba_cache_mode": "mamba_cache_mode",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "gpu_memory_utilization",
}
"""Labels of cache_config_info -> the argument that they settle."""


def workers(scrape: Scrape) -> Iterator[Worker]:
    """Every engine core of a scrape."""
    for name, found in Family(scrape, PREFIX, LABEL).workers():
        running = found("num_requests_running")
        if running is None:
            continue
        cache = found.labels("cache_config_info")
        blocks, usage = _number(cache.get("num_gpu_blocks")), found("kv_cache_usage_perc", "gpu_cache_usage_perc")
        pools = {} if usage is None else {BLOCKS: Pool(usage * blocks if blocks else None, blocks, 0, usage)}
        yield Worker(
            "vllm",
            f"engine {name}" if name else "",
            found.model(),
            running,
            found("num_requests_waiting") or 0.0,
            pools,
            reasons=found.by("num_requests_waiting_by_reason", "reason"),
            counters=found.named(COUNTERS),
            settings={own: value for label, own in SETTINGS.items() if (value := _value(cache.get(label))) is not None},
            block_tokens=None if cache.get("block_size") == DEFAULT_BLOCK else _number(cache.get("block_size")),
            source=scrape.source,
        )


def _number(text: str | None) -> float | None:
    """A count that is a label; None for anything else, and for none."""
    known = text is not None and text.isascii() and text.isdecimal() and len(text) < 16
    return (float(text or 0) or None) if known else None


def _value(text: str | None) -> Any:
    """A label as the argument that it was."""
    if text in (None, "None", ""):
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text) if text and "." in text else text
    except ValueError:
        return text
