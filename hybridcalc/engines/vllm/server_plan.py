"""The answer of ``hybridcalc plan`` for vLLM: pages, blocks, capacity for a workload, findings, suggestions.

`plan` runs the engine's start-up (planner.py) on the likely memory and, where that is only an interval, on both ends of
it. Findings and suggestions are computed when they are first asked for: each suggestion is a plan itself.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.document import plan_document
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.figures import Figures, running
from hybridcalc.engines.vllm.notes import plan_notes
from hybridcalc.engines.vllm.planner import Prepared, Sizing, outputs, prepare, size
from hybridcalc.engines.vllm.prefix import PrefixReuse, prefix_reuse
from hybridcalc.engines.vllm.rules import RULES
from hybridcalc.engines.vllm.steps import plan_steps
from hybridcalc.engines.vllm.suggest import suggest
from hybridcalc.errors import InputError, Refusal
from hybridcalc.findings import Finding, find
from hybridcalc.steps import Step, Suggestion
from hybridcalc.units import GIB, LARGEST_BYTES


class Plan(Figures):
    """The figures, and what they mean. Findings and suggestions are computed when they are first asked for."""

    engine = "vllm"
    promised: tuple[str, ...] = (
        "attn_block_size", "padded_page_bytes", "padding_pct", "group_sizes", "group_blocks_per_request",
        "bytes_per_block", "num_blocks", "blocks_per_request", "max_concurrency", "kv_cache_size_tokens",
        "state_bytes_per_layer",
    )  # fmt: skip

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Traps this configuration walks into."""
        return find(RULES, self)

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Flags that serve the workload better, the most gain first."""
        return suggest(self)

    @cached_property
    def prefix(self) -> PrefixReuse | None:
        """What a shared prefix saves; None where the workload shares none."""
        work = self.workload
        if not work.shared_prefix:
            return None
        return prefix_reuse(self.ready, self.sizing, work.shared_prefix, work.private)

    @property
    def notes(self) -> list[str]:
        """Limits of what is known, and flags that do nothing."""
        notes = plan_notes(self)
        if not self.low.blocks:
            notes.append("at the low end of this memory the server does not start")
        elif self.ready.seqs_checked and self.args.seqs > self.low.blocks:
            notes.append(
                f"at the low end of this memory max_num_seqs {self.args.seqs:,} is refused: {self.low.blocks:,} blocks"
            )
        return notes

    @property
    def steps(self) -> list[Step]:
        """Every figure with its formula, numbers, unit and source."""
        return plan_steps(self.ready, self.sizing, self.rest)

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``plan --json``."""
        return plan_document(self)

    @property
    def engine_figures(self) -> dict[str, Any]:
        """VLLM's own figures under its own names."""
        found, running = outputs(self.ready, self.sizing), self.running
        del found["log"]  # the lines of the document
        return found | {
            "padded_page_bytes": self.padded_page_bytes,
            "padding_pct": self.padding_pct,
            "usable_blocks": self.usable_blocks,
            "max_num_seqs": self.args.seqs,
            "fixed_blocks_per_request": self.fixed_blocks,
            "largest_max_num_seqs": self.most_seqs or None,
            "longest_max_model_len": self.longest_model_len,
            "requests_that_fit": running.fits,
            "blocks_each": float(running.blocks_each),
            "prefix": self.prefix.to_dict() if self.prefix is not None else None,
        }

    @property
    def intervals(self) -> dict[str, Any]:
        """[low, high] of the memory and of the blocks."""
        return {
            "available_gib": [self.rest.low_gib, self.rest.high_gib],
            "num_blocks": [self.low.blocks, self.high.blocks],
        }


def plan(
    model: Architecture,
    args: EngineArgs,
    *,
    available_bytes: int | None = None,
    rest: Rest | None = None,
    workload: Workload | None = None,
) -> Plan:
    """Plan a server: ``available_bytes`` is the memory free for the cache on one GPU, or ``rest`` an interval of it.

    Raises Refusal for what the engine does not start with, InputError for what makes no sense, and for no memory.
    """
    whole = isinstance(available_bytes, int) and not isinstance(available_bytes, bool)
    if available_bytes is not None and not (whole and abs(available_bytes) <= LARGEST_BYTES):
        raise InputError(f"available_bytes {str(available_bytes)[:40]} is not a whole number of bytes")
    if rest is None:
        if available_bytes is None and args.kv_cache_memory_bytes is None:
            raise InputError("a plan needs the memory free for the cache", fix="give available_bytes")
        free = args.kv_cache_memory_bytes if available_bytes is None else available_bytes
        rest = exact_rest((free or 0) / GIB)
        available_bytes = free
    ready, work = prepare(model, args), workload or Workload()
    try:
        sizing = size(ready, int(rest.likely_gib * GIB) if available_bytes is None else available_bytes)
    except Refusal as refusal:
        raise _advised(refusal, ready, rest, work) from None
    low, high = (
        (sizing, sizing) if rest.exact else (_end(ready, rest.low_gib, sizing), _end(ready, rest.high_gib, sizing))
    )
    return Plan(ready, sizing, low, high, rest, work)


def _end(ready: Prepared, gib: float, likely: Sizing) -> Sizing:
    """The sizing at one end of an uncertain memory, whatever max_num_seqs; no blocks where no request would fit."""
    try:
        return size(_of_one(ready), int(gib * GIB))
    except Refusal:
        return likely._replace(blocks=0)


def _of_one(ready: Prepared) -> Prepared:
    """The same server for one sequence, which the blocks never refuse."""
    return ready._replace(args=replace(ready.args, max_num_seqs=1))


def _advised(refusal: Refusal, ready: Prepared, rest: Rest, work: Workload) -> Refusal:
    """A refusal of max_num_seqs with the number that starts at both ends of the memory and serves the workload."""
    refusal.outputs |= {"available_gib": rest.likely_gib, "memory_why": rest.why}
    if refusal.rule != "HC044":
        return refusal
    least, likely = _end(ready, rest.low_gib, _none(ready)), _end(ready, rest.likely_gib, _none(ready))
    fits = running(_of_one(ready), likely, work).fits if work.lengths else likely.blocks
    seqs = min(likely.blocks, least.blocks or likely.blocks, max(1, fits))
    better = Refusal(refusal.reason, stage=refusal.stage, rule=refusal.rule, fix=f"write --max-num-seqs {seqs}")
    better.outputs = refusal.outputs
    return better


def _none(ready: Prepared) -> Sizing:
    """No memory at all."""
    return Sizing(0, 0, ready.length, 1, 0, 1, 1, 1)
