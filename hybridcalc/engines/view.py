"""A plan as people read it, of any engine; plans side by side, and what does not start.

An engine says in its own module `view` what its plans come to (`Facts`); one without is shown with the facts here.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from hybridcalc.deployment import HEADROOM, WEIGHTS_NAME, Rest, Workload, requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError, InputError, Refusal, fix_with
from hybridcalc.findings import WANTED, BudgetLine, Quantity, Table, View, suggested
from hybridcalc.units import format_bytes, short_dtype

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.engines.charts import Bars, Part, Picture
    from hybridcalc.engines.play import Play

SAID = ()
NEEDS_LENGTH = "-L TOKENS (or --lengths) shows what the pools admit, what idles, and what to set"
LEAST_GIB = 0.01
"""Of memory that is worth a word."""
MOST_CHANGES = 2
"""Suggestions whose pools are drawn beside those of the plan."""


class Facts(Protocol):
    """What an engine's plans come to in its own terms."""

    SAID: tuple[str, ...]
    """Rules whose findings the verdict and the suggestions hold already."""

    def verdict(self, plan: Any) -> tuple[str, str]:
        """What the plan comes to: the headline, and what it means."""

    def figures(self, plan: Any) -> list[Quantity]:
        """The figures it rests on, the most telling first."""

    def cells(self, plan: Any) -> dict[str, str]:
        """One side of a comparison."""

    def pictures(self, plan: Any) -> Mapping[str, "Callable[[], Picture]"]:
        """Pictures of the plan, the usual one first."""

    def play(self, plan: Any) -> "Play | None":
        """The settings of a page to try; None where the browser could not follow them."""


def facts_of(engine: Engine) -> Facts:
    """What its plans come to: in its own terms where it has a module for them."""
    return cast(Facts, engine.part("view") if engine.offers("view") else sys.modules[__name__])


def verdict(plan: Answer) -> tuple[str, str]:
    """As of any engine."""
    return counted(plan), f"{plan.tokens:,} KV tokens"


def figures(plan: Answer) -> list[Quantity]:
    """As of any engine."""
    return [Quantity("KV tokens", f"{plan.tokens:,}", "tokens", "that the caches hold"), memory_figure(plan.rest)]


def cells(plan: Answer) -> dict[str, str]:
    """As of any engine."""
    return {"KV tokens": f"{plan.tokens:,}", "requests at once": f"{plan.requests:,}"}


def pictures(plan: Answer) -> Mapping[str, "Callable[[], Picture]"]:
    """As of any engine."""
    return {"memory": partial(pools_picture, plan)}


def pools_picture(plan: Answer) -> "Bars":
    """Its pools, beside what is left."""
    from hybridcalc.engines.charts import comparison_picture

    return comparison_picture([("", plan)])


def play(plan: Answer) -> "Play | None":
    """As of any engine: nothing that a browser could recompute."""
    return None


def counted(plan: Answer) -> str:
    """The requests that run at once, over a memory that is an estimate with their bounds; and of what length."""
    length = f" of {plan.workload.describe()}" if plan.workload.lengths else ""
    return f"{requests_text(plan.requests)}{ends(plan)}{length}"


def ends(plan: Answer) -> str:
    """The requests over a memory that is an estimate; nothing where they are those of the likely one. Where so many run
    as are wanted, and not with the least that there may be, that is said.
    """
    least, most = getattr(plan, "requests_at_ends", (plan.requests, plan.requests))
    wanted = plan.workload.wanted or 0
    missed = f": the low end misses {wanted:,}" if least < wanted <= plan.requests else ""
    return "" if least == most else f" ({least:,} to {most:,}{missed})"


def memory_figure(rest: Rest) -> Quantity:
    """The memory left for the caches, and where that comes from."""
    return Quantity("memory", f"{rest.likely_gib:.2f} GiB", "", *memory_reason(rest))


def memory_reason(rest: Rest) -> tuple[str, str]:
    """What most of a GPU goes to beside the caches, and the arithmetic of what is left."""
    others = dict(rest.others)
    if rest.total_gib is None or WEIGHTS_NAME not in others:
        return rest.why, ""
    kept = f", {others[HEADROOM]:.2f} kept" if HEADROOM in others else ""
    besides = rest.total_gib - rest.likely_gib - others[WEIGHTS_NAME] - others.get(HEADROOM, 0.0)
    more = f", {besides:.2f} else" if besides >= LEAST_GIB else ""
    return f"of {rest.total_gib:.2f}: {others[WEIGHTS_NAME]:.2f} weights{kept}{more}", rest.why


