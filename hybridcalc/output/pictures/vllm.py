"""The pictures of a vLLM plan: its memory, its pages with their padding, and what runs at once over length."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridcalc.deployment import requests_text
from hybridcalc.engines.vllm.pages import FULL, STATE
from hybridcalc.engines.vllm.server_plan import Plan
from hybridcalc.errors import InputError
from hybridcalc.output.pictures.chart import Axis, Bar, Bars, Chart, Mark, Picture, Series, lengths
from hybridcalc.output.pictures.memory import after_suggestions, comparison_picture, gpu_parts, part
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from hybridcalc.output.pictures.play import Play


SHORTEST, LEAST_END, POINTS = 256, 131_072, 129
BINDS = {"blocks": "the blocks bind", "limit": "max_num_seqs binds", "length": "longer than max_model_len"}


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
    ready = plan.ready
    end = max(LEAST_END, plan.max_model_len)
    at = [length for length in lengths(SHORTEST, end, POINTS) if length <= plan.max_model_len]
    limit = plan.args.seqs
    series = [
        Series("blocks admit", "kv", tuple((x, plan.usable_blocks // ready.blocks_at(x)) for x in at), "b"),
        Series(f"--max-num-seqs {limit:,}", "limit", tuple((x, limit) for x in at), "m", "dashed"),
    ]
    series[1] = series[1]._replace(role="balanced")
    marks = [Mark(float(plan.max_model_len), f"max_model_len {plan.max_model_len:,}")]
    if plan.fixed_blocks and plan.marginal_bytes_per_token:
        meeting = plan.fixed_bytes_per_request / plan.marginal_bytes_per_token
        marks.append(Mark(float(meeting), f"states = KV at {int(meeting):,}"))
    if plan.workload.lengths:
        marks.append(Mark(float(plan.workload.mean_length or 1), _workload_mark(plan)))
    told = f"{plan.usable_blocks:,} usable blocks; {plan.fixed_blocks} of a request's hold its states."
    return Chart(
        f"Requests at once by length: {plan.model.name}, vLLM, {_flags(plan)}",
        told,
        Axis("tokens a request holds", "tokens", True, SHORTEST, end),
        Axis("requests at once", "number", True, 1, 1.2 * max(1, limit, *(y for _, y in series[0].points))),
        tuple(series),
        tuple(marks),
    )


def _workload_mark(plan: Plan) -> str:
    work, name = plan.workload, "mean L" if len(plan.workload.lengths) > 1 else "L"
    return f"{name} = {float(work.mean_length or 1):,.0f}: {requests_text(plan.concurrency)}"


def change_picture(plan: Plan) -> Bars:
    """The pool as planned, and after each of the best suggested flags."""
    from hybridcalc.engines.vllm.command import from_words
    from hybridcalc.engines.vllm.server_plan import plan as make_plan

    after = after_suggestions(
        plan, from_words, lambda args: make_plan(plan.model, args, rest=plan.rest, workload=plan.workload)
    )
    if not after:
        raise InputError("no flags serve this workload better", fix="leave out --figure change")
    found = comparison_picture([("as planned", plan), *after])
    return found._replace(title=f"The pool before and after: {plan.model.name}, vLLM, {_flags(plan)}")


def play(plan: Plan) -> "Play | None":
    """The settings of a page to try; None where the browser could not follow them."""
    from hybridcalc.output.pictures.vllm_play import vllm_play

    return vllm_play(plan.model, plan.args, plan.rest.likely_gib, plan.workload)


def pictures(plan: Plan) -> dict[str, Callable[[], Picture]]:
    """The pictures of a plan by name, the first the usual one."""
    return {
        "memory": lambda: memory_picture(plan),
        "pages": lambda: pages_picture(plan),
        "lengths": lambda: lengths_picture(plan),
        "change": lambda: change_picture(plan),
    }


def _flags(plan: Plan) -> str:
    args = plan.args
    told = [f"tp {args.tensor_parallel_size}"]
    told += [f"KV {args.kv_cache_dtype}"] if args.kv_cache_dtype != "auto" else []
    return ", ".join(told)
