"""llama.cpp's metrics: slots that process, requests that are put off, and what each slot holds of its cells.

/slots says what each slot's sequence holds and how long it may be, /props how many slots there are; the metrics alone
say how many process. A request is deferred where no slot is free, or not the one that it asks for. Whether slots share
one cache (n_ctx is all of it, for each) or have one each is said nowhere but in the launch line: sequences that are
together longer than one slot may be do not share.
Names of llama.cpp tools/server (b11434).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from hybridcalc.deployment import Memory
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion
from hybridcalc.live.scrape import Scrape
from hybridcalc.live.worker import KV, LIMIT, PLACE, Family, Pool, Worker, count_of, text_of
from hybridcalc.units import format_bytes

PREFIX, LABEL = "llamacpp:", "none"
DOCUMENTS = ("slots", "props")
PLANNED = {KV: "n_ctx", LIMIT: "n_seq_max"}
"""Pools and the limit of requests -> the figure of a plan that is their size."""
COUNTERS = {"drafted": "spec_decode_num_draft_tokens_total", "accepted": "spec_decode_num_accepted_tokens_total"}


def workers(scrape: Scrape) -> Iterator[Worker]:
    """The one worker of a scrape."""
    listed, props = scrape.documents.get("slots"), scrape.documents.get("props")
    slots = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    props = props if isinstance(props, Mapping) else {}
    for _, found in Family(scrape, PREFIX, LABEL).workers():
        running = found("requests_processing")
        if running is None:
            continue
        deferred = found("requests_deferred") or 0.0
        busy = sum(each.get("is_processing") is True for each in slots)
        prompts, cached = found("prompt_tokens_total"), found("prompt_tokens_cached_total")
        prefixes = {} if cached is None else {"prefix_queries": (prompts or 0.0) + cached, "prefix_hits": cached}
        yield Worker(
            "llama.cpp",
            "",
            text_of(props.get("model_path")),
            float(busy) if slots else running,
            deferred,
            {KV: _cells(slots)} if slots else {},
            limit=float(count_of(props, "total_slots") or len(slots)) or None,
            reasons={PLACE: deferred} if deferred else {},
            counters=found.named(COUNTERS) | prefixes,
            settings=_settings(slots, props),
            source=scrape.source,
        )


def _cells(slots: Sequence[Mapping[str, Any]]) -> Pool:
    """Cells of sequences that are processed, of all where that is known, and of prompts kept in slots that are idle."""
    held = dict.fromkeys((True, False), 0)
    for each in slots:
        longest = count_of(each, "n_ctx")
        held[each.get("is_processing") is True] += min(count_of(each, "n_prompt_tokens", "n_past"), longest or 2**40)
    lengths = [count_of(each, "n_ctx") for each in slots]
    apart = len(slots) == 1 or sum(held.values()) > max(lengths)
    return Pool(held[True], sum(lengths) if apart else None, held[False])


def _settings(slots: Sequence[Mapping[str, Any]], props: Mapping[str, Any]) -> dict[str, int]:
    """What it says of itself, under the names of a plan's figures."""
    lengths = [count_of(each, "n_ctx") for each in slots]
    own = props.get("default_generation_settings")
    length = max(lengths, default=0) or (count_of(own, "n_ctx") if isinstance(own, Mapping) else 0)
    said = {"n_seq_max": count_of(props, "total_slots") or len(slots), "n_ctx_slot": length}
    return {name: value for name, value in said.items() if value}


def more_requests(served: Engine, plan: Any, wanted: int) -> tuple[Suggestion, ...]:
    """As many slots as requests, each with the cells that it has now, and what they take of memory."""
    ready, length = plan.ready, plan.workload.mean_length
    if wanted <= ready.sequences:
        return ()
    cells = ready.n_ctx_seq * wanted if ready.streams > 1 else max(ready.n_ctx, ceil(wanted * (length or 0)))
    flags = f"--parallel {wanted}" + (" --kv-unified" if plan.args.kv_unified else "")
    flags += f" --ctx-size {cells}" if cells != ready.n_ctx else ""
    try:
        args = served.changed(plan.args, flags)
        after: Any = served.plan(plan.model, args, served.memory(plan.model, args, Memory()), plan.workload)
    except HybridcalcError:
        return ()
    if after.requests <= plan.requests:
        return ()
    added = format_bytes(after.caches_bytes - plan.caches_bytes)
    of = f"requests of {float(length):,.0f} tokens" if length else "requests"
    return (Suggestion(flags, plan.requests, after.requests, of, f"KV and states take {added} more", "memory"),)
