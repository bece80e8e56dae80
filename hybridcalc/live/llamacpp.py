"""llama.cpp's metrics: slots that process, requests that are put off, and what each slot holds of its cells.

/slots says what each slot's sequence holds and /props how many slots there are; the metrics alone say how many process.
Names of llama.cpp tools/server (b11434).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hybridcalc.live.scrape import Scrape
from hybridcalc.live.worker import KV, Family, Pool, Worker

PREFIX, LABEL = "llamacpp:", "none"


def workers(scrape: Scrape) -> Iterator[Worker]:
    """The one worker of a scrape."""
    slots = [each for each in scrape.documents.get("slots") or () if isinstance(each, Mapping)]
    props = scrape.documents.get("props")
    props = props if isinstance(props, Mapping) else {}
    for _, found in Family(scrape, PREFIX, LABEL).workers():
        running = found("requests_processing")
        if running is None:
            continue
        busy = [each for each in slots if each.get("is_processing") is True]
        cells = sum(_count(each, "n_ctx") for each in slots)
        held = sum(_count(each, "n_prompt_tokens", "n_past") for each in busy)
        prompts, cached = found("prompt_tokens_total"), found("prompt_tokens_cached_total")
        asked = (prompts or 0.0) + (cached or 0.0)
        yield Worker(
            "llama.cpp",
            "",
            str(props["model_path"])[:200] if "model_path" in props else None,
            running,
            found("requests_deferred") or 0.0,
            {KV: Pool(held, cells)} if cells else {},
            limit=float(_count(props, "total_slots") or len(slots)) or None,
            counters={"hit_rate": (cached or 0.0) / asked} if asked and cached is not None else {},
            settings=props,
        )


def _count(document: Mapping[str, Any], *names: str) -> int:
    value = next((document[name] for name in names if name in document), 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else 0
