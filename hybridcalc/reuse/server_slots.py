"""What do the slots of llama-server hold? A prompt each, with its checkpoints, and the host cache done prompts.

    slot     of the idle ones that which agrees with most of the prompt, where that is more than s of it; else the one
             that was released longest ago
    host     before a slot goes on with less than half of what it holds, that is saved, and the saved prompt is taken
             instead that agrees better and of which a quarter at least is used; each start saves the idle slots as
             well, and where slots share their KV (unified) clears them. The oldest goes first
    hit      the last checkpoint within what agrees (engines/llamacpp/saved.py)

s: --slot-prompt-similarity. Left out: checkpoints at user messages, slots asked for by number, answers that a slot's
context cuts short. Units: tokens, bytes. Source: llama.cpp tools/server/server-context.cpp get_available_slot,
update_slots, server-task.cpp server_prompt_cache (b11434).
"""

from collections import OrderedDict
from collections.abc import Hashable
from struct import pack, unpack
from typing import NamedTuple

from hybridcalc.engines.llamacpp import padded
from hybridcalc.engines.llamacpp.saved import MIN_STEP, ServerSlot, served
from hybridcalc.errors import InputError
from hybridcalc.reuse.cache import NoRoom, PrefixCache, Run
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.requests import Request
from hybridcalc.reuse.tree import Ends, Ids

NO_LIMIT = -1
HALF, QUARTER = 0.5, 0.25


