"""Turns AOTAutograd's metadata into a method's calling convention, as plain data.

The input is a partitioned joint graph. The output is the method's graphs in the bundle's calling
convention, with everything that the loader must do around them. What a bundle cannot express is
refused here. The parts build on each other in the order of a call: inputs, mutations, outputs,
backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem
from aotpack_loader.format import schema
from aotpack_loader.format.subclasses import leaf_sizes

from .. import _torch as compat
from .. import partition
from ..capture.containers import Containers
from ..capture.inputs.synthetic_bases import Arrangement
from ..capture.returned import Returned
from ..graph import source_line
from ..graph.expressions import bound, render, size_expression
from ..model import pytrees
from ..model.state import StoredTensors
from . import subclass_leaves
from .backward import Backward

NO_CONTAINERS = Containers()


@dataclass
class Convention:
    """The calling convention of a method: its document without the graphs' descriptors, and its two graphs."""

    forward: GraphModule
    backward: GraphModule | None
    method: Mapping[str, Any]
    saved: list[schema.Saved]
    tangents: list[schema.Tangent]
    gradients: list[int | None]
    depends: list[list[int]]
    subclasses: list[schema.Subclass | None]
    shape_env: compat.ShapeEnv | None
    saved_bytes: int
    written_in_checkpoints: list[str]


def assemble(
    joint: compat.Joint,
    returned: Returned,
    parts: partition.Partitioned,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stored: StoredTensors,
    arrangement: Arrangement,
    containers: Containers = NO_CONTAINERS,
) -> Convention:
    """Compute the calling convention of one method.

    ``args`` and ``kwargs`` are the user's, before any rearrangement.

    Raises:
        UnsupportedError: names every construct that a bundle cannot reproduce.
    """
    return _Assembler(joint, returned, parts, model, args, kwargs, stored, arrangement).run(containers)


class _Assembler(Backward):
    """Assembles the signature from all parts."""

    def run(self, containers: Containers) -> Convention:
        self._refuse_what_is_not_carried()
        self._raise_problems()
        tree, leaves = self._inputs()
        self._primals()
        self._lift_constants(self.parts.forward)
        self._bound = {s for leaf in leaves for s in self._symbols_in([*leaf_sizes(leaf)])}
        mutations = self._mutations()
        results = self._results()
        saved = self._saved()
        tangents = self._tangents(mutations)
        gradients, backward_outputs = self._gradients()
        depends = self._depends(backward_outputs)
        output_symbols = self._output_symbols()
        self._raise_problems()
        output_subclasses, gradient_subclasses = self._subclasses(self.outputs), self._subclasses(backward_outputs)
        partition.set_outputs(self.parts.forward, subclass_leaves.flat(self.outputs))
        sizes = subclass_leaves.keep_used_sizes(self.parts.forward.graph, self.sizes)
        self.parts.forward.recompile()
        if self.parts.backward is not None:
            partition.set_outputs(self.parts.backward, subclass_leaves.flat(backward_outputs))
        leaves = self._with_starts(leaves)
        self._raise_problems()
        out_tree, updates = self._nested(containers)
        method = {
            "inputs": tree,
            "leaves": leaves,
            "outputs": out_tree,
            "updates": updates,
            "results": results,
            "primals": self.primals,
            "num_outputs": len(self.outputs),
            "symbols": self._symbols(leaves),
            "constraints": self._constraints(),
            "mutations": mutations,
            "touched": self._touched(mutations),
            "output_symbols": output_symbols,
            "non_differentiable": self._non_differentiable(mutations, results),
            "subclasses": output_subclasses,
            "sizes": [size_expression(size.meta["val"], self.shape_env) for size in sizes],
        }
        return Convention(
            self.parts.forward,
            self.parts.backward,
            method,
            saved,
            tangents,
            gradients,
            depends,
            gradient_subclasses,
            self.shape_env,
            self._saved_bytes(),
            self._written_in_checkpoints(),
        )

    def _nested(self, containers: Containers) -> tuple[schema.Tree, list[schema.Update]]:
        """Return the tree of the model's result, and the updates of the caller's containers that it changes."""
        if not containers:
            return pytrees.describe(self.returned.spec, "result")[0], []
        result, changes = compat.tree_children(self.returned.spec)
        described = pytrees.describe(result, "result")[0], pytrees.describe(changes, "changed arguments")[0]
        return containers.trees(*described)

    def _subclasses(self, outputs: list[Node]) -> list[schema.Subclass | None]:
        """Return the subclass that each output of a graph becomes.

        Empty if no output is a subclass.
        """
        found = [subclass_leaves.describe(node, source_line(node) or node.name, self.shape_env) for node in outputs]
        return found if any(found) else []

    def _symbols(self, leaves: list[schema.InputLeaf]) -> list[schema.Symbol]:
        if self.shape_env is None:
            return []
        names = {dim for leaf in leaves for dim in leaf_sizes(leaf) if isinstance(dim, str)}
        env = self.shape_env
        symbols = []
        for symbol in sorted({s for name in names for s in compat.symbols_of(env, name)}, key=str):
            if str(symbol) not in names:
                self.problems.append(Problem(str(symbol), "a size that appears only inside an expression"))
                continue
            limits = env.var_to_range[symbol]
            symbols.append(schema.Symbol(str(symbol), bound(limits.lower) or 0, bound(limits.upper), compat.hint(env, symbol)))
        return symbols

    def _constraints(self) -> list[str]:
        if self.shape_env is None:
            return []
        found = [self.shape_env.simplify(guard.expr) for guard in self.shape_env.guards]
        return sorted({render(expr) for expr in found if not expr.is_Boolean or expr not in (True, False)} - {"True"})
