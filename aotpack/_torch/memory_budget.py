"""Which values a partitioner saves within a memory budget.

torch picks, of the values that it would rather not compute again, a set that fits into the budget and saves the most operations.
Many sets save the same, for layers are alike, and torch takes the one with the values that come first in its list: the
largest, and of those mostly the earliest. For the peak that is the worst: the budget is used up where less would do, and while
the last layers are computed again, all that is saved of the first ones is still there.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack
from torch._functorch.partitioners import estimate_runtime

_passes: Any = importlib.import_module("torch._inductor.custom_graph_pass")
_Estimator: Any = getattr(_passes, "CustomRuntimeEstimator", object)  # torch 2.9 has neither, and chooses as it does
_Solver: Any = getattr(_passes, "CustomKnapsackSolver", object)


@contextlib.contextmanager
def within_budget(share: float | None) -> Iterator[None]:
    """Partitioners save at most this ``share`` of activation memory, 0..1 (null: torch's own setting).

    A solver or an estimate of the user's (``torch._functorch.config``) stays what it is.
    """
    changes: dict[str, Any] = {} if share is None else {"activation_memory_budget": share}
    chosen = config.activation_memory_budget_solver, config.activation_memory_budget_runtime_estimator
    if _Estimator is not object and chosen == ("dp", "flops"):
        operations = _Operations()
        solver = _LeastMemory(operations.counted)
        changes |= {"activation_memory_budget_runtime_estimator": operations, "activation_memory_budget_solver": solver}
    with config.patch(**changes):
        yield


class _Operations(_Estimator):  # type: ignore[misc]
    """torch's own estimate, floating-point operations, kept for the solver: where that is called, none can be counted."""

    def __init__(self) -> None:
        self.counted: dict[torch.fx.Node, float] = {}

    def __call__(self, node: torch.fx.Node) -> float:
        with config.patch(activation_memory_budget_runtime_estimator="flops"):
            self.counted[node] = estimate_runtime(node)
        return self.counted[node]

    def uuid(self) -> str:
        return __name__


class _LeastMemory(_Solver):  # type: ignore[misc]
    """torch's own solver, told of small values first and of equal ones of the last first, for it prefers what comes first."""

    def __init__(self, operations: dict[torch.fx.Node, float]) -> None:
        self._operations = operations

    def __call__(
        self, memory: list[float], graph: torch.fx.Graph, most: float, info: Any, values: list[torch.fx.Node]
    ) -> tuple[list[int], list[int]]:
        """Positions in ``values`` of those to save, and of those to compute again; ``memory`` they take, ``most`` there is."""
        place = {node: number for number, node in enumerate(graph.nodes)}
        order = sorted(range(len(values)), key=lambda index: (memory[index], -place[values[index]]))
        sizes, operations = [memory[index] for index in order], [self._operations[values[index]] for index in order]
        _, saved, recomputed = dp_knapsack(sizes, operations, most)
        return [order[index] for index in saved], [order[index] for index in recomputed]

    def uuid(self) -> str:
        return __name__
