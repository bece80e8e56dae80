"""Which of several plans is best? Ranked by the requests that certainly run on each GPU, and what each loses by.

Plans may be of any engines, GPUs and models; a plan that does not start stands last, with what stops it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hybridcalc.deployment import WEIGHTS_NAME, Memory, requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.charts import Bars, comparison_picture
from hybridcalc.engines.document import launch_of
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.view import Facts, counted, ends, facts_of, serves
from hybridcalc.errors import Refusal, fix_with, flags_of
from hybridcalc.findings import Table, View
from hybridcalc.units import percent_text

BINDS = {
    "state": "state binds", "kv": "KV binds", "blocks": "blocks bind", "limit": "limit binds", "context": "too long",
}  # fmt: skip
LONGEST_LABEL = 16


class Ranked(NamedTuple):
    """A plan, or why there is none: what it is called, its engine, model and arguments (None where nobody knows).

    ``assumed``: that the release is another than the launch's own; ``price``: of a GPU an hour, of all or of none;
    ``then``: of what does not start, the plan with what its refusal says to write; ``known``: of the memory, where
    releases of one launch are compared.
    """

    label: str
    engine: Engine
    model: Any
    args: Any
    answer: Answer | Refusal
    assumed: str = ""
    price: float | None = None
    then: Answer | None = None
    known: Memory | None = None

    @property
    def cost(self) -> float:
        """The price of an hour, or GPUs where nobody knows it."""
        return self.gpus * (1 if self.price is None else self.price)

    @property
    def each(self) -> float | None:
        """The same for one request that certainly runs."""
        return self.cost / self.certain if self.certain else None

    @property
    def plan(self) -> Answer | None:
        """The plan; None of what does not start."""
        return None if isinstance(self.answer, Refusal) else self.answer

    @property
    def gpus(self) -> int:
        """GPUs in all; 1 of what does not start and names none."""
        return 1 if self.args is None else self.engine.ranks(self.args)

    @property
    def certain(self) -> int:
        """Requests that run whatever an estimated memory is in its bounds; 0 of what does not start."""
        plan = self.plan
        if plan is None:
            return 0
        least: int = getattr(plan, "requests_at_ends", (plan.requests,))[0]
        return min(least, plan.requests)

    @property
    def worth(self) -> tuple[bool, float, float]:
        """What it is ranked by: whether it starts, every flag known, requests for certain of a GPU, or for the price of
        one, and likely ones.
        """
        plan = self.plan
        return (
            plan is not None and not plan.of_words,
            self.certain / self.cost,
            (plan.requests if plan is not None else 0) / self.cost,
        )

    @property
    def command(self) -> list[str]:
        """Its launch line, a flag with its value a piece."""
        launch = launch_of(self.engine, self.model, self.args.given())
        pieces = [f"{name}={value}" for name, value in launch["env"].items()]
        for word in launch["argv"]:
            if word.startswith("-") or not pieces or not pieces[-1].startswith("-") or " " in pieces[-1]:
                pieces.append(word)
            else:
                pieces[-1] += f" {word}"
        return pieces


def ranking(sides: Sequence[Ranked]) -> list[int]:
    """Their numbers, the best first; those that are alike as they came."""
    return sorted(range(len(sides)), key=lambda number: [-value for value in sides[number].worth])


def ranking_table(sides: Sequence[Ranked]) -> Table:
    """A row for each, the best first; where none starts, what each is refused for."""
    order, engines = ranking(sides), {side.engine.name for side in sides}
    best = sides[order[0]]
    if best.plan is None:
        own = ("engine",) if len(engines) > 1 else ()
        stopped = ((_short(each.label), *([each.engine.title] if own else []), _stopped(each)) for each in sides)
        return Table("Ranked", ("launch", *own, "does not start"), tuple(stopped), asked=True, fills=True)
    rows = []
    for number in order:
        side = sides[number]
        plan = side.plan
        figures = ("-", "", "", "")
        if plan is not None:
            least, most = side.certain, getattr(plan, "requests_at_ends", (plan.requests,))[-1]
            requests = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            idle = "" if plan.idle_percent is None else f"{percent_text(plan.idle_percent)} %"
            spread = (
                f"{least / side.gpus:,.2f}".removesuffix(".00"),
                f"{getattr(plan, 'sequence_tokens', plan.tokens):,}",
            )
            if side.price is not None:
                spread = (f"{side.cost:,.2f}", "-" if side.each is None else f"{side.each:,.4f}")
            figures = (requests, *spread, idle)
        own = (side.engine.title,) if len(engines) > 1 else ()
        alone = sum(each.plan is None for each in sides) == 1  # a note says it in words
        rows.append((_short(side.label), *own, *figures, loses(side, best, brief=alone)))
    own = ("engine",) if len(engines) > 1 else ()
    spread = ("a GPU", "KV tokens") if best.price is None else ("an hour", "each")
    header = ("launch", *own, "requests", *spread, "idle", "loses by, binds")
    return Table("Ranked", header, tuple(rows), tuple(range(1 + len(own), 5 + len(own))), asked=True, fills=True)


def _short(label: str) -> str:
    """A label in few letters; the line of a file stays."""
    if len(label) <= LONGEST_LABEL:
        return label
    name, colon, line = label.rpartition(":")
    tail = f"..{colon}{line}" if colon and len(line) < LONGEST_LABEL // 2 else ".."
    return f"{(name or label)[: LONGEST_LABEL - len(tail)]}{tail}"


def loses(side: Ranked, best: Ranked, *, brief: bool = False) -> str:
    """What makes a side serve less on a GPU than the best: what binds, and which rules it breaks; ``brief``: by their
    names alone.
    """
    plan = side.plan
    if plan is None:
        return f"does not start: {getattr(side.answer, 'rule', '') if brief else _stopped(side)}".rstrip(": ")
    rules = dict.fromkeys(found.rule for found in plan.findings if found.severity != "note")
    told = [BINDS.get(plan.binding, plan.binding)]
    if side.worth[1] < best.worth[1]:
        told[:1] = [f"{100 * (1 - side.worth[1] / best.worth[1]):.0f} %, {told[0]}"]
    return "; ".join([*told, *([" ".join(rules)] if rules else [])])


def _stopped(side: Ranked) -> str:
    """Why a side does not start, in the words of the rule that refuses it."""
    rule = getattr(side.answer, "rule", "")
    title = next((each.title for each in side.engine.rules() if each.id == rule), "")
    return f"{title} ({rule})" if title else rule or "refused"


def difference(side: Ranked, sides: Sequence[Ranked]) -> tuple[str, list[str]]:
    """How a launch line differs from the best of its engine, by name: ``- flag`` is that one's alone, ``+ flag`` its
    own. Nothing for the best itself, and for what names no model.
    """
    same = [sides[number] for number in ranking(sides) if sides[number].engine is side.engine]
    base = next((each for each in same if each.model is not None), side)
    if base is side or side.model is None:
        return base.label, []
    theirs, own = base.command, side.command
    removed = [f"- {piece}" for piece in theirs if piece not in own]
    return base.label, [*removed, *(f"+ {piece}" for piece in own if piece not in theirs)]


NO_LENGTH = "without -L, requests are those that an engine's own limits let run: -L TOKENS makes them comparable"

TIME = ("a step, at best", "tokens/s each")
WHY = (*TIME, "block, tokens", "slots a request S", "a request takes", "and each token")
"""What explains a difference best, by its name in the engine's own terms."""
MOST_SIDES = 3
"""Sides of which this is shown."""


