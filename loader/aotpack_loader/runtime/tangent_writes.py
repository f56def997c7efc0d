"""Writes the new values of tangents to the gradients that a backward was given, as the original's own backward does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .._torch_compat import is_batched, node_runs
from ..errors import AutogradError
from .memory import ByteRange


class Write(NamedTuple):
    """A write to the gradient at ``position``, that of forward output ``of``: its new value is backward output ``output``.

    ``sources`` are the primals whose gradients depend on it.
    """

    position: int
    of: int
    sources: Sequence[int]
    output: int


class Writes:
    """The gradients to write to in one backward, checked before it runs.

    A missing gradient is not written to. Nor is one from which no wanted gradient is computed: eager
    does not run the function that writes to it.

    Raises:
        AutogradError: a gradient to write to shares memory with itself or with another value, or
            requires a gradient.
    """

    def __init__(self, ctx: Any, writes: Iterable[Write], gradients: Sequence[torch.Tensor | None], saved: Iterable[Any]) -> None:
        nodes = [node for node, _ in ctx.next_functions]
        self._found: list[tuple[torch.Tensor, int]] = []
        for to in writes:
            gradient = gradients[to.position]
            if gradient is not None and any(nodes[i] is not None and node_runs(nodes[i]) for i in to.sources):
                _require_writable(gradient, [*gradients, *saved], to.of)
                self._found.append((gradient, to.output))

    def write(self, results: list[Any]) -> None:
        """Write the new values, which ``results`` has, to the gradients.

        Results that share memory with a written gradient are copied first.

        Raises:
            AutogradError: a new value does not fit its gradient. Nothing is written.
        """
        for gradient, output in self._found:
            value = results[output]
            if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (gradient.shape, gradient.dtype):
                raise AutogradError(
                    "The bundle is wrong: its backward writes to a gradient, and the new value has other sizes or another type."
                )
        with torch.no_grad():
            for gradient, _ in self._found:
                for i, result in enumerate(results):
                    if isinstance(result, torch.Tensor) and _meet(gradient, result):
                        results[i] = result.clone()
            for gradient, output in self._found:
                gradient.copy_(results[output])


def _require_writable(gradient: torch.Tensor, others: Iterable[Any], output: int) -> None:
    reason = ""
    if gradient.requires_grad:
        reason = "requires a gradient itself"
    elif any(step == 0 and size > 1 for size, step in zip(gradient.shape, gradient.stride(), strict=True)):
        reason = "has elements that share memory, as sum() and expand() make them"
    elif any(isinstance(x, torch.Tensor) and x is not gradient and _meet(gradient, x) for x in others) or (
        sum(x is gradient for x in others) > 1
    ):
        reason = "shares memory with another gradient, or with a value that was saved for the backward"
    if reason:
        raise AutogradError(
            f"The model's backward writes to the gradient of output {output}, which {reason}.",
            hint="Pass a copy: out.backward(gradient.clone()), or multiply the result by 1 before the loss.",
        )


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    if is_batched(one) or is_batched(other):
        return one is other
    return _range(one).meet(_range(other))


def _range(tensor: torch.Tensor) -> ByteRange:
    return ByteRange(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.element_size())
