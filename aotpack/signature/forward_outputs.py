"""The outputs of the forward graph, in order: mutated values, results, bases of views, saved tensors, sizes."""

from __future__ import annotations

from torch.fx import Node


class ForwardOutputs:
    """Collects the outputs of the forward graph."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, node: Node) -> int:
        """Add an output, even if ``node`` is one already, and return its position."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def find_or_add(self, node: Node) -> int:
        """Return the first position of ``node``. It is added if it is no output yet."""
        return self.nodes.index(node) if node in self.nodes else self.add(node)
