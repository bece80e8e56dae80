"""At which tokens does an engine save the recurrent state of a request, and what does it keep of it?

    SGLang, extra buffers   prefill: one state a chunk, at start + floor(chunk tokens / grid) * grid, start being where
                            the chunk begins; where the KV of other requests agrees further than their states, at that
                            branching point (a grid multiple) instead. Decode: at multiples of lcm(grid, track
                            interval), the last alone is kept. KV is cached as far as a state is saved.
    SGLang, no_buffer       at the end of each prefill chunk, and of the request
    vLLM, align             where a chunk ends on the block grid: chunks stop at the last block below the prompt's end
                            and at a junction with other requests. Retention None keeps all of these and each block
                            that decode completes, 0 only the last and the junction, R also multiples of R
    vLLM, all (to 0.31)     at every block

``grid`` is the larger of the kernel's chunk and the page. A match is at most prompt - 1 tokens, since the last one is
computed for its logits. Left out: speculation, which shifts vLLM's grid by a block, and context parallelism.
Units: tokens, slots. Source: SGLang managers/schedule_batch.py, mem_cache/unified_cache/components/mamba.py (0.5.23);
vLLM v1/core/sched/scheduler.py, v1/core/single_type_kv_cache_manager.py (0.33.0 and 0.22.1).
"""

from math import lcm
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.formulas.slots import Strategy, slots_per_request

DEFAULT_CHUNK, TRACK_INTERVAL, PREFILL_CHUNK = 64, 256, 8192
LIVE, BASE, VLLM_OWN = 1, 3, 2
"""Slots of a running request: its live state; SGLang's base of S, which is the live state, the one that the tree keeps
for it and a copy; what vLLM's align mode holds."""
NO_CAP = -1
MOST_STATES = 2**14
"""States that one request may leave: a million tokens in chunks of 64."""


