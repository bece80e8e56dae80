"""Which state was used longest ago? An order of use where no running request holds any, made for speed.

Each use puts a node at the end of a queue; what stands in it again further on, or gave up its state, is passed over
when it comes to the front. So nothing is ever moved or looked up.
"""

from collections import deque
from collections.abc import Iterator

from hybridcalc.reuse.tree import Node

SPARE = 2**16
"""Entries beyond twice the states that the queue may have before it is written anew."""


class Recency:
    """Nodes that hold a state, the least recently used first. ``Node.uses`` is how often one stands in the queue."""

    def __init__(self) -> None:
        self.queue: deque[Node] = deque()
        self.held = 0

    def __len__(self) -> int:
        return self.held

    def __iter__(self) -> Iterator[Node]:
        return reversed({node: None for node in reversed(self.queue) if node.state})

    def add(self, node: Node) -> int:
        """A node that holds a state from now on; how many do."""
        node.uses += 1
        self.queue.append(node)
        self.held = held = self.held + 1
        return held

    def move_to_end(self, node: Node) -> None:
        """Use the state of a node."""
        node.uses += 1
        queue = self.queue
        queue.append(node)
        if len(queue) > 2 * self.held + SPARE:
            kept = list(self)
            for old in queue:
                old.uses = 0
            for old in kept:
                old.uses = 1
            self.queue = deque(kept)

    def __delitem__(self, node: Node) -> None:
        self.held -= 1

    def pop_oldest(self) -> Node:
        """Let go of the node used longest ago."""
        popleft = self.queue.popleft
        while True:
            node = popleft()
            node.uses -= 1
            if not node.uses and node.state:
                self.held -= 1
                return node
