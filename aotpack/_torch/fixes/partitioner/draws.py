"""Fixes how the partitioner treats random operators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._functorch import compile_utils, partitioners

from ...api.patching import constant, patched
from ...api.random_operators import is_random
from ..applying import count_call


@contextlib.contextmanager
def partition_random_operators(joint: torch.fx.GraphModule) -> Iterator[None]:
    """Partition without merging random operators, and without torch's handling of the generator
    state.

    The partitioner's list of operators that must not be merged lacks most random operators. And it
    saves the generator state only for nodes that were marked for recomputation. aotpack saves the
    state itself.
    """
    graphs = [module.graph for module in joint.modules() if isinstance(module, torch.fx.GraphModule)]
    drawing = {node.target.overloadpacket for graph in graphs for node in graph.nodes if is_random(node)}
    if not drawing <= set(compile_utils.rand_ops):
        count_call("partitioner-draws")
    with (
        constant("partitioner-draws", compile_utils, "rand_ops", [*compile_utils.rand_ops, *drawing]),
        patched(
            "partitioner-draws",
            partitioners,
            "functionalize_rng_ops",
            lambda joint, forward, backward, symbols: (forward, backward),
        ),
    ):
        yield
