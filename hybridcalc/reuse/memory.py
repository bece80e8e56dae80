"""What do the slots of a prefix cache weigh, and what KV do they leave? Through the engines' planners, on one rank.

    SGLang   state pool (K + 1) * slot;  int8 pool (N + 1) * int8 slot, out of the headroom;  host tier H * slot
    vLLM     a state takes one block of each group of state layers: K * state groups * block

The engine's own sizing gives the bytes and, where the memory is known, the KV tokens that are left beside K slots. Left
out: rings, draft states and what else a server allocates; `hybridcalc plan` has them all. Units: bytes, tokens.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.allocation import int8_pool
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.planner import prepare, size
from hybridcalc.engines.vllm import planner as vllm
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.groups import STATE
from hybridcalc.errors import IllegalCombination, Refusal
from hybridcalc.formulas.slots import Strategy
from hybridcalc.reuse.settings import Settings


class Cost(NamedTuple):
    """Bytes on one rank and on the host; KV tokens left, None where the memory is not known, 0 where none is left."""

    state_bytes: int
    int8_bytes: int
    host_bytes: int
    kv_tokens: int | None

    @property
    def gpu_bytes(self) -> int:
        """States on the GPU, in either pool."""
        return self.state_bytes + self.int8_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "gpu_bytes": self.gpu_bytes}


def sglang_cost(model: Architecture, args: ServerArgs, settings: Settings, rest_gib: float | None = None) -> Cost:
    """What the slots of ``settings`` weigh for ``model``. Raises Refusal for what the engine does not start with."""
    args = replace(
        args,
        max_mamba_cache_size=settings.slots,
        page_size=settings.page_size,
        mamba_radix_cache_strategy=settings.strategy.value,
        mamba_track_interval=settings.track_interval,
        disable_overlap_schedule=True if settings.strategy is Strategy.NO_BUFFER else args.disable_overlap_schedule,
        enable_int8_mamba_checkpoint=settings.int8_slots is not None,
        int8_mamba_ckpt_size=settings.int8_slots,
        enable_hierarchical_cache=settings.host_slots > 0,
    )
    ready = prepare(model, args)
    int8 = int8_pool(ready.slot, ready.slot.layers, settings.slots, args)
    tokens = None
    if rest_gib is not None:
        try:
            tokens = size(ready, rest_gib).tokens * args.dcp_size
        except Refusal:
            tokens = 0
    slot = ready.stage_slot_bytes
    return Cost((settings.slots + 1) * slot, int8.bytes if int8 else 0, settings.host_slots * slot, tokens)


def vllm_settings(model: Architecture, args: EngineArgs, settings: Settings) -> Settings:
    """The block, match unit and retention that vLLM comes to for ``model``.

    Raises Refusal, and IllegalCombination where it saves no states.
    """
    ready = vllm.prepare(model, args)
    asked = args.mamba_cache_mode
    if ready.prefix_caching and asked == "all" and ready.mode != asked:
        raise IllegalCombination(
            f"vLLM {ready.rules.version} runs {model.name} in mode {ready.mode}, not {asked}",
            fix="leave out --mamba-cache-mode",
        )
    if not ready.prefix_caching or ready.mode not in ("align", "all"):
        raise IllegalCombination(f"vLLM {ready.rules.version} saves no states of {model.name} for prefix reuse")
    return settings._replace(
        block_size=ready.pages.block,
        match_unit=args.prefix_match_unit,
        every_block=ready.mode == "all",
        retention=args.prefix_cache_retention_interval,
        checkpoints=ready.held.checkpoints,
        block_fixed=True,
    )


def vllm_cost(model: Architecture, args: EngineArgs, settings: Settings, available_bytes: int | None = None) -> Cost:
    """What the slots of ``settings`` weigh in blocks, and the KV tokens that the other blocks hold. Raises Refusal."""
    ready = vllm.prepare(model, args)
    states = sum(group.kind == STATE for group in ready.groups)
    taken, tokens = settings.slots * states, None
    if available_bytes is not None:
        left = max(available_bytes // ready.bytes_per_block - 1 - taken, 0)
        tokens = left // max(len(ready.groups) - states, 1) * ready.pages.block
    return Cost(taken * ready.bytes_per_block, 0, 0, tokens)
