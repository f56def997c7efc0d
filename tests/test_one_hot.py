"""Sums over rows with one element are that element: the gradient of a cross entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format.schema import ValueRef

Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {
    "mean": F.cross_entropy,
    "labels to ignore": lambda scores, labels: F.cross_entropy(scores, labels, ignore_index=3),
    "each": lambda scores, labels: F.cross_entropy(scores, labels, reduction="none").square().mean(),
    "set by the model": lambda scores, labels: _set(scores, labels, 1),
    "weights": lambda scores, labels: F.cross_entropy(scores, labels, torch.linspace(1, 2, 5)),
    "smooth labels": lambda scores, labels: F.cross_entropy(scores, labels, label_smoothing=0.1),
    "along another dimension": lambda scores, labels: _set(scores, labels, 0),
}
KEPT = {"weights", "along another dimension"}
"""Along the dimension that is summed, the factor is not the same or several elements are set."""


def _set(scores: Tensor, labels: Tensor, dim: int) -> Tensor:
    rows = torch.zeros(6, 5).scatter(1, labels[:, None], 2.0) * scores.detach().sum(dim, keepdim=True)
    return (scores * rows * rows.sum(dim, keepdim=True)).sum()


class Scores(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss, self.scores = loss, nn.Linear(4, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.scores(x), labels)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_gradients(name: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, labels = Scores(LOSSES[name]), torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, 3])
    out = tmp_path / "m.aotpack"
    aotpack.build(model, (x, labels), out=out, targets=(target,), methods=("train",))
    loaded = aotpack.load(out)
    gradients = []
    for each in (model, loaded):
        each(x, labels).backward()
        gradients.append([x.grad, each.scores.weight.grad, each.scores.bias.grad])
        x.grad = None
    torch.testing.assert_close(gradients[1], gradients[0])
    if target == "cpu" or name not in {"mean", "labels to ignore", "each", "weights"}:  # the portable target keeps these whole
        assert _sums_rows(out) is (name in KEPT)


def _sums_rows(bundle: Path) -> bool:
    """Whether a graph sums rows along their last dimension, which has 5 elements."""
    with Bundle.open(bundle) as opened:
        method = opened.program.methods["train"]
        assert method.backward is not None
        nodes = [node for graph in (method.forward, method.backward.graph) for node in opened.graph(graph).nodes]
    scattered = {node.name for node in nodes if node.op == "aten.scatter.value"}
    products = {node.name for node in nodes if node.op == "aten.mul.Tensor" and not scattered.isdisjoint(_named(node.args))}
    return any(node.op == "aten.sum.dim_IntList" and not products.isdisjoint(_named(node.args)) for node in nodes)


def _named(args: Sequence[object]) -> list[str]:
    return [arg.name for arg in args if isinstance(arg, ValueRef)]
