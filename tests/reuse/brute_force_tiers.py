"""SGLang's prefix cache over a host tier, without a tree: lists of stretches of KV and of states, each on either side.

Slow and plain on purpose; it shares no code with the simulator. One request at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from brute_force import BruteForce, Path, agreement, tokens_of

from hybridcalc.reuse.requests import Request


@dataclass(eq=False)
class Stretch:
    """KV of the tokens of ``path`` from ``begin`` on, where it lies, and when it was used."""

    path: Path
    begin: int
    gpu: bool
    host: bool
    used: int = 0

    @property
    def tokens(self) -> int:
        return len(self.path) - self.begin


class TieredBruteForce(BruteForce):
    """``kind`` "extra" or "ends" with bounds on all four pools; ``kv`` on the GPU, the host's two beside."""

    def __init__(self, kind: str, slots: int, *, grid: int, decode_grid: int, kv: int, host: int, host_kv: int) -> None:
        super().__init__(kind, slots, grid=grid, decode_grid=decode_grid, kv=kv)
        self.host, self.host_kv, self.now = host, host_kv, 0
        self.all: list[Stretch] = []
        self.order: list[Stretch] = []
        self.copies: set[Path] = set()
        self.given_up: list[Path] = []
        self.hits = 0

    def serve(self, request: Request) -> int:
        tokens, prompt = tokens_of(request), request.prompt
        agreed = max((agreement(one.path, tokens[: prompt - 1]) for one in self.all), default=0)
        self._cut(tokens[:agreed])
        self._visit(tokens[:agreed])
        hit = max((n for n in range(agreed + 1) if tokens[:n] in self.states or tokens[:n] in self.copies), default=0)
        self.used = tokens[:hit]
        gone = [one for one in self._on(tokens[:hit])[::-1] if not one.gpu]
        self._room(sum(one.tokens for one in gone))
        for one in gone:
            one.gpu = True
            self.order.append(one)
        self._room(prompt - hit)
        if hit and self.used in self.states:
            self._touch(self.used)
        elif hit:
            self.hits += 1
            self._free_slot()
            self.given_up.remove(self.used)
            self.states.append(self.used)
        for depth in self._prefill(hit, prompt, agreed // self.grid * self.grid):
            self._put(tokens[:depth])
        self._room(max(len(tokens) - 1, prompt) - len(self.used))
        for depth in self._decode(prompt, len(tokens)):
            self._put(tokens[:depth])
        self.used = ()
        return hit

    def _on(self, path: Path) -> list[Stretch]:
        return sorted((one for one in self.all if one.path == path[: len(one.path)]), key=lambda one: one.begin)

    def _visit(self, path: Path) -> None:
        self.now += 1
        for one in self._on(path)[::-1]:
            one.used = self.now
            if one.gpu:
                if one in self.order:
                    self.order.remove(one)
                self.order.append(one)

    def _cut(self, path: Path) -> None:
        for one in self.all:
            if one.begin < len(path) < len(one.path) and one.path[: len(path)] == path:
                self.all.append(Stretch(path, one.begin, one.gpu, one.host, one.used))
                one.begin = len(path)
                return

    def _after(self, path: Path) -> list[Stretch]:
        return [one for one in self.all if one.begin == len(path) and one.path[: len(path)] == path]

    def _room(self, tokens: int) -> None:
        while sum(one.tokens for one in self.all if one.gpu) + tokens > self.kv:
            last = next(
                one
                for one in self.order
                if not self._holds(one.path) and not any(other.gpu for other in self._after(one.path))
            )
            if last.path in self.states:
                self._give_up(last.path)
                self.evictions += 1
            self._off(last)

    def _give_up(self, path: Path) -> None:
        self.states.remove(path)
        if path in self.copies:
            self.given_up.append(path)

    def _off(self, one: Stretch) -> None:
        """Off the GPU: to the host, or away with all that follows."""
        self.order.remove(one)
        one.gpu = False
        if not one.host:
            for other in [other for other in self.all if other.path[: len(one.path)] == one.path]:
                self._away(other)

    def _away(self, one: Stretch) -> None:
        self.all.remove(one)
        if one.path in self.copies:
            self.copies.remove(one.path)
            if one.path in self.given_up:
                self.given_up.remove(one.path)

    def _free_slot(self) -> None:
        if len(self.states) < self.slots:
            return
        oldest = self.states[0]
        self._give_up(oldest)
        self.evictions += 1
        one = next(one for one in self.all if one.path == oldest)
        if not self._holds(oldest) and not any(other.gpu for other in self._after(oldest)):
            self._off(one)

    def _put(self, path: Path) -> None:
        agreed = max((agreement(one.path, path) for one in self.all), default=0)
        self._cut(path[:agreed])
        if agreed < len(path):
            self.all.append(Stretch(path, agreed, True, False))
            self.order.append(self.all[-1])
        for one in self._on(path)[::-1]:
            if not one.gpu:
                one.gpu = True
                self.order.append(one)
        if path in self.states:
            self._touch(path)
        else:
            if path in self.given_up:
                self.given_up.remove(path)
            self._free_slot()
            self.states.append(path)
        self._copy(path)
        self.used = max(self.used, path, key=len)
        self._visit(path)

    def _copy(self, path: Path) -> None:
        """From the top: KV and the state there; all that is on the host alone may go for it, but not on this path."""
        self.now += 1
        for one in self._on(path):
            one.used = self.now
        for one in self._on(path):
            new_state = one.path in self.states and one.path not in self.copies
            if one.host and (one.path != path or not new_state):
                continue
            if not one.host and not self._host_room(one.tokens, path):
                return
            if new_state:
                if not self._host_slot(path):
                    return
                self.copies.add(one.path)
            one.host = True

    def _host_room(self, tokens: int, path: Path) -> bool:
        while sum(one.tokens for one in self.all if one.host) + tokens > self.host_kv:
            ends = [one for one in self.all if self._is_host_end(one, path)]
            if not ends:
                return False
            self._away(min(ends, key=lambda one: one.used))
        return True

    def _is_host_end(self, one: Stretch, path: Path) -> bool:
        unused = not self._holds(one.path) and one.path != path[: len(one.path)]
        return one.host and not one.gpu and not self._after(one.path) and unused

    def _host_slot(self, path: Path) -> bool:
        if len(self.copies) < self.host:
            return True
        if not self.given_up:
            return False
        oldest = self.given_up[0]
        one = next(one for one in self.all if one.path == oldest)
        if self._is_host_end(one, path):
            self._away(one)
        else:
            self.given_up.remove(oldest)
            self.copies.remove(oldest)
        return True
