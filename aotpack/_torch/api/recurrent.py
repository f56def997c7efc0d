"""Traces recurrent layers (RNN, LSTM, GRU) as scans: one loop over time, for sequences of any
length.

torch's rules decompose a layer into its cell, once for each time step. Here a layer is a scan of
the cell. Its gradient is a scan in the opposite direction over the values that the first scan
stacked. Work that needs no loop is outside: the products with the input, and the gradients of the
weights.

Tried on: torch 2.9.0 (with torch_xla), 2.13.0. It wraps the functions for one layer in
``torch._decomp.decompositions``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from .patching import hooked, replaced_outside_torch

_HOOK = "decomposition-recurrent-scans"

_SCANS = importlib.import_module("torch._higher_order_ops.scan")  # its package has a function of the same name

State = Sequence[Tensor]
"""The state that a cell passes on: the hidden state, and for an LSTM the cell state."""


class _Cell(NamedTuple):
    """The elementwise part of a step, and of its gradient.

    ``forward(from_input, from_hidden, state)`` returns the next state, and further values that the
    gradient needs. ``saved(before, after, kept)`` selects the values that ``backward`` reads.
    ``backward(gradients, saved)`` takes the gradients of the next state. It returns the gradients
    of both products and of the state; None for a state that is used only in a product.
    ``products_differ``: whether the two products have different gradients.
    """

    forward: Callable[[Tensor, Tensor, State], tuple[State, State]]
    saved: Callable[[State, State, State], State]
    backward: Callable[[State, State], tuple[Tensor, Tensor, Sequence[Tensor | None]]]
    products_differ: bool = False


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


def _plain(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, State], tuple[State, State]]:
    return lambda from_input, from_hidden, state: ((function(from_input + from_hidden),), ())


def _plain_backward(slope: Callable[[Tensor, Tensor], Tensor]) -> Callable[[State, State], tuple[Tensor, Tensor, tuple[None]]]:
    def backward(gradients: State, saved: State) -> tuple[Tensor, Tensor, tuple[None]]:
        product = slope(gradients[0], saved[0])
        return product, product, (None,)

    return backward


def _after(before: State, after: State, kept: State) -> State:
    return after


_TANH = _Cell(_plain(torch.tanh), _after, _plain_backward(lambda gradient, result: gradient * (1 - result * result)))
_RELU = _Cell(_plain(torch.relu), _after, _plain_backward(lambda gradient, result: torch.where(result > 0, gradient, 0)))
_LSTM = _Cell(_lstm, lambda before, after, kept: (before[1], after[1], *kept), _lstm_backward)
_GRU = _Cell(_gru, lambda before, after, kept: (*before, *kept), _gru_backward, products_differ=True)


class _Weights(NamedTuple):
    """The weights of the hidden state: for its product, and for the projection of an LSTM."""

    product: Tensor
    bias: Tensor | None = None
    projection: Tensor | None = None


@dataclass(frozen=True)
class _Layer:
    """A cell, and the operands of its steps: ``states`` states, then the weights that exist."""

    cell: _Cell
    states: int
    has_bias: bool
    has_projection: bool

    def weights(self, operands: State) -> _Weights:
        left = iter(operands)
        return _Weights(next(left), next(left) if self.has_bias else None, next(left) if self.has_projection else None)

    def step(self, row: Tensor, state: State, weights: _Weights) -> tuple[State, State]:
        product = linear(state[0].to(weights.product.dtype), weights.product, weights.bias)
        (hidden, *rest), kept = self.cell.forward(row, product, state)
        if weights.projection is not None:
            hidden = linear(hidden.to(weights.projection.dtype), weights.projection)
        return (hidden, *rest), kept

    def scan(self, sequence: Tensor, operands: State) -> tuple[State, State, State]:
        """Return the last state, the states after each step, and the further values that the
        gradient needs.
        """
        count = self.states

        def step(*values: Tensor) -> list[Tensor]:
            state, kept = self.step(values[count], values[:count], self.weights(values[count + 1 :]))
            return [*state, *(value.clone() for value in state), *kept]

        found = _SCANS.scan_op(step, list(operands[:count]), [sequence], tuple(operands[count:]))
        return found[:count], found[count : 2 * count], found[2 * count :]

    def inference(self, sequence: Tensor, operands: State) -> State:
        """Return the last state, and the hidden state after each step."""
        count = self.states

        def step(*values: Tensor) -> list[Tensor]:
            state, _ = self.step(values[count], values[:count], self.weights(values[count + 1 :]))
            return [*state, state[0].clone()]

        found: State = _SCANS.scan_op(step, list(operands[:count]), [sequence], tuple(operands[count:]))
        return found

    def unrolled(self, sequence: Tensor, operands: State) -> tuple[Tensor, ...]:
        """Compute the results of :class:`_Scanned` step by step, without a loop."""
        state, weights, rows = operands[: self.states], self.weights(operands[self.states :]), []
        for row in sequence.unbind(0):
            state, _ = self.step(row, state, weights)
            rows.append(state[0])
        return torch.stack(rows), *state

    def types(self, sequence: Tensor, operands: State) -> tuple[Tensor, ...]:
        """Values with the types and ``requires_grad`` of the results of :class:`_Scanned`; their
        contents differ.
        """
        state, _ = self.step(sequence[0], operands[: self.states], self.weights(operands[self.states :]))
        return state[0].expand(sequence.shape[0], *state[0].shape).clone(), *state

    def gradients(self, gradients: State, sequence: Tensor, operands: State, rows: State, kept: State) -> list[Tensor]:
        """The gradients of the input and of the operands, from the gradients of the results of
        :class:`_Scanned`.
        """
        cell, count, weights = self.cell, self.states, self.weights(operands[self.states :])
        before = [torch.cat([first.unsqueeze(0), row[:-1]]) for first, row in zip(operands, rows, strict=False)]
        saved = cell.saved(before, rows, kept)

        def step(*values: Tensor) -> list[Tensor]:
            (hidden, *rest), row, values = values[:count], values[count], values[count + 1 :]
            picked, constants = values[: len(saved)], values[len(saved) :]
            hidden = hidden + row
            inner = hidden if weights.projection is None else hidden @ constants[1]
            of_input, of_hidden, (beside, *of_rest) = cell.backward((inner, *rest), picked)
            of_input, of_hidden = of_input.to(sequence.dtype), of_hidden.to(sequence.dtype)
            through = (of_hidden @ constants[0]).to(hidden.dtype)
            of_states: list[Any] = [through if beside is None else through + beside, *of_rest]
            results = [value.to(state.dtype) for value, state in zip(of_states, (hidden, *rest), strict=True)]
            results += [of_input, of_hidden] if cell.products_differ else [of_input]
            return results if weights.projection is None else [*results, hidden]

        constants = (weights.product,) if weights.projection is None else (weights.product, weights.projection)
        backwards = [value.flip(0) for value in (gradients[0], *saved)]
        found = _SCANS.scan_op(step, list(gradients[1:]), backwards, constants)
        of_states, of_rows = found[:count], [value.flip(0) for value in found[count:]]
        of_hidden = of_rows[1] if cell.products_differ else of_rows[0]
        results = [of_rows[0], *of_states, _of_weight(of_hidden, before[0])]
        results += [of_hidden.sum((0, 1))] if self.has_bias else []
        if self.has_projection:
            inner = kept[0].chunk(4, -1)[3] * rows[1].tanh()
            results.append(_of_weight(of_rows[-1], inner))
        return results


def _of_weight(gradient: Tensor, sequence: Tensor) -> Tensor:
    """The gradient of a weight over all steps, from the gradient of its product with ``sequence``."""
    return gradient.flatten(0, 1).t() @ sequence.flatten(0, 1).to(gradient.dtype)


class _Scanned(torch.autograd.Function):
    """``(hidden state after each step, last state…)`` of a layer, from the products with the input
    for all steps.
    """

    @staticmethod
    def forward(ctx: Any, layer: _Layer, sequence: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        last, rows, kept = layer.scan(sequence, operands)
        ctx.layer, ctx.kept = layer, len(kept)
        ctx.save_for_backward(sequence, *operands, *rows, *kept)
        return rows[0], *last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        layer: _Layer = ctx.layer
        sequence, *saved = ctx.saved_tensors
        count = len(saved) - layer.states - ctx.kept
        operands, rows, kept = saved[:count], saved[count : count + layer.states], saved[count + layer.states :]
        if not torch.is_grad_enabled():
            return None, *layer.gradients(gradients, sequence, operands, rows, kept)
        # For gradients of gradients, run step by step: the stacked values are no results, and have
        # no gradients.
        inputs = [value for value, needed in zip((sequence, *operands), ctx.needs_input_grad[1:], strict=True) if needed]
        found = iter(torch.autograd.grad(layer.unrolled(sequence, operands), inputs, gradients, create_graph=True))
        return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])


def _run(cell: _Cell, sequence: Tensor, state: State, params: Sequence[Tensor], has_biases: bool, reverse: bool) -> State:
    """``(hidden states over time, last state…)`` of one layer in one direction, like torch's
    functions for one layer.
    """
    weight, product, *rest = params
    bias, own_bias = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(params) % 2 else None
    sequence = linear(sequence, weight, bias)
    weights = [value for value in (product, own_bias, projection) if value is not None]
    casts = torch.is_autocast_enabled(sequence.device.type)
    layer = _Layer(cell, len(state), own_bias is not None, projection is not None)
    sequence = sequence.flip(0) if reverse else sequence
    with torch.autocast(sequence.device.type, enabled=False):
        if casts:
            weights = [value.to(sequence.dtype) for value in weights]
            made, _ = layer.step(sequence[0], state, layer.weights(weights))  # the loop carries the dtypes that a step returns
            state = [value.to(after.dtype) for value, after in zip(state, made, strict=True)]
        operands = [*state, *weights]
        if torch.compiler.is_exporting():  # torch.export keeps the operator
            rows, *last = layer.types(sequence, operands)
        elif torch.is_grad_enabled() and any(value.requires_grad for value in (sequence, *operands)):
            rows, *last = _Scanned.apply(layer, sequence, *operands)  # type: ignore[no-untyped-call]
        else:
            *last, rows = layer.inference(sequence, operands)
    return rows.flip(0) if reverse else rows, *last


def lstm_layer(x: Tensor, state: State, params: Sequence[Tensor], *, reverse: bool) -> State:
    """``(hidden states over time, hidden state, cell state)`` of an LSTM layer with biases, without
    gradients.
    """
    with torch.no_grad():
        return _run(_LSTM, x, state, params, has_biases=True, reverse=reverse)


def _in_transform() -> bool:
    """Whether a function transform or forward-mode differentiation is active; both need the single
    steps.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


