"""Does a saved plan state what its tensors and its rules give? Every figure of it, one by one.

A figure is held against the tensors where shapes, slopes and storage give it: pools, bytes of a slot or block, state
shapes, layers, the allocated side of the budget. What no tensor shows (prices, charges, counts of a sizing) is held
against the engine's rules, run again on the memory the plan states. Figures are named by their place in the document:
``alloc_mamba.ring.replayssm_d``, ``budget.KV pool.charged_bytes``. Leaves out: the workload's own answers (capacity,
binding, findings, suggestions), steps and sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.sglang import figures as sglang_figures
from hybridcalc.engines.sglang import planner as sglang
from hybridcalc.engines.vllm import figures as vllm_figures
from hybridcalc.engines.vllm import planner as vllm
from hybridcalc.errors import InputError, quoted
from hybridcalc.units import GIB

if TYPE_CHECKING:  # a plan is read, and refused, without torch
    from hybridcalc.crosscheck.verification import Row, Shard

LARGEST_GIB = 2.0**30
CLOSED = ("alloc_mamba", "budget")
"""Parts of a plan that hold figures alone: a name there that the rules do not have is one too many."""
Figures = Mapping[str, Any]


class Stated(NamedTuple):
    """A figure that a plan states, and what it should be; ``held_against`` is "tensors" or "rules"."""

    figure: str
    stated: Any
    expected: Any
    held_against: str

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return bool(self.stated == self.expected)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "ok": self.ok}


class PlanFigures(NamedTuple):
    """What a plan states, and what the rules make of the memory it states; the same names in both."""

    stated: Figures
    rules: Figures


def sglang_plan(document: Mapping[str, Any], ready: sglang.Prepared, where: str) -> PlanFigures:
    """The figures of an SGLang plan. Raises InputError for one that is absent or of another kind, and Refusal where
    nothing starts on the memory it states.
    """
    rest = exact_rest(_memory(document, "rest_gib", where))
    sizing = sglang.size(ready, rest.likely_gib)
    pools = sglang.allocation(ready, sizing)
    plan = sglang_figures.Figures(ready, sizing, sizing, sizing, pools, rest, Workload())
    found = sglang.outputs(ready, sizing, pools) | {
        "slots_per_request": plan.slots_per_request,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "fixed_bytes_per_request": plan.fixed_bytes_per_request,
        "marginal_bytes_per_token": ceil(plan.marginal_bytes_per_token),
        "logical_token_capacity": plan.logical_token_capacity,
        "rest_gib": rest.likely_gib,
        "uncharged_bytes": plan.uncharged_bytes,
        "budget": [line.to_dict() for line in plan.budget],
    }
    return _paired(document, found, where)


def vllm_plan(document: Mapping[str, Any], ready: vllm.Prepared, where: str) -> PlanFigures:
    """The figures of a vLLM plan. Its budget is that of a workload: the lines are held where it is of one length."""
    rest = exact_rest(_memory(document, "available_gib", where))
    sizing = vllm.size(ready, int(rest.likely_gib * GIB))
    lengths = _lengths(document, where)
    plan = vllm_figures.Figures(ready, sizing, sizing, sizing, rest, lengths or Workload())
    found = vllm.outputs(ready, sizing) | {
        "padded_page_bytes": plan.padded_page_bytes,
        "padding_pct": plan.padding_pct,
        "usable_blocks": plan.usable_blocks,
        "max_num_seqs": plan.args.seqs,
        "fixed_blocks_per_request": plan.fixed_blocks,
        "fixed_bytes_per_request": plan.fixed_bytes_per_request,
        "marginal_bytes_per_token": ceil(plan.marginal_bytes_per_token),
        "available_gib": rest.likely_gib,
        "largest_max_num_seqs": plan.most_seqs or None,
        "longest_max_model_len": plan.longest_model_len,
    }
    if lengths is not None:
        found["budget"] = [line.to_dict() for line in plan.budget]
    return _paired(document, found, where)


def held_figures(plan: PlanFigures, engine: str, shards: Mapping[int, Shard]) -> tuple[Stated, ...]:
    """Every figure of the plan against the tensors of each stage, and against the rules where they show nothing."""
    shown = _vllm_shown(shards[0]) if engine == "vllm" else _sglang_shown(plan.rules, shards)
    return tuple(
        Stated(name, stated, shown.get(name, plan.rules[name]), "tensors" if name in shown else "rules")
        for name, stated in plan.stated.items()
    )


def _sglang_shown(rules: Figures, shards: Mapping[int, Shard]) -> dict[str, Any]:
    """What the tensors of an SGLang server show: pools of stage 0; slots and layers over all stages."""
    first, rows = shards[0], [row for shard in shards.values() for row in shard.rows]
    own = {name: first.figure(name) for name in ("conv_state", "ssm_state", "intermediate_ssm")}
    own["intermediate_conv_window"] = first.figure("intermediate_conv_window")
    rings = {row.tensor.figure: row.full_bytes for row in first.rows if row.tensor.figure.startswith("replayssm_")}
    checkpoints = first.figure("int8_ckpt")
    shown: dict[str, Any] = {f"alloc_mamba.{name}": size for name, size in own.items()}
    shown |= {f"alloc_mamba.ring.{name}": size for name, size in rings.items()}
    shown |= {
        "alloc_mamba.total": sum(own.values()) + sum(rings.values()),
        "alloc_mamba.pool_size": first.full.slots,
        "alloc_mamba.ple_short_conv": first.figure("ple_short_conv"),
        "alloc_mamba.int8_ckpt.bytes": checkpoints,
        "alloc_mamba.int8_ckpt.slots": first.full.checkpoints,
        "alloc_mamba.int8_ckpt.per_slot": _slope(first.rows, "int8_ckpt"),
        "alloc_req_to_token": first.figure("alloc_req_to_token"),
        "budget.state pool.allocated_bytes": own["conv_state"] + own["ssm_state"],
        "budget.draft states.allocated_bytes": own["intermediate_ssm"] + own["intermediate_conv_window"],
        "budget.ReplaySSM rings.allocated_bytes": sum(rings.values()),
        "budget.int8 checkpoints.allocated_bytes": checkpoints,
        "budget.per-layer-embedding convolutions.allocated_bytes": first.figure("ple_short_conv"),
        "budget.draft KV.allocated_bytes": first.figure("draft_kv"),
        "budget.request table.allocated_bytes": first.figure("alloc_req_to_token"),
    }
    if "alloc_kv" in rules:
        keys, values = (sum(_half(row, part) for row in first.rows) for part in "kv")
        total = first.figure("alloc_kv")
        shown["alloc_kv"] = [keys, values] if isinstance(rules["alloc_kv"], list) else total
        shown["budget.KV pool.allocated_bytes"] = total
    conv, ssm = _slope(rows, "conv_state"), _slope(rows, "ssm_state")
    states = [row.tensor for row in rows if row.tensor.figure == "ssm_state"]
    windows = [row.tensor for row in first.rows if row.tensor.figure == "conv_state"]
    layers = sum(state.shape[0] for state in states)
    heaviest = max(state.shape[0] for state in states)
    shown |= {
        "bytes_per_slot": conv + ssm,
        "conv_bytes_per_slot": conv,
        "ssm_bytes_per_slot": ssm,
        "stage_bytes_per_slot": conv + ssm if len(shards) == 1 else int((conv + ssm) * (heaviest / layers)),
        "conv_shape": [list(window.shape[2:]) for window in windows],
        "temporal_shape": list(states[0].shape[2:]),
        "ssm_dtype": states[0].dtype,
        "linear_layers": layers,
        "full_attn_layers": sum(_attention_layers(shard) for shard in shards.values()),
    }
    if windows:
        shown["conv_dtype"] = windows[0].dtype
    return shown


def _vllm_shown(shard: Shard) -> dict[str, Any]:
    """What the buffers and views of a vLLM GPU show."""
    views = [view for row in shard.rows for view in row.tensor.views]
    of_groups: dict[int, set[str]] = {}
    for view in views:
        group, layer = re.findall(r"\d+", view.name)[:2]
        of_groups.setdefault(int(group), set()).add(layer)
    states = [view for view in views if re.fullmatch(r"group \d+ layer 0 state \d+", view.name)]
    group = min((int(re.findall(r"\d+", view.name)[0]) for view in states), default=0)
    states = [view for view in states if view.name.startswith(f"group {group} ")]
    shown: dict[str, Any] = {
        "allocated_bytes": shard.figure("allocated_bytes"),
        "num_blocks": shard.full.blocks,
        "bytes_per_block": _slope(shard.rows, "allocated_bytes"),
        "group_sizes": [len(of_groups[number]) for number in sorted(of_groups)],
        "num_groups": len(of_groups),
        "budget.null block.allocated_bytes": _slope(shard.rows, "allocated_bytes"),
    }
    if states:
        shown["state_bytes_per_layer"] = sum(view.nominal_bytes // view.shape[0] for view in states)
    if states and all(view.dtype != "int8" for view in states):  # else laid on as bytes: no kernel's shape
        shown["state_shapes"] = [list(view.shape[1:]) for view in states]
        shown["state_dtypes"] = [view.dtype for view in states]
    return shown


def _slope(rows: Sequence[Row], figure: str) -> int | float:
    """Bytes that one more slot, checkpoint or block takes in the tensors of a figure."""
    total = sum((row.slope_bytes or Fraction() for row in rows if row.tensor.figure == figure), Fraction())
    return int(total) if total.denominator == 1 else float(total)


def _half(row: Row, part: str) -> int:
    """Bytes of keys ("k") or of values ("v") in a tensor of the KV pool at full scale."""
    if row.tensor.figure != "alloc_kv":
        return 0
    if row.tensor.views:
        return row.full_bytes // len(row.tensor.views)
    return row.full_bytes if row.tensor.name.endswith(f".{part}") else 0


def _attention_layers(shard: Shard) -> int:
    """Layers with KV of any kind in a stage."""
    names = (re.match(r"(kv|kv_window|latent)\[\d+\]", row.tensor.name) for row in shard.rows)
    return len({match[0] for match in names if match})


def _memory(document: Mapping[str, Any], name: str, where: str) -> float:
    value = document.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not isfinite(value) or abs(value) > LARGEST_GIB:  # type: ignore[arg-type]  # a number by now
        raise InputError(f"{where}: {name} {quoted(value)} is no memory", fix="write it anew with plan --json")
    return float(value)  # type: ignore[arg-type]


def _lengths(document: Mapping[str, Any], where: str) -> Workload | None:
    """The workload that a plan's capacity was answered for, where all requests of it are alike; else None."""
    capacity = document.get("capacity")
    if not isinstance(capacity, Mapping):
        raise InputError(f"{where}: capacity is absent", fix="write it anew with plan --json")
    longest, mean = capacity.get("length_tokens"), capacity.get("mean_length_tokens")
    if longest is None:
        return Workload()
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1 or longest != mean:
        return None
    return Workload.at(longest)


