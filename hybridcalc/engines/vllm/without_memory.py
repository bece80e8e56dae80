"""What do vLLM's flags alone decide, with no figure of memory known?

Start-up is run up to the point where memory is counted: refusals of configuration, model, block size and layout; then
the traps that need no memory: padding, block sizes, flags without effect. `NEEDS` says which figure every other rule
waits for. ``--num-gpu-blocks-override`` says the blocks itself, so that nothing waits for memory then.
"""

from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.vllm.config import AUTO_FIT, EngineArgs
from hybridcalc.engines.vllm.figures import Figures
from hybridcalc.engines.vllm.planner import Prepared, prepare
from hybridcalc.engines.vllm.rules import RULES
from hybridcalc.errors import Refusal
from hybridcalc.findings import Finding
from hybridcalc.steps import Suggestion

MEMORY, LENGTH, WANTED = "the memory for the cache", "the length of requests", "the concurrency wanted"
PREFIX = "the prefix that requests share"
NEEDS: dict[str, tuple[str, ...]] = {
    "HC040": (MEMORY,), "HC041": (MEMORY,), "HC044": (MEMORY,), "HC055": (MEMORY, PREFIX), "HC059": (MEMORY, LENGTH),
    "HC060": (MEMORY, LENGTH), "HC061": (MEMORY,), "HC062": (LENGTH,), "HC063": (MEMORY, WANTED),
}  # fmt: skip
"""Rule -> the figures it waits for, beyond flags and model."""


class Decided(NamedTuple):
    """What is certain: findings, for every rule that waits the figures it waits for, and the memory that an explicit
    number of blocks stands for.
    """

    findings: tuple[Finding, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]
    bytes_of_override: int | None = None


class _NeedsMemory(Exception):
    """A rule asks for a figure that memory decides."""


class _AnyMemory:
    """Memory without end: whether other flags would start is asked of everything but memory."""

    available_bytes = 2**50

    def __getattr__(self, name: str) -> Any:
        raise _NeedsMemory(name)


class _Unsized(Figures):
    """The part of a plan that memory does not change; a rule that asks for more waits for the memory."""

    def __init__(self, ready: Prepared, workload: Workload) -> None:
        self.ready, self.model, self.args = ready, ready.model, ready.args
        self.workload = workload
        self.sizing: Any = _AnyMemory()

    def __getattr__(self, name: str) -> Any:
        raise _NeedsMemory(name)

    @property
    def max_model_len(self) -> int:
        """The length served, where it is not fitted to the memory."""
        return self.ready.length

    @property
    def longest_model_len(self) -> int:
        """Not known without memory."""
        return 0

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """None without memory."""
        return ()


def decide(model: Architecture, args: EngineArgs, workload: Workload) -> Decided:
    """The refusals and traps of ``args`` that hold whatever the memory. Raises InputError for what makes no sense."""
    figures = ((LENGTH, workload.lengths), (WANTED, workload.wanted), (PREFIX, workload.shared_prefix))
    known = {figure for figure, has in figures if has}
    waiting = {rule: tuple(need for need in needs if need not in known) for rule, needs in NEEDS.items()}
    try:
        ready = prepare(model, args)
    except Refusal as refusal:
        return Decided((Finding(refusal.rule, "error", refusal.reason, refusal.fix),), ())
    plan = _Unsized(ready, workload)
    if args.max_num_seqs is not None or args.gpu_memory_gib is not None:
        waiting.pop("HC061")
    if args.max_model_len == AUTO_FIT:
        waiting["HC062"] = (MEMORY, *waiting["HC062"])
    findings: list[Finding] = []
    for rule in RULES:
        if rule.check is None or MEMORY in NEEDS.get(rule.id, ()) or waiting.get(rule.id):
            continue
        try:
            findings += [Finding(rule.id, rule.severity, message, fix) for message, fix in rule.check(plan)]
        except _NeedsMemory:
            waiting[rule.id] = (MEMORY,)
    override = args.num_gpu_blocks_override
    return Decided(
        tuple(findings),
        tuple(sorted((rule, needs) for rule, needs in waiting.items() if needs)),
        None if override is None else override * ready.bytes_per_block,
    )
