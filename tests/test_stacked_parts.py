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
COPIED: dict[str, Callable[[Tensor], Tensor]] = {
    "by a permutation": lambda t: _parts(t.reshape(4, 5, 3).permute(2, 0, 1)),
    "by several views": lambda t: _parts(t.reshape(4, 5, 3).unsqueeze(0).transpose(0, -1).squeeze(-1)),
    "by unbind": lambda t: _combined(*t.reshape(4, 5, 3).permute(2, 0, 1).unbind()),
}
"""The sum is only copied to another layout."""


def _parts(t: Tensor) -> Tensor:
    return _combined(*(t[index] for index in range(3)))


def _combined(one: Tensor, two: Tensor, three: Tensor) -> Tensor:
    return one * two.sin() + three


@pytest.mark.parametrize("name", [*STACKED, *COPIED, *ADDED])
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_gradients_of_parts(name: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Parts((STACKED | COPIED | ADDED)[name]), torch.randn(3, 4, 5, requires_grad=True)
    out = tmp_path / "m.aotpack"
    aotpack.build(model, (x,), out=out, targets=(target,), methods=("train",))
    loaded = aotpack.load(out)
    for each in (model, loaded):
        each(x).sin().sum().backward()
    torch.testing.assert_close(loaded.weight.grad, model.weight.grad)
    with Bundle.open(out) as opened:
        backward = opened.program.methods["train"].backward
        assert backward is not None
        called = [node.op for node in opened.graph(backward.graph).nodes]
    assert ("aten.cat.default" in called) == (name not in ADDED)
    if name in COPIED:
        assert "aten.clone.default" not in called[called.index("aten.cat.default") :]
