"""Sizes of 0 and 1, tried: torch answers while it traces whether a size that varies is one of them with no, and keeps no guard.

So a size may vary down to 0. But where the model, or an operator in torch's own C++, goes another way for such a size, the graphs
do not. What was traced is therefore run at these sizes on fake tensors, beside the model itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Interpreter, Node

from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format import expressions, schema
from aotpack_loader.format.subclasses import leaf_sizes

from . import _torch_compat as compat
from . import signature
from .capture import rehearsals
from .graph import source_line
from .graph.expressions import size_expression

Sizes = Mapping[str, int]
"""Sizes by symbol."""


@dataclass(frozen=True)
class Edge:
    """A size of 0 or 1 that the model takes and what was traced does not, first found at ``path``."""

    path: str
    size: int
    constraint: str
    reason: str


def refused(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], convention: signature.Convention
) -> Iterator[Edge]:
    """Try each size of a method at 0 and at 1, the others as in the example.

    What the model itself refuses there is no matter; neither is what cannot be run on fake tensors.
    """
    method = convention.method
    symbols: Sequence[schema.Symbol] = method["symbols"]
    example = {symbol.name: symbol.hint for symbol in symbols if symbol.hint is not None}

    @functools.cache
    def differs_anyway() -> bool:
        return bool(_Trial(convention, example).difference(model, args, kwargs))

    for symbol, size in itertools.product(symbols, (0, 1)):
        sizes = example | {symbol.name: size}
        if size < symbol.minimum or sizes == example or not all(_holds(text, sizes) for text in method["constraints"]):
            continue
        trial = _Trial(convention, sizes)
        if (reason := trial.difference(model, args, kwargs)) and not differs_anyway():
            yield Edge(_place(symbol.name, method["leaves"]), size, f"({symbol.name} != {size})", reason)


def _holds(constraint: str, sizes: Sizes) -> bool:
    try:
        return not expressions.symbols(constraint) <= sizes.keys() or bool(expressions.evaluate(constraint, sizes))
    except CorruptBundleError:  # it divides by such a size: a call is refused
        return False


def _place(symbol: str, leaves: Sequence[schema.InputLeaf]) -> str:
    """Where a symbol is first found among the arguments."""
    for leaf in leaves:
        if isinstance(leaf, schema.TensorLeaf) and symbol in leaf.shape:
            return f"{leaf.path}.shape[{leaf.shape.index(symbol)}]"
        if symbol in [*leaf_sizes(leaf)]:
            return leaf.path
    return symbol


@dataclass(frozen=True)
class _Trial:
    """The model and its graphs at chosen sizes, on fake tensors."""

    convention: signature.Convention
    sizes: Sizes
    mode: compat.FakeTensorMode = field(default_factory=compat.fake_mode_with_shapes)

    def difference(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What the graphs do otherwise than the model, or nothing."""
        with compat.quiet_fake_tensors():
            return self._difference(model, args, kwargs)

    def _difference(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        backward = self.convention.backward
        try:
            with rehearsals.unchanged(model), compat.kept_state_changes():
                result = compat.rehearse(self.mode, model, *self._arguments(args, kwargs)).result
            if backward is not None:
                self._send_back(result)
            inputs = [self._inputs(half) for half in (self.convention.forward, backward) if half is not None]
        except Exception:  # the model takes no such size, or nobody can tell on fake tensors
            return ""
        outputs, problem = self._run(self.convention.forward, inputs[0])
        if backward is not None and not problem:
            problem = self._run(backward, inputs[1])[1]
        return problem or self._other_shapes(outputs, result)

    def _other_shapes(self, outputs: Sequence[Any], result: Any) -> str:
        method = self.convention.method
        if method["subclasses"]:
            return ""
        for i, (leaf, described) in enumerate(zip(pytree.tree_leaves(result), method["results"], strict=False)):
            if not isinstance(described, schema.FreshResult):
                continue
            found, expected = [*outputs[described.output].shape], [*leaf.shape]
            depends_on_data = any(isinstance(size, torch.SymInt) for size in (*found, *expected))
            if not depends_on_data and found != expected:
                return f"result {i} has the sizes {found}, and should have {expected}"
        return ""

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example with other sizes; one tensor in two places stays one."""
        flat, spec = pytree.tree_flatten((args, kwargs))
        made: dict[int, Any] = {}
        for value, leaf in zip(flat, self.convention.method["leaves"], strict=True):
            if any(isinstance(size, str) for size in leaf_sizes(leaf)):
                made.setdefault(id(value), self._argument(value, leaf))
        given: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten([made.get(id(x), x) for x in flat], spec)
        return given

    def _argument(self, value: Any, leaf: schema.InputLeaf) -> Any:
        if isinstance(leaf, schema.IntegerLeaf):
            return self.sizes[leaf.size]
        if not isinstance(leaf, schema.TensorLeaf) or leaf.subclass is not None or leaf.stride is None:
            raise ValueError(f"{leaf.path}: no plain tensor")
        shape = [expressions.evaluate(size, self.sizes) for size in leaf.shape]
        stride = [expressions.evaluate(step, self.sizes) for step in leaf.stride]
        with self.mode, torch.enable_grad():
            made = torch.empty_strided(shape, stride, dtype=value.dtype).requires_grad_(value.requires_grad)
            return made if value.is_leaf else made.clone()

    def _inputs(self, half: GraphModule) -> list[Any]:
        """What a graph is given.

        Raises:
            CorruptBundleError: sizes that depend on data.
        """
        return [self._value(node.meta["val"]) for node in half.graph.find_nodes(op="placeholder")]

    def _value(self, value: Any) -> Any:
        def at(size: int | torch.SymInt) -> int:
            return expressions.evaluate(size_expression(size, self.convention.shape_env), self.sizes)

        if not isinstance(value, torch.Tensor):
            return at(value)
        shape, stride = [[at(size) for size in of] for of in (value.shape, value.stride())]
        with self.mode:
            return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)

    def _send_back(self, result: Any) -> None:
        heads = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        if heads:
            with self.mode:
                torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])

    def _run(self, half: GraphModule, inputs: Sequence[Any]) -> tuple[Sequence[Any], str]:
        """What a graph gives, and why it cannot."""
        runner = _Runner(half)
        try:
            with self.mode, torch.no_grad():
                return runner.run(*inputs), ""
        except Exception as error:
            where = "" if runner.node is None else source_line(runner.node)
            message = next(iter(str(error).strip().splitlines()), "")
            return (), f"{type(error).__name__}: {message}" + (f" [at {where}]" if where else "")


class _Runner(Interpreter):
    """Runs a graph, and knows where it is."""

    node: Node | None = None

    def run_node(self, node: Node) -> Any:
        self.node = node
        return super().run_node(node)
