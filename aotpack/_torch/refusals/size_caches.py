"""Values that a model keeps for the sizes of its last call, such as grids and tables of positions::

    if self.grid is None or self.grid.shape[0] != x.shape[1]:
        self.grid = torch.linspace(0, 1, x.shape[1])

A graph computes such a value in each call. That is right if the model takes the kept value only at the sizes for which
it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.node import map_arg

from ... import origin
from ..api.shape_env import sources_of, value_near

NEAR: Final = (0, 1, -1)
"""The sizes of a call at which a kept value is looked at: the example's, and with each size one larger and one smaller."""


class Kept(NamedTuple):
    """A value that is computed from sizes alone: what it is at :data:`NEAR` sizes, the sources of these sizes, and the line."""

    values: Mapping[int, Any]
    sizes: frozenset[str]
    line: str


class _OtherError(Exception):
    """The value depends on more than sizes."""


def kept(variable: Any) -> Kept | None:
    """The value of a variable of Dynamo, if it is computed from sizes alone."""
    before = torch.get_rng_state()
    readers = {further: _Reader(further) for further in NEAR}
    try:
        with unset_fake_temporarily(), torch.no_grad():
            values = {further: reader.read(variable) for further, reader in readers.items()}
    except Exception:  # it depends on more, or there is none at sizes that are near
        return None
    finally:
        drew = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
    return None if drew else Kept(values, frozenset(readers[0].sizes), readers[0].line)


class _Reader:
    """Computes values of a graph at sizes that are larger by ``further`` than the example's."""

    def __init__(self, further: int) -> None:
        self.sizes = set[str]()
        self.line = ""
        self._further = further
        self._known: dict[Node, Any] = {}

    def read(self, variable: Any) -> Any:
        if variable.is_python_constant():
            return variable.as_python_constant()
        if isinstance(variable, SymNodeVariable):
            return self._number(variable.sym_num)
        if isinstance(variable, TensorVariable):
            node = variable.as_proxy().node
            self.line = origin.line_of_trace(node.meta.get("stack_trace") or "")
            return self._computed(node)
        if isinstance(variable, BaseListVariable):
            return variable.python_type()(map(self.read, variable.items))
        raise _OtherError

    def _computed(self, node: Node) -> Any:
        if node not in self._known:
            example = node.meta.get("example_value")
            if isinstance(example, (int, float, torch.SymInt)):
                self._known[node] = self._number(example)
            else:
                self._known[node] = self._called(node)
        return self._known[node]

    def _called(self, node: Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), self._computed)
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        raise _OtherError

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        self.sizes |= sources_of(value)
        return value_near(value, self._further)
