"""What would start, where a plan does not: a larger share of the memory, other ranks, a checkpoint that takes less? And
which ranks serve the requests that are wanted, where a plan serves fewer?

Each is planned as the engine would, with all else as given, and said with the requests that it then serves.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from math import floor
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Rest, Workload, requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.checkpoints import quantised_releases
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.ranks import RANKS_TRIED
from hybridcalc.engines.view import ends
from hybridcalc.errors import HybridcalcError, Refusal, Write, flags_of
from hybridcalc.findings import SAFE, WANTED, least_costly, suggested
from hybridcalc.units import MOST_SLOTS

STEP = 0.01
"""How finely a share of the memory is tried."""


Memory = Callable[[Architecture, Any], Rest]
"""The memory left for other arguments, or of another checkpoint."""


Found = tuple[str, Answer]
"""Flags, and the plan that has them."""


class Remedied(NamedTuple):
    """What is asked: arguments and requests, the memory that others would leave, and the GPUs that are given, where
    their number is.
    """

    engine: Engine
    model: Architecture
    args: Any
    memory: Memory
    workload: Workload
    gpus: int | None = None

    @property
    def wanted(self) -> int:
        """Requests that are enough: as many as are wanted, or one."""
        return self.workload.wanted or 1

    def planned(self, other: Architecture, changed: Any, *, several: bool = False, more: str = "") -> Found | None:
        """A plan, and the flags that its start takes besides; None where it takes none, or more than ``several``."""
        try:
            return more, self.engine.plan(other, changed, self.memory(other, changed), self.workload)
        except Refusal as refusal:
            again = flags_of(refusal.fix)
            if more or not again or not (several or isinstance(refusal.fix, Write)):
                return None
        more = f" {again}"
        return self.planned(other, self.engine.changed(changed, more), several=several, more=more)

    def serves(self, other: Architecture, changed: Any, *, certain: bool = True, several: bool = False) -> Found | None:
        """The plan, where it serves a request, and the flag that it takes besides, or ``several``; a ``certain`` one
        serves over all of an estimated memory.
        """
        with suppress(HybridcalcError):
            found = self.planned(other, changed, several=several)
            if found is not None and (found[1].requests or self.workload.mean_length is None):
                return None if certain and self._stopped(found[1]) else found
        return None

    def _stopped(self, plan: Answer) -> bool:
        """Whether an error stands against it, other than that fewer run than are wanted."""
        about = {rule.id for rule in self.engine.rules() if WANTED in rule.needs}
        errors = (found.rule for found in plan.findings if found.severity == "error")
        return bool(plan.rest.undecided) or any(rule not in about for rule in errors)

    def said(self, found: Found, first: bool = True) -> str:
        """Flags, and what they serve."""
        plan = found[1]
        count = requests_text(plan.requests) if first else f"{plan.requests:,}"
        if plan.requests < self.wanted and self.workload.wanted:
            count = f"{plan.requests:,} of {requests_text(self.wanted)}"
        gpus = self.engine.ranks(plan.args)
        more = f" on {gpus} GPUs" if gpus > self.engine.ranks(self.args) else ""
        return f"{found[0]}: {count}{ends(plan)}{more}"

    def ranks(self, tried: Iterable[int]) -> Found | None:
        """The first of the numbers of ranks whose plan serves enough, with a safe setting where that takes one; else
        the one that serves most.
        """
        best: Found | None = None
        for ranks in tried:
            with suppress(HybridcalcError):
                changed = self.engine.with_options(self.args, {"tp_size": ranks})
                found = self.serves(self.model, changed)
                if found is None:
                    continue
                flags, plan = self._with_safe(changed, found)
                if best is None or plan.requests > best[1].requests:
                    best = f"{self.engine.tp_flag} {ranks} {flags}".rstrip(), plan
                if plan.requests >= self.wanted:
                    return best
        return best

    def _with_safe(self, args: Any, found: Found) -> Found:
        """A plan as it is, where it serves enough, or else with the safe setting that makes it do so."""
        flags, plan = found[0].strip(), found[1]
        safe = [one for one in suggested(plan.suggestions) if one.label == SAFE and one.flags.startswith("-")]
        enough = least_costly(safe, self.wanted)
        if plan.requests >= self.wanted or enough is None:
            return flags, plan
        again = self.serves(self.model, self.engine.changed(args, f"{flags} {enough.flags}"))
        kept = "" if flags.partition(" ")[0] in enough.flags.split() else flags
        return (f"{kept} {enough.flags}".strip(), again[1]) if again is not None else (flags, plan)

    def taking(self, *, within: bool) -> list[int]:
        """Numbers of ranks above today's, ``within`` the GPUs that are given or any."""
        found = list[int]()
        for ranks in RANKS_TRIED:
            with suppress(HybridcalcError):
                changed = self.engine.with_options(self.args, {"tp_size": ranks})
                fits = not within or self.engine.ranks(changed) <= (self.gpus or 0)
                found += (
                    [ranks] if fits and self.engine.server_ranks(changed) > self.engine.server_ranks(self.args) else []
                )
        return found


