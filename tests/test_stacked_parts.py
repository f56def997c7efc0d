"""Gradients of all parts of a tensor are stacked, not added as padded tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack_loader.archive.bundle import Bundle


class Parts(nn.Module):
    def __init__(self, combine: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.combine, self.weight = combine, nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(self.weight * x)


STACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "each part": lambda t: t[0] * t[1].sin() + t[2],
    "in another order": lambda t: t[2] * t[0].sin() + t[1],
    "from the end, in an inner dimension": lambda t: t[:, -1] * t[:, 0] + t[:, 1].cos() * t[:, 2],
}
ADDED: dict[str, Callable[[Tensor], Tensor]] = {
    "a part is unused": lambda t: t[0] * t[1].sin(),
    "a part is used twice": lambda t: t[0] * t[1].sin() + t[2] + t[0].cos(),
    "parts of two dimensions": lambda t: t[0, :4, :4] * t[:3, 1, :4].sum() + t[2, 0, 0] + t[1, 1, 1],
    "the whole is used as well": lambda t: t[0] * t[1].sin() + t[2] + t.exp().sum(0),
}


@pytest.mark.parametrize("name", [*STACKED, *ADDED])
def test_gradients_of_parts(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Parts((STACKED | ADDED)[name]), torch.randn(3, 4, 5, requires_grad=True)
    out = tmp_path / "m.aotpack"
    aotpack.build(model, (x,), out=out, targets=("portable",), methods=("train",))
    loaded = aotpack.load(out)
    for each in (model, loaded):
        each(x).sin().sum().backward()
    assert torch.equal(loaded.weight.grad, model.weight.grad)
    with Bundle.open(out) as opened:
        backward = opened.program.methods["train"].backward
        assert backward is not None
        called = [node.op for node in opened.graph(backward.graph).nodes]
    assert ("aten.cat.default" in called) == (name in STACKED)
