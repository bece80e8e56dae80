"""How the two engines are asked: which flags size, what words mean, what flags alone decide, and the whole plan.

The rest of checks/ knows no engine. Each `Door` is one of them; a new engine is added here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.sglang import command as sglang_command
from hybridcalc.engines.sglang import memory, server_plan, without_memory
from hybridcalc.engines.sglang.config import KNOWN_ENVIRONMENT, NEWEST_VERSION, Refusal
from hybridcalc.engines.sglang.flags import FLAG_FILES
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, parse_bytes

MEMORY = without_memory.MEMORY


class Memory(NamedTuple):
    """What is known of the memory of a rank: texts as they were given."""

    gpu: str | None = None
    weights: str | None = None
    rest: str | None = None
    available: str | None = None


class Figures(NamedTuple):
    """What expectations are held against; ``idle_percent`` is None without a length."""

    requests: int
    tokens: int
    idle_percent: float | None


class Answer(NamedTuple):
    """Findings of a deployment, what waits for a figure, and the figures of its plan where there is one."""

    findings: tuple[Finding, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]
    figures: Figures | None = None
    refused: bool = False


class Door(NamedTuple):
    """An engine. ``flag`` gives the field and the engine's own spelling of a sizing flag, None for any other name."""

    flag: Callable[[str], tuple[str, str, bool] | None]
    environment: frozenset[str]
    files: tuple[str, ...]
    read: Callable[[Sequence[str], Mapping[str, str], str | None], tuple[str | None, Any]]
    answer: Callable[[Architecture, Any, Memory, Workload], Answer]
    ranks: Callable[[Any], int]
    newest: str


@cache
def door(engine: str) -> Door | None:
    """The engine of that name; None where nothing is known of it."""
    if engine == "sglang":
        return Door(_sglang_flag, KNOWN_ENVIRONMENT, FLAG_FILES, _sglang_read, _sglang_answer, _sglang_ranks,
                    NEWEST_VERSION)  # fmt: skip
    if engine == "vllm":
        from hybridcalc.checks.vllm_door import vllm_door

        return vllm_door()
    return None


def _sglang_flag(name: str) -> tuple[str, str, bool] | None:
    flag = sglang_command.find_flag(name)
    return None if flag is None else (flag.field, flag.spellings[0], flag.kind == "flag")


def _sglang_read(words: Sequence[str], env: Mapping[str, str], version: str | None) -> tuple[str | None, Any]:
    from dataclasses import replace

    model, args = sglang_command.from_words(words, env)
    return model, args if version is None else replace(args, engine_version=version)


def _sglang_ranks(args: Any) -> int:
    replicas = 1 if args.enable_dp_attention else args.dp_size
    return int(args.tp_size * args.pp_size * replicas)


def _sglang_answer(model: Architecture, args: Any, known: Memory, workload: Workload) -> Answer:
    decided = without_memory.decide(model, args, workload)
    if any(finding.rule in _REFUSALS for finding in decided.findings):
        return Answer(decided.findings, (), refused=True)
    try:
        rest = _sglang_rest(model, args, known)
    except Refusal as refusal:
        return Answer((*decided.findings, _refused(refusal)), (), refused=True)
    if isinstance(rest, list):
        waiting = tuple(
            (rule, tuple(part for need in needs for part in (rest if need == MEMORY else (need,))))
            for rule, needs in decided.waiting
        )
        return Answer(decided.findings, waiting)
    try:
        planned = server_plan.plan(model, args, rest=rest, workload=workload)
    except Refusal as refusal:
        return Answer((*decided.findings, _refused(refusal)), (), refused=True)
    own = {finding.rule for finding in decided.findings}
    explicit = "HC002" in own
    more = [f for f in planned.findings if f.rule not in own and not (explicit and f.rule in ("HC023", "HC013"))]
    idle = planned.capacity.idle_percent if workload.lengths else None
    figures = Figures(planned.concurrency * args.attn_dp_size, planned.logical_token_capacity, idle)
    waiting = tuple(
        (rule, left) for rule, needs in decided.waiting if (left := tuple(need for need in needs if need != MEMORY))
    )
    return Answer((*decided.findings, *more), waiting, figures)


_REFUSALS = frozenset(rule.id for rule in without_memory.RULES if rule.check is None)


def _refused(refusal: Refusal) -> Finding:
    return Finding(refusal.rule, "error", refusal.reason, refusal.fix)


def _sglang_rest(model: Architecture, args: Any, known: Memory) -> Any:
    """The memory left, or a list of the figures that are missing for it."""
    if known.rest is not None:
        return exact_rest(parse_bytes(known.rest) / GIB)
    missing = []
    if known.gpu is None:
        missing.append("the GPU")
    if known.weights is None:
        missing.append("the weights on a rank")
    if args.mem_fraction_static is None:
        missing.append("--mem-fraction-static")
    if missing:
        return missing
    assert known.gpu is not None and known.weights is not None  # noqa: S101
    try:
        return memory.rest_from_gpu(memory.find_gpu(known.gpu), parse_bytes(known.weights) / GIB, model, args)
    except InputError as error:
        if isinstance(error, Refusal):
            raise
        return [error.message]


