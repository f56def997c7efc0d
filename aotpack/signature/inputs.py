"""Describes the arguments of a call: their tree, and the type of each leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from aotpack_loader.format import schema

from .._torch.api import fake_tensors
from .._torch.api.torch_types import desc
from .._torch.tracing import aot_autograd
from ..capture.inputs.examples import argument_names
from ..graph import tensor_value
from ..graph.expressions import size_expression
from ..graph.literals import NOT_A_LITERAL, literal_argument
from ..model import pytrees, subclasses
from ..partition import Partitioned
from . import subclass_leaves
from .partitioned import PartitionedMethod


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call.

    ``paths`` names each leaf. ``varying`` maps the leaf number of each dynamic integer argument to
    its symbol.
    """

    tree: schema.Tree
    leaves: Sequence[schema.InputLeaf]
    paths: Sequence[str]
    varying: Mapping[int, str]


def describe_inputs(partitioned: PartitionedMethod) -> Inputs:
    """Describe the arguments of a call."""
    flat, spec = pytree.tree_flatten((partitioned.call.args, partitioned.call.kwargs))
    args_spec, kwargs_spec = aot_autograd.tree_children(spec)
    args_tree, args_paths = pytrees.describe_arguments(
        args_spec, argument_names(partitioned.call.model, len(partitioned.call.args))
    )
    kwargs_tree, kwargs_paths = pytrees.describe_arguments(kwargs_spec, [*partitioned.call.kwargs])
    paths = [*args_paths, *kwargs_paths]
    nodes = _argument_nodes(partitioned.joint, partitioned.parts, len(partitioned.call.arrangement.bases))
    varying = _varying_integers(partitioned, nodes)
    leaves = [
        schema.IntegerLeaf(path, varying[i]) if i in varying else _leaf(partitioned, value, path, nodes.get(i))
        for i, (value, path) in enumerate(zip(flat, paths, strict=True))
    ]
    return Inputs(schema.TupleNode([args_tree, kwargs_tree]), leaves, paths, varying)


def argument_values(joint: aot_autograd.Joint, parts: Partitioned, bases: int) -> Iterator[tuple[int, Any]]:
    """Yield the number and the fake value of each tensor and integer that is an input of the graphs."""
    for i, node in _argument_nodes(joint, parts, bases).items():
        if "val" in node.meta:  # other constants have none
            yield i, node.meta["val"]


def _argument_nodes(joint: aot_autograd.Joint, parts: Partitioned, bases: int) -> dict[int, Node]:
    """Return the graphs' inputs by leaf number. ``bases``: how many synthetic bases are before them."""
    return {
        descriptor.idx - bases: node
        for descriptor, node in zip(joint.primal_descriptors, parts.primals, strict=False)
        if isinstance(descriptor, desc.PlainAOTInput)
    }


def _varying_integers(partitioned: PartitionedMethod, nodes: Mapping[int, Node]) -> dict[int, str]:
    found = {
        i: size_expression(node.meta["val"], partitioned.shape_env)
        for i, node in nodes.items()
        if fake_tensors.is_varying_integer(node.meta.get("val"))
    }
    return {i: size for i, size in found.items() if isinstance(size, str)}


def _leaf(partitioned: PartitionedMethod, value: Any, path: str, node: Node | None) -> schema.InputLeaf:
    """``node`` is the graph's input for this argument, if it has one."""
    if not isinstance(value, torch.Tensor):
        literal = literal_argument(value)
        if literal is NOT_A_LITERAL:
            partitioned.refuse(path, f"an argument of type {type(value).__name__}")
            literal = None
        return schema.ConstantLeaf(path, literal)
    kind = tensor_value(value if node is None else node.meta["val"], partitioned.shape_env)
    subclass = None if node is None else subclass_leaves.describe(node, path, partitioned.shape_env)
    subclass = subclass or subclasses.describe(value, path, partitioned.shape_env)
    stride = None if node is not None and _has_free_strides(node) else kind.stride
    return schema.TensorLeaf(
        path, kind.dtype, kind.shape, stride, value.device.type, requires_grad=value.requires_grad, subclass=subclass
    )


def _has_free_strides(node: Node) -> bool:
    """Whether nothing reads an argument and its strides have symbols that its sizes do not have.

    Dynamo keeps the strides of a slice symbolic until they matter.
    """
    value: torch.Tensor = node.meta["val"]
    return not node.users and bool(fake_tensors.symbols_in(value.stride()) - fake_tensors.symbols_in(value.shape))
