"""Every rule of ``check``: those of both engines' planners, and those about deployment files themselves.

HC001-HC039 are SGLang's, HC040-HC069 vLLM's, HC070-HC089 stand here,
HC090-HC099 are about checkpoints. A rule about files is added here and judged in
judge.py.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.engines.checkpoints import RULES as CHECKPOINT_RULES
from hybridcalc.findings import Rule


class Explained(NamedTuple):
    """A rule as it is explained: ``severity`` as it is reported, ``reason`` with its arithmetic, ``source``."""

    id: str
    severity: str
    title: str
    reason: str
    source: str
    engine: str = ""


FILE_RULES = (
    Rule("HC070", "error", "fewer GPUs than ranks",
         "A server takes tp x pp GPUs, times dp where data parallelism is separate workers; a node has as many as the "
         "resource limit says, times the nodes.", "Kubernetes resource limits; SGLang and vLLM launch arguments",
         place=("--tp-size", "--tensor-parallel-size")),
    Rule("HC071", "error", "a flag or value that the engine does not take",
         "A misspelt flag, a value outside its choices, two flags that exclude each other: the server stops at once.",
         "SGLang server_args.py, vLLM engine/arg_utils.py", rests_on=frozenset()),
    Rule("HC072", "note", "retired flag name",
         "It still works, and may not in the next release.", "SGLang server_args.py", rests_on=frozenset()),
    Rule("HC073", "note", "more GPUs than ranks",
         "GPUs beyond tp x pp (x dp) are held and idle.", "Kubernetes resource limits",
         place=("--tp-size", "--tensor-parallel-size")),
    Rule("HC074", "error", "expected to fit, and does not", "`expect: fits` in hybridcalc.yaml.", "docs/check.md"),
    Rule("HC075", "error", "fewer requests than expected",
         "Requests that run at once, over all attention workers, against `expect: min_requests`.", "docs/check.md"),
    Rule("HC076", "error", "fewer KV tokens than expected", "KV tokens against `expect: min_tokens`.", "docs/check.md"),
    Rule("HC077", "error", "more of a pool idles than expected",
         "The share of the pool that does not bind which no request can use, against `expect: max_idle_percent`.",
         "docs/check.md"),
    Rule("HC078", "warning", "suppression without a reason or without effect",
         "`# hybridcalc: ignore=ID reason`: the reason is for whoever reads it next.", "docs/check.md"),
    Rule("HC079", "warning", "unresolved value",
         "A shell, an environment or another file decides a value that sizing needs. Exit code 3 where nothing failed; "
         "--set NAME=VALUE, --env-file and --model resolve it.", "docs/check.md"),
    Rule("HC080", "error", "a line of flags that belongs to no command",
         "The line above does not end in a backslash: the server starts without these flags, and the shell looks for a "
         "command of their name.", "POSIX shell command language"),
)  # fmt: skip


@cache
def all_rules() -> dict[str, Explained]:
    """Every rule that is judged on a deployment, by id, in order."""
    return _by_id(
        (
            *chain.from_iterable(_of(name, ENGINES[name].rules()) for name in ENGINES),
            *_of("any", CHECKPOINT_RULES),
            *_of("", FILE_RULES),
        )
    )


@cache
def judged_rules(engine: str) -> dict[str, Rule]:
    """The rules that are judged on a deployment of one engine, by id."""
    return {rule.id: rule for rule in (*ENGINES[engine].rules(), *CHECKPOINT_RULES, *FILE_RULES)}


def explained_rules() -> dict[str, Explained]:
    """Every rule there is, those of boot logs included, by id, in order."""
    from hybridcalc.diagnosis.rules import RULES
    from hybridcalc.live.verdict import RULES as LIVE_RULES

    return _by_id((*all_rules().values(), *_of("logs", RULES), *_of("servers", LIVE_RULES)))


def _of(whose: str, rules: Iterable[Rule]) -> Iterator[Explained]:
    for rule in rules:
        yield Explained(rule.id, rule.severity, rule.title, rule.reason, rule.source, whose)


def _by_id(rules: Iterable[Explained]) -> dict[str, Explained]:
    return {rule.id: rule for rule in sorted(rules)}
