"""A prefix cache without a tree: every prompt is compared with every checkpoint and every stretch of KV, by token.

Slow and plain on purpose; it shares no code with the simulator. KV is a list of stretches, each a whole path of tokens
and the token at which the stretch begins; states are paths, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hybridcalc.reuse.requests import Request


def tokens_of(request: Request) -> tuple[tuple[Hashable, int], ...]:
    """The tokens of a request, one by one: (name of the run, place in the run)."""
    tokens: list[tuple[Hashable, int]] = []
    begin = 0
    for name, end in zip(request.ids, request.ends, strict=True):
        tokens += [(name, place) for place in range(end - begin)]
        begin = end
    return tuple(tokens)


def agreement(one: tuple[tuple[Hashable, int], ...], other: tuple[tuple[Hashable, int], ...]) -> int:
    """Leading tokens that are equal."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))


class BruteForce:
    """``kind``: "extra" (SGLang's extra buffers), "ends" (its no_buffer), "align" or "all" (vLLM)."""

    def __init__(
        self,
        kind: str,
        slots: int,
        *,
        page: int = 1,
        grid: int = 1,
        chunk: int = 10**9,
        decode_grid: int = 0,
        retention: int | None = 0,
        cap: int = -1,
        most_bare: int = 10**9,
    ) -> None:
        self.kind, self.slots, self.page, self.grid, self.chunk = kind, slots, page, grid, chunk
        self.decode_grid, self.retention, self.cap = decode_grid, retention, cap
        self.stretches: list[Any] = []
        self.states: list[Any] = []
        self.bare: list[Any] = []
        self.evictions, self.most_bare = 0, most_bare

    def serve(self, request: Request) -> int:
        tokens, prompt = tokens_of(request), request.prompt
        limit = (prompt - 1) // self.page * self.page
        agreed = max((agreement(path, tokens[:limit]) for path, _ in self.stretches), default=0)
        agreed -= agreed % self.page
        self._split(tokens[:agreed])
        hits = [path for path in self.states if len(path) <= agreed and path == tokens[: len(path)]]
        hit = max(map(len, hits), default=0)
        if hit:
            self._touch(tokens[:hit])
        for depth in self._prefill(hit, prompt, agreed // self.grid * self.grid):
            self._save(tokens[:depth])
        for depth in self._decode(prompt, len(tokens)):
            self._save(tokens[:depth])
        if self.kind in ("align", "all"):
            whole = (len(tokens) - 1) // self.page * self.page
            if whole > 0:
                self._keep(tokens[:whole])
        self._trim()
        return hit

    def _prefill(self, hit: int, prompt: int, junction: int) -> list[int]:
        if self.kind == "all":
            return [depth for depth in range(1, prompt + 1) if depth > hit and depth % self.grid == 0]
        if self.kind == "align":
            return self._align(hit, prompt, junction)
        chunks, begin = [], hit
        while begin < prompt:
            chunks.append((begin, min(begin + self.chunk, prompt)))
            begin = chunks[-1][1]
        if self.kind == "ends":
            return [end for _, end in chunks]
        depths = []
        for begin, end in chunks:
            steps = range(begin + self.grid, end + 1, self.grid)
            if not steps:
                continue
            depths.append(junction if junction in steps[:-1] else steps[-1])
        return depths

    def _align(self, hit: int, prompt: int, junction: int) -> list[int]:
        """One chunk, stopping at the last block and unit below the prompt's end, the junction, and the next block."""
        blocks = [depth for depth in range(hit + 1, prompt + 1) if depth % self.grid == 0]
        last = [depth for depth in blocks if depth < prompt][-1:]
        tails = [depth for depth in range(hit + 1, prompt) if depth % self.page == 0][-1:]
        stops = set(last + tails + [depth for depth in blocks if depth == junction])
        ends = stops | {prompt}
        begin, reached = hit, []
        while begin < prompt:
            first = min(end for end in ends if end > begin)
            if begin % self.grid:
                first = min([first, *(depth for depth in blocks if depth > begin)])
            reached.append(first)
            begin = first
        return [depth for depth in reached if depth in stops or (depth % self.grid == 0 and self._dense(depth))]

    def _dense(self, depth: int) -> int:
        return self.retention is None or (self.retention and depth % self.retention == 0)

    def _decode(self, prompt: int, total: int) -> list[int]:
        if self.kind == "ends":
            return [total - 1] if total - 1 > prompt else []
        depths = [depth for depth in range(prompt + 1, total) if self.decode_grid and depth % self.decode_grid == 0]
        return depths if self.kind in ("align", "all") else depths[-1:]

    def _save(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        self._keep(path)
        if path in self.states:
            self._touch(path)
            return
        while len(self.states) >= self.slots:
            self._lose(self.states[0])
            self.evictions += 1
            self._trim(spared=path)
        self.states.append(path)
        if self.cap >= 0:
            on_path = [state for state in self.states if state == path[: len(state)]]
            excess = len(on_path) - self.cap
            for state in sorted(on_path, key=len):
                if excess > 0 and state != path and self._branches(state) == 1:
                    self._lose(state)
                    excess -= 1

    def _branches(self, path: tuple[tuple[Hashable, int], ...]) -> int:
        """Stretches that begin where ``path`` ends, on it."""
        return sum(begin == len(path) and other[:begin] == path for other, begin in self.stretches)

    def _touch(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        self.states.remove(path)
        self.states.append(path)

    def _lose(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        self.states.remove(path)
        if self.kind in ("extra", "ends") and not self._branches(path):
            self.stretches = [stretch for stretch in self.stretches if stretch[0] != path]

    def _trim(self, spared: tuple[tuple[Hashable, int], ...] | None = None) -> None:
        """Of stretches that nothing follows and whose end has no state, the longest so go beyond ``most_bare``."""
        while True:
            ends = [
                path
                for path, _ in self.stretches
                if path not in self.states and path != spared and not self._branches(path)
            ]
            self.bare = [path for path in self.bare if path in ends]
            self.bare += [path for path in ends if path not in self.bare]
            if len(self.bare) <= self.most_bare:
                return
            self.stretches = [stretch for stretch in self.stretches if stretch[0] != self.bare[0]]

    def _split(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        """End a stretch at ``path`` where one runs through it."""
        for place, (other, begin) in enumerate(self.stretches):
            if begin < len(path) < len(other) and other[: len(path)] == path:
                self.stretches[place] = (path, begin)
                self.stretches.append((other, len(path)))
                return

    def _keep(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        agreed = max((agreement(other, path) for other, _ in self.stretches), default=0)
        agreed -= agreed % self.page
        self._split(path[:agreed])
        if agreed < len(path):
            self.stretches.append((path, agreed))
