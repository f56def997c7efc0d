"""The elementwise parts of recurrent layers: one step of each kind, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

State = Sequence[Tensor]
"""The state that a cell passes on: the hidden state, and for an LSTM the cell state."""


class Cell(NamedTuple):
    """The elementwise part of a step, and of its gradient.

    ``forward(from_input, from_hidden, state)`` returns the next state, and further values that the
    gradient needs. ``saved(before, after, kept)`` selects the values that ``backward`` reads.
    ``backward(gradients, saved)`` takes the gradients of the next state. It returns the gradients
    of both products and of the state; None for a state that is used only in a product.
    ``of_hidden(of_input, saved)`` computes the gradient of the product with the hidden state from that of the product
    with the input, for all steps at once. It is null where the two are equal.
    """

    forward: Callable[[Tensor, Tensor, State], tuple[State, State]]
    saved: Callable[[State, State, State], State]
    backward: Callable[[State, State], tuple[Tensor, Tensor, Sequence[Tensor | None]]]
    of_hidden: Callable[[Tensor, State], Tensor] | None = None


def _lstm(from_input: Tensor, from_hidden: Tensor, state: State) -> tuple[State, State]:
    i, f, g, o = (from_input + from_hidden).chunk(4, -1)
    gates = torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], -1)
    i, f, g, o = gates.chunk(4, -1)
    memory = f * state[1] + i * g
    return (o * memory.tanh(), memory), (gates,)


def _lstm_backward(gradients: State, saved: State) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    before, after, gates = saved
    i, f, g, o = gates.chunk(4, -1)
    bent = after.tanh()
    memory = gradients[1] + gradients[0] * o * (1 - bent * bent)
    parts = [
        memory * g * i * (1 - i),
        memory * before * f * (1 - f),
        memory * i * (1 - g * g),
        gradients[0] * bent * o * (1 - o),
    ]
    product = torch.cat(parts, -1)
    return product, product, (None, memory * f)


def _gru(from_input: Tensor, from_hidden: Tensor, state: State) -> tuple[State, State]:
    input_gates, hidden_gates = from_input.chunk(3, -1), from_hidden.chunk(3, -1)
    r, z = (input_gates[0] + hidden_gates[0]).sigmoid(), (input_gates[1] + hidden_gates[1]).sigmoid()
    n = (input_gates[2] + hidden_gates[2] * r).tanh()
    return ((state[0] - n) * z + n,), (torch.cat([r, z, n], -1), hidden_gates[2].clone())


def _gru_backward(gradients: State, saved: State) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    before, gates, hidden = saved
    (gradient,) = gradients
    r, z, n = gates.chunk(3, -1)
    new = gradient * (1 - z) * (1 - n * n)
    update, reset = gradient * (before - n) * z * (1 - z), new * hidden * r * (1 - r)
    return torch.cat([reset, update, new], -1), torch.cat([reset, update, new * r], -1), (gradient * z,)


def _gru_of_hidden(of_input: Tensor, saved: State) -> Tensor:
    reset, update, new = of_input.chunk(3, -1)
    return torch.cat([reset, update, new * saved[1].chunk(3, -1)[0]], -1)


def _plain(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, State], tuple[State, State]]:
    return lambda from_input, from_hidden, state: ((function(from_input + from_hidden),), ())


def _plain_backward(slope: Callable[[Tensor, Tensor], Tensor]) -> Callable[[State, State], tuple[Tensor, Tensor, tuple[None]]]:
    def backward(gradients: State, saved: State) -> tuple[Tensor, Tensor, tuple[None]]:
        product = slope(gradients[0], saved[0])
        return product, product, (None,)

    return backward


def _after(before: State, after: State, kept: State) -> State:
    return after


TANH = Cell(_plain(torch.tanh), _after, _plain_backward(lambda gradient, result: gradient * (1 - result * result)))
RELU = Cell(_plain(torch.relu), _after, _plain_backward(lambda gradient, result: torch.where(result > 0, gradient, 0)))
LSTM = Cell(_lstm, lambda before, after, kept: (before[1], after[1], *kept), _lstm_backward)
GRU = Cell(_gru, lambda before, after, kept: (*before, *kept), _gru_backward, _gru_of_hidden)
