"""Fixes how Inductor orders random operators."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor import comms, decomposition, ir
from torch._inductor.dependencies import WeakDep

from ...api.patching import constant, patched, with_items
from ...api.random_operators import is_effectful, is_fixed
from ..applying import count_call


@contextlib.contextmanager
def keep_draws_in_order(module: torch.fx.GraphModule) -> Iterator[None]:
    """Run random operators and operators with effects in the order of the graph, each once, even if
    unused.
    """
    local = inductor_config.reorder_for_locality and not _has_effects(module)
    order = _in_order(comms.decide_global_ordering_of_comms)
    with (
        inductor_config.patch(reorder_for_locality=local),
        patched("inductor-order-of-draws", comms, "decide_global_ordering_of_comms", order),
        constant("inductor-order-of-draws", ir.InplaceBernoulliFallback, "has_side_effects", _always),
    ):
        yield


@contextlib.contextmanager
def call_bernoulli_kernel() -> Iterator[None]:
    """Remove the one decomposition that draws other numbers than its operator, even with
    ``fallback_random``.
    """
    drawn = torch.ops.aten.bernoulli.default
    with with_items("inductor-bernoulli-draws", decomposition, "decompositions", without=(drawn,)):
        count_call("inductor-bernoulli-draws")
        yield


def _has_effects(module: torch.fx.GraphModule) -> bool:
    return any(is_effectful(node.target) for node in module.graph.nodes)


def _always(self: Any) -> bool:
    return True


def _in_order(schedule: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Add random operators and effects to the order of collectives, which the scheduler fixes
    before it moves anything.

    Inductor's own chain of random operators depends on their results, and breaks if a result is
    unused.
    """

    def ordered(nodes: list[Any], *args: Any) -> list[Any]:
        fixed = [node for node in nodes if is_fixed(getattr(node.node, "op_overload", None))]
        for earlier, later in itertools.pairwise(fixed):
            written = next(iter(later.get_buffer_names()))
            for name in earlier.get_buffer_names():
                later.add_fake_dep(WeakDep(name, mutating_buf=written, is_fake=True))
        return schedule(nodes, *args)

    return ordered
