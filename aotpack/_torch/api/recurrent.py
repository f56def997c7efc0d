"""Traces recurrent layers (RNN, LSTM, GRU) as loops over time whose gradients are loops as well.

torch's rules decompose a layer into its cell, once for each time step, and autograd adds a gradient
of each weight at every step. Here the gradient of a layer is a loop in the opposite direction over
the values that the first loop kept. Work that needs no loop is outside: the products with the
input, and the gradients of the weights.

A packed sequence is padded for the loop (:mod:`.packed`). A step keeps the states of the sequences that have ended.

A loop is a scan where the compiler keeps loops, where the number of steps varies, and where there
are many. Elsewhere its steps follow one another in the graph.

It wraps the functions for one layer in ``torch._decomp.decompositions``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch.nn.functional import linear

from .lstm_kernel import by_kernel, suits_kernel
from .packed import Packing, other_grus, packing_of
from .patching import hooked, replaced_outside_torch
from .recurrent_cells import GRU, LSTM, RELU, TANH, Cell, State

_HOOK = "decomposition-recurrent-scans"

UNROLLED: Final = 32
"""Up to so many steps are traced one by one. With 96 steps, a GRU on `cpu` takes 0.87 of the scan's time, and 3 times
as long to build."""

_SCANS = importlib.import_module("torch._higher_order_ops.scan")  # its package has a function of the same name


class _Loop(Protocol):
    """Runs ``step(*states, *parts, *constants)`` for each row of the sequences, from the last one
    with ``backwards``.

    A step returns the next states and further values. Returns the last states, and the further
    values of all rows, stacked.
    """

    def __call__(
        self, step: Callable[..., Sequence[Tensor]], states: State, sequences: State, constants: State, *, backwards: bool = False
    ) -> list[Tensor]: ...


def _scan(
    step: Callable[..., Sequence[Tensor]], states: State, sequences: State, constants: State, *, backwards: bool = False
) -> list[Tensor]:
    def clones(*values: Tensor) -> list[Tensor]:  # the results of a scan's step share no memory
        found = step(*values)
        return [*found[: len(states)], *(value.clone() for value in found[len(states) :])]

    found = _SCANS.scan_op(clones, list(states), [value.flip(0) if backwards else value for value in sequences], tuple(constants))
    return [*found[: len(states)], *(value.flip(0) if backwards else value for value in found[len(states) :])]


def _unrolled(
    step: Callable[..., Sequence[Tensor]], states: State, sequences: State, constants: State, *, backwards: bool = False
) -> list[Tensor]:
    rows = list(zip(*(sequence.unbind(0) for sequence in sequences), strict=True))
    further: list[State] = []
    count = len(states)
    for row in reversed(rows) if backwards else rows:
        found = step(*states, *row, *constants)
        states = found[:count]
        further.append(found[count:])
    if backwards:
        further.reverse()
    return [*states, *map(torch.stack, zip(*further, strict=True))]


class _Weights(NamedTuple):
    """The weights of the hidden state: for its product, and for the projection of an LSTM."""

    product: Tensor
    bias: Tensor | None = None
    projection: Tensor | None = None


@dataclass(frozen=True)
class _Layer:
    """A cell, and the operands of its steps: ``states`` states, then the weights that exist."""

    loop: _Loop
    cell: Cell
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

    def masked_step(self, row: Tensor, mask: Tensor | None, state: State, weights: _Weights) -> tuple[State, State]:
        """A step of the sequences for which ``mask`` is true; the states of the others stay."""
        after, kept = self.step(row, state, weights)
        return after if mask is None else _where(mask, after, state), kept

    def run(self, sequence: Tensor, mask: Tensor | None, operands: State) -> tuple[State, State, State]:
        """Return the last state, the states after each step, and the further values that the
        gradient needs.
        """
        count, sequences = self.states, [sequence] if mask is None else [sequence, mask]

        def step(*values: Tensor) -> list[Tensor]:
            row, *masks = values[count : count + len(sequences)]
            weights = self.weights(values[count + len(sequences) :])
            state, kept = self.masked_step(row, masks[0] if masks else None, values[:count], weights)
            return [*state, *state, *kept]

        found = self.loop(step, operands[:count], sequences, operands[count:])
        return found[:count], found[count : 2 * count], found[2 * count :]

    def inference(self, sequence: Tensor, mask: Tensor | None, operands: State) -> State:
        """Return the last state, and the hidden state after each step."""
        count, sequences = self.states, [sequence] if mask is None else [sequence, mask]

        def step(*values: Tensor) -> list[Tensor]:
            row, *masks = values[count : count + len(sequences)]
            weights = self.weights(values[count + len(sequences) :])
            state, _ = self.masked_step(row, masks[0] if masks else None, values[:count], weights)
            return [*state, state[0]]

        return self.loop(step, operands[:count], sequences, operands[count:])

    def unrolled(self, sequence: Tensor, mask: Tensor | None, operands: State) -> tuple[Tensor, ...]:
        """Compute the results of :class:`_Scanned` step by step, without a loop."""
        state, weights, rows = operands[: self.states], self.weights(operands[self.states :]), []
        masks = [None] * sequence.shape[0] if mask is None else mask.unbind(0)
        for row, own in zip(sequence.unbind(0), masks, strict=True):
            state, _ = self.masked_step(row, own, state, weights)
            rows.append(state[0])
        return torch.stack(rows), *state

    def types(self, sequence: Tensor, operands: State) -> tuple[Tensor, ...]:
        """Values with the types and ``requires_grad`` of the results of :class:`_Scanned`; their
        contents differ.
        """
        state, _ = self.step(sequence[0], operands[: self.states], self.weights(operands[self.states :]))
        return state[0].expand(sequence.shape[0], *state[0].shape).clone(), *state

    def gradients(
        self, gradients: State, sequence: Tensor, mask: Tensor | None, operands: State, rows: State, kept: State
    ) -> list[Tensor]:
        """The gradients of the input and of the operands, from the gradients of the results of
        :class:`_Scanned`.
        """
        cell, count, weights = self.cell, self.states, self.weights(operands[self.states :])
        before = [torch.cat([first.unsqueeze(0), row[:-1]]) for first, row in zip(operands, rows, strict=False)]
        saved = cell.saved(before, rows, kept)
        masks = [] if mask is None else [mask]

        def step(*values: Tensor) -> list[Tensor]:
            (hidden, *rest), row, values = values[:count], values[count], values[count + 1 :]
            picked, values = values[: len(saved)], values[len(saved) :]
            own, constants = values[: len(masks)], values[len(masks) :]
            hidden = hidden + row
            inner = hidden if weights.projection is None else hidden @ constants[1]
            of_input, of_hidden, (beside, *of_rest) = cell.backward((inner, *rest), picked)
            of_input, of_hidden = of_input.to(sequence.dtype), of_hidden.to(sequence.dtype)
            through = (of_hidden @ constants[0]).to(hidden.dtype)
            of_states: list[Any] = [through if beside is None else through + beside, *of_rest]
            results = [value.to(state.dtype) for value, state in zip(of_states, (hidden, *rest), strict=True)]
            further = [of_input] if weights.projection is None else [of_input, hidden]
            if own:
                further = _where(own[0], further, [value.new_zeros(()) for value in further])
                results = _where(own[0], results, (hidden, *rest))
            return [*results, *further]

        constants = (weights.product,) if weights.projection is None else (weights.product, weights.projection)
        found = self.loop(step, gradients[1:], [gradients[0], *saved, *masks], constants, backwards=True)
        of_states, (of_input, *of_projected) = found[:count], found[count:]
        of_hidden = of_input if cell.of_hidden is None else cell.of_hidden(of_input, saved).to(of_input.dtype)
        results = [of_input, *of_states, _of_weight(of_hidden, before[0])]
        results += [of_hidden.sum((0, 1))] if self.has_bias else []
        if self.has_projection:
            inner = kept[0].chunk(4, -1)[3] * rows[1].tanh()
            results.append(_of_weight(of_projected[0], inner))
        return results


def _where(mask: Tensor, values: State, others: State) -> list[Tensor]:
    return [torch.where(mask, value, other) for value, other in zip(values, others, strict=True)]


def _of_weight(gradient: Tensor, sequence: Tensor) -> Tensor:
    """The gradient of a weight over all steps, from the gradient of its product with ``sequence``."""
    return gradient.flatten(0, 1).t() @ sequence.flatten(0, 1).to(gradient.dtype)


class _Scanned(torch.autograd.Function):
    """``(hidden state after each step, last state…)`` of a layer, from the products with the input
    for all steps. ``mask`` says which sequences a step is for.
    """

    @staticmethod
    def forward(ctx: Any, layer: _Layer, mask: Tensor | None, sequence: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        last, rows, kept = layer.run(sequence, mask, operands)
        ctx.layer, ctx.kept = layer, len(kept)
        ctx.save_for_backward(mask, sequence, *operands, *rows, *kept)
        return rows[0], *last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        layer: _Layer = ctx.layer
        mask, sequence, *saved = ctx.saved_tensors
        count = len(saved) - layer.states - ctx.kept
        operands, rows, kept = saved[:count], saved[count : count + layer.states], saved[count + layer.states :]
        if not torch.is_grad_enabled():
            return None, None, *layer.gradients(gradients, sequence, mask, operands, rows, kept)
        # For gradients of gradients, run step by step: the stacked values are no results, and have
        # no gradients.
        inputs = [value for value, needed in zip((sequence, *operands), ctx.needs_input_grad[2:], strict=True) if needed]
        found = iter(torch.autograd.grad(layer.unrolled(sequence, mask, operands), inputs, gradients, create_graph=True))
        return None, None, *(next(found) if needed else None for needed in ctx.needs_input_grad[2:])


def _as_kernel_returns(params: Sequence[Tensor], results: State) -> State:
    """The results of an LSTM layer in the type that eager on the CPU gives them.

    Under autocast oneDNN's kernel returns the type of the autocast. Layers with a projection or
    with 64-bit numbers are not for it.
    """
    kind = results[0].device.type
    if not torch.is_autocast_enabled(kind) or len(params) % 2 or params[0].dtype == torch.float64:
        return results
    return [result.to(torch.get_autocast_dtype(kind)) for result in results]


def _run(
    loop: _Loop,
    cell: Cell,
    sequence: Tensor,
    state: State,
    params: Sequence[Tensor],
    has_biases: bool,
    reverse: bool,
    packing: Packing | None = None,
) -> State:
    """``(hidden states over time, last state…)`` of one layer in one direction, like torch's
    functions for one layer. With ``packing``, the sequence and the hidden states are packed.
    """
    weight, product, *rest = params
    bias, own_bias = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(params) % 2 else None
    if bias is not None and own_bias is not None and cell.of_hidden is None:  # only the sum of the products counts
        bias, own_bias = bias + own_bias, None
    sequence, mask = linear(sequence, weight, bias), None
    if packing is not None:
        sequence, mask = packing.padded(sequence), packing.mask.unsqueeze(-1)
    weights = [value for value in (product, own_bias, projection) if value is not None]
    casts = torch.is_autocast_enabled(sequence.device.type)
    layer = _Layer(loop, cell, len(state), own_bias is not None, projection is not None)
    if reverse:
        sequence, mask = sequence.flip(0), None if mask is None else mask.flip(0)
    with torch.autocast(sequence.device.type, enabled=False):
        if casts:
            weights = [value.to(sequence.dtype) for value in weights]
            made, _ = layer.step(sequence[0], state, layer.weights(weights))  # the loop carries the dtypes that a step returns
            state = [value.to(after.dtype) for value, after in zip(state, made, strict=True)]
        operands = [*state, *weights]
        if torch.compiler.is_exporting():  # torch.export keeps the operator
            rows, *last = layer.types(sequence, operands)
        elif torch.is_grad_enabled() and any(value.requires_grad for value in (sequence, *operands)):
            rows, *last = _Scanned.apply(layer, mask, sequence, *operands)  # type: ignore[no-untyped-call]
        else:
            *last, rows = layer.inference(sequence, mask, operands)
    rows = rows.flip(0) if reverse else rows
    return rows if packing is None else packing.packed(rows), *last


def lstm_layer(x: Tensor, state: State, params: Sequence[Tensor], *, reverse: bool) -> State:
    """``(hidden states over time, hidden state, cell state)`` of an LSTM layer with biases, without
    gradients.
    """
    with torch.no_grad():
        return _run(_scan, LSTM, x, state, params, has_biases=True, reverse=reverse)


def _in_transform() -> bool:
    """Whether a function transform or forward-mode differentiation needs the single steps."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