def remedies(case: Remedied, rule: str) -> str:
    """What to write instead, as a fix of a refusal by ``rule``; empty where nothing tried starts, and for a rule
    that is neither about memory nor about the number of ranks.
    """
    engine = case.engine
    if not engine.offers("suggest"):
        return ""
    if rule == engine.indivisible[1]:
        return _other_ranks(case)
    if rule not in engine.part("suggest").SHORT:
        return ""
    if (usual := _usual_share(case)) is not None:
        return f"write {case.said(usual)}"
    said = list[str]()
    for search in (larger_share, _ranks, _checkpoint):
        found = search(case)
        said += [] if found is None else [case.said(found, first=not said)]
    return f"write {'; or '.join(said)}" if said and said[0].startswith("-") else "; or ".join(said)


def wider(case: Remedied, wanted: int, *, within: bool) -> str:
    """More ranks that serve the requests that are ``wanted``, as a fix: ``within`` the GPUs that are given; or any, and
    then those of the given ones that come nearest, where none serves enough. Empty where no more are served.
    """
    case = case if case.workload.wanted else case._replace(workload=case.workload._replace(concurrency=wanted))
    if within and case.gpus is None:
        return ""
    found = case.ranks(case.taking(within=within))
    if found is not None and found[1].requests < case.wanted:
        found = None if within or case.gpus is None else case.ranks(case.taking(within=True))
    return "" if found is None else Write.flags(found[0], case.said(found).removeprefix(found[0]))


def _other_ranks(case: Remedied) -> str:
    """Ranks that divide the model and start, in place of those that do not: no more than are given or asked for, the
    fewest that serve what is wanted or else those that serve most; more, where none of these starts.
    """
    asked = case.engine.server_ranks(case.args)
    most = max(case.gpus or 0, asked)
    fewer = [ranks for ranks in (1, *RANKS_TRIED) if ranks <= most]
    below = case if case.workload.wanted else case._replace(workload=case.workload._replace(concurrency=MOST_SLOTS))
    found = below.ranks(fewer) or case.ranks(ranks for ranks in RANKS_TRIED if ranks > most)
    return "" if found is None else f"write {case.said(found)}"


def _usual_share(case: Remedied) -> Found | None:
    """The engine's own share of the memory, where a smaller one is typed and that does."""
    with suppress(HybridcalcError):
        share_of = case.engine.part("suggest").share_of
        field, typed = share_of(case.args, None)[:2]
        unset = replace(case.args, **{field: None})
        usual = share_of(unset, case.memory(case.model, unset))[1]
        less = typed is not None and typed < usual
        found = case.serves(case.model, replace(case.args, **{field: usual})) if less else None
        return None if found is None else (f"--{field.replace('_', '-')} {usual:g}{found[0]}", found[1])
    return None


def larger_share(case: Remedied) -> Found | None:
    """The least share of the memory that does, in steps."""
    with suppress(HybridcalcError):
        field, today, largest = case.engine.part("suggest").share_of(case.args, case.memory(case.model, case.args))
        for step in range(1, floor((largest - today) / STEP + STEP) + 1 if today else 0):
            larger = round(today + step * STEP, 2)
            found = case.serves(case.model, replace(case.args, **{field: larger}))
            if found is not None:
                return f"--{field.replace('_', '-')} {larger:g}{found[0]}", found[1]
    return None


def _ranks(case: Remedied) -> Found | None:
    """The fewest ranks that do."""
    return case.ranks(case.taking(within=False))


def _checkpoint(case: Remedied) -> Found | None:
    """A quantised checkpoint of the same model that does, the first that is listed, if possible without more flags; one
    that may, where its weights are an estimate.
    """
    others = list[Found]()
    for name in quantised_releases(case.model) if case.args.quantization is None else ():
        other = load_model(name)
        found = case.serves(other, case.args, several=True)
        found = found or case.serves(other, case.args, certain=False, several=True)
        if found is not None:
            more = f" with{found[0]}" if found[0] else ""
            others.append((f"load {name}{more}", found[1]))
            if not more:
                return others[-1]
    return others[0] if others else None
