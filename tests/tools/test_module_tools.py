"""Tools that walk, copy or hook modules: each acts as in eager, or says once what does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrizations, prune

import aotpack
import aotpack_loader
from aotpack_loader.edits import HookWarning
from aotpack_loader.errors import EditError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
X = torch.linspace(-1, 1, 24).reshape(6, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tools") / "net.aotpack"
    aotpack.build(net(), (X,), out=out, targets=("portable",), methods=("train",))
    return out


@pytest.fixture
def models(bundle: Path) -> tuple[Any, Any]:
    """The original, and the bundle with its parameters."""
    return net(), aotpack_loader.load(bundle)


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """The modules for which a hook of all modules runs."""
    names: list[str] = []
    handle = hooks.register_module_forward_hook(lambda module, args, out: names.append(type(module).__name__))
    yield names
    handle.remove()


def losses(model: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(X) - 1).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_shallow_copy_shares_parameters_and_buffers(models: tuple[Any, Any]) -> None:
    found = []
    for model in models:
        copied = copy.copy(model)
        assert copied is not model
        assert copied[0].weight is model[0].weight
        found.append([losses(copied), losses(model), model[1].running_mean.sum().item()])
        copied.eval()
        assert model.training
    assert found[1][0] == pytest.approx(found[0][0])
    assert found[1][1] == pytest.approx(found[0][1])
    assert found[1][2] == pytest.approx(found[0][2])


def test_hooks_of_all_modules_are_told_about(models: tuple[Any, Any], seen: list[str]) -> None:
    expected, found = models
    expected(X)
    assert seen == ["Linear", "BatchNorm1d", "Linear", "Sequential"]
    seen.clear()
    with pytest.warns(HookWarning, match="do not run for its submodules"):
        found(X)
    assert seen == ["Sequential"]


@pytest.mark.parametrize("tool", ["prune", "weight_norm", "spectral_norm"])
def test_parameters_that_a_hook_would_compute_name_what_works(models: tuple[Any, Any], tool: str) -> None:
    tools = {
        "prune": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
        "weight_norm": nn.utils.weight_norm,
        "spectral_norm": nn.utils.spectral_norm,
    }

    with pytest.raises(EditError, match="parametrizations and parametrize"):
        tools[tool](models[1][0])


def test_parametrizations_act(models: tuple[Any, Any]) -> None:
    found = []
    for model in models:
        parametrizations.weight_norm(model[0])
        torch.manual_seed(1)
        parametrizations.spectral_norm(model[2])
        found.append(losses(model))
    assert found[1] == pytest.approx(found[0])