class Policy(NamedTuple):
    """Where states are saved. ``page`` is the unit of KV agreement, ``decode_grid`` 0 saves no states of decode.

    ``own_slots`` is what a running request holds beside what the tree holds for it, ``slots_per_request`` (S) what the
    engine counts for one when it limits how many run. ``path_cap`` is SGLang's limit on states of one path, or NO_CAP.
    ``kv_with_state``: evicting the state of a leaf takes its KV along.
    """

    name: str
    page: int
    grid: int
    prefill_chunk: int
    decode_grid: int
    own_slots: int
    slots_per_request: int
    at_ends: bool = False
    on_blocks: bool = False
    every_block: bool = False
    retention: int | None = 0
    path_cap: int = NO_CAP
    kv_with_state: bool = True

    def prefill_states(self, start: int, prompt: int, junction: int) -> list[int]:
        """Tokens at which the states of a prefill are saved, ascending: from ``start``, which is cached, to ``prompt``.

        ``junction`` is how far the KV of other requests agrees, a grid multiple; at most ``start`` if no further.
        """
        self._check_number(prompt - start, self.grid if self.every_block else self.prefill_chunk)
        if self.every_block:
            return list(range((start // self.grid + 1) * self.grid, prompt + 1, self.grid))
        if self.on_blocks:
            return self._block_states(start, prompt, junction)
        states: list[int] = []
        position, grid, chunk = start, self.grid, self.prefill_chunk
        while position < prompt:
            end = min(position + chunk, prompt)
            if self.at_ends:
                states.append(end)
            elif end - position >= grid:
                tracked = position + (end - position) // grid * grid
                branches = position < junction < tracked and (junction - position) % grid == 0
                states.append(junction if branches else tracked)
            position = end
        return states

    def decode_states(self, prompt: int, total: int) -> list[int]:
        """Tokens at which states of decode are kept, ascending. The last of ``total`` tokens is never fed back."""
        if self.at_ends:
            return [total - 1] if total - 1 > prompt else []
        if not self.decode_grid:
            return []
        if not self.on_blocks:
            last = (total - 1) // self.decode_grid * self.decode_grid
            return [last] if last > prompt else []
        self._check_number(total - prompt, self.decode_grid)
        first = (prompt // self.decode_grid + 1) * self.decode_grid
        return list(range(first, total, self.decode_grid))

    def _check_number(self, tokens: int, step: int) -> None:
        """Raise InputError for a request that would leave more states than are simulated."""
        if tokens > MOST_STATES * step:
            flag = "--chunked-prefill-size" if step == self.prefill_chunk else "--block-size"
            raise InputError(
                f"{tokens:,} tokens in steps of {step:,} leave more than {MOST_STATES:,} states of one request",
                fix=f"write a larger {flag} or shorter requests",
            )

    def _block_states(self, start: int, prompt: int, junction: int) -> list[int]:
        """The ends of chunks that lie on the block grid, as far as retention keeps them (vLLM's align mode)."""
        block, unit = self.grid, self.page
        last = (prompt - 1) // block * block
        tail = (prompt - 1) // unit * unit
        kept, position, states = {last, junction // block * block, tail}, start, []
        while position < prompt:
            end = min(position + self.prefill_chunk, prompt)
            if end < prompt:
                aligned = end // block * block
                end = aligned if aligned > position or block <= self.prefill_chunk else end
            floored = position + (junction - position) // block * block if junction > position else 0
            following = (position // block + 1) * block if position % block else 0
            for stop in (following, last, tail, floored):
                if position < stop < end:
                    end = stop
            position = end
            on_grid = position % block == 0 or (position == tail and unit < block)
            if on_grid and (position in kept or self.retention is None or self._retained(position)):
                states.append(position)
        return states

    def _retained(self, position: int) -> bool:
        return bool(self.retention) and position % (self.retention or 1) == 0


def sglang_policy(
    strategy: Strategy = Strategy.EXTRA_BUFFER,
    *,
    page: int = 1,
    chunk: int = DEFAULT_CHUNK,
    track_interval: int = TRACK_INTERVAL,
    prefill_chunk: int = PREFILL_CHUNK,
    overlap: bool = True,
    path_cap: int = NO_CAP,
) -> Policy:
    """SGLang's radix cache. ``chunk`` is the kernel's, ``prefill_chunk`` --chunked-prefill-size (below 1: no chunks).

    Raises InputError for a page that does not go with the chunk or the interval, IllegalCombination for lazy buffers
    without the overlap scheduler.
    """
    if strategy is Strategy.NO_BUFFER:
        if page != 1:
            raise InputError(f"no_buffer needs --page-size 1, not {page}", fix="write --strategy extra_buffer")
        count = slots_per_request(strategy, overlap=overlap).count
        return Policy(
            "SGLang no_buffer", 1, 1, _prefill_chunk(prefill_chunk, 1), 0, LIVE, count, at_ends=True, path_cap=path_cap
        )
    if max(chunk, page) % min(chunk, page):
        raise InputError(
            f"--page-size {page} neither divides the kernel's chunk of {chunk} tokens nor is a multiple of it",
            fix=f"write --page-size {chunk}",
        )
    if track_interval % page:
        raise InputError(
            f"--mamba-track-interval {track_interval} is no multiple of --page-size {page}",
            fix=f"write --mamba-track-interval {-(-track_interval // page) * page}",
        )
    grid = max(chunk, page)
    count = slots_per_request(strategy, overlap=overlap).count
    return Policy(
        f"SGLang {strategy.value}",
        page,
        grid,
        _prefill_chunk(prefill_chunk, page),
        lcm(grid, track_interval),
        LIVE + count - BASE,
        count,
        path_cap=path_cap,
    )


def vllm_policy(
    block: int,
    *,
    unit: int | None = None,
    retention: int | None = 0,
    prefill_chunk: int = PREFILL_CHUNK,
    every_block: bool = False,
    checkpoints: int = 0,
) -> Policy:
    """The prefix cache of vLLM on blocks of ``block`` tokens; ``every_block`` is the mode `all` (0.22 to 0.31).

    ``unit`` is --prefix-match-unit, ``retention`` --prefix-cache-retention-interval (None: dense), ``checkpoints`` the
    blocks that a prefill takes for the state it exports.

    Raises InputError for a unit that does not divide the block, and a retention that is no multiple of it.
    """
    unit = block if unit is None else unit
    if block % unit:
        raise InputError(
            f"--prefix-match-unit {unit} does not divide the block of {block} tokens", fix=f"write a divisor of {block}"
        )
    if retention and retention % block:
        raise InputError(
            f"--prefix-cache-retention-interval {retention} is no multiple of the block of {block} tokens",
            fix=f"write {-(-retention // block) * block}, 0, or dense",
        )
    if every_block:
        return Policy(
            "vLLM all",
            block,
            block,
            PREFILL_CHUNK,
            block,
            LIVE,
            LIVE,
            on_blocks=True,
            every_block=True,
            retention=None,
            kv_with_state=False,
        )
    decode_grid, own = block if retention is None else retention, VLLM_OWN + checkpoints
    return Policy(
        "vLLM align",
        unit,
        block,
        _prefill_chunk(prefill_chunk, 1),
        decode_grid,
        own,
        own,
        on_blocks=True,
        retention=retention,
        kv_with_state=False,
    )


def _prefill_chunk(tokens: int, page: int) -> int:
    """Tokens of a chunk in whole pages; more than any prompt where chunks are off."""
    return max(tokens // page * page, page) if tokens > 0 else 2**62