def between(low: int, high: int) -> str:
    """The bounds of a figure that rests on a memory printed to two decimals; nothing where they meet."""
    return "" if low == high else f" ({min(low, high):,}..{max(low, high):,})"


def each(plan: Answer, worker: str) -> str:
    """How many of the requests one of several workers or replicas runs; empty where there is one."""
    return f", {plan.concurrency:,} on each of {plan.workers} {worker}s" if plan.workers > 1 else ""


def plan_view(
    engine: Engine, plan: Answer, remarks: Sequence[str] = (), newest: Callable[[], Answer | None] = lambda: None
) -> View:
    """The whole answer; ``remarks`` are said before the plan's own notes, and what the ``newest`` release comes to."""
    facts = facts_of(engine)
    unknown = () if plan.workload.lengths else (NEEDS_LENGTH,)
    headline, meaning = facts.verdict(plan)
    rows, newer = facts.figures(plan), _released(plan, newest())
    return View(
        f"{plan.model.name} on {engine.title} {plan.version}",
        headline,
        meaning,
        figures=(*rows[:2], *newer, *rows[2:]),
        roles=("state", "kv"),
        findings=plan.findings,
        choices=suggested(plan.suggestions),
        tables=(budget_table(plan.budget),),
        memory=partial(_memory, plan),
        log_lines=tuple(plan.log_lines),
        notes=(*remarks, *unknown, *plan.notes),
        steps=tuple(plan.steps),
        pictures=plan_pictures(engine, plan),
        play=partial(facts.play, plan),
        subject=planned(engine, plan.model, plan.args, plan.rest.gpu),
        inputs=partial(inputs, engine, plan.model, plan.args, plan.rest, plan.workload),
        said=facts.SAID,
        essential=3 + len(newer),
        wanted=short_of(plan),
    )


def _memory(plan: Answer) -> "tuple[Part, ...]":
    """Where the memory of one GPU goes."""
    from hybridcalc.engines.charts import gpu_parts

    return tuple(gpu_parts(plan.budget, plan.rest))


def _released(plan: Answer, newest: Answer | None) -> list[Quantity]:
    """What the newest release makes of the same flags, where that is another number of requests."""
    if newest is None or newest.requests == plan.requests:
        return []
    held = [str(getattr(each_plan, "slots_reason", "")).partition(":")[0] for each_plan in (newest, plan)]
    why = f"{held[0]}, not {held[1]}" if held[0] != held[1] else "by its rules"
    return [Quantity(f"on {newest.version}", requests_text(newest.requests), "", f"with the same flags; {why}")]


def planned(engine: Engine, model: "Architecture", args: Any, gpu: str | None) -> str:
    """What an answer is of, in a line: engine and release, ranks, GPUs, checkpoint and how it is stored."""
    ranks = {name: getattr(args, engine.renamed.get(f"{name}_size", f"{name}_size"), 1) for name in ("tp", "pp", "dp")}
    shared = " x ".join(f"{name} {count}" for name, count in ranks.items() if count > 1 or name == "tp")
    count = engine.ranks(args)
    gpus = f"{count} x {gpu.removeprefix('NVIDIA ')}" if gpu else f"{count} GPU{'' if count == 1 else 's'}"
    release = engine.release_in_words(args.engine_version)
    return f"{engine.title} {release}, {shared} on {gpus}, {_stored(engine, model, args)}"


def inputs(
    engine: Engine, model: "Architecture", args: Any, rest: Rest | None, work: Workload
) -> tuple[tuple[str, str], ...]:
    """What an answer was asked of, each by its name: what ``planned`` says, dtypes, the requests and the memory."""

    def argument(name: str) -> Any:
        return getattr(args, engine.renamed.get(name, name), None)

    gpu, count = None if rest is None else rest.gpu, engine.ranks(args)
    ranks = {name: argument(f"{name}_size") or 1 for name in ("tp", "pp", "dp")}
    shared = ", ".join(f"{name} {each}" for name, each in ranks.items() if name == "tp" or each > 1)
    wanted = "" if work.wanted is None else f", {work.wanted:,} at once"
    found = {
        "model": _stored(engine, model, args),
        "engine": f"{engine.title} {engine.release_in_words(args.engine_version)}",
        "GPUs": f"{count} x {gpu.removeprefix('NVIDIA ')}" if gpu else f"{count}",
        "ranks": shared,
        "KV dtype": argument("kv_cache_dtype") or "auto",
        "state dtype": "" if model.state is None else argument("mamba_ssm_dtype") or "auto",
        "requests": f"{work.describe()}{wanted}" if work.lengths else "",
        "memory for caches": "" if rest is None else f"{rest.likely_gib:.2f} GiB a rank",
    }
    return tuple((name, value) for name, value in found.items() if value)


