"""What are a boot's printed figures called?

One dictionary a boot, one value a name, or the list of distinct values in order of appearance where ranks, buffers or
captures differ. Suffixes are units: ``_gib`` 2**30, ``_mib`` 2**20, ``_gb`` 10**9, ``_pct`` 0 to 100. A figure is here
only if the text prints it; which line prints which is in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hybridcalc.bootlog.boots import ERRORS, LARGEST_GPU_GIB, Boot, is_draft, pool_figures, same_model
from hybridcalc.bootlog.records import Printed, Record, Statement, Value
from hybridcalc.units import GIB, MIB

_NAMES: dict[tuple[str, str, str], str] = {
    ("sglang", "weights_begin", "avail"): "avail_mem_before_weights_gib",
    ("sglang", "weights_loaded", "avail"): "avail_mem_after_weights_gib",
    ("sglang", "weights_loaded", "usage"): "weights_gib",
    ("sglang", "kv_dtype", "kv_dtype"): "kv_dtype",
    ("sglang", "mm_reserve", "reserved"): "mm_reserve_gib",
    ("sglang", "pools_done", "avail"): "mem_pool_end_avail_gib",
    ("sglang", "graph_captured", "usage"): "cuda_graph_gib",
    ("sglang", "graph_captured", "avail"): "avail_mem_after_graph_gib",
    ("sglang", "summary", "max_total_num_tokens"): "max_total_num_tokens",
    ("sglang", "summary", "max_running_requests"): "max_running_requests",
    ("sglang", "summary", "context_len"): "context_len",
    ("sglang", "summary", "available"): "available_gpu_mem_gib",
    ("sglang", "summary", "available_bare"): "available_gpu_mem_gib",
    ("sglang", "capped", "max_running_requests"): "max_running_requests",
    ("sglang", "capped", "max_mamba_cache_size"): "max_mamba_cache_size",
    ("sglang", "capped", "slots_per_request"): "slots_per_request",
    ("sglang", "refused_hybrid", "max_mamba_cache_size"): "max_mamba_cache_size",
    ("sglang", "refused_hybrid", "total_rest_memory"): "total_rest_memory_gib",
    ("sglang", "refused_hybrid", "per_slot"): "mamba_cache_per_req_mib",
    ("sglang", "refused_small", "max_mamba_cache_size"): "max_mamba_cache_size",
    ("sglang", "refused_small", "slots_per_request"): "slots_per_request",
    ("sglang", "hicache_kv", "tokens"): "hicache_kv_host_tokens",
    ("sglang", "hicache_kv", "host_gb"): "hicache_kv_host_gb",
    ("sglang", "hicache_mamba", "host_gb"): "hicache_mamba_host_gb",
    ("vllm", "weights_loaded", "usage"): "weights_gib",
    ("vllm", "cache_mode", "mode"): "mamba_cache_mode",
    ("vllm", "block_size", "tokens"): "attention_block_size",
    ("vllm", "padding", "percent"): "mamba_padding_pct",
    ("vllm", "padding_layers", "layers"): "padding_layers",
    ("vllm", "padding_layers", "waste"): "padding_waste_pct",
    ("vllm", "available", "available"): "available_kv_gib",
    ("vllm", "cpu_memory", "available"): "available_kv_gib",
    ("vllm", "cpu_memory", "node"): "node_memory_gib",
    ("vllm", "graph_estimate", "estimate"): "cuda_graph_estimated_gib",
    ("vllm", "graph_pool", "actual"): "cuda_graph_gib",
    ("vllm", "graph_pool", "estimate"): "cuda_graph_estimated_gib",
    ("vllm", "kv_size", "tokens"): "gpu_kv_cache_tokens",
    ("vllm", "concurrency", "max_model_len"): "max_model_len",
    ("vllm", "concurrency", "concurrency"): "max_concurrency",
    ("vllm", "free_memory", "free"): "gpu_free_gib",
    ("vllm", "free_memory", "total"): "gpu_total_gib",
    ("vllm", "free_memory", "utilization"): "gpu_memory_utilization",
    ("vllm", "free_memory", "requested"): "requested_gib",
    ("vllm", "free_memory", "consumed"): "consumed_gib",
    ("vllm", "free_memory", "activation"): "peak_activation_gib",
    ("vllm", "free_memory", "graphs"): "cuda_graph_gib",
    ("vllm", "free_memory", "in_use"): "kv_in_use_gib",
    ("vllm", "startup_refused", "utilization"): "gpu_memory_utilization",
    ("vllm", "startup_refused", "requested"): "requested_gib",
    ("vllm", "utilization", "utilization"): "gpu_memory_utilization",
    ("vllm", "utilization", "effective"): "gpu_memory_utilization_effective",
    ("vllm", "seqs_exceed_blocks", "max_num_seqs"): "max_num_seqs",
    ("vllm", "seqs_exceed_blocks", "blocks"): "mamba_cache_blocks",
    ("vllm", "graph_sizes_capped", "from"): "cuda_graph_capped_from",
    ("vllm", "graph_sizes_capped", "to"): "cuda_graph_capped_to",
    ("vllm", "graph_sizes_capped", "blocks"): "mamba_cache_blocks",
    ("vllm", "one_request_too_big", "max_model_len"): "max_model_len",
    ("vllm", "one_request_too_big", "needed"): "kv_needed_gib",
    ("vllm", "one_request_too_big", "available"): "available_kv_gib",
    ("vllm", "one_request_too_big", "estimated"): "estimated_max_model_len",
    ("llama.cpp", "weights_buffer", "size"): "weights_buffer_mib",
    ("llama.cpp", "kv_buffer", "size"): "kv_buffer_mib",
    ("llama.cpp", "state_buffer", "size"): "rs_buffer_mib",
    ("llama.cpp", "compute_buffer", "size"): "compute_buffer_mib",
    ("llama.cpp", "kv_total", "size"): "kv_mib",
    ("llama.cpp", "kv_total", "k"): "kv_k_mib",
    ("llama.cpp", "kv_total", "v"): "kv_v_mib",
    ("llama.cpp", "kv_total", "cells"): "kv_cells",
    ("llama.cpp", "kv_total", "layers"): "kv_layers",
    ("llama.cpp", "state_total", "size"): "rs_mib",
    ("llama.cpp", "state_total", "r"): "rs_r_mib",
    ("llama.cpp", "state_total", "s"): "rs_s_mib",
    ("llama.cpp", "state_total", "cells"): "rs_cells",
    ("llama.cpp", "state_total", "rs_seq"): "rs_seq",
}  # fmt: skip
"""(engine, kind of statement, figure in it) -> the name it is reported under. What is not here is not reported."""

_DRAFT_NAMES = {
    "avail_mem_after_weights_gib": "draft_avail_mem_after_weights_gib",
    "weights_gib": "draft_weights_gib",
    "mem_pool_end_avail_gib": "draft_mem_pool_end_avail_gib",
    "kv_tokens": "draft_kv_tokens",
    "k_gib": "draft_k_gib",
    "v_gib": "draft_v_gib",
    "kv_gib": "draft_kv_gib",
    "kv_buffer_mib": "draft_kv_buffer_mib",
}
"""What a draft model's figures are called; what it shares with the target is not said twice."""
_SERVING_NAMES = frozenset({
    "mamba_num", "mamba_usage", "full_tokens", "full_token_usage", "running_req", "queue_req",
})  # fmt: skip


