"""Which cache is asked about? The engine's settings that bear on prefix reuse, and the cache they make.

SGLang's flags and vLLM's stay under their own names; `Settings.setup` turns them into a policy and a pool.
Units: tokens, slots.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

from hybridcalc.architecture import Architecture
from hybridcalc.engines import ENGINES, offered
from hybridcalc.errors import InputError
from hybridcalc.formulas import Strategy
from hybridcalc.reuse.hosts import HiCache, HostTier, Weight
from hybridcalc.reuse.policy import DEFAULT_CHUNK, NO_CAP, PREFILL_CHUNK, TRACK_INTERVAL, Policy
from hybridcalc.reuse.requests import BlockPool
from hybridcalc.reuse.server_slots import SlotServer
from hybridcalc.reuse.simulation import Setup

BLOCK = 784
"""A block that grew to the size of a state, as vLLM makes it for Qwen3.5-27B on Triton kernels; a MODEL has its own."""


class Cost(NamedTuple):
    """Bytes on one rank and on the host; KV tokens left, None where the memory is not known, 0 where none is left.

    ``pool``: the blocks that states and KV share, where the engine has them in one. ``host``: its tier there.
    ``weight``: what a slot and a token take. ``held``: both pools on the GPU, states (with drafts) and KV.
    ``chunk_bytes``: of all ranks, on the host. ``ranks``: how many have such a tier.
    """

    state_bytes: int
    int8_bytes: int
    host_bytes: int
    kv_tokens: int | None
    pool: BlockPool | None = None
    host: HostTier | None = None
    weight: Weight | None = None
    held: tuple[int, int] | None = None
    chunk_bytes: int | None = None
    ranks: int = 1

    @property
    def gpu_bytes(self) -> int:
        """States on the GPU, in either pool."""
        return self.state_bytes + self.int8_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        host, weight = self.host, self.weight
        return {
            "state_bytes": self.state_bytes,
            "int8_bytes": self.int8_bytes,
            "gpu_bytes": self.gpu_bytes,
            "kv_tokens": self.kv_tokens,
            "pool": None if self.pool is None else self.pool.blocks,
            "host_bytes": self.host_bytes,
            "host_slots": None if host is None or host.chunks else host.slots,
            "host_kv_tokens": None if host is None else host.kv_tokens,
            "host_chunks": None if host is None or host.chunks is None else host.chunks.blocks,
            "state_bytes_per_slot": None if weight is None else weight.slot,
            "kv_bytes_per_token": None if weight is None else weight.token,
        }


class Settings(NamedTuple):
    """What was asked about. ``running`` 0: one request at a time, whose slots lie beside ``slots``.

    ``block_fixed``: the block follows from a model. ``checkpoints``: blocks of vLLM for a state that prefill exports.
    ``all_block``: that of the mode `all`, where vLLM has it.
    ``server``: llama-server, whose slots they are. ``context``: tokens of the longest request that is served, prompt
    and answer; None where that is not known. ``longest``: of those that are served, once they are known.
    ``sharing``: workers of the engine that a flag's slots are divided among.
    ``hicache`` and ``offload_gib`` are what is asked of a host tier, whose pools follow from them and the memory.
    """

    engine: str
    slots: int
    running: int = 0
    strategy: Strategy = Strategy.EXTRA_BUFFER
    overlap: bool = True
    page_size: int = 1
    chunk: int = DEFAULT_CHUNK
    track_interval: int = TRACK_INTERVAL
    prefill_chunk: int = PREFILL_CHUNK
    max_states_per_path: int = NO_CAP
    int8_slots: int | None = None
    host_slots: int = 0
    kv_tokens: int | None = None
    block_size: int = BLOCK
    match_unit: int | None = None
    retention: int | None = 0
    every_block: bool = False
    checkpoints: int = 0
    block_fixed: bool = False
    pool: BlockPool | None = None
    host_kv_tokens: int | None = None
    host_chunks: BlockPool | None = None
    hicache: HiCache | None = None
    offload_gib: float = 0.0
    all_block: int | None = None
    server: SlotServer | None = None
    context: int | None = None
    longest: int = 0
    sharing: int = 1

    @property
    def has_host(self) -> bool:
        """Whether there is a host tier."""
        cached = self.server is not None and self.server.cache_bytes
        return bool(self.host_slots or self.hicache or self.offload_gib or self.host_chunks or cached)

    @property
    def room(self) -> "Room":
        """What the engine has in this room."""
        return room_of(self.engine)

    @property
    def policy(self) -> Policy:
        """Where states are saved. Raises InputError for settings that do not go together."""
        return self.room.policy(self)

    @property
    def setup(self) -> Setup:
        """The cache. Raises InputError where running requests leave it no slot."""
        policy = self.policy
        each = policy.slots_per_request
        if self.running * each > self.slots:
            admitted, wanted = self.slots // each, self.running * each
            requests = "1 running request needs" if self.running == 1 else f"{self.running:,} running requests need"
            raise InputError(
                f"{requests} {wanted:,} slots, {each} each under {policy.name}; {self.slots:,} "
                f"{'admits' if self.slots == 1 else 'admit'} {admitted:,}",
                fix=f"write --slots {wanted}" + (f", or --running {admitted}" if admitted else ""),
            )
        return Setup(
            policy,
            self.slots,
            self.int8_slots,
            self.running,
            self.kv_tokens,
            self.host_slots,
            self.pool,
            self.host_kv_tokens,
            self.host_chunks,
            self.server,
        )

    def within(self, cost: Cost | None) -> "Settings":
        """The same in the memory that ``cost`` is of: KV is what the slots leave, or one pool holds both; and the host
        tier as large as it is asked for.
        """
        if cost is None:
            return self
        found = self
        if cost.host is not None:
            host = cost.host
            found = found._replace(host_slots=host.slots, host_kv_tokens=host.kv_tokens, host_chunks=host.chunks)
        if cost.pool is not None:
            return found._replace(pool=cost.pool)
        if cost.kv_tokens is None:
            return found
        return found._replace(kv_tokens=min(cost.kv_tokens, self.kv_tokens or cost.kv_tokens))


class Variant(NamedTuple):
    """One changed setting: a name, the flags, the settings."""

    name: str
    flags: str
    settings: Settings


class Room(Protocol):
    """What an engine has in this room: a module here, under the name of the room in ENGINES.

    ``SPARE`` are slots of the pool beside those that hold a state, in words; ``LEAST_SLOTS`` those that a request holds
    in the leanest settings that keep states.
    """

    SPARE: str
    LEAST_SLOTS: int

    def of_line(self, args: Any) -> Mapping[str, Any]:
        """What a launch line says, under the names of the command's options; None where it says nothing."""

    def asked(self, options: Mapping[str, Any], model: Architecture | None, base: Any = None) -> tuple[Settings, Any]:
        """The settings of a command's options, and the arguments of the engine that they make; ``base`` are those of
        a launch line, which has the rest. Slots that are not given are as few as may be. Raises InputError for what
        does not go together, Refusal and IllegalCombination for what does not start or saves no states.
        """

    def policy(self, settings: Settings) -> Policy:
        """Where states are saved. Raises InputError for settings that do not go together."""

    def variants(self, now: Settings) -> Iterator[Variant]:
        """Changes worth a look."""

    def wanted(self, settings: Settings, slots: int) -> tuple[Settings, str, str]:
        """The settings with so many slots for states, and what to do for it: "set" flags, or "want" what is said."""

    def split(self, model: Architecture, args: Any, settings: Settings, rest_gib: float) -> int:
        """The slots for states that the engine itself makes of the memory. Raises Refusal."""

    def cost(self, model: Architecture, args: Any, settings: Settings, rest_gib: float | None = None) -> Cost:
        """What the slots weigh, and the KV tokens that they leave. Raises Refusal for what does not start."""

    def share(self, model: Architecture, args: Any, settings: Settings, rest_gib: float) -> tuple[str, int, int] | None:
        """Flags that split the memory so that there are the slots of ``settings`` at least, with the slots and the KV
        tokens that they then make, planned; None where nothing splits it, or none does.
        """

    def host_for(self, now: Settings, slots: int, kv_tokens: int, cost: Cost) -> Variant | None:
        """The least host tier of a size that holds so much; None where ``cost``, with some host tier, does not say."""

    def held(self, plan: Any, slots: int, kv_tokens: int) -> tuple[int, int]:
        """Slots and KV tokens of one worker of a plan; where one pool holds both, in the proportion given."""


def room_of(engine: str) -> Room:
    """What an engine has in this room. Raises InputError where it has nothing."""
    return cast(Room, offered(ENGINES.room(engine, "reuse"), "reuse", ENGINES.rows[engine].title))
