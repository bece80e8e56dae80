"""Which tokens are cached, and at which of them is there a state? A radix tree of runs.

A node stands for the tokens from its parent's depth to its own, and may hold the recurrent state at exactly its depth.
A match goes as deep as the tokens agree, in whole pages; what may be reused then ends at the deepest node with a state.
A match or an insertion that ends inside a node splits it: the upper part has no state, the lower part keeps its own.
Depths are tokens from the start of a request. Capacity, locks and eviction are cache.py's.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator

Ids = tuple[Hashable, ...]
Ends = tuple[int, ...]


_NO_CHILDREN: dict[Hashable, "Node"] = {}
"""Stands for the children of every leaf; never written to."""


class Node:
    """Tokens from ``parent.depth`` to ``depth``, as ``ids`` and the depths at which they end, the last the node's own.

    ``key`` names its first page to the parent. ``state``: it holds a state on the GPU; ``host``: on the host; ``kept``:
    its KV is on the host, ``gone``: no longer on the GPU (tiers.py). ``locks`` counts running requests that hold this
    state, ``users`` those whose path runs through the node.
    """

    __slots__ = ("children", "depth", "ends", "gone", "host", "ids", "kept", "key", "locks", "parent", "state", "users")

    def __init__(self, parent: "Node | None", key: Hashable, ids: Ids, ends: Ends, depth: int) -> None:
        self.parent, self.key, self.ids, self.ends, self.depth = parent, key, ids, ends, depth
        self.children = _NO_CHILDREN
        self.state = self.host = self.gone = self.kept = False
        self.locks = self.users = 0

    @property
    def tokens(self) -> int:
        """KV tokens the node itself holds."""
        return self.depth - (self.parent.depth if self.parent is not None else 0)

    def adopt(self, child: "Node") -> None:
        """Take ``child`` among the children, under its key."""
        if self.children is _NO_CHILDREN:
            self.children = {child.key: child}
        else:
            self.children[child.key] = child


class RadixTree:
    """KV in pages of ``page`` tokens; ``tokens`` is what it holds."""

    def __init__(self, page: int = 1) -> None:
        self.page = page
        self.tokens = 0
        self.root = Node(None, None, (), (), 0)

    def match(self, ids: Ids, ends: Ends, limit: int) -> tuple[Node, Node]:
        """The deepest node that agrees with a request, ``limit`` tokens at most, and the deepest above it with a state.

        Splits the node inside which agreement ends. The root stands for no tokens, and for no state.
        """
        page = self.page
        node = reused = self.root
        index, count = 0, len(ids)
        if page > 1:
            limit -= limit % page
        while index < count:
            child = node.children.get(ids[index] if page == 1 else self._first_page(ids, ends, index, node.depth))
            if child is None:
                break
            depth = child.depth
            runs = len(child.ids)
            if runs == 1 and (end := ends[index]) >= depth <= limit:
                if end == depth:
                    index += 1
            elif depth <= limit and self._covers(child, ids, ends, index, runs):
                index += runs - (ends[index + runs - 1] > depth)
            else:
                agreed = min(self._agreement(child, ids, ends, index), limit)
                agreed -= agreed % page
                if agreed > node.depth:
                    node = self.split(child, agreed)
                break
            node = child
            if node.state or node.host:
                reused = node
        return node, reused

    def insert(self, node: Node, ids: Ids, ends: Ends, depth: int) -> Node:
        """The node at ``depth`` of a request, made if need be; ``node`` is any node on the request's path."""
        while node.depth < depth:
            index = bisect_right(ends, node.depth)
            key = ids[index] if self.page == 1 else self._first_page(ids, ends, index, node.depth)
            child = node.children.get(key)
            if child is None:
                if ends[index] >= depth:
                    leaf = Node(node, key, (ids[index],), (depth,), depth)
                else:
                    last = bisect_left(ends, depth, index)
                    leaf = Node(node, key, ids[index : last + 1], (*ends[index:last], depth), depth)
                children = node.children
                if children is _NO_CHILDREN:
                    node.children = {key: leaf}
                else:
                    children[key] = leaf
                self.tokens += depth - node.depth
                return leaf
            agreed = min(self._agreement(child, ids, ends, index), depth)
            agreed -= agreed % self.page
            node = child if agreed == child.depth else self.split(child, agreed)
        child = node
        while node.depth > depth:
            child, node = node, node.parent or self.root
        return node if node.depth == depth else self.split(child, depth)

    def split(self, child: Node, depth: int) -> Node:
        """Cut ``child`` at ``depth``; the new upper node, without a state."""
        parent, cut = child.parent or self.root, bisect_left(child.ends, depth)
        upper = Node(parent, child.key, child.ids[: cut + 1], (*child.ends[:cut], depth), depth)
        upper.users, upper.gone, upper.kept = child.users, child.gone, child.kept
        parent.adopt(upper)
        cut += child.ends[cut] == depth
        child.ids, child.ends, child.parent = child.ids[cut:], child.ends[cut:], upper
        child.key = child.ids[0] if self.page == 1 else self._first_page(child.ids, child.ends, 0, depth)
        upper.adopt(child)
        return upper

    def remove(self, leaf: Node) -> None:
        """Take a node without children off the tree."""
        parent = leaf.parent or self.root
        del parent.children[leaf.key]
        self.tokens -= leaf.depth - parent.depth
        leaf.parent = None

    def shorten(self, leaf: Node, depth: int) -> None:
        """Take the tokens from ``depth`` on off a node without children; some of its own are left."""
        cut = bisect_left(leaf.ends, depth)
        leaf.ids, leaf.ends = leaf.ids[: cut + 1], (*leaf.ends[:cut], depth)
        self.tokens -= leaf.depth - depth
        leaf.depth = depth

    def clear(self) -> None:
        """Let all nodes go at once: a node and what it hangs on hold each other."""
        for node in list(self.nodes()):
            node.parent = None
        self.root = Node(None, None, (), (), 0)
        self.tokens = 0

    def nodes(self) -> Iterator[Node]:
        """Every node but the root."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _first_page(self, ids: Ids, ends: Ends, index: int, start: int) -> Hashable:
        """What the first page after ``start`` is called; None where the request has no whole page there."""
        stop = start + self.page
        if ends[index] >= stop:
            return ids[index]
        if ends[-1] < stop:
            return None
        last = bisect_left(ends, stop, index)
        return (ids[index : last + 1], ends[index:last], stop)

    @staticmethod
    def _covers(child: Node, ids: Ids, ends: Ends, index: int, runs: int) -> bool:
        """Whether the request holds all runs of ``child`` from ``index`` on."""
        last = index + runs - 1
        return (
            last < len(ids)
            and ends[last] >= child.depth
            and ids[index : last + 1] == child.ids
            and ends[index:last] == child.ends[:-1]
        )

    @staticmethod
    def _agreement(child: Node, ids: Ids, ends: Ends, index: int) -> int:
        """Tokens on which a request agrees with ``child``, the path above included."""
        agreed = 0
        for own, (name, end) in enumerate(zip(child.ids, child.ends, strict=True)):
            position = index + own
            if position == len(ids) or ids[position] != name:
                break
            agreed = min(end, ends[position])
            if end != ends[position]:
                break
        return agreed or (child.parent.depth if child.parent is not None else 0)
