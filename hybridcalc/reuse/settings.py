"""Which cache is asked about? The engine's settings that bear on prefix reuse, and the cache they make.

SGLang's flags and vLLM's stay under their own names; `Settings.setup` turns them into a policy and a pool.
Units: tokens, slots.
"""

from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.formulas.slots import Strategy
from hybridcalc.reuse.policy import (
    DEFAULT_CHUNK,
    NO_CAP,
    PREFILL_CHUNK,
    TRACK_INTERVAL,
    Policy,
    sglang_policy,
    vllm_policy,
)
from hybridcalc.reuse.simulation import Setup

ENGINES = ("sglang", "vllm")
INT8_FACTOR = 2
"""Checkpoint slots of an int8 pool for each slot of the active one, unless --int8-mamba-ckpt-size says otherwise."""
VLLM_BLOCK = 784
"""A block that grew to the size of a state, as vLLM makes it for Qwen3.5-27B on Triton kernels; a MODEL has its own."""


class Settings(NamedTuple):
    """What was asked about. ``running`` 0: one request at a time, whose slots lie beside ``slots``.

    ``block_fixed``: the block follows from a model. ``checkpoints``: blocks of vLLM for a state that prefill exports.
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
    block_size: int = VLLM_BLOCK
    match_unit: int | None = None
    retention: int | None = 0
    every_block: bool = False
    checkpoints: int = 0
    block_fixed: bool = False

    @property
    def policy(self) -> Policy:
        """Where states are saved. Raises InputError for settings that do not go together."""
        if self.engine == "vllm":
            return vllm_policy(
                self.block_size,
                unit=self.match_unit,
                retention=self.retention,
                prefill_chunk=self.prefill_chunk,
                every_block=self.every_block,
                checkpoints=self.checkpoints,
            )
        return sglang_policy(
            self.strategy,
            page=self.page_size,
            chunk=self.chunk,
            track_interval=self.track_interval,
            prefill_chunk=self.prefill_chunk,
            overlap=self.overlap,
            path_cap=self.max_states_per_path,
        )

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
        return Setup(policy, self.slots, self.int8_slots, self.running, self.kv_tokens, self.host_slots)
