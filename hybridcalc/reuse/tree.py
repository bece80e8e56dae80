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


SHARED_RUNS = 64
"""A node keeps the runs of a whole request of so many, which it shares with others; of a longer one its own alone."""


class Node:
    """Tokens from ``parent.depth`` to ``depth``: those of the runs ``ids``, which end at ``ends``, from ``first`` on.

    ``after`` is the run that the token at ``depth`` would be in. ``key`` names the node's first page to the parent.
    ``below``: the only child, or all by their keys. ``state``: it holds a state on the GPU; ``host``: on the host;
    ``kept``: its KV is on the host, ``gone``: no longer on the GPU (tiers.py). ``locks`` counts running requests that
    hold this state, ``users`` those whose path runs through the node; ``uses`` is recency.py's.
    """

    __slots__ = (
        "after",
        "below",
        "depth",
        "ends",
        "first",
        "gone",
        "host",
        "ids",
        "kept",
        "key",
        "locks",
        "parent",
        "state",
        "users",
        "uses",
    )

    def __init__(
        self, parent: "Node | None", key: Hashable, ids: Ids, ends: Ends, first: int, after: int, depth: int
    ) -> None:
        self.parent, self.key, self.ids, self.ends, self.depth = parent, key, ids, ends, depth
        self.first, self.after = first, after
        self.below: Node | dict[Hashable, Node] | None = None
        self.state = self.host = self.gone = self.kept = False
        self.locks = self.users = self.uses = 0

    @property
    def tokens(self) -> int:
        """KV tokens the node itself holds."""
        return self.depth - (self.parent.depth if self.parent is not None else 0)

    @property
    def children(self) -> list["Node"]:
        """All nodes right below."""
        below = self.below
        return [] if below is None else list(below.values()) if isinstance(below, dict) else [below]

    def child(self, key: Hashable) -> "Node | None":
        """The node right below of a name."""
        below = self.below
        if isinstance(below, dict):
            return below.get(key)
        return below if below is not None and below.key == key else None

    def adopt(self, child: "Node") -> None:
        """Take ``child`` among the children, under its key."""
        below = self.below
        if isinstance(below, dict):
            below[child.key] = child
        elif below is None or below.key == child.key:
            self.below = child
        else:
            self.below = {below.key: below, child.key: child}

    def drop(self, child: "Node") -> None:
        """Give ``child`` up."""
        below = self.below
        if isinstance(below, dict) and len(below) > 1:
            del below[child.key]
        else:
            self.below = None


