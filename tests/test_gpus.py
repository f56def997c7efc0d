"""A machine with a GPU: builds and loads on it use the CPU, and say so where a user asks for more."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import aotpack
from aotpack_loader.errors import InputError, UnsupportedError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def on_a_gpu(x: Tensor) -> Tensor:
    return (x.to("cuda") * 2).cpu()


def asks_for_a_gpu(x: Tensor) -> Tensor:
    return x.to("cuda" if torch.cuda.is_available() else "cpu") * 2


def pretend_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Let torch say that there is a GPU. What it asks while it is imported has other ways."""
    assert aotpack.build
    patch.setattr(torch.cuda, "_is_compiled", lambda: True)
    patch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    assert torch.cuda.is_available()


def test_a_build_does_not_start_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> None:
        raise AssertionError("CUDA is started")

    pretend_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "_lazy_init", started)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    aotpack.build(model, (torch.randn(2, 3),), out=tmp_path / "m.aotpack", targets=("portable",), cache=False)
    assert torch.cuda.is_available()  # again


def test_a_model_that_asks_is_traced_as_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_a_gpu(monkeypatch)
    aotpack.build(asks_for_a_gpu, (torch.randn(3),), out=tmp_path / "m.aotpack", targets=("portable",), cache=False)
    assert torch.equal(aotpack.load(tmp_path / "m.aotpack")(torch.ones(3)), torch.full((3,), 2.0))


@needs_gpu
def test_a_model_that_computes_on_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)another device.*test_gpus\.py.*line \d+.*on cuda:0.*x\.device"):
        aotpack.build(on_a_gpu, (torch.randn(3),), out=tmp_path / "m.aotpack", targets=("portable",), cache=False)
    assert list(tmp_path.iterdir()) == []


def test_examples_on_a_gpu_are_refused_by_name(tmp_path: Path) -> None:
    with FakeTensorMode():
        batch = {"x": torch.empty(3, device="cuda"), "y": torch.empty(3)}
    with pytest.raises(UnsupportedError, match=r"(?s)on the CPU.*batch\['x'\]: is on cuda"):
        aotpack.build(lambda batch: batch["x"], (batch,), out=tmp_path / "m.aotpack", targets=("portable",), cache=False)


@pytest.mark.parametrize("check", ["arguments", "full"])
def test_another_default_device_changes_no_call(tiny_bundle: Path, check: Any) -> None:
    """``torch.device("cuda")`` as a default is what scripts for GPUs set; ``meta`` is there without one."""
    x, scale = torch.randn(5, 4), torch.randn(5, 1)
    expected = aotpack.load(tiny_bundle, check=check)(x, scale=scale)["loss"]
    with torch.device("meta"):
        loaded = aotpack.load(tiny_bundle, check=check)
        loss = loaded(x, scale=scale)["loss"]
        loss.backward()
    assert torch.equal(loss, expected)
    assert all(parameter.grad is not None and parameter.grad.device.type == "cpu" for parameter in loaded.parameters())


@needs_gpu
def test_a_model_on_a_gpu_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)on the CPU.*weight: is on cuda:0.*bias: is on cuda:0"):
        aotpack.build(nn.Linear(3, 3).cuda(), (torch.randn(2, 3).cuda(),), out=tmp_path / "m.aotpack", targets=("portable",))


@needs_gpu
def test_a_loaded_module_names_what_is_on_a_gpu(tiny_bundle: Path) -> None:
    """A move there is refused at the next call, and a move back makes the module whole."""
    x, scale = torch.randn(5, 4), torch.randn(5, 1)
    loaded = aotpack.load(tiny_bundle)
    expected = loaded(x, scale=scale)["loss"]
    with pytest.raises(InputError, match=r"(?s)linear.weight: expected torch.float32\[3, 4\] on cpu.*on cuda:0"):
        copy.deepcopy(loaded).cuda()(x, scale=scale)
    with pytest.raises(InputError, match=r"x: expected float32\[5,4\] on cpu, got float32\[5,4\] on cuda:0"):
        loaded(x.cuda(), scale=scale)
    assert torch.equal(loaded.cuda().cpu()(x, scale=scale)["loss"], expected)


@needs_gpu
def test_portable_graphs_run_on_a_gpu(tiny_bundle: Path, tiny_model: nn.Module) -> None:
    """The rest of what happens there is tested on another device (tests/second_device)."""
    x, scale = torch.randn(5, 4), torch.randn(5, 1)
    loaded = aotpack.load(tiny_bundle, device="cuda")
    loss = loaded(x.cuda(), scale=scale.cuda())["loss"]
    loss.backward()
    model = copy.deepcopy(tiny_model)
    expected = model(x, scale=scale)["loss"]
    expected.backward()
    torch.testing.assert_close(loss.cpu(), expected)
    for found, parameter in zip(loaded.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), parameter.grad)


@needs_gpu
def test_state_and_pinned_batches_come_from_a_gpu(tiny_bundle: Path) -> None:
    loaded = aotpack.load(tiny_bundle)
    loaded.load_state_dict({name: value.cuda() for name, value in loaded.state_dict().items()})
    x, scale = torch.randn(5, 4), torch.randn(5, 1)
    assert torch.equal(loaded(x.pin_memory(), scale=scale)["y"], loaded(x, scale=scale)["y"])
