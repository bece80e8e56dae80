"""The answer of ``hybridcalc plan`` for vLLM: pages, blocks, capacity for a workload, findings, suggestions.

`plan` runs the engine's start-up (planner.py) on the likely memory and, where that is only an interval, on both ends of
it. Findings and suggestions are computed when they are first asked for: each suggestion is a plan itself. `plan_steps`
has every figure as a line of arithmetic: symbol, formula, the same with numbers, value, unit, source; `plan_notes` the
limits of what is known, and flags that do nothing here.
"""

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.answer import Shown
from hybridcalc.engines.vllm import AUTO_FIT, KNOWN_ENVIRONMENT, EngineArgs
from hybridcalc.engines.vllm.configuration import longest_of
from hybridcalc.engines.vllm.figures import Figures, running
from hybridcalc.engines.vllm.layers import QWEN3_5
from hybridcalc.engines.vllm.pages import FULL, WINDOW, blocks_held, longest_length
from hybridcalc.engines.vllm.planner import Prepared, Sizing, figures, prepare, size, usable_bytes
from hybridcalc.errors import HybridcalcError, InputError, Refusal, Write
from hybridcalc.findings import Step
from hybridcalc.units import GIB, LARGEST_BYTES

if TYPE_CHECKING:
    from hybridcalc.engines.vllm.suggest import PrefixReuse


def plan_steps(ready: Prepared, sizing: Sizing, rest: Rest) -> list[Step]:
    """Steps in the order the engine takes them."""
    engine, pages, per_block = f"vLLM {ready.rules.version}", ready.pages, ready.bytes_per_block
    planning = f"{engine} v1/core/kv_cache_planning.py"
    steps = [Step("available", "memory for the cache", rest.why, sizing.available_bytes, "B per GPU", planning)]
    if ready.state:
        parts = " + ".join(f"{' x '.join(map(str, tensor.shape))} {tensor.dtype}" for tensor in ready.state)
        steps.append(
            Step(
                "m",
                "state of a layer",
                parts,
                ready.state_bytes,
                "B per layer and GPU",
                f"{engine} model_executor/layers/mamba/mamba_utils.py",
            )
        )
    if ready.kv_bytes:
        steps.append(
            Step(
                "a",
                "KV of a token in a layer",
                ready.args.kv_cache_dtype,
                ready.kv_bytes,
                "B per layer and GPU",
                f"{engine} v1/kv_cache_interface.py",
            )
        )
        grid = f"m = {pages.class_bytes:,}, a = {ready.kv_bytes:,}" if ready.state else "no state to cover"
        steps.append(
            Step(
                "block",
                "least multiple with block x a >= m",
                grid,
                pages.block,
                "tokens",
                f"{engine} platforms/interface.py",
            )
        )
        steps.append(
            Step(
                "page",
                "block x a",
                f"{pages.block:,} x {ready.kv_bytes:,}",
                pages.page,
                "B per layer and block",
                f"{engine} platforms/interface.py",
            )
        )
    if pages.padded is not None:
        numbers = f"100 x ({pages.padded:,} - {ready.state_bytes:,}) / {ready.state_bytes:,}"
        steps.append(
            Step(
                "padding",
                "100 (page - m) / m",
                numbers,
                ready.settled["padding_pct"],
                "% of a state",
                f"{engine} platforms/interface.py",
            )
        )
    sizes, largest = [group.layers for group in ready.groups], max(ready.groups, key=lambda group: group.bytes)
    parts = f"of {', '.join(map(str, sizes))} layers"
    what, each = "page", f"{largest.page:,}"
    if pages.index_bytes and largest.kind == FULL:
        what, each = "(page + index)", f"({pages.attention_page:,} + {pages.index_bytes:,})"
    each += "" if largest.bytes == per_block else ", in whole rows and kernel pages"
    steps += [
        Step("groups", "buckets cut to one size", parts, len(sizes), "groups", planning),
        Step(
            "block bytes",
            f"layers of the largest group x {what}",
            f"{largest.layers} x {each}",
            per_block,
            "B",
            planning,
        ),
        Step("blocks", *_blocks(ready, sizing), sizing.blocks, "blocks", planning),
        Step(
            "per request",
            "sum over groups",
            _held(ready, sizing),
            sizing.per_request,
            f"blocks at {sizing.length:,} tokens",
            f"{engine} v1/kv_cache_interface.py",
        ),
        Step(
            "concurrency",
            "blocks / per request",
            f"{sizing.blocks:,} / {sizing.per_request:,}",
            sizing.concurrency,
            "requests of max_model_len",
            f"{engine} v1/core/kv_cache_utils.py",
        ),
        Step("tokens", *tokens_in_words(ready, sizing), sizing.tokens, "tokens", f"{engine} v1/core/kv_cache_utils.py"),
    ]
    return steps


