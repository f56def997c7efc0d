"""Analyses that decide on safety fail closed: one that breaks inside is an error, not an answer that nothing can be told."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import aotpack
import aotpack_loader.errors
from aotpack._torch.tracing import fake_run
from aotpack.capture.dry_run import repeat
from aotpack.guards import strides, zero_one


def build(out: Path, model: Any, example: torch.Tensor) -> None:
    shapes = ({0: Dim("n", max=64)},)
    aotpack.build(model, (example,), out=out, targets=("portable",), methods=("infer",), dynamic_shapes=shapes)


@pytest.mark.parametrize("analysis", [zero_one, strides])
def test_an_analysis_that_breaks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, analysis: Any) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        return fake_run._no_such_name  # type: ignore[attr-defined]

    def in_our_code(*args: Any, **kwargs: Any) -> Any:
        try:
            return broken()
        except AttributeError as error:
            frame = error.__traceback__
            assert frame is not None
            monkeypatch.setattr(repeat.origin, "is_ours", lambda path: path == __file__)
            raise

    monkeypatch.setattr(fake_run, "run_on_fake_tensors", in_our_code)
    run = partial(zero_one.SizeRun(None, {})._fake_run, torch.nn.Identity(), (), {})  # type: ignore[arg-type]
    if analysis is strides:
        run = partial(strides._run, torch.nn.Identity(), (torch.ones(2),), {}, {})
    with pytest.raises(aotpack.AotpackError, match="An analysis of sizes and strides failed"):
        run()


def test_a_replacement_that_torch_calls_with_other_arguments_is_an_error() -> None:
    """As in a release of torch that passes one more to a function which a fix replaces."""
    with pytest.raises(TypeError) as found:
        torch.utils._pytree.tree_map(lambda: None, (1,))
    with pytest.raises(aotpack.AotpackError, match="An analysis of sizes and strides failed"):
        repeat.refuse_if_broken(found.value)


def test_what_a_model_refuses_is_no_break(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)[0] + x.sum()

    build(tmp_path / "x", model, torch.ones(3))


class Heads(torch.nn.Module):
    """Has a layer for two or more rows, and looks it up by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.head_2 = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return getattr(self, f"head_{min(x.shape[0], 2)}")(x)


def test_a_name_that_the_model_looks_up_by_a_size_is_no_break(tmp_path: Path) -> None:
    """torch's own ``Module.__getattr__`` raises, on behalf of the model, which takes no such size."""
    build(tmp_path / "x", Heads(), torch.ones(3, 3))
    loaded = aotpack.load(tmp_path / "x").eval()
    with torch.no_grad():
        assert loaded(torch.ones(4, 3)).shape == (4, 3)
        with pytest.raises(aotpack_loader.errors.InputError):
            loaded(torch.ones(1, 3))
