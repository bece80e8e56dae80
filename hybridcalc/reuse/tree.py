"""Which tokens are cached, and at which of them is there a state? A radix tree of runs.

A node stands for the tokens from its parent's depth to its own, and may hold the recurrent state at exactly its depth.
A match goes as deep as the tokens agree, in whole pages; what may be reused then ends at the deepest node with a state.
A match or an insertion that ends inside a node splits it: the upper part has no state, the lower part keeps its own.
Depths are tokens from the start of a request. Capacity, locks and eviction are cache.py's.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from typing import NamedTuple

Ids = tuple[Hashable, ...]
Ends = tuple[int, ...]


class Node:
    """Tokens from ``parent.depth`` to ``depth``, as runs; ``ends`` are depths, the last one the node's own.

    ``state``: it holds a state on the GPU; ``host``: on the host. ``locks`` counts running requests that hold this
    state, ``users`` those whose path runs through the node.
    """

    __slots__ = ("children", "depth", "ends", "host", "ids", "key", "locks", "parent", "state", "users")

    def __init__(self, parent: "Node | None", key: Hashable, ids: Ids, ends: Ends, depth: int) -> None:
        self.parent, self.key, self.ids, self.ends, self.depth = parent, key, ids, ends, depth
        self.children: dict[Hashable, Node] = {}
        self.state = self.host = False
        self.locks = self.users = 0

    @property
    def tokens(self) -> int:
        """KV tokens the node itself holds."""
        return self.depth - (self.parent.depth if self.parent is not None else 0)


class Match(NamedTuple):
    """The deepest node whose tokens agree, and the deepest on the way to it that holds a state (the root: none)."""

    node: Node
    reused: Node


class RadixTree:
    """KV in pages of ``page`` tokens; ``tokens`` is what it holds."""

    def __init__(self, page: int = 1) -> None:
        self.page = page
        self.tokens = 0
        self.root = Node(None, None, (), (), 0)

    def match(self, ids: Ids, ends: Ends, limit: int) -> Match:
        """How far a request agrees, ``limit`` tokens at most. Splits the node inside which agreement ends."""
        page = self.page
        node = reused = self.root
        index, count = 0, len(ids)
        if page > 1:
            limit -= limit % page
        while index < count:
            child = node.children.get(
                ids[index] if page == 1 else self._first_page(ids, ends, index, node.depth)
            )
            if child is None:
                break
            depth = child.depth
            runs = len(child.ids)
            if runs == 1 and ends[index] >= depth <= limit:
                index += ends[index] == depth
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
        return Match(node, reused)

    def insert(self, node: Node, ids: Ids, ends: Ends, depth: int) -> Node:
        """The node at ``depth`` of a request, made if need be; ``node`` is any node on the request's path."""
        child = node
        while node.depth > depth:
            child, node = node, node.parent or self.root
        if node.depth == depth:
            return node
        if child is not node:
            return self.split(child, depth)
        while node.depth < depth:
            index = bisect_right(ends, node.depth)
            key = ids[index] if self.page == 1 else self._first_page(ids, ends, index, node.depth)
            child_or_none = node.children.get(key)
            if child_or_none is None:
                last = bisect_left(ends, depth)
                leaf = Node(node, key, ids[index : last + 1], (*ends[index:last], depth), depth)
                node.children[key] = leaf
                self.tokens += depth - node.depth
                return leaf
            child = child_or_none
            agreed = min(self._agreement(child, ids, ends, index), depth)
            agreed -= agreed % self.page
            node = child if agreed == child.depth else self.split(child, agreed)
        return node

    def split(self, child: Node, depth: int) -> Node:
        """Cut ``child`` at ``depth``; the new upper node, without a state."""
        parent, cut = child.parent or self.root, bisect_left(child.ends, depth)
        upper = Node(parent, child.key, child.ids[: cut + 1], (*child.ends[:cut], depth), depth)
        upper.users = child.users
        parent.children[child.key] = upper
        cut += child.ends[cut] == depth
        child.ids, child.ends, child.parent = child.ids[cut:], child.ends[cut:], upper
        child.key = child.ids[0] if self.page == 1 else self._first_page(child.ids, child.ends, 0, depth)
        upper.children[child.key] = child
        return upper

    def remove(self, leaf: Node) -> None:
        """Take a node without children off the tree."""
        parent = leaf.parent or self.root
        del parent.children[leaf.key]
        self.tokens -= leaf.depth - parent.depth
        leaf.parent = None

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
