"""vLLM in this room: its servers to verify, what its plans state and its buffers show, its installed package."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import rule_for
from hybridcalc.crosscheck.plan_figures import Figures as Figured
from hybridcalc.crosscheck.plan_figures import PlanFigures, held_of, paired, slope, stated_memory
from hybridcalc.crosscheck.subject import ASSUMED_REQUESTS, ASSUMED_TOKENS, Rank, Subject
from hybridcalc.crosscheck.vllm_tensors import block_tensors, full_sizes
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.engines.vllm.server_plan import Plan
from hybridcalc.errors import InputError
from hybridcalc.saved_plan import ANEW
from hybridcalc.units import GIB

if TYPE_CHECKING:  # a plan is read, and refused, without torch
    from hybridcalc.crosscheck.engine_package import EngineRow
    from hybridcalc.crosscheck.verification import Shard

COUNTS = ("num_blocks",)


def subject(
    model: Architecture,
    args: EngineArgs,
    rest: Rest | None,
    *,
    plan: PlanFigures | None = None,
    counts: tuple[int, ...] | None = None,
    notes: tuple[str, ...] = (),
) -> Subject:
    """A vLLM server: with ``rest`` as its start-up sizes it, with ``counts`` (blocks) as a plan says, else for 64
    requests. Raises Refusal for what the engine does not start with.
    """
    ready = prepare(model, args)
    if counts is not None:
        (blocks,) = counts
        sizing = size(ready, blocks * ready.bytes_per_block)._replace(blocks=blocks)
    elif rest is not None:
        sizing = size(ready, int(rest.likely_gib * GIB))
    else:
        needed = max(ready.blocks_at(ready.length), ASSUMED_REQUESTS * ready.blocks_at(ASSUMED_TOKENS))
        sizing = size(ready, max(needed + 1, args.seqs) * ready.bytes_per_block)
        notes += (f"no memory is given: sized for {sizing.blocks:,} blocks; --available sizes as a boot does",)
    if args.pipeline_parallel_size > 1:
        notes += ("pipeline stages are not told apart: the buffers are those of all layers",)
    return Subject(
        engine="vllm",
        engine_version=ready.rules.version,
        model=model,
        args=args,
        stages=(partial(block_tensors, ready),),
        full=full_sizes(sizing),
        page=1,
        ranks=tuple(Rank(rank, 0, rank, 0) for rank in range(args.tensor_parallel_size)),
        plan=plan,
        notes=notes,
    )


def stated(document: Mapping[str, Any], ready: Prepared, where: str) -> PlanFigures:
    """The figures of a vLLM plan. Its budget is that of a workload: the lines are held where it is of one length."""
    rest = exact_rest(stated_memory(document, where))
    sizing = size(ready, int(rest.likely_gib * GIB))
    lengths = _lengths(document, where)
    plan = Plan(ready, sizing, sizing, sizing, rest, lengths or Workload())
    found = held_of(plan, "requests_that_fit", "blocks_each", "prefix")
    if lengths is not None:
        found["budget"] = [line.to_dict() for line in plan.budget]
    return paired(document, found, where)


def shown(rules: Figured, shards: Mapping[int, Shard]) -> dict[str, Any]:
    """What the buffers and views of one GPU show."""
    shard = shards[0]
    views = [view for row in shard.rows for view in row.tensor.views]
    of_groups: dict[int, set[str]] = {}
    for view in views:
        group, layer = re.findall(r"\d+", view.name)[:2]
        of_groups.setdefault(int(group), set()).add(layer)
    states = [view for view in views if re.fullmatch(r"group \d+ layer 0 state \d+", view.name)]
    group = min((int(re.findall(r"\d+", view.name)[0]) for view in states), default=0)
    states = [view for view in states if view.name.startswith(f"group {group} ")]
    found: dict[str, Any] = {
        "allocated_bytes": shard.figure("allocated_bytes"),
        "num_blocks": shard.full.blocks,
        "bytes_per_block": slope(shard.rows, "allocated_bytes"),
        "group_sizes": [len(of_groups[number]) for number in sorted(of_groups)],
        "num_groups": len(of_groups),
        "budget.null block.allocated_bytes": slope(shard.rows, "allocated_bytes"),
    }
    if states:
        found["state_bytes_per_layer"] = sum(view.nominal_bytes // view.shape[0] for view in states)
    if states and all(view.dtype != "int8" for view in states):  # else laid on as bytes: no kernel's shape
        found["state_shapes"] = [list(view.shape[1:]) for view in states]
        found["state_dtypes"] = [view.dtype for view in states]
    return found


def _lengths(document: Mapping[str, Any], where: str) -> Workload | None:
    """The workload that a plan's figures are of, where all requests of it are alike; else None."""
    work = document.get("workload")
    if not isinstance(work, Mapping):
        raise InputError(f"{where}: workload is absent", fix=ANEW)
    longest, mean = work.get("length_tokens"), work.get("mean_length_tokens")
    if longest is None:
        return Workload()
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1 or longest != mean:
        return None
    return Workload.at(longest)


def more_flags(model: Architecture, words: Sequence[str]) -> list[str]:
    """None: the engine finds the block that a model needs itself."""
    return []


def package_rows(subject: Subject, what: str) -> Iterator[EngineRow]:
    """The state shapes of the installed engine."""
    from hybridcalc.crosscheck.engine_package import EngineRow, engine_module
    from hybridcalc.engines.vllm.layers import layer_state

    module = engine_module("vllm.model_executor.layers.mamba.mamba_utils", what)
    model, args = subject.model, subject.args
    shape = rule_for(model.family, SHAPES, "the comparison with vLLM")
    tp, drafts = args.tensor_parallel_size, args.num_speculative_tokens
    made = shape(module.MambaStateShapeCalculator, model.state, tp, drafts)
    if made is not None:
        ours = [tensor.shape for tensor in layer_state(model, args)][: len(made)]
        yield EngineRow("state shapes", str([tuple(shape) for shape in made]), str(ours))


SHAPES: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "gdn": lambda made, state, tp, drafts: made.gated_delta_net_state_shape(
        tp, state.num_k_heads, state.num_v_heads, state.k_head_dim, state.v_head_dim, state.conv_kernel, drafts
    ),
    "kda": lambda made, state, tp, drafts: made.kda_state_shape(
        tp, state.num_heads, state.head_dim, conv_kernel_size=state.conv_kernel, num_spec=drafts
    ),
    "mamba2": lambda made, state, tp, drafts: made.mamba2_state_shape(
        tp_world_size=tp,
        intermediate_size=state.inner_size,
        n_groups=state.n_groups,
        num_heads=state.num_heads,
        head_dim=state.head_dim,
        state_size=state.state_size,
        conv_kernel=state.conv_kernel,
        num_spec=drafts,
    ),
    "mamba1": lambda made, state, tp, drafts: made.mamba1_state_shape(
        tp, state.inner_size, state.state_size, state.conv_kernel
    ),
    "lightning": lambda made, state, tp, drafts: made.linear_attention_state_shape(state.num_heads, tp, state.head_dim),
    "shortconv": lambda made, state, tp, drafts: (
        made.short_conv_state_shape(tp, state.streams[0].width, state.streams[0].rows + 1, drafts)
        if len(state.streams) == 1
        else None
    ),
    "attention": lambda made, state, tp, drafts: None,
}
"""Family -> the engine's shapes of a layer for (its calculator, sizes, ranks, drafts); None where it has no method."""
