"""Packed sequences, whose lengths are values of a tensor, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import aotpack
import aotpack_loader

BATCH, STEPS = Dim("batch", min=2, max=64), Dim("steps", min=2, max=64)


class Layer(nn.Module):
    """A recurrent layer over packed sequences, with a given or the default state; all results are padded."""

    def __init__(self, layer: nn.RNNBase, *, ordered: bool = False, given: bool = False) -> None:
        super().__init__()
        self.layer, self.ordered = layer, ordered
        self.state = nn.Parameter(torch.randn(1, 1, 3)) if given else None

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        first = self.layer.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.ordered)
        state: Any = None
        if self.state is not None:
            rows = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
            state = self.state.expand(rows, lengths.shape[0], 3).contiguous()
            state = (state, state * 2) if self.layer.mode == "LSTM" else state
        rows, last = self.layer(packed, state)
        return *pad_packed_sequence(rows, batch_first=first, total_length=x.shape[1 if first else 0], padding_value=-1.0), last


class Tagger(nn.Module):
    """Computes with the entries themselves, and pads to the longest sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tags = nn.GRU(4, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor, lengths: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
        packed, tags = (pack_padded_sequence(value, lengths, enforce_sorted=False) for value in (x, tags))
        rows, _ = self.layer(PackedSequence(packed.data.tanh(), *packed[1:]))
        return nn.functional.cross_entropy(self.tags(rows.data), tags.data), pad_packed_sequence(rows)[0]


class Listed(nn.Module):
    """Packs a list of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 3)

    def forward(self, one: Tensor, other: Tensor) -> Any:
        rows, (hidden, _) = self.layer(pack_sequence([one, other], enforce_sorted=False))
        return rows.data, hidden


def _observed(model: nn.Module, args: Sequence[Tensor]) -> list[Tensor]:
    """Results, and gradients of arguments and parameters."""
    args = [arg.detach().requires_grad_(arg.is_floating_point()) for arg in args]
    model.zero_grad()
    results = torch.utils._pytree.tree_leaves(model(*args))
    torch.stack([(i + 1.5) * r.double().square().sum() for i, r in enumerate(results) if r.requires_grad]).sum().backward()
    leaves = [*args, *(p for _, p in sorted(model.named_parameters()))]
    return [*results, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _compare(model: nn.Module, out: Path, examples: Sequence[Sequence[Tensor]], shapes: Any, target: str = "portable") -> None:
    """Build with the first example, and compare with eager on all."""
    example = tuple(arg.requires_grad_(arg.is_floating_point()) for arg in examples[0])
    aotpack.build(copy.deepcopy(model), example, out=out, targets=(target,), methods=("train",), dynamic_shapes=shapes)
    loaded = aotpack_loader.load(out, backend=target)
    for args in examples:
        expected, found = _observed(model, args), _observed(loaded, args)
        assert [(value.shape, value.stride(), value.dtype) for value in found] == [
            (value.shape, value.stride(), value.dtype) for value in expected
        ]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _sequences(steps: int, lengths: Sequence[int], *, batch_first: bool = True) -> tuple[Tensor, Tensor]:
    batch = len(lengths)
    return torch.randn(*((batch, steps) if batch_first else (steps, batch)), 4), torch.tensor(lengths)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Layer(nn.LSTM(4, 3, batch_first=True, bidirectional=True), given=True),
        lambda: Layer(nn.LSTM(4, 3, batch_first=True, proj_size=2, bias=False)),
        lambda: Layer(nn.GRU(4, 3, num_layers=2, batch_first=True, bidirectional=True)),
        lambda: Layer(nn.RNN(4, 3, batch_first=True, nonlinearity="relu"), given=True),
    ],
    ids=["LSTM", "LSTM with projections", "GRU", "RNN"],
)
def test_layers_over_packed_sequences_follow_eager(layer: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Batch, steps and lengths vary."""
    examples = [_sequences(5, [5, 3, 2]), _sequences(7, [1, 7, 7, 4]), _sequences(40, [2, 33])]
    _compare(layer(), tmp_path / "m.aotpack", examples, {"x": {0: BATCH, 1: STEPS}, "lengths": {0: BATCH}})


def test_ordered_sequences_of_fixed_sizes(tmp_path: Path) -> None:
    examples = [_sequences(5, lengths, batch_first=False) for lengths in ([5, 3, 2], [4, 4, 4], [1, 1, 1])]
    _compare(Layer(nn.GRU(4, 3), ordered=True), tmp_path / "m.aotpack", examples, None)


def test_entries_of_packed_sequences_are_tensors(tmp_path: Path) -> None:
    examples = [
        (*_sequences(steps, lengths, batch_first=False), torch.randint(0, 5, (steps, len(lengths))))
        for steps, lengths in ((5, [5, 3, 2]), (9, [1, 7]), (6, [2, 3, 1, 6]))
    ]
    shapes = {"x": {0: STEPS, 1: BATCH}, "lengths": {0: BATCH}, "tags": {0: STEPS, 1: BATCH}}
    _compare(Tagger(), tmp_path / "m.aotpack", examples, shapes)


def test_pack_sequence_of_sizes_that_vary(tmp_path: Path) -> None:
    examples = [(torch.randn(one, 4), torch.randn(other, 4)) for one, other in ((5, 3), (2, 6), (9, 4), (7, 7))]
    shapes = {"one": {0: Dim("one", min=2, max=64)}, "other": {0: Dim("other", min=2, max=64)}}
    _compare(Listed(), tmp_path / "m.aotpack", examples, shapes)


def test_lengths_are_checked_at_each_call(tmp_path: Path) -> None:
    example, out = _sequences(5, [5, 3, 2], batch_first=False), tmp_path / "m.aotpack"
    aotpack.build(Layer(nn.GRU(4, 3), ordered=True), example, out=out, targets=("portable",), methods=("train",))
    loaded = aotpack_loader.load(out)
    for lengths, message in (
        ([5, 3, 0], "greater than 0"),
        ([2, 3, 5], "sorted in decreasing order"),
        ([6, 3, 2], "greater than"),
    ):
        with pytest.raises(RuntimeError, match=message):
            loaded(example[0], torch.tensor(lengths))


def test_packed_sequences_in_native_code(tmp_path: Path) -> None:
    examples = [_sequences(5, [5, 3, 2]), _sequences(7, [1, 7, 7, 4]), _sequences(40, [2, 33])]
    shapes = {"x": {0: BATCH, 1: STEPS}, "lengths": {0: BATCH}}
    _compare(Layer(nn.GRU(4, 3, batch_first=True)), tmp_path / "m.aotpack", examples, shapes, target="cpu")
