"""Which of several plans is best? Ranked by the requests that certainly run on each GPU, and what each loses by.

Plans may be of any engines, GPUs and models; a plan that does not start stands last, with what stops it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridcalc.engines.answer import Answer
from hybridcalc.engines.document import launch_of
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import Refusal
from hybridcalc.findings import Table

BINDS = {
    "state": "state binds", "kv": "KV binds", "blocks": "blocks bind", "limit": "limit binds", "context": "too long",
}  # fmt: skip
LONGEST_LABEL = 16


class Ranked(NamedTuple):
    """A plan, or why there is none: what it is called, its engine, model and arguments (None where nobody knows).

    ``assumed``: that the release is another than the launch's own.
    """

    label: str
    engine: Engine
    model: Any
    args: Any
    answer: Answer | Refusal
    assumed: str = ""

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
        """What it is ranked by: whether it starts, every flag known, requests of a GPU for certain, and likely ones."""
        plan = self.plan
        return (
            plan is not None and not plan.of_words,
            self.certain / self.gpus,
            (plan.requests if plan is not None else 0) / self.gpus,
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
    """A row for each, the best first."""
    order, engines = ranking(sides), {side.engine.name for side in sides}
    best = sides[order[0]]
    rows = []
    for number in order:
        side = sides[number]
        plan = side.plan
        figures = ("-", "", "", "")
        if plan is not None:
            least, most = side.certain, getattr(plan, "requests_at_ends", (plan.requests,))[-1]
            requests = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            idle = "" if plan.idle_percent is None else f"{plan.idle_percent:.0f} %"
            figures = (requests, f"{least / side.gpus:,.2f}", f"{plan.tokens:,}", idle)
        own = (side.engine.title,) if len(engines) > 1 else ()
        rows.append((_short(side.label), *own, *figures, loses(side, best)))
    own = ("engine",) if len(engines) > 1 else ()
    header = ("launch", *own, "requests", "a GPU", "KV tokens", "idle", "loses by, binds")
    return Table("Ranked", header, tuple(rows), tuple(range(1 + len(own), 5 + len(own))), asked=True)


def _short(label: str) -> str:
    """A label in few letters; the line of a file stays."""
    if len(label) <= LONGEST_LABEL:
        return label
    name, colon, line = label.rpartition(":")
    tail = f"..{colon}{line}" if colon and len(line) < LONGEST_LABEL // 2 else ".."
    return f"{(name or label)[: LONGEST_LABEL - len(tail)]}{tail}"


def loses(side: Ranked, best: Ranked) -> str:
    """What makes a side serve less on a GPU than the best: what binds, and which rules it breaks."""
    plan = side.plan
    if isinstance(side.answer, Refusal) or plan is None:
        return f"does not start: {getattr(side.answer, 'rule', '')}".rstrip(": ")
    rules = dict.fromkeys(found.rule for found in plan.findings if found.severity != "note")
    told = [BINDS.get(plan.binding, plan.binding)]
    if side.worth[1] < best.worth[1]:
        told[:1] = [f"{100 * (1 - side.worth[1] / best.worth[1]):.0f} %, {told[0]}"]
    return "; ".join([*told, *([" ".join(rules)] if rules else [])])


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
