"""SGLang's metrics: both pools counted in slots and tokens, in use, free and evictable.

    K = used + available + evictable slots          T = used + available + evictable tokens

The counts are called tokens for both pools. Releases before 0.5.12 export shares alone. token_usage is the fullest of
the pools. Requests that wait for a grammar to be compiled, or for KV from another server, have queues of their own.
/server_info has the arguments, the limit of requests a worker, and the release.
Names of SGLang observability/metrics_collector.py (0.5.9 to 0.5.23).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hybridcalc.live.scrape import Scrape
from hybridcalc.live.worker import KV, LARGEST_FIGURE, LIMIT, STATE, Family, Figures, Pool, Worker, text_of

PREFIX, LABEL = "sglang:", "dp_rank"
DOCUMENTS = ("server_info",)
PLANNED = {STATE: "max_mamba_cache_size", KV: "max_total_num_tokens", LIMIT: "max_running_requests"}
"""Pools and the limit of requests -> the figure of a plan that is their size."""
COUNTERS = {"evicted_tokens": "evicted_tokens_total", "retracted": "num_retracted_requests_total"}
RATES = {"hit_rate": "cache_hit_rate", "accept_rate": "spec_accept_rate", "accept_length": "spec_accept_length"}
QUEUES = {
    "num_grammar_queue_reqs": "grammar",
    "num_prefill_bootstrap_queue_reqs": "transfer",
    "num_prefill_inflight_queue_reqs": "transfer",
    "num_decode_prealloc_queue_reqs": "transfer",
    "num_decode_transfer_queue_reqs": "transfer",
}
"""Queues beside the one for memory, and what requests wait for in them."""
PREFIX_TOKENS = "prefill_effective_tokens_total"
"""Tokens of prompts by where they came from: input, or the tier that had them cached."""


def workers(scrape: Scrape) -> Iterator[Worker]:
    """Every worker of a scrape."""
    info = scrape.documents.get("server_info")
    said = info if isinstance(info, Mapping) else {}
    states = said.get("internal_states")
    states = states if isinstance(states, list) else []
    for place, (name, found) in enumerate(Family(scrape, PREFIX, LABEL).workers()):
        own = states[place] if place < len(states) and isinstance(states[place], Mapping) else {}
        running = found("num_running_reqs")
        if running is None:
            continue
        elsewhere = _elsewhere(found)
        yield Worker(
            "sglang",
            f"rank {name}" if name else "",
            found.model() or text_of(said.get("model_path")),
            running,
            (found("num_queue_reqs") or 0.0) + sum(elsewhere.values()),
            dict(_pools(found)),
            version=text_of(said.get("version")),
            retracted=found("num_retracted_reqs") or 0.0,
            limit=_limit(own, said),
            reasons=elsewhere,
            counters=found.named(COUNTERS) | _prefixes(found),
            rates=found.named(RATES),
            launch=str(said.get("launch_command") or ""),
            settings=said,
            hints=tuple(_hints(found)),
            source=scrape.source,
        )


def _pools(found: Figures) -> Iterator[tuple[str, Pool]]:
    for pool, prefix, share in ((STATE, "mamba", "mamba_usage"), (KV, "kv", "full_token_usage")):
        used, free, cached = (found(f"{prefix}_{part}_tokens") for part in ("used", "available", "evictable"))
        if used is not None and free is not None:
            if used + free + (cached or 0) or pool == KV:
                yield pool, Pool(used, used + free + (cached or 0), cached or 0)
            continue
        part = found(share) if pool == STATE else found(share, "token_usage")
        size = found("max_total_num_tokens") if pool == KV else None
        if part is not None:
            yield pool, Pool(part * size if size else None, size or None, 0, part)


def _elsewhere(found: Figures) -> dict[str, float]:
    """Requests that wait for something other than memory or a place."""
    waiting: dict[str, float] = {}
    for metric, reason in QUEUES.items():
        count = found(metric)
        if count:
            waiting[reason] = waiting.get(reason, 0.0) + count
    return waiting


def _prefixes(found: Figures) -> dict[str, float]:
    """Tokens of prompts, and those of them that were cached."""
    tokens = found.by(PREFIX_TOKENS, "mode")
    asked = sum(tokens.values())
    return {"prefix_queries": asked, "prefix_hits": asked - tokens.get("input", 0.0)} if asked else {}


def _hints(found: Figures) -> Iterator[str]:
    taken, places = found("lora_pool_slots_used"), found("lora_pool_slots_total")
    if taken is not None and places and taken >= places:
        yield f"all {places:,.0f} places of adapters are taken"


def _limit(own: Mapping[str, Any], said: Mapping[str, Any]) -> float | None:
    for value in (own.get("effective_max_running_requests_per_dp"), said.get("max_running_requests")):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST_FIGURE:
            return float(value)
    return None