@contextlib.contextmanager
def recurrent_layers(*, as_scans: bool, kernels: bool = False) -> Iterator[None]:
    """Trace recurrent layers as loops: as scans, or step after step.

    More than :data:`UNROLLED` steps, and a number that varies, get a scan either way. ``kernels``: trace an LSTM
    that is trained as calls of oneDNN's kernel, which the graphs of a processor's target alone may hold.
    """
    torchs: Any = decompositions
    plain, lstm, make_cell = torchs.one_layer_rnn, torchs.one_layer_lstm, torchs.rnn_cell
    cells = {torch.tanh: TANH, torch.relu: RELU, torchs.gru_cell: GRU}
    packed_cells = {torch.tanh: TANH, torch.relu: RELU, torchs.gru_cell_data: GRU}

    def loop_over(count: Any) -> _Loop:
        return _unrolled if not as_scans and isinstance(count, int) and count <= UNROLLED else _scan

    def one_layer_rnn(x: Tensor, hidden: Tensor, params: Any, has_biases: bool, hidden_fn: Any, reverse: bool = False) -> Any:
        if _in_transform():
            cell = hidden_fn if hidden_fn is torchs.gru_cell else make_cell(hidden_fn)
            return plain(x, hidden, params, has_biases, cell, reverse)
        return _run(loop_over(x.shape[0]), cells[hidden_fn], x, [hidden], params, has_biases, reverse)

    def one_layer_lstm(x: Tensor, hidden: Any, params: Any, has_biases: bool, reverse: bool = False) -> Any:
        if _in_transform():
            return lstm(x, hidden, params, has_biases, reverse)
        if kernels and suits_kernel(x, hidden, params):
            rows, *last = by_kernel(x, hidden, params, has_biases, reverse)
            return rows, tuple(last)
        rows, *last = _as_kernel_returns(params, _run(loop_over(x.shape[0]), LSTM, x, hidden, params, has_biases, reverse))
        return rows, tuple(last)

    def one_layer_rnn_data(
        data: Tensor, hidden: Tensor, params: Any, has_biases: bool, hidden_fn: Any, batch_sizes: Tensor, reverse: bool = False
    ) -> Any:
        packing, cell = packing_of(data, batch_sizes), packed_cells[hidden_fn]
        return _run(loop_over(packing.steps), cell, data, [hidden], params, has_biases, reverse, packing)

    def one_layer_lstm_data(
        data: Tensor, hidden: Any, params: Any, has_biases: bool, batch_sizes: Tensor, reverse: bool = False
    ) -> Any:
        packing = packing_of(data, batch_sizes)
        rows, *last = _run(loop_over(packing.steps), LSTM, data, hidden, params, has_biases, reverse, packing)
        return rows, tuple(last)

    chosen: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if as_scans:  # otherwise torch selects oneDNN's kernel of inference, if there are no gradients
        chosen = hooked(_HOOK, decompositions, "select_one_layer_lstm_function", lambda *given: one_layer_lstm)
    with (
        hooked(_HOOK, decompositions, "rnn_cell", lambda nonlinearity: nonlinearity),
        hooked(_HOOK, decompositions, "rnn_cell_data", lambda nonlinearity: nonlinearity),
        hooked(_HOOK, decompositions, "one_layer_rnn", one_layer_rnn),
        hooked(_HOOK, decompositions, "one_layer_lstm", one_layer_lstm),
        hooked(_HOOK, decompositions, "one_layer_rnn_data", one_layer_rnn_data),
        hooked(_HOOK, decompositions, "one_layer_lstm_data", one_layer_lstm_data),
        chosen,
    ):
        yield


@contextlib.contextmanager
def own_gru() -> Iterator[None]:
    """Restore ``torch.nn.GRU``: torch_xla's replacement runs only on its devices."""
    with contextlib.ExitStack() as stack:
        for kind in other_grus():
            stack.enter_context(replaced_outside_torch(kind, "forward", torch.nn.modules.rnn.GRU.forward))
        yield
