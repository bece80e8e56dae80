"""The answer of ``hybridcalc plan`` for SGLang: pools, clamps, budget, capacity for a workload, findings, suggestions.

`plan` runs the engine's start-up (planner.py) on the likely memory and, where that is only known to two decimals, on
both ends of it. `plan_steps` has every figure as a line of arithmetic. Findings and suggestions are computed when they
are first asked for: each suggestion is a plan itself.
"""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.answer import Shown
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.figures import Figures
from hybridcalc.engines.sglang.planner import Prepared, Sizing, allocation, figures, prepare, size
from hybridcalc.engines.sglang.pools import request_limit
from hybridcalc.engines.sglang.sizes import model_notes
from hybridcalc.errors import InputError, Refusal
from hybridcalc.findings import Step
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.settings import Setting

FLAG_OF = {
    "max_mamba_cache_size": "--max-mamba-cache-size", "mamba_full_memory_ratio": "--mamba-full-memory-ratio",
    "mamba_ssm_dtype": "--mamba-ssm-dtype", "enable_linear_replayssm": "--enable-linear-replayssm",
    "enable_linear_replayssm_spec": "--enable-linear-replayssm-spec",
    "enable_int8_mamba_checkpoint": "--enable-int8-mamba-checkpoint",
}  # fmt: skip
"""Arguments that say something of states alone, and their flags."""


class Plan(Shown, Figures):
    """The figures, and what they mean."""

    engine = "sglang"
    promised: tuple[str, ...] = (
        "max_mamba_cache_size",
        "max_total_num_tokens",
        "logical_token_capacity",
        "max_running_requests",
        "bytes_per_slot",
    )

    @cached_property
    def balanced(self) -> "Setting | None":
        """What these flags come to at the ratio that balances them; None without a length, or where nothing starts."""
        from hybridcalc.engines.sglang.suggest import balanced

        return balanced(self, self.args) if self.workload.lengths and not self.ready.stateless else None

    @property
    def notes(self) -> list[str]:
        """Limits of what is known, and flags that do nothing."""
        notes = model_notes(self.model, self.args, self.workload)
        if not self.high.requests:
            notes.append("at the high end of this memory, known to two decimals only, the server does not start")
        if self.ready.stateless:
            given = [FLAG_OF[name] for name in self.args.given() if name in FLAG_OF]
            notes += [f"no layer keeps a state: {flag} has no effect" for flag in given]
        if self.unified:
            from hybridcalc.engines.sglang.settings import unified_bytes

            pool = format_bytes(unified_bytes(self.ready, self.sizing))
            notes.append(f"unified memory: slots and KV share {pool}; the split shown is where it starts")
        return notes

    @property
    def steps(self) -> list[Step]:
        """Every figure with its formula, numbers, unit and source."""
        return plan_steps(self.ready, self.sizing, self.rest)

    @property
    def engine_figures(self) -> dict[str, Any]:
        """SGLang's own figures under its own names; capacity is that of one worker."""
        capacity = self.capacity
        return (
            self._settled
            | figures(self.ready, self.sizing, self.pools)
            | {
                "logical_token_capacity": self.logical_token_capacity,
                "uncharged_bytes": self.uncharged_bytes,
                "state_requests": capacity.state_requests,
                "kv_requests": capacity.kv_requests,
            }
        )

    @property
    def _settled(self) -> dict[str, Any]:
        """What start-up settled of the arguments, as far as it is known."""
        fraction = self.rest.fraction or self.args.mem_fraction_static
        return ({} if fraction is None else {"mem_fraction_static": fraction}) | self.ready.resolved

    @property
    def intervals(self) -> dict[str, Any]:
        """[low, high] of the memory and of K, T and R."""
        return {
            "rest_gib": [self.rest.low_gib, self.rest.high_gib],
            "max_mamba_cache_size": [self.low.state.slots, self.high.state.slots],
            "max_total_num_tokens": [self.low.tokens, self.high.tokens],
            "max_running_requests": [self.low.requests, self.high.requests],
        }