@contextlib.contextmanager
def recurrent_scans() -> Iterator[None]:
    """Trace recurrent layers as scans."""
    torchs: Any = decompositions
    plain, lstm, make_cell = torchs.one_layer_rnn, torchs.one_layer_lstm, torchs.rnn_cell
    cells = {torch.tanh: _TANH, torch.relu: _RELU, torchs.gru_cell: _GRU}

    def one_layer_rnn(x: Tensor, hidden: Tensor, params: Any, has_biases: bool, hidden_fn: Any, reverse: bool = False) -> Any:
        if _in_transform():
            cell = hidden_fn if hidden_fn is torchs.gru_cell else make_cell(hidden_fn)
            return plain(x, hidden, params, has_biases, cell, reverse)
        return _run(cells[hidden_fn], x, [hidden], params, has_biases, reverse)

    def one_layer_lstm(x: Tensor, hidden: Any, params: Any, has_biases: bool, reverse: bool = False) -> Any:
        if _in_transform():
            return lstm(x, hidden, params, has_biases, reverse)
        rows, *last = _run(_LSTM, x, hidden, params, has_biases, reverse)
        return rows, tuple(last)

    with (
        hooked(_HOOK, decompositions, "rnn_cell", lambda nonlinearity: nonlinearity),
        hooked(_HOOK, decompositions, "one_layer_rnn", one_layer_rnn),
        hooked(_HOOK, decompositions, "one_layer_lstm", one_layer_lstm),
        hooked(_HOOK, decompositions, "select_one_layer_lstm_function", lambda *given: one_layer_lstm),
    ):
        yield