def tokens_in_words(ready: Prepared, sizing: Sizing) -> tuple[str, str]:
    """How the engine comes to the token figure that it prints: the formula, and the same with numbers."""
    if not ready.rules.tokens_of_pool:
        return "int(blocks / per request x max_model_len)", (
            f"int({sizing.blocks:,} / {sizing.per_request:,} x {sizing.length:,})"
        )
    block, dcp = min(group.block for group in ready.groups), ready.args.decode_context_parallel_size
    shared = f" x {dcp}" if dcp > 1 else ""
    return "blocks // groups x block", f"{sizing.blocks:,} // {len(ready.groups)} x {block:,}{shared}"


def _blocks(ready: Prepared, sizing: Sizing) -> tuple[str, str]:
    if ready.args.num_gpu_blocks_override is not None:
        return "as --num-gpu-blocks-override says", f"{sizing.blocks:,}"
    left = usable_bytes(ready, sizing.available_bytes) // ready.bytes_per_block
    checked = f"; the check counts {left:,}" if left < sizing.blocks else ""
    return "available // block bytes", f"{sizing.available_bytes:,} // {ready.bytes_per_block:,}{checked}"


def _held(ready: Prepared, sizing: Sizing) -> str:
    """Blocks of the groups, those of states and of attention apart."""
    states = [blocks_held(group, sizing.length, ready.held) for group in ready.groups if group.recurrent]
    others = [blocks_held(group, sizing.length, ready.held) for group in ready.groups if not group.recurrent]
    terms = [f"{len(states)} x {states[0]} of states"] if states else []
    return " + ".join([*terms, *(f"{blocks:,} of KV" for blocks in others)])


def plan_notes(plan: Figures) -> list[str]:
    """Notes in the order a reader needs them; empty where there is nothing to say."""
    model, args, ready = plan.model, plan.args, plan.ready
    notes = [model.reading] if model.reading else []
    if model.confidence == "second-hand":
        notes.append(f"geometry is second-hand: {model.source}")
    longest, asked = longest_of(model), args.max_model_len
    if longest is None and asked in (None, AUTO_FIT):
        notes.append(f"{model.name} names no longest sequence: max_model_len {ready.length:,} is what vLLM assumes")
    if longest is not None and asked is not None and asked > longest:
        notes.append(
            f"max_model_len {asked:,} is above the model's own {longest:,}: VLLM_ALLOW_LONG_MAX_MODEL_LEN lets it "
            "start, the positions beyond are none it was made for"
        )
    if ready.kv_of_checkpoint:
        notes.append(f"--kv-cache-dtype auto is {args.kv_cache_dtype}, as the checkpoint's quantization_config says")
    if args.data_parallel_size > 1:
        notes.append(f"figures are those of one of {args.data_parallel_size} data-parallel replicas")
    if len(ready.stages) > 1:
        number = ready.stages.index(ready.groups) + 1
        notes.append(
            f"figures are those of a GPU of stage {number} of {len(ready.stages)}, whose blocks are the largest; every "
            "stage is taken to have the same memory"
        )
    if any(group.kind == WINDOW for group in ready.groups):
        notes.append("a window holds the tokens in flight as well: two batches of --max-num-batched-tokens")
    declared = model.declared_ssm_dtype if model.architecture in QWEN3_5 else None
    if declared is not None and args.mamba_ssm_cache_dtype not in ("auto", declared):
        notes.append(f"the model declares a {declared} state; the flag wins, with a warning")
    if args.hf_overrides:
        notes.append("of --hf-overrides only the context is applied here: give a config.json that has the rest")
    if args.max_num_seqs is None and any(group.recurrent for group in ready.groups):
        gpu = "this GPU" if args.gpu_memory_gib is not None else "a GPU below 70 GiB; it is 1,024 above"
        notes.append(f"max_num_seqs is not given: {args.seqs:,}, the default on {gpu}")
    unknown = sorted(name for name in args.env if name not in KNOWN_ENVIRONMENT)
    if unknown:
        notes.append(f"{', '.join(unknown)[:60]}: no switch that changes a figure here")
    return notes


