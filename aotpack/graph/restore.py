"""Restores ``torch.fx`` graphs from the format's graphs as a trace would leave them, with fake
tensors as values.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.node import map_arg

from aotpack_loader.devices import operators
from aotpack_loader.devices.literals import literal
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import expressions, schema, subgraphs

from .._torch.api.shape_env import Symbols
from .._torch.tracing.aot_autograd import CALL_ON_COPIES
from .expressions import parse
from .native_operators import in_compilers


def to_fx(graph: schema.Graph, symbols: Symbols | None = None, *, single: bool = False) -> GraphModule:
    """Restore a graph as a ``torch.fx.GraphModule`` that returns a tuple, or with ``single`` its
    only output (some subgraphs).

    With ``symbols`` every node gets a fake value as ``meta["val"]``, of the type in the document;
    so do the elements of multi-output operators. Values of different nodes never share memory, not
    even views.

    Raises:
        UnsupportedError: a name that Python code cannot use, or control flow that the format lacks.
        CorruptBundleError: an operator that bundles may not use.
    """
    _refuse_names(graph)
    return _Builder(graph, symbols).build(single=single)


class _Builder:
    def __init__(self, graph: schema.Graph, symbols: Symbols | None) -> None:
        self.graph = graph
        self.fx = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.nodes: dict[str, FxNode] = {}
        self.symbols = symbols
        self.values = None if symbols is None else _Values(graph, symbols, self.root)

    def build(self, *, single: bool) -> GraphModule:
        graph = self.graph
        singles = {name for node in graph.nodes for name in subgraphs.single_result(node)}
        for name, sub in graph.subgraphs.items():
            self.root.register_module(name, to_fx(sub, self.symbols, single=name in singles))
        for name, value in zip(graph.inputs, graph.input_values, strict=True):
            node = self.nodes[name] = self.fx.create_node("placeholder", name, name=name)
            node.meta["aotpack"] = value
            if self.values is not None:
                node.meta["val"] = self.values.recorded(value)
        for item in graph.nodes:
            self._add(item)
        outputs = tuple(self._argument(arg) for arg in graph.outputs)
        self.fx.output(outputs[0] if single else outputs)
        return GraphModule(self.root, self.fx)

    def _add(self, item: schema.Node) -> None:
        target = _operator(item.op)
        args = _fx_arguments(item, [self._argument(arg) for arg in item.args])
        kwargs = {key: self._argument(arg) for key, arg in item.kwargs.items()}
        writes = isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
        called, args, kwargs = (CALL_ON_COPIES, (target,), kwargs) if writes else in_compilers(target, args, kwargs)
        node = self.nodes[item.name] = self.fx.create_node("call_function", called, args, kwargs, name=item.name)
        node.meta["aotpack"] = item.value
        if self.values is not None:
            self.values.describe(node, item)

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, list):
            return [self._argument(item) for item in arg]
        if isinstance(arg, schema.ValueRef):
            return self.nodes[arg.name]
        if isinstance(arg, schema.GraphArg):
            return self.fx.get_attr(arg.name)
        return literal(arg)


class _Values:
    """The fake values of one graph.

    ``pending`` are the data-dependent sizes that no node has defined yet.
    """

    def __init__(self, graph: schema.Graph, symbols: Symbols, root: torch.nn.Module) -> None:
        self.symbols = symbols
        self.root = root
        given = {name for value in graph.input_values for name in _symbols_of(value)}
        self.pending = {s for name, s in symbols.by_name.items() if symbols.is_unbacked(name) and name not in given}
        self.elements: dict[str, dict[int, schema.Value]] = {}
        for node in graph.nodes:
            match node.op, node.args:
                case "builtin.getitem", [schema.ValueRef() as several, int() as position]:
                    self.elements.setdefault(several.name, {})[position] = node.value

    def describe(self, node: FxNode, item: schema.Node) -> None:
        """Give a node its value, and record the symbols that it defines."""
        node.meta["val"] = self._result(node, item)
        if bindings := self.symbols.bindings(node.meta["val"], self.pending):
            node.meta["unbacked_bindings"] = bindings

    def recorded(self, value: schema.Value) -> Any:
        """A fake value of a type in a document."""
        if isinstance(value, schema.IntValue):
            return self._size(value.expr)
        if isinstance(value, schema.TensorValue):
            sizes, strides = ([self._size(size) for size in dims] for dims in (value.shape, value.stride))
            return self.symbols.tensor(getattr(torch, value.dtype), sizes, strides, self._size(value.offset))
        return self.symbols.unknown(value.kind)

    def _result(self, node: FxNode, item: schema.Node) -> Any:
        """The value of a node as the document describes it; computed if the document has only its
        kind.
        """
        if not isinstance(item.value, schema.OtherValue):
            return self.recorded(item.value)
        if item.value.kind == "none":
            return None
        if item.value.kind != "tuple":
            return self._computed(node)
        elements = self.elements.get(item.name, {})
        known = {i: value for i, value in elements.items() if not isinstance(value, schema.OtherValue)}
        if _count(node) == len(known):
            return tuple(self.recorded(known[i]) for i in range(len(known)))
        return tuple(self.recorded(known[i]) if i in known else value for i, value in enumerate(self._computed(node)))

    def _computed(self, node: FxNode) -> Any:
        def value(arg: FxNode) -> Any:
            return getattr(self.root, str(arg.target)) if arg.op == "get_attr" else arg.meta["val"]

        return self.symbols.run(node.target, map_arg(node.args, value), map_arg(node.kwargs, value))

    def _size(self, size: schema.Dim) -> int | torch.SymInt:
        return size if isinstance(size, int) else self.symbols.integer(parse(size, self.symbols.by_name))


def _count(node: FxNode) -> int | None:
    """How many results an operator has, or None if that depends on its arguments."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    kinds = [str(result.type) for result in node.target._schema.returns]
    return len(kinds) if set(kinds) == {"Tensor"} else None


