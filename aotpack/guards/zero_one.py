"""Finds sizes of 0 and 1 at which the graphs differ from the model, by running both on fake tensors.

While tracing, torch answers "no" to whether a dynamic size is 0 or 1, and keeps no guard. So the
size may vary down to 0. But the model, or an operator in torch's C++, may do something else at
such a size, and the graphs do not.

Comparisons in the model's own Python are detected while it is traced
(``zero_sizes.guard_zero_comparisons``).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Interpreter, Node

from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format import expressions, schema
from aotpack_loader.format.subclasses import leaf_sizes

from .. import signature
from .._torch.api import fake_tensors, messages
from .._torch.api.torch_types import FakeTensorMode, StorageWeakRef, statically_known_true
from .._torch.tracing import fake_run
from .._torch.tracing.state_assignments import kept_state_changes
from ..capture.calls import Calls
from ..capture.dry_run import repeat
from ..capture.returned import result_leaves
from ..graph import source_line
from ..graph.expressions import size_expression

Sizes = Mapping[str, int]
"""Sizes by symbol."""


@dataclass(frozen=True)
class SizeGuard:
    """A size of 0 or 1 that the model accepts and the graphs do not.

    ``path`` names the argument in which the size first appears. For several sizes at once it names
    all paths.
    """

    path: str
    size: int
    constraint: str
    reason: str


def find_zero_one_guards(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], convention: signature.Convention
) -> Iterator[SizeGuard]:
    """Try each size of a method at 0 and at 1 with the others as in the example, then all sizes together.

    Sizes that the model itself rejects are ignored. So are sizes at which it cannot run on fake
    tensors.
    """
    method = convention.method
    symbols: Sequence[schema.Symbol] = method.symbols
    example = {symbol.name: symbol.hint for symbol in symbols if symbol.hint is not None}

    def tried(sizes: Sizes) -> SizeRun:
        size_run = SizeRun(convention, sizes)
        size_run.run(model, args, kwargs)
        return size_run

    @functools.cache
    def at_the_example() -> SizeRun:
        return tried(example)

    def differs(names: Collection[str], size: int) -> str:
        """Return how the graphs differ from the model if these sizes are ``size``, or an empty string."""
        if (sizes := example | dict.fromkeys(names, size)) == example:
            return ""
        size_run, usual = tried(sizes), at_the_example()
        new = [reason for kind, reason in size_run.differs.items() if kind not in usual.differs]
        return next(iter(new), "") or size_run.behavior_change(usual) or size_run.simplified

    def size_guard(names: Collection[str], size: int, reason: str) -> SizeGuard:
        paths = ", ".join(_path_of_size(name, method.leaves) for name in names)
        return SizeGuard(paths, size, "(" + " or ".join(f"{name} != {size}" for name in names) + ")", reason)

    constraints: list[str] = [*method.constraints]
    for symbol, size in itertools.product(symbols, (0, 1)):
        allowed = symbol.minimum <= size and satisfy(constraints, example | {symbol.name: size})
        if allowed and (reason := differs([symbol.name], size)):
            yield (found := size_guard([symbol.name], size, reason))
            constraints.append(found.constraint)
    for size in (0, 1):
        names = [symbol.name for symbol in symbols if symbol.minimum <= size]
        while len(several := _compatible_names(names, size, example, constraints)) > 1 and (reason := differs(several, size)):
            for name in several:
                fewer = [other for other in several if other != name]
                if len(fewer) > 1 and satisfy(constraints, example | dict.fromkeys(fewer, size)) and differs(fewer, size):
                    several = fewer
            yield (found := size_guard(several, size, reason))
            constraints.append(found.constraint)


def satisfy(constraints: Sequence[str], sizes: Sizes) -> bool:
    """Whether sizes meet all constraints."""
    return all(_holds(text, sizes) for text in constraints)


def _compatible_names(names: Sequence[str], size: int, example: dict[str, int], constraints: Sequence[str]) -> list[str]:
    """Return those names that may be ``size`` at the same time without breaking a constraint."""
    if satisfy(constraints, example | dict.fromkeys(names, size)):
        return [*names]
    found = list[str]()
    for name in names:
        if satisfy(constraints, example | dict.fromkeys([*found, name], size)):
            found.append(name)
    return found


_COPIES = {torch.ops.aten.clone.default, torch.ops.aten._unsafe_view.default}


def _has_memory(value: Any) -> bool:
    """Whether a value is a plain strided tensor, with a single storage."""
    return isinstance(value, torch.Tensor) and fake_tensors.is_plain_tensor(value) and value.layout == torch.strided


def _steps(tensor: torch.Tensor) -> list[int]:
    """Return the strides of dimensions with more than one element.

    The other strides have no effect.
    """
    return [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1] if tensor.numel() else []


def _holds(constraint: str, sizes: Sizes) -> bool:
    try:
        return not expressions.symbols(constraint) <= sizes.keys() or bool(expressions.evaluate(constraint, sizes))
    except CorruptBundleError:  # the constraint divides by this size, so a call is refused
        return False


def _path_of_size(symbol: str, leaves: Sequence[schema.InputLeaf]) -> str:
    """Return the path of the first argument whose sizes contain the symbol."""
    for leaf in leaves:
        if isinstance(leaf, schema.TensorLeaf) and symbol in leaf.shape:
            return f"{leaf.path}.shape[{leaf.shape.index(symbol)}]"
        if symbol in [*leaf_sizes(leaf)]:
            return leaf.path
    return symbol


@dataclass
class SizeRun:
    """The model and its graphs at chosen sizes, on fake tensors.

    Attributes:
        ran: whether the model accepts the sizes and can be run on fake tensors.
        operators: the operators that the model calls, without views and copies. Tensors with
            contiguous strides or few elements may not need these.
        empty: whether no result has elements. Then it does not matter which operators compute it.
        marks: the arguments whose version counters the model moves, and which results require a
            gradient.
        differs: how the graphs differ from the model, by kind: fails, sizes, layout, gradients,
            memory.
        simplified: how compiled code differs from the graphs, or an empty string.
        strict: whether sizes other than the graphs say, and output strides, count as
            ``simplified`` too.
    """

    convention: signature.Convention
    sizes: Sizes
    strict: bool = False
    mode: FakeTensorMode = field(default_factory=fake_tensors.fake_mode_with_shapes)
    ran: bool = False
    operators: list[torch._ops.OpOverload] = field(default_factory=list)
    empty: bool = False
    marks: tuple[frozenset[int], list[bool]] = (frozenset(), [])
    differs: dict[str, str] = field(default_factory=dict)
    simplified: str = ""

    def run(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model and its graphs, and record how they differ."""
        with messages.quiet_torch_logs():
            self.differs = self._difference(model, args, kwargs)

    def calls(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], watch: Calls) -> bool:
        """Run the model and record its calls in ``watch``. Return False if it does not run."""
        try:
            with messages.quiet_torch_logs(), repeat.unchanged(model), kept_state_changes(model):
                watch.returned(fake_run.run_on_fake_tensors(self.mode, model, *self._arguments(args, kwargs), watch=watch).result)
        except Exception as error:  # the model takes no such size, or it depends on data
            repeat.refuse_if_broken(error)
            return False
        return True

    def behavior_change(self, other: SizeRun) -> str:
        """Return how the model itself does something else than at the sizes of ``other``, or an empty string."""
        if not (self.ran and other.ran):
            return ""
        if self.marks != other.marks:
            return "the model writes to other arguments than at the example's sizes, or other results require gradients"
        if self.empty or 0 not in self.sizes.values():  # torch keeps guards for size 1
            return ""
        for own, others in itertools.zip_longest(self.operators, other.operators):
            if own != others:
                return f"the model calls {own or 'no operator'}; at the example's sizes it calls {others or 'no operator'}"
        return ""

    def _difference(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
        run = self._fake_run(model, args, kwargs)
        graphs = [half for half in (self.convention.forward, self.convention.backward) if half is not None]
        problem, outputs = "", list[Sequence[Any]]()
        try:
            for half, inputs in [(half, self._inputs(half)) for half in graphs]:
                found, problem = self._run(half, inputs)
                outputs.append(found)
                if problem:
                    break
        except CorruptBundleError:  # sizes that depend on data
            self.ran = False
            return {}
        except RuntimeError as error:
            problem = f"a saved tensor cannot have these sizes: {error}"
        if run is None or problem:
            return {"fails": problem} if run is not None else {}
        kinds = {
            "sizes": self._other_sizes(outputs[0], run.result),
            "layout": self._other_layout(outputs[0], run.result),
            "gradients": self._other_gradients(*outputs[1:]),
            "memory": self._other_memory(run),
        }
        return {kind: reason for kind, reason in kinds.items() if reason}

    def _fake_run(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fake_run.FakeRun | None:
        called = list[fake_run.OperatorCall]()
        try:
            with repeat.unchanged(model), kept_state_changes(model):
                run = fake_run.run_on_fake_tensors(self.mode, model, *self._arguments(args, kwargs), operators=called)
            if self.convention.backward is not None:
                self._run_backward(run.result)
        except Exception as error:  # the model takes no such size, or it depends on data
            repeat.refuse_if_broken(error)
            return None
        self.ran = True
        results = [x for x in pytree.tree_leaves(run.result) if isinstance(x, torch.Tensor)]
        self.empty = all(statically_known_true(result.numel() == 0) for result in results)
        self.marks = (run.touched.leaves, [result.requires_grad for result in results])
        self.operators = [one.operator for one in called if one.operator not in _COPIES]
        return run

    def _other_memory(self, run: fake_run.FakeRun) -> str:
        """Return how a result shares an argument's storage differently than at the example's sizes, or an empty string."""
        method = self.convention.method
        owners = {StorageWeakRef(x.untyped_storage()): i for i, x in run.leaves.items() if _has_memory(x)}
        for i, (result, described) in enumerate(zip(result_leaves(run.result), method.results, strict=False)):
            owner = owners.get(StorageWeakRef(result.untyped_storage())) if _has_memory(result) else None
            if owner is None or isinstance(described, schema.InputResult):
                continue
            path = method.leaves[owner].path
            if isinstance(described, schema.FreshResult):
                return f"result {i} shares the memory of {path}; at the example's sizes it does not"
            if result is run.leaves[owner]:
                return f"result {i} is {path} itself; at the example's sizes it is a view of it"
        return ""

    def _other_sizes(self, outputs: Sequence[Any], result: Any) -> str:
        for i, found, expected in self._fresh(outputs, result):
            if found.shape != expected.shape:
                return f"result {i} has the sizes {[*found.shape]}, expected {[*expected.shape]}"
        return ""

    def _other_layout(self, outputs: Sequence[Any], result: Any) -> str:
        for i, found, expected in self._fresh(outputs, result):
            if found.shape == expected.shape and _steps(found) != _steps(expected):
                return f"result {i} has the strides {_steps(found)}, expected {_steps(expected)}"
        return ""

    def _fresh(self, outputs: Sequence[Any], result: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield computed results of the graph and of the model, if their sizes do not depend on data."""
        method = self.convention.method
        if method.subclasses:
            return
        for i, (expected, described) in enumerate(zip(pytree.tree_leaves(result), method.results, strict=False)):
            found = outputs[described.output] if isinstance(described, schema.FreshResult) else None
            if found is not None and not any(isinstance(size, torch.SymInt) for size in (*found.shape, *expected.shape)):
                yield i, found, expected

    def _other_gradients(self, outputs: Sequence[Any] = ()) -> str:
        backward = self.convention.method.backward
        if not outputs or backward is None or self.convention.method.subclasses or backward.subclasses:
            return ""
        for primal, gradient in zip(self._inputs(self.convention.forward), backward.gradients, strict=False):
            if gradient is not None and outputs[gradient].shape != primal.shape:
                return f"the gradient of a tensor of the sizes {[*primal.shape]} has the sizes {[*outputs[gradient].shape]}"
        return ""

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the example with other sizes.

        A tensor that is two arguments at once stays one tensor.
        """
        flat, spec = pytree.tree_flatten((args, kwargs))
        made: dict[int, Any] = {}
        for value, leaf in zip(flat, self.convention.method.leaves, strict=True):
            if any(isinstance(size, str) for size in leaf_sizes(leaf)):
                made.setdefault(id(value), self._argument(value, leaf))
        example: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten([made.get(id(x), x) for x in flat], spec)
        return example

    def _argument(self, value: Any, leaf: schema.InputLeaf) -> Any:
        if isinstance(leaf, schema.IntegerLeaf):
            return self.sizes[leaf.size]
        if not isinstance(leaf, schema.TensorLeaf) or leaf.subclass is not None or leaf.stride is None:
            raise ValueError(f"{leaf.path}: not a plain tensor")
        shape = [expressions.evaluate(size, self.sizes) for size in leaf.shape]
        stride = [expressions.evaluate(step, self.sizes) for step in leaf.stride]
        with self.mode, torch.enable_grad():
            made = torch.empty_strided(shape, stride, dtype=value.dtype).requires_grad_(value.requires_grad)
            return made if value.is_leaf else made.clone()

    def _inputs(self, half: GraphModule) -> list[Any]:
        """Return the inputs of a graph at the chosen sizes.

        Raises:
            CorruptBundleError: a size depends on data.
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

    def _run_backward(self, result: Any) -> None:
        heads = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        if heads:
            with self.mode:
                torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])

    def _compare_number(self, node: Node, value: Any) -> None:
        """Record a number computed from sizes that differs from torch's expression, simplified for positive sizes."""
        described = node.meta.get("val")
        if self.strict and isinstance(described, torch.Tensor) and isinstance(value, torch.Tensor):
            self._compare_sizes(node, described, value)
        if self.simplified or not isinstance(described, torch.SymInt) or not isinstance(value, int):
            return
        size = size_expression(described, self.convention.shape_env)
        if isinstance(size, str) and not expressions.symbols(size) <= self.sizes.keys():
            return  # the size depends on data
        if (simplified := expressions.evaluate(size, self.sizes)) != value:
            self.simplified = f"{node.target} of sizes is {value}, but torch simplified it to {simplified}"

    def _compare_sizes(self, node: Node, described: torch.Tensor, value: torch.Tensor) -> None:
        """Record a tensor whose sizes differ from those in the graph.

        Compare the strides of the graph's outputs too.
        """
        is_output = any(user.op == "output" for user in node.users)
        for kind, declared, found in (("sizes", described.shape, value.shape), ("strides", described.stride(), value.stride())):
            expected = [size_expression(size, self.convention.shape_env) for size in declared]
            known = all(isinstance(size, int) or expressions.symbols(size) <= self.sizes.keys() for size in expected)
            if known and (kind == "sizes" or is_output) and not self.simplified:
                values = [expressions.evaluate(size, self.sizes) for size in expected]
                compared = range(value.dim()) if kind == "sizes" else [i for i, n in enumerate(value.shape) if n != 1]
                if any(values[i] != found[i] for i in compared):  # the stride of a dimension of size 1 has no effect
                    self.simplified = f"{node.target} has the {kind} {[*found]}, the graph says {values}"

    def _run(self, half: GraphModule, inputs: Sequence[Any]) -> tuple[Sequence[Any], str]:
        """Run a graph. Return its outputs and the reason why it failed, or an empty string."""
        runner = _Runner(half, self._compare_number)
        try:
            with self.mode, torch.no_grad():
                return runner.run(*inputs), ""
        except Exception as error:
            where = "" if runner.node is None else source_line(runner.node)
            message = next(iter(str(error).strip().splitlines()), "")
            return (), f"{type(error).__name__}: {message}" + (f" [at {where}]" if where else "")


class _Runner(Interpreter):
    """Runs a graph, remembers the current node, and passes each value to ``look``."""

    def __init__(self, graph: GraphModule, look: Callable[[Node, Any], None]) -> None:
        super().__init__(graph)
        self.node: Node | None = None
        self._compare_number = look

    def run_node(self, node: Node) -> Any:
        self.node = node
        value = super().run_node(node)
        self._compare_number(node, value)
        return value
