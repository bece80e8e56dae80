"""The answer of ``hybridcalc plan`` for llama.cpp: what a context allocates, whether it fits, findings.

A context takes what was asked for: the plan is the same with and without a GPU, which only says whether it fits. Where
nobody set -c, --fit shrinks it to what does, to no less than --fit-ctx.
"""

from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.answer import Shown
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.engines.llamacpp.figures import Figures, bounded
from hybridcalc.engines.llamacpp.memory import UNBOUNDED, weighed
from hybridcalc.engines.llamacpp.placement import caches_on_cards, layers_in_all, offloaded_of
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.engines.llamacpp.saved import ServerSlot, served
from hybridcalc.engines.llamacpp.shrink import Shrunk, movable, shrunk
from hybridcalc.errors import Refusal, Write
from hybridcalc.findings import Step
from hybridcalc.units import GIB, format_bytes


class Plan(Shown, Figures):
    """The figures, and what they mean. ``asked``: the context before --fit shrank it."""

    engine = "llama.cpp"
    promised: tuple[str, ...] = ()
    rest: Rest

    def __init__(self, found: Shrunk, rest: Rest, workload: Workload, asked: Prepared) -> None:
        super().__init__(found.ready, workload)
        self.rest, self.asked = rest, asked
        self.offloaded, self.experts_on_host = found.offloaded, found.experts_on_host

    @property
    def notes(self) -> list[str]:
        """Limits of what is known."""
        ready, notes = self.ready, [self.model.reading] if self.model.reading else []
        if ready.front is not None:
            from hybridcalc.engines.llamacpp.ollama import notes as of_ollama

            notes += of_ollama(ready.front, self.args)
        if self.asked.n_ctx != ready.n_ctx:
            notes.append(f"--fit shrinks the context from {self.asked.n_ctx:,} to about {ready.n_ctx:,} tokens")
        notes += self._moved()
        if ready.checkpoint_bytes:
            notes.append(self._host())
        if not self.args.offload_kqv:
            notes.append("-nkvo keeps KV and states on the host")
        if any(cache.name == "window" for cache in ready.caches):
            notes.append("a checkpoint of this model also holds the KV of its windows, which is not counted")
        if self.model.ple_conv is not None:
            notes.append("the per-layer-embedding columns of the state are counted as P")
        return notes

    def _moved(self) -> list[str]:
        """What --fit moves to the host, and what of the devices is not modelled."""
        args, layers, notes = self.args, layers_in_all(self.model), list[str]()
        if self.experts_on_host:
            few = self.experts_on_host < layers
            which = f"about {self.experts_on_host} of {layers} layers" if few else "all layers"
            notes.append(f"--fit leaves the experts of {which} to the host")
        if self.offloaded is not None:
            notes.append(
                f"--fit puts about {self.offloaded} of {layers + 1} layers on the cards, the output among them"
            )
        if args.split_mode == "tensor":
            notes.append("-sm tensor shares layers over the cards: only the sums hold")
        if args.split_mode == "row" and len(self.placement.cards) > 1:
            notes.append("-sm row shares rows of each matrix over the cards: what each holds is right to a few rows")
        if self.unmoved:
            notes.append("-ot moves tensors whose sizes no name tells: what each device holds is without it")
        return notes

    def _host(self) -> str:
        """What the host keeps: checkpoints, and prompts that are done."""
        each, most, limit = self.ready.checkpoint_bytes, self.checkpoints_bytes, self.args.cache_ram_mib
        said = f"host memory: a context checkpoint takes {format_bytes(each)}, {format_bytes(most)} of them at most"
        if limit:
            said += f"; done prompts {f'up to {limit:,} MiB' if limit > 0 else 'without limit'} (--cache-ram)"
        prompt, args = self.workload.longest, self.args
        if prompt:
            left = served(
                ServerSlot(),
                prompt,
                0,
                batch=self.ready.n_batch,
                ubatch=self.ready.n_ubatch,
                limit=args.ctx_checkpoints,
            )[1]
            where = " and ".join(f"{each:,}" for each in left)
            said += f"; a prompt of {prompt:,} tokens leaves {len(left) or 'none'}{' at ' if left else ''}{where}"
        return said

    @property
    def steps(self) -> list[Step]:
        """Every figure with its formula, numbers, unit and source."""
        ready, engine = self.ready, f"llama.cpp {self.version}"
        args, steps = self.args, list[Step]()
        if args.kv_unified:
            steps.append(
                Step(
                    "n_ctx_seq",
                    "pad256(n_ctx)",
                    f"one stream of {ready.sequences} sequences",
                    ready.n_ctx_seq,
                    "tokens",
                    f"{engine} src/llama-context.cpp",
                )
            )
        else:
            numbers = f"{args.n_ctx or self.model.max_context or 0:,} / {ready.sequences}"
            steps.append(
                Step(
                    "n_ctx_seq",
                    "pad256(pad256(n_ctx) // n_seq_max)",
                    numbers,
                    ready.n_ctx_seq,
                    "tokens a stream",
                    f"{engine} src/llama-context.cpp",
                )
            )
        for cache in ready.caches:
            numbers = f"{cache.layers} x {cache.cells:,} x {cache.streams} x ({cache.k_row:,} + {cache.v_row:,})"
            steps.append(
                Step(
                    f"KV ({cache.name})",
                    "layers x cells x streams x (row K + row V)",
                    numbers,
                    cache.k_bytes + cache.v_bytes,
                    "B",
                    f"{engine} src/llama-kv-cache.cpp",
                )
            )
        if ready.state_layers:
            numbers = f"{ready.state_layers} x {ready.sequences} x {1 + ready.copies} x ({ready.r:,} + {ready.s:,}) x 4"
            steps.append(
                Step(
                    "state",
                    "layers x sequences x (1 + copies) x (r + s) x 4",
                    numbers,
                    ready.state_bytes,
                    "B",
                    f"{engine} src/llama-memory-recurrent.cpp",
                )
            )
            steps.append(
                Step(
                    "checkpoint",
                    "layers x (r + s) x 4 + 20 + 24 x layers",
                    f"{ready.sequence_state_bytes:,} + 20 + 24 x {ready.state_layers}",
                    ready.checkpoint_bytes,
                    "B of host memory",
                    f"{engine} src/llama-memory-recurrent.cpp state_write",
                )
            )
        return steps

    @property
    def intervals(self) -> dict[str, Any]:
        """[low, high] of the memory."""
        return {"rest_gib": [self.rest.low_gib, self.rest.high_gib]}