def _stored(engine: Engine, model: "Architecture", args: Any) -> str:
    """The checkpoint, and how it is quantised, as far as that is known."""
    from hybridcalc.engines.checkpoints import how_stored, name_to_load

    try:
        how = how_stored(model, getattr(args, "quantization", None))
    except HybridcalcError:
        return model.name
    return f"{name_to_load(model)} ({engine.stored_as(model) or how or short_dtype(model.model_dtype)})"


def plan_pictures(engine: Engine, plan: Answer, now: str = "as planned") -> Mapping[str, "Callable[[], Picture]"]:
    """The engine's pictures of a plan, and the pools after each of the best suggested flags."""
    return {**facts_of(engine).pictures(plan), "change": lambda: change_picture(engine, plan, now)}


def change_picture(engine: Engine, plan: Answer, now: str) -> "Bars":
    """The pools ``now``, and after each of the best suggestions that serve more. Raises InputError for none."""
    sides: list[tuple[str, Answer]] = [(now, plan)]
    for suggestion in plan.suggestions:
        try:
            changed = engine.plan(plan.model, engine.changed(plan.args, suggestion.flags), plan.rest, plan.workload)
        except HybridcalcError:
            continue
        if changed.concurrency > plan.concurrency:
            sides.append((suggestion.flags, changed))
        if len(sides) > MOST_CHANGES:
            break
    from hybridcalc.engines.charts import comparison_picture

    if len(sides) == 1:
        raise InputError("no flags serve this workload better", fix="leave out --figure change")
    return comparison_picture(sides)._replace(title=f"Pools before and after: {plan.model.name} on {engine.title}")


def budget_table(lines: Sequence[BudgetLine]) -> Table:
    """Every buffer of a rank; what is charged for it apart where the two differ."""
    parted = any(line.charged_bytes != line.allocated_bytes for line in lines)
    rows = [
        (
            line.name,
            *((f"{line.charged_bytes:,}",) if parted else ()),
            f"{line.allocated_bytes:,}",
            format_bytes(line.allocated_bytes),
            line.why,
        )
        for line in lines
    ]
    header = ("per rank", *(("charged B", "allocated B") if parted else ("B",)), "", "why")
    return Table("Budget", header, tuple(rows), tuple(range(1, len(header) - 1)))


def refusal_view(
    engine: Engine,
    title: str,
    refusal: Refusal,
    remarks: Sequence[str],
    mended: Callable[[], Answer | None] = lambda: None,
) -> View:
    """Why a plan does not start, at which stage, what to change, and what it then serves."""
    settled, then = refusal.outputs, mended()
    rows = []
    rest = settled.get("rest", None if then is None else then.rest)
    if rest is not None:
        rows.append(memory_figure(rest))
    rows.append(Quantity("rule", refusal.rule, "", f"at {refusal.stage} of the engine's start-up"))
    told = "" if then is None else f": {', '.join(facts_of(engine).verdict(then))}{_still_short(engine, then)}"
    return View(
        title,
        "may not start" if refusal.undecided else "does not start",
        refusal.message,
        starts=False,
        figures=tuple(rows),
        fix=fix_with(refusal.fix, told),
        log_lines=tuple(settled.get("log", ())),
        notes=tuple(remarks),
        subject="" if then is None else planned(engine, then.model, then.args, then.rest.gpu),
    )


def _still_short(engine: Engine, plan: Answer) -> str:
    """That fewer run than are wanted, and what lets them run; nothing where they do."""
    if not short_of(plan):
        return ""
    about = {rule.id for rule in engine.rules() if WANTED in rule.needs}
    fixes = [found.fix for found in plan.findings if found.rule in about and found.sets]
    more = f"; for these add {fixes[0].removeprefix('write ')}" if fixes else ""
    wanted = short_of(plan)
    return f"; {requests_text(wanted)} {'is' if wanted == 1 else 'are'} wanted{more}"


def short_of(plan: Answer) -> int:
    """The requests that are wanted, where fewer run; 0 elsewhere."""
    return 0 if serves(plan) else plan.workload.wanted or 0


def serves(plan: Answer) -> bool:
    """Whether a plan runs the requests that are wanted, one at least where a length is given."""
    wanted = plan.workload.wanted or (1 if plan.workload.mean_length is not None else 0)
    return plan.requests >= wanted
