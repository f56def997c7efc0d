"""Tools that walk, copy or hook modules: each acts as in eager, or says once what does not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import aotpack
import aotpack_loader
from aotpack_loader.errors import EditError, InputError, ModeError
from aotpack_loader.module.edits import HookWarning

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


@pytest.mark.parametrize(
    ("tool", "undo"),
    [
        (lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5), lambda layer: prune.remove(layer, "weight")),
        (nn.utils.weight_norm, nn.utils.remove_weight_norm),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    ],
    ids=["prune", "weight_norm", "spectral_norm"],
)
def test_parameters_that_a_hook_computes_act(
    models: tuple[Any, Any], tool: Callable[[Any], object], undo: Callable[[Any], object]
) -> None:
    found = []
    for model in models:
        torch.manual_seed(1)
        tool(model[0])
        during = losses(model)
        names = list(model.state_dict())
        undo(model[0])
        found.append((during, losses(model), names))
    assert found[1][0] == pytest.approx(found[0][0])
    assert found[1][1] == pytest.approx(found[0][1])
    assert found[1][2] == found[0][2]


def test_other_hooks_of_submodules_are_refused_beside_those(models: tuple[Any, Any]) -> None:
    model = models[1]
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    handle = model[0].register_forward_pre_hook(lambda module, args: None)
    with pytest.raises(EditError, match=r"0: has a forward pre-hook, .*<lambda>") as caught:
        model(X)
    assert len(caught.value.problems) == 1
    handle.remove()
    model(X)


def test_a_recomputed_call_updates_statistics_as_in_eager(models: tuple[Any, Any]) -> None:
    found = []
    for model in models:
        loss = checkpoint(model, X, use_reentrant=False).square().mean()
        once = model[1].running_mean.clone()
        loss.backward()
        found.append([once, model[1].running_mean, model[1].num_batches_tracked, *(p.grad for p in model.parameters())])
    assert not torch.equal(found[0][0], found[0][1])  # torch runs the model twice
    torch.testing.assert_close(found[1], found[0])


class Scaled(nn.Module):
    """Holds a model, as users' own models hold a bundle."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 2).sum()


def test_a_symbolic_trace_keeps_a_bundle_as_one_module(models: tuple[Any, Any]) -> None:
    traced = [torch.fx.symbolic_trace(Scaled(model)) for model in models]
    assert [node.target for node in traced[1].graph.nodes if node.op == "call_module"] == ["inner"]
    gradients = []
    for module in traced:
        loss = module(X)
        loss.backward()
        gradients.append([loss, *(p.grad for p in module.parameters())])
    torch.testing.assert_close(gradients[1], gradients[0])
    with pytest.raises(EditError, match=r"torch\.fx cannot trace"):
        torch.fx.symbolic_trace(models[1])(X)


def test_a_submodule_says_how_to_get_at_its_value(models: tuple[Any, Any]) -> None:
    with pytest.raises(ModeError, match="Return its value from the model as well"):
        models[1][0](X)


def test_weights_in_channels_last_name_the_way_back_and_the_way_on(tmp_path: Path) -> None:
    image = torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4)
    aotpack.build(nn.Conv2d(3, 2, 3), (image,), out=tmp_path / "c.aotpack", targets=("portable",), methods=("train",))
    model = aotpack_loader.load(tmp_path / "c.aotpack")
    model.to(memory_format=torch.channels_last)
    with pytest.raises(InputError, match="build the bundle from a model that is in it"):
        model(image)
    model.to(memory_format=torch.contiguous_format)
    model(image)


def test_parametrizations_act(models: tuple[Any, Any]) -> None:
    found = []
    for model in models:
        parametrizations.weight_norm(model[0])
        torch.manual_seed(1)
        parametrizations.spectral_norm(model[2])
        found.append(losses(model))
    assert found[1] == pytest.approx(found[0])


@pytest.mark.parametrize("tool", ["torchinfo", "torchsummary"])
def test_summaries_that_hook_submodules_name_the_one_that_works(models: tuple[Any, Any], tool: str) -> None:
    def hook(*args: Any) -> None: ...

    hook.__module__ = f"{tool}.{tool}"
    models[1][0].register_forward_hook(hook)
    with pytest.raises(EditError, match=r"summary\(model\)"):
        models[1](X)


def test_gradients_of_each_sample_are_refused(models: tuple[Any, Any]) -> None:
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    with pytest.raises(InputError, match="call the bundle per sample") as caught:
        call_for_per_sample_grads(models[1], batch_size=len(X))(X)
    assert "is a ExpandedWeight" in str(caught.value)

    def ft_compute_sample_grad() -> None: ...

    ft_compute_sample_grad.__module__ = "opacus.grad_sample.functorch"
    with pytest.raises(EditError, match="call the bundle per sample"):
        models[1][0].ft_compute_sample_grad = ft_compute_sample_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_export_that_switches_to_eval_mode_is_refused_by_its_name(models: tuple[Any, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(EditError, match=r"torch\.jit\.trace cannot trace a loaded bundle"):
        torch.onnx.export(models[1], (X,), tmp_path / "net.onnx", dynamo=False)


def test_a_module_that_train_would_switch_is_told_at_the_build(tmp_path: Path) -> None:
    class Kept(nn.Sequential):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self[1].eval()
            return self

    for kind in (nn.Sequential, Kept):
        model = kind(*net()).train()
        model[1].eval()
        report = aotpack.build(model, (X,), out=tmp_path / "m", targets=("portable",), methods=("train",))
        told = [warning for warning in report.warnings if "the usual train()" in warning]
        assert len(told) == (kind is nn.Sequential)
        loaded = aotpack_loader.load(tmp_path / "m").train()
        if told:
            assert told[0].startswith("'train' needs 1 in eval()")
            with pytest.raises(ModeError, match="1: was in eval"):
                loaded(X)
            loaded[1].eval()
        torch.testing.assert_close(loaded(X), model(X))
