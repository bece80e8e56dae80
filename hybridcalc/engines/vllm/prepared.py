"""What vLLM's start-up settles before it knows its memory (`Prepared`), and what memory then decides (`Sizing`)."""

from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.vllm.backends import Backend
from hybridcalc.engines.vllm.classes import ModelClass
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.groups import Group, Padding, Residency, blocks_held
from hybridcalc.engines.vllm.pages import Pages
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.engines.vllm.states import StateTensor


class Prepared(NamedTuple):
    """What no memory decides. ``length`` is max_model_len before it may be fitted, ``log`` the lines so far."""

    model: Architecture
    args: EngineArgs
    rules: RuleSet
    kind: ModelClass
    model_dtype: str
    prefix_caching: bool
    mode: str
    length: int
    state: tuple[StateTensor, ...]
    state_bytes: int
    kv_bytes: int
    backend: Backend | None
    layout: str
    pages: Pages
    groups: tuple[Group, ...]
    paddings: tuple[Padding, ...]
    bytes_per_block: int
    held: Residency
    settled: dict[str, Any]
    log: tuple[str, ...]

    @property
    def seqs_checked(self) -> bool:
        """Whether max_num_seqs may not exceed the blocks."""
        return bool(self.state) and self.rules.seqs_refused and self.args.full_graphs

    def blocks_at(self, length: int) -> int:
        """Blocks that one request of ``length`` tokens holds in all groups."""
        return sum(blocks_held(group, length, self.held) for group in self.groups)


class Sizing(NamedTuple):
    """What the memory decides: blocks, the length served, blocks of a request of that length, and block sizes.

    ``tokens`` is the token figure that the engine prints.
    """

    available_bytes: int
    blocks: int
    length: int
    per_request: int
    tokens: int
    scheduler_block: int
    hash_block: int
    hit_tokens: int

    @property
    def concurrency(self) -> float:
        """Requests of max_model_len that fit, as the engine divides: block 0 counts although nothing uses it."""
        return self.blocks / self.per_request