def plan(
    model: Architecture,
    args: ServerArgs,
    *,
    rest_gib: float | None = None,
    rest: Rest | None = None,
    workload: Workload | None = None,
) -> Plan:
    """Plan a server: ``rest_gib`` is the memory left for both pools on one rank, or ``rest`` an interval of it.

    Raises Refusal for what the engine does not start with, InputError for what makes no sense, and for no memory.
    """
    if rest is None:
        if rest_gib is None:
            raise InputError("a plan needs the memory left for the pools", fix="give rest_gib")
        rest = exact_rest(rest_gib)
    ready = prepare(model, args)
    try:
        sizing = size(ready, rest.likely_gib)
    except Refusal as refusal:
        raise rest.told(refusal) from None
    low, high = (sizing, sizing) if rest.exact else _bounds(ready, rest, sizing)
    return Plan(ready, sizing, low, high, allocation(ready, sizing), rest, workload or Workload())


def _bounds(ready: Prepared, rest: Rest, likely: Sizing) -> tuple[Sizing, Sizing]:
    """The least and the most of K, T and R over an interval of memory.

    More memory never means fewer slots, but fewer tokens where it makes room for one slot more. So T is least at the
    low end with the slots of the high end, and most at the high end with the slots of the low end.
    """
    low, high = _end(ready, rest.low_gib, likely), _end(ready, rest.high_gib, likely)

    def holding(slots: int, gib: float) -> Sizing:
        pinned = replace(ready.args, max_mamba_cache_size=slots * ready.args.attn_dp_size)
        return _end(ready._replace(args=pinned), gib, likely)

    if low.state.slots == high.state.slots:
        return low, high
    fewest, most = (end.state.slots or likely.state.slots for end in (low, high))
    least_kv, most_kv = holding(most, rest.low_gib), holding(fewest, rest.high_gib)
    if not low.requests:
        return low, _with_tokens(high if high.requests else likely, most_kv, ready)
    if not high.requests:
        high = likely
    return _with_tokens(low, least_kv, ready), _with_tokens(high, most_kv, ready)


