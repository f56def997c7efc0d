"""Notes which hooks and custom backwards write to the state of a model while its joint graph is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_INSIDE = "aotpack_writes_state"


@dataclass(frozen=True)
class Writer:
    """A hook or a custom backward.

    Autograd runs it if it has a gradient for one of ``tangents``, and wants that of one of ``primals``.
    """

    tangents: tuple[int, ...]
    primals: tuple[int, ...]


@dataclass
class BackwardWriters:
    """The writers of each primal, by the primal's index.

    ``count`` says how often a tensor was written to, for each plain tensor in it.
    """

    count: Callable[[torch.Tensor], list[int]]
    found: dict[int, list[Writer]] = field(default_factory=dict)
    _primals: Sequence[Any] = ()
    _outputs: Sequence[torch.Tensor] = ()

    def begin(self, primals: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
        """A backward from ``outputs`` begins."""
        self.found, self._primals, self._outputs = {}, primals, outputs

    @contextlib.contextmanager
    def watch(self, function: Any) -> Iterator[None]:
        """Note the writes in this block, in which autograd runs ``function``: a node, or the hook of a tensor."""
        state = [(i, x, self.count(x)) for i, x in enumerate(self._primals) if isinstance(x, torch.Tensor)]
        mode = get_proxy_mode()
        graph = None if mode is None else mode.tracer.graph
        last = None if graph is None else graph._root.prev
        yield
        written = [i for i, x, before in state if self.count(x) != before]
        if not written or graph is None or last is None:
            return
        writer = self._writer(function)
        for i in written:
            self.found.setdefault(i, []).append(writer)
        node = last.next
        while node is not graph._root:
            node.meta[_INSIDE] = True
            node = node.next

    def _writer(self, function: Any) -> Writer:
        node = torch.autograd.graph.get_gradient_edge(function).node if isinstance(function, torch.Tensor) else function
        after = _reached(node)
        primals = tuple(i for i, x in enumerate(self._primals) if _requires_grad(x) and _edge(x) in after)
        return Writer(tuple(i for i, x in enumerate(self._outputs) if node in _reached(_edge(x))), primals)


def runs_in_writer(node: Node) -> bool:
    """Whether a node of a joint graph was traced inside a hook or custom backward that writes to state."""
    return _INSIDE in node.meta


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _edge(tensor: torch.Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _reached(node: Any) -> set[Any]:
    """The nodes of autograd that run after ``node``, and itself."""
    seen, left = {node}, [node]
    while left:
        for following, _ in left.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                left.append(following)
    return seen
