"""Rejects an ``autograd.Function`` that asks for None in place of undefined gradients, where a call
may leave some of its gradients undefined.

A backward graph is one for all calls, so it gets zeros for results without a gradient. A custom
backward after ``ctx.set_materialize_grads(False)`` may treat None and zeros differently.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from ..api.counting import count_call
from ..api.patching import hooked
from .gradient_writes import definition

ASKS = "set_materialize_grads"
"""The method by which a forward asks for None."""


class UndefinedGradientError(Exception):
    """Some gradients of an ``autograd.Function`` may be undefined; ``line`` is that of its backward."""

    def __init__(self, function: Any) -> None:
        super().__init__(
            "returns several results, and tells None from zeros in its backward (ctx.set_materialize_grads(False)), "
            "but a bundle passes zeros for results without a gradient"
        )
        self.line = definition(function.backward)


class UndefinedGradients:
    """Records the functions that ask for None while a model runs."""

    def __init__(self) -> None:
        self._asking: list[Any] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While active, record the functions."""
        ask = FunctionCtx.set_materialize_grads

        def asked(context: Any, value: bool) -> None:
            count_call("aot-undefined-gradients")
            ask(context, value)
            if not value:
                self._asking.append(context)

        with hooked("aot-undefined-gradients", FunctionCtx, ASKS, asked):
            yield

    def check(self, results: Sequence[torch.Tensor]) -> None:
        """Reject a recorded function if a call can give gradients to some of its results only.

        Raises:
            UndefinedGradientError: has the source line of its backward.
        """
        if not self._asking:
            return
        dependents = _dependents(results)
        for context in self._asking:
            of_outputs = [found for (node, _), found in dependents.items() if node is context]
            if any(found != of_outputs[0] for found in of_outputs):
                raise UndefinedGradientError(type(context)._forward_cls)


def asks_for_none(function: Any) -> bool:
    """Whether the code of an ``autograd.Function`` asks for None. Dynamo's graph loses that."""
    methods = (function.forward, function.setup_context)
    return any(ASKS in inspect.unwrap(method).__code__.co_names for method in methods)


def _dependents(results: Sequence[torch.Tensor]) -> dict[tuple[Any, int], set[int]]:
    """Map each output of a node, as node and number, to the ``results`` (by number) that depend on it."""
    found: dict[tuple[Any, int], set[int]] = {}
    for number, result in enumerate(results):
        root: Any = result.grad_fn
        if root is None:
            continue
        found.setdefault((root, result.output_nr), set()).add(number)
        pending, visited = [root], {root}
        while pending:
            for node, output in pending.pop().next_functions:
                if node is None:
                    continue
                found.setdefault((node, output), set()).add(number)
                if node not in visited:
                    visited.add(node)
                    pending.append(node)
    return found
