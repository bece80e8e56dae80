"""llama-server's slots by the token: every prompt is compared with every slot and with all that is saved.

Slow and plain on purpose; it shares no code with the simulator. Checkpoints are (tokens, number of the prompt).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from brute_force import agreement, tokens_of

from hybridcalc.reuse.requests import Request

Tokens = tuple[tuple[Hashable, int], ...]


class BruteForceSlots:
    """``cache``: None for no host cache, 0 for one without limit, else bytes of it."""

    def __init__(
        self,
        slots: int,
        *,
        similarity: float,
        limit: int,
        step: int,
        batch: int,
        ubatch: int,
        unified: bool,
        cache: int | None,
        token: int,
        state: int,
    ) -> None:
        self.slots: list[dict[str, Any]] = [{"tokens": (), "marks": [], "used": -1} for _ in range(slots)]
        self.similarity, self.limit, self.step, self.batch, self.ubatch = similarity, limit, step, batch, ubatch
        self.unified, self.cache, self.token, self.state = unified, cache, token, state
        self.saved: list[tuple[Tokens, list[tuple[int, int]]]] = []
        self.number = 0

    def serve(self, request: Request) -> int:
        """Tokens of a request that are not computed."""
        every = tokens_of(request)
        prompt, kept = every[: request.prompt], every[: max(len(every) - 1, request.prompt)]
        slot = self._slot(prompt)
        hit = self._resumed(slot, prompt)
        slot["marks"] = self._marks([mark for mark in slot["marks"] if mark[0] <= hit + 1], hit, len(prompt))
        slot["tokens"] = kept
        if self.cache is not None:
            for other in self.slots:
                if other is not slot and other["tokens"]:
                    self._save(other)
                    if self.unified:
                        other["tokens"], other["marks"] = (), []
        self.number += 1
        slot["used"] = self.number
        return hit

    def _slot(self, prompt: Tokens) -> dict[str, Any]:
        alike = [agreement(slot["tokens"], prompt) for slot in self.slots]
        best = max(alike)
        if self.similarity and best > 0 and best > self.similarity * len(prompt):
            slot = self.slots[alike.index(best)]
            gives_up = 2 * best < len(slot["tokens"])
        else:
            oldest = min(slot["used"] for slot in self.slots)
            slot, gives_up = [each for each in self.slots if each["used"] == oldest][-1], True
        if gives_up and self.cache is not None:
            if slot["tokens"]:
                self._save(slot)
            self._load(slot, prompt)
        return slot

    def _size(self, tokens: Tokens, marks: list[tuple[int, int]]) -> int:
        return len(tokens) * self.token + (1 + len(marks)) * self.state

    def _save(self, slot: dict[str, Any]) -> None:
        tokens, marks = slot["tokens"], slot["marks"]
        size = self._size(tokens, marks)
        if any(agreement(other, tokens) == len(tokens) for other, _ in self.saved) or 0 < (self.cache or 0) < size:
            return
        self.saved = [each for each in self.saved if agreement(each[0], tokens) < len(each[0])]
        while self.cache and self.saved and sum(self._size(*each) for each in self.saved) + size > self.cache:
            self.saved.pop(0)
        self.saved.append((tokens, list(marks)))

    def _load(self, slot: dict[str, Any], prompt: Tokens) -> None:
        own = agreement(slot["tokens"], prompt)
        keeps, agrees, found = own / len(slot["tokens"]) if slot["tokens"] else -1.0, own, None
        for each in self.saved:
            same = agreement(each[0], prompt)
            if 4 * same >= len(each[0]) and same / len(each[0]) > keeps and same > agrees:
                keeps, agrees, found = same / len(each[0]), same, each
        if found is not None:
            self.saved = [each for each in self.saved if each is not found]
            slot["tokens"], slot["marks"] = found[0], list(found[1])

    def _resumed(self, slot: dict[str, Any], prompt: Tokens) -> int:
        agreed = agreement(slot["tokens"], prompt)
        if agreed == len(slot["tokens"]) < len(prompt):
            return agreed
        return max((mark for mark, _ in slot["marks"] if mark <= agreed and mark < len(prompt)), default=0)

    def _marks(self, marks: list[tuple[int, int]], at: int, prompt: int) -> list[tuple[int, int]]:
        """Piece by piece: a piece ends with the batch, the prompt, or 4 tokens or a ubatch and 4 before its end."""
        while at < prompt and self.limit:
            stops = [prompt - min(self.batch, 4 + self.ubatch), prompt - min(self.batch, 4), prompt, at + self.batch]
            end = min(stop for stop in stops if stop > at)
            tail = end > prompt - self.ubatch
            if at and (end == prompt or tail) and (not marks or tail or at > marks[-1][0] + self.step):
                marks = [mark for mark in self._thinned(marks) if mark[0] != at] + [(at, self.number)]
            at = end
        return marks

    def _thinned(self, marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """With room for one more: without those of other prompts too near the one before, then the oldest."""
        kept, left = list[tuple[int, int]](), len(marks)
        for mark in marks:
            if left >= self.limit - 1 and mark[1] != self.number and kept and mark[0] <= kept[-1][0] + self.step:
                left -= 1
            else:
                kept.append(mark)
        while len(kept) >= self.limit:
            kept.pop(0)
        return kept
