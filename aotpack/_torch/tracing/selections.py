"""Positions that depend on data: ``x[i]``, where ``i`` is a number that the model reads from a tensor.

``select`` gives a view whose place in memory depends on data, which compiled code saves for no backward. Where no view is needed,
the position is an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_map_only

from ..api.nodes import value_of

_aten = torch.ops.aten
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def look_up_positions(module: GraphModule, mode: FakeTensorMode) -> None:
    """Make an index of each position whose selection, and the views of it, are read and not returned.

    The index is the tensor itself where it can be: compiled code saves no negative number for its backward.
    """
    _look_up(module, mode)
    for node in module.graph.find_nodes(op="call_function", target=_aten.scalar_tensor.default):
        number = node.args[0]
        if not isinstance(number, Node) or number.target is not _aten._local_scalar_dense.default:
            continue
        source = number.all_input_nodes[0]
        if value_of(source).shape != () or value_of(source).dtype not in _WHOLE or value_of(node).dtype != torch.int64:
            continue
        if value_of(source).dtype != torch.int64:
            with mode, module.graph.inserting_before(node):
                source = module.graph.call_function(_aten._to_copy.default, (source,), {"dtype": torch.int64})
                source.meta = {**node.meta, "val": _computed(source)}
        node.replace_all_uses_with(source)
        module.graph.erase_node(node)
        if not number.users:
            module.graph.erase_node(number)


def _look_up(module: GraphModule, mode: FakeTensorMode) -> None:
    for node in reversed(module.graph.find_nodes(op="call_function", target=_aten.select.int)):
        x, dim, position = node.args
        if not isinstance(position, Node) or not free_unbacked_symbols(position.meta["val"]):
            continue
        views = list(_views(node))
        if any(view.meta.get("unbacked_bindings") for view in views) or any(
            user.op == "output" or _reads_layout(user) for view in (node, *views) for user in view.users
        ):
            continue
        with mode, module.graph.inserting_before(node):
            at = module.graph.call_function(_aten.scalar_tensor.default, (position,), {"dtype": torch.int64})
            found = module.graph.call_function(_aten.index.Tensor, (x, [*[None] * (dim % value_of(x).dim()), at]))
            for each in (at, found):
                each.meta = {**node.meta, "val": _computed(each)}
                each.meta.pop("unbacked_bindings", None)
        if value_of(found).stride() != compute_elementwise_output_strides(value_of(node)):
            module.graph.erase_node(found)
            module.graph.erase_node(at)
            continue
        node.replace_all_uses_with(found)
        module.graph.erase_node(node)
        with mode:
            for view in views:
                view.meta["val"] = _computed(view)


def _views(node: Node) -> Iterator[Node]:
    """The views of a node, and their views, each after what it is a view of."""
    for user in node.users:
        if getattr(user.target, "is_view", False):
            yield user
            yield from _views(user)


def _reads_layout(node: Node) -> bool:
    return node.target in (_aten.sym_storage_offset.default, _aten.sym_stride.int)


def _computed(node: Node) -> Any:
    args, kwargs = tree_map_only(Node, lambda each: each.meta["val"], (node.args, node.kwargs))
    target: Any = node.target
    return target(*args, **kwargs)