def _fx_arguments(node: schema.Node, args: list[Any]) -> tuple[Any, ...]:
    """Convert arguments from the format's form to torch's."""
    if not node.op.startswith("higher_order."):
        return tuple(args)
    if node.op == "higher_order.flex_attention":
        args[6] = dict(args[6])
    return tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)


def _operator(name: str) -> Callable[..., Any]:
    space, _, rest = name.partition(".")
    if space == "higher_order":
        if name not in subgraphs.OPERATORS:
            raise UnsupportedError(f"A graph uses the operator {name}, which the format does not have.")
        return getattr(torch.ops.higher_order, rest)  # type: ignore[no-any-return]
    return operators.resolve(name, declared=(space,))


def _refuse_names(graph: schema.Graph) -> None:
    """Reject names that are not plain identifiers: they become Python code that torch.fx runs."""
    given = [*graph.inputs, *graph.subgraphs, *(node.name for node in graph.nodes)]
    given += [key for node in graph.nodes for key in node.kwargs]
    if bad := [name for name in given if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name)]:
        raise UnsupportedError(
            "A graph uses names that are not identifiers, so it cannot be compiled.",
            [Problem(repr(name), "") for name in bad[:10]],
        )


# ------------------------------------------------------------------ symbols


def symbols_of(method: schema.Method, graphs: Sequence[schema.Graph], sizes: Mapping[str, int] | None = None) -> Symbols:
    """The symbols of a method with their ranges and constraints, for its graphs; ``sizes`` fixes
    them to these values.

    Raises:
        UnsupportedError: symbols are not named as in torch, or the example's sizes break a
            constraint.
    """
    symbols = Symbols()
    declared = {symbol.name: symbol for symbol in method.symbols}
    used = {name for graph in graphs for value in _values(graph) for name in _symbols_of(value)}
    unknown = sorted(used - declared.keys())
    bad = [name for name in declared if not symbols.is_size(name)] + [name for name in unknown if not symbols.is_unbacked(name)]
    if bad:
        message = "is neither a name of a size of an argument (s0) nor of a size that depends on data (u0)"
        raise UnsupportedError("The bundle has symbols whose names are not torch's.", [Problem(name, message) for name in bad])
    for symbol in method.symbols:
        hint = symbol.minimum if symbol.hint is None else symbol.hint
        if sizes is None:
            symbols.add_size(symbol.name, symbol.minimum, symbol.maximum, hint)
        else:
            symbols.fix(symbol.name, sizes[symbol.name])
    for name in unknown:
        symbols.add_unbacked(name, 0, None)
    constraints = method.constraints if sizes is None else ()  # with sizes all symbols are numbers
    broken = [text for text in constraints if not symbols.assume(parse(text, symbols.by_name))]
    if broken:
        raise UnsupportedError(
            "The sizes of the bundle's example do not meet its own constraints.", [Problem(text, "") for text in broken]
        )
    return symbols


def _values(graph: schema.Graph) -> Iterator[schema.Value]:
    yield from graph.input_values
    for node in graph.nodes:
        yield node.value
    for sub in graph.subgraphs.values():
        yield from _values(sub)


def _symbols_of(value: schema.Value) -> set[str]:
    if isinstance(value, schema.OtherValue):
        return set()
    sizes = [value.expr] if isinstance(value, schema.IntValue) else [*value.shape, *value.stride, value.offset]
    return {name for size in sizes if isinstance(size, str) for name in expressions.symbols(size)}
