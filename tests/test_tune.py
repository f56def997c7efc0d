"""`aotpack build --tune` and `aotpack compile --tune`: the library that multiplies matrices is measured, recorded and used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aotpack
import aotpack_loader
from aotpack._torch.inductor.toolchain import matmul_backend
from aotpack._torch.inductor.toolchain.matmul_backend import smallest_gain
from aotpack.targets.cpu import CpuTarget
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({8: 2.0, 64: 0.5, 512: 0.4}, 64),
        ({8: 0.5, 64: 0.5, 512: 0.4}, 8),
        ({8: 0.5, 64: 1.1, 512: 0.4}, 512),  # only sizes from which on all gain
        ({8: 0.5, 64: 0.5, 512: 0.95}, 0),  # within noise
    ],
)
def test_the_smallest_product_that_gains(ratios: Mapping[int, float], expected: int) -> None:
    assert smallest_gain(ratios) == expected


def test_the_measurement_of_two_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_backend, "SIDES", (8, 16))
    monkeypatch.setattr(matmul_backend, "_WORK", 1)
    assert matmul_backend.products_by_onednn() in (0, 8**3, 16**3)


class Products(nn.Module):
    """Products of all kinds: with a bias, without, of transposed and of broadcast matrices, of columns and of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 8, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = F.gelu(self.first(x))
        broadcast = hidden.sum(1, keepdim=True).expand(-1, 40) @ self.second.weight.t()
        strided = x[:, ::2] @ y[::2]
        added = torch.addmm(x[:, :1] * 2, x, y, beta=0.5, alpha=2.0)
        return self.second(hidden), broadcast, strided, added, x.t() @ hidden, x.double() @ y.double(), x @ y[:, :1]


def test_tuned_code_computes_what_eager_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are oneDNN's here, however small. Where it has no form for one, torch's library makes it."""
    monkeypatch.setattr(matmul_backend, "products_by_onednn", lambda: 1)
    torch.manual_seed(0)
    model = Products()
    x, y = (torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in ((16, 24), (24, 8)))
    x.requires_grad_()
    out = tmp_path / "tuned.aotpack"
    report = aotpack.build(model, (x, y), out=out, methods=("train",), tune=True)
    assert any("oneDNN's from 1 multiplications on" in note for note in report.notes)
    (manifest,) = Bundle.open(out).manifests.values()
    assert manifest.target.toolchain["products"] == "oneDNN's from 1 multiplications on"
    again = aotpack.build(model, (x, y), out=tmp_path / "again.aotpack", methods=("train",), tune=True)
    assert (again.digest, again.cache_hits) == (report.digest, 2)  # the choice is a part of the key

    def step(called: nn.Module) -> list[torch.Tensor]:
        results = called(x, y)
        gradients = torch.autograd.grad(sum(result.sin().sum() for result in results), [x, *called.parameters()])
        return [*results, *gradients]

    loaded = aotpack_loader.load(out, backend="cpu")
    torch.testing.assert_close(step(loaded), step(model), rtol=1e-4, atol=1e-4)  # sums whose parts are up to 100


def test_nothing_is_tuned_unless_asked(tmp_path: Path) -> None:
    assert "products" not in CpuTarget()._options
    with pytest.raises(BuildError, match="Nothing can be tuned"):
        aotpack.build(torch.sin, (torch.ones(2),), out=tmp_path / "m", targets=("portable",), tune=True)


def test_a_target_that_is_added_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_backend, "products_by_onednn", lambda: 1)
    model, x = nn.Linear(24, 8), torch.randn(16, 24)
    portable, out = tmp_path / "portable.aotpack", tmp_path / "tuned.aotpack"
    aotpack.build(model, (x,), out=portable, targets=("portable",), methods=("infer",))
    report = aotpack.compile_bundle(portable, ("cpu",), out=out, tune=True)
    assert any("oneDNN's from 1 multiplications on" in note for note in report.notes)
    with Bundle.open(out) as bundle:
        recorded = {manifest.target.kind: manifest.target.toolchain.get("products") for manifest in bundle.manifests.values()}
    assert recorded == {"portable": None, "aoti": "oneDNN's from 1 multiplications on"}
    with torch.no_grad():
        torch.testing.assert_close(aotpack_loader.load(out, backend="cpu").eval()(x), model(x))
