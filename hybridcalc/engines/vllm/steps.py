"""Every figure of a vLLM plan as a line of arithmetic: symbol, formula, the same with numbers, value, unit, source."""

from hybridcalc.deployment import Rest
from hybridcalc.engines.vllm.groups import STATE, blocks_held
from hybridcalc.engines.vllm.planner import Prepared, Sizing, usable_bytes
from hybridcalc.steps import Step


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
    sizes = [group.layers for group in ready.groups]
    parts = f"of {', '.join(map(str, sizes))} layers"
    page = pages.page or ready.state_bytes
    steps += [
        Step("groups", "buckets cut to one size", parts, len(sizes), "groups", planning),
        Step("block bytes", "layers of the largest group x page", f"{max(sizes)} x {page:,}", per_block, "B", planning),
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
    states = [blocks_held(group, sizing.length, ready.held) for group in ready.groups if group.kind == STATE]
    others = [blocks_held(group, sizing.length, ready.held) for group in ready.groups if group.kind != STATE]
    terms = [f"{len(states)} x {states[0]} of states"] if states else []
    return " + ".join([*terms, *(f"{blocks:,} of KV" for blocks in others)])
