"""Sizes of 0 and 1, tried: torch answers while it traces whether a size that varies is one of them with no, and keeps no guard.

So a size may vary down to 0. But where the model, or an operator in torch's own C++, goes another way for such a size, the graphs
do not. What was traced is therefore run at these sizes on fake tensors, beside the model itself.

Comparisons in the model's own Python are seen while it is traced (``zero_sizes.questions_about_zero``).
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

from .. import _torch as compat
from .. import signature
from ..capture.calls import Calls
from ..capture.dry_run import repeat
from ..capture.returned import result_leaves
from ..graph import source_line
from ..graph.expressions import size_expression

Sizes = Mapping[str, int]
"""Sizes by symbol."""


@dataclass(frozen=True)
class SizeGuard:
    """A size of 0 or 1 that the model takes and what was traced does not, first found at ``path`` (or several, at once)."""

    path: str
    size: int
    constraint: str
    reason: str


def find_zero_one_guards(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], convention: signature.Convention
) -> Iterator[SizeGuard]:
    """Try each size of a method at 0 and at 1, the others as in the example, then all together.

    What the model itself refuses there is no matter; neither is what cannot be run on fake tensors.
    """
    method = convention.method
    symbols: Sequence[schema.Symbol] = method["symbols"]
    example = {symbol.name: symbol.hint for symbol in symbols if symbol.hint is not None}

    def tried(sizes: Sizes) -> SizeRun:
        trial = SizeRun(convention, sizes)
        trial.run(model, args, kwargs)
        return trial

    @functools.cache
    def at_the_example() -> SizeRun:
        return tried(example)

    def differs(names: Collection[str], size: int) -> str:
        """How the graphs fail the model where these sizes are ``size``, or nothing."""
        if (sizes := example | dict.fromkeys(names, size)) == example:
            return ""
        trial, usual = tried(sizes), at_the_example()
        new = [reason for kind, reason in trial.differs.items() if kind not in usual.differs]
        return next(iter(new), "") or trial.another_way(usual) or trial.simplified

    def edge(names: Collection[str], size: int, reason: str) -> SizeGuard:
        paths = ", ".join(_path_of_size(name, method["leaves"]) for name in names)
        return SizeGuard(paths, size, "(" + " or ".join(f"{name} != {size}" for name in names) + ")", reason)

    constraints: list[str] = [*method["constraints"]]
    for symbol, size in itertools.product(symbols, (0, 1)):
        allowed = symbol.minimum <= size and take(constraints, example | {symbol.name: size})
        if allowed and (reason := differs([symbol.name], size)):
            yield (found := edge([symbol.name], size, reason))
            constraints.append(found.constraint)
    for size in (0, 1):
        names = [symbol.name for symbol in symbols if symbol.minimum <= size]
        while len(several := _together(names, size, example, constraints)) > 1 and (reason := differs(several, size)):
            for name in several:
                fewer = [other for other in several if other != name]
                if len(fewer) > 1 and take(constraints, example | dict.fromkeys(fewer, size)) and differs(fewer, size):
                    several = fewer
            yield (found := edge(several, size, reason))
            constraints.append(found.constraint)


def take(constraints: Sequence[str], sizes: Sizes) -> bool:
    """Whether sizes meet all constraints."""
    return all(_holds(text, sizes) for text in constraints)


def _together(names: Sequence[str], size: int, example: dict[str, int], constraints: Sequence[str]) -> list[str]:
    """Those that may be ``size`` at once, as far as the constraints let them."""
    if take(constraints, example | dict.fromkeys(names, size)):
        return [*names]
    found = list[str]()
    for name in names:
        if take(constraints, example | dict.fromkeys([*found, name], size)):
            found.append(name)
    return found


_COPIES = {torch.ops.aten.clone.default, torch.ops.aten._unsafe_view.default}


def _has_memory(value: Any) -> bool:
    """Whether it is a tensor, in memory of one piece."""
    return isinstance(value, torch.Tensor) and compat.is_plain_tensor(value) and value.layout == torch.strided


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides that mean something."""
    return [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1] if tensor.numel() else []


def _holds(constraint: str, sizes: Sizes) -> bool:
    try:
        return not expressions.symbols(constraint) <= sizes.keys() or bool(expressions.evaluate(constraint, sizes))
    except CorruptBundleError:  # it divides by such a size: a call is refused
        return False


