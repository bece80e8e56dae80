"""What do the flags alone decide, with no figure of memory known?

    --max-mamba-cache-size 8 --max-running-requests 4, S = 5      8 // 5 = 1 request of 4; 4 x 5 + 1 = 21 slots

Start-up is run up to the point where memory is counted, for what it refuses; then the rules are judged that need no
figure which is missing. Each says itself what it needs (findings.Rule); an engine gives its rules, and its figures of a
launch that is not sized yet.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hybridcalc.deployment import Workload
from hybridcalc.errors import Refusal
from hybridcalc.findings import LENGTH, PREFIX, WANTED, Finding, Rule


class Decided(NamedTuple):
    """What is certain: findings, and for every rule that is not judged the figures it needs."""

    findings: tuple[Finding, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]


def decide(rules: Iterable[Rule], unsized: Callable[[], Any], workload: Workload) -> Decided:
    """The refusals and traps that hold whatever the memory. ``unsized`` runs the start-up and raises its Refusal.

    Raises InputError for what makes no sense.
    """
    try:
        plan = unsized()
    except Refusal as refusal:  # it does not start: no rule is asked of it
        return Decided(tuple(map(Finding.of, (refusal, *refusal.beside))), ())
    figures = ((LENGTH, workload.lengths), (WANTED, workload.wanted), (PREFIX, workload.shared_prefix))
    known = {figure for figure, has in figures if has}
    findings, waiting = list[Finding](), list[tuple[str, tuple[str, ...]]]()
    for rule in rules:
        needs = rule.needs_of(plan)
        missing = tuple(str(need) for need in needs or () if need not in known)
        if missing:
            waiting.append((rule.id, missing))
        elif needs is not None and rule.check is not None:
            findings += [Finding.made(rule.id, rule.severity, message, fix) for message, fix in rule.check(plan)]
    return Decided(tuple(findings), tuple(sorted(waiting)))
