"""What do N state slots hold, and what do they lose? A hybrid prefix cache: slots, two LRU lists, locks.

    slots = states in the tree + slots of running requests + free       one pool; with an int8 pool the states in the
                                                                        tree have slots of their own
    KV    = tokens in the tree + tokens that running requests hold beside it

A hit copies the state at the deepest checkpoint into a slot of the request, so that the checkpoint stays as it is, and
makes that checkpoint the most recently used; the ones above it age. A slot that is wanted and not free is taken from
the least recently used state that no running request holds. Where a leaf loses its state, SGLang frees its KV as well;
a node inside keeps its KV. KV is freed from the leaf least recently used, with its state. A host tier behind it is
tiers.py's (SGLang), or another cache (``behind``, vLLM). Units: slots, tokens.
Source: SGLang mem_cache/unified_radix_cache.py, mem_cache/unified_cache/components/mamba.py (0.5.23).
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from hybridcalc.reuse.policy import NO_CAP, Policy
from hybridcalc.reuse.recency import Recency
from hybridcalc.reuse.requests import Request
from hybridcalc.reuse.tree import Ends, Ids, Node, RadixTree

MOST_BARE_LEAVES, BARE_LEAVES_PER_SLOT = 1024, 1
"""KV without any state below it is only good for finding branching points. Without a limit on KV the oldest is dropped
beyond this many leaves that no running request uses, so that memory is bounded by the cache and not by the length of a
trace. A leaf is as old as the moment since which it has had no state."""


class NoRoom(Exception):
    """Every slot or KV token that a request needs is held by running requests."""


@dataclass(slots=True, eq=False)
class Run:
    """A running request. ``node`` is the deepest of its path that it locks; ``private`` tokens are held beside it."""

    request: Request
    node: Node
    hit: int
    junction: int
    private: int
    own: int


class PrefixCache:
    """A prefix cache of ``slots`` states under ``policy``.

    ``checkpoint_slots`` is the size of a separate (int8) pool for the states in the tree. ``count_running`` takes the
    slots of running requests out of ``slots``; without it they lie beside. ``kv_tokens`` None: KV is not the limit.
    """

    def __init__(
        self,
        policy: Policy,
        slots: int,
        *,
        checkpoint_slots: int | None = None,
        count_running: bool = False,
        kv_tokens: int | None = None,
        behind: "PrefixCache | None" = None,
    ) -> None:
        self.policy, self.slots = policy, slots
        self.capacity = slots if checkpoint_slots is None else checkpoint_slots
        self.shared = count_running and checkpoint_slots is None
        self.count_running, self.kv_tokens, self.behind = count_running, kv_tokens, behind
        self.kv_order: OrderedDict[Node, None] = OrderedDict()
        self.bare: OrderedDict[Node, None] = OrderedDict()
        self.most_bare = max(MOST_BARE_LEAVES, BARE_LEAVES_PER_SLOT * self.capacity)
        self.own = self.private = 0
        self.evictions = self.lost_to_kv = self.capped = self.kv_evictions = self.host_hits = self.most_cached = 0
        self.stored_tokens = self.stored_states = self.loaded_tokens = self.loaded_states = 0
        self.alone = not (count_running or kv_tokens is not None or behind is not None)
        self.tree = RadixTree(policy.page)
        self.states: OrderedDict[Node, None] = Recency() if self.alone else OrderedDict()  # type: ignore[assignment]
        plain = not (policy.at_ends or policy.on_blocks)
        self.steps = (policy.grid, policy.prefill_chunk, policy.decode_grid, plain)
        """Of the policy, and whether it is SGLang's with extra buffers."""
        self.path_cap, self.kv_goes = policy.path_cap, policy.kv_with_state

    @property
    def free(self) -> int:
        """Slots that neither the tree nor, where they are counted, running requests hold."""
        return self.capacity - len(self.states) - (self.own if self.shared else 0)

    @property
    def kv_held(self) -> int:
        """KV tokens of the tree and of running requests."""
        return self.tree.tokens + self.private

    def serve(self, request: Request) -> int:
        """One request from beginning to end, alone: the tokens it did not compute. Raises NoRoom."""
        if not self.alone:
            run = self.start(request)
            self.prefill(run)
            self.finish(run)
            return run.hit
        return self.pass_through(request.ids, request.ends, request.prompt)

    def pass_through(self, ids: Ids, ends: Ends, prompt: int) -> int:
        """`serve` where the cache is ``alone``: no locks, no limit on KV, no host tier."""
        tree, states = self.tree, self.states
        grid, chunk, decode_grid, plain = self.steps
        node, reused, index = tree.match(ids, ends, prompt - 1)
        hit = reused.depth
        if hit:
            states.move_to_end(reused)
        junction = node.depth // grid * grid
        if not plain or prompt - hit > chunk:
            for depth in self.policy.prefill_states(hit, prompt, junction):
                node, index = self._save(node, ids, ends, depth), -1
        elif prompt - hit >= grid:  # SGLang's rule for a prefill of one chunk, spelt out: the bulk of all requests
            depth = hit + (prompt - hit) // grid * grid
            if hit < junction < depth and (junction - hit) % grid == 0:
                depth = junction
            if index >= 0 and depth > node.depth:
                node = self._hold_state(tree.add(node, ids[index], ids, ends, index, depth))
                index += node.after - node.first
            else:
                node, index = self._save(node, ids, ends, depth), -1
        total = ends[-1]
        if plain:
            if (depth := (total - 1) // decode_grid * decode_grid) > prompt:
                if index >= 0:
                    self._hold_state(tree.add(node, ids[index], ids, ends, index, depth))
                else:
                    self._save(node, ids, ends, depth)
            return hit
        for depth in self.policy.decode_states(prompt, total):
            node = self._save(node, ids, ends, depth)
        if self.policy.on_blocks:
            self._note_bare(self._cache_kv(node, ids, ends, total - 1))
        return hit

    def start(self, request: Request) -> Run:
        """Look the prompt up, copy the state that it hits, take slots and KV. Raises NoRoom, and then holds nothing."""
        ids, ends, prompt, _, _ = request
        node, reused, _ = self.tree.match(ids, ends, prompt - 1)
        self._touch_kv(node)
        reused = self._found(reused)
        own = self.policy.own_slots if self.count_running else 0
        run = Run(request, reused, reused.depth, node.depth // self.policy.grid * self.policy.grid, 0, own)
        self._lock(reused, 1)
        if not (self._make_own(own) and self._make_kv(prompt - reused.depth, own)):
            self._lock(reused, -1)
            raise NoRoom
        self.own += own
        run.private = prompt - reused.depth
        self.private += run.private
        if reused.depth:
            self._use(reused)
        if self.behind is not None:
            self._load(run, self.behind)
        return run

    def _load(self, run: Run, behind: "PrefixCache") -> None:
        """Take the state and the KV to it over from the cache behind, where that has a deeper one."""
        ids, ends, prompt, _, _ = run.request
        depth = behind.tree.match(ids, ends, prompt - 1)[1].depth
        if depth > run.hit:
            self.host_hits += 1
            self.loaded_states += 1
            self.loaded_tokens += depth - run.hit
            self._advance(run, self._save(run.node, ids, ends, depth))
            run.hit = depth

    def _store(self, request: Request, behind: "PrefixCache") -> None:
        """Keep what a request leaves behind, where there is room for it."""
        tokens, states = behind.tree.tokens + behind.kv_evictions, len(behind.states) + behind.evictions
        try:
            behind.serve(request)
        except NoRoom:
            return
        self.stored_tokens += behind.tree.tokens + behind.kv_evictions - tokens
        self.stored_states += len(behind.states) + behind.evictions - states

    def _found(self, reused: Node) -> Node:
        """The node whose state a request reuses, of what the tree has."""
        return reused

    def prefill(self, run: Run) -> None:
        """Compute the rest of the prompt and save its states."""
        ids, ends, prompt, _, _ = run.request
        for depth in self.policy.prefill_states(run.hit, prompt, run.junction):
            self._advance(run, self._save(run.node, ids, ends, depth))

    def finish(self, run: Run) -> None:
        """Decode the answer, save its state, and let everything go. Raises NoRoom where KV for the answer lacks."""
        ids, ends, prompt, _, _ = run.request
        total = ends[-1]
        grown = max(total - 1 - prompt, 0)
        if not self._make_kv(grown):
            raise NoRoom
        run.private += grown
        self.private += grown
        self._release_own(run)
        for depth in self.policy.decode_states(prompt, total):
            self._advance(run, self._save(run.node, ids, ends, depth))
        if self.policy.on_blocks:
            self._advance(run, self._cache_kv(run.node, ids, ends, total - 1))
        self._let_go(run)
        if self.behind is not None:
            self._store(run.request, self.behind)

    def preempt(self, run: Run) -> None:
        """Take a running request off: what it saved in the tree stays, as long as others leave it there."""
        self._release_own(run)
        self._let_go(run)

    def _release_own(self, run: Run) -> None:
        self.own -= run.own
        run.own = 0

    def _let_go(self, run: Run) -> None:
        self._lock(run.node, -1)
        self._note_bare(run.node)
        self.private -= run.private
        run.private = 0

    def _advance(self, run: Run, node: Node) -> None:
        """Move the lock down to ``node``; KV down to it is the tree's now (what the tree had already is freed)."""
        if node.depth > run.node.depth:
            taken = min(node.depth - run.node.depth, run.private)
            run.private -= taken
            self.private -= taken
            self._lock(node, 1)
            self._lock(run.node, -1)
            run.node = node
        self._touch_kv(node)

    def _lock(self, node: Node, change: int) -> None:
        """Hold or let go of a state and of the path to it."""
        if self.count_running:
            node.locks += change
        walked: Node | None = node
        while walked is not None:
            walked.users += change
            walked = walked.parent

    def _use(self, node: Node) -> None:
        """The state of ``node`` is copied: it is the most recently used one."""
        self.states.move_to_end(node)

    def _save(self, node: Node, ids: Ids, ends: Ends, depth: int) -> Node:
        """Save the state at ``depth`` of a request of which ``node`` is on the path; the node that holds it."""
        node = self.tree.insert(node, ids, ends, depth)
        if node.state:
            self.states.move_to_end(node)
            return node
        if node.below is None:
            self.bare.pop(node, None)
        return self._hold_state(node)

    def _hold_state(self, node: Node) -> Node:
        """Hold the state of a node, which has none and is not noted as a leaf without one."""
        states, parent = self.states, node.parent
        if parent is not None and parent.below is node and not parent.state:
            self.bare.pop(parent, None)
        node.state = True  # before anything is evicted: what evicting drops beside may be any leaf without a state
        if self.alone:
            held = states.add(node)  # type: ignore[attr-defined]
            if held > self.capacity:
                self._evict()
            elif held > self.most_cached:
                self.most_cached = held
        else:
            if self.free <= 0 and not self._evict():
                node.state = False
                return node
            states[node] = None
            self.most_cached = max(self.most_cached, len(states))
        if self.path_cap != NO_CAP:
            self._cap_path(node)
        return node

    def _cache_kv(self, node: Node, ids: Ids, ends: Ends, tokens: int) -> Node:
        """KV in whole pages, without a state; whoever asks for it notes that, when nothing locks the node."""
        depth = tokens - tokens % self.policy.page
        if depth > node.depth:
            node = self.tree.insert(node, ids, ends, depth)
            self.bare.pop(node.parent or node, None)
        return node

    def _make_own(self, wanted: int) -> bool:
        """Whether a request may take ``wanted`` slots for itself, after evicting states where they share the pool."""
        if not self.shared:
            return not self.count_running or self.own + wanted <= self.slots
        while self.free < wanted:
            if not self._evict():
                return False
        return True

    def _evict(self) -> bool:
        """Free the slot of the least recently used state that no running request holds; False where all are held."""
        if not self.alone:
            for node in self.states:
                if not node.locks:
                    self.evictions += 1
                    self._drop(node)
                    return True
            return False
        node = self.states.pop_oldest()  # type: ignore[attr-defined]  # nothing is held: `_drop` and `_remove` are spelt out, for speed
        self.evictions += 1
        node.state = False
        if node.below is not None:
            return True
        bare, parent = self.bare, node.parent or self.tree.root
        if self.kv_goes:
            if parent.below is node:
                parent.below = None
            else:
                parent.drop(node)
            self.tree.tokens -= node.depth - parent.depth
            node.parent = None
            if parent.below is not None or parent.state or parent.parent is None:
                return True
            node = parent
        bare[node] = None
        if len(bare) > self.most_bare:
            self._trim()
        return True

    def _drop(self, node: Node) -> None:
        """Give up a state; a leaf's KV goes with it."""
        self._tombstone(node)
        if node.below is None:
            if self.kv_goes and not node.users:
                self._remove(node)
            else:
                self._note_bare(node)

    def _tombstone(self, node: Node) -> None:
        """Take the state of a node off the GPU; its KV stays."""
        del self.states[node]
        node.state = False

    def _remove(self, leaf: Node) -> None:
        """Delete a leaf without a state; its parent may be one then."""
        parent = leaf.parent or self.tree.root
        self.tree.remove(leaf)
        if self.kv_tokens is not None:
            del self.kv_order[leaf]
        else:
            self.bare.pop(leaf, None)
            self._note_bare(parent)

    def _note_bare(self, node: Node) -> None:
        """Remember a leaf that holds no state and that nothing uses, where no limit on KV bounds them."""
        if self.kv_tokens is None and is_bare(node):
            self.bare[node] = None
            self._trim()

    def _trim(self) -> None:
        """Beyond their bound delete the oldest leaves without a state, each with what is above for it alone."""
        bare, tree = self.bare, self.tree
        while len(bare) > self.most_bare:
            node, _ = bare.popitem(last=False)
            while not (node.state or node.users) and (parent := node.parent) is not None:
                if parent.below is node:
                    parent.below = None
                else:
                    parent.drop(node)
                node.parent = None
                tree.tokens -= node.depth - parent.depth
                if parent.below is not None:
                    break
                node = parent

    def _cap_path(self, tail: Node) -> None:
        """SGLang's --mamba-max-states-per-path: shallow states inside the path go; the tail, forks and locked stay."""
        holders = [node for node in self._path(tail) if node.state]
        excess = len(holders) - self.path_cap
        for node in reversed(holders):
            if excess <= 0 or node is tail:
                break
            if node.locks or len(node.children) != 1:
                continue
            self._tombstone(node)
            self.capped += 1
            excess -= 1

    def _path(self, node: Node) -> Iterator[Node]:
        walked: Node | None = node
        while walked is not None and walked.parent is not None:
            yield walked
            walked = walked.parent

    def _touch_kv(self, node: Node) -> None:
        """A path is used: the deepest node first, so that a leaf is always older than what it hangs on."""
        if self.kv_tokens is not None:
            order = self.kv_order
            for walked in self._path(node):
                if walked in order:
                    order.move_to_end(walked)
                else:
                    order[walked] = None

    def _make_kv(self, tokens: int, own: int = 0) -> bool:
        """Whether ``tokens`` of KV are free, after evicting leaves that no running request uses. ``own``: slots about
        to be taken as well, which matters where they share a pool.
        """
        if self.kv_tokens is None:
            return True
        while self.kv_held + tokens > self.kv_tokens:
            leaf = next((node for node in self.kv_order if not node.users and node.below is None), None)
            if leaf is None:
                return False
            self._forget(leaf)
        return True

    def _forget(self, leaf: Node) -> None:
        """Delete a leaf with its KV and whatever states it has."""
        self._forget_state(leaf)
        self.kv_evictions += leaf.tokens
        self._remove(leaf)

    def _forget_state(self, leaf: Node) -> None:
        """Give up the state of a node."""
        if leaf.state:
            self._tombstone(leaf)
            self.evictions += 1
            self.lost_to_kv += 1


def is_bare(node: Node) -> bool:
    """Whether a node is a leaf of the tree without a state that nothing uses."""
    return node.below is None and not (node.state or node.host or node.users) and node.parent is not None