def _paired(document: Mapping[str, Any], found: Mapping[str, Any], where: str) -> PlanFigures:
    """The figures of the rules and the document's own under the same names."""
    rules = dict(_flat({name: value for name, value in found.items() if name != "log"}))
    stated = dict(_flat({name: document[name] for name in found if name in document}))
    missing = next((name for name in rules if name not in stated), None)
    if missing is not None:
        raise InputError(f"{where}: {missing} is absent", fix="write it anew with plan --json")
    for name, value in rules.items():
        if not _alike(value, stated[name]):
            raise InputError(
                f"{where}: {name} {quoted(stated[name])} is not {_kind(value)}", fix="write it anew with plan --json"
            )
    more = next((name for name in stated if name not in rules and name.split(".")[0] in CLOSED), None)
    if more is not None:
        raise InputError(f"{where}: {more[:60]} is no figure of such a server", fix="write it anew with plan --json")
    return PlanFigures({name: stated[name] for name in rules}, rules)


def _flat(part: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a document under dotted names. Lines of a budget go by their names; their sentences are left out."""
    if isinstance(part, Mapping) and part:
        for name, value in part.items():
            if name not in ("why", "kind", "name"):
                yield from _flat(value, f"{place}.{name}" if place else str(name))
    elif isinstance(part, list) and part and all(isinstance(line, Mapping) for line in part):
        for number, line in enumerate(part):
            yield from _flat(line, f"{place}.{line.get('name', number)}")
    elif not (isinstance(part, Mapping) and place.endswith(".ring")):
        yield place, part


def _alike(expected: Any, stated: Any) -> bool:
    """Whether a stated value is of the kind the figure is; a figure may be null where there is none."""
    if expected is None:
        return stated is None or (isinstance(stated, int) and not isinstance(stated, bool))
    if isinstance(expected, bool) or isinstance(stated, bool):
        return isinstance(stated, bool) and isinstance(expected, bool)
    if isinstance(expected, float):
        return isinstance(stated, int | float)
    return isinstance(stated, type(expected))


def _kind(value: Any) -> str:
    """What a figure is, in words."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return kinds.get(type(value), "a figure")
