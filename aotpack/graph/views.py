"""Finds view chains in a graph: the view operations that lead from one value to another.

The loader rebuilds aliased outputs by replaying these views on the real base, which keeps
autograd's view relations. ``as_strided`` is the last resort.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from aotpack_loader.format import schema
from aotpack_loader.runtime.memory import extent

from .._torch.api.fake_tensors import hint_of
from .._torch.api.torch_types import ShapeEnv
from .expressions import size_expression
from .literals import NOT_A_LITERAL, literal_argument

AS_STRIDED = tuple([getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")])


def is_view(node: Node) -> bool:
    """Whether ``node`` is an ATen operation that returns a view of its first argument."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    arguments, returns = target._schema.arguments, target._schema.returns
    if not arguments or not returns:
        return False
    first, result = arguments[0].alias_info, returns[0].alias_info
    return first is not None and result is not None and not first.is_write and not result.is_write


def parent(node: Node) -> Node | None:
    """The value that ``node`` is a view of, or None."""
    if node.target is operator.getitem and isinstance(node.args[0], Node) and is_view(node.args[0]):
        return node.args[0].args[0]  # type: ignore[return-value]
    if is_view(node) and isinstance(node.args[0], Node):
        return node.args[0]
    return None


def root(node: Node) -> Node:
    """The value at the start of the view chain that ends in ``node``."""
    return chain(node)[0]


def common_root(nodes: Sequence[Node]) -> Node | None:
    """The value at the start of all these nodes' view chains, or None if they differ."""
    first, *others = [root(node) for node in nodes]
    return first if all(_is_same(first, other) for other in others) else None


def chain(node: Node) -> list[Node]:
    """The values of the view chain that ends in ``node``, from its start to ``node`` itself."""
    found = [node]
    while (above := parent(found[-1])) is not None:
        found.append(above)
    return found[::-1]


def reach(node: Node) -> int:
    """Bytes of storage that a value needs, at the example's sizes."""
    value = node.meta["val"]
    sizes, strides = [[hint_of(size) for size in of] for of in (value.shape, value.stride())]
    elements = extent(sizes, strides) + hint_of(value.storage_offset())
    return 0 if 0 in sizes else elements * value.element_size()


Link = tuple[str, Any]
"""A value as the name of its operation, and the index among the operation's results, or None."""
Chain = tuple[Link, ...]
"""A view chain, from its start."""


def chain_of_names(node: Node) -> Chain:
    """The view chain that ends in ``node``, by names."""
    return tuple([_named(link) for link in chain(node)])


def origin(node: Node) -> Link:
    """The start of the view chain that ends in ``node``, by name: two nodes may read the same
    result of an operator.
    """
    return _named(root(node))


def _named(link: Node) -> Link:
    if link.target is operator.getitem:
        several, position = link.args
        return str(several), position
    return link.name, None


def nodes_between(base: Node, alias: Node) -> list[Node]:
    """The nodes of the view chain from ``base`` to ``alias``, in order."""
    nodes: list[Node] = []
    node = alias
    while node is not base:
        nodes.append(node)
        if node.target is operator.getitem:
            nodes.append(node.args[0])  # type: ignore[arg-type]
        node = parent(node)  # type: ignore[assignment]
    return nodes[::-1]


def steps_between(base: Node, alias: Node, shape_env: ShapeEnv | None) -> list[schema.ViewStep] | None:
    """View steps that turn ``base`` into ``alias``, or None if no view chain leads there."""
    steps: list[schema.ViewStep] = []
    node = alias
    while not _is_same(node, base):
        select = None
        view = node
        if node.target is operator.getitem:
            view, select = node.args  # type: ignore[assignment]
        above = parent(node)
        if above is None:
            return None
        step = _step(view, select, shape_env)
        if step is None:
            return None
        steps.append(step)
        node = above
    return steps[::-1]


def _is_same(one: Node, other: Node) -> bool:
    """Whether two nodes are the same view of the same value.

    After ``y.t_()`` each use of ``y`` is traced as a separate view. The same holds for a copy by
    ``reshape`` after a write to it.
    """
    if one is other:
        return True
    reshaped = one.target is other.target is torch.ops.aten._unsafe_view.default
    above, over = (one.args[0], other.args[0]) if reshaped else (parent(one), parent(other))
    if not isinstance(above, Node) or not isinstance(over, Node) or _operation(one) != _operation(other):
        return False
    return _is_same(above, over)


def _operation(view: Node) -> tuple[Any, ...]:
    """The operation of a view, without the value that it is a view of."""
    if view.target is operator.getitem:
        several, position = view.args
        return (*_operation(several), position)  # type: ignore[arg-type]
    return view.target, view.args[1:], view.kwargs


def _step(view: Node, select: Any, shape_env: ShapeEnv | None) -> schema.ViewStep | None:
    args = [_argument(arg, shape_env) for arg in view.args[1:]]
    kwargs = {key: _argument(arg, shape_env) for key, arg in view.kwargs.items()}
    if NOT_A_LITERAL in args or NOT_A_LITERAL in kwargs.values():
        return None
    return schema.ViewStep(str(view.target), args, kwargs, select)


def _argument(arg: Any, shape_env: ShapeEnv | None) -> Any:
    if isinstance(arg, (list, tuple)):
        items = [_argument(item, shape_env) for item in arg]
        return NOT_A_LITERAL if NOT_A_LITERAL in items else items
    if isinstance(arg, Node):
        value = arg.meta.get("val")
        if not isinstance(value, (int, torch.SymInt)):
            return NOT_A_LITERAL
        size = size_expression(value, shape_env)
        return size if isinstance(size, int) else schema.ExprArg(size)
    return literal_argument(arg)


def sizes_in(steps: list[schema.ViewStep]) -> list[str]:
    """The expressions among the arguments of view steps."""
    arguments = [arg for step in steps for arg in [*step.args, *step.kwargs.values()]]
    flat = [item for arg in arguments for item in (arg if isinstance(arg, list) else [arg])]
    return [item.value for item in flat if isinstance(item, schema.ExprArg)]


def as_strided_step(value: torch.Tensor, shape_env: ShapeEnv | None) -> list[schema.ViewStep]:
    """The last resort: one ``as_strided`` with sizes, strides and offset in the base's storage."""
    args = [_dims(value.shape, shape_env), _dims(value.stride(), shape_env), _dims([value.storage_offset()], shape_env)[0]]
    return [schema.ViewStep("aten.as_strided.default", args)]


def same_start_step(value: torch.Tensor, shape_env: ShapeEnv | None) -> schema.ViewStep:
    """``as_strided`` with the sizes and strides of ``value``, at the base's offset."""
    return schema.ViewStep("aten.as_strided.default", [_dims(value.shape, shape_env), _dims(value.stride(), shape_env)])


def _dims(sizes: Iterable[Any], shape_env: ShapeEnv | None) -> list[Any]:
    found = [size_expression(size, shape_env) for size in sizes]
    return [size if isinstance(size, int) else schema.ExprArg(size) for size in found]
