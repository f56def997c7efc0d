"""Traces packed sequences. Their lengths are values of a tensor, so the graph computes where each
entry belongs.

torch's kernels read the lengths in Python or C++ while a model is traced. Here a packed sequence is
gathered from the padded one by indices, and put back by the same indices. The number of entries and
the length of the longest sequence are sizes that depend on data.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import _VF, Tensor
from torch._decomp import decompositions
from torch.nn.utils.rnn import PackedSequence
from torch.utils.weak import WeakTensorKeyDictionary

from .fake_tensors import is_traced
from .patching import hooked, replaced_outside_torch

_HOOK = "decomposition-packed-sequences"

_Size = int | torch.SymInt


@dataclass(frozen=True)
class Packing:
    """Where the entries of a packed sequence are in the padded one, ``[steps, batch, …]``.

    ``mask``: ``[steps, batch]``, true where there is an entry. ``entries``: the indices of the entries
    in the flattened ``[steps * batch]``, in the order of the packed sequence.
    """

    steps: _Size
    batch: _Size
    mask: Tensor
    entries: Tensor

    def padded(self, data: Tensor, value: float = 0, steps: _Size | None = None) -> Tensor:
        """The entries ``data`` as ``[steps, batch, …]``, and ``value`` elsewhere."""
        steps = self.steps if steps is None else steps
        flat = data.new_full((steps * self.batch, *data.shape[1:]), value).index_copy(0, self.entries, data)
        padded: Tensor = flat.unflatten(0, (steps, self.batch))
        return padded

    def packed(self, padded: Tensor) -> Tensor:
        """The entries of ``[steps, batch, …]``."""
        return padded.flatten(0, 1).index_select(0, self.entries)


_packings: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Packings by their ``batch_sizes``."""


def packing_of(data: Tensor, batch_sizes: Tensor) -> Packing:
    """The packing of a packed sequence, which the model may have got as an argument."""
    if batch_sizes not in _packings:
        count: Any = batch_sizes[0].item()
        ends, entry = batch_sizes.cumsum(0), torch.arange(data.shape[0])
        step = torch.searchsorted(ends, entry, right=True)
        first = (ends - batch_sizes).index_select(0, step)
        mask = torch.arange(count) < batch_sizes.unsqueeze(1)
        _packings[batch_sizes] = Packing(batch_sizes.shape[0], count, mask, step * count + entry - first)
    packing: Packing = _packings[batch_sizes]
    return packing


def _pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """``torch._pack_padded_sequence``."""
    if torch.compiler.is_exporting():
        raise ValueError("packs sequences, which this front end does not take")
    padded = padded.transpose(0, 1) if batch_first else padded
    steps, batch = padded.shape[:2]
    torch._check(lengths.shape[0] == batch, lambda: f"Expected `len(lengths)` to be {batch}, but got {lengths.shape[0]}")
    check = torch.ops.aten._assert_async.msg
    check((lengths > 0).all(), "Length of all samples has to be greater than 0")
    check((lengths <= steps).all(), "a length of pack_padded_sequence is greater than the padded sequence")
    check(
        (lengths[1:] <= lengths[:-1]).all(),
        "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True",
    )
    mask = torch.arange(steps).unsqueeze(1) < lengths
    packing = Packing(steps, batch, mask, mask.flatten().nonzero().squeeze(1))
    longest: Any = lengths[0].item()
    torch._check(longest >= 1)
    torch._check(longest <= steps)
    batch_sizes = mask.sum(1)[:longest].clone()
    _packings[batch_sizes] = packing
    return packing.packed(padded), batch_sizes


def _pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, value: float, steps: _Size) -> tuple[Tensor, Tensor]:
    """``torch._pad_packed_sequence``."""
    packing = packing_of(data, batch_sizes)
    padded = packing.padded(data, value, steps)
    return padded.transpose(0, 1) if batch_first else padded, packing.mask.sum(0)


def _forward_of_packed(self: Any, packed: PackedSequence, hx: Any, run: Callable[..., Any]) -> Any:
    """The ``forward`` of a recurrent layer, without comparisons of sizes that depend on data."""
    data, batch_sizes, order, reverse_order = packed
    if torch.compiler.is_exporting():
        raise ValueError("passes a packed sequence to a layer, which this front end does not take")
    self._update_flat_weights()
    self.check_input(data, batch_sizes)
    batch = packing_of(data, batch_sizes).batch
    rows = self.num_layers * (2 if self.bidirectional else 1)
    sizes = [self.proj_size or self.hidden_size, *([self.hidden_size] if self.mode == "LSTM" else [])]
    if hx is None:
        states = [data.new_zeros(rows, batch, size) for size in sizes]
    else:
        states = list(hx) if self.mode == "LSTM" else [hx]
        for state, size in zip(states, sizes, strict=True):
            self.check_hidden_size(state, (rows, batch, size))
        states = states if order is None else [state.index_select(1, order) for state in states]
    given = states if self.mode == "LSTM" else states[0]
    how = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
    rows, *last = run(data, batch_sizes, given, self._flat_weights, *how)
    last = last if reverse_order is None else [state.index_select(1, reverse_order) for state in last]
    return PackedSequence(rows, batch_sizes, order, reverse_order), tuple(last) if self.mode == "LSTM" else last[0]


@contextlib.contextmanager
def packed_sequences() -> Iterator[None]:
    """Trace packed sequences, and recurrent layers over them."""
    torchs: Any = decompositions
    runs = {"LSTM": "lstm_data_impl", "GRU": "gru_impl_data", "RNN_TANH": "rnn_tanh_data", "RNN_RELU": "rnn_relu_data"}

    def traced(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
        original: Callable[..., Any] = getattr(_VF, name)
        return lambda given, *rest: (ours if is_traced(given) else original)(given, *rest)

    def over_packed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, input: Any, hx: Any = None) -> Any:
            if isinstance(input, PackedSequence) and is_traced(input.data):
                return _forward_of_packed(self, input, hx, getattr(torchs, runs[self.mode]))
            return forward(self, input, hx)

        return call

    with contextlib.ExitStack() as stack:
        for name, ours in (("_pack_padded_sequence", _pack), ("_pad_packed_sequence", _pad)):
            stack.enter_context(hooked(_HOOK, _VF, name, traced(name, ours)))
        for layer in (torch.nn.LSTM, torch.nn.RNN, torch.nn.modules.rnn.GRU):
            stack.enter_context(hooked(_HOOK, layer, "forward", over_packed(layer.forward)))
        for layer in other_grus():
            stack.enter_context(replaced_outside_torch(layer, "forward", over_packed(layer.forward)))
        yield


def other_grus() -> list[Any]:
    """The class by which torch_xla, once imported, replaces ``torch.nn.GRU``."""
    module = sys.modules.get("torch_xla.experimental.gru")
    return [] if module is None else [module.GRU]
