"""Operators that compiled code leaves to eager's kernels, or to products of matrices, because that is faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch_fixes.lowering import sources_of

import aotpack


def _resized(mode: str, sides: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.interpolate(x, size=sides, mode=mode).square().sum()


def _sampled(x: Tensor) -> Tensor:
    grid = functional.affine_grid(x[:, 0, :2, :3], [2, 3, 8, 8], align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False).square().sum()


CALLED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], set[str]]] = {
    "trilinear": (_resized("trilinear", (4, 6, 5)), (2, 3, 3, 4, 5), {"upsample_trilinear3d", "upsample_trilinear3d_backward"}),
    "images": (_resized("bilinear", (9, 7)), (2, 3, 8, 5), {"upsample_bilinear2d", "upsample_bilinear2d_backward"}),
    "by a factor": (
        lambda x: functional.interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=True).square().sum(),
        (2, 3, 8, 5),
        {"upsample_bilinear2d", "upsample_bilinear2d_backward"},
    ),
    "erfinv": (lambda x: x.erfinv().square().sum(), (50,), {"erfinv"}),
    "bicubic": (_resized("bicubic", (9, 7)), (2, 3, 8, 5), {"upsample_bicubic2d", "upsample_bicubic2d_backward"}),
    "sample": (_sampled, (2, 3, 8, 8), {"grid_sampler_2d", "grid_sampler_2d_backward", "bmm"}),
    "pool": (lambda x: functional.avg_pool3d(x, 2).square().sum(), (2, 3, 4, 6, 8), {"avg_pool3d_backward"}),
    "averages": (lambda x: functional.avg_pool2d(x, 3, (1, 2), 1).square().sum(), (2, 3, 6, 8), {"avg_pool2d_backward"}),
    "side": (lambda x: functional.avg_pool2d(x, (2,), (1,)).square().sum(), (2, 3, 6, 8), {"avg_pool2d_backward"}),
    "fold": (lambda x: functional.fold(x, (5, 6), 3, padding=1).square().sum(), (2, 18, 30), {"col2im"}),
    "unfold": (lambda x: functional.unfold(x, 3, 1, 1, 2).square().sum(), (2, 3, 6, 8), {"col2im"}),
    "maxima": (lambda x: functional.max_pool2d(x, 2).square().sum(), (2, 3, 6, 8), {"max_pool2d_with_indices_backward"}),
    "bilinear": (lambda x: functional.bilinear(x[0], x[1], x[2:], None).square().sum(), (7, 5, 5), {"mm"}),
}


@pytest.mark.parametrize("case", CALLED)
def test_kernels_are_called(case: str, tmp_path: Path) -> None:
    function, size, called = CALLED[case]
    code = "\n".join(sources_of(function, (torch.randn(size, requires_grad=True),), tmp_path))
    missing = {name for name in called if f"{name}_out(" not in code and f"{name}(" not in code and f"{name}.default" not in code}
    assert not missing
    assert "atomic_add" not in code
    assert "_trilinear(" not in code


def _bilinear_forms(x: Tensor) -> Tensor:
    """Of enough rows that they are computed in pieces."""
    return functional.bilinear(x[0].mT, x[1].mT, x[2, :, :200].reshape(5, 40, 40))


WINDOWS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "multiplied": (lambda x: (functional.unfold(x, (2, 3), padding=(1, 2), stride=(2, 1)) * 2).sin(), (2, 3, 7, 9)),
    "read twice": (lambda x: functional.unfold(x, 3, dilation=(2, 1)).softmax(1), (2, 2, 8, 7)),
    "one image": (lambda x: functional.unfold(x.exp(), 3, padding=1, stride=2).reshape(3, 9, -1).transpose(1, 2), (3, 7, 9)),
    "a product": (lambda x: torch.ones(4, 12) @ functional.unfold(x, 2, stride=3), (2, 3, 7, 9)),
    "whole numbers": (lambda x: functional.unfold(x.round().long().float(), 3, padding=2), (1, 2, 5, 5)),
    "folded": (lambda x: functional.fold(functional.unfold(x, 4, 1, 1, 2).tanh(), (8, 10), 4, 1, 1, 2), (2, 3, 8, 10)),
    "averages": (lambda x: functional.avg_pool2d(x, (3, 2), (2, 1), 1, ceil_mode=True, count_include_pad=False), (2, 3, 8, 9)),
    "maxima": (lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 8, 9)),
    "bilinear forms": (lambda x: _bilinear_forms(x.double()), (3, 40, 4001)),
    "bilinear": (lambda x: functional.interpolate(x.exp(), scale_factor=(1.7, 0.6), mode="bilinear"), (2, 3, 8, 9)),
    "bilinear, channels-last": (
        lambda x: functional.interpolate(x.exp(), size=(11, 5), mode="bilinear", align_corners=True).sum(1),
        (2, 9, 8, 7),
    ),
    "bilinear, parts": (lambda x: functional.interpolate(x[:, 1:, ::2], scale_factor=2.0, mode="bilinear"), (2, 9, 8, 7)),
}


@pytest.mark.parametrize("vary", [False, True])
def test_windows_have_eagers_values(vary: bool, tmp_path: Path) -> None:
    """With gradients; also where the number of images and their height vary."""
    torch.manual_seed(0)
    cases = {
        name: (function, size) for name, (function, size) in WINDOWS.items() if not vary or (len(size) == 4 and name != "folded")
    }
    given = {name: torch.randn(size, requires_grad=True) for name, (_, size) in cases.items()}
    example = {name: torch.randn(4, size[1], 13, size[3], requires_grad=True) for name, (_, size) in cases.items() if vary}
    sizes = {name: {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO} for name in cases}

    def windows(given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: cases[name][0](x) for name, x in given.items()}

    out = tmp_path / "m"
    aotpack.build(windows, (example or given,), out=out, methods=("train",), dynamic_shapes=(sizes,) if vary else None)
    found, expected = aotpack.load(out)(given), windows(given)
    torch.testing.assert_close(found, expected)
    weights = {name: torch.randn_like(result) for name, result in expected.items()}
    losses = [torch.stack([(results[name] * weights[name]).sum() for name in results]).sum() for results in (found, expected)]
    torch.testing.assert_close(*(torch.autograd.grad(loss, list(given.values()), allow_unused=True) for loss in losses))


POOLS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "max_pool2d": (lambda x: functional.max_pool2d(x, 3, 2, 1), 4),
    "max_pool3d": (lambda x: functional.max_pool3d(x, 2), 5),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 3, 2, 1), 4),
    "avg_pool3d": (lambda x: functional.avg_pool3d(x, 2), 5),
    "adaptive_avg_pool2d": (lambda x: functional.adaptive_avg_pool2d(x, (3, 2)), 4),
    "adaptive_avg_pool3d": (lambda x: functional.adaptive_avg_pool3d(x, (3, 2, 3)), 5),
    "adaptive_max_pool2d": (lambda x: functional.adaptive_max_pool2d(x, (3, 2)), 4),
    "adaptive_max_pool3d": (lambda x: functional.adaptive_max_pool3d(x, (3, 2, 3)), 5),
}


@pytest.mark.parametrize("last", [False, True])
def test_pooled_images_are_not_saved(last: bool, tmp_path: Path) -> None:
    """The gradients read their sizes and memory formats. So of a ReLU before, a mask is saved."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    given = {}
    for name, (_, dims) in POOLS.items():
        x = torch.randn(2, 9, *(7, 5, 8)[: dims - 2], generator=torch.Generator().manual_seed(dims))
        given[name] = x.contiguous(memory_format=formats[dims] if last else torch.contiguous_format).requires_grad_()

    def pooled(given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: pool(given[name].cumsum(-1).relu()).sin() for name, (pool, _) in POOLS.items()}

    out = tmp_path / "m"
    report = aotpack.build(pooled, (given,), out=out, methods=("train",), targets=("cpu", "portable"))
    assert report.saved_bytes["train"] < sum(x.nbytes for x in given.values()) / 2
    for target in ("cpu", "portable"):
        found, expected = aotpack.load(out, backend=target)(given), pooled(given)
        torch.testing.assert_close(found, expected)
        weights = {name: torch.randn_like(result) for name, result in expected.items()}
        losses = [torch.stack([(results[name] * weights[name]).sum() for name in results]).sum() for results in (found, expected)]
        ours, eagers = (torch.autograd.grad(loss, list(given.values())) for loss in losses)
        torch.testing.assert_close(ours, eagers)
        assert [x.stride() for x in ours] == [x.stride() for x in eagers]


def test_averages_of_windows_apart_are_generated(tmp_path: Path) -> None:
    """Each element has its gradient from one window. A loop that also computes that gradient takes half as long as a call."""

    def function(x: Tensor) -> Tensor:
        return functional.avg_pool2d(x, 2, (2, 3)).square().sum()

    code = "\n".join(sources_of(function, (torch.randn(2, 3, 6, 8, requires_grad=True),), tmp_path))
    assert "aoti_torch_cpu_avg_pool2d_backward(" not in code


def test_identities_are_compared_in_vectors(tmp_path: Path) -> None:
    """From 256 rows on torch compares ``uint16``, which Inductor does not load into vectors."""

    def function(x: Tensor) -> Tensor:
        return (x * torch.eye(300) + torch.eye(300, 1)).exp().sum()

    code = "\n".join(sources_of(function, (torch.randn(300, 300, requires_grad=True),), tmp_path))
    assert "uint16_t" not in code
    assert "Vectorized<float>" in code
