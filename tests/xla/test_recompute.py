"""Checkpoints on XLA: what a backward computes again is not saved, not merged with anything, and not computed before its time."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conformance.cases.recompute import layers
from support.blocks import WIDTH, Around, Blocks, plain, recomputed, reentrant
from torch import Tensor

import aotpack
from aotpack.targets.xla import barriers
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle

from .models import assert_computes_layers

BLOCKS, ROWS = 4, 256
ACTIVATION = ROWS * WIDTH * 4


def mean_square(x: Tensor) -> Tensor:
    return x.square().mean()


def build(model: object, *args: Tensor, out: Path, front_end: str = "export", memory_budget: float | None = None) -> int:
    """Build for XLA; the bytes that the forward saves for the backward."""
    options = {"targets": ("xla:cpu",), "front_ends": (front_end,), "methods": ("train",)}
    return aotpack.build(model, args, out=out, memory_budget=memory_budget, **options).saved_bytes["train"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("around", "front_end"),
    [(recomputed, "export"), (recomputed, "trace"), (reentrant, "export")],
)
def test_what_is_saved_is_what_lies_between_the_checkpoints(around: Around, front_end: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Blocks(plain, BLOCKS, mean_square), torch.randn(ROWS, WIDTH, requires_grad=True)
    model.around = around
    assert build(copy.deepcopy(model), x, out=tmp_path / "m", front_end=front_end) == (BLOCKS - 1) * ACTIVATION
    loaded, there = load(tmp_path / "m", backend="xla:cpu"), x.detach().requires_grad_()
    model.around = plain
    for module, given in ((model, x), (loaded, there)):
        module(given).backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad)
    for expected, found in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad)


def test_a_memory_budget_holds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Blocks(plain, BLOCKS, mean_square), torch.randn(ROWS, WIDTH, requires_grad=True)
    most = build(copy.deepcopy(model), x, out=tmp_path / "most")
    assert 0 < build(copy.deepcopy(model), x, out=tmp_path / "m", memory_budget=0.5) <= most / 2
    loaded, there = load(tmp_path / "m", backend="xla:cpu"), x.detach().requires_grad_()
    for module, given in ((model, x), (loaded, there)):
        module(given).backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad)


def compiled(path: Path) -> tuple[str, int]:
    """The backward as XLA's CPU compiler makes it, where that leaves barriers to its scheduler: text, and bytes of memory."""
    from jaxlib import _jax

    from .test_judge import compile_stablehlo

    options = _jax.CompileOptions()
    options.env_option_overrides = [("xla_disable_hlo_passes", "cse_barrier_expander")]
    bundle = Bundle.open(path)
    computation = bundle.targets["xla:cpu"].xla["train.backward"]
    assert computation.stablehlo is not None
    executable = compile_stablehlo(bundle.module(computation.stablehlo), options)
    return executable.hlo_modules()[0].to_string(), executable.get_compiled_memory_stats().temp_size_in_bytes


def test_xla_computes_again_and_one_block_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(ROWS, WIDTH)
    saved = {
        around: build(Blocks(around, BLOCKS, mean_square), x, out=tmp_path / around.__name__) for around in (plain, recomputed)
    }
    assert saved[recomputed] < saved[plain] / 10
    without, memory = compiled(tmp_path / "plain")
    text, low = compiled(tmp_path / "recomputed")
    again = BLOCKS + 1  # the first product of each block, and both of the last, whose result the loss squares
    assert (without.count(" dot("), text.count(" dot(")) == (4 * BLOCKS, 4 * BLOCKS + again)
    assert low + saved[recomputed] < (memory + saved[plain]) / 2
    monkeypatch.setattr(barriers, "_COSTLY", ())
    build(Blocks(recomputed, BLOCKS, mean_square), x, out=tmp_path / "bare")
    text, high = compiled(tmp_path / "bare")
    assert text.count(" dot(") == 4 * BLOCKS + again
    assert high > 2 * low  # all blocks at once, were it not for the barriers


def test_a_recomputed_dropout_drops_the_same(tmp_path: Path) -> None:
    """Gradients are those of the mask that the forward had, though that is not saved."""

    def dropped(x: Tensor) -> Tensor:
        return recomputed(lambda x: F.dropout(x.sin(), 0.3).exp(), x)

    def kept(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.3).exp()

    x = torch.rand(200, 300) + 0.1
    example = x.clone().requires_grad_()
    assert build(dropped, example, out=tmp_path / "m") < build(kept, example, out=tmp_path / "kept") / 50
    loaded, there = load(tmp_path / "m", backend="xla:cpu"), x.requires_grad_()
    result = loaded(there)
    result.sum().backward()
    inside = result.detach().cpu().log()
    mask = inside.abs() > 1e-6
    assert abs(mask.float().mean().item() - 0.7) < 0.0094  # 60,000 draws: five standard deviations
    torch.testing.assert_close(inside[mask], (x.sin() / 0.7)[mask])
    torch.testing.assert_close(there.grad.cpu(), result.detach().cpu() * mask / 0.7 * x.cos())


@pytest.mark.parametrize(
    ("around", "saved"),
    [
        pytest.param(plain, 2, id="notebook: trace fn without checkpoint"),
        pytest.param(recomputed, 0, id="notebook: trace fn with a torch non-reentrant checkpoint"),
        pytest.param(reentrant, 0, id="notebook: a torch reentrant checkpoint"),
    ],
)
def test_the_notebooks_checkpoints(around: Around, saved: int, tmp_path: Path) -> None:
    """There it raised, or was looked through: the forward saved all intermediate values."""
    a, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    assert build(lambda a, w: around(layers, a, w), a, w, out=tmp_path / "m") == saved * 4 * 4 * 4  # type: ignore[call-arg]
    assert_computes_layers(tmp_path / "m", a, w)
