"""Values that a model keeps for the sizes of a call are computed in each call of a bundle, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import aotpack
import aotpack_loader
from aotpack_loader.errors import AotpackError, BuildError

TIME = Dim("time", min=2, max=64)


class Keeping(nn.Module):
    """A layer over the input and a grid of its length. Subclasses keep the grid."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.grid: Any = None

    def made(self, length: int) -> Tensor:
        return torch.linspace(0, 1, length).cos()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.stack([x, self.kept(x.shape[1]).expand_as(x)], -1))


class ByShape(Keeping):
    def kept(self, length: int) -> Tensor:
        if self.grid is None or self.grid.shape[0] != length:
            self.grid = self.made(length)
        return self.grid


class ByLength(Keeping):
    """Keeps the size beside the value, in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: Any = ()

    def kept(self, length: int) -> Tensor:
        if self.sizes != (length, 1):
            self.sizes, self.grid = (length, 1), self.made(length)
        return self.grid


class ForTheLongest(Keeping):
    """A table that grows, as of rotary embeddings."""

    def kept(self, length: int) -> Tensor:
        if self.grid is None or self.grid.shape[0] < length:
            self.grid = self.made(length)
        return self.grid[:length]


class Once(Keeping):
    def kept(self, length: int) -> Tensor:
        if self.grid is None:
            self.grid = self.made(length).mean()
        return self.grid


class Drawn(Keeping):
    def kept(self, length: int) -> Tensor:
        if self.grid is None or self.grid.shape[0] != length:
            self.grid = torch.rand(length)
        return self.grid


class Weighted(Keeping):
    """Keeps what depends on a parameter, too."""

    def kept(self, length: int) -> Tensor:
        if self.grid is None or self.grid.shape[0] != length:
            self.grid = self.made(length) * self.layer.bias.sum()
        return self.grid


def outcome(model: Any, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    result = model(x)
    result.square().sum().backward()
    return [result, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(("kind", "warm"), [(ByShape, False), (ByShape, True), (ByLength, False)])
def test_the_value_follows_the_sizes(kind: type[Keeping], warm: bool, tmp_path: Path) -> None:
    model, out = kind(), tmp_path / "m.aotpack"
    example = torch.randn(3, 7)
    if warm:
        model(example)
    aotpack.build(copy.deepcopy(model), (example,), out=out, targets=("portable",), dynamic_shapes={"x": {1: TIME}})
    loaded = aotpack_loader.load(out)
    for length in (7, 9, 5, 64, 7):
        x = torch.randn(3, length)
        torch.testing.assert_close(outcome(loaded, x), outcome(model, x))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ForTheLongest, r"line \d+, in made: return torch.linspace.*: self\.grid is taken at other sizes, too"),
        (Once, r"self\.grid is taken at other sizes, too"),
        (Drawn, r"self\.grid: read, and changed for the next call"),
        (Weighted, r"self\.grid: read, and changed for the next call"),
    ],
)
def test_what_a_later_call_would_take_is_refused(kind: type[Keeping], message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        aotpack.build(kind(), (torch.randn(3, 7),), out=tmp_path / "m", targets=("portable",), dynamic_shapes={"x": {1: TIME}})


def test_a_value_of_the_user_is_not_made_again(tmp_path: Path) -> None:
    model = ByShape()
    model.grid = torch.randn(7)
    with pytest.raises(BuildError, match="the model fixes it at 7"):
        aotpack.build(model, (torch.randn(3, 7),), out=tmp_path / "m", targets=("portable",), dynamic_shapes={"x": {1: TIME}})


class Scale(torch.distributions.Transform, nn.Module):
    """A transform with a parameter that keeps its last argument and result, as those of pyro do."""

    domain = codomain = torch.distributions.constraints.real
    bijective = True

    def __init__(self) -> None:
        nn.Module.__init__(self)
        torch.distributions.Transform.__init__(self, cache_size=1)
        self.log_scale = nn.Parameter(torch.tensor(0.5))
        self._cached_log_scale: Any = None

    __hash__ = nn.Module.__hash__

    def _call(self, x: Tensor) -> Tensor:
        self._cached_log_scale = self.log_scale * 1
        return x * self._cached_log_scale.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        self._cached_log_scale = self.log_scale * 1
        return y / self._cached_log_scale.exp()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if x is not self._cached_x_y[0] or y is not self._cached_x_y[1]:
            self(x)
        return self._cached_log_scale.expand(x.shape)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Scale(), Scale()

    def forward(self, x: Tensor) -> Tensor:
        normal = torch.distributions.Normal(torch.zeros(()), torch.ones(()))
        made: Tensor = torch.distributions.TransformedDistribution(normal, [self.first, self.last.inv]).log_prob(x)
        return made


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_what_a_transform_keeps_for_its_argument_serves_one_call(front_end: Any, tmp_path: Path) -> None:
    model, sizes = Flow(), {"x": {0: Dim("rows", min=1, max=99)}}
    options: dict[str, Any] = {"targets": ("portable",), "methods": ("train",), "front_ends": (front_end,)}
    aotpack.build(model, (torch.randn(5),), out=tmp_path / "m", dynamic_shapes=sizes, **options)
    loaded = aotpack_loader.load(tmp_path / "m")
    for x in (torch.randn(5), torch.randn(9)):
        found, expected = loaded(x), model(x)
        torch.testing.assert_close(found, expected)
        pairs = [torch.autograd.grad(each.sum(), [*of.parameters()]) for each, of in ((found, loaded), (expected, model))]
        torch.testing.assert_close(*pairs)


def test_triangles_of_a_size_that_varies(tmp_path: Path) -> None:
    def model(x: Tensor) -> list[Tensor]:
        n = x.shape[0]
        pairs = [torch.triu_indices(n, n, 1), torch.triu_indices(n, n, dtype=torch.int32), torch.tril_indices(n, n, -2)]
        return [(x[pairs[0][0]] * x[pairs[0][1]]).sum(), *pairs]

    sizes = {"x": {0: Dim("rows", min=1, max=999)}}
    aotpack.build(model, (torch.randn(5, requires_grad=True),), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes)
    loaded = aotpack_loader.load(tmp_path / "m")
    for rows in (1, 2, 3, 8, 999):
        x = torch.randn(rows, requires_grad=True)
        found, expected = loaded(x), model(x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)
        pairs = (torch.autograd.grad(each[0], x)[0] for each in (found, expected))
        torch.testing.assert_close(*pairs, rtol=1e-3, atol=1e-3)

    def above(x: Tensor) -> Tensor:
        return torch.tril_indices(x.shape[0], x.shape[0], 1) * x.sum()

    with pytest.raises(AotpackError, match="no positive offset"):
        aotpack.build(above, (torch.randn(5),), out=tmp_path / "m2", targets=("portable",), dynamic_shapes=sizes)


def check_rows(model: Callable[[Tensor], Tensor], most: int, tmp_path: Path) -> None:
    """Compare a bundle of ``model`` with eager at 1 to ``most`` rows."""
    sizes = {"x": {0: Dim("rows", min=1, max=most)}}
    aotpack.build(model, (torch.randn(5),), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes)
    loaded = aotpack_loader.load(tmp_path / "m")
    for rows in (1, 2, 5, 8, most):
        x = torch.randn(rows)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-6, atol=1e-6)


def test_linspace_of_a_size_that_varies(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        grid = torch.linspace(-1.5, 2, x.shape[0], dtype=torch.float64) + torch.linspace(0, x.shape[0] - 1, x.shape[0])
        return x * torch.linspace(1, 0, 2 * x.shape[0] + 1)[::2][1:] + grid + torch.linspace(3, 3, x.shape[0])

    check_rows(model, 999, tmp_path)


def test_frequencies_of_a_size_that_varies(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        n = x.shape[0]
        return x * torch.fft.fftfreq(n) + torch.fft.rfftfreq(2 * n, d=0.5)[1:] + torch.fft.fftfreq(n, 1 / 3, dtype=torch.float64)

    check_rows(model, 99, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_windows_of_a_size_that_varies(tmp_path: Path, dtype: torch.dtype) -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        rows = x.shape[0]
        windows = [
            torch.hann_window(rows, dtype=dtype),
            torch.hann_window(window_length=rows, periodic=False, dtype=dtype),
            torch.hamming_window(rows, True, 0.5, 0.4, dtype=dtype),
            torch.blackman_window(rows, False, dtype=dtype),
            torch.bartlett_window(rows + 2, dtype=dtype)[2:],
            torch.kaiser_window(rows, True, beta=5.0, dtype=dtype),
            torch.logspace(-1, 2, rows, base=2.0, dtype=dtype),
            torch.logspace(-1, 2, rows, dtype=torch.bfloat16),
        ]
        return tuple(x * window.float() for window in windows)

    sizes = {"x": {0: Dim("rows", min=1, max=999)}}
    aotpack.build(model, (torch.randn(5),), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes)
    loaded = aotpack_loader.load(tmp_path / "m")
    for rows in (1, 2, 5, 8, 301):
        x = torch.randn(rows)
        torch.testing.assert_close(loaded(x), model(x), rtol=2e-6, atol=1e-6)


def test_a_window_of_halves_keeps_its_size(tmp_path: Path) -> None:
    """Eager's own window depends on the vectors of the machine there."""

    def model(x: Tensor) -> Tensor:
        return x * torch.hann_window(x.shape[0], dtype=torch.bfloat16)

    with pytest.raises(BuildError, match=r"fixes it at 5 \[at .*hann_window"):
        aotpack.build(model, (torch.randn(5),), out=tmp_path / "m", targets=("portable",), dynamic_shapes={"x": {0: TIME}})
