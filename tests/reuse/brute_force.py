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
        kv: int = 10**9,
    ) -> None:
        self.kind, self.slots, self.page, self.grid, self.chunk = kind, slots, page, grid, chunk
        self.decode_grid, self.retention, self.cap = decode_grid, retention, cap
        self.stretches: list[Any] = []
        self.states: list[Any] = []
        self.bare: list[Any] = []
        self.evictions, self.most_bare, self.kv = 0, most_bare, kv
        self.used: tuple[tuple[Hashable, int], ...] = ()
        """The path that the running request holds."""

    def serve(self, request: Request) -> int:
        tokens, prompt = tokens_of(request), request.prompt
        limit = (prompt - 1) // self.page * self.page
        agreed = max((agreement(path, tokens[:limit]) for path, _ in self.stretches), default=0)
        agreed -= agreed % self.page
        self._split(tokens[:agreed])
        hits = [path for path in self.states if len(path) <= agreed and path == tokens[: len(path)]]
        hit = max(map(len, hits), default=0)
        self._touch_kv(tokens[:agreed])
        self.used = tokens[:hit]
        self._make_kv(prompt - hit)
        if hit:
            self._touch(tokens[:hit])
        for depth in self._prefill(hit, prompt, agreed // self.grid * self.grid):
            self._save(tokens[:depth])
            self._run_on(tokens[:depth])
        self._make_kv(len(tokens) - 1 - len(self.used) if len(tokens) > prompt else prompt - len(self.used))
        for depth in self._decode(prompt, len(tokens)):
            self._save(tokens[:depth])
            self._run_on(tokens[:depth])
        if self.kind in ("align", "all"):
            whole = (len(tokens) - 1) // self.page * self.page
            if whole > len(self.used):
                self._keep(tokens[:whole])
            self._run_on(tokens[: max(whole, len(self.used))])
        self.used = ()
        self._trim()
        return hit

    def _run_on(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        """The request holds ``path`` now, and has used it."""
        self.used = max(self.used, path, key=len)
        self._touch_kv(path)

    def _touch_kv(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        """Stretches on ``path`` are the most recently used, those nearer to its start the more so."""
        on_path = [stretch for stretch in self.stretches if stretch[0] == path[: len(stretch[0])]]
        for stretch in sorted(on_path, key=lambda stretch: -len(stretch[0])):
            self.stretches.remove(stretch)
            self.stretches.append(stretch)

    def _make_kv(self, tokens: int) -> None:
        """Room for ``tokens`` beside the stretches: ends of paths go, with their states, the longest unused first."""
        while sum(len(path) - begin for path, begin in self.stretches) + tokens > self.kv:
            gone = next(s for s in self.stretches if not self._branches(s[0]) and not self._holds(s[0]))
            self.stretches.remove(gone)
            if gone[0] in self.states:
                self.states.remove(gone[0])
                self.evictions += 1

    def _holds(self, path: tuple[tuple[Hashable, int], ...]) -> bool:
        return path == self.used[: len(path)]

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

    @property
    def _bounded(self) -> bool:
        return self.kv < 10**9

    def _branches(self, path: tuple[tuple[Hashable, int], ...]) -> int:
        """Stretches that begin where ``path`` ends, on it."""
        return sum(begin == len(path) and other[:begin] == path for other, begin in self.stretches)

    def _touch(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        self.states.remove(path)
        self.states.append(path)

    def _lose(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        self.states.remove(path)
        if self.kind in ("extra", "ends") and not self._branches(path) and not (self._bounded and self._holds(path)):
            self.stretches = [stretch for stretch in self.stretches if stretch[0] != path]

    def _trim(self, spared: tuple[tuple[Hashable, int], ...] | None = None) -> None:
        """Of stretches that nothing follows and whose end has no state, the longest so go beyond ``most_bare``, each
        with those above that are only there for it.
        """
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
            gone = self.bare[0]
            while gone and gone not in self.states and gone != spared and not self._branches(gone):
                begin = next(begin for path, begin in self.stretches if path == gone)
                self.stretches.remove((gone, begin))
                gone = gone[:begin]

    def _split(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        """End a stretch at ``path`` where one runs through it."""
        for place, (other, begin) in enumerate(self.stretches):
            if begin < len(path) < len(other) and other[: len(path)] == path:
                self.stretches[place] = (path, begin)
                self.stretches.insert(place + 1, (other, len(path)))
                return

    def _keep(self, path: tuple[tuple[Hashable, int], ...]) -> None:
        agreed = max((agreement(other, path) for other, _ in self.stretches), default=0)
        agreed -= agreed % self.page
        self._split(path[:agreed])
        if agreed < len(path):
            self.stretches.append((path, agreed))


Path = tuple[tuple[Hashable, int], ...]


class PooledBruteForce(BruteForce):
    """vLLM's pool as a queue of what its blocks hold: ("state" or "kv", path), the longest unused first.

    A state takes ``per_state`` blocks, a page of KV ``per_page``; the running request has ``own`` states beside.
    """

    def __init__(self, *, blocks: int, per_state: int, per_page: int, own: int, block: int, retention: int | None):
        grid = block if retention is None else retention
        super().__init__("align", 10**9, page=block, grid=block, decode_grid=grid, retention=retention)
        self.blocks, self.per_state, self.per_page, self.own = blocks, per_state, per_page, own
        self.queue: list[tuple[str, Path]] = []
        self.locked: Path = ()
        self.hit: Path = ()

    def found(self, tokens: Path, prompt: int) -> tuple[int, int]:
        """How far KV agrees, and the deepest state above."""
        limit = (prompt - 1) // self.page * self.page
        pages = 0
        while (pages + 1) * self.page <= limit and ("kv", tokens[: (pages + 1) * self.page]) in self.queue:
            pages += 1
        agreed = pages * self.page
        return agreed, max((n for n in range(agreed + 1) if ("state", tokens[:n]) in self.queue), default=0)

    def serve(self, request: Request, *, loaded: int = 0) -> int:
        """``loaded``: where a cache behind has a state, and KV to it."""
        tokens, prompt = tokens_of(request), request.prompt
        agreed, hit = self.found(tokens, prompt)
        self._use_pages(tokens[:agreed])
        self.locked = self.hit = tokens[:hit]
        self._room(prompt - hit, self.own)
        running = self.own
        if hit:
            self._use("state", tokens[:hit])
        private = prompt - hit
        depths = [loaded] if loaded > hit else []
        for depth in depths + self._prefill(max(hit, loaded), prompt, agreed):
            self._room(private, running + 1)
            self._use("state", tokens[:depth])
            private -= depth - len(self.locked)
            self._reach(tokens[:depth])
        total = len(tokens)
        private += max(total - 1 - prompt, 0)
        self._room(private, running)
        for depth in self._decode(prompt, total):
            self._room(private, 1)
            self._use("state", tokens[:depth])
            private -= depth - len(self.locked)
            self._reach(tokens[:depth])
        whole = (total - 1) // self.page * self.page
        self._use_pages(tokens[: max(whole, len(self.locked))])
        self.locked = self.hit = ()
        return max(hit, loaded)

    def _reach(self, path: Path) -> None:
        self.locked = self.hit = path
        self._use_pages(path)

    def _use(self, kind: str, path: Path) -> None:
        if (kind, path) in self.queue:
            self.queue.remove((kind, path))
        self.queue.append((kind, path))

    def _use_pages(self, path: Path) -> None:
        for depth in range(len(path) // self.page * self.page, 0, -self.page):
            self._use("kv", path[:depth])

    def _room(self, tokens: int, own: int) -> None:
        """Evict until ``tokens`` of KV and ``own`` states of running requests have blocks beside the queue's."""
        while True:
            states = sum(kind == "state" for kind, _ in self.queue) + own
            pages = len(self.queue) - states + own - (-tokens // self.page)
            if self.per_state * states + self.per_page * pages <= self.blocks:
                return
            gone = next(entry for entry in self.queue if not self._locks(*entry))
            self.queue.remove(gone)

    def _locks(self, kind: str, path: Path) -> bool:
        return path == self.hit if kind == "state" else path == self.locked[: len(path)]