class Figure(NamedTuple):
    """A figure under its reported name, with where it was printed."""

    name: str
    value: Value
    rank: str
    line: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what a size or number was printed as stands beside its value."""
        entry: dict[str, Any] = {"key": self.name, "value": plain_value(self.value, self.name)}
        if isinstance(self.value, Printed):
            entry |= {"text": self.value.text, "decimals": self.value.decimals}
            if self.value.unit_bytes > 1 and not self.name.endswith("_gb"):
                entry["interval_bytes"] = [int(bound) for bound in self.value.interval]
        return entry | {"rank": self.rank, "line": self.line}


def figures(boot: Boot) -> dict[str, Any]:
    """A boot's figures: name -> value, or the list of its distinct values."""
    found: dict[str, dict[Any, None]] = {}
    impossible: dict[str, dict[Any, None]] = {}
    for figure in figure_list(boot):
        into = impossible if _impossible(figure) else found
        into.setdefault(figure.name, {})[plain_value(figure.value, figure.name)] = None
    found |= {name: values for name, values in impossible.items() if name not in found}
    return {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in found.items()}


def merged(boots: Iterable[Boot]) -> dict[str, Any]:
    """The figures of several boots together, in the same form."""
    found: dict[str, dict[Any, None]] = {}
    for boot in boots:
        for name, value in figures(boot).items():
            found.setdefault(name, {}).update(dict.fromkeys(value if isinstance(value, list) else [value]))
    return {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in found.items()}


