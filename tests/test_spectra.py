"""Compiled code of networks with Fourier transforms and complex numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_fixes.lowering import sources_of

import aotpack

_RANDOM = torch.Generator().manual_seed(0)
_MASKS = torch.randn(4, 5, generator=_RANDOM, dtype=torch.complex64)
CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "even": (lambda x: torch.fft.rfft(x.tanh()).abs(), (3, 8)),
    "odd": (lambda x: torch.fft.rfft(x.tanh(), norm="ortho").abs(), (3, 9)),
    "one frequency": (lambda x: torch.fft.rfft(x.tanh(), n=1).abs(), (3, 9)),
    "two frequencies": (lambda x: torch.fft.rfft(x.tanh(), n=2, norm="forward").real, (3, 9)),
    "padded": (lambda x: torch.fft.rfft(x.tanh(), n=13).imag, (3, 8)),
    "inner dimension": (lambda x: torch.fft.rfft(x.tanh(), dim=1).abs(), (3, 8, 2)),
    "images": (lambda x: torch.fft.rfft2(x.tanh(), norm="ortho").abs(), (2, 6, 8)),
    "images, rows last": (lambda x: torch.fft.rfftn(x.tanh(), dim=(2, 1)).abs(), (2, 7, 6)),
    "volumes": (lambda x: torch.fft.rfftn(x.tanh()).angle().cos(), (4, 3, 6)),
    "frames": (lambda x: torch.stft(x.tanh(), 16, 4, window=torch.hann_window(16), return_complex=True).abs().log1p(), (2, 64)),
    "filtered": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x.tanh()) * _MASKS, s=(4, 8)), (2, 4, 8)),
    "conjugated": (lambda x: torch.fft.ihfft(x.tanh()).abs(), (3, 8)),
    "whole": (lambda x: torch.fft.fft(x.tanh()).abs(), (3, 8)),
    "both parts": (lambda x: torch.view_as_real(torch.fft.ifft(torch.fft.rfft(x.tanh()), 8)), (3, 8)),
    "doubles": (lambda x: torch.fft.rfft(x.double().tanh()).abs(), (3, 10)),
}


@pytest.mark.parametrize("vary", [False, True])
def test_spectra_have_eagers_values_and_gradients(vary: bool, tmp_path: Path) -> None:
    """Also where the first dimension, which only "volumes" transforms, varies."""
    cases = {name: case for name, case in CASES.items() if not vary or name != "volumes"}
    given, example = (
        {name: torch.randn(size[0] + more, *size[1:], generator=_RANDOM).requires_grad_() for name, (_, size) in cases.items()}
        for more in (0, vary)
    )

    def spectra(given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: cases[name][0](x) for name, x in given.items()}

    sizes = ({name: {0: torch.export.Dim.AUTO} for name in cases},) if vary else None
    aotpack.build(spectra, (example,), out=tmp_path / "m", methods=("train",), targets=("cpu",), dynamic_shapes=sizes)
    found, expected = aotpack.load(tmp_path / "m", backend="cpu")(given), spectra(given)
    torch.testing.assert_close(found, expected)
    weights = {name: torch.randn(result.shape, generator=_RANDOM).to(result) for name, result in expected.items()}
    losses = [torch.stack([(results[name] * weights[name]).sum() for name in results]).sum() for results in (found, expected)]
    torch.testing.assert_close(*(torch.autograd.grad(loss, list(given.values())) for loss in losses))


def _image(*size: int, channels_last: bool = False) -> Tensor:
    image = torch.randn(size, generator=_RANDOM, dtype=torch.complex64)
    return (image.contiguous(memory_format=torch.channels_last) if channels_last else image).requires_grad_()


LAYOUTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "transposed": (lambda x, y: x.mT + y, (_image(3, 4), _image(4, 3))),
    "channels-last": (lambda x, y: x + y * 2, (_image(2, 3, 4, 5, channels_last=True), _image(2, 3, 4, 5))),
    "slices": (lambda x: x[..., :3, :3] + x[..., -3:, :3] * 2, (_image(2, 3, 4, 5, channels_last=True),)),
    "of one column": (lambda x, y: x.permute(2, 0, 1) + y, (_image(3, 1, 4), _image(4, 3, 1))),
    "expanded": (lambda x, y: x[:, None].expand(3, 4) + y, (_image(3), _image(3, 4))),
    "conjugated": (lambda x, y: x.mH + y.conj(), (_image(3, 4), _image(4, 3))),
    "no elements": (lambda x, y: x + y, (_image(0, 4), _image(0, 4))),
    "no dimensions": (lambda x: x.sum() + x.prod() * 2j, (_image(3),)),
    "a complex factor": (lambda x, y: torch.add(x, y, alpha=2.5 + 1j), (_image(3, 4), _image(3, 4))),
    "masked": (lambda x: x.masked_fill(x.real > 0, 0) + torch.where(x.imag > 0, x, 1.5 - 1j), (_image(3, 4),)),
    "filled": (lambda x: x + torch.full((4,), x.real[0, 0].item(), dtype=torch.complex64), (_image(3, 4),)),
    "compared": (lambda x: x * (x != 1j) * (x.real == 0j), (_image(3, 4),)),
    "rolled": (lambda x: torch.fft.fftshift(x, (2, 3)) * 1, (_image(2, 3, 4, 5, channels_last=True),)),
    "two slices of a spectrum": (
        lambda x, w: torch.fft.irfft2(torch.cat([x[:, :, :2] * w[0], x[:, :, -2:] * w[1]], 2)).to(torch.complex64),
        (_image(2, 3, 4, 5, channels_last=True), _image(2, 1, 5)),
    ),
}


def test_complex_numbers_in_any_layout_have_eagers_values_and_strides(tmp_path: Path) -> None:
    """The sum of complex tensors did not compile unless the last stride was 1."""
    inputs = {name: given for name, (_, given) in LAYOUTS.items()}

    def computed(given: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
        return {name: LAYOUTS[name][0](*tensors) for name, tensors in given.items()}

    aotpack.build(computed, (inputs,), out=tmp_path / "m", methods=("train",), targets=("cpu",))
    found, expected = aotpack.load(tmp_path / "m", backend="cpu")(inputs), computed(inputs)
    torch.testing.assert_close(found, expected, check_stride=True)
    leaves = [tensor for given in inputs.values() for tensor in given]
    sums = ([(x.abs() * torch.arange(x.numel()).view(x.shape)).sum() for x in results.values()] for results in (found, expected))
    losses = [torch.stack(parts).sum() for parts in sums]
    torch.testing.assert_close(*(torch.autograd.grad(loss, leaves) for loss in losses))


def _sources(function: Callable[[Tensor], Tensor], size: tuple[int, ...], folder: Path) -> list[str]:
    return sources_of(function, (torch.randn(size, generator=_RANDOM).requires_grad_(),), folder)


@pytest.mark.parametrize("name", ["even", "odd", "inner dimension", "images", "frames", "doubles"])
def test_gradients_of_real_transforms_are_real_transforms(name: str, tmp_path: Path) -> None:
    function, size = CASES[name]
    _, backward = _sources(lambda x: function(x).square().sum(), size, tmp_path)
    assert "_fft_c2r" in backward
    assert "slice_scatter" not in backward


def test_magnitudes_of_complex_numbers_are_computed_once(tmp_path: Path) -> None:
    """Their gradient is one call of ``sgn``. torch's rule divides by the magnitude, computed again."""
    forward, backward = _sources(lambda x: torch.view_as_complex(x).abs().square().sum(), (50, 2), tmp_path)
    assert forward.count("aoti_torch_cpu_abs(") == 1
    assert "abs(" not in backward
    assert "aten.sgn" in backward


def test_windows_of_frames_are_computed_once(tmp_path: Path) -> None:
    """Each frame reads the window, whose cosines no loop over frames computes."""

    def frames(x: Tensor) -> Tensor:
        return (x.unfold(1, 64, 16) * torch.cos(torch.arange(64) * 0.1)).square().sum()

    for code in _sources(frames, (8, 4096), tmp_path):
        before, *after = code.split(".cos()")
        assert after
        assert "<static_cast<int64_t>(64L)" in re.findall(r"for\(.*", before)[-1]  # a loop over the window
