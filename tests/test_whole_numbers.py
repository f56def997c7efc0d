"""Models that treat sizes as Python integers: ``int()``, ``isinstance()`` and functions of ``math``."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import aotpack
from aotpack_loader.errors import BuildError, CaptureError

Function = Callable[[torch.Tensor], torch.Tensor]


def own_gradient(x: torch.Tensor) -> torch.Tensor:
    """The gradient of a function of ``x``, which the model computes itself. So only a direct trace takes it."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0]


def of_int(x: torch.Tensor) -> torch.Tensor:
    rows = int(x.shape[0])
    return own_gradient(x) + torch.arange(rows)[:, None] / rows


def of_instance(x: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    if not (isinstance(rows, int) and rows >= 0):
        raise TypeError(f"the number of rows is {rows}")
    return own_gradient(x) / rows


def of_type(x: torch.Tensor) -> torch.Tensor:
    """As kornia writes a constant: for ``torch.compile`` a size is of the type ``int``, and ``math`` needs its value."""
    rows = x.shape[0]
    sign = math.copysign(1.0, rows) if type(rows) is int else 1.0
    return x * rows * sign


class Model(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) * self.weight


def in_messages(x: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    torch._assert(rows > 0, f"no rows: {rows}")  # as timm checks sizes
    print(f"sizes {x.shape}, {rows}")
    return x * rows


@pytest.mark.parametrize(
    ("function", "expected"),
    [(in_messages, lambda x: x * len(x)), (of_int, of_int), (of_instance, of_instance), (of_type, lambda x: x * len(x))],
)
def test_sizes_vary(function: Function, expected: Function, tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    path, sizes = tmp_path / "m.aotpack", {"x": {0: rows}}
    aotpack.build(
        Model(function), (torch.randn(4, 3),), out=path, targets=("portable",), methods=("train",), dynamic_shapes=sizes
    )
    loaded = aotpack.load(path)
    for count in (7, 2):
        x = torch.randn(count, 3)
        loaded.zero_grad()
        result = loaded(x)
        torch.testing.assert_close(result, expected(x))
        result.square().sum().backward()
        torch.testing.assert_close(loaded.weight.grad, 2 * expected(x).square().sum(0))


def compared(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if f"{x.shape[0]}" == "5" else x


def chosen(x: torch.Tensor) -> torch.Tensor:
    return x * {"n3": 2.0, "n5": 3.0}.get("n" + str(x.shape[0]), 1.0)


def named(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"rows{x.shape[0] + 1}": x}


@pytest.mark.parametrize("function", [compared, chosen, named, lambda x: compared(own_gradient(x))])
def test_a_size_that_becomes_text_is_refused(function: Callable[..., object], tmp_path: Path) -> None:
    """Torch's text of a size is its symbol's name, which equals no number."""
    sizes = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    x = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(BuildError, match=r"the model fixes it at 4 \[at .*x\.shape\[0\]"):
        aotpack.build(function, (x,), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes, check=False)


def test_images_are_cropped_to_the_smaller_of_two(tmp_path: Path) -> None:
    """What is in doubt of the sizes, such as their order in memory, is not asked."""

    def model(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        width = min(x.shape[3], y.shape[3])
        first, second = [t[..., (t.shape[3] - width) // 2 :][..., :width] for t in (x, y)]
        return nn.functional.conv2d(first - second, weight)

    sizes = {name: {3: torch.export.Dim(name, min=8, max=40)} for name in "xy"}
    weight, path = torch.randn(2, 1, 3, 3, requires_grad=True), tmp_path / "m"
    example = (torch.randn(2, 1, 9, 16), torch.randn(2, 1, 9, 20), weight)
    aotpack.build(model, example, out=path, targets=("portable",), methods=("train",), dynamic_shapes=sizes | {"weight": None})
    loaded = aotpack.load(path)
    for one, other in ((8, 8), (9, 40), (40, 11)):
        x, y = torch.randn(2, 1, 9, one), torch.randn(2, 1, 9, other)
        torch.testing.assert_close(loaded(x, y, weight), model(x, y, weight))
        results = [torch.autograd.grad(each(x, y, weight).square().sum(), weight) for each in (loaded, model)]
        torch.testing.assert_close(*results)


class Repeats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        for _ in range(int(count)):
            x = self.layer(x)
        return x


def test_a_range_of_a_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"Python computes with a number read from a tensor.*range\(int\(count\)\)"):
        aotpack.build(Repeats(), (torch.randn(2, 3), torch.tensor(3)), out=tmp_path / "m", targets=("portable",))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"two": nn.Linear(3, 3)})

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        print(f"{count.item()} heads")
        return x * 2 if f"{count.item()}" == "3" else self.heads["two"](x)


def test_text_of_a_number_in_a_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r'Python computes with a number read from a tensor.*f"{count.item\(\)}" == "3"'):
        aotpack.build(Named(), (torch.randn(2, 3), torch.tensor(3)), out=tmp_path / "m", targets=("portable",))
