"""The state that the parts of a method's signature share: graphs, primals and outputs so far, and problems found."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.fx import Node

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import expressions, schema

from .. import _torch as compat
from .. import partition
from ..capture.inputs.synthetic_bases import Arrangement
from ..capture.returned import Returned
from ..graph.expressions import bound, size_expression
from ..model.state import StoredTensors
from . import subclass_leaves


class Context:
    """The state of one assembly.

    ``primals`` and ``primal_nodes`` correspond one to one. ``outputs`` are the forward's, in
    order.
    """

    def __init__(
        self,
        joint: compat.Joint,
        returned: Returned,
        parts: partition.Partitioned,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stored: StoredTensors,
        arrangement: Arrangement,
    ) -> None:
        self.arrangement = arrangement
        folded = subclass_leaves.fold(joint, parts)
        self.joint = joint = folded.joint
        self.parts = parts = folded.parts
        self.tangents, self.sizes = folded.tangents, folded.sizes
        self.model, self.stored = model, stored
        self.returned = returned
        self.args, self.kwargs = args, kwargs
        self.metadata = joint.metadata
        self.shape_env = joint.shape_env
        self.primal_nodes = list(parts.primals)
        self._raw_primal_nodes = list(self.primal_nodes)
        self.primals: list[schema.Primal] = []
        self.outputs: list[Node] = []
        self.problems: list[Problem] = []
        self._dropped: list[int] = []
        self._leaf_paths: list[str] = []
        self._bound: set[str] = set()
        self._wanted: set[str] = set()

    def _raise_problems(self) -> None:
        if self.problems:
            raise UnsupportedError("The model does something that a bundle cannot keep true.", self.problems)

    def _output(self, node: Node, *, fresh: bool) -> int:
        """Add ``node`` to the graph's outputs and return its position.

        Without ``fresh``, an existing position is reused.
        """
        if not fresh and node in self.outputs:
            return self.outputs.index(node)
        self.outputs.append(node)
        return len(self.outputs) - 1

    def _primal_index(self, index: int) -> int:
        """Return the position of AOTAutograd's input ``index`` among the kept primals."""
        return index - sum(dropped < index for dropped in self._dropped)

    def _primal_path(self, index: int) -> str:
        descriptor = self.joint.primal_descriptors[index]
        if isinstance(descriptor, compat.desc.PlainAOTInput) and descriptor.idx >= len(self.arrangement.bases):
            return self._leaf_paths[descriptor.idx - len(self.arrangement.bases)]
        return str(getattr(descriptor, "target", None) or f"input {index}")

    def _copied(self, node: Node) -> Node:
        """Return a copy of ``node``, inserted right after its value is computed."""
        parts = subclass_leaves.plain(node)
        if parts != (node,):
            return subclass_leaves.folded_like(node, [self._copied(part) for part in parts])
        graph = self.parts.forward.graph
        anchor = node if node.op != "placeholder" else self.primal_nodes[-1]
        with graph.inserting_after(anchor):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta["val"] = node.meta["val"].clone()  # the copy is dense even if the tensor has gaps
        return copy

    def _is_known(self, size: schema.Dim) -> bool:
        """Whether ``size`` can be computed after the forward, from the arguments' sizes or from data-dependent outputs."""
        unbound = self._symbols_in([size]) - self._bound
        if not all(self._origin(name) for name in unbound):
            return False
        self._wanted |= unbound
        return True

    def _origin(self, name: str) -> tuple[Node, int | None] | None:
        """Return where the forward computes a data-dependent size: an integer node, or a tensor node and a dimension."""
        nodes = [node for node in self.parts.forward.graph.nodes if node.op == "call_function"]
        for node in nodes:
            if isinstance(node.meta.get("val"), torch.SymInt) and self._is_symbol(node.meta["val"], name):
                return node, None
        return next(((node, dim) for node in nodes if (dim := self._dimension(node, name)) is not None), None)

    def _dimension(self, node: Node, name: str) -> int | None:
        tensor = tensor_of(node)
        sizes = () if tensor is None else tensor.shape
        return next((dim for dim, size in enumerate(sizes) if self._is_symbol(size, name)), None)

    def _is_symbol(self, size: int | torch.SymInt, name: str) -> bool:
        return isinstance(size, torch.SymInt) and size_expression(size, self.shape_env) == name

    def _output_symbols(self) -> list[schema.OutputSymbol]:
        """Describe which outputs hold the data-dependent sizes.

        Called after all other outputs are known. If a needed size is not a dimension of any
        output, the forward returns it. For a size that is not needed, the range is kept.
        """
        places: dict[str, tuple[int, int | None]] = {**self._sizes_of_outputs()}
        for name in sorted(self._wanted - places.keys()):
            places[name] = self._returned_size(name), None
        return [
            schema.OutputSymbol(name, *places[name], *self._limits(name), needed=name in self._wanted) for name in sorted(places)
        ]

    def _sizes_of_outputs(self) -> dict[str, tuple[int, int]]:
        """Return the sizes that no argument determines, each with the first output and dimension that have it."""
        found: dict[str, tuple[int, int]] = {}
        for i, node in enumerate(self.outputs):
            tensor = tensor_of(node)
            for dim, size in enumerate(() if tensor is None else tensor.shape):
                name = size_expression(size, self.shape_env)
                if isinstance(name, str) and expressions.is_symbol(name) and name not in self._bound:
                    found.setdefault(name, (i, dim))
        return found

    def _returned_size(self, name: str) -> int:
        """Return the index of a forward output that is this size, and add that output if needed."""
        node, dim = self._origin(name)  # type: ignore[misc]
        if dim is not None:
            graph = self.parts.forward.graph
            with graph.inserting_after(node):
                size = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            size.meta["val"] = node.meta["val"].shape[dim]
            node = size
        return self._output(node, fresh=False)

    def _limits(self, name: str) -> tuple[int | None, int | None]:
        """Return the bounds of a data-dependent size that the trace knows."""
        assert self.shape_env is not None
        (symbol,) = compat.symbols_of(self.shape_env, name)
        limits = self.shape_env.var_to_range[symbol]
        least, most = bound(limits.lower), bound(limits.upper)
        return least, None if most is None or most >= sys.maxsize - 1 else most  # torch's value for "no bound"

    def _symbols_in(self, sizes: list[schema.Dim]) -> set[str]:
        """Return the names of the symbols in sizes."""
        return {name for size in sizes if isinstance(size, str) for name in expressions.symbols(size)}


def tensor_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None
