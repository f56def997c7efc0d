"""Activation checkpoints: every front end keeps them, and what is saved is what eager saves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import HIDDEN, WIDTH, Blocks, plain, recomputed, reentrant
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotpack
from aotpack import capture
from aotpack._torch.api import checkpoint as checkpoints
from aotpack.capture import front_ends
from aotpack_loader.errors import BuildError

SAVED_PRODUCTS = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
ROWS, BLOCKS = 8, 3
ACTIVATION = ROWS * WIDTH * 4


def selective(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False, context_fn=SAVED_PRODUCTS)


def policy(answer: CheckpointPolicy) -> Callable[[nn.Module, Tensor], Tensor]:
    """A checkpoint whose policy gives ``answer`` for the first product of a block, and recomputes all else."""

    def context() -> Any:
        seen: list[Any] = []

        def decide(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            seen.append(op)
            first = op is torch.ops.aten.addmm.default and seen.count(op) == 1
            return answer if first else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(decide)

    return lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=context)


FRONT_ENDS = pytest.mark.parametrize("front_end", capture.FRONT_ENDS)


def only(monkeypatch: pytest.MonkeyPatch, front_end: str) -> None:
    """Build with one front end."""

    def refuse(*args: object) -> None:
        raise ValueError("not in this test")

    for name in capture.FRONT_ENDS:
        if name != front_end:
            monkeypatch.setitem(front_ends._FRONT_ENDS, name, refuse)


def build(model: Any, *args: Tensor, out: Path) -> aotpack.BuildReport:
    return aotpack.build(model, args, out=out, targets=("portable",), methods=("train",), cache=False)


def saved_by_eager(model: nn.Module, *args: Tensor) -> int:
    """Bytes that autograd's hooks see saved, less those of parameters and arguments."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *args)}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*args)
    return sum(storage.nbytes() for storage in kept.values())


def check_gradients(model: nn.Module, bundle: Path, *args: Tensor) -> None:
    loaded = aotpack.load(bundle)
    expected, result = model(*args), loaded(*args)
    torch.testing.assert_close(result, expected)
    if not expected.requires_grad:
        assert not result.requires_grad
        return
    expected.backward()
    result.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(loaded.get_parameter(name).grad, parameter.grad)


@FRONT_ENDS
@pytest.mark.parametrize(
    ("around", "saved"),
    [
        (recomputed, (BLOCKS - 1) * ACTIVATION),
        (selective, (BLOCKS - 1) * ACTIVATION + BLOCKS * ROWS * HIDDEN * 4),
        (policy(CheckpointPolicy.MUST_SAVE), (BLOCKS - 1) * ACTIVATION + BLOCKS * ROWS * HIDDEN * 4),
        (policy(CheckpointPolicy.PREFER_SAVE), None),
        (policy(CheckpointPolicy.MUST_RECOMPUTE), (BLOCKS - 1) * ACTIVATION),
        (policy(CheckpointPolicy.PREFER_RECOMPUTE), (BLOCKS - 1) * ACTIVATION),
        (reentrant, (BLOCKS - 1) * ACTIVATION),
    ],
    ids=["recomputed", "selective", "MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE", "reentrant"],
)
def test_checkpoints_change_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front_end: str, around: Any, saved: int | None
) -> None:
    """Block boundaries, and what a policy keeps beside them: the same in every front end, gradients equal to eager's."""
    only(monkeypatch, front_end)
    torch.manual_seed(0)
    model, x = Blocks(around, BLOCKS), torch.randn(ROWS, WIDTH)
    if around is reentrant:
        x.requires_grad_()
    report = build(model, x, out=tmp_path / "m")
    found = report.saved_bytes["train"]
    assert saved is None or found == saved
    assert found < saved_by_eager(Blocks(plain, BLOCKS), x) / 2
    assert not any("checkpoint" in warning for warning in report.warnings)
    check_gradients(model, tmp_path / "m", x)


