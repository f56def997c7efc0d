"""Finds which results of a model are computed from which others, as autograd sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._torch.api.tensor_hooks import runs_python


def find_sources(results: Sequence[Any]) -> list[list[int]]:
    """Return for each result the other results that its gradient passes on its way back.

    The results of a trace still have their history.
    """
    positions: dict[tuple[Any, int], list[int]] = {}
    for i, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.grad_fn is not None:
            positions.setdefault((result.grad_fn, result.output_nr), []).append(i)
    reached: dict[Any, frozenset[int]] = {}
    for node, _ in positions:
        _add_reached(node, positions, reached)
    return [
        sorted(reached[result.grad_fn]) if isinstance(result, torch.Tensor) and result.grad_fn is not None else []
        for result in results
    ]


def _add_reached(start: Any, positions: dict[tuple[Any, int], list[int]], reached: dict[Any, frozenset[int]]) -> None:
    """Add to ``reached`` the results that lie behind ``start`` and behind each node on the way."""
    pending = [start]
    while pending:
        node = pending[-1]
        if node in reached:
            pending.pop()
            continue
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        if missing := [below for below, _ in edges if below not in reached]:
            pending += missing
            continue
        pending.pop()
        found: set[int] = set()
        for edge in edges:
            found.update(reached[edge[0]], positions.get(edge, ()))
        reached[node] = frozenset(found)


def runs_python_before_base(result: Any) -> bool:
    """Whether the gradient of a view passes a hook or an ``autograd.Function`` on its way to the base."""
    base = getattr(result, "_base", None)
    if base is None or result.grad_fn is None:
        return False
    end = (base.grad_fn, base.output_nr)
    edges: Sequence[tuple[Any, int]] = [(result.grad_fn, result.output_nr)]
    while len(edges) == 1 and edges[0] != end and edges[0][0] is not None:  # views have one input
        node = edges[0][0]
        if runs_python(node):
            return True
        edges = node.next_functions
    return False