class Plan(Shown, Figures):
    """The figures, and what they mean. Findings and suggestions are computed when they are first asked for."""

    engine = "vllm"
    promised: tuple[str, ...] = (
        "attn_block_size",
        "padded_page_bytes",
        "padding_pct",
        "group_sizes",
        "group_blocks_per_request",
        "bytes_per_block",
        "num_blocks",
        "blocks_per_request",
        "max_concurrency",
        "kv_cache_size_tokens",
        "state_bytes_per_layer",
    )

    @cached_property
    def prefix(self) -> "PrefixReuse | None":
        """What a shared prefix saves; None where the workload shares none."""
        work = self.workload
        if not work.shared_prefix:
            return None
        from hybridcalc.engines.vllm.suggest import prefix_reuse

        return prefix_reuse(self.ready, self.sizing, work.shared_prefix, work.private)

    @property
    def notes(self) -> list[str]:
        """Limits of what is known, and flags that do nothing."""
        return plan_notes(self)

    @property
    def steps(self) -> list[Step]:
        """Every figure with its formula, numbers, unit and source."""
        return plan_steps(self.ready, self.sizing, self.rest)

    @property
    def engine_figures(self) -> dict[str, Any]:
        """VLLM's own figures under its own names."""
        running = self.running
        return figures(self.ready, self.sizing) | {
            "padded_page_bytes": self.padded_page_bytes,
            "padding_pct": self.padding_pct,
            "usable_blocks": self.usable_blocks,
            "max_num_seqs": self.args.seqs,
            "max_num_batched_tokens": self.args.batched_tokens,
            "gpu_memory_utilization": self.args.utilization,
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
        return {"rest_gib": [self.rest.low_gib, self.rest.high_gib], "num_blocks": [self.low.blocks, self.high.blocks]}


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
        raise _advised(refusal, ready, args, rest, work) from None
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


def _advised(refusal: Refusal, ready: Prepared, args: EngineArgs, rest: Rest, work: Workload) -> Refusal:
    """A refusal with the fix that serves the workload: max_num_seqs that starts at both ends of the memory, no
    max_model_len that is shorter than the requests, and the flag that says the memory where one does.
    """
    rest.told(refusal)
    fix, longest = "", work.longest
    if refusal.rule in ("HC040", "HC041"):
        fix = _more_blocks(ready)
    if refusal.rule == "HC041" and not fix:
        fits = longest_length(ready, usable_bytes(ready, int(rest.likely_gib * GIB)), ready.length)
        if 0 < fits < longest:
            fix = f"more memory: {fits:,} is the longest --max-model-len that starts, requests hold {longest:,}"
        else:
            fix = _length_that_starts(ready, args, rest, work)
    if refusal.rule == "HC044":
        fix = Write("--max-num-seqs", _seqs_that_start(ready, args, rest, work))
        if ready.length < longest <= (longest_of(ready.model) or 0):
            with suppress(HybridcalcError):  # both are needed
                longer = replace(args, max_model_len=longest)
                seqs = _seqs_that_start(prepare(ready.model, longer), longer, rest, work)
                fix = Write.flags(f"--max-model-len {longest} --max-num-seqs {seqs}")
    if not fix:
        return refusal
    better = Refusal(refusal.reason, stage=refusal.stage, rule=refusal.rule, fix=fix)
    better.outputs = refusal.outputs
    return better


def _more_blocks(ready: Prepared) -> str:
    """The flag that says the blocks or their memory, raised to what a request takes, and the most sequences that then
    start; "" where no flag says them.
    """
    args, blocks = ready.args, ready.blocks_at(ready.length) + ready.rules.null_block_reserved
    seqs = f" --max-num-seqs {blocks}" if ready.seqs_checked and args.seqs > blocks else ""
    if args.num_gpu_blocks_override is not None:
        return Write.flags(f"--num-gpu-blocks-override {blocks}{seqs}", ", or leave it out")
    if args.kv_cache_memory_bytes is not None:
        return Write.flags(f"--kv-cache-memory-bytes {blocks * ready.bytes_per_block}{seqs}", ", or leave it out")
    return ""


def _seqs_that_start(ready: Prepared, args: EngineArgs, rest: Rest, work: Workload) -> int:
    """The most sequences that fit with the likely memory and start with the least: of the memory that they leave, where
    that follows from them.
    """

    def most(seqs: int) -> int:
        left = rest if rest.again is None else rest.again(replace(args, max_num_seqs=seqs))
        least, likely = _end(ready, left.low_gib, _none(ready)), _end(ready, left.likely_gib, _none(ready))
        fits = running(_of_one(ready), likely, work).fits if 0 < work.longest <= ready.length else likely.blocks
        return min(likely.blocks, least.blocks or likely.blocks, max(1, fits))

    low = most(ready.args.seqs)
    high = low + 1 if rest.again is None else most(1) + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if most(middle) >= middle else (low, middle)
    return low


def _length_that_starts(ready: Prepared, args: EngineArgs, rest: Rest, work: Workload) -> str:
    """max_model_len, that of the requests where it starts, and the max_num_seqs that starts with it, on the least that
    the memory may be; "" for none. Fewer sequences leave more of it, where that follows from them.
    """

    def left(seqs: int) -> float:
        return (rest if rest.again is None else rest.again(replace(args, max_num_seqs=seqs))).low_gib

    def fits(gib: float) -> int:
        return longest_length(ready, usable_bytes(ready, int(gib * GIB)), ready.length)

    longest = fits(left(1))
    if not longest:
        return ""
    length, seqs, low = min(longest, work.longest or longest), "", rest.low_gib
    if fits(low) < length or (ready.seqs_checked and ready.args.seqs > int(low * GIB) // ready.bytes_per_block):
        most = max(1, (int(left(1) * GIB) // ready.bytes_per_block - 1) // ready.blocks_at(length))
        while most > 1 and fits(left(most)) < length:
            most -= 1
        seqs, low = f" --max-num-seqs {most}", left(most)
    sure = f"; it starts with {low:.2f} GiB too, the low end" if not rest.exact else ""
    return Write.flags(f"--max-model-len {length}{seqs}", f"{sure}; or give it more memory")


def _none(ready: Prepared) -> Sizing:
    """No memory at all."""
    return Sizing(0, 0, ready.length, 1, 0, 1, 1, 1)
