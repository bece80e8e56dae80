"""The answer about a running server as people read it, and its pools over time."""

from collections.abc import Sequence
from functools import partial

from hybridcalc.engines import ENGINES
from hybridcalc.engines.charts import Axis, Chart, Series
from hybridcalc.live.verdict import NAMES, Live, percent
from hybridcalc.live.watch import Moment
from hybridcalc.live.worker import BLOCKS, KV, OTHER, STATE
from hybridcalc.steps import Quantity, View, suggested

LABELS = {STATE: "slots", KV: "KV", BLOCKS: "blocks"}
LETTERS = {STATE: "S", KV: "K", BLOCKS: "B"}


def view(live: Live, moments: Sequence[Moment] = ()) -> View:
    """What binds, the pools it follows from, and what to set; of several ``moments`` the pools over time."""
    title = ENGINES.rows[live.engine].title
    version = live.workers[0].version
    where = f"{title} {version}" if version else title
    ranks = f", {len(live.workers)} workers" if len(live.workers) > 1 else ""
    drawn = {"pools": partial(over_time, moments)} if len(moments) > 1 else {}
    return View(
        title=f"{live.workers[0].model or 'a server'} as it runs",
        headline=headline(live),
        meaning="; ".join(filter(None, (f"{where}{ranks}", _balance(live), _start(live)))),
        figures=tuple(_figures(live)),
        roles=tuple(pool for pool in (STATE, KV) if live.share(pool) is not None),
        findings=live.findings,
        choices=suggested(live.suggestions),
        pictures=drawn,
        said=("HC300", "HC301", "HC302", "HC303"),
    )


def _balance(live: Live) -> str:
    """The ratio at which both pools run out together, at the length that requests have."""
    ratio, tokens = live.planned.get("ratio"), live.each(KV)
    return f"r* = {ratio:.2f} at {tokens:,.0f} tokens a request" if isinstance(ratio, float) and tokens else ""


def _start(live: Live) -> str:
    return f"planned from {live.how}" if live.plan is not None else ""


def headline(live: Live) -> str:
    """What binds, in a line."""
    most = f" of {live.most:,}" if live.most and live.binding == STATE else ""
    counts = f"{live.running:,} run{most}"
    if not live.queued:
        return f"no request waits: {counts}{_idle(live, (STATE, KV, BLOCKS))}"
    wait = "1 request waits" if live.queued == 1 else f"{live.queued:,} requests wait"
    if live.binding == OTHER or live.binding is None:
        return f"{wait} for no pool: {counts}{_idle(live, (STATE, KV, BLOCKS))}"
    verb = "bind" if live.binding == BLOCKS else "binds"
    others = [pool for pool in (STATE, KV, BLOCKS) if pool != live.binding]
    return f"{NAMES[live.binding]} {verb}: {wait}, {counts}{_idle(live, others)}"


def _idle(live: Live, pools: Sequence[str]) -> str:
    """The idle part of each pool that is known."""
    shares = [(pool, live.share(pool)) for pool in pools]
    said = [
        f"{percent(1 - share)} of the {LABELS[pool]} idle{'s' if pool == KV else ''}"
        for pool, share in shares
        if share is not None
    ]
    return f"; {', '.join(said)}" if said else ""


def _figures(live: Live) -> list[Quantity]:
    made = []
    for pool, unit in ((STATE, "slots"), (KV, "tokens"), (BLOCKS, "blocks")):
        share, size, each = live.share(pool), live.size(pool), live.each(pool)
        if share is None:
            continue
        if size is None:
            made.append(Quantity(LABELS[pool], percent(share), "", "in use; this release exports no counts"))
            continue
        used = sum(worker.pools[pool].used for worker in live.workers if pool in worker.pools)
        held = f"; {each:,.{1 if pool == STATE else 0}f} a running request" if each else ""
        reserved = live.planned.get("slots_per_request")
        if pool == STATE and reserved:
            held += f", {reserved} kept for it"
        made.append(Quantity(LABELS[pool], f"{used:,.0f} of {size:,}", unit, f"{percent(share)} in use{held}"))
    rate = live.workers[0].counters.get("hit_rate")
    if rate is not None:
        made.append(Quantity("prefix hits", percent(rate), "", "of tokens that were asked for"))
    return made


def over_time(moments: Sequence[Moment]) -> Chart:
    """Shares of the pools in use, over the time watched."""
    pools = [pool for pool in LABELS if any(moment.live.share(pool) is not None for moment in moments)]
    start = moments[0].at
    return Chart(
        "Pools in use",
        f"{len(moments):,} scrapes over {moments[-1].at - start:,.0f} s",
        Axis("seconds"),
        Axis("share in use", low=0.0, high=1.0),
        tuple(
            Series(
                LABELS[pool],
                "state" if pool == STATE else "kv",
                tuple((moment.at - start, moment.live.share(pool) or 0.0) for moment in moments),
                LETTERS[pool],
            )
            for pool in pools
        ),
    )
