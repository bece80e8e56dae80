"""The pictures of a vLLM plan: its memory, its pages with their padding, and what runs at once over length."""

from hybridcalc.deployment import requests_text
from hybridcalc.engines.charts import (
    LEAST_END,
    SHORTEST,
    Bar,
    Bars,
    Chart,
    Mark,
    Series,
    gpu_parts,
    lengths,
    over_length,
    part,
)
from hybridcalc.engines.vllm.pages import FULL, STATE
from hybridcalc.engines.vllm.server_plan import Plan
from hybridcalc.errors import InputError
from hybridcalc.units import format_bytes

POINTS = 129
BINDS = {"blocks": "the blocks bind", "limit": "max_num_seqs binds", "context": "longer than max_model_len"}


def memory_picture(plan: Plan) -> Bars:
    """One GPU to scale."""
    parts = gpu_parts(plan.budget, plan.rest)
    whole = bool(plan.rest.others)
    told = (
        f"{plan.num_blocks:,} blocks of {format_bytes(plan.bytes_per_block)}; {requests_text(plan.concurrency)} of "
        f"{plan.workload.describe() if plan.workload.lengths else f'{plan.max_model_len:,} tokens'}: "
        f"{BINDS[plan.binding]}."
    )
    title = f"{'One GPU' if whole else 'The block pool of one GPU'}: {plan.model.name}, vLLM, {_flags(plan)}"
    return Bars(title, told, "memory of one GPU" if whole else "memory of the pool", (Bar("", tuple(parts)),))


def pages_picture(plan: Plan) -> Bars:
    """A page of each kind of layer, on one scale: what it holds, and what pads it."""
    ready = plan.ready
    page = ready.pages.page or ready.state_bytes
    bars = []
    for kind, name, role in ((STATE, "state", "state"), (FULL, "KV", "kv")):
        count = sum(group.layers for group in ready.groups if group.kind == kind)
        if not count:
            continue
        held = ready.state_bytes if kind == STATE else ready.pages.block * ready.kv_bytes
        what = "one state" if kind == STATE else f"KV of {ready.pages.block:,} tokens"
        parts = (part(name, role, held), part("padding", "scratch", page - held))
        bars.append(Bar(f"{count} {kind} layers: {what}", tuple(p for p in parts if p.bytes > 0)))
    if not bars:
        raise InputError(f"{plan.model.name} has no pages to draw")
    told = f"Every page is {page:,} B, so a block is {ready.pages.block:,} tokens"
    told += f"; a state is padded by {plan.padding_pct:.2f} %." if plan.padding_pct else "; nothing is padded."
    width = plan.bytes_per_block // page
    short = sum(width - size for size in plan.group_sizes)
    told += f" {len(plan.group_sizes)} groups of up to {width} layers"
    told += f", {short} layer slots empty." if short else "."
    return Bars(f"vLLM pages: {plan.model.name}, {_flags(plan)}", told, "bytes of one layer's page", tuple(bars))


def lengths_picture(plan: Plan) -> Chart:
    """Requests at once over their length: the blocks, and max_num_seqs."""
    ready, end, limit = plan.ready, max(LEAST_END, plan.max_model_len), plan.args.seqs
    at = [length for length in lengths(SHORTEST, end, POINTS) if length <= plan.max_model_len]
    by_blocks = tuple((x, plan.usable_blocks // ready.blocks_at(x)) for x in at)
    series = [
        Series("requests at once", "answer", tuple((x, min(limit, blocks)) for x, blocks in by_blocks), "r"),
        Series("blocks admit", "kv", by_blocks, "b"),
        Series(f"--max-num-seqs {limit:,}", "limit", tuple((x, limit) for x in at), "m", "dashed"),
    ]
    marks = [Mark(float(plan.max_model_len), f"max_model_len {plan.max_model_len:,}")]
    if plan.fixed_blocks and plan.marginal_bytes_per_token:
        meeting = plan.fixed_bytes_per_request / plan.marginal_bytes_per_token
        marks.append(Mark(float(meeting), f"states = KV at {int(meeting):,}"))
    told = f"{plan.usable_blocks:,} usable blocks; {plan.fixed_blocks} of a request's hold its states."
    high = max(limit, *(y for _, y in by_blocks))
    return over_length(f"{plan.model.name}, vLLM, {_flags(plan)}", told, end, series, marks, plan, high=high)


def _flags(plan: Plan) -> str:
    args = plan.args
    told = [f"tp {args.tensor_parallel_size}"]
    told += [f"KV {args.kv_cache_dtype}"] if args.kv_cache_dtype != "auto" else []
    return ", ".join(told)