def test_what_is_saved_is_what_eager_saves(tmp_path: Path) -> None:
    x = torch.randn(ROWS, WIDTH)
    for around in (plain, recomputed):
        model = Blocks(around, BLOCKS)
        assert build(model, x, out=tmp_path / around.__name__).saved_bytes["train"] == saved_by_eager(model, x)


@FRONT_ENDS
def test_the_notebooks_checkpoint_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front_end: str) -> None:
    """The notebook: "aot_function appears to skip over the checkpoint wrapper entirely", and saves every intermediate."""

    def layers(a: Tensor, w: Tensor) -> Tensor:
        return torch.sigmoid(torch.cos(torch.sin(a) @ w) @ w)

    only(monkeypatch, front_end)
    inputs = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    through = build(layers, *inputs, out=tmp_path / "plain")
    kept = build(lambda a, w: checkpoint(layers, a, w, use_reentrant=False), *inputs, out=tmp_path / "checkpoint")
    assert through.saved_bytes["train"] == 2 * 4 * 4 * 4
    assert kept.saved_bytes["train"] == 0


@pytest.mark.parametrize("front_end", ["export", "dynamo"])
def test_a_lost_checkpoint_is_a_warning_with_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front_end: str
) -> None:
    only(monkeypatch, front_end)
    if front_end == "export":
        monkeypatch.setattr(checkpoints, "_POLICY", "elsewhere")
        monkeypatch.setattr(checkpoints, "_NUMBER", "nowhere")
    else:
        monkeypatch.setattr(checkpoints, "is_tagged", lambda graph: False)
    report = build(Blocks(recomputed, BLOCKS), torch.randn(ROWS, WIDTH), out=tmp_path / "m")
    (warning,) = (warning for warning in report.warnings if "checkpoint" in warning)
    assert f"the {front_end} front end ignored a checkpoint" in warning
    assert "return checkpoint(function, *args, use_reentrant=False)" in warning
    assert "blocks.py" in warning


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_reentrant_checkpoint_that_cuts_gradients_does_so_in_the_bundle(tmp_path: Path) -> None:
    """Eager gives no gradient where no argument requires one; Dynamo would."""
    model, x = Blocks(reentrant, BLOCKS), torch.randn(ROWS, WIDTH)
    report = build(model, x, out=tmp_path / "m")
    assert any("dynamo front end refused" in note and "use_reentrant=False" in note for note in report.notes)
    check_gradients(model, tmp_path / "m", x)


def test_a_reentrant_checkpoint_with_a_detached_result_is_refused(tmp_path: Path) -> None:
    """Eager says that such a result requires a gradient, and fails in the backward."""

    def halves(x: Tensor) -> Any:
        return x * 2, x.detach()

    def model(x: Tensor) -> Any:
        return checkpoint(halves, x, use_reentrant=True)

    with pytest.raises(BuildError, match=r"test_recompute.py:\d+: return checkpoint\(halves"):
        build(model, torch.randn(3, requires_grad=True), out=tmp_path / "m")


@FRONT_ENDS
def test_a_write_inside_a_checkpoint_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front_end: str) -> None:
    """Eager writes once more as it recomputes; a bundle does not."""
    only(monkeypatch, front_end)
    model = Blocks(recomputed, BLOCKS)
    model.blocks[1] = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    report = build(model, torch.randn(ROWS, WIDTH), out=tmp_path / "m")
    (warning,) = (warning for warning in report.warnings if "checkpoint" in warning)
    assert "blocks.1.1.running_mean, blocks.1.1.running_var" in warning
    assert "blocks.1.1.num_batches_tracked" in warning


@FRONT_ENDS
def test_contexts_of_other_kinds_are_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front_end: str) -> None:
    if front_end == "dynamo":
        pytest.skip("Dynamo takes dispatch modes only")
    only(monkeypatch, front_end)

    def context() -> Any:
        return torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16)

    def model(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(torch.mm, x, w, use_reentrant=False, context_fn=context)

    inputs = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2)
    build(model, *inputs, out=tmp_path / "m")
    assert aotpack.load(tmp_path / "m")(*inputs).dtype is torch.bfloat16