def figure_list(boot: Boot) -> list[Figure]:
    """Every figure a boot printed, rank by rank, in the order of the log; a draft model's under its own name."""
    roles, said = _roles(boot), list[Figure]()
    for record in boot.records():
        if isinstance(record, Statement) and record.kind in ("running", "prefilling", "serving"):
            continue
        names: Mapping[str, str] = _DRAFT_NAMES if roles.get(id(record)) == "draft" else {}
        for name, value in _of(record):
            if names and name not in names:
                continue
            said.append(Figure(names.get(name, name), value, record.rank, record.line))
    last = {record.line: record for record in boot.serving.last.values()}
    for name, value in boot.serving.last_figures().items():
        if name in _SERVING_NAMES:
            line = max((number for number, record in last.items() if record.get(name) is not None), default=0)
            said.append(Figure(name, value, last[line].rank, line))
    for error in boot.errors:
        if named := ERRORS.get(error.kind):
            said.append(Figure("error", named, error.rank, error.line))
    return said


def impossible_figures(boot: Boot) -> list[Figure]:
    """Figures that no machine can have."""
    return [figure for figure in figure_list(boot) if _impossible(figure)]


def plain_value(value: Value, name: str) -> int | float | str:
    """A figure as JSON has it: a size in the unit its name ends in."""
    if not isinstance(value, Printed):
        return value
    if name.endswith("_mib") and value.unit_bytes == GIB:
        return value.number * (GIB // MIB)
    if name.endswith("_gib") and value.unit_bytes == MIB:
        return value.number / (GIB // MIB)
    return value.number


def _impossible(figure: Figure) -> bool:
    return (
        figure.name.endswith("_gib")
        and isinstance(figure.value, Printed)
        and figure.value.value > LARGEST_GPU_GIB * GIB
    ) or (figure.name == "weights_gib" and isinstance(figure.value, Printed) and figure.value.value > 512 * GIB)


def _of(record: Record) -> Iterator[tuple[str, Value]]:
    if not isinstance(record, Statement):
        yield from ((name, value) for name, value in pool_figures(record).items() if value is not None)
        return
    for figure, value in record.figures:
        if figure == "available_bare" and record.get("available") is not None:
            continue  # the same figure without its unit
        name = _NAMES.get((record.engine, record.kind, figure))
        if name is not None:
            yield name, value


def _roles(boot: Boot) -> dict[int, str]:
    """Which records are a draft model's: the second of their kind on a rank, or those whose class says so."""
    draft: dict[int, str] = {id(pool): "draft" for pool in boot.draft_kvs}
    seen: dict[tuple[str, str], Statement] = {}
    for kind in ("weights_loaded", "pools_done"):
        for record in boot.of(kind) if boot.engine == "sglang" else []:
            target = seen.setdefault((kind, record.rank), record)
            if is_draft(record) or (target is not record and not same_model(target, record)):
                draft[id(record)] = "draft"
    begun = set[str]()
    for record in boot.of("weights_begin"):
        if record.rank in begun:
            draft[id(record)] = "draft"
        begun.add(record.rank)
    opened = False
    for record in boot.statements if boot.engine == "llama.cpp" else []:
        opened = opened or record.kind == "draft_context"
        if opened:
            draft[id(record)] = "draft"
    return draft
