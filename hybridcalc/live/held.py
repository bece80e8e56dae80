"""Are servers as a plan has them: its engine and model, the size of each pool, and the limit of requests?

Every worker is held to the plan, one of another engine or model too: a server that is named is one that was planned.
What a server does not say is not compared; where it says nothing of it, that is a difference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hybridcalc.architecture.presets import find_preset
from hybridcalc.engines import ENGINES
from hybridcalc.live.verdict import Live, finding, planned_names
from hybridcalc.live.worker import BLOCKS, KV, LIMIT, STATE, Worker

UNITS = {STATE: "slots", KV: "tokens of KV", BLOCKS: "blocks", LIMIT: "requests at most"}


def expected(live: Live, document: Mapping[str, Any], model: str | None = None) -> Live:
    """With a finding for each worker that is not as planned, and what is. ``model``: the one that was typed."""
    others = tuple(expected(other, document, model) for other in live.others)
    live = replace(live, others=others)
    other = _another(live, document, model)
    if other:
        return replace(live, told=(*live.told, finding("HC307", other)))
    found, alike = list(live.told), []
    for worker in live.workers:
        pairs = list(_compared(worker, document))
        where = " ".join(filter(None, (worker.source if len(live.workers) > 1 else "", worker.name))) or "the server"
        differ = [f"{size:,.0f} {unit}, planned {wanted:,}" for unit, size, wanted in pairs if round(size) != wanted]
        if differ:
            found.append(finding("HC307", f"{where}: {'; '.join(differ)}"))
        elif not pairs:
            found.append(finding("HC307", f"{where}: no pool and no limit of the plan is exported: none is compared"))
        else:
            alike.append(", ".join(f"{size:,.0f} {unit}" for unit, size, _ in pairs))
    return replace(live, told=tuple(found), held=tuple(dict.fromkeys(alike)))


def _another(live: Live, document: Mapping[str, Any], model: str | None) -> str:
    """Of which other engine or model the plan is; empty where that is not known, or it is of these."""
    engine, planned = document.get("engine"), document.get("model")
    if isinstance(engine, str) and engine != live.engine:
        title = ENGINES.rows[engine].title if engine in ENGINES.rows else engine[:40]
        return f"the plan is of {title}, this is {ENGINES.rows[live.engine].title}"
    said = live.workers[0].settings.get("model_path")
    here = next((one for one in (model, live.workers[0].model, said) if isinstance(one, str) and _preset(one)), None)
    if isinstance(planned, str) and here is not None and _preset(planned) not in (None, _preset(here)):
        return f"the plan is of {planned[:80]}, this is {here[:80]}"
    return ""


def _compared(worker: Worker, document: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Each figure that the server and the plan have: its unit, and both."""
    for what, name in planned_names(worker).items():
        size = worker.limit if what == LIMIT else worker.pools[what].size if what in worker.pools else None
        planned = document.get(name)
        if isinstance(planned, int) and size is not None:
            yield UNITS[what], size, planned


def _preset(name: str) -> str | None:
    """The preset that a name is of."""
    found = find_preset(name)
    return None if found is None else found[0]
