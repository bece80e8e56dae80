"""What may be varied of a vLLM server to make a model fit: its ranks, the cache mode, dtypes; and the number of
sequences that then runs.

Each sequence more takes some of the memory (the sampler's), so that the blocks hold fewer: max_num_seqs is the most
that still fit on the least that the memory may be, where the engine starts for certain.

And what one combination of a sweep comes to: points that only differ in limits, memory or length share pages and
groups.
"""

from collections.abc import Iterator
from fractions import Fraction

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.better import Change
from hybridcalc.engines.shapes import (
    ACCURACY,
    AS_IT_IS,
    CONTEXT,
    REUSE,
    Axes,
    Fitting,
    Nodes,
    Shape,
    has_experts,
    stages_of,
)
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.configuration import longest_of
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.figures import running
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.errors import Refusal
from hybridcalc.units import GIB, MOST_SLOTS

LEAST_LENGTH = 2
"""Tokens that a server holds at least: one of a prompt, one of an answer."""
WORKERS = (1, 2, 4, 8, 16)
"""Data-parallel workers that share experts."""
BEYOND_CONTEXT = "HC051"
"""The rule of requests that are longer than the model was made for."""


def _shapes(model: Architecture, ranks: int, most_tp: int) -> Iterator[Shape]:
    """Tensor-parallel ranks in stages; of a model with experts also workers that share these, cut or whole."""
    experts = has_experts(model)
    for stages in stages_of(ranks):
        for workers in WORKERS if experts else (1,):
            tp, over = divmod(ranks, stages * workers)
            if over or not 0 < tp <= most_tp:
                continue
            fields = {"tensor_parallel_size": tp, "pipeline_parallel_size": stages, "data_parallel_size": workers}
            risk = "latency" if stages > 1 else "none"
            for whole in (False, True) if experts and tp * workers > 1 else (False,):
                own = {**fields, "enable_expert_parallel": whole}
                yield Shape(own, ranks, workers, copied=not experts, risk=risk)
                contexts = _context_ranks(model, tp)
                if contexts > 1:
                    shared = {**own, "decode_context_parallel_size": contexts}
                    yield Shape(shared, ranks, workers, copied=not experts, risk="latency")


def _context_ranks(model: Architecture, tp: int) -> int:
    """The most ranks that share the rows of a sequence: those that would hold the same ones."""
    if isinstance(model.attention, LatentKV):
        return tp
    if isinstance(model.attention, GroupedQueryKV):
        return max(1, tp // model.attention.kv_heads)
    return 1


def _axes(model: Architecture, args: EngineArgs, allowed: frozenset[str]) -> Axes:
    """The cache mode, and dtypes."""
    ready = prepare(model, args)
    modes = [AS_IT_IS]
    if ready.state and ready.prefix_caching:
        every = Change("--mamba-cache-mode all", {"mamba_cache_mode": "all"}, "a state for every block")
        modes += [every] if ready.mode != "all" else []
        if REUSE in allowed:
            off = {"enable_prefix_caching": False}
            modes.append(
                Change("--no-enable-prefix-caching", off, "one block of states a group; nothing is reused", "latency")
            )
    axes = [tuple(modes)]
    if ACCURACY in allowed:
        obeyed = ready.state and (not family_rule(model).kernel_dtypes or ready.kind.state_dtype_obeyed)
        if obeyed and ready.state[-1].dtype == "float32":
            state = {"mamba_ssm_cache_dtype": "bfloat16"}
            halved = Change("--mamba-ssm-cache-dtype bfloat16", state, "halves the temporal state", "accuracy")
            axes.append((AS_IT_IS, halved))
        if ready.args.kv_cache_dtype == "auto" and ready.kv_bytes:
            halved = Change("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}, "halves the KV of a token", "accuracy")
            axes.append((AS_IT_IS, halved))
    return tuple(axes)


def _started(args: EngineArgs, workload: Workload) -> EngineArgs:
    longest = max(workload.longest, LEAST_LENGTH) if workload.longest else None
    return args.changed(max_model_len=longest, max_num_seqs=1)


def _request_bytes(model: Architecture, args: EngineArgs, workload: Workload) -> Fraction:
    """The blocks that a request holds on average: those of all that run are no more than the memory left holds."""
    try:
        ready = prepare(model, args)
    except Refusal as refusal:
        if refusal.rule != BEYOND_CONTEXT:
            raise
        raise Refusal(
            f"{workload.longest:,} tokens are beyond the context of {model.name}, {longest_of(model):,}",
            stage=CONTEXT,
            rule="",
        ) from None
    lengths = workload.lengths or ((1, 1),)
    held = sum(ready.blocks_at(tokens) * count for tokens, count in lengths)
    return Fraction(held * ready.bytes_per_block, sum(count for _, count in lengths))


def _leanest(args: EngineArgs) -> EngineArgs:
    """One sequence, as started: more of them take more for sampling and nothing less (`memory.beside`)."""
    return args


def _tuned(
    model: Architecture, args: EngineArgs, rest: Rest, workload: Workload, limit: int | None = None
) -> EngineArgs:
    """The most sequences that fit, by halving: more never leave more blocks."""
    ready = prepare(model, args)

    def fits(seqs: int) -> int:
        limited = args.of_seqs(seqs)
        left = rest if rest.again is None else rest.again(limited)
        return _fitting(ready, left.low_gib, workload)

    most = fits(1)
    low, high = 0, (most if limit is None else min(most, limit)) + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) >= middle else (low, middle)
    if not low:
        each = float(_request_bytes(model, args, workload)) / GIB
        reason = f"a request takes {each:.2f} GiB, of which {rest.low_gib:.2f} are left for certain"
        raise Refusal(reason, stage="get_kv_cache_configs", rule="HC041")
    return args.of_seqs(low)


def _fitting(ready: Prepared, gib: float, workload: Workload) -> int:
    """Requests that the blocks hold."""
    try:
        sizing = size(ready, int(gib * GIB))
    except Refusal:
        return 0
    unbound = ready._replace(args=ready.args.changed(max_num_seqs=MOST_SLOTS))
    return min(running(unbound, sizing, workload).fits, MOST_SLOTS)


NODES = Nodes(
    ("--nnodes", "{nodes}", "--node-rank", "{rank}", "--master-addr", "{head}"), ("--headless",), "data_parallel_size"
)
"""As docs.vllm.ai has it (serving/parallelism_scaling, with multiprocessing), in every release known here. The workers
of a node and their first one follow from its rank (vLLM pull request 23691; engine/arg_utils.py create_engine_config):
whole ones stand on a node, or whole nodes share one.
"""
FITTING = Fitting(_shapes, _axes, _started, _tuned, _request_bytes, _leanest, "data_parallel_size", NODES)


CHEAP_FIELDS = ("max_num_seqs", "num_gpu_blocks_override", "gpu_memory_utilization", "kv_cache_memory_bytes",
                "prefix_match_unit", "prefix_cache_retention_interval")  # fmt: skip
"""Arguments that change only the arithmetic of a plan, not what is prepared for it."""


def _solve(ready: Prepared, args: EngineArgs, gib: float, work: Workload) -> Outcome:
    """Blocks, the engine's token figure and requests. Raises Refusal for what does not start."""
    ready = ready._replace(args=args)
    sizing = size(ready, int(gib * GIB))
    found = running(ready, sizing, work)
    return Outcome(sizing.blocks, sizing.tokens, found.requests, found.binding)


SWEEPING = Sweeping(prepare, _solve, CHEAP_FIELDS, ("num_blocks", "kv_cache_size_tokens"), "blocks")
