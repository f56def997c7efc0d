"""Chooses which values a partitioner saves within a memory budget.

Some values are expensive to recompute. Among them, torch chooses a set that fits into the budget
and saves the most operations. Layers are alike, so many sets save equally many. torch then takes
the values that come first in its list. These are the largest, and among equal ones mostly the
earliest.

That choice gives the highest peak memory. It uses up the budget where less would do. And all values
saved for the first layers are still in memory while the last layers are recomputed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack
from torch._functorch.partitioners import estimate_runtime
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, CustomRuntimeEstimator


@contextlib.contextmanager
def within_budget(share: float | None) -> Iterator[None]:
    """Limit the activation memory that partitioners save to this ``share``, 0..1 (null: torch's own
    setting).

    A solver or an estimator that the user set in ``torch._functorch.config`` is kept.
    """
    changes: dict[str, Any] = {} if share is None else {"activation_memory_budget": share}
    chosen = config.activation_memory_budget_solver, config.activation_memory_budget_runtime_estimator
    if chosen == ("dp", "flops"):
        operations = _Operations()
        solver = _LeastMemory(operations.counted)
        changes |= {"activation_memory_budget_runtime_estimator": operations, "activation_memory_budget_solver": solver}
    with config.patch(**changes):
        yield


class _Operations(CustomRuntimeEstimator):
    """torch's own estimate in floating-point operations, recorded because it cannot be computed
    when the solver is called.
    """

    def __init__(self) -> None:
        self.counted: dict[torch.fx.Node, float] = {}

    def __call__(self, node: torch.fx.Node) -> float:
        with config.patch(activation_memory_budget_runtime_estimator="flops"):
            self.counted[node] = estimate_runtime(node)
        return self.counted[node]

    def uuid(self) -> str:
        return __name__


class _LeastMemory(CustomKnapsackSolver):
    """torch's own solver, which prefers values early in its list.

    It is given small values first, and among equals the last.
    """

    def __init__(self, operations: dict[torch.fx.Node, float]) -> None:
        self._operations = operations

    def __call__(
        self, memory: list[float], graph: torch.fx.Graph, most: float, info: Any, values: list[torch.fx.Node]
    ) -> tuple[list[int], list[int]]:
        """Indices in ``values`` to save, and to recompute.

        ``memory``: size of each value; ``most``: the memory available.
        """
        rank = {node: number for number, node in enumerate(graph.nodes)}
        order = sorted(range(len(values)), key=lambda index: (memory[index], -rank[values[index]]))
        sizes, operations = [memory[index] for index in order], [self._operations[values[index]] for index in order]
        _, saved, recomputed = dp_knapsack(sizes, operations, most)
        return [order[index] for index in saved], [order[index] for index in recomputed]

    def uuid(self) -> str:
        return __name__
