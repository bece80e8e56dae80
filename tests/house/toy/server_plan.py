"""A plan of Toy's server."""

from typing import Any

from hybridcalc.errors import Refusal
from hybridcalc.findings import BudgetLine, Step, find
from hybridcalc.units import GIB
from toy.planner import prepare
from toy.rules import RULES


class Plan:
    """Blocks over the memory, and what runs on them."""

    suggestions = ()

    def __init__(self, ready: Any, rest: Any, workload: Any, blocks: Any) -> None:
        self.model, self.args, self.ready, self.rest, self.workload = ready.model, ready.args, ready, rest, workload
        self.version, self.blocks, self.tokens = ready.rules.version, blocks, blocks * ready.args.block
        held = -(-int(workload.mean_length or 1) // self.args.block) + 1
        self.fits = blocks // held
        self.requests = self.concurrency = min(self.fits, self.args.max_requests)
        self.binding = "limit" if self.fits > self.args.max_requests else "blocks"
        self.idle_percent = 0.0 if workload.lengths else None
        self.budget = (BudgetLine("blocks", "kv", blocks * ready.block_bytes, blocks * ready.block_bytes, "all"),)
        self.findings = find(RULES, self)
        self.log_lines = [f"toy: {blocks} blocks"]
        self.notes: list[str] = []
        self.steps = [Step("blocks", "memory // block", f"// {ready.block_bytes:,}", blocks, "", "toy")]

    def to_dict(self) -> Any:
        """The document."""
        return {
            "engine": "toy",
            "engine_version": self.version,
            "model": self.model.name,
            "arguments": self.args.given(),
            "starts": True,
            "refusal": None,
            "blocks": self.blocks,
            "requests": self.requests,
            "findings": [finding.to_dict() for finding in self.findings],
            "suggestions": [],
            "log_lines": self.log_lines,
            "notes": self.notes,
            "steps": [step.to_dict() for step in self.steps],
        }


def plan(model: Any, args: Any, *, rest: Any, workload: Any) -> Any:
    """Raises Refusal where no block fits."""
    ready = prepare(model, args)
    blocks = int(rest.likely_gib * GIB) // ready.block_bytes
    if blocks < 2:
        raise Refusal("no room for two blocks", stage="blocks", rule="TOY1", fix="give more memory")
    return Plan(ready, rest, workload, blocks)