def compared_view(
    sides: Sequence[Ranked],
    skipped: Sequence[tuple[str, str]] = (),
    beside: Sequence[Table] = (),
    more: Sequence[Mapping[str, str]] = (),
    causes: Sequence[str] = (),
) -> View:
    """The best in a line, a ranked table and others ``beside`` it, what stops those that do not start; how launch lines
    differ. ``skipped``: those that could not be planned, and why; ``more``: what else is to be said of each side;
    ``causes``: why releases differ.
    """
    order = ranking(sides)
    best = sides[order[0]]
    plan = best.plan
    if plan is None:
        headline = "none of these starts"
    elif plan.workload.lengths and not any(side.plan.requests for side in sides if side.plan is not None):
        who = best.label if len(sides) == 1 else "none of these"
        headline = f"{who} serves {'no' if len(sides) == 1 else 'a'} request of {plan.workload.describe()}"
    else:
        alike = [side.label for side in sides if side.worth == best.worth]
        who = f"{best.label} runs" if len(alike) == 1 else f"{best.label} and {len(alike) - 1} alike run"
        sure = " for certain" if _likelier(best, sides) else ""
        headline = f"{who} the most {'on a GPU' if best.price is None else 'for its price'}{sure}: {counted(plan)}"
    started = [(side.label, side.plan) for side in sides if side.plan is not None]
    meaning = _best_mended(sides) if plan is None else [f"on {best.gpus} GPUs"] if best.gpus > 1 else []
    meaning += [f"{len(started)} of {len(sides)} start"] if 0 < len(started) < len(sides) else []
    meaning += _wanted(sides)
    if best.price is not None and best.each is not None:
        meaning.append(f"{best.cost:,.2f} an hour, {best.each:,.4f} a request")
    tables = [ranking_table(sides), *_what_differs(sides, more, requests_first=bool(causes)), *beside]
    rows = list[tuple[str, str, str]]()
    for number in order:
        base, flags = difference(sides[number], sides)
        rows += [(*(("", "") if place else (sides[number].label, base)), flag) for place, flag in enumerate(flags)]
    differences = Table("Differences", ("launch", "against", "- its flags, + own flags"), tuple(rows))
    said = list(dict.fromkeys(side.assumed for side in sides if side.assumed))
    said += [] if plan is None or plan.workload.lengths else [NO_LENGTH]
    said += _likelier(best, sides)
    said += _refused([sides[number] for number in order if sides[number].plan is None])
    said += [f"{label} is left out: {reason}" for label, reason in skipped]
    said += causes
    return View(
        "Launch lines compared",
        headline,
        "; ".join(meaning),
        starts=plan is not None,
        findings=tuple(
            found._replace(message=f"{side.label}: {found.message}")
            for side in sides
            if side.plan is not None
            for found in side.plan.of_words
        ),
        tables=(*tables, differences),
        notes=tuple(said),
        pictures={"compare": lambda: comparison_picture(started)} if started else {},
    )


