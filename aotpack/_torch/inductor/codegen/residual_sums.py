"""Sums of residual connections, which are stored.

Inductor computes a sum of two values again for each of its readers. After several layers a reader adds up the
results of all of them, and their buffers cannot be freed. A sum that is stored takes the memory of the product in it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._inductor import ir
from torch.fx import Node

from ...api.fake_tensors import hint_of

_aten = torch.ops.aten
_PRODUCTS: Final = (_aten.addmm.default, _aten.bmm.default, _aten.convolution.default, _aten.mm.default)


def stored_if_residual(node: Node, result: Any) -> Any:
    """What Inductor made of ``node``. A sum with several readers is stored if only it reads the product in it."""
    if (
        isinstance(result, ir.TensorBox)
        and isinstance(result.data, ir.StorageBox)
        and len(node.users) > 1
        and _adds_a_product(node)
    ):
        result.realize()
    return result


def _adds_a_product(node: Node) -> bool:
    if node.target is not _aten.add.Tensor:
        return False
    values = [each.meta.get("val") if isinstance(each, Node) else None for each in (node, *node.args)]
    shapes = [[hint_of(size) for size in value.shape] for value in values if isinstance(value, torch.Tensor)]
    if len(shapes) < len(values):  # a number is added
        return False
    own, *others = shapes
    return all(shape == own for shape in others) and any(map(_is_read_once, node.all_input_nodes))


def _is_read_once(term: Node) -> bool:
    """Whether a value is a product, or a view or copy of one, that nothing else reads."""
    while len(term.users) == 1:
        if term.target in _PRODUCTS:
            return True
        if term.target is not _aten.clone.default and not getattr(term.target, "is_view", False):
            return False
        term = term.all_input_nodes[0]
    return False
