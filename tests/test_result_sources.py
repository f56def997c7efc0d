"""Gradients between the results of one call: refused where a caller waits for them, in Python and in native code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import aotpack
import aotpack_loader
from aotpack_loader.errors import AutogradError


class Stages(nn.Module):
    """Each result is computed from the one before it; ``free`` from none, and ``mean`` without gradients."""

    def __init__(self, views: bool) -> None:
        super().__init__()
        self.layer, self.views = nn.Linear(4, 3), views

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.layer(x)
        logits = hidden.tanh()
        with torch.no_grad():
            mean = logits.mean()
        flat = logits.view(-1) if self.views else logits
        loss = F.cross_entropy(flat.view(-1, 3), labels) + mean
        return {"hidden": hidden, "loss": loss, "logits": logits, "flat": flat, "free": x.sin() * self.layer.bias.sum()}


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])


@pytest.fixture(scope="module", params=[False, True], ids=["results", "views"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stages") / "stages.aotpack"
    aotpack.build(Stages(request.param), arguments(), out=out, targets=("portable", "cpu"), methods=["train"])
    return out


@pytest.fixture(params=["portable", "cpu"])
def loaded(request: pytest.FixtureRequest, bundle: Path) -> Any:
    loaded = aotpack_loader.load(bundle, backend=request.param)
    assert loaded.aotpack.calls["train"].startswith("native" if request.param == "cpu" else "python")
    return loaded


def ignored(gradient: Tensor | None) -> None:
    """A hook."""


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "a hook": lambda result: result.register_hook(ignored),
    "a partial": lambda result: result.register_hook(functools.partial(ignored)),
    "retain_grad": lambda result: result.retain_grad(),
}


@pytest.mark.parametrize("source", ["hidden", "logits", "flat"])
@pytest.mark.parametrize("wait", WAITS)
def test_who_waits_for_a_source_is_refused(loaded: Any, source: str, wait: str) -> None:
    out = loaded(*arguments())
    WAITS[wait](out[source])
    names = "|".join(name for name in out if out[name] is out[source])
    with pytest.raises(AutogradError, match=rf"gradient of result\['loss'\] would pass result\['({names})'\] in eager"):
        out["loss"].backward()


def test_chains_are_refused_one_by_one(loaded: Any) -> None:
    out = loaded(*arguments())
    out["hidden"].retain_grad()
    with pytest.raises(AutogradError, match=r"result\['(logits|flat)'\] would pass result\['hidden'\]"):
        out["logits"].sum().backward()


def test_hooks_of_a_result_that_is_gone_count(loaded: Any) -> None:
    out = loaded(*arguments())
    out.pop("hidden").register_hook(ignored)
    with pytest.raises(AutogradError, match="hidden"):
        out["loss"].backward()


def test_own_gradients_arrive(loaded: Any) -> None:
    """A hook on a result sees its own gradient, and a result that nothing is computed from may wait."""
    out, seen = loaded(*arguments()), []
    out["logits"].register_hook(seen.append)
    out["loss"].retain_grad()
    out["logits"].sum().backward(retain_graph=True)
    assert torch.equal(seen[0], torch.ones(5, 3))
    out = loaded(*arguments())
    out["loss"].retain_grad()
    out["free"].retain_grad()
    out["loss"].backward()
    assert out["loss"].grad == 1
    assert out["free"].grad is None


def test_hooks_of_sharding_libraries_are_no_reason(loaded: Any) -> None:
    """FSDP puts hooks on all results, to be called before the backward."""
    out = loaded(*arguments())

    def hook(*gradients: Tensor | None) -> None:
        return None

    hook.__module__ = "torch.distributed.fsdp._runtime_utils"
    out["logits"].register_hook(functools.partial(hook))
    out["loss"].backward()
    assert loaded.layer.weight.grad is not None


def test_autograd_grad_of_a_source_raises(loaded: Any, bundle: Path) -> None:
    """Our error in native code; torch's where Python watches the results."""
    out = loaded(*arguments())
    native = loaded.aotpack.calls["train"] == "native" and out["flat"] is out["logits"]
    expected = (AutogradError, "would pass") if native else (RuntimeError, "not have been used in the graph")
    with pytest.raises(expected[0], match=expected[1]):
        torch.autograd.grad(out["loss"], out["logits"])
    weight = loaded.layer.weight
    assert torch.autograd.grad(loaded(*arguments())["loss"] * 2, [weight])[0].shape == weight.shape


def test_a_recorded_start_refuses_too(bundle: Path) -> None:
    for _ in range(2):
        out = aotpack_loader.load(bundle, backend="cpu")(*arguments())
        out["logits"].retain_grad()
        with pytest.raises(AutogradError, match="would pass"):
            out["loss"].backward()