def _wanted(sides: Sequence[Ranked]) -> list[str]:
    """How many of them serve the requests that are wanted, where a number is."""
    plans = [plan for side in sides if (plan := side.plan or side.then) is not None]
    wanted = next((plan.workload.wanted for plan in plans), None)
    if wanted is None:
        return []
    enough = sum(side.certain >= wanted for side in sides)
    said = f"{enough} of {len(sides)} serve as many" if enough else "none serves as many"
    return [f"{wanted:,} {'is' if wanted == 1 else 'are'} wanted: {said}"]


def _refused(sides: Sequence[Ranked]) -> list[str]:
    """What stops sides, what to write instead, and what they then serve; of several, first what to write of each."""
    said, reasons = [], []
    for side in sides:
        refusal: Any = side.answer
        fix = fix_with(refusal.fix, f": {counted(side.then)}" if side.then is not None else "") if refusal.fix else ""
        alone = refusal.rule != side.engine.indivisible[1]  # which ranks do says nothing without which do not
        if len(sides) > 1 and fix and alone:
            said.append(f"{side.label}: {fix}")
            reasons.append(f"{side.label}: {refusal.message}")
        else:
            said.append(f"{side.label}: {refusal.message}{'; ' + fix if fix else ''}")
    return [*said, *reasons]


def _best_mended(sides: Sequence[Ranked]) -> list[str]:
    """Of sides that do not start, the one that serves the most with what its refusal says to write."""
    mended = [(each, each.then) for each in sides if each.then is not None]
    if not mended:
        return []
    side, then = max(mended, key=lambda pair: pair[0]._replace(answer=pair[1], args=pair[1].args).worth)
    return [f"{side.label} with {flags_of(getattr(side.answer, 'fix', ''))}: {counted(then)}"]


def _likelier(best: Ranked, sides: Sequence[Ranked]) -> list[str]:
    """Which line runs more than the best one where the memory is what it likely is."""
    started = [(side.label, side.plan.requests / side.cost) for side in sides if side.plan is not None]
    if not started or best.plan is None:
        return []
    label, most = max(started, key=lambda each: each[1])
    own, per = best.plan.requests / best.cost, "on a GPU" if best.price is None else "for its price"
    return [f"on the likely memory {label} runs more {per}: {most:,.2f} against {own:,.2f}"] if most > own else []


