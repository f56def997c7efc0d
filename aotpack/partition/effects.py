"""Removes AOTAutograd's effect tokens from graphs: in a bundle the order of the nodes replaces
them.

The partitioner has kept the order of the tokens in both graphs. So plain operators can replace the
wrapped ones.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api.torch_types import with_effects
from ..graph import source_line


def unwrap(module: GraphModule) -> None:
    """Replace every ``with_effects(token, op, …)`` by ``op(…)``. The graph then returns no tokens.

    Raises:
        UnsupportedError: the effect belongs to a higher-order operator (print, methods of script
            objects).
    """
    wrapped = module.graph.find_nodes(op="call_function", target=with_effects)
    problems = [
        Problem(source_line(node) or node.name, f"an effect of {node.args[1]}, which is not an operator of torch.library")
        for node in wrapped
        if not isinstance(node.args[1], torch._ops.OpOverload)
    ]
    if problems:
        raise UnsupportedError("The model has side effects that a bundle cannot repeat.", problems)
    for node in reversed(wrapped):  # the last token has no users
        _replace(node)
    module.recompile()


def _replace(node: Node) -> None:
    _, op, *args = node.args
    assert isinstance(op, torch._ops.OpOverload)
    returns = len(op._schema.returns)
    with node.graph.inserting_before(node):
        plain = node.graph.call_function(op, tuple(args), node.kwargs)
    values = tuple(node.meta["val"][1:])
    plain.meta = {**node.meta, "val": values if returns > 1 else values[0] if returns else None}
    for user in list(node.users):
        position = user.args[1]
        assert isinstance(position, int)
        if position and returns > 1:
            user.args = (plain, position - 1)
            continue
        if position:
            user.replace_all_uses_with(plain)
        node.graph.erase_node(user)
    node.graph.erase_node(node)
