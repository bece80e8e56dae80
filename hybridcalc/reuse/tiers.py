"""What does SGLang's HiCache keep on the host? A copy of KV and of states, each in a pool of its own, written at once.

    on the GPU and on the host      as soon as it is in the tree, if the host has room for it (write_through)
    on the host alone               what the GPU gave up: the least recently used goes first, KV from the end of a path
                                    with the states there, a state inside a path by itself
    a hit                           goes as deep as a state on either side, over KV on either side; what lies on the
                                    host alone is loaded, KV and the one state

A node is copied after the nodes above it, KV and state together; where one of them has no room, nothing is. KV that was
given up and is computed again is on the GPU again. Room on the host is made of what is on the host alone.

Left out: write_back and write_through_selective, storage behind the host, the time that copies take. Units: slots,
tokens. Source: SGLang mem_cache/unified_cache/unified_tree_core.py, components/mamba.py and full.py (0.5.23).
"""

from collections import OrderedDict
from heapq import heappop, heappush
from itertools import count

from hybridcalc.reuse.cache import PrefixCache, Run, is_bare
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.tree import Ends, Ids, Node


class TieredCache(PrefixCache):
    """A prefix cache over a host tier of ``host_slots`` states and ``host_kv_tokens`` (None: as many as there are)."""

    def __init__(
        self,
        policy: Policy,
        slots: int,
        *,
        checkpoint_slots: int | None = None,
        count_running: bool = False,
        kv_tokens: int | None = None,
        host_slots: int,
        host_kv_tokens: int | None = None,
    ) -> None:
        super().__init__(
            policy, slots, checkpoint_slots=checkpoint_slots, count_running=count_running, kv_tokens=kv_tokens
        )
        self.host_slots, self.host_kv_tokens = host_slots, host_kv_tokens
        self.host_only: OrderedDict[Node, None] = OrderedDict()
        """States that the host alone holds, the least recently given up first."""
        self.host_states = self.host_kv = self.gone_tokens = 0
        self.used: dict[Node, int] = {}
        self.ends: list[tuple[int, int, Node]] = []
        """Ends of paths that may be on the host alone, by when they were used, to be looked at again when taken."""
        self.clock = count(1)
        self.alone = False
        self.states = OrderedDict()

    @property
    def kv_held(self) -> int:
        """KV tokens on the GPU."""
        return self.tree.tokens - self.gone_tokens + self.private

    def _found(self, reused: Node) -> Node:
        """Load what lies on the host alone down to ``reused``; a shallower node where the GPU has no room for that."""
        gone = [node for node in self._path(reused) if node.gone]
        tokens = sum(node.tokens for node in gone)
        if gone:
            self._lock(reused, 1)
            fits = self._make_kv(tokens)
            self._lock(reused, -1)
            if not fits:
                kept = (node for node in self._path(gone[-1]) if node.state and not node.gone)
                return next(kept, self.tree.root)
            self._return_to_gpu(gone)
            self.loaded_tokens += tokens
        return reused

    def _use(self, node: Node) -> None:
        if node.state:
            self.states.move_to_end(node)
            return
        self.host_hits += 1
        self.loaded_states += 1
        if self.free > 0 or self._evict():
            self.host_only.pop(node, None)
            node.state = True
            self.states[node] = None

    def _save(self, node: Node, ids: Ids, ends: Ends, depth: int) -> Node:
        node = self.tree.insert(node, ids, ends, depth)
        self._return_to_gpu([above for above in self._path(node) if above.gone])
        if node.state or not node.host:
            node = super()._save(node, ids, ends, depth)
        else:  # its copy is still there
            self.host_only.pop(node)
            node = super()._save(node, ids, ends, depth)
            if not node.state:
                self.host_only[node] = None
        self._stamp(node)
        self._back_up(node)
        return node

    def _return_to_gpu(self, gone: list[Node]) -> None:
        for node in gone:
            node.gone = False
            self.gone_tokens -= node.tokens
            if self.kv_tokens is not None:
                self.kv_order[node] = None

    def _back_up(self, node: Node) -> None:
        """Copy a node to the host, after those above it that have no copy."""
        node.users += 1  # what is copied is not what makes room
        for above in reversed(list(self._path(node))):
            if above.kept and (above is not node or above.host or not above.state):
                continue
            if not (above.kept or self._make_host_kv(above.tokens)):
                break
            if above.state and not above.host:
                if not self._make_host_slot():
                    break
                above.host = True
                self.host_states += 1
                self.stored_states += 1
            if not above.kept:
                above.kept = True
                self.host_kv += above.tokens
                self.stored_tokens += above.tokens
        node.users -= 1

    def _make_host_kv(self, tokens: int) -> bool:
        """Whether the host has room for so much KV, after ends of paths that it alone holds have gone."""
        if self.host_kv_tokens is None:
            return True
        while self.host_kv + tokens > self.host_kv_tokens:
            end = self._oldest_end()
            if end is None:
                return False
            self._remove(end)
        return True

    def _oldest_end(self) -> Node | None:
        """The least recently used node that the host alone holds and that nothing follows."""
        ends = self.ends
        while ends:
            when, _, node = heappop(ends)
            if not _is_host_end(node):
                continue
            if self.used[node] == when:
                return node
            heappush(ends, (self.used[node], next(self.clock), node))
        return None

    def _make_host_slot(self) -> bool:
        """Whether the host has a slot free, after the state that was given up longest ago has gone."""
        if self.host_states < self.host_slots:
            return True
        if not self.host_only:
            return False
        node = next(iter(self.host_only))
        if _is_host_end(node):
            self._remove(node)
        else:
            del self.host_only[node]
            node.host = False
            self.host_states -= 1
            self._note_bare(node)
        return True

    def _drop(self, node: Node) -> None:
        self._tombstone(node)
        if not node.users and not any(not child.gone for child in node.children):
            self._leave(node)

    def _tombstone(self, node: Node) -> None:
        del self.states[node]
        node.state = False
        if node.host:
            self.host_only[node] = None

    def _leave(self, node: Node) -> None:
        """The KV of a node that nothing on the GPU follows leaves it; without a copy it goes, and what follows too."""
        if node.kept and not node.gone:
            node.gone = True
            self.gone_tokens += node.tokens
            self.kv_order.pop(node, None)
            self._note_end(node)
            return
        for child in node.children:
            self._leave_host(child)
        self._remove(node)

    def _leave_host(self, node: Node) -> None:
        for child in node.children:
            self._leave_host(child)
        self._remove(node)

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent or self.tree.root
        self.gone_tokens -= leaf.tokens * leaf.gone
        self.host_kv -= leaf.tokens * leaf.kept
        if leaf.host:
            self.host_only.pop(leaf, None)
            leaf.host = False
            self.host_states -= 1
        leaf.gone = leaf.kept = False
        self.used.pop(leaf, None)
        self.kv_order.pop(leaf, None)
        self.bare.pop(leaf, None)
        self.tree.remove(leaf)
        self._note_bare(parent)
        self._note_end(parent)

    def _note_end(self, node: Node) -> None:
        """Remember an end of a path that the host alone holds."""
        if _is_host_end(node):
            heappush(self.ends, (self.used.setdefault(node, 0), next(self.clock), node))

    def _note_bare(self, node: Node) -> None:
        """As without a host; and what the host alone holds, where nothing bounds KV there."""
        unbounded = self.kv_tokens is None or (node.gone and self.host_kv_tokens is None)
        if unbounded and is_bare(node):
            self.bare[node] = None
            self._trim()

    def _trim(self) -> None:
        while len(self.bare) > self.most_bare:
            oldest, _ = self.bare.popitem(last=False)
            if not oldest.users:  # else it is noted again when it is let go
                self._remove(oldest)

    def _let_go(self, run: Run) -> None:
        super()._let_go(run)
        self._note_end(run.node)

    def _touch_kv(self, node: Node) -> None:
        self._stamp(node)
        if self.kv_tokens is not None:
            order = self.kv_order
            for walked in self._path(node):
                if not walked.gone:
                    order[walked] = None
                    order.move_to_end(walked)

    def _stamp(self, node: Node) -> None:
        now = next(self.clock)
        for walked in self._path(node):
            self.used[walked] = now

    def _make_kv(self, tokens: int, own: int = 0) -> bool:
        if self.kv_tokens is None:
            return True
        while self.kv_held + tokens > self.kv_tokens:
            leaf = next((node for node in self.kv_order if not node.users and _ends_on_gpu(node)), None)
            if leaf is None:
                return False
            if leaf.state:
                self._tombstone(leaf)
                self.evictions += 1
                self.lost_to_kv += 1
            self.kv_evictions += leaf.tokens
            self._leave(leaf)
        return True


def _is_host_end(node: Node) -> bool:
    return node.gone and node.kept and node.below is None and not node.users


def _ends_on_gpu(node: Node) -> bool:
    return all(child.gone for child in node.children)
