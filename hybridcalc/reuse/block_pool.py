"""What does vLLM's one pool of blocks hold? States and KV take blocks out of it, and the block unused for longest goes.

    blocks held = per_state * (states in the tree + states of running requests)
                + per_page * ceil(KV tokens / block)

A block is used as long as its request runs. KV is given up from the end of a path, a page at a time. Of what one
request used states are the older: vLLM lets go of a state as soon as the next one is made. So no state outlives the KV
that leads to it. The blocks of a state go together, as do those of a page of KV.

Left out: that vLLM holds twice, until the older goes, what a request computes although it is cached. Units: blocks.
Source: vLLM v1/core/block_pool.py, v1/core/kv_cache_coordinator.py (0.33.0).
"""

from collections import OrderedDict
from collections.abc import Callable

from hybridcalc.reuse.cache import PrefixCache
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.requests import BlockPool
from hybridcalc.reuse.tree import Ends, Ids, Node


class _Stamped(OrderedDict[Node, int]):
    """What was used, the least recently used first, with when: a number that ``clock`` makes."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__()
        self.clock = clock

    def __setitem__(self, node: Node, value: int | None) -> None:
        super().__setitem__(node, self.clock())

    def move_to_end(self, node: Node, last: bool = True) -> None:
        """Use it now."""
        super().move_to_end(node, last)
        super().__setitem__(node, self.clock())


class PooledCache(PrefixCache):
    """A prefix cache whose states and KV share ``pool``; beside it no more than ``slots`` states are held."""

    def __init__(self, policy: Policy, slots: int, pool: BlockPool, *, behind: PrefixCache | None = None) -> None:
        block = policy.grid
        tokens = pool.blocks // pool.per_page * block
        super().__init__(policy, slots, count_running=True, kv_tokens=tokens, behind=behind)
        self.pool, self.block, self.now = pool, block, 0
        self.states = _Stamped(self._tick)  # type: ignore[assignment]
        self.kv_order = _Stamped(self._tick)  # type: ignore[assignment]

    @property
    def blocks_held(self) -> int:
        """Blocks of states and KV, of the tree and of running requests."""
        return self._blocks(0, 0)

    def _tick(self) -> int:
        self.now += 1
        return self.now

    def _blocks(self, tokens: int, own: int) -> int:
        """Blocks held, and those of ``tokens`` and of ``own`` states more."""
        states = len(self.states) + self.own + own
        return self.pool.per_state * states + self.pool.per_page * -(-(self.kv_held + tokens) // self.block)

    def _make_own(self, wanted: int) -> bool:
        return super()._make_own(wanted) and self._make_kv(0, wanted)

    def _make_kv(self, tokens: int, own: int = 0) -> bool:
        while self._blocks(tokens, own) > self.pool.blocks:
            if not self._evict_oldest():
                return False
        return True

    def _save(self, node: Node, ids: Ids, ends: Ends, depth: int) -> Node:
        if self._make_kv(0, 1):
            return super()._save(node, ids, ends, depth)
        return self.tree.insert(node, ids, ends, depth)

    def _evict_oldest(self) -> bool:
        """Free the state or the page of KV that was used longest ago; False where running requests use all."""
        state = next((node for node in self.states if not node.locks), None)
        leaf = next((node for node in self.kv_order if not node.users and node.below is None), None)
        if leaf is None or (state is not None and self.states[state] < self.kv_order[leaf]):  # type: ignore[operator]
            return self._evict()
        above = leaf.depth - self.policy.page
        if above <= (leaf.parent or self.tree.root).depth:
            self._forget(leaf)
        else:
            self._forget_state(leaf)
            self.kv_evictions += self.policy.page
            self.tree.shorten(leaf, above)
        return True


def offloaded(policy: Policy, chunks: BlockPool) -> PooledCache:
    """The native offloading of vLLM: chunks on the host, of which a state and a page take as many as blocks on the GPU.

    It keeps what requests leave, the least recently used goes, and nothing runs there.
    Source: vLLM v1/kv_offload/cpu/manager.py, cpu/policies/lru.py (0.33.0).
    """
    return PooledCache(policy._replace(own_slots=0, slots_per_request=0), chunks.blocks, chunks)
