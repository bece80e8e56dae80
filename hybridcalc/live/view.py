"""The answer about a running server as people read it, and its pools over time."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from hybridcalc.engines import ENGINES
from hybridcalc.engines.charts import Axis, Band, Chart, Series
from hybridcalc.errors import printable
from hybridcalc.findings import Quantity, Table, View, suggested
from hybridcalc.live.verdict import NAMES, Live, percent
from hybridcalc.live.watch import Moment, bound_text, figure, label
from hybridcalc.live.worker import BLOCKS, KV, OTHER, STATE

LABELS = {STATE: "slots", KV: "KV", BLOCKS: "blocks"}
MOST_OTHERS, LONGEST_MODEL = 3, 40
LETTERS = {STATE: "S", KV: "K", BLOCKS: "B"}


def view(live: Live, moments: Sequence[Moment] = (), summary: Mapping[str, Any] | None = None) -> View:
    """What binds, the pools it follows from, and what to set; of several ``moments`` the pools over time.

    With the ``summary`` of a watch its figures are those over the time.
    """
    ranks = f", {len(live.workers)} workers" if len(live.workers) > 1 else ""
    own = tuple(_figures(live) if summary is None else _over_time(summary))
    sick = tuple(_waits(other) for other in live.others if other.queued)[:MOST_OTHERS]
    drawn = {"pools": partial(over_time, moments)} if len(moments) > 1 else {}
    return View(
        title=f"{printable(live.workers[0].model or 'a server')} as it runs",
        headline=headline(live),
        meaning="; ".join(filter(None, (f"{_name(live)}{ranks}", _balance(live), _start(live), *_held_to(live)))),
        subject="" if summary is None else bound_text(summary),
        figures=(*own[:2], *sick, *own[2:]),
        roles=() if summary is not None else tuple(pool for pool in (STATE, KV) if live.share(pool) is not None),
        tables=_workers(live),
        findings=live.findings,
        notes=tuple(f"{_name(other)}: {headline(other)}" for other in live.others),
        choices=suggested(live.suggestions),
        pictures=drawn,
        said=("HC300", "HC301", "HC302", "HC303"),
    )


def _waits(live: Live) -> Quantity:
    """What binds of another kind, beside the pools of the first."""
    model = live.workers[0].model
    of = f"; {printable(model, LONGEST_MODEL)}" if model else ""
    counts = f"{live.queued:,} wait, {live.running:,} run"
    return Quantity(ENGINES.rows[live.engine].title, counts, "", f"{bound_by(live.binding)}{of}")


def bound_by(pool: str | None) -> str:
    """``the blocks bind``."""
    return f"{NAMES[pool or OTHER]} {'bind' if pool == BLOCKS else 'binds'}"


def _over_time(summary: Mapping[str, Any]) -> Iterator[Quantity]:
    """Least and most of each figure of a watch, and the mean; last the requests, which the headline counts."""
    for name, found in sorted(summary["figures"].items(), key=lambda pair: pair[0].startswith("requests")):
        least, mean, most = (figure(name, found[end]) for end in ("min", "mean", "max"))
        if least == most:
            yield Quantity(label(name), least, "", "at each scrape")
        else:
            yield Quantity(label(name), f"{least} to {most}", "", f"{mean} on average")


def _held_to(live: Live) -> Iterator[str]:
    """What is as planned."""
    if live.held:
        yield f"as planned: {' or '.join(live.held)}"


def _name(live: Live) -> str:
    """The engine and its release."""
    title, version = ENGINES.rows[live.engine].title, live.workers[0].version
    return f"{title} {printable(version)}" if version else title


def _balance(live: Live) -> str:
    """The ratio at which both pools run out together, at the length that requests have or that was given."""
    ratio, tokens = live.planned.get("ratio"), None if live.plan is None else live.plan.workload.mean_length
    if not tokens:
        return ""
    balance = f"r* = {ratio:.2f} at " if isinstance(ratio, float) else "at "
    return f"{balance}{float(tokens):,.0f} tokens a request"


def _start(live: Live) -> str:
    if live.plan is None:
        return ""
    several = "; what to set is of one server" if len(live.workers) != live.plan.workers else ""
    return f"planned from {live.how}{several}"


def headline(live: Live) -> str:
    """What binds, in a line."""
    most = f" of {live.most:,}" if live.most and live.binding == STATE else ""
    missed = sum(one.rule == "HC308" for one in live.told)
    unread = f"; {missed:,} server{'' if missed == 1 else 's'} not read" if missed else ""
    counts = f"{live.running:,} run{most}"
    if not live.queued:
        return f"no request waits: {counts}{_idle(live, (STATE, KV, BLOCKS))}{unread}"
    wait = "1 request waits" if live.queued == 1 else f"{live.queued:,} requests wait"
    others = [pool for pool in (STATE, KV, BLOCKS) if pool != live.binding]
    return f"{bound_by(live.binding)}: {wait}, {counts}{_idle(live, others)}{unread}"


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
        used, size, share = live.total(pool, "used"), live.total(pool), live.share(pool)
        if size is not None and used is not None:
            made.append(
                Quantity(
                    LABELS[pool], f"{used:,} of {size:,}", unit, f"{percent(share or 0)} in use{_held(live, pool)}"
                )
            )
        elif share is not None:
            made.append(Quantity(LABELS[pool], percent(share), "", "in use; this release exports no counts"))
        elif used is not None:
            made.append(
                Quantity(LABELS[pool], f"{used:,}", unit, f"in use{_held(live, pool)}; --command says of how many")
            )
    if live.hit_rate is not None:
        evicted = live.counter("evicted_tokens")
        lost = f"; {evicted:,.0f} tokens evicted" if evicted else ""
        made.append(Quantity("prefix hits", percent(live.hit_rate), "", f"of tokens of prompts{lost}"))
    if live.accept_rate is not None:
        drafted, length = live.counter("drafted"), live.rate("accept_length", "", "")
        of = (
            f"of {drafted:,.0f} drafts"
            if drafted
            else f"of drafts; {length:.1f} tokens a step"
            if length
            else "of drafts"
        )
        made.append(Quantity("accepted", percent(live.accept_rate), "", of))
    return made


def _held(live: Live, pool: str) -> str:
    """What a running request holds of a pool, what is kept for it, and what prefixes hold."""
    each, reserved, cached = live.each(pool), live.planned.get("slots_per_request"), live.total(pool, "cached")
    told = f"; {each:,.{1 if pool == STATE else 0}f} a running request" if each else ""
    if pool == STATE and reserved:
        told += f", {reserved} kept for it"
    return told + (f"; {cached:,} hold prefixes" if cached else "")


def _workers(live: Live) -> tuple[Table, ...]:
    """Every worker on a row, where there are several."""
    rows = []
    for one in (live, *live.others):
        for worker, verdict in zip(one.workers, one.verdicts, strict=True):
            name = " ".join(filter(None, (ENGINES.rows[worker.engine].title, worker.source, worker.name)))
            pools = (worker.pools.get(STATE), worker.pools.get(KV) or worker.pools.get(BLOCKS))
            shares = ["" if pool is None or pool.share is None else percent(pool.share) for pool in pools]
            bound = "" if verdict is None else NAMES[verdict]
            rows.append((printable(name), f"{worker.running:,.0f}", f"{worker.queued:,.0f}", *shares, bound))
    if len(rows) < 2:
        return ()
    return (Table("Workers", ("worker", "run", "wait", "slots", "KV", "binds"), tuple(rows), (1, 2, 3, 4)),)


def over_time(moments: Sequence[Moment]) -> Chart:
    """Shares of the pools in use, over the time watched, and what bound when."""
    pools = [pool for pool in LABELS if any(moment.live.share(pool) is not None for moment in moments)]
    start, counts = moments[0].at, Counter(moment.live.binding for moment in moments)
    bound = [f"{NAMES[pool]} {percent(count / len(moments))}" for pool, count in counts.items() if pool is not None]
    waits = f"; shaded while requests wait: {', '.join(bound)}" if bound else ""
    return Chart(
        "Pools in use",
        f"{len(moments):,} scrapes over {moments[-1].at - start:,.0f} s{waits}",
        Axis("seconds"),
        Axis("% in use", low=0.0, high=100.0),
        tuple(
            Series(
                LABELS[pool],
                "state" if pool == STATE else "kv",
                tuple((moment.at - start, 100 * (moment.live.share(pool) or 0.0)) for moment in moments),
                LETTERS[pool],
            )
            for pool in pools
        ),
        bands=tuple(_bound(moments)),
    )


def _bound(moments: Sequence[Moment]) -> Iterator[Band]:
    """Stretches of time in which requests waited for the same thing."""
    start, pairs = moments[0].at, zip(moments, [*moments[1:], moments[-1]], strict=True)
    runs = groupby(pairs, key=lambda pair: pair[0].live.binding)
    for bound, run in runs:
        held = list(run)
        if bound is not None and held[-1][1].at > held[0][0].at:
            yield Band(held[0][0].at - start, held[-1][1].at - start, bound_by(bound), ROLES.get(bound, "limit"))


ROLES = {STATE: "state", KV: "kv", BLOCKS: "kv"}
"""The colour of what binds; of anything else, that of a limit."""