class RadixTree:
    """KV in pages of ``page`` tokens; ``tokens`` is what it holds."""

    def __init__(self, page: int = 1) -> None:
        self.page = page
        self.tokens = 0
        self.root = Node(None, None, (), (), 0, 0, 0)

    def match(self, ids: Ids, ends: Ends, limit: int) -> tuple[Node, Node, int]:
        """The deepest node that agrees with a request, ``limit`` tokens at most, the deepest above it with a state, and
        the run where the request leaves the tree there; -1: it may not.

        Splits the node inside which agreement ends. The root stands for no tokens, and for no state.
        """
        page, node, index = self.page, self.root, 0
        if page > 1:
            limit -= limit % page
            child: Node | None = node
        else:  # by the names of first runs alone, and one look at all that lies between
            count = len(ids)
            while (below := node.below) is not None:
                key = ids[index]
                child = below.get(key) if isinstance(below, dict) else below if below.key == key else None
                if child is None or child.first != index or child.depth > limit:
                    break
                node, index = child, child.after
                if index >= count:
                    break
            else:
                child = None
            if node is not self.root and (after := _behind(node, ids, ends, 0, 0)) != index:
                node, index = (node, after) if after >= 0 else (self.root, 0)
                child = node
        while child is not None:
            child = node.child(ids[index] if page == 1 else self._first_page(ids, ends, index, node.depth))
            if child is None:
                break
            after = _behind(child, ids, ends, index, child.first) if child.depth <= limit else -1
            if after < 0:
                agreed = min(_agreement(child, ids, ends, index), limit)
                agreed -= agreed % page
                if agreed > node.depth:
                    node = self.split(child, agreed)
                index = bisect_right(ends, agreed) if page == 1 and agreed < limit else -1
                break
            node, index = child, after
        reused = node
        while not (reused.state or reused.host) and reused.parent is not None:
            reused = reused.parent
        return node, reused, index if page == 1 else -1

    def insert(self, node: Node, ids: Ids, ends: Ends, depth: int) -> Node:
        """The node at ``depth`` of a request, made if need be; ``node`` is any node on the request's path."""
        while node.depth < depth:
            index = bisect_right(ends, node.depth)
            key = ids[index] if self.page == 1 else self._first_page(ids, ends, index, node.depth)
            child = node.child(key)
            if child is None:
                return self.add(node, key, ids, ends, index, depth)
            agreed = min(_agreement(child, ids, ends, index), depth)
            agreed -= agreed % self.page
            node = child if agreed == child.depth else self.split(child, agreed)
        child = node
        while node.depth > depth:
            child, node = node, node.parent or self.root
        return node if node.depth == depth else self.split(child, depth)

    def add(self, node: Node, key: Hashable, ids: Ids, ends: Ends, index: int, depth: int) -> Node:
        """A leaf under ``node``, which has none of that ``key``: a request from run ``index`` to ``depth``."""
        after = index if depth < ends[index] else bisect_right(ends, depth, index)
        if len(ids) > SHARED_RUNS:
            ids, ends, index, after = ids[index : after + 1], ends[index : after + 1], 0, after - index
        leaf = Node(node, key, ids, ends, index, after, depth)
        if node.below is None:
            node.below = leaf
        else:
            node.adopt(leaf)
        self.tokens += depth - node.depth
        return leaf

    def split(self, child: Node, depth: int) -> Node:
        """Cut ``child`` at ``depth``; the new upper node, without a state."""
        parent, ids, ends, first = child.parent or self.root, child.ids, child.ends, child.first
        cut = bisect_right(ends, depth, first)
        upper = Node(parent, child.key, ids, ends, first, cut, depth)
        if len(ids) > SHARED_RUNS:
            upper.ids, upper.ends, upper.first, upper.after = (
                ids[first : cut + 1],
                ends[first : cut + 1],
                0,
                cut - first,
            )
            child.ids, child.ends, child.after, cut = ids[cut:], ends[cut:], child.after - cut, 0
        upper.users, upper.gone, upper.kept = child.users, child.gone, child.kept
        parent.adopt(upper)
        child.first, child.parent = cut, upper
        child.key = child.ids[cut] if self.page == 1 else self._first_page(child.ids, child.ends, cut, depth)
        upper.below = child
        return upper

    def remove(self, leaf: Node) -> None:
        """Take a node without children off the tree."""
        parent = leaf.parent or self.root
        parent.drop(leaf)
        self.tokens -= leaf.depth - parent.depth
        leaf.parent = None

    def shorten(self, leaf: Node, depth: int) -> None:
        """Take the tokens from ``depth`` on off a node without children; some of its own are left."""
        leaf.after = bisect_right(leaf.ends, depth, leaf.first)
        self.tokens -= leaf.depth - depth
        leaf.depth = depth

    def clear(self) -> None:
        """Let all nodes go at once: a node and what it hangs on hold each other."""
        for node in list(self.nodes()):
            node.parent = None
        self.root = Node(None, None, (), (), 0, 0, 0)
        self.tokens = 0

    def nodes(self) -> Iterator[Node]:
        """Every node but the root."""
        waiting = self.root.children
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children)

    def _first_page(self, ids: Ids, ends: Ends, index: int, start: int) -> Hashable:
        """What the first page after ``start`` is called; None where the request has no whole page there."""
        stop = start + self.page
        if ends[index] >= stop:
            return ids[index]
        if ends[-1] < stop:
            return None
        last = bisect_left(ends, stop, index)
        return (ids[index : last + 1], ends[index:last], stop)


def _behind(node: Node, ids: Ids, ends: Ends, index: int, first: int) -> int:
    """The run of a request behind ``node``, whose runs from ``first`` on it has from ``index`` on; -1 where not."""
    after, depth = node.after, node.depth
    tail = after - (after > node.first and node.ends[after - 1] == depth)
    last = index + tail - first
    if (
        last >= len(ids)
        or ends[last] < depth
        or ids[last] != node.ids[tail]
        or (tail > first and (ids[index:last] != node.ids[first:tail] or ends[index:last] != node.ends[first:tail]))
    ):
        return -1
    return last + (ends[last] == depth)


def _agreement(child: Node, ids: Ids, ends: Ends, index: int) -> int:
    """Tokens on which a request agrees with ``child``, the path above included."""
    agreed, depth = 0, child.depth
    for own, name in enumerate(child.ids[child.first :], child.first):
        position = index + own - child.first
        if position == len(ids) or ids[position] != name:
            break
        end = min(child.ends[own], depth)
        agreed = min(end, ends[position])
        if end == depth or end != ends[position]:
            break
    return agreed or (child.parent.depth if child.parent is not None else 0)
