"""What is to be said of the arguments of a deployment? What flags alone decide, and the plan where memory is known.

The rest of checks/ finds places for it. The engine is asked for everything that is its own.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import GPU, Memory, Workload
from hybridcalc.engines.answer import Decided
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError, MemoryUnknown, Refusal
from hybridcalc.findings import MEMORY, WANTED, Finding, Rule
from hybridcalc.hardware import kinds_of_gpus
from hybridcalc.units import GIB, parse_bytes

if TYPE_CHECKING:
    from hybridcalc.engines.answer import Answer as Plan
    from hybridcalc.hardware import Gpu

STOPS = " stops the launch"
"""What a rule does for which every other one waits."""
Waiting = tuple[tuple[str, tuple[str, ...]], ...]
"""Rules that were not checked, each with the figures it waits for."""


class Known(NamedTuple):
    """What is known of the memory of a rank: texts as they were given."""

    gpu: str | None = None
    weights: str | None = None
    rest: str | None = None
    available: str | None = None


class Answered(NamedTuple):
    """Findings of a deployment, what waits for a figure, and its plan where there is one.

    ``missing`` are the figures without which there is none.
    """

    findings: tuple[Finding, ...]
    waiting: Waiting
    plan: "Plan | None" = None
    refused: bool = False
    missing: tuple[str, ...] = ()


def of_each(workload: Workload, copies: int | None, args: Any) -> Workload:
    """What one of several copies serves of a workload: its share of the requests that are wanted at once, and as many
    more as ``args`` ask it to run, since nothing shares requests out evenly.
    """
    wanted, asked = workload.concurrency, getattr(args, "max_running_requests", None) or 0
    return (
        workload._replace(concurrency=min(wanted, max(-(-wanted // copies), asked))) if wanted and copies else workload
    )


def of_all(answered: Answered, engine: Engine, workload: Workload, copies: int | None, args: Any) -> Answered:
    """An answer for one of several copies: what its findings want of each, behind what is wanted of all."""
    each = of_each(workload, copies, args).concurrency
    if each == workload.concurrency or each is None:
        return answered
    of_wanted = {rule.id for rule in engine.rules() if WANTED in rule.needs}
    said = f"{workload.concurrency:,} requests are wanted of {copies:,} replicas, {each:,} of each"
    findings = (
        finding._replace(message=f"{said}: {finding.message}") if finding.rule in of_wanted else finding
        for finding in answered.findings
    )
    return answered._replace(findings=tuple(findings))


def answer(engine: Engine, model: Architecture, args: Any, known: Known, workload: Workload) -> Answered:
    """What is to be said of these arguments. Raises HybridcalcError for what cannot be read or makes no sense."""
    card = card_of(known.gpu)
    if card is not None:  # ranks are held against their number where the files say how many nodes there are
        card = card._replace(cards=None)
    args = engine.with_options(args, {"gpu": card})
    decided, open_rules = engine.decide(model, args, workload), frozenset[str]()
    if card is None and decided.findings:
        decided, open_rules = _of_any_gpu(engine, model, args, workload, decided)
    if decided.refused:
        return Answered(decided.findings, _behind(decided.findings[0].rule), refused=True)
    try:
        plan = engine.plan(model, args, engine.memory(model, args, _memory(known, card)), workload)
    except MemoryUnknown as unknown:
        gpu = GPU if known.gpu is None else f"a GPU known here ({known.gpu[:40]})"
        named = (figure for figure in unknown.figures if figure != GPU or card is None)
        missing = tuple(gpu if figure == GPU else figure for figure in named) or (GPU,)
        return Answered(decided.findings, _still_waiting(decided.waiting, MEMORY, missing), missing=missing)
    except Refusal as refusal:
        said = Finding.of(refusal)
        if said.rule in open_rules:
            return Answered(decided.findings, (("all", (GPU,)),), missing=(GPU,))
        again = any(finding.rule == said.rule for finding in decided.findings)
        return Answered((*decided.findings, *(() if again else (said,))), _behind(said.rule), refused=True)
    told = {finding.rule for finding in decided.findings}
    more = (finding for finding in plan.findings if finding.rule not in told)
    return Answered((*decided.findings, *more), _still_waiting(decided.waiting, MEMORY, ()), plan)


def _of_any_gpu(
    engine: Engine, model: Architecture, args: Any, workload: Workload, decided: Decided
) -> tuple[Decided, frozenset[str]]:
    """What flags decide on whichever GPU, where none is known; and the rules that wait for it, as some GPUs break them
    and others do not.
    """
    on_each = [engine.decide(model, engine.with_options(args, {"gpu": card}), workload) for card in kinds_of_gpus()]
    starts = [each for each in on_each if not each.refused]
    open_rules = frozenset(
        finding.rule
        for finding in decided.findings
        if any(all(finding.rule != other.rule for other in each.findings) for each in starts)
    )
    if not open_rules:
        return decided, open_rules
    known = starts[0] if decided.refused else decided  # what else is to be said of it
    kept = tuple(
        finding
        for finding in known.findings
        if finding.rule not in open_rules
        and all(any(finding.rule == other.rule for other in each.findings) for each in starts)
    )
    waiting = {**dict(known.waiting), **dict.fromkeys(sorted(open_rules), (GPU,))}
    return Decided(kept, tuple(sorted(waiting.items()))), open_rules


def card_of(name: str | None) -> "Gpu | None":
    """The GPU of that name; None where none is known."""
    if name is None:
        return None
    from hybridcalc.hardware import find_gpu

    try:
        return find_gpu(name)
    except InputError:
        return None


def _memory(known: Known, card: "Gpu | None") -> Memory:
    sizes = (None if text is None else parse_bytes(text) / GIB for text in (known.rest, known.available, known.weights))
    rest, available, weights = sizes
    return Memory(rest, available, card, weights)


def _behind(rule: str) -> Waiting:
    """What waits where the engine does not even start: every other rule."""
    return (("all", (f"{rule}{STOPS}",)),)


def _still_waiting(waiting: Waiting, figure: str, instead: Sequence[str]) -> Waiting:
    """What waits, with ``instead`` in place of a figure; without what waits for nothing any more."""
    replaced = (
        (rule, tuple(part for need in needs for part in (instead if need == figure else (need,))))
        for rule, needs in waiting
    )
    return tuple((rule, needs) for rule, needs in replaced if needs)


def certain(
    answered: Answered, rules: Mapping[str, Rule], unsure: set[str], opened: Sequence[str], typed: frozenset[str] | None
) -> Answered:
    """Without the findings that a flag nobody knows could change; what waits, waits for the unknown words first.

    ``typed`` are the flags that are given where further ones may follow: nothing is sure of one that is absent.
    """
    if not opened:
        return answered
    kept = []
    waiting = [(rule, tuple(opened)) for rule, _ in answered.waiting]
    for finding in answered.findings:
        rests = rules[finding.rule].rests_on if finding.rule in rules else None
        missing: Collection[str] = unsure if rests is None else unsure & rests
        about = rules[finding.rule].place if finding.rule in rules else ()
        if typed is not None and about and typed.isdisjoint(about):
            missing = opened
        if missing:
            waiting.append((finding.rule, tuple(sorted(missing))))
        else:
            kept.append(finding)
    return answered._replace(
        findings=tuple(kept), waiting=tuple(waiting), missing=tuple(opened) if answered.missing else ()
    )
