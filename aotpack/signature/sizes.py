"""Sizes that depend on data: which of them a call knows after the forward, and where it finds them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch.fx import Node

from aotpack_loader.format import expressions, schema
from aotpack_loader.format.subclasses import leaf_sizes

from .._torch.api import fake_tensors
from ..graph.expressions import bound, size_expression
from .forward_outputs import ForwardOutputs
from .partitioned import PartitionedMethod, tensor_of


class DataDependentSizes:
    """The sizes of a method that no argument determines.

    :meth:`is_known` is asked by all parts of a signature. :meth:`describe` comes last, and returns
    those sizes from the forward that were asked for.
    """

    def __init__(self, partitioned: PartitionedMethod, leaves: Sequence[schema.InputLeaf]) -> None:
        self._graph, self._shape_env = partitioned.parts.forward.graph, partitioned.shape_env
        self._bound = {symbol for leaf in leaves for symbol in _symbols_in([*leaf_sizes(leaf)])}
        self._needed: set[str] = set()

    def is_known(self, size: schema.Dim) -> bool:
        """Whether ``size`` can be computed after the forward, from the arguments' sizes or from data-dependent outputs."""
        unbound = _symbols_in([size]) - self._bound
        if not all(self._origin(name) for name in unbound):
            return False
        self._needed |= unbound
        return True

    def describe(self, outputs: ForwardOutputs) -> list[schema.OutputSymbol]:
        """Describe which outputs hold the data-dependent sizes.

        If a needed size is not a dimension of any output, the forward returns it. For a size that
        is not needed, the range is kept.
        """
        found: dict[str, tuple[int, int | None]] = {**self._sizes_of(outputs)}
        for name in sorted(self._needed - found.keys()):
            found[name] = self._returned_size(name, outputs), None
        return [
            schema.OutputSymbol(name, *found[name], *self._limits(name), needed=name in self._needed) for name in sorted(found)
        ]

    def _origin(self, name: str) -> tuple[Node, int | None] | None:
        """Return where the forward computes a data-dependent size: an integer node, or a tensor node and a dimension."""
        nodes = [node for node in self._graph.nodes if node.op == "call_function"]
        for node in nodes:
            if isinstance(node.meta.get("val"), torch.SymInt) and self._is_symbol(node.meta["val"], name):
                return node, None
        return next(((node, dim) for node in nodes if (dim := self._dimension(node, name)) is not None), None)

    def _dimension(self, node: Node, name: str) -> int | None:
        tensor = tensor_of(node)
        sizes = () if tensor is None else tensor.shape
        return next((dim for dim, size in enumerate(sizes) if self._is_symbol(size, name)), None)

    def _is_symbol(self, size: int | torch.SymInt, name: str) -> bool:
        return isinstance(size, torch.SymInt) and size_expression(size, self._shape_env) == name

    def _sizes_of(self, outputs: ForwardOutputs) -> dict[str, tuple[int, int]]:
        """Return the data-dependent sizes, each with the first output and dimension that have it."""
        found: dict[str, tuple[int, int]] = {}
        for i, node in enumerate(outputs.nodes):
            tensor = tensor_of(node)
            for dim, size in enumerate(() if tensor is None else tensor.shape):
                name = size_expression(size, self._shape_env)
                if isinstance(name, str) and expressions.is_symbol(name) and name not in self._bound:
                    found.setdefault(name, (i, dim))
        return found

    def _returned_size(self, name: str, outputs: ForwardOutputs) -> int:
        """Return the index of a forward output that is this size, and add that output if needed."""
        node, dim = self._origin(name)  # type: ignore[misc]
        if dim is not None:
            with self._graph.inserting_after(node):
                size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            size.meta["val"] = node.meta["val"].shape[dim]
            node = size
        return outputs.find_or_add(node)

    def _limits(self, name: str) -> tuple[int | None, int | None]:
        """Return the bounds of a data-dependent size that the trace knows."""
        assert self._shape_env is not None
        (symbol,) = fake_tensors.symbols_of(self._shape_env, name)
        limits = self._shape_env.var_to_range[symbol]
        least, most = bound(limits.lower), bound(limits.upper)
        return least, None if most is None or most >= sys.maxsize - 1 else most  # torch's value for "no bound"


def _symbols_in(sizes: Sequence[schema.Dim]) -> set[str]:
    """Return the names of the symbols in sizes."""
    return {name for size in sizes if isinstance(size, str) for name in expressions.symbols(size)}