LEAST, LIKELY, MOST = range(3)
"""Ends of what a server takes."""


def plan(
    model: Architecture,
    args: ContextParams,
    *,
    rest: Rest | None = None,
    workload: Workload | None = None,
    taken: int = LIKELY,
) -> Plan:
    """Plan a context. Raises Refusal for what does not start, or does not fit ``rest`` and --fit may not change; with
    what it takes at the ``taken`` end of the estimates.
    """
    asked, work = prepare(model, args), workload or Workload()
    args = asked.args  # what Ollama makes of a launch is settled there
    if rest is None:
        caches = asked.kv_bytes + asked.draft_bytes + asked.state_bytes
        rest = exact_rest(caches / GIB, UNBOUNDED)
    if not bounded(rest):
        return Plan(Shrunk(asked), rest, work, asked)
    found = shrunk(asked, rest) if args.fit else Shrunk(asked)
    if found.ready.n_ctx != asked.n_ctx and rest.again is not None:
        rest = rest.again(found.ready.args)  # shorter contexts have smaller compute buffers
    made = Plan(found, rest, work, asked)
    lack = None if movable(args) else made.lacking(taken)
    needed, left = caches_on_cards(asked), _left(rest, taken)
    if lack is None and (args.fit or made.by_card or needed <= left * GIB):
        return made
    reason = f"KV and states take {needed / GIB:.2f} GiB, {max(left, 0):.2f} are left" if lack is None else str(lack)
    raise rest.told(Refusal(reason, stage="llama_kv_cache", rule="HC204", fix=mended(asked, rest, work, taken)))


def mended(asked: Prepared, rest: Rest, work: Workload, taken: int) -> str:
    """What to write so that every card holds what it is to hold, for certain or else at the ``taken`` end."""
    for end in (MOST, taken):
        fix = _mended(asked, rest, work, end)
        if fix:
            return fix
    return "a larger GPU, fewer layers on it (-ngl), or fewer slots"


def _mended(asked: Prepared, rest: Rest, work: Workload, taken: int) -> str:
    """The same at an end of the estimates; each is planned before it is said. Empty where nothing does."""

    def holds(**changed: Any) -> bool:
        """Whether each card has room with other arguments, and the slots for the requests."""
        ready = prepare(asked.model, asked.args.changed(**changed))
        left = rest.again(ready.args) if rest.again is not None else rest
        made = Plan(Shrunk(ready), left, work, ready)
        room = made.lacking(taken) is None if made.by_card else caches_on_cards(ready) <= _left(left, taken) * GIB
        return room and bool(made.requests)

    args, layers = asked.args, layers_in_all(asked.model)
    for words, changed in (
        ("leave out -ts", {"tensor_split": None}),
        ("leave out -sm none", {"split_mode": "layer"}),
        ("leave out -ot", {"override_tensor": None}),
    ):
        if any(getattr(args, name) != value for name, value in changed.items()) and holds(**changed):
            return words
    end = rest._replace(likely_gib=_left(rest, taken))
    tokens = shrunk(prepare(asked.model, args.changed(n_ctx=0)), end).ready.n_ctx
    if holds(n_ctx=tokens):
        return Write("--ctx-size", tokens)
    experts = weighed(asked) if not args.cpu_moe else None
    for count in range(args.n_cpu_moe + 1, layers + 1) if experts is not None and any(experts.layers.experts) else ():
        if holds(n_cpu_moe=count):
            return Write("--n-cpu-moe", count)
    for count in range(min(offloaded_of(args, layers), layers + 1) - 1, 0, -1):
        if holds(n_gpu_layers=count):
            return Write("--n-gpu-layers", count)
    return ""


def _left(rest: Rest, taken: int) -> float:
    """GiB left at an end of what a server takes."""
    return (rest.high_gib, rest.likely_gib, rest.low_gib)[taken]
