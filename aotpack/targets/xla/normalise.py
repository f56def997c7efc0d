"""Decomposes the operators of a graph that have no rule for XLA.

Only ``meta["val"]`` is needed, so a graph that was read from a bundle can be normalised too.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from aotpack_loader.devices.generator import exchange_random_state, random_state

from ..._torch.api.fake_tensors import fake_mode_of
from ..._torch.tracing.aot_autograd import CALL_ON_COPIES
from ..._torch.tracing.decompose import kernel_of, on_copies, trace
from ..nested import copy_of, regions
from . import decompositions
from .rules import RULES


def normalise(module: GraphModule) -> GraphModule:
    """A normalised copy of ``module`` and of the graphs that it runs, with the same inputs and
    outputs. It returns a tuple.

    Raises:
        Exception: whatever a decomposition raises on arguments that it does not support.
    """
    copied = copy_of(module)
    graph = copied.graph
    for name, region in regions(module).items():
        copied.register_module(name, normalise(region))
    table = decompositions.when_lowered()
    known: dict[str, Graph] = {}
    for node in list(graph.nodes):
        if node.target in (random_state, exchange_random_state):
            _hold_seed(node)
        rule = table.get(node.target) or _own_kernel(node) if node.op == "call_function" else None
        if rule is not None and _has_fixed_sizes(node):
            _expand(node, rule, known)
    output = graph.output_node()
    if isinstance(output.args[0], Node):  # the graph is the condition of a loop
        output.args = ((output.args[0],),)
    graph.eliminate_dead_code(lambda node: node.is_impure() or node.target is exchange_random_state)
    graph.lint()
    copied.recompile()
    return copied


def _own_kernel(node: Node) -> Callable[..., Any] | None:
    """The kernel of an operator that is not torch's own, which is traced like the model."""
    operator = node.args[0] if node.target is CALL_ON_COPIES else node.target
    if not isinstance(operator, torch._ops.OpOverload) or operator in RULES:  # torch's prims have kernels in Python too
        return None
    kernel = kernel_of(operator)
    return on_copies if kernel is not None and node.target is CALL_ON_COPIES else kernel


def _has_fixed_sizes(node: Node) -> bool:
    """Whether the sizes of a node and its inputs are fixed; other nodes are left unchanged, and
    rejected later.
    """
    values = pytree.tree_leaves([value.meta["val"] for value in (node, *node.all_input_nodes) if value.op != "get_attr"])
    return all(isinstance(size, int) for value in values if isinstance(value, torch.Tensor) for size in value.shape)


def _hold_seed(node: Node) -> None:
    """Give a random state the type of a seed: on XLA devices the random state that graphs pass on
    is a seed.
    """
    with fake_mode_of(node.graph):
        seed = torch.empty((), dtype=torch.int64)
    for value in (node, *node.all_input_nodes):
        value.meta = {**value.meta, "val": seed}


def _expand(node: Node, rule: Callable[..., Any], known: dict[str, Graph]) -> None:
    """Replace ``node`` by what ``rule`` computes; ``known``: the graphs traced for other nodes, by
    :func:`_letter`.
    """
    leaves, spec = pytree.tree_flatten((_unfrozen(node.args), _unfrozen(node.kwargs)))
    leaves = [_graph_of(leaf) if isinstance(leaf, Node) and leaf.op == "get_attr" else leaf for leaf in leaves]
    operands = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Node)))

    def run(*values: Any) -> Any:
        value_of = dict(zip(operands, values, strict=True))
        args, kwargs = pytree.tree_unflatten([value_of[leaf] if isinstance(leaf, Node) else leaf for leaf in leaves], spec)
        result = rule(*args, **kwargs)
        if result is NotImplemented:  # the rule does not support these arguments
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        return list(result) if isinstance(result, tuple) else result  # a named tuple would become a node

    letter = _letter(node, leaves, spec, operands)
    if letter not in known:
        with fake_mode_of(node.graph):
            known[letter] = trace(run, [item.meta["val"] for item in operands], decompositions.when_lowered())
    results = _inline(known[letter], node, operands)
    _keep_strides(results, node, operands)
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(results[user.args[1]])
            node.graph.erase_node(user)
    node.graph.erase_node(node)


def _keep_strides(results: Any, node: Node, operands: Sequence[Node]) -> None:
    """Give new nodes the strides that the operator's results have: ``as_strided`` of them is rejected,
    or reads the same elements.
    """
    for result, value in zip(pytree.tree_leaves(results), pytree.tree_leaves(node.meta["val"]), strict=True):
        if isinstance(result, Node) and result not in operands and isinstance(value, torch.Tensor):
            result.meta["val"] = value


def _graph_of(node: Node) -> Any:
    """The graph that a ``get_attr`` node names; a rule calls it."""
    assert node.graph.owning_module is not None
    return node.graph.owning_module.get_submodule(str(node.target))


def _letter(node: Node, leaves: Sequence[Any], spec: pytree.TreeSpec, operands: list[Node]) -> str:
    """A key that is equal for nodes with the same operator, constants, argument types and pattern
    of equal arguments.
    """
    described: list[Any] = [("argument", operands.index(leaf)) if isinstance(leaf, Node) else leaf for leaf in leaves]
    described = [("graph", id(leaf)) if isinstance(leaf, GraphModule) else leaf for leaf in described]
    return repr((node.target, spec, described, [_type(item.meta["val"]) for item in operands]))


def _type(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.shape, value.stride(), value.storage_offset(), value.device


def _unfrozen(value: Any) -> Any:
    """Arguments in mutable containers: some rules change the lists that they get."""
    if isinstance(value, dict):
        return {key: _unfrozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_unfrozen(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _inline(inner: Graph, node: Node, operands: list[Node]) -> Any:
    """Copy ``inner`` before ``node`` and return its results; the new nodes keep the source line of
    ``node``.
    """
    known = dict(zip(inner.find_nodes(op="placeholder"), operands, strict=True))
    with node.graph.inserting_before(node):
        for item in inner.nodes:
            if item.op == "get_attr":
                known[item] = _adopted(item, node)
            elif item.op not in ("placeholder", "output"):
                known[item] = node.graph.node_copy(item, known.__getitem__)
                known[item].meta = {**node.meta, "val": item.meta["val"]}
    return pytree.tree_map_only(Node, known.__getitem__, inner.output_node().args[0])


def _adopted(item: Node, node: Node) -> Node:
    """Register the graph that a rule's control flow runs in the graph of ``node``, before that
    node.
    """
    theirs, ours = item.graph.owning_module, node.graph.owning_module
    assert theirs is not None
    assert ours is not None
    name = next(name for i in itertools.count() if not hasattr(ours, name := f"{node.name}_{item.target}_{i}"))
    ours.register_module(name, normalise(theirs.get_submodule(str(item.target))))  # type: ignore[arg-type]
    adopted = node.graph.get_attr(name)
    adopted.meta = {key: value for key, value in node.meta.items() if key != "val"}
    return adopted