class SlotServer(NamedTuple):
    """The server's settings. ``cache_bytes``: of the host cache, 0 none, NO_LIMIT; a saved prompt takes
    ``token_bytes`` a token, ``state_bytes`` and as much for each checkpoint. ``unified``: slots share their KV.
    ``trained``: tokens that the model was trained for, of which no slot has more; None if unknown.
    """

    similarity: float = 0.1
    checkpoints: int = 32
    min_step: int = MIN_STEP
    batch: int = 2048
    ubatch: int = 512
    unified: bool = False
    cache_bytes: int = 0
    token_bytes: int = 0
    state_bytes: int = 0
    trained: int | None = None

    def context_of_slot(self, context: int | None, slots: int) -> int | None:
        """Tokens of the longest request that a slot holds; None where nothing limits it."""
        each = context if context is None or self.unified else padded(context // slots)
        return min((limit for limit in (each, self.trained) if limit is not None), default=None)


class Prompt(NamedTuple):
    """What a slot or the host holds: runs, ``state.held`` tokens of them, and checkpoints."""

    ids: Ids
    ends: Ends
    state: ServerSlot

    def agreed(self, ids: Ids, ends: Ends, limit: int) -> int:
        """Leading tokens that are those of a request, of which ``limit`` count."""
        most = min(self.state.held, limit)
        for own, name, end, other in zip(self.ids, ids, self.ends, ends, strict=False):
            if own != name:
                break
            if end != other or end >= most:
                return min(end, other, most)
        else:
            return min(self.ends[-1], ends[-1], most)
        return _begin(self.ids, ids, ends)


EMPTY = Prompt((), (), ServerSlot())


class SlotCache(PrefixCache):
    """``slots`` of a server; ``context`` (None: no limit) is shared out among them, or by them where unified.

    ``states`` are the slots that hold a prompt, by number; ``idle`` those that none runs in, the one released longest
    ago first, ``busy`` the tokens of the others.
    """

    def __init__(
        self, policy: Policy, slots: int, server: SlotServer, *, count_running: bool = False, context: int | None = None
    ) -> None:
        super().__init__(policy, slots, count_running=count_running)
        self.server, self.context = server, context
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.prompts: OrderedDict[int, Prompt] = OrderedDict()
        self.states = self.prompts  # type: ignore[assignment]
        self.fresh = slots - 1
        self.by_first: dict[Hashable, set[int]] = {}
        self.host = HostCache(server, context if server.cache_bytes == NO_LIMIT else None)
        self.held = self.busy = self.number = 0
        self.slot_of: dict[int, int] = {}
        self.unsaved: set[int] = set()

    @property
    def kv_held(self) -> int:
        """Tokens in all slots."""
        return self.held

    def pass_through(self, ids: Ids, ends: Ends, prompt: int) -> int:
        """One request from beginning to end."""
        slot, hit = self._offer(ids, ends, prompt)
        self._release(slot)
        return hit

    def start(self, request: Request) -> Run:
        """Pick a slot, and see what it spares. Raises NoRoom where none is idle, or running ones hold all KV."""
        slot, hit = self._offer(request.ids, request.ends, request.prompt)
        run = Run(request, self.tree.root, hit, 0, 0, 1)
        self.slot_of[id(run)] = slot
        return run

    def prefill(self, run: Run) -> None:
        """Its checkpoints were counted when the slot was picked."""

    def finish(self, run: Run) -> None:
        """Release the slot."""
        self._release(self.slot_of.pop(id(run)))

    def _offer(self, ids: Ids, ends: Ends, prompt: int) -> tuple[int, int]:
        """The slot that a request takes, and the tokens that it does not compute."""
        total = max(ends[-1] - 1, prompt)
        self._check(prompt, total)
        if self.server.unified and self.context is not None and self.busy + total > self.context:
            raise NoRoom
        slot, taken = self._pick(ids, ends, prompt)
        self.idle.pop(slot, None)
        before = self._take(slot)
        held, kept = before, False
        if taken and self.server.cache_bytes:
            kept = self._keep(before)
            held = self.host.load(before, ids, ends, prompt) or before
            if held is not before:
                self._look_again(held)
        agreed = held.agreed(ids, ends, prompt) if held.state.held else 0
        hit = held.state.resumed(agreed, prompt)
        if held is not before:
            self.host_hits += hit > 0
            self.loaded_states += 1 + len(held.state.checkpoints)
            self.loaded_tokens += held.state.held
        if taken and not kept and before.state.held:
            self._lose(before.state.held - (agreed if held is before else 0))
        self._make_room(total)
        self._serve(slot, held, ids, ends, prompt, hit)
        if self.server.cache_bytes:
            self._keep_idle()
        return slot, hit

    def _serve(self, slot: int, held: Prompt, ids: Ids, ends: Ends, prompt: int, hit: int) -> None:
        """Compute the prompt and make the answer in a slot."""
        server, had = self.server, held.state._replace(prompts=self.number)
        state, made = served(
            had,
            prompt,
            hit,
            batch=server.batch,
            ubatch=server.ubatch,
            limit=server.checkpoints,
            min_step=server.min_step,
            answer=max(ends[-1] - prompt, 1),
        )
        valid = {each.tokens for each in had.checkpoints if each.tokens <= hit + 1}
        self.capped += len(valid.union(made)) - len(state.checkpoints)
        self.number += 1
        self._hold(slot, Prompt(ids, ends, state))
        self.busy += state.held
        self.most_cached = max(self.most_cached, len(self.prompts))

    def _check(self, prompt: int, total: int) -> None:
        """Raise InputError for a request that no slot's context holds."""
        each = self.server.context_of_slot(self.context, self.slots)
        if each is None:
            return
        capped = each == self.server.trained
        if prompt >= each or total > each:
            what, tokens = ("a prompt", prompt) if prompt >= each else ("a request", total)
            raise InputError(
                f"{what} of {tokens:,} tokens does not fit a slot, whose context is {each:,}",
                fix="shorten the requests: the model was trained for no more"
                if capped
                else "write a larger -c" + ("" if self.server.unified else ", or fewer slots"),
            )

    def _pick(self, ids: Ids, ends: Ends, prompt: int) -> tuple[int, bool]:
        """A slot, and whether what it holds is given up for the most part. Raises NoRoom where none is idle."""
        best, found = 0, -1
        if self.server.similarity:
            for slot in sorted(self.by_first.get(ids[0], ())):
                agreed = self.prompts[slot].agreed(ids, ends, prompt) if slot in self.idle else 0
                if agreed > best and _f32(agreed / prompt) > _f32(self.server.similarity):
                    best, found = agreed, slot
        if found >= 0:
            similar = _f32(_f32(best / prompt) * prompt)
            return found, _f32(similar / self.prompts[found].state.held) < HALF
        if self.fresh >= 0:
            self.fresh -= 1
            return self.fresh + 1, True
        if not self.idle:
            raise NoRoom
        return next(iter(self.idle)), True

    def _take(self, slot: int) -> Prompt:
        """What a slot held, which is out of it then."""
        self.unsaved.discard(slot)
        prompt = self.prompts.pop(slot, EMPTY)
        if prompt.state.held:
            self.held -= prompt.state.held
            self.by_first[prompt.ids[0]].discard(slot)
            if not self.by_first[prompt.ids[0]]:
                del self.by_first[prompt.ids[0]]
        return prompt

    def _hold(self, slot: int, prompt: Prompt) -> None:
        self.prompts[slot] = prompt
        self.held += prompt.state.held
        self.by_first.setdefault(prompt.ids[0], set()).add(slot)
        self.unsaved.add(slot)

    def _release(self, slot: int) -> None:
        self.busy -= self.prompts[slot].state.held
        self.idle[slot] = None

    def _lose(self, tokens: int) -> None:
        self.evictions += 1
        self.kv_evictions += tokens

    def _make_room(self, total: int) -> None:
        """Clear idle slots, the first by number, while unified KV lacks room."""
        while self.server.unified and self.context is not None and self.held + total > self.context:
            self._clear(min(self.idle.keys() & self.prompts.keys()))

    def _clear(self, slot: int) -> None:
        """Empty an idle slot; its place in the order stays."""
        lost = self._take(slot)
        if not self.host.has(lost):
            self._lose(lost.state.held)

    def _keep(self, prompt: Prompt) -> bool:
        """Save a prompt on the host; whether it is there then, whole."""
        if not prompt.state.held:
            return True
        there, stored, dropped = self.host.save(prompt)
        if stored:
            self.stored_states += 1 + len(prompt.state.checkpoints)
            self.stored_tokens += prompt.state.held
        for each in dropped:
            self._look_again(each)
            if each is not prompt and not self._holds(each):
                self._lose(each.state.held)
        return there

    def _holds(self, prompt: Prompt) -> bool:
        """Whether all of a prompt is in a slot."""
        ids, ends, held = prompt.ids, prompt.ends, prompt.state.held
        return any(self.prompts[slot].agreed(ids, ends, held) == held for slot in self.by_first.get(ids[0], ()))

    def _keep_idle(self) -> None:
        """Save what idle slots hold, in their order; unified, clear them. What is known to be saved is left out."""
        if not self.unsaved:
            return
        for slot in sorted(self.idle.keys() & self.prompts.keys()):
            if slot not in self.unsaved:  # as it is now: saving one may drop another
                continue
            self.unsaved.discard(slot)
            if not self._keep(self.prompts[slot]):
                self.unsaved.add(slot)
            if self.server.unified:
                self._clear(slot)

    def _look_again(self, gone: Prompt) -> None:
        """What slots hold of a prompt that left the host may be saved no longer."""
        self.unsaved |= self.by_first.get(gone.ids[0], set())


class HostCache:
    """Prompts that are saved, the oldest first; ``most_tokens`` is the limit where there is none in bytes."""

    def __init__(self, server: SlotServer, most_tokens: int | None) -> None:
        self.server, self.most_tokens = server, most_tokens
        self.entries: OrderedDict[int, Prompt] = OrderedDict()
        self.by_first: dict[Hashable, dict[int, None]] = {}
        self.bytes = self.tokens = self.last = 0

    def size(self, prompt: Prompt) -> int:
        """Bytes that a prompt takes here."""
        server, state = self.server, prompt.state
        return state.held * server.token_bytes + (1 + len(state.checkpoints)) * server.state_bytes

    def has(self, prompt: Prompt) -> bool:
        """Whether all of a prompt is in one that is here."""
        ids, ends, held = prompt.ids, prompt.ends, prompt.state.held
        alike = self.by_first.get(ids[0], {}) if held else {}
        return any(self.entries[key].agreed(ids, ends, held) == held for key in alike)

    def save(self, prompt: Prompt) -> tuple[bool, bool, list[Prompt]]:
        """Whether the prompt is here then, whether it was put here now, and what went for lack of room."""
        limit, wanted, dropped = self.server.cache_bytes, self.size(prompt), list[Prompt]()
        if self.has(prompt):
            return True, False, dropped
        if 0 < limit < wanted:
            return False, False, dropped
        ids, ends, held = prompt.ids, prompt.ends, prompt.state.held
        for key in list(self.by_first.get(ids[0], {})):
            if self.entries[key].agreed(ids, ends, held) == self.entries[key].state.held:
                self._remove(key)
        while self.entries and 0 < limit < self.bytes + wanted:
            dropped.append(self._remove(next(iter(self.entries))))
        self.entries[self.last] = prompt
        self.by_first.setdefault(ids[0], {})[self.last] = None
        self.last += 1
        self.bytes += wanted
        self.tokens += held
        while self.entries and self.most_tokens is not None and self.tokens > self.most_tokens:
            dropped.append(self._remove(next(iter(self.entries))))
        return prompt not in dropped, True, dropped

    def load(self, own: Prompt, ids: Ids, ends: Ends, prompt: int) -> Prompt | None:
        """The saved prompt that agrees better than ``own`` and of which more is used, taken out; None without one."""
        agreed = own.agreed(ids, ends, prompt) if own.state.held else 0
        kept = _f32(agreed / own.state.held) if own.state.held else -1.0
        similar, best = _f32(agreed / prompt), -1
        for key in self.by_first.get(ids[0], {}):
            entry = self.entries[key]
            agreed = entry.agreed(ids, ends, prompt)
            keeps, agrees = _f32(agreed / entry.state.held), _f32(agreed / prompt)
            if keeps >= QUARTER and keeps > kept and agrees > similar:
                kept, similar, best = keeps, agrees, key
        return self._remove(best) if best >= 0 else None

    def _remove(self, key: int) -> Prompt:
        prompt = self.entries.pop(key)
        alike = self.by_first[prompt.ids[0]]
        del alike[key]
        if not alike:
            del self.by_first[prompt.ids[0]]
        self.bytes -= self.size(prompt)
        self.tokens -= prompt.state.held
        return prompt


def _begin(ids: Ids, others: Ids, ends: Ends) -> int:
    """Where the first run begins that differs."""
    place = next(place for place, (own, other) in enumerate(zip(ids, others, strict=False)) if own != other)
    return ends[place - 1] if place else 0


def _f32(value: float) -> float:
    """As the engine rounds it."""
    found: float = unpack("f", pack("f", value))[0]
    return found
