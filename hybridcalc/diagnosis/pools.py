"""The pools of an SGLang boot that answers rest on, and what their sizes say of a slot and a token, as intervals."""

from fractions import Fraction

from hybridcalc.bootlog import StatePoolAllocated
from hybridcalc.bootlog.boots import Boot
from hybridcalc.diagnosis.answer import total_range
from hybridcalc.diagnosis.balance import slot_range, token_range
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import Range


class Pools:
    """The pools of a boot that answers rest on: the state pool, the target's KV pool, and what they are priced at."""

    def __init__(self, boot: Boot, args: ServerArgs) -> None:
        self.state = _best_state(boot)
        self.kv = next((kv for kv in boot.target_kvs if kv.tokens and (kv.kv or (kv.k and kv.v))), None)
        self.kv = self.kv or next((kv for kv in boot.target_kvs if kv.tokens), None)
        self.args = args
        self.slots = self.state.slots if self.state else None
        clamp = boot.first("capped", "max_mamba_cache_size")
        if self.slots is None and isinstance(clamp, int):
            self.slots = clamp
        printed = boot.first("summary", "max_total_num_tokens")
        self.tokens = self.kv.tokens if self.kv else printed if isinstance(printed, int) else None
        limit = boot.first("summary", "max_running_requests") or boot.first("capped", "max_running_requests")
        limit = limit or (self.state.limit if self.state else None)
        self.requests = limit if isinstance(limit, int) else None

    @property
    def conv(self) -> Range | None:
        """Bytes of a slot's convolution part."""
        return slot_range(self.state, "conv") if self.state else None

    @property
    def ssm(self) -> Range | None:
        """Bytes of a slot's recurrent part."""
        return slot_range(self.state, "ssm") if self.state else None

    @property
    def slot(self) -> Range | None:
        """Bytes of a slot."""
        return total_range([self.conv, self.ssm])

    @property
    def cell(self) -> Range | None:
        """Bytes of a token."""
        return token_range(self.kv, self.args)

    @property
    def scratch(self) -> Range:
        """Bytes of the draft states; nothing where none are printed."""
        parts = (self.state.intermediate_ssm, self.state.intermediate_conv) if self.state else ()
        printed = [part.interval for part in parts if part is not None]
        return sum((p[0] for p in printed), Fraction(0)), sum((p[1] for p in printed), Fraction(0))


def _best_state(boot: Boot) -> StatePoolAllocated | None:
    sized = [s for s in boot.states if s.slots is not None and (s.conv is not None or s.ssm is not None)]
    return next(iter(sized or boot.states), None)
