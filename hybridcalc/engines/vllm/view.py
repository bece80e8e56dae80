"""What a vLLM plan comes to, for people: verdict, figures, cells of a comparison, pictures, settings to try."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from hybridcalc.engines.view import between, counted, each, memory_figure
from hybridcalc.engines.vllm.configuration import longest_of
from hybridcalc.engines.vllm.server_plan import Plan, tokens_in_words
from hybridcalc.findings import Quantity
from hybridcalc.units import format_bytes, percent_text

if TYPE_CHECKING:
    from hybridcalc.engines.charts import Picture
    from hybridcalc.engines.play import Play


SAID = ()


def verdict(plan: Plan) -> tuple[str, str]:
    """What the plan comes to: the headline, and what it means."""
    binds = {
        "blocks": "the blocks bind",
        "limit": f"max_num_seqs {plan.args.seqs:,} binds",
        "context": f"longer than max_model_len {plan.max_model_len:,}",
    }[plan.binding]
    if plan.workload.mean_length is None:
        length = f"{plan.max_model_len:,} tokens (max_model_len)"
        return f"{counted(plan)} of {length}", f"{binds}{each(plan, 'replica')}"
    text = f"{binds}{each(plan, 'replica')}"
    if plan.running.idle_percent >= 1:
        text += f", {percent_text(plan.running.idle_percent)} % of the blocks idle"
    return counted(plan), text


def figures(plan: Plan) -> list[Quantity]:
    """The figures it rests on, the most telling first."""
    fixed, marginal = plan.fixed_bytes_per_request, ceil(plan.marginal_bytes_per_token)
    pages, ready = plan.ready.pages, plan.ready
    page, sizes = pages.page or ready.state_bytes, plan.group_sizes
    groups = f"{max(sizes)} layers, {len(sizes)} group{'' if len(sizes) == 1 else 's'} of {_sizes(sizes)}"
    held = f"{plan.blocks_per_request:,} at {plan.max_model_len:,} tokens"
    if plan.workload.mean_length is not None:
        mean = " on average" if len(plan.workload.lengths) > 1 else ""
        held = f"{_whole(plan.running.blocks_each)} a request{mean}"
    one = format_bytes(plan.bytes_per_block) + (f", {plan.attn_block_size:,} tokens" if ready.kv_bytes else "")
    printed = f"{plan.kv_cache_size_tokens:,} tokens = {tokens_in_words(ready, plan.sizing)[1]}"
    rows = []
    if plan.prefix is not None:
        told = f"of {plan.prefix.shared:,} shared; {plan.prefix.computed:,} computed: {plan.prefix.why}"
        rows.append(Quantity("prefix reuse", f"{plan.prefix.reused:,}", "tokens", told))
    rows += [
        Quantity(
            "blocks",
            f"{plan.num_blocks:,}",
            "blocks",
            f"{one} each; {held}",
            f"{plan.bytes_per_block:,} B{between(plan.low.blocks, plan.high.blocks)}: {groups}",
        )
    ]
    logged = Quantity.of("the log says", f"{plan.max_concurrency:,.2f}x", "", printed, " = ")
    memory = memory_figure(plan.rest)  # first where it was computed: a given one tells nothing new
    rows += [memory, logged] if plan.rest.total_gib is not None else [logged, memory]
    if plan.fixed_blocks:
        why = f"{plan.fixed_blocks} blocks for states of {ready.state_bytes:,} B a layer"
        rows.append(Quantity("a request takes", f"{fixed:,} B", format_bytes(fixed), why, "whatever its length"))
    rows.append(
        Quantity(
            "and each token",
            f"{marginal:,} B",
            format_bytes(marginal),
            f"in whole blocks of {plan.attn_block_size:,}",
            f"{plan.blocks_per_request:,} in all at {plan.max_model_len:,} tokens",
        )
    )
    if ready.kv_bytes:
        why = f"{ready.kv_bytes:,} B of KV each in a layer: a page of {page:,} B"
        rows.append(Quantity("block", f"{plan.attn_block_size:,}", "tokens", why))
    if ready.state:
        share = f"{100 * ready.state_bytes / page:.1f} % of " if plan.padded_page_bytes else ""
        why = f"fills {share}its page; cache mode {ready.mode}"
        rows.append(Quantity("state of a layer", f"{ready.state_bytes:,} B", format_bytes(ready.state_bytes), why))
    return [*rows, Quantity("starts up to", f"{plan.longest_model_len:,}", "tokens", _starts(plan))]


def _whole(blocks: Fraction) -> str:
    """Blocks a request holds, on average."""
    return f"{float(blocks):,.1f}".removesuffix(".0")


def _starts(plan: Plan) -> str:
    """What bounds max_model_len and max_num_seqs."""
    own = plan.longest_model_len == longest_of(plan.model)
    text = "--max-model-len, the model's own limit" if own else "--max-model-len on this memory"
    return f"{text}; --max-num-seqs up to {plan.most_seqs:,}" if plan.most_seqs else text


def _sizes(sizes: Sequence[int]) -> str:
    """Group sizes in words: ``4``, or ``13, 12 and 11`` layers."""
    distinct = [str(size) for size in sorted(set(sizes), reverse=True)]
    return " and ".join([", ".join(distinct[:-1]), distinct[-1]] if len(distinct) > 1 else distinct)


def cells(plan: Plan) -> dict[str, str]:
    """One side of a comparison."""
    found = {
        "block, tokens": f"{plan.attn_block_size:,}",
        "page": format_bytes(plan.ready.pages.page or plan.ready.state_bytes),
        "state padding": f"{plan.padding_pct:.2f} %",
        "groups": f"{len(plan.group_sizes)}",
        "blocks": f"{plan.num_blocks:,}",
        "of states a request": f"{plan.fixed_blocks}",
        "at max_model_len": f"{plan.blocks_per_request:,}",
        "max_num_seqs": f"{plan.args.seqs:,}",
        "printed concurrency": f"{plan.max_concurrency:,.2f}x",
        "a request takes": format_bytes(plan.fixed_bytes_per_request),
        "and each token": format_bytes(ceil(plan.marginal_bytes_per_token)),
    }
    if plan.workload.mean_length is not None:
        found |= {"requests at once": f"{plan.requests:,}", "binds": plan.binding}
    if plan.prefix is not None:
        found["reused of a prefix"] = f"{plan.prefix.reused:,} tokens"
    return found


def pictures(plan: Plan) -> dict[str, "Callable[[], Picture]"]:
    """Its memory, its pages with their padding, and requests at once over their length."""
    return {
        "memory": lambda: _curves().memory_picture(plan),
        "pages": lambda: _curves().pages_picture(plan),
        "lengths": lambda: _curves().lengths_picture(plan),
    }


def play(plan: Plan) -> "Play | None":
    """The settings of a page to try."""
    from hybridcalc.engines.vllm.play import play as settings

    return settings(plan.model, plan.args, plan.rest, plan.workload)


def _curves() -> Any:
    from hybridcalc.engines.vllm import curves

    return curves
