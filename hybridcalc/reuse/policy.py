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

from typing import NamedTuple

from hybridcalc.errors import InputError

DEFAULT_CHUNK, TRACK_INTERVAL, PREFILL_CHUNK = 64, 256, 8192
LIVE = 1
"""Slots of a running request: its live state."""
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


def prefill_chunk_of(tokens: int, page: int) -> int:
    """Tokens of a chunk in whole pages; more than any prompt where chunks are off."""
    return max(tokens // page * page, page) if tokens > 0 else 2**62
