"""LSTMs of bundles for processors alone: oneDNN's kernel for a layer, as eager calls it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import UnsupportedError
from aotpack_loader.format import subgraphs

KERNEL = "aten.mkldnn_rnn_layer_backward.default"


class Layers(nn.Module):
    """Two layers in both directions with states, and a layer without biases; all results count."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)
        self.plain = nn.LSTM(10, 3, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        rows, last = self.both(x, (hidden, memory))
        again, (end, _) = self.plain(rows.transpose(0, 1))
        return again.tanh(), *last, end


@dataclass(frozen=True)
class Built:
    model: nn.Module
    bundle: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    torch.manual_seed(0)
    model, out = Layers(), tmp_path_factory.mktemp("lstm") / "m.aotpack"
    batch, steps = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("steps", min=2, max=64)
    sizes = ({0: batch, 1: steps}, {1: batch}, {1: batch})
    aotpack.build(model, _given(3, 4), out=out, targets=("cpu",), methods=("train",), dynamic_shapes=sizes)
    return Built(model, out)


def _given(batch: int, steps: int) -> tuple[Tensor, ...]:
    shapes = ((batch, steps, 4), (4, batch, 5), (4, batch, 5))
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def _operators(bundle: Path) -> set[str]:
    with Bundle.open(bundle) as opened:
        method = opened.program.methods["train"]
        assert method.backward is not None
        return {node.op for node in subgraphs.all_nodes(opened.graph(method.backward.graph))}


def _gradients(model: nn.Module, given: tuple[Tensor, ...], times: int = 1) -> list[Tensor]:
    results = model(*given)
    loss = sum((result * result).sum() for result in results)
    found = [torch.autograd.grad(loss, [*given, *model.parameters()], retain_graph=True) for _ in range(times)]
    return [*results, *found[-1]]


@pytest.mark.parametrize("check", ["arguments", "full"])
def test_values_are_eagers_at_every_size(check: str, built: Built) -> None:
    """The workspace's size depends on the processor, and on sizes that vary."""
    assert KERNEL in _operators(built.bundle)
    loaded = aotpack.load(built.bundle, check=check)
    for batch, steps in ((3, 4), (2, 7), (16, 33)):
        given = _given(batch, steps)
        torch.testing.assert_close(_gradients(loaded, given), _gradients(built.model, given))


def test_calls_are_native(built: Built) -> None:
    assert aotpack.load(built.bundle).aotpack.calls == {"train": "native"}


def test_a_graph_is_run_backwards_twice(built: Built) -> None:
    given = _given(3, 4)
    torch.testing.assert_close(_gradients(aotpack.load(built.bundle), given, 2), _gradients(built.model, given))


def test_a_call_records_nothing_in_autograd(built: Built) -> None:
    """The kernel runs while gradients are recorded, so that it keeps its workspace."""
    rows = aotpack.load(built.bundle)(*_given(3, 4))[0]
    assert rows.grad_fn.name() == "AotpackStep"
    assert torch.is_grad_enabled()
    with torch.no_grad():
        assert not aotpack.load(built.bundle)(*_given(3, 4))[0].requires_grad
        assert not torch.is_grad_enabled()


def test_graphs_of_other_targets_have_no_kernel(built: Built, tmp_path: Path) -> None:
    model, given = nn.LSTM(4, 5), (torch.randn(3, 2, 4),)
    out = tmp_path / "portable.aotpack"
    aotpack.build(model, given, out=out, targets=("portable",), methods=("train",))
    assert KERNEL not in _operators(out)
    with pytest.raises(UnsupportedError, match="beside the other targets"):
        aotpack.compile_bundle(built.bundle, ("portable",), out=tmp_path / "later.aotpack")
