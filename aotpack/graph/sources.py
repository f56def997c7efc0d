"""What values of a graph are computed from."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node


def computed_from(values: Iterable[object]) -> set[Node]:
    """The nodes among ``values``, and all nodes that these are computed from."""
    found: set[Node] = set()
    waiting = [value for value in values if isinstance(value, Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
