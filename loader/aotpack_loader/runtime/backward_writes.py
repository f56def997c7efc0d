"""Writes the new values of tangents and buffers, as the original's own backward does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from .._torch_compat import is_batched, node_runs
from ..errors import AutogradError
from ..format import schema
from .backward_inputs import Tangent
from .memory import ByteRange


class Writing(Protocol):
    """A method whose backward writes, :class:`~.autograd.Differentiable`."""

    visible: list[int]
    tangents: list[Tangent]
    sources: list[list[int] | range]
    tangent_writes: list[schema.TangentWrite]
    state_writes: list[schema.StateWrite]


class Writes:
    """The gradients and buffers to write to in one backward, checked before it runs.

    A missing gradient is not written to. Nor is one from which no wanted gradient is computed: eager
    does not run the function that writes to it.

    ``received``: the tangents that are there.

    Raises:
        AutogradError: a gradient to write to shares memory with itself or with another value, or
            requires a gradient. Autograd runs a part of what writes to a buffer, or records the backward.
    """

    def __init__(
        self, ctx: Any, method: Writing, gradients: Sequence[torch.Tensor | None], received: set[int], saved: Iterable[Any]
    ) -> None:
        self._nodes = [node for node, _ in ctx.next_functions]
        self._found: list[tuple[torch.Tensor, int]] = []
        for write in method.tangent_writes:
            position = method.tangents[write.tangent].position
            gradient = gradients[position]
            if gradient is not None and self._wants(method.sources[write.tangent]):
                _require_writable(gradient, [*gradients, *saved], method.visible[position])
                self._found.append((gradient, write.output))
        for state_write, buffer in zip(method.state_writes, ctx.call.state, strict=True):
            if self._is_due(state_write, received):
                if torch.is_grad_enabled() or buffer.requires_grad:
                    raise AutogradError(
                        "The model's backward writes to a buffer. Neither create_graph=True nor a buffer that requires a "
                        "gradient is supported beside that."
                    )
                self._found.append((buffer, state_write.output))

    def _wants(self, primals: Iterable[int]) -> bool:
        """Whether autograd wants the gradient of one of ``primals``."""
        return any(self._nodes[i] is not None and node_runs(self._nodes[i]) for i in primals)

    def _is_due(self, write: schema.StateWrite, received: set[int]) -> bool:
        runs = [not received.isdisjoint(writer.tangents) and self._wants(writer.primals) for writer in write.writers]
        if any(runs) and not all(runs):
            raise AutogradError(
                "The model's backward writes to a buffer in several places, and this backward reaches some of them.",
                hint="Let gradients flow through the whole model, or write to a buffer for each place.",
            )
        return all(runs)

    def write(self, results: list[Any]) -> None:
        """Write the new values, which ``results`` has.

        Results that share memory with a written tensor are copied first.

        Raises:
            AutogradError: a new value does not fit its tensor. Nothing is written.
        """
        for tensor, output in self._found:
            value = results[output]
            if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
                raise AutogradError(
                    "The bundle is wrong: its backward writes a value to a tensor of other sizes or another type."
                )
        with torch.no_grad():
            for tensor, _ in self._found:
                for i, result in enumerate(results):
                    if isinstance(result, torch.Tensor) and _meet(tensor, result):
                        results[i] = result.clone()
            for tensor, output in self._found:
                tensor.copy_(results[output])


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