def _path_of_size(symbol: str, leaves: Sequence[schema.InputLeaf]) -> str:
    """Where a symbol is first found among the arguments."""
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
        ran: whether the model takes the sizes, and can be run on fake tensors.
        operators: what the model calls, but for views and copies, which contiguous tensors or ones of few elements need not.
        empty: whether no result has elements, so that it is no matter how the model finds them.
        marks: which arguments' version counters the model moves, and which results require a gradient.
        differs: what the graphs do otherwise than the model, by kind: fails, sizes, layout, gradients, memory.
        simplified: what compiled code computes otherwise than the graphs, or nothing.
        strict: whether tensors of other sizes than the graphs say, and outputs of other strides, count as that.
    """

    convention: signature.Convention
    sizes: Sizes
    strict: bool = False
    mode: compat.FakeTensorMode = field(default_factory=compat.fake_mode_with_shapes)
    ran: bool = False
    operators: list[torch._ops.OpOverload] = field(default_factory=list)
    empty: bool = False
    marks: tuple[frozenset[int], list[bool]] = (frozenset(), [])
    differs: dict[str, str] = field(default_factory=dict)
    simplified: str = ""

    def run(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run both."""
        with compat.quiet_torch_logs():
            self.differs = self._difference(model, args, kwargs)

    def calls(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], watch: Calls) -> bool:
        """Run the model, and note in ``watch`` what it calls; false where it does not run."""
        try:
            with compat.quiet_torch_logs(), repeat.unchanged(model), compat.kept_state_changes():
                watch.returned(compat.run_on_fake_tensors(self.mode, model, *self._arguments(args, kwargs), watch=watch).result)
        except Exception as error:  # the model takes no such size, or it depends on data
            repeat.refuse_if_broken(error)
            return False
        return True

    def another_way(self, other: SizeRun) -> str:
        """How the model itself goes another way than at the sizes of the ``other`` trial, or nothing."""
        if not (self.ran and other.ran):
            return ""
        if self.marks != other.marks:
            return "the model writes to other arguments, or other results require gradients, than at the example's sizes"
        if self.empty or 0 not in self.sizes.values():  # of 1 torch leaves guards
            return ""
        for own, others in itertools.zip_longest(self.operators, other.operators):
            if own != others:
                return f"the model calls {own or 'nothing'} where it calls {others or 'nothing'} at the example's sizes"
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
            problem = f"what is saved for the backward has no such size: {error}"
        if run is None or problem:
            return {"fails": problem} if run is not None else {}
        kinds = {
            "sizes": self._other_sizes(outputs[0], run.result),
            "layout": self._other_layout(outputs[0], run.result),
            "gradients": self._other_gradients(*outputs[1:]),
            "memory": self._other_memory(run),
        }
        return {kind: reason for kind, reason in kinds.items() if reason}

    def _fake_run(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> compat.FakeRun | None:
        called = list[compat.OperatorCall]()
        try:
            with repeat.unchanged(model), compat.kept_state_changes():
                run = compat.run_on_fake_tensors(self.mode, model, *self._arguments(args, kwargs), operators=called)
            if self.convention.backward is not None:
                self._send_back(run.result)
        except Exception as error:  # the model takes no such size, or it depends on data
            repeat.refuse_if_broken(error)
            return None
        self.ran = True
        results = [x for x in pytree.tree_leaves(run.result) if isinstance(x, torch.Tensor)]
        self.empty = all(compat.statically_known_true(result.numel() == 0) for result in results)
        self.marks = (run.touched.leaves, [result.requires_grad for result in results])
        self.operators = [one.operator for one in called if one.operator not in _COPIES]
        return run

    def _other_memory(self, run: compat.FakeRun) -> str:
        """What the model returns in an argument's memory, and the graphs in memory of its own."""
        method = self.convention.method
        owners = {compat.StorageWeakRef(x.untyped_storage()): i for i, x in run.leaves.items() if _has_memory(x)}
        for i, (result, described) in enumerate(zip(result_leaves(run.result), method["results"], strict=False)):
            owner = owners.get(compat.StorageWeakRef(result.untyped_storage())) if _has_memory(result) else None
            if owner is None or isinstance(described, schema.InputResult):
                continue
            path = method["leaves"][owner].path
            if isinstance(described, schema.FreshResult):
                return f"result {i} is in the memory of {path}, and in its own at the example's sizes"
            if result is run.leaves[owner]:
                return f"result {i} is {path} itself, and a view of it at the example's sizes"
        return ""

    def _other_sizes(self, outputs: Sequence[Any], result: Any) -> str:
        for i, found, expected in self._fresh(outputs, result):
            if found.shape != expected.shape:
                return f"result {i} has the sizes {[*found.shape]}, and should have {[*expected.shape]}"
        return ""

    def _other_layout(self, outputs: Sequence[Any], result: Any) -> str:
        for i, found, expected in self._fresh(outputs, result):
            if found.shape == expected.shape and _steps(found) != _steps(expected):
                return f"result {i} lies in memory by {_steps(found)}, and should by {_steps(expected)}"
        return ""

    def _fresh(self, outputs: Sequence[Any], result: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Results that are computed, of the graph and of the model, whose sizes do not depend on data."""
        method = self.convention.method
        if method["subclasses"]:
            return
        for i, (expected, described) in enumerate(zip(pytree.tree_leaves(result), method["results"], strict=False)):
            found = outputs[described.output] if isinstance(described, schema.FreshResult) else None
            if found is not None and not any(isinstance(size, torch.SymInt) for size in (*found.shape, *expected.shape)):
                yield i, found, expected

    def _other_gradients(self, outputs: Sequence[Any] = ()) -> str:
        if not outputs or self.convention.method["subclasses"] or self.convention.subclasses:
            return ""
        for primal, gradient in zip(self._inputs(self.convention.forward), self.convention.gradients, strict=False):
            if gradient is not None and outputs[gradient].shape != primal.shape:
                return f"the gradient of a tensor of the sizes {[*primal.shape]} has the sizes {[*outputs[gradient].shape]}"
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

    def _look(self, node: Node, value: Any) -> None:
        """Note a number that a graph computes of sizes otherwise than torch has simplified it, for positive sizes."""
        described = node.meta.get("val")
        if self.strict and isinstance(described, torch.Tensor) and isinstance(value, torch.Tensor):
            self._look_at_sizes(node, described, value)
        if self.simplified or not isinstance(described, torch.SymInt) or not isinstance(value, int):
            return
        size = size_expression(described, self.convention.shape_env)
        if isinstance(size, str) and not expressions.symbols(size) <= self.sizes.keys():
            return  # it depends on data
        if (simplified := expressions.evaluate(size, self.sizes)) != value:
            self.simplified = f"{node.target} of sizes is {value}, and {simplified} where torch has simplified it"

    def _look_at_sizes(self, node: Node, described: torch.Tensor, value: torch.Tensor) -> None:
        """Note a tensor of other sizes than the graph says; of what it returns, strides too."""
        is_output = any(user.op == "output" for user in node.users)
        for kind, told, found in (("sizes", described.shape, value.shape), ("strides", described.stride(), value.stride())):
            expected = [size_expression(size, self.convention.shape_env) for size in told]
            known = all(isinstance(size, int) or expressions.symbols(size) <= self.sizes.keys() for size in expected)
            if known and (kind == "sizes" or is_output) and not self.simplified:
                values = [expressions.evaluate(size, self.sizes) for size in expected]
                compared = range(value.dim()) if kind == "sizes" else [i for i, n in enumerate(value.shape) if n != 1]
                if any(values[i] != found[i] for i in compared):  # the stride of one element means nothing
                    self.simplified = f"{node.target} has the {kind} {[*found]}, and {values} by the graph"

    def _run(self, half: GraphModule, inputs: Sequence[Any]) -> tuple[Sequence[Any], str]:
        """What a graph gives, and why it cannot."""
        runner = _Runner(half, self._look)
        try:
            with self.mode, torch.no_grad():
                return runner.run(*inputs), ""
        except Exception as error:
            where = "" if runner.node is None else source_line(runner.node)
            message = next(iter(str(error).strip().splitlines()), "")
            return (), f"{type(error).__name__}: {message}" + (f" [at {where}]" if where else "")


class _Runner(Interpreter):
    """Runs a graph, knows where it is, and shows what it finds."""

    def __init__(self, graph: GraphModule, look: Callable[[Node, Any], None]) -> None:
        super().__init__(graph)
        self.node: Node | None = None
        self._look = look

    def run_node(self, node: Node) -> Any:
        self.node = node
        value = super().run_node(node)
        self._look(node, value)
        return value
