"""SGLang's metrics: both pools counted in slots and tokens, in use, free and evictable.

    K = used + available + evictable slots          T = used + available + evictable tokens

The counts are called tokens for both pools. Releases before 0.5.12 export shares alone. token_usage is the fullest of
the pools. /server_info has the arguments, the limit of requests a worker, and the release.
Names of SGLang observability/metrics_collector.py (0.5.9 to 0.5.23).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hybridcalc.live.scrape import Scrape
from hybridcalc.live.worker import KV, STATE, Family, Figures, Pool, Worker

PREFIX, LABEL = "sglang:", "dp_rank"
COUNTERS = {"evicted_tokens": ("evicted_tokens_total",)}


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
        rate = found("cache_hit_rate")
        yield Worker(
            "sglang",
            f"rank {name}" if name else "",
            found.model() or _text(said.get("model_path")),
            running,
            found("num_queue_reqs") or 0.0,
            dict(_pools(found)),
            version=_text(said.get("version")),
            retracted=found("num_retracted_reqs") or 0.0,
            limit=_limit(own, said),
            counters=found.counters(COUNTERS) | ({} if rate is None else {"hit_rate": rate}),
            launch=str(said.get("launch_command") or ""),
            settings=said,
        )


def _pools(found: Figures) -> Iterator[tuple[str, Pool]]:
    for pool, prefix, share in ((STATE, "mamba", "mamba_usage"), (KV, "kv", "full_token_usage")):
        used, free, cached = (found(f"{prefix}_{part}_tokens") for part in ("used", "available", "evictable"))
        if used is not None and free is not None:
            yield pool, Pool(used, used + free + (cached or 0), cached or 0)
            continue
        part = found(share) if pool == STATE else found(share, "token_usage")
        size = found("max_total_num_tokens") if pool == KV else None
        if part is not None:
            yield pool, Pool(part * size if size else part, size)


def _limit(own: Mapping[str, Any], said: Mapping[str, Any]) -> float | None:
    for value in (own.get("effective_max_running_requests_per_dp"), said.get("max_running_requests")):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None
