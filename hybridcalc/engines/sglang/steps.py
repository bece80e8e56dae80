"""Every figure of a plan as a line of arithmetic: symbol, formula, the same with numbers, value, unit, source."""

from hybridcalc.deployment import Rest
from hybridcalc.engines.sglang.planner import Prepared, Sizing
from hybridcalc.engines.sglang.pools import request_limit
from hybridcalc.steps import Step


def plan_steps(ready: Prepared, sizing: Sizing, rest: Rest) -> list[Step]:
    """Steps in the order the engine takes them."""
    engine, slot, state = f"SGLang {ready.rules.version}", ready.slot, sizing.state
    configurator = f"{engine} mem_cache/kv_cache_configurator.py"
    layer = f"{slot.conv_bytes_per_layer:,} + {slot.ssm_bytes_per_layer:,}"
    cell = ready.cells[0]
    steps = [
        Step("rest", "memory left for both pools", rest.why, rest.likely_gib, "GiB per rank", configurator),
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
    page = ready.args.tokens_per_page
    steps += [
        Step(
            "KV memory",
            "int((rest - charges) x 2**30)",
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
        Step("R", "min(limit, T // 2, K // S)", _limits(ready, sizing), sizing.requests, "requests", configurator),
    ]
    return steps


def _limits(ready: Prepared, sizing: Sizing) -> str:
    asked = f"{sizing.asked:,}" + ("" if request_limit(ready.args) else " estimated")
    return f"min({asked}, {sizing.tokens // 2:,}, {sizing.state.slots:,} // {ready.slots.count})"


def _slots(ready: Prepared, sizing: Sizing) -> tuple[str, str]:
    """Formula and numbers of K."""
    args, price = ready.args, f"{ready.stage_slot_bytes:,}"
    branch = sizing.state.branch.rpartition(".")[2]
    if branch == "per_dp_shard":
        return "X // dp", f"{args.max_mamba_cache_size} // {args.attn_dp_size}"
    if branch == "from_max_running_requests":
        return "M // dp, radix cache off", f"{request_limit(args)} // {args.attn_dp_size}"
    ratio = f"rest x {args.mamba_full_memory_ratio:g} / {1 + args.mamba_full_memory_ratio:g}"
    if branch == "memory_budget_spec":
        return "int((B - P (1 + D)) // (P (1 + D / S)))", f"B = {ratio}, P = {price}, D = {args.draft_tokens}"
    padded = " - one slot" if ready.rules.padding_slot_charged else ""
    return f"int((B{padded}) // P)", f"B = {ratio}, P = {price}"


def _charge(ready: Prepared, sizing: Sizing) -> str:
    slots = sizing.state.slots + (1 if ready.rules.padding_slot_charged else 0)
    rings = sizing.state.charged_bytes - slots * ready.stage_slot_bytes
    return f"{slots:,} x {ready.stage_slot_bytes:,}" + (f" + {rings:,}" if rings > 0 else "")
