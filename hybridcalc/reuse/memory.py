"""What do the slots of a prefix cache weigh, and what KV do they leave? Through SGLang's planner, on one rank.

    state pool    (K + 1) * slot        int8 pool    (N + 1) * int8 slot, out of the headroom
    host tier     H * slot, in main memory

The engine's own sizing (engines/sglang/planner.py) gives the bytes and, where the memory is known, the KV tokens that
are left beside K slots. Left out: rings, draft states and what else a server allocates; `hybridcalc plan` has them all.
Units: bytes, tokens.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.allocation import int8_pool
from hybridcalc.engines.sglang.config import Refusal, ServerArgs
from hybridcalc.engines.sglang.planner import prepare, size
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


def cost(model: Architecture, args: ServerArgs, settings: Settings, rest_gib: float | None = None) -> Cost:
    """What the slots of ``settings`` weigh for ``model``. Raises Refusal for what the engine does not start with."""
    args = replace(
        args, max_mamba_cache_size=settings.slots, page_size=settings.page_size,
        mamba_radix_cache_strategy=settings.strategy.value, mamba_track_interval=settings.track_interval,
        disable_overlap_schedule=True if settings.strategy is Strategy.NO_BUFFER else args.disable_overlap_schedule,
        enable_int8_mamba_checkpoint=settings.int8_slots is not None, int8_mamba_ckpt_size=settings.int8_slots,
        enable_hierarchical_cache=settings.host_slots > 0,
    )  # fmt: skip
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
