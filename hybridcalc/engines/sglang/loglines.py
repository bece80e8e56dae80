"""Which lines will SGLang print about its pools? So that a plan can be held against the boot that follows it.

"GB" is GiB. Pools print with their padding slot or page included. Texts are those of 0.5.23 and 0.5.16
(mem_cache/memory_pool.py, kv_cache_configurator.py, mamba_checkpoint_pool.py, disaggregation/decode.py).
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.allocation import Allocation
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.families import family_rule
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.units import GIB

TORCH_DTYPES = {
    "bfloat16": "torch.bfloat16", "float16": "torch.float16", "float32": "torch.float32",
    "fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2", "fp4_mx_block16": "torch.float4_e2m1fn_x2",
    "mxfp8": "torch.float8_e4m3fn",
}  # fmt: skip


class Settled(NamedTuple):
    """The figures the lines print: K, S, T, R of a worker, what was asked for, and the windows' tokens."""

    slots: int
    slots_per_request: int
    tokens: int
    requests: int
    asked: int
    asked_by_user: bool
    kv_dtype: str
    window_tokens: int | None = None


def limit_lines(settled: Settled, rules: RuleSet) -> list[str]:
    """Why fewer requests run than were asked for; printed before the pools."""
    capped = settled.slots // settled.slots_per_request
    by_states = capped < min(settled.asked, settled.tokens // 2)
    if by_states and rules.cap_line:
        return [
            f"max_running_requests is capped to {capped} by the mamba state cache (max_mamba_cache_size="
            f"{settled.slots}, {settled.slots_per_request} state slots per request). To raise it: increase "
            "--mamba-full-memory-ratio or --max-mamba-cache-size, "
            "or halve the state size with --mamba-ssm-dtype bfloat16."
        ]
    if settled.asked_by_user and settled.requests < settled.asked:
        return [
            f"max_running_requests was reduced from the requested {settled.asked} to {settled.requests} "
            "(per dp worker) due to the available KV cache capacity."
        ]
    return []


def window_lines(settled: Settled) -> list[str]:
    """The two pools of a model with sliding windows."""
    if settled.window_tokens is None:
        return []
    return [
        f"Use sliding window memory pool. full_layer_tokens={settled.tokens}, swa_layer_tokens={settled.window_tokens}"
    ]


def state_lines(
    model: Architecture, pools: Allocation, settled: Settled, args: ServerArgs, rules: RuleSet
) -> list[str]:
    """The state pool, its rings and the int8 pool."""
    lines = []
    if pools.raised_from is not None:
        held = pools.request_rows - 1
        per_request = pools.pool_slots // held if held else 0
        lines.append(
            f"mamba_size ({pools.raised_from}) is less than decode side's max_slots_needed ({pools.pool_slots} = "
            f"{held} reqs * {per_request} slots/req), raising effective_mamba_size to {pools.pool_slots}"
        )
    line = (
        f"Mamba Cache is allocated. max_mamba_cache_size: {pools.pool_slots}, conv_state size: "
        f"{_gb(pools.conv_state)}GB, ssm_state size: {_gb(pools.ssm_state)}GB "
    )
    if args.most_draft_tokens and args.disaggregation_mode != "prefill":
        line += (
            f"intermediate_ssm_state_cache size: {_gb(pools.intermediate_ssm)}GB "
            f"intermediate_conv_window_cache size: {_gb(pools.intermediate_conv)}GB "
        )
    lines.append(line)
    lines += _ring_lines(model, pools, args)
    if pools.int8 is not None and rules.int8_lines:
        int8, size = pools.int8, f"{_gb(pools.int8.bytes)}GB"
        lines.append(
            f"int8 mamba checkpoint pool: {int8.slots} slots, {size} (qdata {_gb(int8.data_bytes)} + scale "
            f"{_gb(int8.scale_bytes)} + conv {_gb(int8.conv_bytes)}); active mamba pool {pools.pool_slots} slots"
        )
        lines.append(
            f"int8 mamba checkpoint pool ({size}) is allocated from --mem-fraction-static headroom and is not "
            "reflected in max_total_num_tokens; ensure headroom covers it."
        )
    return lines


def kv_lines(pools: Allocation, settled: Settled) -> list[str]:
    """The KV pool."""
    if not pools.kv:
        return []
    start = f"KV Cache is allocated. dtype: {TORCH_DTYPES[settled.kv_dtype]}, #tokens: {settled.tokens}, "
    if len(pools.kv) == 1:
        return [f"{start}KV size: {_gb(pools.kv[0])} GB"]
    return [f"{start}K size: {_gb(pools.kv[0])} GB, V size: {_gb(pools.kv[1])} GB"]


def _ring_lines(model: Architecture, pools: Allocation, args: ServerArgs) -> list[str]:
    if not pools.rings:
        return []
    sizes = {ring.name: f"{ring.bytes / GIB:.3f}GB" for ring in pools.rings}
    fold = family_rule(model).kimi_pool and args.enable_linear_replayssm_spec and args.speculative
    line = (
        f"GDN ReplaySSM ring buffers allocated (record_len={args.linear_replayssm_cache_len}, fold={fold}): "
        f"d={sizes['d']}, k={sizes['k']}, g={sizes['g']} "
    )
    if "rawv" in sizes:
        line += f"rawv={sizes['rawv']}, rawk={sizes['rawk']}, "
    if "beta" in sizes:
        line += f"beta={sizes['beta']} "
    return [line]


def _gb(size: int) -> str:
    return f"{size / GIB:.2f}"
