"""The answer of ``hybridcalc plan`` for llama.cpp: what a context allocates, whether it fits, findings.

A context takes what was asked for: the plan is the same with and without a GPU, which only says whether it fits. Where
nobody set -c, --fit shrinks it to what does, to no less than --fit-ctx.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.answer import Shown
from hybridcalc.engines.llamacpp.config import ContextParams
from hybridcalc.engines.llamacpp.figures import Figures, bounded
from hybridcalc.engines.llamacpp.memory import UNBOUNDED
from hybridcalc.engines.llamacpp.planner import PADDING, Prepared, prepare
from hybridcalc.engines.llamacpp.rules import RULES
from hybridcalc.errors import Refusal
from hybridcalc.findings import Finding, find
from hybridcalc.steps import Step, Suggestion
from hybridcalc.units import GIB, format_bytes


class Plan(Shown, Figures):
    """The figures, and what they mean. ``asked``: the context before --fit shrank it."""

    engine = "llama.cpp"
    promised: tuple[str, ...] = ()
    rest: Rest

    def __init__(self, ready: Prepared, rest: Rest, workload: Workload, asked: Prepared) -> None:
        super().__init__(ready, workload)
        self.rest, self.asked = rest, asked

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Traps this configuration walks into."""
        return find(RULES, self, (part.findings for part in self.rest.parts))

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Other types of K and V, where the slots share too few cells or too much memory is asked for: not searched."""
        return ()

    @property
    def notes(self) -> list[str]:
        """Limits of what is known."""
        ready, notes = self.ready, [self.model.reading] if self.model.reading else []
        if ready.front is not None:
            from hybridcalc.engines.llamacpp.ollama import notes as of_ollama

            notes += of_ollama(ready.front, self.args)
        if self.asked.n_ctx != ready.n_ctx:
            notes.append(f"--fit shrinks the context from {self.asked.n_ctx:,} to about {ready.n_ctx:,} tokens")
        if ready.checkpoint_bytes:
            notes.append(self._host())
        if not self.args.offload_kqv:
            notes.append("-nkvo keeps KV and states on the host")
        if any(cache.name == "window" for cache in ready.caches):
            notes.append("a checkpoint of this model also holds the KV of its windows, which is not counted")
        if self.model.ple_conv is not None:
            notes.append("the per-layer-embedding columns of the state are counted as P")
        return notes

    def _host(self) -> str:
        """What the host keeps: checkpoints, and prompts that are done."""
        each, most, limit = self.ready.checkpoint_bytes, self.checkpoints_bytes, self.args.cache_ram_mib
        said = f"host memory: a context checkpoint takes {format_bytes(each)}, {format_bytes(most)} of them at most"
        if limit:
            said += f"; done prompts {f'up to {limit:,} MiB' if limit > 0 else 'without limit'} (--cache-ram)"
        return said

    @property
    def steps(self) -> list[Step]:
        """Every figure with its formula, numbers, unit and source."""
        ready, engine = self.ready, f"llama.cpp {self.version}"
        args, steps = self.args, list[Step]()
        if args.kv_unified:
            steps.append(
                Step("n_ctx_seq", "pad256(n_ctx)", f"one stream of {ready.sequences} sequences", ready.n_ctx_seq,
                     "tokens", f"{engine} src/llama-context.cpp")
            )  # fmt: skip
        else:
            numbers = f"{args.n_ctx or self.model.max_context or 0:,} / {ready.sequences}"
            steps.append(
                Step("n_ctx_seq", "pad256(pad256(n_ctx) // n_seq_max)", numbers, ready.n_ctx_seq, "tokens a stream",
                     f"{engine} src/llama-context.cpp")
            )  # fmt: skip
        for cache in ready.caches:
            numbers = f"{cache.layers} x {cache.cells:,} x {cache.streams} x ({cache.k_row:,} + {cache.v_row:,})"
            steps.append(
                Step(f"KV ({cache.name})", "layers x cells x streams x (row K + row V)", numbers,
                     cache.k_bytes + cache.v_bytes, "B", f"{engine} src/llama-kv-cache.cpp")
            )  # fmt: skip
        if ready.state_layers:
            numbers = f"{ready.state_layers} x {ready.sequences} x {1 + ready.copies} x ({ready.r:,} + {ready.s:,}) x 4"
            steps.append(
                Step("state", "layers x sequences x (1 + copies) x (r + s) x 4", numbers, ready.state_bytes, "B",
                     f"{engine} src/llama-memory-recurrent.cpp")
            )  # fmt: skip
            steps.append(
                Step("checkpoint", "layers x (r + s) x 4 + 20 + 24 x layers",
                     f"{ready.sequence_state_bytes:,} + 20 + 24 x {ready.state_layers}", ready.checkpoint_bytes,
                     "B of host memory", f"{engine} src/llama-memory-recurrent.cpp state_write")
            )  # fmt: skip
        return steps

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``plan --json``."""
        from hybridcalc.engines.document import plan_document

        return plan_document(self)

    @property
    def intervals(self) -> dict[str, Any]:
        """[low, high] of the memory."""
        return {"rest_gib": [self.rest.low_gib, self.rest.high_gib]}


def plan(
    model: Architecture, args: ContextParams, *, rest: Rest | None = None, workload: Workload | None = None
) -> Plan:
    """Plan a context. Raises Refusal for what does not start, or does not fit ``rest`` and --fit is off."""
    asked, work = prepare(model, args), workload or Workload()
    args = asked.args  # what Ollama makes of a launch is settled there
    needed = asked.kv_bytes + asked.draft_bytes + asked.state_bytes
    if rest is None:
        rest = exact_rest(needed / GIB, UNBOUNDED)
    if not bounded(rest) or needed <= rest.likely_gib * GIB or not args.offload_kqv:
        return Plan(asked, rest, work, asked)
    if args.fit:
        return Plan(_fitted(asked, rest) if not args.n_ctx else asked, rest, work, asked)
    shorter = _fitted(asked, rest)
    fits = shorter.kv_bytes + shorter.draft_bytes + shorter.state_bytes <= rest.likely_gib * GIB
    refusal = Refusal(
        f"KV and states take {needed / GIB:.2f} GiB, {max(rest.likely_gib, 0):.2f} are left",
        stage="llama_kv_cache",
        rule="HC204",
        fix=f"write --ctx-size {shorter.n_ctx}" if fits else "a larger GPU, fewer layers on it (-ngl), or fewer slots",
    )
    refusal.outputs |= {"available_gib": rest.likely_gib, "memory_why": rest.why}
    raise refusal


def _fitted(asked: Prepared, rest: Rest) -> Prepared:
    """The longest context that fits, in steps of 256 cells a stream, and no shorter than --fit-ctx."""
    args, streams = asked.args, asked.streams
    step = PADDING * streams
    per_step = step * asked.kv_bytes_per_token
    least = -(-args.fit_ctx // step) * step
    if not per_step:
        return asked
    free = int(rest.likely_gib * GIB) - asked.state_bytes
    tokens = max(least, min(asked.n_ctx, free // per_step * step))
    return prepare(asked.model, replace(args, n_ctx=min(tokens, asked.n_ctx) or step))
