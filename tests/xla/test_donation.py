"""Results that take the memory of inputs nobody needs any more: what the backward consumes, and what is overwritten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError, AutogradError
from aotpack_loader.module.program import LoadedProgram

from . import models
from .test_train import build


def address(tensor: torch.Tensor) -> int:
    """Where a tensor lies on the device."""
    import torch_xla

    torch_xla.sync(wait=True)
    return int(torch_xla._XLAC._unsafe_buffer_pointer(tensor))


class Chain(nn.Module):
    """Its backward needs what only the forward has computed, of the size of a gradient."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).sigmoid() @ weight).sum()


def example() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 64), torch.randn(64, 64) / 8


def gradients(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Eager's, on the CPU."""
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    return torch.autograd.grad(Chain()(*leaves), leaves)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("donation") / "model.aotpack"
    return build(Chain(), tuple(tensor.requires_grad_() for tensor in example()), out, methods=("train",))


def watch(loaded: LoadedProgram, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int], list[int]]]:
    """What runs as a backward, with the addresses of what went in and came out."""
    seen: list[tuple[str, list[int], list[int]]] = []
    bridge = loaded._aotpack_calls[True, True].differentiable
    assert bridge is not None

    def watched(name: str, run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        def watching(arguments: list[Any]) -> list[Any]:
            given = [address(argument) for argument in arguments]
            results = run(arguments)
            seen.append((name, given, [address(result) for result in results]))
            return results

        return watching

    for name in ("backward", "retaining"):
        monkeypatch.setattr(bridge, name, watched(name, getattr(bridge, name)))
    return seen


def test_the_backward_takes_the_memory_of_what_was_saved(
    chain: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:  # X5
    bundle = Bundle.open(chain)
    assert len(bundle.targets["xla"].xla["train.backward"].donated) > 0
    loaded = load(chain, device="xla")
    seen = watch(loaded, monkeypatch)
    args = example()
    given = [tensor.to(device).requires_grad_() for tensor in args]
    loaded(*given).backward()
    ((name, before, after),) = seen
    assert name == "backward"
    assert set(before) & set(after)
    for leaf, expected in zip(given, gradients(*args), strict=True):
        torch.testing.assert_close(leaf.grad.cpu(), expected)


def test_a_graph_that_is_kept_keeps_what_was_saved(
    chain: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:  # X5
    loaded = load(chain, device="xla")
    seen = watch(loaded, monkeypatch)
    args = example()
    given = [tensor.to(device).requires_grad_() for tensor in args]
    loss = loaded(*given)
    loss.backward(retain_graph=True)
    found = [[leaf.grad for leaf in given], torch.autograd.grad(loss, given, retain_graph=True), torch.autograd.grad(loss, given)]
    assert [name for name, _, _ in seen] == ["retaining", "retaining", "backward"]
    assert not set(seen[0][2]) & set(seen[0][1])
    for several in found:
        for gradient, expected in zip(several, gradients(*args), strict=True):
            torch.testing.assert_close(gradient.cpu(), expected)
    with pytest.raises((AutogradError, RuntimeError), match=r"freed|second time"):
        loss.backward()


def test_what_hooks_may_have_kept_is_left_to_them(chain: Path, device: torch.device) -> None:  # X5
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    loaded = load(chain, device="xla")
    x, weight = example()
    given = [tensor.to(device).requires_grad_() for tensor in (x, weight)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loaded(*given)
    loss.backward()
    saved = [tensor.cpu() for tensor in kept]
    assert any(tensor.shape == x.shape and torch.allclose(tensor, (x @ weight).sigmoid(), atol=1e-5) for tensor in saved)


class Cache(nn.Module):
    """Writes into a buffer and into an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(128, 16))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        self.seen.mul_(0.5).add_(x)
        total.add_(x)
        return self.seen.sum() + total.mean()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("donation") / "model.aotpack"
    return build(Cache(), (torch.randn(128, 16), torch.zeros(128, 16)), out, methods=("infer",))


def test_what_is_written_to_is_updated_in_place(cache: Path, device: torch.device) -> None:
    """Over many steps the same two addresses are used; tensors that were taken before keep their values."""
    model, loaded = Cache().eval(), load(cache, device="xla", donate=True).eval()
    on_cpu, total = torch.zeros(128, 16), torch.zeros(128, 16)
    there = on_cpu.to(device)
    alias, view = there.detach(), there[:4]
    addresses = {address(loaded.seen), address(there)}
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(128, 16)
            before, copied = loaded.seen.clone(), there.clone()
            expected_before, expected_copied = model.seen.clone(), total.clone()
            expected, found = model(x, total), loaded(x.to(device), there)
            torch.testing.assert_close(found.cpu(), expected)
            for ours, eagers in ((before, expected_before), (copied, expected_copied), (there, total), (loaded.seen, model.seen)):
                torch.testing.assert_close(ours.cpu(), eagers)
            torch.testing.assert_close(alias.cpu(), total)
            torch.testing.assert_close(view.cpu(), total[:4])
            assert {address(loaded.seen), address(there)} == addresses
    assert not on_cpu.any()  # what the argument was made from


def test_without_being_asked_nothing_visible_loses_its_memory(cache: Path, device: torch.device) -> None:
    loaded = load(cache, device="xla").eval()
    there, other = torch.zeros(128, 16).to(device), torch.zeros(128, 16).to(device)
    other.copy_(there)  # torch_xla lets the two share memory
    place = address(there)
    with torch.no_grad():
        loaded(torch.ones(128, 16).to(device), there)
    assert address(there) != place
    assert other.sum().item() == 0


def test_an_argument_that_is_given_twice_in_one_memory(cache: Path, device: torch.device) -> None:
    """Two tensors that torch_xla lets share their memory are no one tensor: the other one keeps its values."""
    loaded = load(cache, device="xla", donate=True).eval()
    there, other = torch.zeros(128, 16).to(device), torch.ones(128, 16).to(device)
    there.copy_(other)
    assert address(there) == address(other)
    with torch.no_grad():
        loaded(other, there)
    torch.testing.assert_close(there.cpu(), torch.full((128, 16), 2.0))
    torch.testing.assert_close(other.cpu(), torch.ones(128, 16))


def test_running_statistics_are_updated_in_place(tmp_path: Path, device: torch.device) -> None:
    model, args = models.cnn()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), device="xla", donate=True)
    given = [arg.to(device) for arg in args]
    names = ("norm.running_mean", "norm.running_var")
    addresses = {address(loaded.get_buffer(name)) for name in names}
    for _ in range(3):
        model(*args).backward()
        loaded(*given).backward()
        assert {address(loaded.get_buffer(name)) for name in names} == addresses
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(loaded.get_buffer(name).cpu(), buffer)
    for parameter, other in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), parameter.grad, rtol=1e-4, atol=1e-5)


def test_it_is_for_xla_devices(tiny_bundle: Path) -> None:
    with pytest.raises(AotpackError, match="donate=True is for XLA devices; portable updates in place anyway"):
        load(tiny_bundle, donate=True)