def _what_differs(
    sides: Sequence[Ranked], more: Sequence[Mapping[str, str]] = (), *, requests_first: bool = False
) -> list[Table]:
    """Why few lines serve more or less: what differs in the terms of their engine, or in those that several share;
    what requests follow from before times, with ``requests_first``.
    """
    plans = [(side, side.plan) for side in sides if side.plan is not None]
    if not 1 < len(plans) <= MOST_SIDES:
        return []
    told = dict(zip([side.label for side in sides], more, strict=False))
    cells = [{**told.get(side.label, {}), **facts_of(side.engine).cells(plan)} for side, plan in plans]
    alone = len({side.engine.name for side, _ in plans}) == 1
    shared = [name for name in cells[0] if alone or all(name in each for each in cells)]
    differing = [name for name in shared if len({each.get(name, "-") for each in cells}) > 1]
    first = sorted(differing, key=lambda name: (name not in WHY, requests_first and name in TIME))
    rows = tuple((name, *(each.get(name, "-") for each in cells), "") for name in first)
    header = ("a rank", *(side.label for side, _ in plans), "")
    return [Table("What differs", header, rows, tuple(range(1, len(plans) + 1)), fills=True)] if rows else []


def _cells(facts: Facts, plan: Answer) -> dict[str, str]:
    """One side of a comparison that starts, with what an estimated memory leaves open of its requests."""
    cells, over = facts.cells(plan), ends(plan)
    return {
        "starts": "undecided" if plan.rest.undecided else "yes",
        **cells,
        **({"over the estimate": over.strip(" ()")} if over else {}),
    }


def comparison_view(engine: Engine, title: str, sides: Sequence[tuple[str, Answer | Refusal]]) -> View:
    """Plans side by side, the first as given: the same rows, and what changes."""
    facts = facts_of(engine)
    started = [(flags, plan) for flags, plan in sides if not isinstance(plan, Refusal)]
    columns = [{"starts": "no"} if isinstance(p, Refusal) else _cells(facts, p) for _, p in sides]
    letters = [f"with {number}" for number in range(1, len(sides))] if len(sides) > 2 else ["with"]
    labels = ("as given", *letters)
    rows = tuple(
        (name, *(cells.get(name, "-") for cells in columns), "")
        for name in dict.fromkeys(name for cells in columns for name in cells)
    )
    ranked = [_side(engine, label, side) for label, (_, side) in zip(labels, sides, strict=True)]
    told = (f"{letter}: {flags}" for letter, (flags, _) in zip(letters, sides[1:], strict=True))
    newer = dict.fromkeys(engine.newer(plan.args.engine_version) for _, plan in started)
    said = [text for text in newer if text]
    said += [
        f"{label}: {side.rule} {side.message}{'; ' + side.fix if side.fix else ''}"
        for label, (_, side) in zip(labels, sides, strict=True)
        if isinstance(side, Refusal)
    ]
    said += [
        f"{label}: weights {part.text} GiB = {part.why}"
        for label, (_, side) in zip(labels, sides, strict=True)
        if not isinstance(side, Refusal)
        for part in side.rest.parts
        if part.name == WEIGHTS_NAME and part.why.startswith("--weights x")
    ]
    wanted = next((plan.workload.wanted for _, plan in started), None)
    if wanted is not None and not any(serves(plan) for _, plan in started):
        said.append(f"{requests_text(wanted)} {'is' if wanted == 1 else 'are'} wanted: none of these serves as many")
    return View(
        title,
        _compared_in_words(ranked),
        "; ".join((labels[0], *told)),
        findings=tuple(dict.fromkeys(found for _, plan in started for found in plan.of_words)),
        tables=(
            ranking_table(ranked),
            *_what_differs(ranked),
            Table("Side by side", ("", *labels, ""), rows, tuple(range(1, len(sides) + 1))),
        ),
        notes=tuple(said),
        pictures={"compare": partial(_compared, started)},
    )


def _compared_in_words(ranked: Sequence[Ranked]) -> str:
    """Which of several settings runs the most requests, or that all run as many."""
    best = ranked[ranking(ranked)[0]]
    if best.plan is None:
        return f"none of {len(ranked)} settings starts"
    if all(side.plan is not None and side.worth == best.worth for side in ranked):
        return f"{counted(best.plan)} {'either way' if len(ranked) == 2 else f'with all {len(ranked)} settings'}"
    return f"{best.label}: {counted(best.plan)}, the most on a GPU"


def _compared(started: Sequence[tuple[str, Answer]]) -> Bars:
    return comparison_picture(started)


def _side(engine: Engine, label: str, side: Answer | Refusal) -> Ranked:
    """One of the settings, to be ranked."""
    if isinstance(side, Refusal):
        return Ranked(label, engine, None, None, side)
    return Ranked(label, engine, side.model, side.args, side)
