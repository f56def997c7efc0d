"""What a build for XLA writes, what it puts right on the way, and what it refuses."""

from __future__ import annotations

import copy
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import aotpack
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError

from . import models
from .test_train import build

HERE = Path(__file__)


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    def digest(out: Path) -> str:
        return Bundle.open(build(*models.cnn(), out)).digest

    here = digest(tmp_path / "first.aotpack")
    assert digest(tmp_path / "second.aotpack") == here
    code = (
        "import sys; from pathlib import Path; from xla import models; from xla.test_train import build;"
        "build(*models.cnn(), Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, tmp_path / "third.aotpack"]
    found = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    subprocess.run(command, env=found, check=True, timeout=300, capture_output=True)
    assert Bundle.open(tmp_path / "third.aotpack").digest == here


def test_lowering_takes_no_memory_for_weights() -> None:
    """A weight of 2 GiB: lowering it takes megabytes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from aotpack.targets.xla.lower import lower
    from aotpack.targets.xla.normalise import normalise

    with FakeTensorMode():
        weight, x = torch.empty(1 << 23, 64), torch.empty(8, 64)
        graph = make_fx(lambda weight, x: [torch.mm(x, weight.t())])(weight, x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lowered = lower(normalise(graph), "train.forward", frozenset())
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 << 20
    assert [parameter.type.shape for parameter in lowered.parameters] == [[1 << 23, 64], [8, 64]] or lowered.parameters[
        1
    ].input == 0


def _causal(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True)


def _masked(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=torch.arange(4).view(1, 4) < 3, scale=0.3)


def _resampled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    modes = ("nearest", "nearest-exact", "bilinear", "bicubic")
    return tuple(F.interpolate(x, size=(8, 3), mode=mode) for mode in modes)


def _signs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    zeros = x.detach() * 0
    holes = torch.where(x > 0.5, math.nan, x.detach())
    return torch.copysign(x, zeros), torch.copysign(x, -x), torch.fmax(x, holes), torch.fmin(holes, x)


def _pooled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The last windows reach over the edge; some would begin beyond it, and are none."""
    sizes = {"ceil_mode": True, "padding": 1}
    return (
        F.avg_pool2d(x, 3, 2, **sizes),
        F.avg_pool2d(x, (2, 3), 3, count_include_pad=False, **sizes),
        F.avg_pool2d(x, 3, 2, divisor_override=5, **sizes),
        F.avg_pool2d(x.to(torch.bfloat16), 3, **sizes),
        F.avg_pool3d(x, 2, (1, 2, 3), **sizes),
    )


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole, half = (x.detach() * 9).long(), x.detach().half()
    return whole // 3, whole // -2, whole / 2 // 1, half // 2, half // 0.1, torch.copysign(half, -half), torch.sin(x)


def _weights(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch._weight_norm(x, x[:, :1] + 2, 0), torch._weight_norm(x, x[:1] + 2, 1)


def _strided(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).as_strided((2, 3), (3, 2), 1)


def _without_images(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As a build for a CPU writes them (``aotpack._torch.tracing.pool_gradients``)."""
    _, of_image = F.max_pool2d(x, 3, 2, padding=1, return_indices=True)
    _, of_volume = F.max_pool3d(x, (2, 3, 3), 2, return_indices=True)
    first, second = (torch.arange(found.numel()).view(found.shape).float() for found in (of_image, of_volume))
    window, cube = ([3, 3], [2, 2], [1, 1], [1, 1], False), ([2, 3, 3], [2, 2, 2], [0, 0, 0], [1, 1, 1], False)
    return (
        torch.ops.aten.max_pool2d_with_indices_backward(first, torch.zeros_like(x), *window, of_image),
        torch.ops.aten.max_pool3d_with_indices_backward(second, torch.zeros_like(x), *cube, of_volume),
        x.sum(),
    )


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        pytest.param(
            lambda x: (torch.sum(x, dim=[]), torch.mean(x, dim=[]), torch.amax(x, dim=[])), (3, 4), id="no dimension named"
        ),
        pytest.param(lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True), (4, 3, 5), id="batch norm"),
        pytest.param(lambda x: F.layer_norm(x, (6,)), (2, 6), id="layer norm"),
        pytest.param(lambda x: F.group_norm(x, 2), (2, 4, 5), id="group norm"),
        pytest.param(_causal, (2, 3, 4, 8), id="causal attention"),
        pytest.param(_masked, (2, 3, 4, 8), id="masked attention"),
        pytest.param(lambda x: F.max_pool2d(x, 3, 2, padding=1), (2, 3, 9, 9), id="max pool"),
        pytest.param(_without_images, (2, 3, 9, 7), id="gradients of maxima without the image"),
        pytest.param(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 5, 5), id="interpolate"),
        pytest.param(lambda x: x.t().t() + x.t().contiguous().view(4, 3).t().reshape(3, 4), (3, 4), id="transposes"),
        pytest.param(lambda x: x.masked_fill(x > 0, True) * torch.full((3, 4), True), (3, 4), id="truths as numbers"),
        pytest.param(lambda x: (x > 0, x.argmax(1), *x.topk(2, 1)), (3, 4), id="bools and integers"),
        pytest.param(lambda x: ((x > 0).cumsum(1), (x > 0).prod(), x.cumsum(0)), (3, 4), id="accumulated truths"),
        pytest.param(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 3, 7, 5), id="adaptive average pool"),
        pytest.param(_resampled, (1, 2, 5, 4), id="resampled"),
        pytest.param(lambda x: F.interpolate(x[0], size=7, mode="linear", align_corners=True), (1, 1, 2, 5), id="linear"),
        pytest.param(lambda x: (torch.exp2(x), torch.addmv(x[0], x, x[1], beta=0.5, alpha=2)), (3, 3), id="exp2, addmv"),
        pytest.param(_signs, (3, 4), id="signs of zeros, what is not a number"),
        pytest.param(lambda x: x.unfold(1, 3, 2) * 2, (3, 8), id="unfold"),
        pytest.param(_pooled, (2, 3, 6, 7), id="average pool over the edge"),
        pytest.param(_rounded, (3, 4), id="rounded quotients"),
        pytest.param(_weights, (3, 4), id="normalised weights"),
        pytest.param(_strided, (3, 4), id="as_strided of what was computed"),
        pytest.param(lambda x: F.rrelu(x, 0.25, 0.25, training=True), (3, 4), id="rrelu of one slope"),
    ],
)
def test_what_is_put_right(function: Callable[..., Any], shape: tuple[int, ...], tmp_path: Path) -> None:
    """Operators that torch_xla has no kernel for, or computes otherwise: results and gradients are eager's."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loaded = load(build(function, (x,), tmp_path / "model.aotpack"), backend="xla:cpu")  # type: ignore[arg-type]
    there = x.detach().requires_grad_()
    expected, found = (torch.utils._pytree.tree_leaves(model(given)) for model, given in ((function, x), (loaded, there)))
    for ours, theirs in zip(expected, found, strict=True):
        torch.testing.assert_close(theirs.cpu(), ours)
    for results in (expected, found):
        sum((result * result).sum() for result in results if result.requires_grad).backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)


class OnTheCpu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (OnTheCpu(), {}, r"test_build\.py.*bessel_j0\(x\): \w+\.(special_)?bessel_j0\.default has no rule for XLA\n.*'portable'"),
        (torch.sin, {"dynamic_shapes": ({0: torch.export.Dim("n", min=2, max=9)},)}, r"varies from call to call"),
        (torch.nonzero, {"methods": ("infer",)}, r"varies from call to call"),
        (F.dropout, {"rng": "eager"}, r"draws its own random numbers"),
    ],
)
def test_what_is_refused(function: Callable[..., Any], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """By name, and with the line in the model; nothing is written."""
    with pytest.raises(BuildError, match=message):
        build(function, (torch.randn(4, 4),), tmp_path / "model.aotpack", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_the_target_is_added_to_a_bundle_from_its_graphs(name: str, tmp_path: Path) -> None:
    """Graphs traced for another target hold the CPU's own operators (fused attention, BatchNorm): those are put right too."""
    model, args = getattr(models, name)()
    aotpack.build(copy.deepcopy(model), args, out=tmp_path / "portable.aotpack", targets=("portable",))
    aotpack.compile_bundle(tmp_path / "portable.aotpack", targets=("xla:cpu",), out=tmp_path / "both.aotpack")
    loaded = load(tmp_path / "both.aotpack", backend="xla:cpu")
    for module, arguments in ((model, args), (loaded, args)):
        found = module(*arguments)
        (found[0] if isinstance(found, tuple) else found).backward()
    for (parameter, expected), given in zip(model.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(given.grad.cpu(), expected.grad, msg=lambda text, name=parameter: f"{name}: {text}")
    for buffer, expected in model.named_buffers():
        torch.testing.assert_close(loaded.get_buffer(buffer).cpu(), expected)


class TwoViews(torch.nn.Module):
    """Two parameters over one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.nn.Parameter(torch.randn(4, 4))
        self.part = torch.nn.Parameter(self.whole.detach()[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.whole).sum() + (x @ self.part.t()).sum()


def test_state_that_shares_memory_runs_on_tensors_with_addresses(tmp_path: Path) -> None:
    model, x = TwoViews(), torch.randn(3, 4)
    aotpack.build(model, (x,), out=tmp_path / "m", targets=("xla:cpu",))
    loaded = load(tmp_path / "m", backend="xla:cpu")
    with torch.no_grad():
        loaded.whole.mul_(2)
        model.whole.mul_(2)
    torch.testing.assert_close(loaded(x), model(x))


class Unchanged(torch.autograd.Function):
    """It returns its argument as it is, and eager's result is in the argument's memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 3
    before = y[:1]
    return before, y.t_()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Unchanged.apply, "is in the memory of an argument, without being a view of it"),
        (lambda x: x.unsafe_split(1), "is a part of a tensor that was split unsafely"),
        (turned, "has an as_strided view, and is not contiguous"),
    ],
    ids=["function", "unsafe_split", "as_strided"],
)
def test_results_whose_memory_xla_cannot_share_are_refused(tmp_path: Path, function: Callable[..., Any], reason: str) -> None:
    x = torch.randn(2, 4, requires_grad=True)
    with pytest.raises(BuildError, match=reason):
        aotpack.build(lambda x: function(x), (x,), out=tmp_path / "m.aotpack", targets=("xla:cpu",), methods=("train",))
    assert not [*tmp_path.iterdir()]
