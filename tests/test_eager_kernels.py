"""Operators that compiled code leaves to eager's kernels, or to products of matrices, because that is faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch_fixes.lowering import lowered_only

import aotpack


def _resized(mode: str, sides: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.interpolate(x, size=sides, mode=mode).square().sum()


def _sampled(x: Tensor) -> Tensor:
    grid = functional.affine_grid(x[:, 0, :2, :3], [2, 3, 8, 8], align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False).square().sum()


CALLED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], set[str]]] = {
    "trilinear": (_resized("trilinear", (4, 6, 5)), (2, 3, 3, 4, 5), {"upsample_trilinear3d", "upsample_trilinear3d_backward"}),
    "bicubic": (_resized("bicubic", (9, 7)), (2, 3, 8, 5), {"upsample_bicubic2d", "upsample_bicubic2d_backward"}),
    "sample": (_sampled, (2, 3, 8, 8), {"grid_sampler_2d", "grid_sampler_2d_backward", "bmm"}),
    "pool": (lambda x: functional.avg_pool3d(x, 2).square().sum(), (2, 3, 4, 6, 8), {"avg_pool3d_backward"}),
    "averages": (lambda x: functional.avg_pool2d(x, 3, (1, 2), 1).square().sum(), (2, 3, 6, 8), {"avg_pool2d_backward"}),
    "side": (lambda x: functional.avg_pool2d(x, (2,), (1,)).square().sum(), (2, 3, 6, 8), {"avg_pool2d_backward"}),
    "maxima": (lambda x: functional.max_pool2d(x, 2).square().sum(), (2, 3, 6, 8), {"max_pool2d_with_indices_backward"}),
    "bilinear": (lambda x: functional.bilinear(x[0], x[1], x[2:], None).square().sum(), (7, 5, 5), {"mm"}),
}


def _code(function: Callable[[Tensor], Tensor], x: Tensor, folder: Path) -> str:
    """The code of a function's step."""
    with lowered_only() as sources:
        aotpack.build(function, (x,), out=folder / "m.aotpack", methods=("train",), cache=False)
    return "\n".join(sources)


@pytest.mark.parametrize("case", CALLED)
def test_kernels_are_called(case: str, tmp_path: Path) -> None:
    function, size, called = CALLED[case]
    code = _code(function, torch.randn(size, requires_grad=True), tmp_path)
    missing = {name for name in called if f"{name}_out(" not in code and f"{name}(" not in code and f"{name}.default" not in code}
    assert not missing
    assert "atomic_add" not in code
    assert "_trilinear(" not in code


def test_averages_of_windows_apart_are_generated(tmp_path: Path) -> None:
    """Each element has its gradient from one window. A loop that also computes that gradient takes half as long as a call."""
    code = _code(
        lambda x: functional.avg_pool2d(x, 2, (2, 3)).square().sum(), torch.randn(2, 3, 6, 8, requires_grad=True), tmp_path
    )
    assert "aoti_torch_cpu_avg_pool2d_backward(" not in code


def test_identities_are_compared_in_vectors(tmp_path: Path) -> None:
    """From 256 rows on torch compares ``uint16``, which Inductor does not load into vectors."""
    code = _code(
        lambda x: (x * torch.eye(300) + torch.eye(300, 1)).exp().sum(), torch.randn(300, 300, requires_grad=True), tmp_path
    )
    assert "uint16_t" not in code
    assert "Vectorized<float>" in code