class PackedSequenceError(Exception):
    """A recurrent layer gets a packed sequence, whose step sizes are values of a tensor."""


@contextlib.contextmanager
def refused_packing() -> Iterator[None]:
    """Reject layers with packed sequences; torch's own error would name some operator inside the
    layer.

    Raises:
        PackedSequenceError: raised at the layer's source line.
    """

    def watched(kind: Any) -> Callable[..., Any]:
        forward: Callable[..., Any] = kind.forward

        @functools.wraps(forward)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if any(isinstance(arg, PackedSequence) for arg in (*args, *kwargs.values())):
                raise PackedSequenceError(f"passes a packed sequence to {kind.__name__}")
            return forward(self, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for kind in (torch.nn.LSTM, torch.nn.RNN, torch.nn.modules.rnn.GRU):
            stack.enter_context(hooked(_HOOK, kind, "forward", watched(kind)))
        for kind in _other_grus():
            stack.enter_context(replaced_outside_torch(kind, "forward", watched(kind)))
        yield


def _other_grus() -> list[Any]:
    """The class by which torch_xla, once imported, replaces ``torch.nn.GRU``."""
    module = sys.modules.get("torch_xla.experimental.gru")
    return [] if module is None else [module.GRU]


@contextlib.contextmanager
def own_gru() -> Iterator[None]:
    """Restore ``torch.nn.GRU``: torch_xla's replacement runs only on its devices."""
    with contextlib.ExitStack() as stack:
        for kind in _other_grus():
            stack.enter_context(replaced_outside_torch(kind, "forward", torch.nn.modules.rnn.GRU.forward))
        yield
