"""An LSTM that is trained, as calls of oneDNN's kernel for a whole layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .recurrent_cells import State


class _Kernel(torch.autograd.Function):
    """``(hidden state after each step, last states…)`` of an LSTM layer by oneDNN's kernel for a
    whole layer, as eager computes it.

    What the kernel keeps for its gradient has a size that depends on the processor. Graphs describe
    it as empty.
    """

    @staticmethod
    def forward(ctx: Any, has_biases: bool, reverse: bool, *given: Tensor) -> tuple[Tensor, ...]:
        # 2: an LSTM; one layer, in one direction, whose rows are the steps
        how: Any = (reverse, [], 2, given[5].shape[-1], 1, has_biases, False, False, True)
        *results, workspace = torch.ops.aten.mkldnn_rnn_layer.default(*given, *how)
        ctx.has_biases, ctx.reverse = has_biases, reverse
        ctx.save_for_backward(*given, *results, workspace)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *saved, workspace = ctx.saved_tensors
        # [0]: sizes of steps, which the kernel ignores; AOTInductor can pass no empty list
        how: Any = (ctx.reverse, 2, saved[5].shape[-1], 1, ctx.has_biases, True, False, [0], False)
        found = torch.ops.aten.mkldnn_rnn_layer_backward.default(*saved, *gradients, *how, workspace)
        sequence, *weights, _, bias, hidden, memory = found  # the kernel returns one tensor twice, and torch's cache two
        return None, None, sequence, *weights, bias, bias, hidden, memory


def by_kernel(sequence: Tensor, state: State, params: Sequence[Tensor], has_biases: bool, reverse: bool) -> State:
    """``(hidden states over time, last state…)`` of one layer of an LSTM in one direction, by oneDNN's kernel."""
    biases = params[2:4] if has_biases else [sequence.new_zeros(params[0].shape[0])] * 2
    given = [value.contiguous() for value in (sequence, *params[:2], *biases, *(value.unsqueeze(0) for value in state))]
    rows, *last = _Kernel.apply(has_biases, reverse, *given)  # type: ignore[no-untyped-call]
    return rows, *(value.squeeze(0) for value in last)


def suits_kernel(sequence: Tensor, state: State, params: Sequence[Tensor]) -> bool:
    """Whether oneDNN's kernel computes an LSTM layer on every processor: with 32-bit numbers and
    without a projection.
    """
    given = [sequence, *state, *params]
    return (
        all(value.dtype == torch.float32 and value.device.type == "cpu" for value in given)
        and not torch.is_autocast_enabled("cpu")
        and len(params) % 2 == 0
        and torch.is_grad_enabled()
        and any(value.requires_grad for value in given)
        and not torch.compiler.is_exporting()
        and torch.backends.mkldnn.is_available()
    )