def _with_tokens(end: Sizing, kv: Sizing, ready: Prepared) -> Sizing:
    """An end with the tokens that other slots leave there, and the requests that both admit."""
    requests = min(kv.asked, kv.tokens // 2, end.state.slots // ready.slots.count)
    return end._replace(tokens=kv.tokens, requests=requests)


def _end(ready: Prepared, rest_gib: float, likely: Sizing) -> Sizing:
    """The sizing at one end of an uncertain memory; nothing at all where the engine would refuse that end."""
    try:
        return size(ready, rest_gib)
    except Refusal:
        return likely._replace(state=likely.state._replace(slots=0), tokens=0, requests=0)


def plan_steps(ready: Prepared, sizing: Sizing, rest: Rest) -> list[Step]:
    """Steps in the order the engine takes them."""
    engine, state = f"SGLang {ready.rules.version}", sizing.state
    configurator = f"{engine} mem_cache/kv_cache_configurator.py"
    cell = ready.cells[0]
    pools = "KV" if ready.stateless else "both pools"
    steps = [Step("rest", f"memory left for {pools}", rest.why, rest.likely_gib, "GiB per rank", configurator)]
    steps += [] if ready.stateless else _state_steps(ready, sizing, engine, configurator)
    steps += _settled_steps(ready)
    page = ready.args.tokens_per_page
    charges = "rest" if ready.stateless else "(rest - charges)"
    admit = "min(limit, T // 2)" if ready.stateless else "min(limit, T // 2, K // S)"
    steps += [
        Step(
            "KV memory",
            f"int({charges} x 2**30)",
            f"int({state.rest_after_gib:.6f} x 2**30)",
            state.kv_bytes,
            "B",
            configurator,
        ),
        Step(
            "cell",
            "attention layers x row + draft",
            f"{cell.layers} layers, {cell.row}",
            cell.bytes,
            "B per token and rank",
            f"{engine} model_executor/pool_configurator.py",
        ),
        Step(
            "T",
            "KV memory // cell, whole pages" + (", smallest stage" if len(ready.cells) > 1 else ""),
            f"{state.kv_bytes:,} // {cell.bytes:,}, pages of {page}",
            sizing.tokens,
            "tokens per rank",
            configurator,
        ),
        Step("R", admit, _limits(ready, sizing), sizing.requests, "requests", configurator),
    ]
    return steps


def _state_steps(ready: Prepared, sizing: Sizing, engine: str, configurator: str) -> list[Step]:
    """From the bytes of a slot to what the state pool is charged."""
    slot, state = ready.slot, sizing.state
    layer = f"{slot.conv_bytes_per_layer:,} + {slot.ssm_bytes_per_layer:,}"
    steps = [
        Step(
            "slot",
            "layers x (conv + ssm)",
            f"{slot.layers} x ({layer}); {slot.ssm_dtype}: {slot.ssm_dtype_reason}",
            slot.bytes,
            "B per slot and rank",
            f"{engine} configs/mamba_utils.py",
        ),
        Step("S", "base + tracking", ready.slots.reason, ready.slots.count, "slots per request", configurator),
        Step("K", *_slots(ready, sizing), state.slots, "slots", configurator),
        Step(
            "state charge",
            "(K + 1) x P + rings" if ready.rules.padding_slot_charged else "K x P",
            _charge(ready, sizing),
            state.charged_bytes,
            "B",
            configurator,
        ),
    ]
    if state.draft_bytes:
        steps.append(
            Step(
                "draft charge",
                "P x (min(m, K // S) + 1) x D",
                f"{ready.args.draft_tokens} draft tokens",
                state.draft_bytes,
                "B",
                configurator,
            )
        )
    return steps


def _settled_steps(ready: Prepared) -> list[Step]:
    """What start-up settled from the GPU, where that is known."""
    args, engine = ready.args, f"SGLang {ready.rules.version}"
    steps = list[Step]()
    if args.gpu_memory_mib is not None:
        from hybridcalc.engines.sglang.fraction import settle_fraction

        settled = settle_fraction(ready.model, args, args.gpu_memory_mib)
        hook, mib = f"{engine} arg_groups/memory_hook.py", f"{args.gpu_memory_mib:,} MiB"
        if args.mem_fraction_static is None:
            steps = [Step("fraction", "(GPU - reserved) / GPU", settled.why, settled.fraction, "of the memory", hook)]
        chunk = settled.chunk // args.attn_dp_size
        steps.append(Step("chunk", "by the GPU's memory, over dp workers", mib, chunk, "tokens a prefill", hook))
    if args.gpu_capability is not None:
        backend, source = f"{args.attention_backend} attention", f"{engine} arg_groups/overrides.py"
        steps.append(Step("page", "by the attention backend", backend, args.tokens_per_page, "tokens", source))
    return steps


def _limits(ready: Prepared, sizing: Sizing) -> str:
    asked = f"{sizing.asked:,}" + ("" if request_limit(ready.args) else " estimated")
    slots = "" if ready.stateless else f", {sizing.state.slots:,} // {ready.slots.count}"
    return f"min({asked}, {sizing.tokens // 2:,}{slots})"


def _slots(ready: Prepared, sizing: Sizing) -> tuple[str, str]:
    """Formula and numbers of K."""
    args, price = ready.args, f"{ready.stage_slot_bytes:,}"
    branch = sizing.state.branch.rpartition(".")[2]
    if branch == "per_dp_shard":
        return "X // dp", f"{args.max_mamba_cache_size} // {args.attn_dp_size}"
    if branch == "from_max_running_requests":
        return "M // dp, radix cache off", f"{request_limit(args)} // {args.attn_dp_size}"
    ratio = f"rest x {args.memory_ratio:g} / {1 + args.memory_ratio:g}"
    if branch == "memory_budget_spec":
        return "int((B - P (1 + D)) // (P (1 + D / S)))", f"B = {ratio}, P = {price}, D = {args.draft_tokens}"
    padded = " - one slot" if ready.rules.padding_slot_charged else ""
    return f"int((B{padded}) // P)", f"B = {ratio}, P = {price}"


def _charge(ready: Prepared, sizing: Sizing) -> str:
    slots = sizing.state.slots + (1 if ready.rules.padding_slot_charged else 0)
    rings = sizing.state.charged_bytes - slots * ready.stage_slot_bytes
    return f"{slots:,} x {ready.stage_slot_bytes:,}" + (f" + {rings:,}" if rings > 0 else "")
